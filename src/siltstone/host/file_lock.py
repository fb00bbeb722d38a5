"""Locks of whole files among the processes of one machine (``flock``). A crash of the holder releases them.

A lock is exclusive, or shared among its holders. It belongs to the opened handle: two handles of one process exclude each
other, too. Closing the handle releases it.
"""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from siltstone.clock import Clock
from siltstone.host.fork_safety import own


def lock(handle: int, *, shared: bool = False) -> None:
    """Acquire the lock of an open file; wait for as long as another handle holds it."""
    fcntl.flock(handle, _kind(shared=shared))


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Acquire the lock of an open file, without waiting; return whether it was acquired."""
    try:
        fcntl.flock(handle, _kind(shared=shared) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(handle: int, seconds: float, *, clock: Clock, poll_seconds: float, jitter_seconds: float = 0.0) -> bool:
    """Acquire the exclusive lock of an open file within some seconds; return whether it was acquired."""
    deadline = clock.monotonic_seconds() + seconds
    while not try_lock(handle):
        if clock.monotonic_seconds() >= deadline:
            return False
        clock.sleep(poll_seconds + jitter_seconds * clock.jitter())
    return True


def unlock(handle: int) -> None:
    """Release the lock of an open file, and leave the file open."""
    fcntl.flock(handle, fcntl.LOCK_UN)


def open_locked(path: Path, *, shared: bool = False, wait: bool = True) -> int:
    """Open a lock file, lock it and return its handle.

    Raises:
        BlockingIOError: another handle holds the lock, and `wait` is False.
    """
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, _kind(shared=shared) | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(handle)
        raise
    return own(handle)


def is_locked(path: str | Path, *, shared: bool = False) -> bool:
    """Return whether another handle holds a lock that prevents an exclusive or `shared` lock.

    A missing file is not locked. A link counts as locked: it is not our file, and its target is left alone.
    """
    return _examine(path, lambda handle: not try_lock(handle, shared=shared))


def is_shared(path: str | Path) -> bool:
    """Return whether another handle holds a shared lock. Files are treated as by `is_locked`.

    The shared lock that this acquires first keeps an exclusive one away, which would look like a shared one.
    """
    return _examine(path, lambda handle: try_lock(handle, shared=True) and not try_lock(handle))


def _examine(path: str | Path, is_locked_by_another: Callable[[int], bool]) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            return True
        raise
    try:
        return is_locked_by_another(handle)
    finally:
        os.close(handle)


def _kind(*, shared: bool) -> int:
    return fcntl.LOCK_SH if shared else fcntl.LOCK_EX
