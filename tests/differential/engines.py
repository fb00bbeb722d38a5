"""The two engines over the same Arrow tables: each engine's answer to a query, in a comparable form."""

import datetime
import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from siltstone.query.gate.admit import admit, spark_text
from siltstone.query.hot_executor import bound
from siltstone.query.result import answered_schema, as_answered, in_form
from siltstone.query.translate.select import Relation, Translated, translate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACE = "lab.d."
FLOAT_DIGITS = 1e-9


class Hot:
    """DuckDB with the translated query."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.schemas = {name: table.schema for name, table in tables.items()}
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            self.connection.register("given", table)
            self.connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM given')
            self.connection.unregister("given")

    def translated(self, text: str, parameters: Mapping[str, object] | None = None) -> Translated:
        admitted = admit(text, parameters=parameters)
        return translate(admitted.tree, tables=self._relation, parameters=admitted.parameters)

    def _relation(self, table: exp.Table) -> Relation:
        return Relation(sql=f'"{table.name.lower()}"', schema=self.schemas[table.name.lower()])

    def ask(self, text: str, parameters: Mapping[str, object] | None = None) -> pa.Table:
        done = self.translated(text, parameters)
        values = {name: bound((parameters or {})[name]) for name in done.parameters}
        found = self.connection.sql(done.sql, params=values) if values else self.connection.sql(done.sql)
        return in_form(found.to_arrow_table(), answered_schema(done.schema))


class OnSpark:
    """Spark with the original query."""

    def __init__(self, spark: "SparkSession", tables: Mapping[str, pa.Table]) -> None:
        self.spark = spark
        for name, table in tables.items():
            local = [f.name for f in table.schema if pa.types.is_timestamp(f.type) and f.type.tz is None]
            frame = spark.createDataFrame(table)
            for column in local:  # an Arrow time without zone becomes one with zone there
                frame = frame.withColumn(column, frame[column].cast("timestamp_ntz"))
            frame.createOrReplaceTempView(name)

    def ask(self, text: str, _parameters: Mapping[str, object] | None = None) -> pa.Table:
        return as_answered(self.spark.sql(text.replace(PLACE, "")).toArrow())

    def ask_bound(self, text: str, parameters: Mapping[str, object]) -> pa.Table:
        """Run the text that the gate has written, with its bound values."""
        admitted = admit(text, parameters=parameters)
        views = {source: source.name.table for source in admitted.references}
        return as_answered(self.spark.sql(spark_text(admitted, views, common="w{}".format)).toArrow())


def differences(
    hot: pa.Table, on_spark: pa.Table, *, ordered: bool, close: bool = False, either_zero: bool = False
) -> list[str]:
    """Return the differences between two answers; empty if they are equal.

    With `close`, doubles may differ in their last digits; with `either_zero`, 0.0 equals -0.0.
    """
    if hot.column_names != on_spark.column_names:
        return [f"columns {hot.column_names} and {on_spark.column_names}"]
    if hot.schema.types != on_spark.schema.types:
        pairs = zip(hot.column_names, hot.schema.types, on_spark.schema.types, strict=True)
        return [f"{name}: {one} and {other}" for name, one, other in pairs if one != other]
    one, other = _rows(hot, close=close), _rows(on_spark, close=close)
    if either_zero:
        one, other = _without_signs(one), _without_signs(other)
    if ordered:
        return [] if one == other else [f"in order: {_first(one, other)}"]
    more, less = Counter(one) - Counter(other), Counter(other) - Counter(one)
    return [] if not more and not less else [f"only hot {list(more)[:3]}, only Spark {list(less)[:3]}"]


def _without_signs(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(value.removeprefix("-") if value in ("-0.0", "-0") else value for value in row) for row in rows]


def _first(one: list[Any], other: list[Any]) -> str:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return f"row {at}: {left} and {right}"
    return f"{len(one)} and {len(other)} rows"


def _rows(table: pa.Table, *, close: bool) -> list[tuple[Any, ...]]:
    columns = [_values(column) for column in table.columns]
    found = list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
    return [tuple(_plain(value, close=close) for value in row) for row in found]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; times as numbers, because Python has no year 10000."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return list(column.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32()).to_pylist())
    return list(column.to_pylist())


def _plain(value: Any, *, close: bool) -> Any:  # noqa: ANN401
    if isinstance(value, float):
        if close and math.isfinite(value):
            return f"{value:.9g}"  # 0 and -0 stay distinct
        return repr(value)
    if isinstance(value, list):
        return tuple(_plain(one, close=close) for one in value)
    if isinstance(value, dict):
        return tuple((name, _plain(one, close=close)) for name, one in value.items())
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
