"""The compactor: tasks by the clock under the lease; requests beside it. No Spark: squashes, vacuums, empty folds."""

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone.cli.compactor_output import event_line
from siltstone.compaction.execution.events import CompactionEvent
from siltstone.compaction.execution.job import Job
from siltstone.compaction.execution.report import CycleReport
from siltstone.compaction.journal.recovery import RecoveryReport
from siltstone.compaction.planning.model import Plan
from siltstone.compactor.events import CycleCompleted, StandingBy
from siltstone.compactor.schedule import schedule
from siltstone.compactor.service import CompactorService
from siltstone.compactor.tasks import Cycle, Outcome, SchedulerState, TaskResult, Trigger
from siltstone.config import JobPlace, Role, Settings
from siltstone.coordination.leases import COMPACTOR
from siltstone.coordination.state_files import CYCLES, PAUSED, STOP
from siltstone.cron import next_after as timing
from siltstone.errors import Conflict, Corruption, InvalidRequest, NotFound, Reason, SiltstoneError
from siltstone.lake import Lake
from siltstone.maintenance.service import MaintenanceService
from siltstone.model.compaction_request import CompactionRequest, RequestKind
from siltstone.model.reports import JobResult
from tests.support.children import NO_SPARK
from tests.support.clocks import FakeClock
from tests.support.internals import components_of, lease_table_of, replace_interrupt, replace_maintenance, store_of
from tests.support.leasing import leases_of
from tests.support.maintenance import NAME, SETTINGS, filled, ids, lake_of, slow_lake, until
from tests.support.refusals import refused
from tests.support.rolled import make_log

FOLD = CompactionRequest(kind=RequestKind.COMPACT, names=(NAME,))
PURGE = CompactionRequest(kind=RequestKind.COMPACT, names=(NAME,), purge=True)
CYCLE = CompactionRequest(kind=RequestKind.CYCLE)


