"""Finds the rows in memory that meet a condition, without Spark.

The condition is processed like a query, by the gate and the translation to DuckDB's SQL with Spark's meaning. It runs
in a DuckDB without access to files or network. DuckDB only finds the row numbers, so the rows themselves stay
unchanged.
"""

import contextlib
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from siltstone.errors import InvalidRequest, first_line
from siltstone.query.gate.admit import admit
from siltstone.query.gate.row_condition import condition_of, named_columns
from siltstone.query.hot.duckdb_engine import DuckDbEngine, budget_bytes
from siltstone.query.hot.duckdb_types import UnsupportedType, check_values
from siltstone.query.translate import Unsupported
from siltstone.query.translate.select import Relation, translate

ROW: Final = "_row"
_TABLE: Final = "numbered"


class RowConditions:
    """Conditions on rows for `Dataset`, which does not import the query layer (`dataset.ports.Conditions`)."""

    def for_spark(self, where: str, columns: Sequence[str]) -> str:
        """Check a condition over columns, and return its text for Spark."""
        return condition_of(where, columns)

    def columns(self, where: str, schema: pa.Schema) -> list[str]:
        """Return the columns that a condition names."""
        condition_of(where, schema.names)
        named = {name.lower() for name in named_columns(where)}
        return [name for name in schema.names if name.lower() in named]

    def rows(self, table: pa.Table, where: str) -> pa.Table:
        """Return the rows of a table for which a condition holds, in their order, without Spark.

        Raises:
            InvalidRequest: the condition cannot be parsed, or only Spark can answer it.
        """
        import duckdb

        condition = condition_of(where, table.schema.names)
        numbered = table.select(list(dict.fromkeys(self.columns(where, table.schema))))
        numbered = numbered.append_column(ROW, pa.arange(0, table.num_rows))
        try:
            check_values(numbered)
            admitted = admit(f"SELECT `{ROW}` FROM a.b.c WHERE {condition}")  # noqa: S608  # the gate wrote it
            translated = translate(admitted.tree, tables=lambda _: Relation(sql=_TABLE, schema=numbered.schema))
            with contextlib.closing(DuckDbEngine(memory_bytes=budget_bytes(0))) as engine:
                cursor = engine.cursor()
                cursor.register(_TABLE, numbered)
                row_numbers = cursor.sql(translated.sql).to_arrow_table().column(0)
        except (Unsupported, UnsupportedType, duckdb.Error) as error:
            raise InvalidRequest(
                f"The condition cannot be answered without Spark ({first_line(error)}). Use read().where(condition), a Spark "
                "frame."
            ) from error
        return table.take(row_numbers.combine_chunks().sort())
