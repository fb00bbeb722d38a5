"""Making bytes survive a power cut: fsync of files and of the directories that name them.

delta-rs, pyarrow and Spark never fsync. The order that matters: an added file and its new directories before the log
entry that names it, the entry, every entry below it and ``_delta_log`` before the acknowledgement.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from siltstone.storage.layout import entry_name, in_log
from siltstone.storage.log import list_log


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
    for folder in {name.rpartition("/")[0] for name in names}:
        sync_directory(f"{root}/{folder}")
        new = [part for part in _upwards(folder) if part not in known]
        for part in new:
            if part != folder:
                sync_directory(f"{root}/{part}")
        known.update(new)  # only now: another thread relies on what is known


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
