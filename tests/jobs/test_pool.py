"""Life cycle of workers: reused, replaced, ended. A fold without changes needs no JVM, so these tests are quick."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from siltstone import Lake
from siltstone.clock import SystemClock
from siltstone.compaction.execution.cycle_runner import run_cycle
from siltstone.compaction.execution.job import Job
from siltstone.compaction.execution.retry import run_with_retries
from siltstone.compaction.execution.worker_main import ORPHANED
from siltstone.compaction.execution.worker_pool import WorkerPool
from siltstone.compaction.execution.worker_process import SPARE_MEMORY_MB
from siltstone.compaction.planning.model import JobKind, JobSpec, Plan
from siltstone.model.reports import JobResult
from tests.jobs.conftest import OpenLake
from tests.support.faulty_worker import arrange
from tests.support.internals import (
    busy_workers,
    compactor_of,
    idle_workers,
    pool_of,
    process_of,
    scratch_of,
    settings_of,
    stores_of,
    taken_worker,
    use_pool,
)
from tests.support.roll_ups import AT, NAME, make_log


def nothing() -> Job:
    return Job.of(JobSpec(kind=JobKind.FOLD, lane="fold", dataset=NAME), cycle=1, epoch=None)


def done(lake: Lake, job: Job | None = None) -> JobResult:
    return run_with_retries(job or nothing(), pool_of(lake), clock=SystemClock(), stopping=lambda: False)


def idle(lake: Lake) -> list[int]:
    return [worker.pid for worker in idle_workers(pool_of(lake))]


def test_a_worker_is_reused_and_replaced_after_worker_jobs_jobs(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True, worker_jobs=2)
    make_log(lake, files=0)
    assert done(lake).outcome == "done"
    first = idle(lake)
    assert len(first) == 1
    assert done(lake).outcome == "done"
    assert idle(lake) == []
    assert done(lake).outcome == "done"
    assert idle(lake) not in ([], first)


def test_at_most_max_jobs_workers_exist_at_once(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True, max_jobs=2)
    names = ["a.b.one", "a.b.two", "a.b.three"]
    for name in names:
        make_log(lake, files=0, name=name)
    arrange(lake.path, pause_seconds=1)
    jobs = tuple(JobSpec(kind=JobKind.FOLD, lane="fold", dataset=name) for name in names)
    at_once: list[int] = []

    def look() -> bool:
        at_once.append(len(busy_workers(pool_of(lake))))
        return False

    results = run_cycle(Plan(cycle=1, budget_bytes=0, jobs=jobs, left_out=()), lake.maintenance.runner(), stopping=look)
    assert [(one.dataset, one.outcome) for one in results] == [(name, "done") for name in names]
    assert max(at_once) == 2
    assert pool_of(lake).started == 2


def test_a_worker_that_has_grown_is_replaced(open_lake: OpenLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = open_lake(fresh=True, worker_memory_mb=1)
    make_log(lake, files=0)
    assert done(lake).outcome == "done"
    (worker,) = idle_workers(pool_of(lake))
    assert 20 < worker.memory_mb() < SPARE_MEMORY_MB
    monkeypatch.setattr("siltstone.compaction.execution.worker_process.SPARE_MEMORY_MB", 5)
    assert worker.has_grown()
    assert done(lake).outcome == "done"
    assert idle(lake) == []


def test_an_idle_worker_that_died_is_replaced_without_a_failure(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True)
    make_log(lake, files=0)
    assert done(lake).outcome == "done"
    (worker,) = idle_workers(pool_of(lake))
    os.kill(worker.pid, signal.SIGKILL)
    while worker.alive():
        time.sleep(0.01)
    again = done(lake)
    assert (again.outcome, again.attempts) == ("done", 1)
    assert pool_of(lake).started == 2


def test_work_that_cannot_be_divided_is_tried_once_more_and_then_reported(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True)
    make_log(lake, files=0)
    arrange(lake.path, kill="job.began")
    result = done(lake)
    assert (result.outcome, result.failure, result.attempts) == ("failed", "killed", 2)
    assert "SIGKILL" in (result.error or "")
    arrange(lake.path, kill="job.began", once=True)
    assert (done(lake).outcome, pool_of(lake).started) == ("done", 4)


def test_an_unknown_dataset_is_reported_and_the_worker_reused(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True)
    make_log(lake, files=0)
    missing = Job.of(JobSpec(kind=JobKind.FOLD, lane="fold", dataset="a.b.c"), cycle=1, epoch=None)
    assert done(lake, missing).failure == "gone"
    assert done(lake).outcome == "done"


def test_a_worker_that_does_not_start_is_reported_with_its_last_output(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True)
    make_log(lake, files=0)
    pool = WorkerPool(
        lake.path,
        settings=lake.settings,
        clock=SystemClock(),
        operations=compactor_of(lake),
        store=stores_of(lake),
        command=(sys.executable, "-c", "raise SystemExit('no such luck')"),
    )
    use_pool(lake, pool)
    result = done(lake)
    assert (result.outcome, result.failure, result.attempts) == ("failed", "unknown", 1)
    assert "ended with code 1" in (result.error or "")
    assert "no such luck" in (result.error or "")


def test_a_worker_that_was_idle_for_long_is_ended(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True, spark_idle_minutes=60.0)
    make_log(lake, files=0)
    assert done(lake).outcome == "done"
    (worker,) = idle_workers(pool_of(lake))
    pool_of(lake).close_idle()
    assert idle(lake) == [worker.pid], "it has just worked"
    worker.idle_since_seconds -= 3601
    lake.run_cycle(only=["vacuum"])
    assert idle(lake) == []
    assert not worker.alive()


def test_closing_ends_the_workers_and_removes_their_folders(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True)
    make_log(lake, files=0)
    assert done(lake).outcome == "done"
    (worker,) = idle_workers(pool_of(lake))
    scratch = scratch_of(worker)
    assert scratch.is_dir()
    lake.close()
    assert not worker.alive()
    assert not scratch.exists()


def test_a_worker_whose_input_ends_while_it_works_ends_at_once(open_lake: OpenLake) -> None:
    """As when the parent is killed. A fault file in the lake's folder pauses the worker."""
    lake = open_lake(fresh=True)
    make_log(lake, files=0)
    arrange(lake.path, pause_seconds=600)
    pool = pool_of(lake)
    worker = taken_worker(pool, nothing())
    process = process_of(worker)
    assert process.stdin is not None
    request = {"lake": str(lake.path), "settings": settings_of(worker).plain(), "job": nothing().to_dict()}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.close()
    try:
        assert process.wait(20) == ORPHANED
    except subprocess.TimeoutExpired:
        pytest.fail("it went on")
    worker.close()
    assert not scratch_of(worker).exists()


