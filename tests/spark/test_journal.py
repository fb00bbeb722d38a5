"""The journal of real folds and roll-ups: exact numbers, no user values, and a fold that died after its commit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from siltstone import Dataset, Lake, Settings
from siltstone.compaction.execution.job import Job
from siltstone.compaction.journal.journal import Journal
from siltstone.compaction.planning.model import JobKind
from siltstone.erasure.scan import scan
from siltstone.eventlog.events import JobStatus
from siltstone.model.compaction_request import CompactionRequest, RequestKind
from tests.support.internals import clock_of, compactor_of, journal_liveness_lock, layout_of, stores_of
from tests.support.refusals import figures

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


def test_folds_and_roll_ups_are_journaled_with_exact_numbers_and_without_a_value(
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
    assert figures(fold.message) == f"{change_files} 4"
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


def test_single_jobs_are_journaled_with_exact_numbers_and_without_a_value(
    lake: Lake, visits: Dataset, tmp_path: Path
) -> None:
    for hour in (3, 4):
        visits.append([visit(hour, "REGION-WEST")])
    change_bytes = visits.status().backlog_bytes
    for request in (
        CompactionRequest(kind=RequestKind.COMPACT, names=(NAME,)),
        CompactionRequest(kind=RequestKind.CLUSTER, names=(NAME,), by=("page", "at")),
        CompactionRequest(kind=RequestKind.COMPACT, names=(NAME,), purge=True),
    ):
        assert {result.error for result in lake.submit(request)} == {None}
    purge, *clusters, fold = lake.jobs()
    assert (fold.lane, fold.done.bytes_folded, fold.done.files_after, fold.done.rows) == ("fold", change_bytes, 2, 2)
    assert [(one.lane, one.cycle, one.done.files_before, one.done.files_after) for one in clusters] == [
        ("cluster", 2, 1, 1),
        ("cluster", 2, 1, 1),
    ]
    assert (purge.lane, purge.cycle, purge.done.bytes_folded) == ("purge", 3, 0)
    assert purge.done.files_deleted >= 4, "two of the fold, and the changes"
    assert lake.totals().lanes["purge"].bytes_deleted == purge.done.bytes_deleted > 0
    for folder in (lake.path / "_system", tmp_path / "cache"):
        assert scan(folder, VALUES).clean


def test_a_purge_that_folds_reports_folded_and_deleted_files(lake: Lake, visits: Dataset) -> None:
    visits.append([visit(3, "REGION-WEST")])
    change_bytes = visits.status().backlog_bytes
    [result] = lake.submit(CompactionRequest(kind=RequestKind.COMPACT, names=(NAME,), purge=True))
    [job] = lake.jobs()
    assert (job.done.bytes_folded, job.done.bytes_after) == (change_bytes, visits.status().base_bytes)
    assert job.done.files_deleted == (result.report or {})["files_deleted"]


def died_after_its_commit(lake: Lake, kind: JobKind) -> Job:
    """Kill a process in a fold or purge, after its commit and before its report."""
    journal = Journal(layout_of(lake), settings=lake.settings, clock=clock_of(lake), store=stores_of(lake))
    plan = lake.plan(only=["fold"], force=True)
    job = Job.of(replace(plan.jobs[0], kind=kind, lane=str(kind)), cycle=plan.cycle, epoch=None)
    journal.cycle_began(plan, [job])
    journal.job_began(job)
    compactor_of(lake).compact(stores_of(lake)(NAME), purge=False, job=job.id)
    journal_liveness_lock(journal).close()
    return job


def test_a_purge_whose_process_died_after_its_fold_does_not_count_as_done(lake: Lake, visits: Dataset) -> None:
    visits.append([visit(3, "REGION-WEST")])
    change_bytes = visits.status().backlog_bytes
    job = died_after_its_commit(lake, JobKind.PURGE)
    found = lake.recover()
    assert (found.completed, found.failed) == ((), (job.id,))
    (record,) = lake.jobs()
    assert (record.status, record.recovered, record.done.bytes_folded) == (JobStatus.FAILED, True, change_bytes)
    assert "purge" in record.message


def test_a_fold_whose_process_died_after_its_commit_is_completed(lake: Lake, visits: Dataset) -> None:
    visits.append([visit(3, "REGION-WEST")])
    job = died_after_its_commit(lake, JobKind.FOLD)
    assert lake.recover().completed == (job.id,)
    (record,) = lake.jobs()
    assert (record.status, record.recovered, record.done.rows) == (JobStatus.COMPLETED, True, 1)
    assert lake.history()[0].status == "completed"
    assert lake.run_cycle(only=["fold"], force=True).results == ()
