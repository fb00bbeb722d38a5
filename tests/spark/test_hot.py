"""The hot cache while Spark loads, folds, rolls up, clusters and purges: the same rows, and no fill that is not needed."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from siltstone import Dataset, Lake, Settings
from tests.support import clicks
from tests.support.hot import assert_same, bag, hot_table
from tests.support.people import NAME, create, key, person, write_people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = Settings(tiers="hourly.min_files=2; hourly.min_age_seconds=0; daily.min_files=2", durable=False)


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=SETTINGS) as opened:
        yield opened


@pytest.fixture
def beside(lake_path: Path) -> Iterator[Lake]:
    """Another lake object, as another process has it: it reads all state from the disk."""
    with Lake.open(lake_path, settings=SETTINGS) as opened:
        yield opened


def check(lakes: tuple[Lake, ...], dataset: Dataset, *, fills: int, with_spark: bool = False) -> None:
    """Check that every cache has the rows of the merged view; also on Spark, if requested."""
    for lake in lakes:
        assert_same(lake, dataset)
    assert lakes[-1].hot.stats().entries[0].fills == fills
    if with_spark:
        assert bag(hot_table(lakes[-1], str(dataset.name))) == bag(dataset.read().toArrow().cast(dataset.schema))


def test_a_keyed_dataset_through_its_life(lake: Lake, beside: Lake, tmp_path: Path) -> None:
    people = create(lake)
    for one in (lake, beside):
        one.hot.fill(NAME)
    people.ingest(write_people(tmp_path / "in.parquet", 300))
    check((lake, beside), people, fills=2)
    people.upsert([person(number, city="new") for number in range(290, 310)])
    people.tombstone([key(7), key(305)])
    check((lake, beside), people, fills=2)
    people.compact()
    check((lake, beside), people, fills=2)
    people.upsert([person(1, n=-1)])
    people.alter(add="note STRING", defaults={"note": "old"})
    check((lake, beside), people, fills=3)
    people.compact(purge=True)
    assert not lake.hot.decide(NAME).resident
    check((beside,), people, fills=3, with_spark=True)


def test_a_hot_log_equals_the_view_after_each_compaction(lake: Lake, beside: Lake) -> None:
    log = clicks.create(lake)
    beside.hot.fill(clicks.NAME)
    for _ in range(2):
        log.append(clicks.clicks(16))
        log.compact()
    check((beside,), log, fills=1)
    log.append(clicks.clicks(4))
    log.tombstone([{"visitor": "V-1"}])
    check((beside,), log, fills=1)
    log.compact()
    report = lake.run_cycle([clicks.NAME], only=["hourly"], force=True)
    assert {one.error for one in report} == {None}
    check((beside,), log, fills=1)
    log.cluster(by=["visitor", "n"])
    check((beside,), log, fills=1)
    log.compact(purge=True)
    log.append(clicks.clicks(3, start=40))
    check((beside,), log, fills=1, with_spark=True)
