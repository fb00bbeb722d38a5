"""Generated queries on both engines, and the differences between their answers."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
from pyspark.errors import PySparkException

from siltstone.query.translate import Unsupported
from tests.differential.engines import Hot, OnSpark, differences
from tests.differential.generated import GeneratedQuery, generated
from tests.differential.generated_rows import generated_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Seen:
    """Outcome of generated queries."""

    queries: int = 0
    answered: int = 0
    """Answered by both engines, with the same rows."""
    with_rows: int = 0
    gave_way: int = 0
    """Queries whose rows the hot engine left to Spark."""
    outside: int = 0
    items: Counter[str] = field(default_factory=Counter)
    """Answered queries by item of the published subset."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Answered queries by type of a column of the answer."""
    found: list[str] = field(default_factory=list)
    """Differences."""


def is_ordered(text: str) -> bool:
    """True if ORDER BY is outside all parentheses. The order of such queries is unique."""
    return "ORDER BY" in text.rpartition(")")[2]


def compare_generated(spark: "SparkSession", count: int, *, seed: int, seen: Seen) -> None:
    """Run the queries of a seed on both engines, over tables of the same seed."""
    tables = generated_tables(seed)
    hot, on_spark = Hot(tables), OnSpark(spark, tables)
    for query in generated(count, seed=seed):
        seen.queries += 1
        _compare(hot, on_spark, query, seen)


def _compare(hot: Hot, on_spark: OnSpark, query: GeneratedQuery, seen: Seen) -> None:
    try:
        one = hot.ask(query.text, query.parameters)
    except Unsupported:
        seen.outside += 1
        return
    except duckdb.Error:
        seen.gave_way += 1
        return
    try:
        other = _spark_answer(on_spark, query)
    except PySparkException as error:
        if not (query.summed and "OVERFLOW" in str(error)):  # it depends on the order of rows
            seen.found.append(f"{query.text} {query.parameters}: only Spark raises {str(error)[:300]}")
        return
    rule = {"ordered": is_ordered(query.text), "close": query.summed, "either_zero": query.either_zero}
    lines = differences(one, other, **rule)
    if lines:
        seen.found.append(f"{query.text} {query.parameters}: {lines[0]}")
        return
    seen.answered += 1
    seen.with_rows += one.num_rows > 0
    seen.items.update(query.items)
    seen.kinds.update({str(kind).partition("(")[0].partition("<")[0] for kind in one.schema.types})


def _spark_answer(on_spark: OnSpark, query: GeneratedQuery) -> pa.Table:
    """Run the original text on Spark; through the gate if it has bound values, or a WITH that hides a table name."""
    if query.parameters or "WITH" in query.text:
        return on_spark.ask_bound(query.text, query.parameters)
    return on_spark.ask(query.text)
