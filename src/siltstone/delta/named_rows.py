"""A Delta table partitioned by name. The live file of a name holds its one row.

A row is replaced in two steps: stage a file that no log names yet, then commit. The commit adds the file, removes the
live file of the name, and updates the app transaction of the name. Commits that set the same transaction conflict. So
exactly one of many concurrent writers replaces a row. A crash between the steps leaves a staged file. The sweep of the
table's owner deletes it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.delta.checkpoints import Retention
from siltstone.delta.layout import DATA
from siltstone.delta.parquet import small_file
from siltstone.delta.table import ParentVersion, Table
from siltstone.errors import Conflict, Corruption
from siltstone.model.commit import Commit, CommitKind, Committed
from siltstone.model.files import DataFile
from siltstone.model.spec import FIRST_FORMAT, PROPERTY_FORMAT

RETAINED_ENTRIES: Final = 100
"""Log entries that a table retains, about. Opening a table costs by the entries in its log."""


class NamedRowTable(Table):
    """One table of named rows. Safe to share between threads."""

    def __init__(
        self,
        path: Path,
        columns: pa.Schema,
        kind: CommitKind,
        *,
        settings: Settings,
        clock: Clock,
        label: str,
    ) -> None:
        """`columns` leaves out the name."""
        retention = Retention(hours=settings.changes_retention_hours, max_entries=RETAINED_ENTRIES)
        super().__init__(path, settings=settings, clock=clock, retention=retention, label=label)
        self._columns = columns
        self._kind = kind

    def create_empty(self) -> None:
        """Create the table. Raise Conflict if it exists."""
        Table.create(
            self.path,
            pa.schema([pa.field("name", pa.string(), nullable=False), *self._columns]),
            partition_by=["name"],
            properties={PROPERTY_FORMAT: str(FIRST_FORMAT)},
            durable=self._settings.durable,
        )

    def live_file(self, files: tuple[DataFile, ...], name: str) -> DataFile | None:
        """Return the live file of a name, from the live files of a version; None if it has none."""
        live = [file for file in files if file.partition["name"] == name]
        if len(live) > 1:
            raise Corruption(f"{self.label}: {name} has {len(live)} rows. Restore the table from a copy.")
        return live[0] if live else None

    def stage(self, name: str, row: Mapping[str, Any], *, owner: str) -> DataFile:
        """Write a row to a new file.

        Its name begins with the owner, so that a sweep can check whether it is still needed.
        """
        relative = f"{DATA}/{owner}.parquet"
        path = self.path / relative
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(small_file(pa.Table.from_pylist([row], schema=self._columns)))
        size, stats = path.stat().st_size, json.dumps({"numRecords": 1})
        return DataFile(path=relative, size_bytes=size, rows=1, partition={"name": name}, stats=stats)

    def replace_row(
        self, file: DataFile, app: str, number: int, *, check: Callable[[int, DataFile | None], None]
    ) -> Committed:
        """Commit a staged row in place of its name's live row, and set the app transaction to a number.

        `check` gets the previous number and the live file, for each parent that the commit is tried on. It raises
        Conflict to stop the commit. The staged file is then deleted.
        """

        def build(parent: ParentVersion) -> Commit:
            live = self.live_file(parent.files(), file.partition["name"] or "")
            check(parent.transaction(app) or 0, live)
            return Commit(
                kind=self._kind,
                plan_version=parent.version,
                adds=(file,),
                removes=() if live is None else (live,),
                transactions={app: number},
                depends=frozenset({app}),
            )

        try:
            return self.commit(build)
        except Conflict:
            (self.path / file.path).unlink(missing_ok=True)
            raise
