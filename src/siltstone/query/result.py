"""What a query returns."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The rows of one query, and which engine answered."""

    table: pa.Table
    engine: str
    truncated: bool
    seconds: float

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
