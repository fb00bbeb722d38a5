"""The journal of real folds and roll-ups: exact numbers, no value of a user, and a fold that died after its commit."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from siltstone import Dataset, Lake, Settings
from siltstone.compaction.candidates import JobKind
from siltstone.compaction.jobs import Job
from siltstone.compaction.journal import Journal
from siltstone.erasure.scan import scan
from siltstone.eventlog.events import JobStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "web.eu.visits"
VALUES = ("REGION-WEST", "REGION-EAST", "VISITOR-7", "SECRET-PAGE")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    settings = Settings(tiers="daily.min_files=2", durable=False, squash_files=0)
    with Lake.open(lake_path, spark=spark, settings=settings) as opened:
        yield opened


@pytest.fixture
def visits(lake: Lake) -> Dataset:
    """A log with a subject and a partition column."""
    return lake.create(
        NAME,
        "at TIMESTAMP NOT NULL, person STRING, region STRING, page STRING",
        time="at",
        subject="person",
        partition_by="region",
    )


def visit(hour: int, region: str) -> dict[str, str]:
    return {"at": f"2026-11-01T{hour:02d}:00:00Z", "person": "VISITOR-7", "region": region, "page": "SECRET-PAGE"}


def test_folds_and_roll_ups_are_told_in_exact_numbers_and_without_a_value(
    lake: Lake, visits: Dataset, tmp_path: Path
) -> None:
    for hour in (3, 4):
        visits.append([visit(hour, "REGION-WEST"), visit(hour, "REGION-EAST")])
    change_files, change_bytes = visits.status().backlog_files, visits.status().backlog_bytes
    folded = lake.run_cycle(only=["fold"], force=True)
    rolled = lake.run_cycle(only=["daily"], force=True)
    assert [result.error for result in (*folded, *rolled)] == [None, None, None]
    fold = next(record for record in lake.jobs() if record.kind is JobKind.FOLD)
    assert (fold.done.files_before, fold.done.files_after, fold.done.rows) == (change_files, 4, 4)
    assert fold.message == f"{change_files} files became 4"
    assert fold.done.bytes_before == fold.done.bytes_folded == change_bytes
    daily = [record for record in lake.jobs() if record.lane == "daily"]
    assert {(one.period, one.done.files_before, one.done.files_after, one.done.rows) for one in daily} == {
        ("2026-11-01", 2, 1, 2)
    }
    totals = lake.totals().datasets[NAME]
    live = visits.status().base_bytes
    assert totals.bytes_after == fold.done.bytes_after + live
    assert totals.write_amplification == (change_bytes + fold.done.bytes_after + live) / change_bytes
    for folder in (lake.path / "_system", tmp_path / "cache"):
        found = scan(folder, VALUES)
        assert found.clean, found.findings


def test_a_fold_whose_process_died_after_its_commit_is_rolled_forward(lake: Lake, visits: Dataset) -> None:
    visits.append([visit(3, "REGION-WEST")])
    journal = Journal(lake._layout, settings=lake.settings, clock=lake._clock, store=lake._store)
    plan = lake.plan(only=["fold"], force=True)
    job = Job.of(plan.jobs[0], cycle=plan.cycle, epoch=None)
    journal.cycle_began(plan, [job])
    journal.job_began(job)
    lake._compactor.compact(lake._store(NAME), purge=False, job=job.id)
    assert journal._running is not None
    assert journal._running.presence is not None
    journal._running.presence.close()
    assert lake.recover().rolled_forward == (job.id,)
    (record,) = lake.jobs()
    assert (record.status, record.recovered, record.done.rows) == (JobStatus.COMPLETED, True, 1)
    assert lake.history()[0].status == "completed"
    assert lake.run_cycle(only=["fold"], force=True).results == ()
