"""Making bytes survive a power cut: fsync of files and of the directories that name them.

delta-rs, pyarrow and Spark never fsync. The order that matters: an added file and its new directories before the log
entry that names it, the entry, every entry below it and ``_delta_log`` before the acknowledgement.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

from siltstone.delta.layout import entry_name, in_log
from siltstone.delta.log_reader import list_log

SIDE_BY_SIDE: Final = 2
"""Threads that sync beside the caller: a small commit has a file, its folder and an entry."""


class SyncedLog:
    """How far the log of one table is known to be on disk."""

    def __init__(self, table: Path) -> None:
        """Know nothing yet: the first sync takes the newest checkpoint and every entry above it."""
        self._table = table
        self._until: int | None = None
        self._written: set[int] = set()

    def note_written(self, version: int) -> None:
        """Take note of an entry whose bytes are on disk already; its name may not be."""
        self._written.add(version)

    def sync(self, until: int) -> None:
        """Force the entry of a version to disk, with every entry below it that is not known to be there."""
        if self._until is not None and until <= self._until:
            return
        known = self._sync_checkpoint() if self._until is None else self._until
        for version in range(known + 1, until + 1):
            if version not in self._written:
                _sync_if_there(in_log(self._table, entry_name(version)))
        sync_directory(in_log(self._table, ""))
        self._until = until
        self._written.clear()

    def _sync_checkpoint(self) -> int:
        """Force the newest checkpoint to disk and return its version, -1 if there is none."""
        listing = list_log(self._table)
        for name in listing.checkpoints.get(listing.newest_checkpoint, ()):
            _sync_if_there(in_log(self._table, name))
        return listing.newest_checkpoint


def sync_file(path: str | Path) -> None:
    """Force one file's bytes to disk."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: str | Path) -> None:
    """Force one directory's names to disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_files(root: Path, relative: Iterable[str], *, known: set[str]) -> None:
    """Force files below `root` to disk, with the directories that name them.

    A file's own directory is synced each time; those above it, up to `root`, only until they are in `known`, by their names
    below `root`.
    """
    names = list(relative)
    for name in names:
        sync_file(f"{root}/{name}")
    folders = folders_to_sync(names, known=known)
    for folder in folders:
        sync_directory(f"{root}/{folder}")
    known.update(folders)  # only now: another thread relies on what is known


def folders_to_sync(relative: Iterable[str], *, known: set[str]) -> list[str]:
    """Return the folders that name files below a root: their own ones, and those above that are not in `known`."""
    found: dict[str, None] = {}
    for name in relative:
        own = name.rpartition("/")[0]
        found.update({part: None for part in _upwards(own) if part == own or part not in known})
    return list(found)


def sync_beside(handle: int, paths: Sequence[str]) -> None:
    """Force an open file to disk, and files and folders beside it at the same time: a disk takes them together.

    Raises:
        OSError: one of them cannot be synced.
    """
    under_way = [_soon(path) for path in paths]
    try:
        os.fsync(handle)
    finally:
        failures = [one.exception() for one in under_way if one is not None]
    for failure in failures:
        if failure is not None:
            raise failure


def _soon(path: str) -> "Future[None] | None":
    """Sync on another thread; on this one where the interpreter is ending and starts nothing any more."""
    try:
        return _pool().submit(sync_file, path)
    except RuntimeError:
        sync_file(path)
        return None


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="siltstone-sync")


os.register_at_fork(after_in_child=_pool.cache_clear)  # its threads are not there


def _upwards(folder: str) -> Iterator[str]:
    """Yield a folder and those above it, up to the root, which has no name."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
    yield ""


def _sync_if_there(path: str | Path) -> None:
    """An entry that is gone was cleaned: a synced checkpoint stands for it."""
    with contextlib.suppress(FileNotFoundError):
        sync_file(path)


def _sync(path: str | Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
