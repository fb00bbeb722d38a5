"""Cycles and single operations by request: without the lease, beside a compactor, recorded in the journal."""

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone.compaction.execution.job import Job
from siltstone.config import JobPlace
from siltstone.coordination.leases import COMPACTOR
from siltstone.errors import Conflict, InvalidRequest, NotFound, Reason
from siltstone.maintenance.service import MaintenanceService
from siltstone.model.compaction_request import CompactionRequest, RequestKind
from tests.support.children import NO_SPARK
from tests.support.internals import components_of, replace_maintenance
from tests.support.leasing import leases_of, taken
from tests.support.maintenance import CYCLE, FOLD, NAME, PURGE, SETTINGS, Bench, filled, lake_of, until
from tests.support.refusals import refused

SINGLE = {
    "fold": FOLD,
    "purge": PURGE,
    "squash": CompactionRequest(kind=RequestKind.SQUASH, names=(NAME,)),
    "vacuum": CompactionRequest(kind=RequestKind.VACUUM, names=(NAME,), retention_hours=7.0),
}


def test_a_cycle_is_refused_while_a_live_process_runs_one_and_a_single_operation_is_not(bench: Bench):
    filled(bench.lake, batches=4)
    running = lake_of(bench.root)
    plan = running.plan(only=["squash"], force=True)
    running.maintenance.journal.cycle_began(plan, [Job.of(one, cycle=plan.cycle, epoch=None) for one in plan.jobs])
    with refused(Conflict, Reason.CYCLE_RUNNING, f"Cycle {plan.cycle} ", f"process {os.getpid()} ", bench.root):
        bench.lake.submit(CYCLE)
    assert bench.lake.submit(SINGLE["squash"]).failed == ()
    running.maintenance.journal.cycle_ended([])
    assert [one.kind for one in bench.lake.submit(replace(CYCLE, only=("squash",)))] == []


def test_a_dataset_that_does_not_exist_is_refused_before_anything_runs(bench: Bench):
    for request in (FOLD, CYCLE, CompactionRequest(kind=RequestKind.VACUUM)):
        with refused(NotFound, None, "no.such.one", "silt list"):
            bench.lake.submit(replace(request, names=(NAME, "no.such.one")))
    assert (bench.lake.history(), bench.lake.totals().cycles) == ([], 0)


def test_a_dataset_that_is_dropped_before_its_turn_is_the_failure_of_its_job(bench: Bench):
    lake = lake_of(bench.root)
    lake.create("a.b.gone", "id BIGINT NOT NULL", key="id")
    plan = lake.maintenance.request_plan(replace(FOLD, names=(NAME, "a.b.gone")), cycle=1)
    lake.drop("a.b.gone")
    done = lake.maintenance.run_plan(plan)
    assert [one.error_kind for one in done] == [None, "not_found"]


def test_a_purge_takes_an_epoch_above_the_leases(bench: Bench):
    for _ in range(4):  # the lease's epoch is ahead of the dataset's
        taken(leases_of(bench.root)).release()
    assert (bench.lake.submit(PURGE)[0].report or {})["purged"]
    assert bench.epoch() == 5, "what was planned with 4 is fenced out"
    assert bench.lake.submit(PURGE).failed == ()
    assert bench.epoch() == 6


def test_every_single_operation_runs_beside_a_compactor_and_is_a_job_of_the_journal(bench: Bench):
    service = bench.service(lake_of(bench.root))
    service.start()
    held = until(lambda: service.status().holder)
    for kind, request in SINGLE.items():
        [result] = bench.lake.submit(request)
        assert (result.kind, result.error, (result.report or {})["dataset"]) == (kind, None, NAME)
    holder = until(lambda: service.status().holder)
    assert (holder.holder, holder.epoch) == (held.holder, held.epoch)
    jobs = bench.lake.jobs()
    assert [(job.cycle, job.lane, job.status.name) for job in reversed(jobs)] == [
        (number, kind, "COMPLETED") for number, kind in enumerate(SINGLE, start=1)
    ]
    assert all(re.search(rf"\b{os.getpid()}\b", job.trigger) for job in jobs)
    assert {lane: one.jobs for lane, one in bench.lake.totals().lanes.items()} == dict.fromkeys(SINGLE, 1)
    assert bench.lake.totals().lanes["purge"].files_deleted == jobs[2].done.files_deleted
    assert bench.lake.unfinished_jobs().running == ()


