"""Duplicates in a log, on Spark and on disk: the same survivor before and after folds, roll-ups and clusterings."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from siltstone import Dataset, Lake, Settings
from tests.support.clicks import Oracle, as_counter, click, clicks, create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("at", "visitor", "account", "region")
NAME = "web.eu.clicks"
SURVIVORS = ("first", "last")


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    settings = Settings(tiers="daily.min_files=2", durable=False, squash_files=0)
    with Lake.open(lake_path, spark=spark, settings=settings) as opened:
        yield opened


def make(lake: Lake, survivor: str) -> tuple[Dataset, Oracle]:
    return create(lake, dedup_by=list(COLUMNS), survivor=survivor), Oracle(dedup_by=COLUMNS, survivor=survivor)


def append(log: Dataset, oracle: Oracle, rows: list[dict[str, object]]) -> None:
    log.append(rows)
    oracle.append(rows)


def check(log: Dataset, oracle: Oracle) -> None:
    assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
    assert as_counter(log.head(1000)) == as_counter(oracle.rows)
    assert as_counter(log.read().toArrow()) == as_counter(oracle.rows)


@pytest.mark.parametrize("survivor", SURVIVORS)
def test_a_duplicate_of_a_row_in_base_loses_or_wins_wherever_that_row_is_stored(lake: Lake, survivor: str) -> None:
    log, oracle = make(lake, survivor)
    append(log, oracle, [*clicks(8), click(0, visitor=None, n=70), click(0, visitor=None, n=71)])
    log.compact()
    assert as_counter(DeltaTable(log.path / "base").to_pyarrow_table()) == as_counter(oracle.rows)
    append(log, oracle, [click(1, n=101), click(0, visitor=None, n=72), click(20)])
    check(log, oracle)
    report = log.compact()
    assert report.final_rows == len(oracle.rows)
    assert report.rows_dropped_by_tombstones == 0
    check(log, oracle)
    assert [one.error for one in lake.run_cycle([NAME], only=["daily"], force=True) if one.error] == []
    append(log, oracle, [click(1, n=201), click(2, n=202), click(2, n=203)])
    log.tombstone([{"visitor": "V-3"}])
    oracle.tombstone([{"visitor": "V-3"}])
    append(log, oracle, [click(3, n=303)])
    check(log, oracle)
    report = log.compact()
    assert report.rows_dropped_by_tombstones == 1
    check(log, oracle)
    log.cluster()
    append(log, oracle, [click(1, n=401), click(3, n=403)])
    check(log, oracle)
    log.compact(purge=True)
    check(log, oracle)
    assert as_counter(DeltaTable(log.path / "base").to_pyarrow_table()) == as_counter(oracle.rows)


@pytest.mark.parametrize("survivor", [pytest.param("first", marks=pytest.mark.deep), "last"])
def test_many_changes_are_read_by_the_executors_with_the_same_answer(
    lake_path: Path, spark: "SparkSession", survivor: str
) -> None:
    settings = Settings(durable=False, squash_files=0, arrow_changes_rows=0)
    with Lake.open(lake_path, spark=spark, settings=settings) as lake:
        log, oracle = make(lake, survivor)
        append(log, oracle, [*clicks(8), click(1, n=100)])
        log.compact()
        append(log, oracle, [click(0, visitor=None, n=72), click(0, visitor=None, n=73), click(2, n=102)])
        log.tombstone([{"visitor": "V-3"}])
        oracle.tombstone([{"visitor": "V-3"}])
        append(log, oracle, [click(3, n=103), click(2, n=112)])
        log.squash()
        check(log, oracle)
        log.compact()
        check(log, oracle)
        frame = spark.createDataFrame(pa.Table.from_pylist([click(2, n=1), click(50)], schema=log.schema))
        log.append(frame)
        oracle.append([click(2, n=1), click(50)])
        check(log, oracle)
        log.compact()
        check(log, oracle)


def test_a_history_of_all_operations_equals_a_python_list(lake: Lake) -> None:
    chance = random.Random(5)
    log, oracle = make(lake, "last")
    for number in range(24):
        kind = chance.random()
        if kind < 0.15:
            named = [{"visitor": f"V-{chance.randrange(5)}"}]
            log.tombstone(named)
            oracle.tombstone(named)
        elif kind < 0.35:
            log.compact()
        elif kind < 0.45:
            log.squash()
        else:
            rows = [click(chance.randrange(12), n=number * 10 + at) for at in range(chance.randrange(1, 5))]
            append(log, oracle, rows)
        assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
    check(log, oracle)
