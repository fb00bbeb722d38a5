"""The compactor: tasks by the clock under the lease; requests beside it. No Spark: squashes, vacuums, empty folds."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone.cli.compactor_output import event_line
from siltstone.compaction.execution.report import CycleReport
from siltstone.compaction.journal.recovery import RecoveryReport
from siltstone.compaction.planning.model import JobKind, Plan
from siltstone.compactor.events import CycleEnded, StandingBy
from siltstone.compactor.schedule import schedule
from siltstone.compactor.tasks import Outcome, SchedulerCycle, SchedulerState, TaskResult, Trigger
from siltstone.config import Role, Settings
from siltstone.coordination.leases import COMPACTOR
from siltstone.coordination.state_files import CYCLES, PAUSED, STOP
from siltstone.cron import next_after
from siltstone.errors import Conflict, Corruption, InvalidRequest, NotFound, Reason, SiltstoneError
from siltstone.lake import Lake
from siltstone.maintenance.service import MaintenanceService
from siltstone.model.reports import JobResult
from tests.support.children import NO_SPARK
from tests.support.clocks import FakeClock
from tests.support.internals import components_of, lease_table_of, replace_interrupt, replace_maintenance, store_of
from tests.support.leasing import leases_of
from tests.support.maintenance import CYCLE, FOLD, NAME, PURGE, SETTINGS, Bench, filled, ids, lake_of, slow_lake, until
from tests.support.refusals import refused
from tests.support.roll_ups import make_log


def test_every_tier_and_kind_of_job_has_its_cron():
    found = schedule(replace(Settings(), tiers="weekly.enabled=yes; hourly.cron=7 * * * *", cluster_cron=" "))
    assert next(iter(found)) == "recovery"
    assert (found["hourly"], found["weekly"], found["cluster"]) == ("7 * * * *", "0 4 * * 3", None)
    assert {"fold", "squash", "events", "vacuum", "daily", "monthly"} < set(found)
    assert {str(kind) for kind in set(JobKind) - {JobKind.ROLL_UP, JobKind.PURGE}} < set(found)  # by tier, by request


def test_a_tier_of_one_dataset_is_planned_by_the_cron_of_that_dataset(bench: Bench):
    log = bench.lake.create("a.b.log", "at TIMESTAMP NOT NULL", time="at")
    log.set_tiers("weekly.enabled=yes; hourly.cron=9 * * * *")
    service = bench.service()
    due = service.status().due
    assert (due["weekly"], due["weekly@0 4 * * 3"]) == (None, next_after("0 4 * * 3", bench.clock.now()))
    assert due["hourly"] == next_after("5 * * * *", bench.clock.now()), "the other datasets keep the lake's cron"
    assert due["hourly@9 * * * *"] == next_after("9 * * * *", bench.clock.now())
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
    assert bench.events() == ["lease_acquired", "cycle_began", "job_began", "job_ended", "cycle_ended"]


def test_a_cycle_without_jobs_reports_no_event(bench: Bench):
    service = bench.service()
    for _ in range(5):
        service.step()
        bench.clock.pass_time(minutes=1)
    assert len(service.history()) == 4
    assert bench.events() == ["lease_acquired"]


def test_cycle_numbers_continue_and_missed_tasks_run_once(bench: Bench):
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
    until(lambda: not service.status().paused)


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


def test_stopping_a_compactor_returns_the_process_that_takes_over(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("siltstone.compactor.status.TAKEOVER_SECONDS", 60.0)
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
    stop.join(120)
    holder = until(lambda: second.status().holder)
    assert (successors, holder.epoch) == ([holder.described()], 2)


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
    # another machine, whose clock is long past the end of the lease
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
    bench.services.pop().stop()
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
    until(lambda: "lease_acquired" in bench.events())
    service.trigger(["squash"])
    assert slow.began.wait(60)
    assert service.stop(seconds=0.1)
    assert bench.events()[-3:] == ["stopping", "interrupting", "stopped"]
    assert not bench.lake.compactor_status()["running"]


def test_a_purge_beside_the_holder_fences_its_running_jobs_and_the_next_cycle_continues(bench: Bench):
    service = bench.service(lake_of(bench.root), only=["squash"])
    service.start()
    until(lambda: service.status().holder)
    bench.lake.dataset(NAME).compact(purge=True)
    bench.lake.dataset(NAME).compact(purge=True)
    assert bench.epoch() == 3, "above the dataset's, and above the lease's"
    filled(bench.lake, batches=4)
    cycle = service.wait(service.trigger(), seconds=60)
    assert [one.error for one in cycle.results] == [None]
    row = service.status().holder
    assert row is not None
    assert row.epoch == 3
    assert leases_of(bench.root).row(COMPACTOR) == row


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
    cycle = SchedulerCycle(
        number=2, trigger=Trigger.SCHEDULE, epoch=1, started=at, ended=at, seconds=1.0, results=(done,)
    )
    summary = cycle.summary()
    assert (summary["jobs"], summary["failed"], summary["cancelled"]) == (3, 1, 1)
    assert event_line(CycleEnded(cycle=cycle)) == "cycle 2 ended: 3 jobs, 1 failed, 1 cancelled, 1.0 s"


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
