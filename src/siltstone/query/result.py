"""What a query returns."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The rows of one query, which engine answered, and why that one."""

    table: pa.Table
    engine: str
    """``hot`` or ``spark``."""
    truncated: bool
    """True if there are more rows than were asked for."""
    seconds: float
    reason: str = ""
    """Why this engine: a phrase."""
    query_id: str = ""
    """By which the query can be cancelled while it runs, and its pages asked for afterwards."""
    cached: bool = False
    """True if the same question had been answered before, on the same data."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples."""
        columns = [column.to_pylist() for column in self.table.columns]
        return list(zip(*columns, strict=True)) if columns else [()] * self.table.num_rows

    @property
    def row_count(self) -> int:
        """How many rows came back."""
        return int(self.table.num_rows)

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.table

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows as a pandas frame."""
        return self.table.to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """Return the rows as a Polars frame.

        Raises:
            InvalidRequest: Polars is not installed.
        """
        try:
            import polars
        except ImportError as error:
            raise InvalidRequest("to_polars() needs Polars: pip install 'siltstone[polars]'.") from error
        found = polars.from_arrow(self.table)
        assert isinstance(found, polars.DataFrame)  # noqa: S101  # a table becomes a frame, an array a series
        return found


def as_answered(table: pa.Table, schema: pa.Schema | None = None) -> pa.Table:
    """Return rows of either engine in the one form that answers have: Spark's names and types, any column may be null.

    Args:
        table: what the engine returned.
        schema: the names and types, where the engine has others of its own; those of the table unless told.
    """
    return in_form(table, answered_schema(schema or table.schema))


def in_form(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return rows with these columns, which have the form that answers have."""
    columns = [
        column if column.type.equals(kind) else column.cast(kind)
        for column, kind in zip(table.columns, wanted.types, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=wanted) if columns else table


def as_answered_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return some rows of a stream in the form that answers have."""
    wanted = answered_schema(batch.schema)
    columns = [column.cast(kind) for column, kind in zip(batch.columns, wanted.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=wanted) if columns else batch


def answered_schema(schema: pa.Schema) -> pa.Schema:
    """Return columns in the form that answers have."""
    return pa.schema([pa.field(field.name, _plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type as datasets hold it, with everything in it nullable: whether a result can be null is nobody's promise."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain_type(f.type)) for f in kind.fields])
    return kind
