"""Every error Siltstone raises, named by what the caller must do about it.

::

    SiltstoneError
    ├── InvalidRequest      change the call                                  422, exit 2
    ├── NotFound            the named thing does not exist                   404, exit 3
    ├── Conflict            re-read and retry                                409, exit 4
    ├── Unavailable         back off and try again                           503, exit 5
    ├── CommitUnknown       read, then decide whether to repeat              503, exit 6
    ├── Fenced              stop, a higher epoch has taken over              409, exit 7
    ├── Gone                the dataset was dropped: open it again           410, exit 8
    └── Corruption          stop, stored state breaks an invariant           500, exit 9

A message names what happened, to which dataset, and what to do next. It is written for people and may be reworded at any time.
Programs decide by the type or `kind` of an error, and within a kind by its `reason`. They find its files in `paths`.
"""

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final

_TERMINAL: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""Escape sequences: colors, cursor movements, titles."""


def one_line(text: str) -> str:
    r"""Return text as one line without control characters.

    >>> one_line("a\x1b[31mb\n  c\x07")
    'ab c\\x07'
    """
    if text.isprintable():
        return text
    plain = " ".join(line.strip() for line in _TERMINAL.sub("", text).splitlines() if line.strip())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in plain)


def error_text(error: BaseException) -> str:
    """Return an error as text for people: an error without a message of ours, or the system's, with its class.

    >>> error_text(KeyError("id")), error_text(FileNotFoundError())
    ("KeyError: 'id'", 'FileNotFoundError')
    """
    if isinstance(error, SiltstoneError | OSError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}"


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's text; its class if it has none.

    >>> first_line(ValueError("bad footer\n  at page 3")), first_line(MemoryError())
    ('bad footer', 'MemoryError')
    """
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


class Reason(StrEnum):
    """Why an error was raised, where that decides what to do about it. Most errors have none."""

    MEMORY = "memory"
    """This process, or Spark, has too little memory: read less at a time, or give it more memory."""
    DISK_FULL = "disk_full"
    """The disk, a quota or the size limit of a file is used up: make room."""
    PERMISSION_DENIED = "permission_denied"
    """The operating system does not permit this user to do it: check owner, mode and mount options."""
    DAMAGED_FILE = "damaged_file"
    """A file has other bytes than were written, or an invalid structure: restore it from a copy."""
    MISSING_FILE = "missing_file"
    """A file that the log names does not exist: mount its disk, or restore it from a copy."""
    FOREIGN_COMMIT = "foreign_commit"
    """Another program has changed a table: `silt doctor --repair` undoes that."""
    SCHEMA_CHANGED = "schema_changed"
    """The columns were altered meanwhile: open the dataset again."""
    SPARK_LOST = "spark_lost"
    """Spark's server or JVM ended, or did not start: try again, and read its log."""
    TIME_LIMIT = "time_limit"
    """It took longer than its time limit: request less, or raise the limit."""
    CYCLE_RUNNING = "cycle_running"
    """A compaction cycle of this lake is running: wait until it has ended."""
    CANCELLED = "cancelled"
    """A caller or the compactor ended it."""
    NOT_JSON = "not_json"
    """The text of an event, or of one of its fields, is not JSON: correct it."""
    MISSING_FIELD = "missing_field"
    """An event lacks a field: add it."""
    UNKNOWN_FIELD = "unknown_field"
    """An event has a field that its type does not have: remove it."""
    WRONG_TYPE = "wrong_type"
    """A field of an event has another JSON type than it must have: change it."""
    INVALID_VALUE = "invalid_value"
    """A field of an event has a value that is not allowed: change it."""
    TOO_LARGE = "too_large"
    """An event is too large or nested too deeply: store large content elsewhere."""


