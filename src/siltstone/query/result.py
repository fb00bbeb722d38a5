"""The result of a query.

A result can be cut: ``max_rows`` bounds it, and ``truncated`` is true if there are more rows. A cut that the caller
chose, by ``max_rows=``, is a normal result. A cut by the setting is not: conversions to frames are rejected, and
``rows`` warns.
"""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from siltstone.dataset.read.python_rows import in_python, python_columns
from siltstone.errors import InvalidRequest
from siltstone.model.frames import polars_frame
from siltstone.model.preview import cells, html_table, text_table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class TruncatedWarning(UserWarning):
    """The setting `max_rows` has cut the rows that are read."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueryResult:
    """The rows of one query, the engine that answered, and the reason for that engine."""

    table: pa.Table
    """The returned rows, all or cut."""
    engine: str
    """``hot`` or ``spark``."""
    truncated: bool
    """True if the query has more rows than were returned."""
    seconds: float
    reason: str = ""
    """Reason for the engine, as a phrase."""
    query_id: str = ""
    """Id by which the running query can be cancelled, and by which its pages can be read afterwards."""
    cached: bool = False
    """True if the result is from the cache: the same query was answered before on the same data."""
    limit_given: bool = True
    """True if the caller chose the row limit (``max_rows=``); False if it is the limit of the setting."""

    @property
    def columns(self) -> list[str]:
        """Column names."""
        return list(self.table.column_names)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples; warns if the setting `max_rows` has cut them."""
        if self._is_cut:
            warnings.warn(self._cut_text("These rows are not all."), TruncatedWarning, stacklevel=2)
        columns = python_columns(self.table)
        return list(zip(*columns, strict=True)) if columns else [()] * self.table.num_rows

    @property
    def row_count(self) -> int:
        """Number of returned rows."""
        return int(self.table.num_rows)

    def to_arrow(self, *, allow_truncated: bool = False) -> pa.Table:
        """Return the rows as an Arrow table.

        Raises:
            InvalidRequest: the setting `max_rows` has cut the rows, and `allow_truncated` is false.
        """
        if self._is_cut and not allow_truncated:
            raise InvalidRequest(self._cut_text("A frame of them would not have all rows."))
        return self.table

    def to_pandas(self, *, allow_truncated: bool = False) -> "pd.DataFrame":
        """Return the rows as a pandas frame.

        Raises:
            InvalidRequest: see `to_arrow`.
        """
        table = self.to_arrow(allow_truncated=allow_truncated)
        return in_python(table, table.to_pandas)

    def to_polars(self, *, allow_truncated: bool = False) -> "pl.DataFrame":
        """Return the rows as a Polars frame.

        Raises:
            InvalidRequest: Polars is not installed; or see `to_arrow`.
        """
        return polars_frame(self.to_arrow(allow_truncated=allow_truncated))

    def __repr__(self) -> str:
        names, rows = cells(self.table)
        return f"{text_table(names, rows)}\n{self._summary()}" if names else f"<{self._summary()}>"

    def _repr_html_(self) -> str:
        return html_table(*cells(self.table), caption=self._summary())

    def _summary(self) -> str:
        more = " (there are more)" if self.truncated else ""
        rows = "row" if self.row_count == 1 else "rows"
        columns = "column" if self.table.num_columns == 1 else "columns"
        shape = f"{self.row_count:,} {rows}{more} in {self.table.num_columns} {columns}"
        return f"{shape}, answered by {self.engine} in {self.seconds:.3f} s"

    @property
    def _is_cut(self) -> bool:
        """True if there are more rows, and the caller did not choose the limit."""
        return self.truncated and not self.limit_given

    def _cut_text(self, consequence: str) -> str:
        return (
            f"The query has more than the {self.row_count:,} rows that were returned (the setting max_rows). {consequence} "
            "Pass max_rows= to choose how many. lake.stream_sql(...).read_all() reads all. For the returned rows, pass "
            "allow_truncated=True to to_arrow, to_pandas or to_polars."
        )


def as_answered(table: pa.Table) -> pa.Table:
    """Convert rows of Spark to the common form of results: Spark's names and types, every column nullable."""
    return in_form(table, answered_schema(table.schema))


def in_form(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert rows to a schema that has the form of results."""
    columns = [
        column if column.type.equals(kind) else column.cast(kind)
        for column, kind in zip(table.columns, schema.types, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema) if columns else table


def as_answered_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert one batch of a stream to the form of results."""
    return batch.cast(answered_schema(batch.schema)) if batch.num_columns else batch


def answered_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in the form of results."""
    return pa.schema([pa.field(field.name, _plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type as datasets store it, all parts nullable, because neither engine guarantees non-null results."""
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
