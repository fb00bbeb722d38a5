"""`silt compactor run` with its jobs in workers, the default: real Spark jobs, killed and stopped halfway."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from siltstone import Dataset, Lake, Settings
from siltstone.compaction.execution.worker_main import session_members
from siltstone.config import JobPlace
from siltstone.model.compaction_request import CompactionRequest, RequestKind
from tests.support.children import children_of
from tests.support.compactors import EVERY_MINUTE, WAIT_SECONDS, CompactorProcess, overdue
from tests.support.internals import store_of
from tests.support.roll_ups import AT, NAME, base_files, make_log, numbers

pytestmark = pytest.mark.spark
ENVIRONMENT = {
    "SILT_WORKER_MEMORY_MB": "1024",
    "SILT_MAX_JOBS": "1",
    "SILT_SPARK_MASTER": "local[2]",
    "SILT_SPARK_SHORT_RUN": "yes",
    "SILT_FOLD_BATCHES": "1",
    "SILT_FOLD_CRON": EVERY_MINUTE,
    "SILT_TIERS": "daily.min_files=2; daily.max_files=100; hourly.enabled=no",
}
GONE_SECONDS = 10.0


class Bench:
    """A lake and its compactors."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lake = Lake.open(root, settings=Settings(durable=False, squash_files=0))
        self.made: list[CompactorProcess] = []

    def compactor(self) -> CompactorProcess:
        self.made.append(CompactorProcess(self.root, **ENVIRONMENT))
        return self.made[-1]

    def job(self, *, name: str = NAME) -> tuple[str, int]:
        """Return the outcome of the last job of a dataset, and its cycle."""
        record = self.lake.jobs(1, dataset=name)[0]
        return record.status.name, record.cycle


@pytest.fixture
def bench(lake_path: Path) -> Iterator[Bench]:
    found = Bench(lake_path)
    yield found
    for one in found.made:
        one.end(signal.SIGKILL)
    found.lake.close()


def until(condition: Callable[[], Any], *, seconds: float = WAIT_SECONDS) -> Any:  # noqa: ANN401
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)
    return found


def rolling_up(log: Dataset) -> bool:
    """True once Spark's tasks write the files of a roll-up."""
    return any((log.path / "base" / "data").glob("*/0/tier-*"))


def folding(log: Dataset) -> bool:
    """True once a fold has written a file, or has ended."""
    return any((log.path / "base" / "data").rglob("*.parquet"))


def test_jobs_run_in_a_worker_and_a_signal_ends_the_one_that_runs(bench: Bench):
    small = make_log(bench.lake, files=3, name="web.eu.small")
    large = make_log(bench.lake, files=4, rows=200_000)
    before = set(base_files(large))
    overdue(bench.lake, "daily")
    first = bench.compactor()
    first.wait_for("lease_acquired")
    assert bench.lake.resume_compactor()
    ended = first.wait_for("job_ended")
    assert (ended["dataset"], ended["outcome"], ended["error"]) == ("web.eu.small", "done", None)
    assert len(base_files(small)) == 1
    (worker,) = children_of(first.pid)
    assert len(session_members(worker)) >= 2, "the worker and its JVM; the compactor has none"
    until(lambda: rolling_up(large))
    assert first.end(signal.SIGTERM) == 0, first.errors
    assert first.names()[-1] == "stopped"
    assert session_members(worker) == set(), "neither worker nor JVM is left"
    assert not bench.lake.compactor_status()["running"]
    assert (set(base_files(large)), bench.job()) == (before, ("CANCELLED", 1))
    assert numbers(large) == dict.fromkeys(range(800_000), 1)


@pytest.mark.deep
def test_a_worker_that_is_killed_in_the_middle_of_spark_is_replaced_and_its_job_tried_again(bench: Bench):
    log = make_log(bench.lake, files=3, rows=200_000)  # too few to be split
    overdue(bench.lake, "daily")
    first = bench.compactor()
    first.wait_for("lease_acquired")
    assert bench.lake.resume_compactor()
    until(lambda: rolling_up(log))
    (worker,) = children_of(first.pid)
    os.kill(worker, signal.SIGKILL)
    result = first.wait_for("job_ended")
    assert (result["outcome"], result["attempts"]) == ("done", 2)
    assert [one["failure"] for one in result["failed_attempts"]] == ["killed"]
    assert session_members(worker) == set()
    assert numbers(log) == dict.fromkeys(range(600_000), 1)
    assert (len(base_files(log)), bench.job()) == (1, ("COMPLETED", 1))
    (other,) = children_of(first.pid)
    assert first.end(signal.SIGTERM) == 0
    assert session_members(other) == set()


@pytest.mark.deep
def test_a_compactor_that_is_killed_in_a_fold_is_replaced_and_leaves_no_worker(bench: Bench):
    log = make_log(bench.lake, files=0)
    for batch in range(4):
        rows = pa.array(range(batch * 50_000, (batch + 1) * 50_000), pa.int32())
        at = pa.repeat(pa.scalar(AT, pa.timestamp("us", tz="UTC")), len(rows))
        log.append(pa.table({"at": at, "visitor": rows.cast(pa.string()), "n": rows}))
    overdue(bench.lake, "fold")
    first = bench.compactor()
    first.wait_for("lease_acquired")
    second = bench.compactor()
    second.wait_for("standing_by")
    assert bench.lake.resume_compactor()
    until(lambda: folding(log))
    (worker,) = children_of(first.pid)
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    until(lambda: not session_members(worker), seconds=GONE_SECONDS)
    until(lambda: log.status().backlog_batches == 0)
    assert numbers(log) == dict.fromkeys(range(200_000), 1)
    until(lambda: bench.job()[0] == "COMPLETED")
    assert second.end(signal.SIGTERM) == 0
    jobs = [(record.status.name, record.recovered) for record in bench.lake.jobs()]
    assert jobs in (
        [("COMPLETED", False), ("FAILED", True)],  # it died before its commit
        [("COMPLETED", True)],  # or after it: recovery completes the job, and no work is left
    )
    assert log.vacuum(dry_run=True).files == (), "what the dead one wrote was swept"


@pytest.mark.deep
def test_a_purge_is_done_in_a_worker_above_the_epoch_of_the_lease(bench: Bench):
    log = make_log(bench.lake, files=0)
    log.append([{"at": AT, "visitor": f"V-{n}", "n": n} for n in range(10)])
    log.tombstone(["V-3"])
    first = bench.compactor()
    first.wait_for("lease_acquired")
    settings = replace(bench.lake.settings, jobs=JobPlace.WORKER, worker_memory_mb=1024, spark_master="local[2]")
    with Lake.open(bench.root, settings=settings) as lake:
        [result] = lake.submit(CompactionRequest(kind=RequestKind.COMPACT, names=(NAME,), purge=True))
    report = result.report or {}
    assert (result.error, report["purged"], report["final_rows"]) == (None, True, 9)
    assert report["files_deleted"] >= 2
    assert store_of(log).snapshot().epoch == 2
    assert bench.job() == ("COMPLETED", 1)
    found = bench.lake.totals().lanes["purge"]
    assert (found.files_deleted, found.jobs) == (report["files_deleted"], 1)
    assert found.bytes_folded > 0
    assert first.end(signal.SIGTERM) == 0
