"""Files before a log names them: each is read back and synced once, however often its commit is attempted.

A file is *verified* if its footer has the size, rows and columns of the commit. It must also be on disk, with the
folders that name it. A writer can verify its staged file in parallel to other writers, before it has the commit lock.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from siltstone.delta.fsync import folders_to_sync, sync_files
from siltstone.delta.parquet import read_footer
from siltstone.errors import Corruption
from siltstone.model.files import DataFile


class StagedFiles:
    """The verified files of one table that no log names yet."""

    def __init__(self, table: Path, *, durable: bool) -> None:
        self._table = table
        self._durable = durable
        self._verified: set[str] = set()
        self._older: set[str] = set()
        self._unsynced: set[str] = set()
        self._synced_folders: set[str] = set()

    def missing(self, files: Iterable[DataFile]) -> list[DataFile]:
        """Return the files that are not verified yet."""
        return [file for file in files if file.path not in self._verified]

    def verify(self, files: Iterable[DataFile], *, expected: pa.Schema, exact: bool) -> None:
        """Read the footers back and sync. Without `exact`, files from before a column change may have the older columns."""
        fresh = self.missing(files)
        for file in fresh:
            path = self._table / file.path
            footer = read_footer(path, expected=expected, exact=exact or file.path not in self._older)
            if (footer.size_bytes, footer.rows) != (file.size_bytes, file.rows):
                raise Corruption(
                    f"File {path} has {footer.rows} rows in {footer.size_bytes} bytes, not {file.rows} in "
                    f"{file.size_bytes}; nothing was committed. Check the disk and try again."
                )
        if self._durable:
            sync_files(self._table, [file.path for file in fresh], synced=self._synced_folders)
        self._verified.update(file.path for file in fresh)

    def accept_in_memory(self, file: DataFile) -> None:
        """Check the size of a file that was built in memory. It is synced together with the entry that names it."""
        size = os.stat(f"{self._table}/{file.path}").st_size  # noqa: PTH116
        if size != file.size_bytes:
            raise Corruption(
                f"File {self._table / file.path} has {size} bytes, not {file.size_bytes}; nothing was committed. "
                "Check the disk and try again."
            )
        self._verified.add(file.path)
        if self._durable:
            self._unsynced.add(file.path)

    def unsynced(self, files: Iterable[DataFile]) -> list[str]:
        """Return the paths to sync before an entry may name these files: unsynced files, and the folders that name them."""
        unsynced = [file.path for file in files if file.path in self._unsynced]
        return [*unsynced, *folders_to_sync(unsynced, synced=self._synced_folders)]

    def note_synced(self, names: Iterable[str]) -> None:
        """Record files and folders that are on disk now."""
        for name in names:
            if name in self._unsynced:
                self._unsynced.remove(name)
            else:
                self._synced_folders.add(name)

    def forget(self, files: Iterable[DataFile]) -> None:
        """Forget files that a log names by now."""
        for paths in (self._verified, self._older, self._unsynced):
            paths.difference_update(file.path for file in files)

    def invalidate(self) -> None:
        """Require that everything is verified again, because the table's columns have changed."""
        self._older |= self._verified
        self._verified.clear()
