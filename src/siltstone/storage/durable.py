"""Making bytes survive a power cut: fsync of files and of the directories that name them.

delta-rs, pyarrow and Spark never fsync. The order that matters: an added file and its new directories before the log
entry that names it, the entry and ``_delta_log`` before the acknowledgement.
"""

import os
from collections.abc import Iterable
from pathlib import Path


def sync_file(path: Path) -> None:
    """Force one file's bytes to disk."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Force one directory's names to disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_files(root: Path, relative: Iterable[str], *, known: set[Path]) -> None:
    """Force files below `root` to disk, with the directories that name them.

    A file's own directory is synced each time; those above it, up to `root`, only until they are in `known`.
    """
    paths = [root / name for name in relative]
    for path in paths:
        sync_file(path)
    for folder in {path.parent for path in paths}:
        sync_directory(folder)
        new = [part for part in (folder, *folder.parents) if part.is_relative_to(root) and part not in known]
        for part in new:
            if part != folder:
                sync_directory(part)
        known.update(new)  # only now: another thread relies on what is known


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
