"""Change sets: the effect of the changes above a sequence on rows that contain everything up to it.

1. Rows to *delete*: rows with these keys or subjects. In a log that keeps the last duplicate, also rows that are equal
   to a new row.
2. Rows to *insert*. In a log that keeps the first duplicate, only rows without an equal row in the table.

A fill applies the changes above the watermark to base. A refresh applies the changes above its sequence to the resident
rows, in one transaction. So a reader sees all of a change set or nothing. Many changes are split into groups of whole
sequences, so that memory holds one group at a time. The rows after a group are the rows of its last sequence.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.arrow_view import latest_per_key, unfolded_rows
from siltstone.dataset.read.log_view import append_rows, tombstone_filters
from siltstone.dataset.snapshot import Snapshot, sequence_of
from siltstone.dataset.store import Store
from siltstone.model.columns import OP, Op
from siltstone.model.files import DataFile
from siltstone.model.spec import Survivor
from siltstone.query.hot.duckdb_types import check_values, names_sql, quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

GROUP_ROWS: Final = 500_000
"""Approximate number of change rows in memory at once."""
NEW_ROWS: Final = "new_rows"
"""Name under which a cursor sees the Arrow rows to insert."""


@dataclass(frozen=True, slots=True)
class Deletes:
    """Deletes rows that are equal to one of `rows` in `columns`. Null equals null."""

    columns: tuple[str, ...]
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSet:
    """Deletes and inserts, to be applied in this order."""

    deletes: tuple[Deletes, ...]
    inserts: pa.Table
    unless_equal: tuple[str, ...] = ()
    """A row is inserted only if no row in the table is equal to it in these columns."""
    sequence: int = 0
    """Last sequence that it contains."""


def change_sets_above(store: Store, snapshot: Snapshot, sequence: int) -> Iterator[ChangeSet]:
    """Yield the effect of the changes above a sequence, to be applied one after the other.

    Raises:
        FileNotFoundError: a file was removed since the snapshot. Take a new snapshot.
        UnsupportedType: a row has a value that DuckDB does not support.
    """
    for group in _groups(replace(snapshot, watermark=sequence)):
        changes = _log_changes(store, group) if store.spec.is_log else _keyed_changes(store, group)
        check_values(changes.inserts)
        yield replace(changes, sequence=max(sequence_of(file) for file in group.changes.files))


def _groups(above: Snapshot) -> Iterator[Snapshot]:
    """Yield snapshots with a part of the change files each.

    Files of one sequence stay together, and so does a squashed range.
    """
    files: list[DataFile] = []
    for _, batch in groupby(above.unfolded, key=sequence_of):
        if sum(file.rows for file in files) >= GROUP_ROWS:
            yield replace(above, changes=replace(above.changes, files=tuple(files)))
            files = []
        files += batch
    if files:
        yield replace(above, changes=replace(above.changes, files=tuple(files)))


def _keyed_changes(store: Store, above: Snapshot) -> ChangeSet:
    key = store.spec.key
    latest = latest_per_key(unfolded_rows(store, above), key)
    upserts = latest.filter(pc.equal(latest.column(OP), Op.UPSERT.value)).select(store.schema.names)
    deletes = (Deletes(key, latest.select(list(key))),) if latest.num_rows else ()
    return ChangeSet(deletes=deletes, inserts=upserts.cast(store.schema))


def _log_changes(store: Store, above: Snapshot) -> ChangeSet:
    filters = tombstone_filters(store, above)
    appended = append_rows(store, above, filters, columns=store.schema.names).cast(store.schema)
    deletes = [Deletes(hidden.columns, hidden.rows.select(list(hidden.columns))) for hidden in filters]
    dedup = store.spec.dedup_by
    if dedup and store.spec.survivor is Survivor.LAST and appended.num_rows:
        deletes.append(Deletes(dedup, appended.select(list(dedup))))
    first = dedup if store.spec.survivor is Survivor.FIRST else ()
    return ChangeSet(deletes=tuple(deletes), inserts=appended, unless_equal=first)


def apply(cursor: "DuckDBPyConnection", table: str, changes: ChangeSet) -> tuple[int, int]:
    """Apply a change set in one transaction, and return the numbers of deleted and inserted rows."""
    cursor.execute("BEGIN")
    try:
        deleted_rows = 0
        with registered(cursor, deleted_tables(changes)):
            for n, deletes in enumerate(changes.deletes):
                same = _equal_sql(deletes.columns, left="d", right="t")
                text = f"DELETE FROM {table} AS t WHERE EXISTS (SELECT 1 FROM {_deleted_name(n)} AS d WHERE {same})"  # noqa: S608
                deleted_rows += _count(cursor, text)
        inserted_rows = insert_changes(cursor, table, changes)
    except BaseException:
        cursor.execute("ROLLBACK")
        raise
    cursor.execute("COMMIT")
    return deleted_rows, inserted_rows


def not_deleted_sql(changes: ChangeSet, *, of: str) -> str:
    """Return the SQL condition that a row is not deleted by a change set, whose `deleted_tables` are registered."""
    tests = [
        f"NOT EXISTS (SELECT 1 FROM {_deleted_name(n)} AS d WHERE {_equal_sql(deletes.columns, left='d', right=of)})"  # noqa: S608
        for n, deletes in enumerate(changes.deletes)
    ]
    return " AND ".join(tests) or "true"


def deleted_tables(changes: ChangeSet) -> dict[str, pa.Table]:
    """Return the rows of each `Deletes`, by the name under which a cursor sees them."""
    return {_deleted_name(n): deletes.rows for n, deletes in enumerate(changes.deletes)}


def _deleted_name(number: int) -> str:
    return f"deleted_{number}"


def insert_changes(cursor: "DuckDBPyConnection", table: str, changes: ChangeSet) -> int:
    """Insert the new rows of a change set, and return their number."""
    if not changes.inserts.num_rows:
        return 0
    condition = "true"
    if changes.unless_equal:
        same = _equal_sql(changes.unless_equal, left="t", right="n")
        condition = f"NOT EXISTS (SELECT 1 FROM {table} AS t WHERE {same})"  # noqa: S608
    return insert(cursor, table, changes.inserts, condition)


def insert(cursor: "DuckDBPyConnection", table: str, rows: pa.Table, condition: str) -> int:
    """Insert those rows, alias ``n``, that meet a condition; return their number."""
    columns = names_sql(rows.column_names, of="n")
    with registered(cursor, {NEW_ROWS: rows}):
        return _count(cursor, f"INSERT INTO {table} SELECT {columns} FROM {NEW_ROWS} AS n WHERE {condition}")  # noqa: S608


@contextmanager
def registered(cursor: "DuckDBPyConnection", tables: dict[str, pa.Table]) -> Iterator[None]:
    """Register Arrow tables by name on a cursor for a block."""
    import duckdb

    for name, table in tables.items():
        cursor.register(name, table)
    try:
        yield
    finally:
        for name in tables:
            with suppress(duckdb.Error):  # after a failure its transaction may reject everything
                cursor.unregister(name)


def _equal_sql(columns: Sequence[str], *, left: str, right: str) -> str:
    """Return the SQL condition that two rows are equal in the columns. Null equals null."""
    return " AND ".join(f"{left}.{quoted(name)} IS NOT DISTINCT FROM {right}.{quoted(name)}" for name in columns)


def _count(cursor: "DuckDBPyConnection", text: str) -> int:
    row = cursor.execute(text).fetchone()
    return int(row[0]) if row else 0
