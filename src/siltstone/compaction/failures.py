"""What went wrong with a job, as one of few classes, and what each calls for. Pure.

The *symptoms* of an attempt are the kind and reason of our error, the words of Java, Spark, Arrow, Rust and the operating system,
the exit of a process, and our own order to stop. The words of our own messages are never examined. The class decides: *divide*
(try again with half the files), *leave* (report it; the next cycle plans anew), and whether the worker that met it can go on.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from siltstone.errors import Corruption, Reason, SiltstoneError, Unavailable, causes, reason_of


class Failure(StrEnum):
    """Why an attempt failed."""

    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    """The worker or its JVM was ended by a signal that we did not send: as the system does when memory is short."""
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    DISK_FULL = "disk_full"
    PERMISSION_DENIED = "permission_denied"
    CORRUPT_INPUT = "corrupt_input"
    MISSING_FILE = "missing_file"
    """A file that a log names is not there."""
    FOREIGN_COMMIT = "foreign_commit"
    """Another program has changed the table."""
    SCHEMA_CHANGED = "schema_changed"
    CONFLICT = "conflict"
    """Somebody else was first: plan anew."""
    FENCED = "fenced"
    """A higher epoch has committed: whoever planned this must not go on."""
    GONE = "gone"
    """The dataset was dropped."""
    COMMIT_UNKNOWN = "commit_unknown"
    """Nobody knows whether it landed: recovery looks, and it is not tried again."""
    UNKNOWN = "unknown"

    @property
    def recoverable(self) -> bool:
        """True if fewer files at once may succeed. A full disk is not better off with more files on it."""
        return self in _RECOVERABLE

    @property
    def soils_worker(self) -> bool:
        """True if the worker that met it must not be used again."""
        return self in _SOILING


_RECOVERABLE: Final = frozenset({Failure.OUT_OF_MEMORY, Failure.KILLED, Failure.TIME_LIMIT})
_SOILING: Final = _RECOVERABLE | {Failure.CANCELLED, Failure.COMMIT_UNKNOWN, Failure.UNKNOWN}


class UnreadableFiles(Corruption):
    """Inputs of a job that cannot be read; `files` says what is wrong with each, by its path below the table."""

    def __init__(self, message: str, files: Mapping[str, str]) -> None:
        """Name them."""
        super().__init__(message, reason=Reason.DAMAGED_FILE, paths=files)
        self.files = dict(files)


class WorkerLost(Unavailable):
    """The process that did the job is gone: how it ended, and the last lines that it printed."""

    def __init__(self, message: str, *, ended_with: int | None, said: str, reason: Reason | None = None) -> None:
        """Keep what its class is derived from."""
        super().__init__(message, reason=reason)
        self.ended_with = ended_with
        self.said = said


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """What an attempt left behind.

    `kind` and `reason` are those of our own error. `text` holds the words of errors that are not ours. `said` is what a worker
    that is gone had printed, also about other things; `exit_code` is how it ended, and `asked` is set if we ended the attempt
    ourselves.
    """

    kind: str = ""
    reason: Reason | None = None
    text: str = ""
    said: str = ""
    exit_code: int | None = None
    asked: Failure | None = None


BY_KIND: Final[Mapping[str, Failure]] = {
    "fenced": Failure.FENCED,
    "gone": Failure.GONE,
    "not_found": Failure.GONE,
    "commit_unknown": Failure.COMMIT_UNKNOWN,
}
BY_REASON: Final[Mapping[Reason, Failure]] = {
    Reason.MEMORY: Failure.OUT_OF_MEMORY,
    Reason.DISK_FULL: Failure.DISK_FULL,
    Reason.PERMISSION_DENIED: Failure.PERMISSION_DENIED,
    Reason.DAMAGED_FILE: Failure.CORRUPT_INPUT,
    Reason.MISSING_FILE: Failure.MISSING_FILE,
    Reason.FOREIGN_COMMIT: Failure.FOREIGN_COMMIT,
    Reason.SCHEMA_CHANGED: Failure.SCHEMA_CHANGED,
}
REASONS: Final[Mapping[Failure, Reason]] = {
    Failure.TIME_LIMIT: Reason.TIME_LIMIT,
    Failure.CANCELLED: Reason.CANCELLED,
    **{failure: reason for reason, failure in BY_REASON.items()},
}
"""The reason of a failure that was recognised by other symptoms than a reason."""
BY_WORDS: Final[Sequence[tuple[Failure, tuple[str, ...]]]] = (
    (
        Failure.OUT_OF_MEMORY,
        (
            "OutOfMemoryError",
            "Java heap space",
            "GC overhead limit",
            "UNABLE_TO_ACQUIRE_MEMORY",
            "MemoryError",
            "Cannot allocate memory",
            "os error 12",
            "bad_alloc",
            "insufficient memory for the Java Runtime Environment",
        ),
    ),
    (Failure.KILLED, ("Python worker exited unexpectedly",)),
    (
        Failure.DISK_FULL,
        ("No space left on device", "File too large", "Disk quota exceeded", "os error 28", "os error 27"),
    ),
    (
        Failure.PERMISSION_DENIED,
        ("Permission denied", "PermissionError", "Operation not permitted", "Read-only file system", "AccessDenied"),
    ),
    (
        Failure.CORRUPT_INPUT,
        (
            "CANNOT_READ_FILE_FOOTER",
            "is not a Parquet file",
            "Parquet magic bytes",
            "CRC checksum verification failed",
        ),
    ),
    (
        Failure.SCHEMA_CHANGED,
        ("PARQUET_COLUMN_DATA_TYPE_MISMATCH", "SchemaColumnConvertNotSupported", "CANNOT_MERGE_SCHEMAS"),
    ),
)
"""Words of errors that are not ours, per class and checked in this order. Out of memory is first: it causes other errors."""


_TOLD_BY_THE_DYING: Final = frozenset({Failure.OUT_OF_MEMORY, Failure.DISK_FULL})


def classify(symptoms: Symptoms) -> Failure:
    """Return the class of a failure.

    >>> classify(Symptoms(exit_code=-9)), classify(Symptoms(said="java.lang.OutOfMemoryError: Java heap space", exit_code=-9))
    (<Failure.KILLED: 'killed'>, <Failure.OUT_OF_MEMORY: 'out_of_memory'>)
    """
    if symptoms.asked is not None:
        return symptoms.asked
    if symptoms.kind == "conflict":
        return Failure.SCHEMA_CHANGED if symptoms.reason is Reason.SCHEMA_CHANGED else Failure.CONFLICT
    if symptoms.kind in BY_KIND:
        return BY_KIND[symptoms.kind]
    by_reason = None if symptoms.reason is None else BY_REASON.get(symptoms.reason)
    for failure, marks in BY_WORDS:
        words = f"{symptoms.text}\n{symptoms.said}" if failure in _TOLD_BY_THE_DYING else symptoms.text
        if failure is by_reason or any(mark in words for mark in marks):
            return failure
    if by_reason is not None:
        return by_reason
    if symptoms.exit_code is not None and symptoms.exit_code < 0:
        return Failure.KILLED
    return Failure.UNKNOWN


def symptoms_of(error: Exception, *, asked: Failure | None = None) -> Symptoms:
    """Return what an error says for its classification."""
    lost = error if isinstance(error, WorkerLost) else None
    return Symptoms(
        kind=error.kind if isinstance(error, SiltstoneError) and lost is None else "",
        reason=reason_of(error),
        text=foreign_text(error),
        said=lost.said if lost else "",
        exit_code=lost.ended_with if lost else None,
        asked=asked,
    )


def foreign_text(error: BaseException) -> str:
    """Return the class names and words of an error and its causes, without the errors that Siltstone raised.

    >>> foreign_text(Unavailable("Permission denied")), foreign_text(KeyError("rows"))
    ('', "KeyError: 'rows'")
    """
    return "\n".join(f"{type(one).__name__}: {one}" for one in causes(error) if not isinstance(one, SiltstoneError))


def names_file(error: BaseException, path: str) -> bool:
    """True if an error or one of its causes is about a file: ours by their `paths`, those of other programs by their words.

    >>> names_file(Corruption("It is damaged.", paths=["/lake/a/1.parquet"]), "a/1.parquet")
    True
    """
    name = path.rsplit("/", 1)[-1]
    ours = [one for one in causes(error) if isinstance(one, SiltstoneError)]
    return any(found.rsplit("/", 1)[-1] == name for one in ours for found in one.paths) or name in foreign_text(error)


def exit_text(code: int | None) -> str:
    """Say how a process ended.

    >>> exit_text(-9), exit_text(3)
    ('was killed by SIGKILL', 'ended with code 3')
    """
    if code is None:
        return "closed its output"
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
