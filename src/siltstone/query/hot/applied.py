"""Applies a change set to a table in one transaction. A reader sees all of it or nothing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.query.hot.change_set import ChangeSet
from siltstone.query.hot.duckdb_types import names_sql, quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

GIVEN: Final = "given"
"""Name under which a cursor sees the Arrow rows that are passed to it."""


def gone_name(number: int) -> str:
    """Return the name under which a cursor sees the rows of the n-th `Deletes`."""
    return f"gone_{number}"


def equal_sql(columns: Sequence[str], *, left: str, right: str) -> str:
    """Return the SQL condition that two rows are equal in the columns. Null equals null."""
    return " AND ".join(f"{left}.{quoted(name)} IS NOT DISTINCT FROM {right}.{quoted(name)}" for name in columns)


@contextmanager
def handed(cursor: "DuckDBPyConnection", tables: dict[str, pa.Table]) -> Iterator[None]:
    """Register Arrow tables by name on a cursor for a block."""
    for name, table in tables.items():
        cursor.register(name, table)
    try:
        yield
    finally:
        for name in tables:
            cursor.unregister(name)


def not_gone_sql(delta: ChangeSet, *, of: str) -> str:
    """Return the SQL condition that a row is not deleted by a change set."""
    tests = [
        f"NOT EXISTS (SELECT 1 FROM {gone_name(n)} AS g WHERE {equal_sql(gone.columns, left='g', right=of)})"  # noqa: S608
        for n, gone in enumerate(delta.gone)
    ]
    return " AND ".join(tests) or "true"


def gone_tables(delta: ChangeSet) -> dict[str, pa.Table]:
    """Return the tables to register on a cursor for `not_gone_sql`."""
    return {gone_name(n): gone.rows for n, gone in enumerate(delta.gone)}


def apply(cursor: "DuckDBPyConnection", table: str, delta: ChangeSet) -> tuple[int, int]:
    """Apply a change set, and return the numbers of deleted and inserted rows."""
    cursor.execute("BEGIN")
    try:
        went = _delete(cursor, table, delta)
        came = put(cursor, table, delta)
    except BaseException:
        cursor.execute("ROLLBACK")
        raise
    cursor.execute("COMMIT")
    return went, came


def _delete(cursor: "DuckDBPyConnection", table: str, delta: ChangeSet) -> int:
    went = 0
    with handed(cursor, gone_tables(delta)):
        for n, gone in enumerate(delta.gone):
            same = equal_sql(gone.columns, left="g", right="t")
            text = f"DELETE FROM {table} AS t WHERE EXISTS (SELECT 1 FROM {gone_name(n)} AS g WHERE {same})"  # noqa: S608
            went += _count(cursor, text)
    return went


def put(cursor: "DuckDBPyConnection", table: str, delta: ChangeSet) -> int:
    """Insert the new rows of a change set, and return their number."""
    if not delta.put.num_rows:
        return 0
    condition = "true"
    if delta.unless_equal:
        same = equal_sql(delta.unless_equal, left="t", right="n")
        condition = f"NOT EXISTS (SELECT 1 FROM {table} AS t WHERE {same})"  # noqa: S608
    with handed(cursor, {GIVEN: delta.put}):
        return insert(cursor, table, delta.put.column_names, condition)


def insert(cursor: "DuckDBPyConnection", table: str, names: Sequence[str], condition: str) -> int:
    """Insert those registered rows, alias ``n``, that meet a condition; return their number."""
    columns = names_sql(list(names), of="n")
    return _count(cursor, f"INSERT INTO {table} SELECT {columns} FROM {GIVEN} AS n WHERE {condition}")  # noqa: S608


def _count(cursor: "DuckDBPyConnection", text: str) -> int:
    found = cursor.execute(text).fetchone()
    return int(found[0]) if found else 0
