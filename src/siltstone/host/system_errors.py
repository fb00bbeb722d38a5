"""Errors of the operating system and of native code, as Siltstone errors.

A file that cannot be opened or read is not damaged. Permissions, open files, memory and disks concern this process or
machine. Such errors are Unavailable, and the file is left alone. Content that is read but not valid is Corruption.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from siltstone.errors import Corruption, Reason, SiltstoneError, Unavailable, first_line, reason_of

PANIC: Final = "PanicException"
"""Name of the exception that Python gets when native Rust code (delta-rs) panics. A BaseException that no module exports."""
MAPPING_FAILURES: Final = ("failed to map segment from shared object", "cannot allocate memory")
"""Messages of the system's loader, in lower case, for a library that does not fit into the process's memory."""


def is_memory_failure(error: BaseException) -> bool:
    """True if the process has no memory left, for data or for a library that is imported on first use."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, ImportError) and any(words in str(error).lower() for words in MAPPING_FAILURES)


def is_panic(error: BaseException) -> bool:
    """True if native code has panicked."""
    return type(error).__name__ == PANIC


def read_failure(path: str | Path, error: BaseException, state: str = "") -> SiltstoneError:
    """Return the error for a file that could not be read. `state` names what was not changed."""
    suffix = f" {state}" if state else ""
    reason = first_line(error)
    if isinstance(error, MemoryError):
        return Unavailable(
            f"File {path} cannot be read: not enough memory (MemoryError: {reason}).{suffix} Read fewer rows or columns at a "
            "time, or give the process more memory.",
            reason=Reason.MEMORY,
            paths=[path],
        )
    if isinstance(error, FileNotFoundError):
        return Corruption(
            f"File {path} is missing.{suffix} Restore it from a copy.", reason=Reason.MISSING_FILE, paths=[path]
        )
    if isinstance(error, PermissionError):
        return _denied(path, suffix)
    if isinstance(error, OSError) and error.errno is not None:
        return Unavailable(
            f"File {path} cannot be read: {os.strerror(error.errno)}.{suffix} The file may be intact: fix that and try again.",
            reason=reason_of(error),
            paths=[path],
        )
    return Corruption(
        f"File {path} is damaged: {reason}.{suffix} Restore it from a copy.", reason=Reason.DAMAGED_FILE, paths=[path]
    )


def _denied(path: str | Path, suffix: str = "") -> Unavailable:
    return Unavailable(
        f"File {path} cannot be read: Permission denied for user {os.geteuid()}.{suffix} Check its owner and mode.",
        reason=Reason.PERMISSION_DENIED,
        paths=[path],
    )


@contextmanager
def log_errors(log: Path) -> Iterator[None]:
    """Translate errors of reading a table's log. A missing file raises unchanged, because its meaning depends on the caller.

    Raises:
        Unavailable: the operating system does not let this process read the log.
        Corruption: native code panicked while reading it.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except MemoryError as error:
        raise read_failure(log, error) from error
    except OSError as error:
        raise _refused(log, error) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise Corruption(
            f"The log {log} cannot be read: {first_line(error)}. Restore it from a copy.", reason=Reason.DAMAGED_FILE
        ) from error


def _refused(log: Path, error: OSError) -> SiltstoneError:
    """Return the error for a log that cannot be read. Errors of native code have no number, so the files are checked."""
    if isinstance(error, PermissionError) and error.filename:
        return _denied(error.filename)
    try:
        denied = next((path for path in sorted(log.iterdir()) if not os.access(path, os.R_OK)), None)
    except PermissionError:
        denied = log
    except OSError:
        denied = None
    if denied is not None:
        return _denied(denied)
    reason = os.strerror(error.errno) if error.errno is not None else first_line(error)
    return Unavailable(f"The log {log} cannot be read: {reason}. Its files may be sound: fix that and try again.")
