import datetime
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone.clock import SystemClock
from siltstone.compaction.execution.report import CycleReport
from siltstone.compactor.scheduler import HISTORY_CYCLES, Scheduler
from siltstone.compactor.tasks import Outcome, ScheduledTask, SchedulerCycle, SchedulerState, TaskContext, Trigger
from siltstone.config import Role, Settings
from siltstone.coordination.leases import COMPACTOR, Lease
from siltstone.delta.layout import LOG
from siltstone.errors import Conflict, Fenced, InvalidRequest, NotFound, Reason, Unavailable
from tests.support.clocks import FakeClock
from tests.support.internals import lease_of, liveness_lock_of
from tests.support.leasing import lake_at, leases_of, taken
from tests.support.refusals import refused as refuses
from tests.support.tables import FAST

SETTINGS = replace(FAST, schedule_jitter_seconds=0.0, checkpoint_interval_commits=20)
HOURLY, DAILY = "5 * * * *", "0 3 * * *"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return lake_at(tmp_path / "lake")


class Bench:
    """Schedulers on one lake and one clock that a test moves; `ran` records their tasks."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.clock = FakeClock()  # 2026-11-15 14:00:30
        self.ran: list[str] = []
        self.runs: list[TaskContext] = []
        self.made: list[Scheduler] = []

    def task(self, name: str, cron: str | None, then: Callable[[TaskContext], Any] | None = None) -> ScheduledTask:
        def run(given: TaskContext) -> Any:  # noqa: ANN401
            self.ran.append(name)
            self.runs.append(given)
            return then(given) if then is not None else CycleReport(cycle=given.cycle, results=())

        return ScheduledTask(name=name, cron=cron, run=run)

    def scheduler(self, *tasks: ScheduledTask, settings: Settings = SETTINGS, **given: Any) -> Scheduler:  # noqa: ANN401
        leases = leases_of(self.lake, clock=self.clock, settings=settings)
        chosen = tasks or (self.task("hourly", HOURLY), self.task("daily", DAILY))
        self.made.append(Scheduler(chosen, leases=leases, settings=settings, clock=self.clock, **given))
        return self.made[-1]


@pytest.fixture
def bench(lake: Path) -> Iterator[Bench]:
    found = Bench(lake)
    yield found
    for scheduler in found.made:
        scheduler.stop()


def at(hour: int, minute: int = 0, second: int = 0, *, day: int = 15) -> datetime.datetime:
    return datetime.datetime(2026, 11, day, hour, minute, second, tzinfo=datetime.UTC)


# ---- by the clock ----------------------------------------------------------------------------------------------------


def test_a_task_runs_when_it_is_due_and_not_before(bench: Bench):
    scheduler = bench.scheduler()
    assert scheduler.tick() is None
    assert scheduler.status().due == {"hourly": at(14, 5), "daily": at(3, day=16)}
    bench.clock.pass_time(minutes=4, seconds=29)
    assert scheduler.tick() is None
    bench.clock.pass_time(seconds=1)
    cycle = scheduler.tick()
    assert cycle is not None
    assert (cycle.number, cycle.trigger, cycle.epoch, cycle.started) == (1, Trigger.SCHEDULE, 1, at(14, 5))
    assert [(one.tasks, one.outcome, one.report) for one in cycle.results] == [
        (("hourly",), Outcome.DONE, CycleReport(cycle=1, results=()))
    ]
    assert scheduler.tick() is None
    assert scheduler.status().due["hourly"] == at(15, 5)


def test_in_a_day_each_task_runs_as_often_as_its_cron(bench: Bench):
    scheduler = bench.scheduler()
    for _ in range(24 * 12):
        bench.clock.pass_time(minutes=5)
        scheduler.tick()
    assert (bench.ran.count("hourly"), bench.ran.count("daily")) == (24, 1)
    assert [cycle.number for cycle in scheduler.history()] == list(range(1, 26))


def test_after_a_long_sleep_each_task_runs_once_and_in_one_cycle(bench: Bench):
    scheduler = bench.scheduler()
    scheduler.tick()
    bench.clock.pass_time(days=9)
    cycle = scheduler.tick()
    assert cycle is not None
    assert bench.ran == ["hourly", "daily"]
    assert scheduler.tick() is None
    bench.clock.pass_time(minutes=5)
    scheduler.tick()
    assert bench.ran == ["hourly", "daily", "hourly"]


def test_tasks_missed_while_no_scheduler_ran_run_once(bench: Bench):
    settled = {"hourly": at(14, 0), "daily": at(2, day=10)}
    scheduler = bench.scheduler(settled=settled, next_cycle=41)
    cycle = scheduler.tick()
    assert cycle is not None
    assert (cycle.number, bench.ran) == (41, ["daily"])
    assert scheduler.tick() is None


def test_a_cycle_that_takes_longer_than_its_cron_runs_again_once(bench: Bench):
    def slow(_run: TaskContext) -> None:
        bench.clock.pass_time(hours=5)

    scheduler = bench.scheduler(bench.task("hourly", HOURLY, slow))
    bench.clock.pass_time(minutes=5)
    first = scheduler.tick()
    assert first is not None
    assert first.seconds == 5 * 3600
    assert scheduler.tick() is not None
    assert bench.ran == ["hourly", "hourly"]


def test_a_clock_that_jumps_forwards_and_back_runs_each_task_once_and_continues(bench: Bench):
    scheduler = bench.scheduler()
    scheduler.tick()
    bench.clock.jump(days=365)
    scheduler.tick()
    assert bench.ran == ["hourly", "daily"]
    bench.clock.jump(days=-365)
    assert scheduler.tick() is None
    assert scheduler.status().due == {"hourly": at(14, 5), "daily": at(3, day=16)}
    bench.clock.pass_time(minutes=5)
    scheduler.tick()
    assert bench.ran == ["hourly", "daily", "hourly"]


def test_a_clock_that_is_set_back_by_seconds_repeats_nothing(bench: Bench):
    scheduler = bench.scheduler()
    bench.clock.pass_time(minutes=4, seconds=31)
    scheduler.tick()
    bench.clock.jump(seconds=-10)
    scheduler.tick()
    bench.clock.pass_time(seconds=30)
    scheduler.tick()
    assert bench.ran == ["hourly"]


@pytest.mark.parametrize("drawn", [0.0, 0.25, 0.999])
def test_jitter_delays_by_at_most_what_is_set(bench: Bench, drawn: float):
    bench.clock.next_jitter = drawn
    scheduler = bench.scheduler(settings=replace(SETTINGS, schedule_jitter_seconds=40.0))
    due = scheduler.status().due["hourly"]
    assert due is not None
    delay = due - at(14, 5)
    assert delay == datetime.timedelta(seconds=40 * drawn)
    bench.clock.pass_time(seconds=(due - bench.clock.now()).total_seconds() - 0.001)
    assert scheduler.tick() is None
    bench.clock.pass_time(seconds=0.001)
    assert scheduler.tick() is not None


def test_jitter_longer_than_the_cron_starves_nothing(bench: Bench):
    bench.clock.next_jitter = 0.999
    scheduler = bench.scheduler(
        bench.task("often", "* * * * *"), settings=replace(SETTINGS, schedule_jitter_seconds=600.0)
    )
    for _ in range(60 * 6):
        bench.clock.pass_time(seconds=10)
        scheduler.tick()
    assert len(bench.ran) >= 5


# ---- pause, triggers -------------------------------------------------------------------------------------------------


def test_while_paused_nothing_runs_by_the_clock_and_after_it_each_once(bench: Bench):
    scheduler = bench.scheduler()
    scheduler.tick()
    scheduler.pause()
    assert scheduler.status().state is SchedulerState.PAUSED
    bench.clock.pass_time(days=3)
    assert scheduler.tick() is None
    scheduler.trigger(["hourly"])
    assert scheduler.tick() is not None
    scheduler.resume()
    scheduler.tick()
    assert bench.ran == ["hourly", "daily"]
    assert scheduler.tick() is None
    assert scheduler.status().state is SchedulerState.WAITING


def test_a_trigger_runs_all_tasks_or_the_named_ones_in_their_order(bench: Bench):
    scheduler = bench.scheduler(*(bench.task(name, None) for name in "abc"))
    bench.clock.pass_time(days=400)
    assert scheduler.tick() is None
    assert scheduler.trigger() == 1
    assert scheduler.tick() is not None
    assert scheduler.trigger(["c", "a", "c"]) == 2
    cycle = scheduler.tick()
    assert cycle is not None
    assert cycle.trigger is Trigger.MANUAL
    assert bench.ran == [*"abc", *"ac"]
    assert scheduler.wait(2, seconds=0) == cycle


def test_a_trigger_of_an_unknown_task_is_refused(bench: Bench):
    scheduler = bench.scheduler()
    with refuses(NotFound, None, "'weekly'", "hourly"):
        scheduler.trigger(["hourly", "weekly"])
    with pytest.raises(InvalidRequest):
        scheduler.trigger([])
    assert scheduler.tick() is None


def test_a_trigger_while_a_triggered_cycle_waits_or_runs_is_a_conflict(bench: Bench):
    refusals: list[Reason | None] = []

    def trigger(_run: TaskContext) -> None:
        with pytest.raises(Conflict, match="Cycle 1 ") as refused:
            scheduler.trigger()
        refusals.append(refused.value.reason)

    scheduler = bench.scheduler(bench.task("hourly", HOURLY, trigger))
    scheduler.trigger()
    with pytest.raises(Conflict, match="1"):
        scheduler.trigger()
    scheduler.tick()
    assert refusals == [Reason.CYCLE_RUNNING]
    assert scheduler.trigger() == 2


def test_a_trigger_while_a_cycle_runs_by_the_clock_comes_after_it(bench: Bench):
    cycles: list[int] = []

    def trigger(_run: TaskContext) -> None:
        if not cycles:
            cycles.append(scheduler.trigger())
            with pytest.raises(Conflict, match="2"):
                scheduler.trigger()

    scheduler = bench.scheduler(bench.task("hourly", HOURLY, trigger))
    bench.clock.pass_time(minutes=10)
    first, second = scheduler.tick(), scheduler.tick()
    assert first is not None
    assert second is not None
    assert [(first.number, first.trigger), (second.number, second.trigger)] == [
        (1, Trigger.SCHEDULE),
        (2, Trigger.MANUAL),
    ]


def test_an_error_of_one_task_stops_no_other_and_is_recorded(bench: Bench):
    def bad(_run: TaskContext) -> None:
        raise ValueError("no luck")

    def away(_run: TaskContext) -> None:
        raise Unavailable("The disk is full.")

    ended: list[SchedulerCycle] = []
    scheduler = bench.scheduler(
        bench.task("bad", HOURLY, bad),
        bench.task("away", HOURLY, away),
        bench.task("good", HOURLY),
        on_cycle=ended.append,
    )
    bench.clock.pass_time(minutes=5)
    cycle = scheduler.tick()
    assert cycle is not None
    assert cycle.failed
    assert [(one.outcome, one.error, one.error_kind) for one in cycle.results] == [
        (Outcome.FAILED, "ValueError: no luck", "error"),
        (Outcome.FAILED, "The disk is full.", "unavailable"),
        (Outcome.DONE, None, None),
    ]
    assert ended == [cycle]
    assert json.loads(json.dumps(cycle.to_dict()))["results"][1]["error_kind"] == "unavailable"
    assert scheduler.tick() is None, "a task that failed waits for its next time"


def test_a_callback_that_fails_does_not_stop_the_scheduler(bench: Bench):
    def bad(_cycle: SchedulerCycle) -> None:
        raise ValueError("deaf")

    scheduler = bench.scheduler(on_cycle=bad)
    scheduler.trigger()
    assert scheduler.tick() is not None
    assert "ValueError: deaf" in (scheduler.status().trouble or "")


def test_the_history_keeps_the_last_cycles(bench: Bench):
    scheduler = bench.scheduler()
    for _ in range(HISTORY_CYCLES + 3):
        scheduler.trigger(["hourly"])
        scheduler.tick()
    assert [cycle.number for cycle in scheduler.history()] == list(range(4, HISTORY_CYCLES + 4))


# ---- the lease -------------------------------------------------------------------------------------------------------


def test_a_second_scheduler_stands_by_and_reports_it(bench: Bench):
    first, second = bench.scheduler(), bench.scheduler()
    first.tick()
    bench.clock.pass_time(minutes=5)
    assert second.tick() is None
    status = second.status()
    assert (status.state, status.holder) == (SchedulerState.STANDING_BY, None)
    assert status.standing_by_because
    with pytest.raises(Conflict):
        second.trigger()
    assert first.tick() is not None
    assert bench.ran == ["hourly"]


def test_a_standby_takes_over_at_once_when_the_holder_dies_and_runs_its_missed_tasks(bench: Bench):
    first, second = bench.scheduler(), bench.scheduler()
    first.tick()
    for _ in range(100):
        bench.clock.pass_time(minutes=1)
        first.tick()
        second.tick()
    assert bench.ran == ["hourly"] * 2  # 14:05 and 15:05, by the first
    liveness_lock_of(lease_of(first)).close()  # as a crash would
    assert second.tick() is None, "what the first one did hours ago is not done again"
    assert second.status().state is SchedulerState.WAITING
    assert (lease_of(second).epoch, lease_of(second).previous_holder is not None) == (2, True)
    bench.clock.pass_time(minutes=30)
    assert second.tick() is not None
    assert first.tick() is None
    assert first.status().state is SchedulerState.STANDING_BY
    assert bench.runs[-1].lease.epoch == 2


def test_tasks_due_while_the_lease_was_free_run_after_the_takeover(bench: Bench):
    first, second = bench.scheduler(), bench.scheduler()
    bench.clock.pass_time(minutes=4)
    first.tick()
    second.tick()
    first.stop()
    bench.clock.pass_time(minutes=1)
    assert second.tick() is not None
    assert bench.ran == ["hourly"]


def test_the_lease_is_renewed_by_ticks_and_never_lost_while_they_come(bench: Bench):
    first, second = bench.scheduler(), bench.scheduler()
    for _ in range(50):
        first.tick()
        second.tick()
        bench.clock.pass_time(seconds=SETTINGS.lease_seconds / 2)
    assert first.status().state is SchedulerState.WAITING
    assert second.status().state is SchedulerState.STANDING_BY


def test_a_scheduler_that_loses_its_lease_in_a_cycle_leaves_the_rest(bench: Bench):
    other = leases_of(bench.lake, clock=bench.clock, settings=SETTINGS)

    def overtaken(run: TaskContext) -> None:
        other.row(COMPACTOR)
        bench.clock.pass_time(seconds=SETTINGS.lease_seconds)  # it hangs, and another process notices it
        taken(other)
        with pytest.raises(Fenced):
            run.lease.check()

    scheduler = bench.scheduler(bench.task("a", HOURLY, overtaken), bench.task("b", HOURLY))
    bench.clock.pass_time(minutes=5)
    cycle = scheduler.tick()
    assert cycle is not None
    assert [one.outcome for one in cycle.results] == [Outcome.DONE, Outcome.SKIPPED]
    assert cycle.results[1].error_kind == "fenced"
    assert bench.ran == ["a"]
    assert scheduler.tick() is None
    assert scheduler.status().state is SchedulerState.STANDING_BY


def test_a_request_whose_lease_is_lost_before_it_runs_ends_as_left_out(bench: Bench):
    scheduler = bench.scheduler()
    scheduler.tick()
    liveness_lock_of(lease_of(scheduler)).close()
    number = scheduler.trigger(["daily"])
    taken(leases_of(bench.lake, clock=bench.clock))
    assert scheduler.tick() is None
    cycle = scheduler.wait(number, seconds=0)
    assert [one.outcome for one in cycle.results] == [Outcome.SKIPPED]
    assert bench.ran == []


def test_an_unreadable_lease_table_means_standby_and_is_read_again(bench: Bench):
    scheduler = bench.scheduler()
    scheduler.tick()
    log = bench.lake / "_system" / "leases" / LOG
    aside = log.with_name("aside")
    bench.clock.pass_time(minutes=5)
    log.rename(aside)
    assert scheduler.tick() is None
    assert bench.ran == []
    assert scheduler.status().state is SchedulerState.STANDING_BY
    with pytest.raises(Conflict):
        scheduler.trigger()
    aside.rename(log)
    assert scheduler.tick() is not None
    assert bench.ran == ["hourly"]
    assert scheduler.status().standing_by_because is None


def test_an_unexpected_error_of_the_lease_means_standby_and_ends_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def broken(_lease: Lease) -> None:
        raise KeyError("epoch")

    def breaks(_run: TaskContext) -> None:
        fault.setattr(Lease, "check", broken)

    scheduler = bench.scheduler(bench.task("first", HOURLY, breaks), bench.task("second", HOURLY))
    scheduler.tick()
    bench.clock.pass_time(minutes=5)
    with monkeypatch.context() as fault:
        cycle = scheduler.tick()
        assert cycle is not None
        assert [(one.outcome, one.error) for one in cycle.results] == [
            (Outcome.DONE, None),
            (Outcome.SKIPPED, "KeyError: 'epoch'"),
        ]
        assert scheduler.tick() is None
        assert scheduler.status().standing_by_because == "KeyError: 'epoch'"
    assert scheduler.tick() is not None
    assert bench.ran == ["first", "second"], "what was left is done as soon as the lease can be looked at"


def test_a_reader_runs_no_scheduler(bench: Bench):
    with pytest.raises(InvalidRequest, match="'reader'"):
        bench.scheduler(settings=replace(SETTINGS, role=Role.READER))


@pytest.mark.parametrize(
    "tasks",
    [
        [ScheduledTask(name="a", cron="never", run=lambda _: None)],
        [ScheduledTask(name="a", cron="0 0 30 2 *", run=lambda _: None)],
        [ScheduledTask(name="a", run=lambda _: None), ScheduledTask(name="a", run=lambda _: None)],
    ],
)
def test_invalid_tasks_are_refused(bench: Bench, tasks: list[ScheduledTask]):
    with pytest.raises(InvalidRequest):
        bench.scheduler(*tasks)


# ---- the thread ------------------------------------------------------------------------------------------------------


def test_the_loop_runs_a_triggered_cycle_and_stops_long_before_its_next_tick(
    lake: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("siltstone.compactor.scheduler.TICK_SECONDS", 3600.0)
    ran = threading.Event()
    leases = leases_of(lake, settings=SETTINGS)

    def run(given: TaskContext) -> CycleReport:
        ran.set()
        return CycleReport(cycle=given.cycle, results=())

    task = ScheduledTask(name="a", run=run)
    scheduler = Scheduler([task], leases=leases, settings=SETTINGS, clock=SystemClock())
    scheduler.start()
    cycle = scheduler.wait(scheduler.trigger(), seconds=30)
    assert (cycle.results[0].report, ran.is_set()) == (CycleReport(cycle=1, results=()), True)
    assert scheduler.stop(seconds=10)
    assert scheduler.status().state is SchedulerState.STOPPED
    assert leases_of(lake).holder(COMPACTOR) is None
    with pytest.raises(Unavailable):
        scheduler.trigger()
    with pytest.raises(InvalidRequest):
        scheduler.start()


def test_a_running_task_gets_the_stop_and_holds_the_lease_until_it_ends(lake: Path):
    begun, may_end, stopped = threading.Event(), threading.Event(), threading.Event()

    def long(run: TaskContext) -> CycleReport:
        begun.set()
        while not run.stopping():
            time.sleep(0.005)
        stopped.set()
        may_end.wait(30)
        return CycleReport(cycle=run.cycle, results=())

    settings = replace(SETTINGS, lease_seconds=1.0)
    tasks = [ScheduledTask(name="long", run=long), ScheduledTask(name="next", run=lambda _: None)]
    scheduler = Scheduler(tasks, leases=leases_of(lake, settings=settings), settings=settings, clock=SystemClock())
    scheduler.start()
    number = scheduler.trigger()
    assert begun.wait(30)
    with pytest.raises(Conflict, match=rf"\b{number}\b"):
        scheduler.trigger()
    assert not scheduler.stop(seconds=0.05)
    assert stopped.wait(30)
    assert leases_of(lake).holder(COMPACTOR) is not None
    may_end.set()
    assert scheduler.stop(seconds=30)
    [cycle] = scheduler.history()
    assert [(one.outcome, one.report is None) for one in cycle.results] == [
        (Outcome.DONE, False),
        (Outcome.SKIPPED, True),
    ]
    assert leases_of(lake).holder(COMPACTOR) is None


def test_stopping_without_a_thread_releases_the_lease(bench: Bench):
    scheduler = bench.scheduler()
    scheduler.tick()
    assert scheduler.stop()
    assert scheduler.tick() is None
    assert leases_of(bench.lake).holder(COMPACTOR) is None
    with pytest.raises(Unavailable):
        scheduler.wait(99, seconds=0)
