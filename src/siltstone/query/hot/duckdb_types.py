"""Maps column types to DuckDB, for columns that DuckDB stores exactly.

Every type of a dataset has a DuckDB type. A dataset with values that DuckDB cannot distinguish is not
supported. The reason names the column.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.spark_tasks.values import inner_arrays

SIMPLE_TYPES: Final[dict[pa.DataType, str]] = {
    pa.string(): "VARCHAR",
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.int16(): "SMALLINT",
    pa.int8(): "TINYINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
    pa.timestamp("us"): "TIMESTAMP",
}

_LAST: Final = {32: 2**31 - 2, 64: 9_150_000_000_000_000_000}
"""Largest absolute values, in days and in microseconds (about the year 290,000).

DuckDB reads larger ones as infinity.
"""


class UnsupportedType(Exception):  # noqa: N818
    """A dataset cannot be hot; the message is a sentence with the reason."""


def quoted(name: str) -> str:
    """Return a name as an SQL identifier.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def duck_type(kind: pa.DataType, *, column: str) -> str:
    """Return DuckDB's name of a type.

    >>> duck_type(pa.list_(pa.decimal128(10, 2)), column="prices")
    'DECIMAL(10,2)[]'
    """
    if kind in SIMPLE_TYPES:
        return SIMPLE_TYPES[kind]
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"{duck_type(kind.value_type, column=column)}[]"
    if pa.types.is_map(kind):
        return f"MAP({duck_type(kind.key_type, column=column)}, {duck_type(kind.item_type, column=column)})"
    if pa.types.is_struct(kind):
        names = [field.name.lower() for field in kind.fields]
        if not names or len(set(names)) < len(names):
            raise UnsupportedType(f"Column {column!r} has a struct whose fields the hot engine cannot distinguish.")
        fields = ", ".join(f"{quoted(f.name)} {duck_type(f.type, column=column)}" for f in kind.fields)
        return f"STRUCT({fields})"
    raise UnsupportedType(f"Column {column!r} is of type {kind}, which the hot engine does not have.")


def columns_sql(schema: pa.Schema) -> str:
    """Return the column list of CREATE TABLE."""
    return ", ".join(f"{quoted(f.name)} {duck_type(f.type, column=f.name)}" for f in schema)


def check_values(rows: pa.Table) -> None:
    """Reject dates and times that DuckDB would change.

    Raises:
        UnsupportedType: there is one; the message names the column.
    """
    for field in rows.schema:
        for array in _times(rows.column(field.name).chunks):
            width = array.type.bit_width
            bounds = pc.min_max(array.view(pa.int32() if width == 32 else pa.int64())).as_py()  # noqa: PLR2004
            if bounds["min"] is not None and max(-bounds["min"], bounds["max"]) > _LAST[width]:
                raise UnsupportedType(
                    f"Column {field.name!r} holds a time at the end of all times, which the hot engine does not take."
                )


def _times(arrays: "list[pa.Array]") -> Iterator[pa.Array]:
    """Yield the arrays of dates and times, also inside lists, structs and maps."""
    for array in arrays:
        kind = array.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            yield array
        else:
            yield from _times(inner_arrays(array))


def names_sql(names: "list[str] | tuple[str, ...]", *, of: str = "") -> str:
    """Return a list of columns, qualified with `of` if it is given."""
    return ", ".join(f"{of}.{quoted(name)}" if of else quoted(name) for name in names)
