"""Every error Siltstone raises, named by what the caller must do about it.

::

    SiltstoneError
    ├── InvalidRequest      change the call                                  422, exit 2
    ├── NotFound            the named thing does not exist                   404, exit 3
    ├── Conflict            re-read and retry                                409, exit 4
    ├── Unavailable         back off and try again                           503, exit 5
    ├── CommitUnknown       run recovery, never retry blindly                503, exit 6
    ├── Fenced              stop, another holder owns the lease              409, exit 7
    ├── Gone                the dataset was dropped: open it anew            410, exit 8
    └── Corruption          stop, stored state breaks an invariant           500, exit 9

A message says what happened, to which dataset, and what to do next.
"""

import re
from typing import ClassVar, Final

_TERMINAL: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""Escape sequences: colours, cursor movements, titles."""


def one_line(text: str) -> str:
    r"""Return text as one line without control characters.

    >>> one_line("a\x1b[31mb\n  c\x07")
    'ab c\\x07'
    """
    if text.isprintable():
        return text
    plain = " ".join(line.strip() for line in _TERMINAL.sub("", text).splitlines() if line.strip())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in plain)


class SiltstoneError(Exception):
    """The root: catch it to catch everything that Siltstone raises on purpose."""

    kind: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "") -> None:
        """Make the message one line that a terminal can show: it may quote file names, data and errors of other programs."""
        super().__init__(one_line(message))


class InvalidRequest(SiltstoneError):
    """The call itself is wrong; the same call will fail again. Nothing was written."""

    kind = "invalid_request"
    status = 422
    exit_code = 2


class NotFound(SiltstoneError):
    """The dataset, version or file that was named does not exist."""

    kind = "not_found"
    status = 404
    exit_code = 3


class Conflict(SiltstoneError):
    """Somebody else changed what this call depended on; re-read and decide anew."""

    kind = "conflict"
    status = 409
    exit_code = 4


class Unavailable(SiltstoneError):
    """A resource is busy, full or out of reach; the same call may succeed later."""

    kind = "unavailable"
    status = 503
    exit_code = 5


class CommitUnknown(SiltstoneError):
    """A commit may or may not have landed. Run recovery; never retry blindly."""

    kind = "commit_unknown"
    status = 503
    exit_code = 6


class Fenced(SiltstoneError):
    """Another holder with a higher epoch owns the lease; stop working."""

    kind = "fenced"
    status = 409
    exit_code = 7


class Gone(SiltstoneError):
    """The dataset behind this handle was dropped or re-created; open it anew."""

    kind = "gone"
    status = 410
    exit_code = 8


class Corruption(SiltstoneError):
    """Stored state breaks an invariant; stop and look before anything is written."""

    kind = "corruption"
    status = 500
    exit_code = 9


def named_error(kind: str | None, message: str) -> SiltstoneError:
    """Return the error of a kind that another process has named.

    >>> type(named_error("conflict", "Plan anew.")).__name__
    'Conflict'
    """
    found = {error.kind: error for error in SiltstoneError.__subclasses__()}
    return found.get(kind or "", SiltstoneError)(message)
