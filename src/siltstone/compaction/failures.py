"""Classes of job failures, and the reaction to each. Pure.

The *evidence* of a failure is the kind and reason of our error, or the exit code of a process. Our own order to stop is
evidence, too. So is the text of errors of Java, Spark, Arrow, Rust and the operating system. The text of our own
messages is never examined. The class decides between *divide* (retry with half the files) and *leave* (report it; the
next cycle plans again). It also decides whether the worker of the attempt can be reused.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from siltstone.errors import Corruption, Reason, SiltstoneError, Unavailable, causes, reason_of


class Failure(StrEnum):
    """Class of a failed attempt."""

    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    """A signal that we did not send ended the worker or its JVM. The system does this when memory is short."""
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    DISK_FULL = "disk_full"
    PERMISSION_DENIED = "permission_denied"
    CORRUPT_INPUT = "corrupt_input"
    MISSING_FILE = "missing_file"
    """A file that a log names is missing."""
    FOREIGN_COMMIT = "foreign_commit"
    """Another program has changed the table."""
    SCHEMA_CHANGED = "schema_changed"
    CONFLICT = "conflict"
    """Another process committed first. The caller plans again."""
    FENCED = "fenced"
    """A higher epoch has committed. This compactor must stop."""
    GONE = "gone"
    """The dataset was dropped."""
    COMMIT_UNKNOWN = "commit_unknown"
    """It is unknown whether the commit is in the log. Recovery checks the log, and the job is not retried."""
    UNKNOWN = "unknown"

    @property
    def splittable(self) -> bool:
        """True if an attempt with fewer files may succeed. On a full disk a split would write more files."""
        return self in _SPLITTABLE

    @property
    def discard_worker(self) -> bool:
        """True if the worker of the failed attempt must not be used again."""
        return self in _DISCARDED


_SPLITTABLE: Final = frozenset({Failure.OUT_OF_MEMORY, Failure.KILLED, Failure.TIME_LIMIT})
_DISCARDED: Final = _SPLITTABLE | {Failure.CANCELLED, Failure.COMMIT_UNKNOWN, Failure.UNKNOWN}


class UnreadableFiles(Corruption):
    """Inputs of a job that cannot be read. `files` maps each path below the table to its reason."""

    def __init__(self, message: str, files: Mapping[str, str]) -> None:
        super().__init__(message, reason=Reason.DAMAGED_FILE, paths=files)
        self.files = dict(files)


class WorkerLost(Unavailable):
    """The worker process of the job has ended. Holds how it ended, and the last lines that it printed."""

    def __init__(self, message: str, *, ended_with: int | None, stderr: str, reason: Reason | None = None) -> None:
        super().__init__(message, reason=reason)
        self.ended_with = ended_with
        self.stderr = stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureEvidence:
    """Evidence of one failed attempt.

    `kind` and `reason` are those of our own error. `text` holds the text of errors that are not ours. `stderr` is the
    output of a worker that has ended, which may also be about other things. `exit_code` is how the worker ended.
    `stopped_for` is set if we ended the attempt ourselves.
    """

    kind: str = ""
    reason: Reason | None = None
    text: str = ""
    stderr: str = ""
    exit_code: int | None = None
    stopped_for: Failure | None = None


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
"""Reasons of failures that were classified by other evidence."""
BY_TEXT: Final[Sequence[tuple[Failure, tuple[str, ...]]]] = (
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
        ("CANNOT_READ_FILE_FOOTER", "is not a Parquet file", "Parquet magic bytes", "CRC checksum verification failed"),
    ),
    (
        Failure.SCHEMA_CHANGED,
        ("PARQUET_COLUMN_DATA_TYPE_MISMATCH", "SchemaColumnConvertNotSupported", "CANNOT_MERGE_SCHEMAS"),
    ),
)
"""Texts of errors that are not ours, per class, in the order of checks: out of memory causes other errors."""
_IN_STDERR: Final = frozenset({Failure.OUT_OF_MEMORY, Failure.DISK_FULL})
"""Classes that are also found in the output of a worker that has ended. That output may be about other things."""


def classify(evidence: FailureEvidence) -> Failure:
    """Return the class of a failure.

    >>> classify(FailureEvidence(exit_code=-9))
    <Failure.KILLED: 'killed'>
    >>> classify(FailureEvidence(stderr="java.lang.OutOfMemoryError: Java heap space", exit_code=-9))
    <Failure.OUT_OF_MEMORY: 'out_of_memory'>
    """
    if evidence.stopped_for is not None:
        return evidence.stopped_for
    if evidence.kind == "conflict":
        return Failure.SCHEMA_CHANGED if evidence.reason is Reason.SCHEMA_CHANGED else Failure.CONFLICT
    if evidence.kind in BY_KIND:
        return BY_KIND[evidence.kind]
    by_reason = None if evidence.reason is None else BY_REASON.get(evidence.reason)
    for failure, texts in BY_TEXT:
        words = f"{evidence.text}\n{evidence.stderr}" if failure in _IN_STDERR else evidence.text
        if failure is by_reason or any(text in words for text in texts):
            return failure
    if by_reason is not None:
        return by_reason
    if evidence.exit_code is not None and evidence.exit_code < 0:
        return Failure.KILLED
    return Failure.UNKNOWN


def evidence_of(error: Exception, *, stopped_for: Failure | None = None) -> FailureEvidence:
    """Return the evidence of an error."""
    lost = error if isinstance(error, WorkerLost) else None
    return FailureEvidence(
        kind=error.kind if isinstance(error, SiltstoneError) and lost is None else "",
        reason=reason_of(error),
        text=foreign_text(error),
        stderr=lost.stderr if lost else "",
        exit_code=lost.ended_with if lost else None,
        stopped_for=stopped_for,
    )


def foreign_text(error: BaseException) -> str:
    """Return the class names and texts of an error and its causes, without the errors that Siltstone raised.

    >>> foreign_text(Unavailable("Permission denied")), foreign_text(KeyError("rows"))
    ('', "KeyError: 'rows'")
    """
    return "\n".join(
        f"{type(cause).__name__}: {cause}" for cause in causes(error) if not isinstance(cause, SiltstoneError)
    )


def names_file(error: BaseException, path: str) -> bool:
    """True if an error or one of its causes is about a file.

    Our errors name files in `paths`, errors of other programs in their text.

    >>> names_file(Corruption("It is damaged.", paths=["/lake/a/1.parquet"]), "a/1.parquet")
    True
    """
    name = path.rsplit("/", 1)[-1]
    ours = [cause for cause in causes(error) if isinstance(cause, SiltstoneError)]
    named = (other.rsplit("/", 1)[-1] for cause in ours for other in cause.paths)
    return name in named or name in foreign_text(error)


def exit_text(code: int | None) -> str:
    """Describe how a process ended.

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