@pytest.mark.parametrize("kind", SINGLE)
def test_every_single_operation_needs_no_lease(bench: Bench, kind: str):
    lake = lake_of(bench.root)
    [result] = lake.submit(SINGLE[kind])
    assert (result.kind, result.error) == (kind, None)
    assert leases_of(bench.root).row(COMPACTOR) is None
    [job] = lake.jobs()
    assert (job.cycle, job.lane, job.owner.pid, job.epoch) == (1, kind, os.getpid(), None)


@pytest.mark.parametrize(
    ("request_", "facts"),
    [
        (CompactionRequest(kind=RequestKind.VACUUM, names=(NAME,), retention_hours=0.5), ("1",)),
        (CompactionRequest(kind=RequestKind.CLUSTER, names=(NAME,)), ()),
        (CompactionRequest(kind=RequestKind.CLUSTER, names=("a.b.log",), by=("nix",)), ("nix",)),
        (CompactionRequest(kind=RequestKind.CLUSTER, names=("no.such.one",)), ("no.such.one",)),
        (CompactionRequest(kind=RequestKind.CYCLE, only=("nix",)), ("nix",)),
    ],
)
def test_a_request_that_is_not_valid_is_refused_before_anything_runs(
    bench: Bench, request_: CompactionRequest, facts: tuple[str, ...]
):
    bench.lake.create("a.b.log", "at TIMESTAMP NOT NULL", time="at")
    with refused((InvalidRequest, NotFound), None, *facts):
        lake_of(bench.root).submit(request_)
    assert leases_of(bench.root).row(COMPACTOR) is None
    assert bench.lake.jobs() == []


def test_operations_that_were_not_begun_when_a_request_was_stopped_are_cancelled(bench: Bench):
    bench.lake.create("a.b.more", "id BIGINT NOT NULL", key="id")
    lake = lake_of(bench.root)
    done = lake.maintenance.run_request(replace(SINGLE["squash"], names=(NAME, "a.b.more")), stopping=lambda: True)
    assert done.results == ()
    assert {job.status.name for job in lake.jobs()} == {"CANCELLED"}


@pytest.mark.parametrize(
    ("changed", "continuous", "once"),
    [
        ({}, JobPlace.WORKER, JobPlace.INLINE),
        ({"spark_remote": NO_SPARK}, JobPlace.INLINE, JobPlace.INLINE),
        ({"jobs": JobPlace.INLINE}, JobPlace.INLINE, JobPlace.INLINE),
        ({"jobs": JobPlace.WORKER}, JobPlace.WORKER, JobPlace.WORKER),
    ],
)
def test_a_continuous_compactor_has_workers_by_default(
    bench: Bench, changed: dict[str, Any], continuous: JobPlace, once: JobPlace
):
    lake = lake_of(bench.root, settings=replace(SETTINGS, **{"jobs": JobPlace.AUTO, **changed}))
    assert lake.maintenance.job_place(continuous=False) is once, "a single call"
    assert lake.maintenance.job_place(continuous=True) is continuous


class InterruptedMaintenance(MaintenanceService):
    """Maintenance whose close is interrupted."""

    def close(self) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_in_a_close_still_closes_what_is_left(bench: Bench):
    lake = lake_of(bench.root)
    components = components_of(lake)
    replace_maintenance(lake, InterruptedMaintenance(components))
    ended: list[str] = []

    def task() -> None:
        time.sleep(0.2)
        ended.append("task")

    assert components.background.start("test", bench.root, task)
    with pytest.raises(KeyboardInterrupt):
        lake.close()
    assert ended == ["task"], "the close has waited for background work"


def test_a_dataset_with_altered_columns_is_not_called_damaged(tmp_path: Path):
    with lake_of(tmp_path / "lake") as lake:
        filled(lake, batches=1)
        dataset = lake.dataset(NAME)
        dataset.alter(add="z INT")
        dataset.upsert([{"id": 2, "z": 3}])
        assert lake.damages() == []


def test_a_log_can_be_clustered_by_a_column_that_was_added(tmp_path: Path):
    with lake_of(tmp_path / "lake") as lake:
        log = lake.create("a.b.log", "at TIMESTAMP, who STRING", time="at")
        log.alter(add="z INT")
        request = CompactionRequest(kind=RequestKind.CLUSTER, names=("a.b.log",), by=("z",))
        assert lake.maintenance.request_plan(request).jobs == ()
        with refused(InvalidRequest, None, "'y'"):
            lake.maintenance.request_plan(replace(request, by=("y",)))