class Bench:
    """Compactors on one lake and one clock that a test moves, and their events."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, FakeClock()
        self.received: list[CompactionEvent] = []
        self.made: list[CompactorService] = []
        self.lake = lake_of(root, clock=self.clock)
        filled(self.lake)

    def service(self, lake: Lake | None = None, **given: Any) -> CompactorService:  # noqa: ANN401
        found = (lake or lake_of(self.root, clock=self.clock)).compactor(on_event=self.received.append, **given)
        self.made.append(found)
        return found

    def events(self) -> list[str]:
        return [one.name for one in self.received]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path / "lake")
    yield found
    for service in found.made:
        service.stop()


# ---- the works -------------------------------------------------------------------------------------------------------


def test_every_tier_and_kind_of_work_has_its_cron():
    found = schedule(replace(Settings(), tiers="weekly.enabled=yes; hourly.cron=7 * * * *", cluster_cron=" "))
    assert next(iter(found)) == "recovery"
    assert (found["hourly"], found["weekly"], found["cluster"]) == ("7 * * * *", "0 4 * * 3", None)
    assert {"fold", "squash", "events", "vacuum", "daily", "monthly"} < set(found)


def test_a_tier_that_only_a_dataset_has_is_looked_at_by_the_cron_it_has_there(bench: Bench):
    log = bench.lake.create("a.b.log", "at TIMESTAMP NOT NULL", time="at")
    log.set_tiers("weekly.enabled=yes; hourly.cron=9 * * * *")
    service = bench.service()
    due = service.status().due
    assert (due["weekly"], due["weekly@0 4 * * 3"]) == (None, timing("0 4 * * 3", bench.clock.now()))
    assert due["hourly"] == timing("5 * * * *", bench.clock.now()), "the other datasets keep the lake's cron"
    assert due["hourly@9 * * * *"] == timing("9 * * * *", bench.clock.now())
    bench.lake.drop("a.b.log")
    bench.clock.pass_time(minutes=1)
    service.step()
    assert [name for name in service.status().due if "@" in name] == [], "looked at with every cycle"
    assert "weekly" in bench.service(only=["weekly"]).status().due


class PlanningService(MaintenanceService):
    """Plans cycles and runs none of their jobs."""

    planned: list[tuple[str, str]]

    def run_plan(self, plan: Plan, **_given: Any) -> CycleReport:  # noqa: ANN401
        self.planned += [(job.lane, job.dataset) for job in plan.jobs]
        return CycleReport(cycle=plan.cycle, results=())


def test_a_tier_is_rolled_up_in_each_dataset_by_the_cron_it_has_there(bench: Bench):
    names = ["a.b.lakes", "a.b.own", "a.b.same"]
    for name in names:
        make_log(bench.lake, files=12, name=name)
    bench.lake.dataset("a.b.own").set_tiers("hourly.cron=9 * * * *")
    bench.lake.dataset("a.b.same").set_tiers("hourly.min_files=11")
    lake = Lake.open(bench.root, settings=SETTINGS, clock=bench.clock)
    planning = PlanningService(components_of(lake))
    replace_maintenance(lake, planning)
    planning.planned = []
    service = bench.service(lake, only=["hourly"])
    found = {}
    for minute in range(1, 13):
        bench.clock.pass_time(minutes=1)
        planning.planned.clear()
        service.step()
        found[minute] = [dataset for _, dataset in planning.planned]
    assert found == {minute: [] for minute in range(1, 13)} | {5: ["a.b.lakes", "a.b.same"], 9: ["a.b.own"]}
    bench.lake.dataset("a.b.same").set_tiers("hourly.cron=20 * * * *")
    bench.clock.pass_time(minutes=53)
    service.step()
    assert [dataset for _, dataset in planning.planned] == ["a.b.lakes"], "from the next cycle on"
    planning.planned.clear()
    service.trigger(["hourly"])
    service.step()
    assert [dataset for _, dataset in planning.planned] == names, "who asks for a tier means all that have it"
    bench.clock.pass_time(minutes=15)
    planning.planned.clear()
    service.step()
    assert [dataset for _, dataset in planning.planned] == ["a.b.own", "a.b.same"]


def test_an_invalid_cron_is_named_with_its_setting(bench: Bench):
    with refused(InvalidRequest, None, "'fold_cron'", "'often'"):
        bench.service(lake_of(bench.root, settings=replace(SETTINGS, fold_cron="often")))


def test_an_unknown_task_is_refused(bench: Bench):
    with refused(InvalidRequest, None, "'nix'"):
        bench.service(only=["nix"])


# ---- by the clock ----------------------------------------------------------------------------------------------------


def test_tasks_that_are_due_together_are_planned_as_one_cycle(bench: Bench):
    filled(bench.lake, batches=5)
    service = bench.service()
    assert service.step() is None
    bench.clock.pass_time(minutes=1)
    cycle = service.step()
    assert cycle is not None
    assert [(one.tasks, one.outcome) for one in cycle.results] == [(("fold", "squash"), Outcome.DONE)]
    report = cycle.results[0].report
    assert report is not None
    [job] = report
    assert (job.kind, job.error, (job.report or {})["files_removed"]) == ("squash", None, 5)
    assert job.job.startswith(f"{cycle.number}-")
    assert ids(bench.lake) == [0, 1, 2, 3, 4]
    assert bench.events() == ["holding", "cycle_began", "job_began", "job_ended", "cycle_ended"]


def test_a_cycle_without_jobs_reports_no_event(bench: Bench):
    service = bench.service()
    for _ in range(5):
        service.step()
        bench.clock.pass_time(minutes=1)
    assert len(service.history()) == 4
    assert bench.events() == ["holding"]


def test_numbers_go_on_and_what_was_missed_is_caught_up_once(bench: Bench):
    first = bench.service(only=["vacuum"])
    first.step()
    bench.clock.pass_time(hours=1)
    cycle = first.step()
    assert cycle is not None
    assert cycle.number == 1
    first.stop()
    bench.clock.pass_time(days=3)
    second = bench.service(only=["vacuum"])
    cycle = second.step()
    assert cycle is not None
    assert (cycle.number, [one.tasks for one in cycle.results]) == (2, [("recovery", "vacuum")])
    assert second.step() is None


def test_a_clock_that_jumps_neither_stops_nor_repeats_tasks(bench: Bench):
    service = bench.service(only=["squash"])
    service.step()
    bench.clock.jump(days=-30)
    assert service.step() is None
    bench.clock.pass_time(minutes=1)
    assert service.step() is not None
    bench.clock.jump(days=60)
    assert service.step() is not None
    assert service.step() is None


def test_only_the_selected_datasets_are_maintained(bench: Bench):
    other = bench.lake.create("x.y.z", "id BIGINT NOT NULL", key="id")
    for number in range(5):
        other.upsert([{"id": number}])
    filled(bench.lake, batches=5)
    service = bench.service(names=lambda: ["x.y.z"], only=["squash"])
    service.step()
    bench.clock.pass_time(minutes=1)
    cycle = service.step()
    assert cycle is not None
    assert [job.dataset for job in cycle.results[0].report or ()] == ["x.y.z"]


def test_a_lake_that_is_paused_stays_so_in_the_next_compactor(bench: Bench):
    first = bench.service(only=["squash"])
    first.step()
    bench.lake.pause_compactor()
    bench.clock.pass_time(minutes=5)
    assert first.step() is None
    assert first.status().state is SchedulerState.PAUSED
    first.stop()
    second = bench.service(only=["squash"])
    bench.clock.pass_time(minutes=5)
    second.start()
    until(lambda: second.status().holder is not None)
    assert second.history() == ()
    assert bench.lake.compactor_status()["paused"]
    assert bench.lake.resume_compactor()
    until(second.history)
    assert not bench.lake.resume_compactor()
    assert bench.events().count("paused") == 2


def test_requests_and_triggers_run_while_paused(bench: Bench):
    service = bench.service(lake_of(bench.root))
    service.pause()
    service.start()
    until(lambda: bench.lake.compactor_status()["state"])
    assert bench.lake.submit(FOLD).failed == ()
    assert service.wait(service.trigger(["vacuum"]), seconds=60).failed is False
    service.resume()
    assert not service.status().paused


def test_a_compactor_for_one_cycle_does_nothing_by_the_clock_however_much_is_overdue(bench: Bench):
    first = bench.service()
    bench.clock.pass_time(minutes=1)
    assert first.step() is not None
    first.stop()
    bench.clock.pass_time(days=1)
    once = bench.service(continuous=False)
    assert once.step() is None
    number = once.trigger()
    cycle = once.step()
    assert cycle is not None
    assert (cycle.number, cycle.failed) == (number, False)
    assert once.step() is None
    after = bench.service()
    once.stop()
    assert after.step() is None, "what was overdue was a part of that cycle"


def test_cycles_with_and_without_the_lease_never_have_the_same_number(bench: Bench):
    service = bench.service()
    bench.clock.pass_time(minutes=1)
    found = [bench.lake.run_cycle().cycle, bench.lake.plan().cycle - 1]
    assert service.step() is not None
    found += [bench.lake.run_cycle().cycle, bench.lake.submit(CYCLE).cycle] if service.stop() else []
    assert found == [1, 1, 3, 4]
    assert service.history()[0].number == 2


def test_the_status_lists_each_task_of_the_last_cycle(bench: Bench):
    service = bench.service(only=["fold", "squash"])
    bench.clock.pass_time(minutes=1)
    service.step()
    assert bench.lake.compactor_status()["last_cycle"]["tasks"] == ["fold", "squash"]


# ---- the lease -------------------------------------------------------------------------------------------------------


def test_a_second_compactor_stands_by_names_the_holder_and_takes_over(bench: Bench):
    first, second = bench.service(), bench.service()
    first.step()
    second.step()
    second.step()
    told = bench.received[-1]
    assert isinstance(told, StandingBy)
    assert told.because
    assert second.status().state is SchedulerState.STANDING_BY
    with pytest.raises(Conflict):
        second.trigger()
    first.stop()
    bench.clock.pass_time(minutes=1)
    cycle = second.step()
    assert cycle is not None
    assert (cycle.epoch, second.status().state) == (2, SchedulerState.WAITING)


def test_stopping_a_compactor_returns_the_process_that_takes_over(bench: Bench):
    first, second = bench.service(lake_of(bench.root)), bench.service(lake_of(bench.root))
    first.start()
    until(lambda: bench.lake.compactor_status()["state"])
    second.start()
    until(lambda: "standing_by" in bench.events())
    successors: list[str | None] = []
    stop = threading.Thread(
        target=lambda: successors.append(lake_of(bench.root).stop_compactor(seconds=60)), daemon=True
    )
    stop.start()
    assert first.wait_for_stop_request(60)
    assert first.stop()
    stop.join(60)
    taken = second.status().holder
    assert taken is not None
    assert (successors, taken.epoch) == ([taken.described()], 2)


def test_a_compactor_that_loses_its_lease_in_a_cycle_stops_at_once_and_stands_by(bench: Bench):
    lake, slow = slow_lake(bench.root)
    service = bench.service(lake, only=["squash"])
    service.start()
    until(lambda: service.status().holder)
    service.trigger(["squash"])
    assert slow.began.wait(60)
    leases = leases_of(bench.root)
    lease_table_of(leases).read(COMPACTOR)
    row = leases.row(COMPACTOR)
    assert row is not None
    # another machine, whose clock says that the time of the lease is long over
    lease_table_of(leases).write(
        replace(row, epoch=row.epoch + 1, holder="f" * 32, machine="another"), allowed=lambda *_: True
    )
    until(service.history)
    [result] = service.history()[0].results
    assert (result.outcome, result.error_kind) == (Outcome.FAILED, "fenced")
    until(lambda: service.status().state is SchedulerState.STANDING_BY)


def test_unreadable_leases_mean_standby_with_a_clear_message(bench: Bench):
    filled(bench.lake, batches=5)
    bench.service().step()
    bench.made.pop().stop()
    shutil.rmtree(bench.root / "_system" / "leases" / "_delta_log")
    service = bench.service()
    for _ in range(3):
        assert service.step() is None
        bench.clock.pass_time(minutes=1)
    event = bench.received[-1]
    assert isinstance(event, StandingBy)
    assert event.because
    assert len(store_of(bench.lake.dataset(NAME)).changes.files()) == 5
    with refused(Corruption, Reason.DAMAGED_FILE, bench.root / "_system" / "leases"):
        bench.lake.compactor_status()
    [purge] = bench.lake.submit(PURGE)
    assert (purge.error_kind, purge.error_reason) == ("corruption", Reason.DAMAGED_FILE), "it cannot be fenced"


def test_damaged_state_files_are_reported_and_never_taken_for_absent(bench: Bench):
    service = bench.service(only=["squash"])
    service.step()
    (bench.root / "_system" / "compactor" / CYCLES).write_text("[")
    bench.clock.pass_time(minutes=1)
    with refused(Corruption, Reason.DAMAGED_FILE, "cycles.json"):
        service.step()
    (bench.root / "_system" / "compactor" / CYCLES).unlink()
    assert service.step() is not None


# ---- requests --------------------------------------------------------------------------------------------------------


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


def test_a_compactor_stops_on_request_of_another_process(bench: Bench):
    with pytest.raises(NotFound):
        bench.lake.stop_compactor(seconds=1)
    service = bench.service(lake_of(bench.root))
    service.start()
    until(lambda: bench.lake.compactor_status()["state"])
    asking = threading.Thread(target=lambda: lake_of(bench.root).stop_compactor(seconds=60), daemon=True)
    asking.start()
    assert service.wait_for_stop_request(60)
    assert service.stop()
    asking.join(60)
    assert not asking.is_alive()
    assert not (bench.root / "_system" / "compactor" / STOP).exists()
    assert not bench.lake.compactor_status()["running"]


def test_a_job_that_does_not_end_is_interrupted_when_the_compactor_stops(bench: Bench):
    lake, slow = slow_lake(bench.root)
    service = bench.service(lake)
    replace_interrupt(service, slow.go_on.set)
    slow.ignores_stop = True
    service.start()
    until(lambda: "holding" in bench.events())
    service.trigger(["squash"])
    assert slow.began.wait(60)
    assert service.stop(seconds=0.1)
    assert bench.events()[-3:] == ["stopping", "interrupting", "stopped"]
    assert not bench.lake.compactor_status()["running"]


# ---- purges and epochs -----------------------------------------------------------------------------------------------


def epoch_of(lake: Lake) -> int:
    return store_of(lake.dataset(NAME)).snapshot().epoch


def test_a_purge_takes_an_epoch_above_the_leases(bench: Bench):
    for _ in range(4):  # the lease's epoch is ahead of the dataset's
        leases_of(bench.root).hold(COMPACTOR, role=Role.ALL).release()
    assert (bench.lake.submit(PURGE)[0].report or {})["purged"]
    assert epoch_of(bench.lake) == 5, "what was planned with 4 is fenced out"
    assert bench.lake.submit(PURGE).failed == ()
    assert epoch_of(bench.lake) == 6


def test_a_purge_beside_the_holder_fences_its_running_jobs_and_the_next_cycle_goes_on(bench: Bench):
    service = bench.service(lake_of(bench.root), only=["squash"])
    service.start()
    until(lambda: service.status().holder)
    bench.lake.dataset(NAME).compact(purge=True)
    bench.lake.dataset(NAME).compact(purge=True)
    assert epoch_of(bench.lake) == 3, "above the dataset's, and above the lease's"
    filled(bench.lake, batches=4)
    cycle = service.wait(service.trigger(), seconds=60)
    assert [one.error for one in cycle.results] == [None]
    row = service.status().holder
    assert row is not None
    assert row.epoch == 3
    assert leases_of(bench.root).row(COMPACTOR) == row


# ---- single works ----------------------------------------------------------------------------------------------------

SINGLE = {
    "fold": FOLD,
    "purge": PURGE,
    "squash": CompactionRequest(kind=RequestKind.SQUASH, names=(NAME,)),
    "vacuum": CompactionRequest(kind=RequestKind.VACUUM, names=(NAME,), retention_hours=7.0),
}


def test_every_single_operation_runs_beside_a_compactor_and_is_a_job_of_the_journal(bench: Bench):
    service = bench.service(lake_of(bench.root))
    service.start()
    held = until(lambda: service.status().holder)
    for kind, request in SINGLE.items():
        [result] = bench.lake.submit(request)
        assert (result.kind, result.error, (result.report or {})["dataset"]) == (kind, None, NAME)
    assert service.status().holder == held
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


# ---- roles -----------------------------------------------------------------------------------------------------------

ROWS = [{"id": 1}]


def attempted(role: Role, root: Path) -> Iterator[tuple[str, SiltstoneError | None]]:
    lake = lake_of(root, settings=replace(SETTINGS, role=role, spark_remote=NO_SPARK))
    dataset, log = lake.dataset(NAME), lake.dataset("a.b.log")
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: lake.create("n.e.w", "id BIGINT NOT NULL", key="id"),
        "drop": lambda: lake.drop("no.such.one"),
        "upsert": lambda: dataset.upsert(ROWS),
        "tombstone": lambda: dataset.tombstone([1]),
        "ingest": lambda: dataset.ingest("/no/such/file.parquet"),
        "ingest_jdbc": lambda: dataset.ingest_jdbc("jdbc:nix", table="t"),
        "alter": lambda: dataset.alter(add="n BIGINT"),
        "append": lambda: log.append([{"at": "2026-01-01T00:00:00Z"}]),
        "producer": log.producer,
        "set_tiers": lambda: log.set_tiers("daily.min_files=6"),
        "compact": dataset.compact,
        "purge": lambda: dataset.compact(purge=True),
        "squash": dataset.squash,
        "vacuum": dataset.vacuum,
        "cluster": log.cluster,
        "cycle": lambda: lake.run_cycle(only=["vacuum"]),
        "sweep": lake.sweep,
        "recover": lake.recover,
        "compactor": lake.compactor,
        "submit": lambda: lake.submit(FOLD),
        "pause": lake.pause_compactor,
        "resume": lake.resume_compactor,
    }
    for name, call in calls.items():
        try:
            call()
            yield name, None
        except SiltstoneError as error:
            yield name, error if "SILT_ROLE" in str(error) else None


WRITES = {"create", "drop", "upsert", "tombstone", "ingest", "ingest_jdbc", "alter", "append", "producer", "set_tiers"}


@pytest.mark.parametrize("role", Role)
def test_each_role_is_refused_operations_of_other_roles(bench: Bench, role: Role):
    bench.lake.create("a.b.log", "at TIMESTAMP NOT NULL", time="at")
    found = dict(attempted(role, bench.root))
    no = {name for name, error in found.items() if error is not None}
    assert no == {Role.ALL: set(), Role.COMPACTOR: WRITES, Role.READER: set(found)}[role]
    for error in filter(None, found.values()):
        assert isinstance(error, InvalidRequest)
        assert "SILT_ROLE" in str(error)


def test_a_reader_may_plan_and_read_the_status(bench: Bench):
    filled(bench.lake, batches=3)
    lake = lake_of(bench.root, settings=replace(SETTINGS, role=Role.READER))
    assert ids(lake) == [0, 1, 2]
    assert lake.plan(force=True).jobs
    assert lake.dataset(NAME).squash(dry_run=True).files_removed == 3
    assert lake.dataset(NAME).vacuum(dry_run=True).files == ()
    assert lake.dataset(NAME).status().backlog_batches == 3
    assert lake.compactor_status()["running"] is False
    assert not (bench.root / "_system" / "compactor" / PAUSED).exists()


def result(outcome: str, error: str | None = None) -> JobResult:
    return JobResult(
        job="2-1",
        kind="fold",
        lane="fold",
        dataset=NAME,
        period="",
        trigger="",
        report={},
        error=error,
        outcome=outcome,
    )


def test_a_job_that_was_cancelled_has_not_failed():
    at = FakeClock().now()
    report = CycleReport(
        cycle=2, results=(result("done"), result("failed", "no"), result("cancelled", "stopped")), trouble=None
    )
    done = TaskResult(tasks=("fold",), outcome=Outcome.DONE, report=report)
    cycle = Cycle(number=2, trigger=Trigger.SCHEDULE, epoch=1, started=at, ended=at, seconds=1.0, results=(done,))
    summary = cycle.summary()
    assert (summary["jobs"], summary["failed"], summary["cancelled"]) == (3, 1, 1)
    assert event_line(CycleCompleted(cycle=cycle)) == "cycle 2 ended: 3 jobs, 1 failed, 1 cancelled, 1.0 s"


class CountingRecovery:
    """Counts the recoveries of a lake."""

    def __init__(self, lake: Lake) -> None:
        self.count = 0
        self._run = lake.maintenance.recovery.run
        lake.maintenance.recovery.run = self.run  # type: ignore[method-assign]

    def run(self, **given: Any) -> RecoveryReport:  # noqa: ANN401
        self.count += 1
        return self._run(**given)


def test_each_cycle_recovers_once_also_after_a_takeover_and_when_recovery_is_due(bench: Bench):
    lake = lake_of(bench.root, clock=bench.clock)
    recoveries = CountingRecovery(lake)
    service = bench.service(lake)
    bench.clock.pass_time(minutes=1)
    assert service.step() is not None
    assert recoveries.count == 1, "the first cycle under the lease"
    service.trigger(["recovery", "vacuum"])
    assert service.step() is not None
    assert recoveries.count == 2
    service.trigger(["recovery"])
    cycle = service.step()
    assert cycle is not None
    assert (recoveries.count, cycle.results[0].jobs, cycle.failed) == (3, 0, False)
