"""Generated questions put to both engines, and what came of them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
from pyspark.errors import PySparkException

from siltstone.query.translate import Unsupported
from tests.differential.engines import Cold, Hot, differences
from tests.differential.generated import Asked, generated
from tests.differential.generated_rows import generated_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Seen:
    """What came of some questions."""

    asked: int = 0
    answered: int = 0
    """By both engines, and alike."""
    with_rows: int = 0
    gave_way: int = 0
    """Rows made the hot engine give way: Spark answers, or raises."""
    outside: int = 0
    items: Counter[str] = field(default_factory=Counter)
    """How many answered questions had each item of the published subset in them."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How many answered questions had a column of each type in their answer."""
    found: list[str] = field(default_factory=list)
    """Differences."""


def is_ordered(text: str) -> bool:
    """True if ORDER BY stands outside of all parentheses: questions with one name something unique in it."""
    return "ORDER BY" in text.rpartition(")")[2]


def ask_generated(spark: "SparkSession", count: int, *, seed: int, seen: Seen) -> None:
    """Ask both engines questions of a seed, over tables of the same seed."""
    tables = generated_tables(seed)
    hot, cold = Hot(tables), Cold(spark, tables)
    for asked in generated(count, seed=seed):
        seen.asked += 1
        _ask(hot, cold, asked, seen)


def _ask(hot: Hot, cold: Cold, asked: Asked, seen: Seen) -> None:
    try:
        one = hot.ask(asked.text, asked.parameters)
    except Unsupported:
        seen.outside += 1
        return
    except duckdb.Error:
        seen.gave_way += 1
        return
    try:
        other = _spark_answer(cold, asked)
    except PySparkException as error:
        if not (asked.summed and "OVERFLOW" in str(error)):  # it depends on the order of rows
            seen.found.append(f"{asked.text} {asked.parameters}: only Spark raises {str(error)[:300]}")
        return
    rule = {"ordered": is_ordered(asked.text), "close": asked.summed, "either_zero": asked.either_zero}
    told = differences(one, other, **rule)
    if told:
        seen.found.append(f"{asked.text} {asked.parameters}: {told[0]}")
        return
    seen.answered += 1
    seen.with_rows += one.num_rows > 0
    seen.items.update(asked.items)
    seen.kinds.update({str(kind).partition("(")[0].partition("<")[0] for kind in one.schema.types})


def _spark_answer(cold: Cold, asked: Asked) -> pa.Table:
    """Ask Spark in the question's own words; by the gate where values are bound, or a name of a table is hidden."""
    if asked.parameters or "WITH" in asked.text:
        return cold.ask_bound(asked.text, asked.parameters)
    return cold.ask(asked.text)