_BY_ERRNO: Final[Mapping[int, Reason]] = {
    errno.ENOMEM: Reason.MEMORY,
    errno.ENOSPC: Reason.DISK_FULL,
    errno.EDQUOT: Reason.DISK_FULL,
    errno.EFBIG: Reason.DISK_FULL,
    errno.EACCES: Reason.PERMISSION_DENIED,
    errno.EPERM: Reason.PERMISSION_DENIED,
    errno.EROFS: Reason.PERMISSION_DENIED,
}
MAX_CAUSES: Final = 4
"""Number of causes of an error that are examined for its reason."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors from which it was raised, the outermost first."""
    current: BaseException | None = error
    for _ in range(MAX_CAUSES + 1):
        if current is None:
            return
        yield current
        current = current.__cause__


def reason_of(error: BaseException) -> Reason | None:
    """Return why an error was raised: its own reason, or the first one among its causes.

    >>> reason_of(OSError(errno.ENOSPC, "No space left on device"))
    <Reason.DISK_FULL: 'disk_full'>
    """
    return next(filter(None, map(_direct_reason, causes(error))), None)


def _direct_reason(error: BaseException) -> Reason | None:
    match error:
        case SiltstoneError():
            return error.stated_reason
        case MemoryError():
            return Reason.MEMORY
        case OSError():
            return _BY_ERRNO.get(error.errno or 0)
        case _:
            return None


class SiltstoneError(Exception):
    """The root of all errors that Siltstone raises on purpose."""

    kind: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "", *, reason: Reason | None = None, paths: Iterable[str | Path] = ()) -> None:
        """Make the message one line that a terminal can show.

        It may quote file names, data and errors of other programs.

        Args:
            message: what happened, for people.
            reason: why, for programs.
            paths: the files that the error is about, for programs.
        """
        super().__init__(one_line(message))
        self.stated_reason = reason
        self.paths = tuple(map(str, paths))

    @property
    def reason(self) -> Reason | None:
        """Why the error was raised. Default: the reason of the error from which it was raised, such as a full disk."""
        return reason_of(self)


class InvalidRequest(SiltstoneError):
    """The call itself is wrong; the same call will fail again. Nothing was written."""

    kind = "invalid_request"
    status = 422
    exit_code = 2


class NotFound(SiltstoneError):
    """The named dataset, version or file does not exist."""

    kind = "not_found"
    status = 404
    exit_code = 3


class Conflict(SiltstoneError):
    """Another process changed what this call depends on; re-read and decide again."""

    kind = "conflict"
    status = 409
    exit_code = 4


class Unavailable(SiltstoneError):
    """A resource is busy, full or out of reach; the same call may succeed later."""

    kind = "unavailable"
    status = 503
    exit_code = 5


class CommitUnknown(SiltstoneError):
    """A commit may or may not have landed. Read the dataset before you repeat the write."""

    kind = "commit_unknown"
    status = 503
    exit_code = 6


class Fenced(SiltstoneError):
    """A purge or another holder has a higher epoch; stop working."""

    kind = "fenced"
    status = 409
    exit_code = 7


class Gone(SiltstoneError):
    """The dataset behind this handle was dropped or re-created; open it again."""

    kind = "gone"
    status = 410
    exit_code = 8


class Corruption(SiltstoneError):
    """Stored state breaks an invariant; stop and investigate before anything is written."""

    kind = "corruption"
    status = 500
    exit_code = 9


def named_error(kind: str | None, message: str, *, reason: str | None = None) -> SiltstoneError:
    """Return the error of a kind and reason that another process has reported.

    >>> type(named_error("conflict", "Plan again.")).__name__
    'Conflict'
    >>> named_error("unavailable", "Not enough memory.", reason="memory").reason
    <Reason.MEMORY: 'memory'>
    """
    kinds = {error.kind: error for error in SiltstoneError.__subclasses__()}
    reasons = {item.value: item for item in Reason}
    return kinds.get(kind or "", SiltstoneError)(message, reason=reasons.get(reason or ""))
