"""Files before a log names them: each is read back and synced once, however often its commit is tried.

A file is *verified* if its footer says the size, rows and columns that the commit says, and it is on disk with the folders that
name it. Whoever stages a file can have it verified beside other writers, before its turn.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from siltstone.delta.fsync import folders_to_sync, sync_files
from siltstone.delta.parquet import read_footer
from siltstone.errors import Corruption
from siltstone.model.files import DataFile


class VerifiedFiles:
    """The verified files of one table that no log names yet."""

    def __init__(self, table: Path, *, durable: bool) -> None:
        """Know none yet."""
        self._table = table
        self._durable = durable
        self._known: set[str] = set()
        self._older: set[str] = set()
        self._unsynced: set[str] = set()
        self._synced_folders: set[str] = set()

    def missing(self, files: Iterable[DataFile]) -> list[DataFile]:
        """Return the files that are not verified yet."""
        return [file for file in files if file.path not in self._known]

    def verify(self, files: Iterable[DataFile], *, expected: pa.Schema, exact: bool) -> None:
        """Read the footers back and sync. Unless all must be `exact`, files from before a change of columns need not have those.

        Raises:
            Corruption: a file is not what the commit says.
            OSError: a file cannot be synced.
        """
        fresh = self.missing(files)
        for file in fresh:
            self._check(file, expected, exact=exact or file.path not in self._older)
        if self._durable:
            sync_files(self._table, [file.path for file in fresh], known=self._synced_folders)
        self._known.update(file.path for file in fresh)

    def take_whole(self, file: DataFile) -> None:
        """Compare the size of a file that was made in memory; it is synced with the entry that names it.

        Raises:
            Corruption: it is not as long as what was made.
            OSError: it cannot be looked at.
        """
        found = os.stat(f"{self._table}/{file.path}").st_size  # noqa: PTH116
        if found != file.size_bytes:
            raise Corruption(
                f"File {self._table / file.path} has {found} bytes, not {file.size_bytes}; nothing was committed."
            )
        self._known.add(file.path)
        if self._durable:
            self._unsynced.add(file.path)

    def unsynced(self, files: Iterable[DataFile]) -> list[str]:
        """Return what has to be synced before an entry may name these files: some of them, and the folders that name those."""
        found = [file.path for file in files if file.path in self._unsynced]
        return [*found, *folders_to_sync(found, known=self._synced_folders)]

    def note_synced(self, names: Iterable[str]) -> None:
        """Take note of files and folders that are on disk now."""
        for name in names:
            if name in self._unsynced:
                self._unsynced.remove(name)
            else:
                self._synced_folders.add(name)

    def _check(self, file: DataFile, expected: pa.Schema, *, exact: bool) -> None:
        path = self._table / file.path
        footer = read_footer(path, expected=expected, exact=exact)
        if (footer.size_bytes, footer.rows) != (file.size_bytes, file.rows):
            raise Corruption(
                f"File {path} has {footer.rows} rows in {footer.size_bytes} bytes, not {file.rows} in "
                f"{file.size_bytes}; nothing was committed."
            )

    def forget(self, files: Iterable[DataFile]) -> None:
        """Forget files that a log names now."""
        for known in (self._known, self._older, self._unsynced):
            known.difference_update(file.path for file in files)

    def doubt(self) -> None:
        """Have everything verified anew: the table's columns have changed."""
        self._older |= self._known
        self._known.clear()
