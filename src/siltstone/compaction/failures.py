"""What went wrong with a job, as one of few classes, and what each calls for. Pure.

Whatever an attempt leaves (our error, Spark's words, the exit of a process, our own order to stop) are its *symptoms*. The class
decides: *divide* (try again with half the files), *leave* (report it; the next cycle plans anew), and whether the worker that met
it is still sound.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from siltstone.errors import Corruption


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
    """Inputs of a job that cannot be read; `reasons` says why, by their paths below the table."""

    def __init__(self, message: str, reasons: Mapping[str, str]) -> None:
        """Name them."""
        super().__init__(message)
        self.reasons = dict(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """What an attempt left behind.

    `kind` is that of our own error and `text` its words; `said` is what a worker that is gone had printed, also about other
    things; `exit_code` is how it ended, and `asked` is set if we ended the attempt ourselves.
    """

    kind: str = ""
    text: str = ""
    said: str = ""
    exit_code: int | None = None
    asked: Failure | None = None
    unreadable: bool = False


BY_KIND: Final[Mapping[str, Failure]] = {
    "fenced": Failure.FENCED,
    "gone": Failure.GONE,
    "not_found": Failure.GONE,
    "commit_unknown": Failure.COMMIT_UNKNOWN,
}
ALTERED: Final = ("columns were altered", "changed the table's metadata", "which base lacks")
"""What our Conflicts say if a schema is the reason."""
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
            "not a readable Parquet file",
            "cannot be read (",
            "is damaged:",
            "CRC checksum verification failed",
        ),
    ),
    (
        Failure.SCHEMA_CHANGED,
        ("PARQUET_COLUMN_DATA_TYPE_MISMATCH", "SchemaColumnConvertNotSupported", "CANNOT_MERGE_SCHEMAS"),
    ),
)
"""What is said, in the order in which it is looked for: memory that runs out brings other errors with it."""


_TOLD_BY_THE_DYING: Final = frozenset({Failure.OUT_OF_MEMORY, Failure.DISK_FULL})


def classify(symptoms: Symptoms) -> Failure:
    """Return the class of a failure.

    >>> classify(Symptoms(exit_code=-9)), classify(Symptoms(said="java.lang.OutOfMemoryError: Java heap space", exit_code=-9))
    (<Failure.KILLED: 'killed'>, <Failure.OUT_OF_MEMORY: 'out_of_memory'>)
    """
    if symptoms.asked is not None:
        return symptoms.asked
    if symptoms.unreadable:
        return Failure.CORRUPT_INPUT
    if symptoms.kind == "conflict":
        return Failure.SCHEMA_CHANGED if any(mark in symptoms.text for mark in ALTERED) else Failure.CONFLICT
    if symptoms.kind in BY_KIND:
        return BY_KIND[symptoms.kind]
    for failure, marks in BY_WORDS:
        words = f"{symptoms.text}\n{symptoms.said}" if failure in _TOLD_BY_THE_DYING else symptoms.text
        if any(mark in words for mark in marks):
            return failure
    if symptoms.exit_code is not None and symptoms.exit_code < 0:
        return Failure.KILLED
    return Failure.UNKNOWN


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
