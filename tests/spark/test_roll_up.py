"""Roll-ups of logs: small files of closed periods become few, and the rows stay the same."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone import Dataset, Lake, Settings
from siltstone.compaction.planning.model import JobSpec
from siltstone.errors import Conflict
from siltstone.failpoints import arm
from siltstone.model.columns import PERIOD
from tests.support.clicks import Oracle, as_counter, clicks, create
from tests.support.internals import compactor_of, store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "web.eu.clicks"


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    settings = Settings(tiers="hourly.min_files=2; hourly.min_age_seconds=0; daily.min_files=2", durable=False)
    with Lake.open(lake_path, spark=spark, settings=settings) as opened:
        yield opened


@pytest.fixture
def log(lake: Lake) -> Dataset:
    """A log with three folds over the same four hours: three files for each hour and region."""
    found = create(lake)
    for _ in range(3):
        found.append(clicks(16))
        found.compact()
    return found


def files(log: Dataset) -> Counter[tuple[str, str | None]]:
    """How many files base has in each period and region."""
    found = store_of(log).snapshot().base.files
    return Counter((file.partition[PERIOD] or "", file.partition["region"]) for file in found)


def expected() -> Oracle:
    oracle = Oracle()
    for _ in range(3):
        oracle.append(clicks(16))
    return oracle


def jobs(lake: Lake, only: str) -> tuple[JobSpec, ...]:
    return lake.plan([NAME], only=[only], force=True).jobs


def test_the_files_of_an_hour_become_one(lake: Lake, log: Dataset) -> None:
    before = files(log)
    assert set(before.values()) == {3}
    sequence, watermark = log.status().sequence, log.status().watermark
    done = lake.run_cycle([NAME], only=["hourly"], force=True)
    assert {one.error for one in done} == {None}
    assert {(one.report or {})["files_added"] for one in done} == {1}
    assert set(files(log).values()) == {1}
    assert set(files(log)) == set(before)
    assert (log.status().sequence, log.status().watermark) == (sequence, watermark)
    assert as_counter(log.to_arrow()) == as_counter(expected().rows)
    assert as_counter(log.read().toArrow()) == as_counter(expected().rows)
    assert jobs(lake, "hourly") == ()


def test_hours_become_a_day_and_other_readers_see_the_same(lake: Lake, log: Dataset) -> None:
    assert {one.error for one in lake.run_cycle([NAME], only=["daily"], force=True)} == {None}
    assert {period for period, _ in files(log)} == {"2026-11-15"}
    assert set(files(log).values()) == {1}
    assert as_counter(log.to_arrow()) == as_counter(expected().rows)
    strange = DeltaTable(log.path / "base").to_pyarrow_table()
    assert as_counter(strange) == as_counter(expected().rows)
    assert jobs(lake, "daily") == ()


def test_rows_are_sorted_and_late_ones_are_picked_up_later(lake: Lake, log: Dataset) -> None:
    assert {one.error for one in lake.run_cycle([NAME], only=["daily"], force=True)} == {None}
    for _ in range(2):  # one late file of a region alone is not worth a job
        log.append(clicks(4))
        log.compact()
    assert {period for period, _ in files(log)} > {"2026-11-15"}
    assert {one.error for one in lake.run_cycle([NAME], only=["daily"], force=True)} == {None}
    assert {period for period, _ in files(log)} == {"2026-11-15"}
    oracle = expected()
    oracle.append(clicks(4) * 2)
    assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
    for file in store_of(log).snapshot().base.files:
        found = pq.ParquetFile(store_of(log).base.path / file.path).read(columns=["visitor", "at"]).to_pylist()
        assert found == sorted(found, key=lambda row: (row["visitor"], row["at"]))


def test_a_tombstone_reaches_rows_in_rolled_files(lake: Lake, log: Dataset) -> None:
    assert {one.error for one in lake.run_cycle([NAME], only=["daily"], force=True)} == {None}
    log.tombstone([{"visitor": "V-1"}])
    log.compact(purge=True)
    oracle = expected()
    oracle.tombstone([{"visitor": "V-1"}])
    assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
    assert {period for period, _ in files(log)} == {"2026-11-15"}


def test_a_job_whose_files_are_gone_changes_nothing(lake: Lake, log: Dataset) -> None:
    (first, *_) = jobs(lake, "daily")
    lake.run_cycle([NAME], only=["hourly"], force=True)
    before = files(log)
    with pytest.raises(Conflict):
        compactor_of(lake).roll_up(store_of(log), first)
    assert files(log) == before


def test_of_a_roll_up_and_a_fold_of_the_same_files_one_is_refused(lake: Lake, log: Dataset) -> None:
    (first, *_) = jobs(lake, "daily")

    def fold(_: str) -> None:
        log.tombstone([{"visitor": f"V-{number}"} for number in range(5)])
        log.compact()

    with arm("roll_up.after_write", fold), pytest.raises(Conflict):
        compactor_of(lake).roll_up(store_of(log), first)
    assert log.to_arrow().num_rows == 0
    folder = store_of(log).base.path / "data"
    live = {file.path for file in store_of(log).snapshot().base.files}
    assert not [
        path
        for path in folder.rglob("tier-*/*.parquet")
        if path.relative_to(store_of(log).base.path).as_posix() not in live
    ]


def test_one_job_that_fails_does_not_stop_the_others(lake: Lake, log: Dataset) -> None:
    failed: list[int] = []

    def fail(_: str) -> None:
        if not failed:
            failed.append(1)
            raise Conflict("another process was first")

    with arm("roll_up.after_write", fail):
        done = lake.run_cycle([NAME], only=["hourly"], force=True)
    assert [one.error for one in done if one.error] == ["another process was first"]
    assert len(done) > 1
    assert as_counter(log.to_arrow()) == as_counter(expected().rows)
