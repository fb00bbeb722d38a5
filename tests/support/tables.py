"""Small Delta tables for the commit path: one row a file, a sequence for each append, and assertions about them."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.delta.checkpoints import Retention, forget_history, write_checkpoint
from siltstone.delta.layout import LOG
from siltstone.delta.parquet import write_file
from siltstone.delta.table import ParentVersion, Table
from siltstone.model.columns import APP_EPOCH, APP_FOLD, APP_PRUNE, APP_SEQ, SEQ
from siltstone.model.commit import Commit, CommitKind, Committed
from siltstone.model.files import DataFile

FILE_SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])
TABLE_SCHEMA = pa.schema([pa.field(SEQ, pa.int64()), *FILE_SCHEMA])
FAST = Settings(durable=False, commit_timeout_seconds=60.0, checkpoint_interval_commits=1_000_000)
"""No fsync and no background checkpoints: tests run them explicitly."""
APPS = (APP_SEQ, APP_FOLD, APP_PRUNE, APP_EPOCH)


def open_table(path: Path, *, settings: Settings = FAST) -> Table:
    """Return a new handle, as another process has it."""
    return Table(path, settings=settings, clock=SystemClock(), retention=Retention(hours=1), label="Table t")


def make_table(path: Path, *, settings: Settings = FAST, appends: int = 0) -> Table:
    """Create a table and append N one-row files with ids 1, 2, 3, ..."""
    Table.create(path, TABLE_SCHEMA, partition_by=[SEQ], properties={}, durable=settings.durable)
    table = open_table(path, settings=settings)
    for number in range(1, appends + 1):
        append(table, number)
    return table


def rows_of(ids: Sequence[int]) -> pa.Table:
    """Return rows with these ids."""
    return pa.table({"id": list(ids), "note": [f"row {number}" for number in ids]}, schema=FILE_SCHEMA)


def stage(table: Table, ids: Sequence[int], *, sequence: int | None = None, rows: pa.Table | None = None) -> DataFile:
    """Write a file that no log names yet, and return its description for a commit."""
    relative = f"data/{SystemClock().new_id()}.parquet"
    path = table.path / relative
    path.parent.mkdir(exist_ok=True)
    content = rows_of(ids) if rows is None else rows
    write_file(content, path, key=())
    return DataFile(
        path=relative,
        size_bytes=path.stat().st_size,
        rows=content.num_rows,
        partition={} if sequence is None else {SEQ: str(sequence)},
        stats=json.dumps({"numRecords": content.num_rows}),
    )


def append_commit(parent: ParentVersion, *files: DataFile) -> Commit:
    """Build a writer's commit: the next sequences for the given files."""
    last = parent.transaction(APP_SEQ) or 0
    return Commit(
        kind=CommitKind.APPEND,
        plan_version=parent.version,
        adds=tuple(_with_sequence(file, last + 1 + number) for number, file in enumerate(files)),
        transactions={APP_SEQ: last + len(files)},
    )


def _with_sequence(file: DataFile, sequence: int) -> DataFile:
    return DataFile(
        path=file.path,
        size_bytes=file.size_bytes,
        rows=file.rows,
        partition={SEQ: str(sequence)},
        stats=file.stats,
    )


def append(table: Table, *ids: int) -> Committed:
    """Stage and commit one file."""
    file = stage(table, ids)
    return table.commit(lambda parent: append_commit(parent, file))


def move(table: Table, files: Iterable[DataFile], *, kind: CommitKind = CommitKind.CLUSTER) -> Commit:
    """Plan a rewrite: the files' rows go into one new file. Nothing is committed."""
    pinned = table.pin()
    old = tuple(files)
    ids = [number for file in old for number in ids_in(table.path, file.path)]
    highest = max(int(file.partition[SEQ] or 0) for file in old)
    return Commit(kind=kind, plan_version=pinned.version, adds=(stage(table, ids, sequence=highest),), removes=old)


def ids_in(table: Path, relative: str) -> list[int]:
    """Return the ids in one file."""
    return [int(number) for number in pq.ParquetFile(table / relative).read(["id"]).column("id").to_pylist()]


def checkpoint_and_forget(path: Path) -> None:
    """Write a checkpoint and delete every entry below it."""
    write_checkpoint(path, durable=False)
    forget_history(path)


@dataclass(frozen=True)
class State:
    """State that a refused commit must leave unchanged."""

    version: int
    files: frozenset[str]
    transactions: dict[str, int | None]
    log: frozenset[str]


def state(path: Path) -> State:
    """Return the state of a table, read by a new handle."""
    table = DeltaTable(path)
    return State(
        version=table.version(),
        files=frozenset(pa.table(table.get_add_actions()).column("path").to_pylist()),
        transactions={app: table.transaction_version(app) for app in APPS},
        log=frozenset(item.name for item in (path / LOG).iterdir()),
    )


def ids(path: Path) -> list[int]:
    """Return the ids of all live rows, sorted; repeated rows have repeated ids."""
    return sorted(number for file in state(path).files for number in ids_in(path, file))


def repeated(values: Iterable[int]) -> list[int]:
    """Return the repeated items."""
    return [value for value, count in Counter(values).items() if count > 1]