AS_NOBODY = """
import json, os, sys
from siltstone import Lake
from siltstone.compaction.planning.model import JobSpec, JobKind, Plan
from siltstone.compaction.execution.cycle_runner import run_cycle
from siltstone.compaction.execution.job import InlineRunner
from tests.support.internals import components_of
kinds = [JobKind.SQUASH, JobKind.VACUUM]
jobs = tuple(JobSpec(kind=kind, lane=str(kind), dataset="web.eu.clicks") for kind in kinds)
with Lake.open(sys.argv[1]) as lake:
    lake.dataset("web.eu.clicks").status()
    if os.getuid() == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
    components = components_of(lake)
    runner = InlineRunner(components.operations, components.store)
    done = run_cycle(Plan(cycle=1, budget_bytes=0, jobs=jobs, left_out=()), runner)
print(json.dumps([one.to_dict() for one in done]))
"""


def test_jobs_without_write_permission_report_it_and_change_nothing(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True)
    log = make_log(lake, files=2)
    for n in range(3):
        log.append([{"at": AT, "visitor": "V-1", "n": n}])
    before = sorted(map(str, lake.path.rglob("*")))
    folders = [path for path in [lake.path, *lake.path.rglob("*")] if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    for folder in [lake.path, *list(lake.path.parents)[:4]]:
        folder.chmod(folder.stat().st_mode | 0o055)
    try:
        result = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(lake.path)], capture_output=True, text=True, check=False
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert result.returncode == 0, result.stderr
    squash, _vacuum = json.loads(result.stdout)
    assert (squash["outcome"], squash["failure"]) == ("failed", "permission_denied"), squash
    assert (squash["error_kind"], squash["error_reason"]) == ("unavailable", "permission_denied")
    assert sorted(map(str, lake.path.rglob("*"))) == before
