"""Arrow rows as Python values, for results, tables and JSON.

Python's dates end at year 9999. No row outside of the years 1 to 9999 is accepted. But a table of an earlier version,
or a query, may have one. Then the error names the column.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from siltstone.errors import InvalidRequest
from siltstone.spark_tasks.values import outside_years

T = TypeVar("T")


def python_columns(rows: pa.Table | pa.RecordBatch) -> list[list[Any]]:
    """Return the values of each column (see `in_python`)."""
    return in_python(rows, lambda: [column.to_pylist() for column in rows.columns])


def python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return each row as a dict (see `in_python`)."""
    return in_python(rows, rows.to_pylist)


def in_python(rows: pa.Table | pa.RecordBatch, convert: Callable[[], T]) -> T:
    """Convert rows; raise InvalidRequest that names a column whose dates or times Python cannot hold."""
    try:
        return convert()
    except (OverflowError, ValueError) as error:
        name = next((field.name for field in rows.schema if outside_years(rows.column(field.name))), None)
        if name is None:
            raise
        raise InvalidRequest(
            f"Column {name!r} has a date or a time that is not in the years 1 to 9999, which Python cannot hold. Read it "
            "as Arrow or Parquet, cast it to STRING in SQL, or leave the column out. To repair a dataset, overwrite or "
            "tombstone the row."
        ) from error
