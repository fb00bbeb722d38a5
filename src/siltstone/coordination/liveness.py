"""Liveness locks: a writer or a job holds a file lock for as long as it works, and a crash releases it.

Staged files carry their owner's id in their path. A purge and the sweep check the lock before they delete a file that no log
names. Files of a live owner may become part of a commit at any moment, files of a dead one never will.
The lock protects files from deletion. It decides nothing about commits.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path

from siltstone.errors import Unavailable
from siltstone.host.file_lock import is_locked, lock, try_lock
from siltstone.host.fork_safety import close, own


class LivenessLock:
    """The lock of one live owner. Use it as a context manager, or call `close`."""

    def __init__(self, folder: Path, owner: str) -> None:
        """Acquire the lock. The id must be unused."""
        self.owner = owner
        self._path = folder / owner
        self._process = os.getpid()
        folder.mkdir(parents=True, exist_ok=True)
        self._handle: int | None = _lock(self._path)

    def close(self) -> None:
        """Release the lock. A crash does the same, but leaves the empty file for the sweep."""
        if self._handle is not None:
            if self._process == os.getpid():  # in a forked child the file belongs to the parent
                with contextlib.suppress(OSError):  # the sweep deletes the file
                    self._path.unlink()
            close(self._handle)
            self._handle = None

    def __enter__(self) -> "LivenessLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(path: Path) -> int:
    """Create the file and lock it. If a sweep deletes it between the two steps, start over."""
    while True:
        handle = own(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644))
        try:
            lock(handle)
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except FileNotFoundError:
            pass
        except BaseException:
            close(handle)
            raise
        close(handle)


def is_live(folder: Path, owner: str) -> bool:
    """True while the owner's process holds its lock, this process included.

    Raises:
        Unavailable: this process may not read the folder.
    """
    try:
        return is_locked(f"{folder}/{owner}", shared=True)
    except OSError as error:
        raise Unavailable(f"{folder}: live processes cannot be determined ({error}). Check its permissions.") from error


def sweep_dead(folder: Path) -> int:
    """Delete the lock files of dead owners; return their number.

    Each is deleted under its own lock. An owner that locks its file at this moment finds it deleted and starts over.
    """
    if not folder.is_dir() or folder.is_symlink():
        return 0
    return sum(remove_dead(path) for path in folder.iterdir())


def remove_dead(path: Path) -> bool:
    """Delete one lock file if its owner is dead; return whether it was deleted. A link is left alone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno == errno.ELOOP:
            return False  # gone, or a link, which no owner creates
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode) or not try_lock(handle):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(handle)
