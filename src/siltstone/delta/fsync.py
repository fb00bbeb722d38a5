"""fsync of files and of the directories that name them, so that they survive a power cut.

delta-rs, pyarrow and Spark never fsync. The required order: an added file and its new directories before the log entry
that names the file. Then the entry, every entry below it and ``_delta_log`` before the acknowledgement.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

from siltstone.delta.layout import entry_name, in_log
from siltstone.delta.log_reader import list_log

SIDE_BY_SIDE: Final = 2
"""Threads that sync in parallel to the caller. A small commit has a file, its folder and an entry."""


class SyncedLog:
    """The version up to which the log of one table is known to be on disk."""

    def __init__(self, table: Path) -> None:
        """Start without a known version: the first sync covers the newest checkpoint and every entry above it."""
        self._table = table
        self._until: int | None = None
        self._written: set[int] = set()

    def note_written(self, version: int) -> None:
        """Record an entry whose bytes are already on disk. Its directory entry may not be."""
        self._written.add(version)

    def sync(self, until: int) -> None:
        """Sync the entry of a version, and every entry below it that is not known to be on disk."""
        if self._until is not None and until <= self._until:
            return
        synced = self._until
        if synced is None:
            listing = list_log(self._table)
            synced = listing.newest_checkpoint
            for name in listing.checkpoints.get(synced, ()):
                _sync_if_there(in_log(self._table, name))
        for version in range(synced + 1, until + 1):
            if version not in self._written:
                _sync_if_there(in_log(self._table, entry_name(version)))
        sync_directory(in_log(self._table, ""))
        self._until = until
        self._written.clear()


def sync_file(path: str | Path, flags: int = os.O_RDONLY) -> None:
    """Sync the bytes of one file, or the names in one directory."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_directory(path: str | Path) -> None:
    """Sync the names in one directory."""
    sync_file(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_files(root: Path, relative: Iterable[str], *, synced: set[str]) -> None:
    """Sync files below `root` and the directories that name them.

    A file's own directory is synced each time. A directory above it, up to `root`, is synced only if its name below `root`
    is not in `synced`.
    """
    names = list(relative)
    for name in names:
        sync_file(f"{root}/{name}")
    folders = folders_to_sync(names, synced=synced)
    for folder in folders:
        sync_directory(f"{root}/{folder}")
    synced.update(folders)  # last, because another thread relies on `synced`


def folders_to_sync(relative: Iterable[str], *, synced: set[str]) -> list[str]:
    """Return the folders that name files below a root: their own folders, and parents that are not in `synced`."""
    folders: dict[str, None] = {}
    for name in relative:
        folder = name.rpartition("/")[0]
        folders[folder] = None
        while folder:  # the root's name is empty
            folder = folder.rpartition("/")[0]
            if folder not in synced:
                folders[folder] = None
    return list(folders)


def sync_beside(handle: int, paths: Sequence[str]) -> None:
    """Sync an open file, and in parallel other files and folders. A disk handles them together."""
    under_way = [_soon(path) for path in paths]
    try:
        os.fsync(handle)
    finally:
        failures = [future.exception() for future in under_way if future is not None]
    for failure in failures:
        if failure is not None:
            raise failure


def _soon(path: str) -> "Future[None] | None":
    """Sync on a pool thread, or on this thread while the interpreter shuts down and accepts no more work."""
    try:
        return _pool().submit(sync_file, path)
    except RuntimeError:
        sync_file(path)
        return None


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="siltstone-sync")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child does not have the pool's threads


def _sync_if_there(path: str | Path) -> None:
    """Sync a file if it exists. A missing entry was cleaned: a synced checkpoint replaces it."""
    with contextlib.suppress(FileNotFoundError):
        sync_file(path)
