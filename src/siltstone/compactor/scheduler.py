"""The scheduler: runs tasks by their cron, one cycle at a time, as long as it holds the lease.

Terms. A *tick* is one check of the lease and the clock. A *cycle* is one run, under one number, of all tasks that are
due at a tick or triggered. A *standby* scheduler does not hold the lease.

Flow of a tick:

1. Check and renew the lease. Without a lease, acquire it if it is free, otherwise stay on standby.
2. Select the tasks: the triggered ones, otherwise the due ones (`schedule`, pure) unless the schedule is paused.
3. Run each group of tasks. Check the lease before each. An error of one group is its result, and does not stop other
   groups.
4. Record the cycle and pass it to the subscriber.

While a task runs, a separate thread renews the lease. A standby scheduler checks the lease at every tick. If the holder
on this machine dies, it takes over within a tick. If a holder on another machine stops renewing, it takes over after
the lease's lifetime. Tasks that were due within two lifetimes before the takeover run again. The holder may have died
before it ran them.

The scheduler has no durable state. A crash ends the cycle. The steps of its jobs decide what the crash leaves, and the
journal of the lake records which cycles began.
"""

import datetime
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from siltstone.clock import Clock
from siltstone.compactor.schedule import Timing, due, is_set_back, timing_after
from siltstone.compactor.tasks import (
    Outcome,
    ScheduledTask,
    SchedulerCycle,
    SchedulerState,
    SchedulerStatus,
    TaskContext,
    TaskResult,
    Trigger,
)
from siltstone.config import Settings
from siltstone.coordination.leases import COMPACTOR, Lease, Leases
from siltstone.errors import (
    Conflict,
    Fenced,
    InvalidRequest,
    NotFound,
    Reason,
    SiltstoneError,
    Unavailable,
    error_text,
    reason_of,
)
from siltstone.model.roles import check_may_compact

TICK_SECONDS: Final = 1.0
"""Seconds between two ticks. A cron has a resolution of minutes, but a takeover should be fast."""
STOP_SECONDS: Final = 1.0
HISTORY_CYCLES: Final = 100
OVERLAP_LEASES: Final = 2
"""Lease lifetimes before a takeover within which due tasks run again."""

NOT_CHECKED: Final = "it has not checked the lease yet"

OnCycle = Callable[[SchedulerCycle], object]
NextNumber = Callable[[], int]


class Scheduler:
    """Runs tasks by the clock. `tick` runs one step. `start` ticks on a thread until `stop`."""

    def __init__(
        self,
        tasks: Iterable[ScheduledTask],
        *,
        leases: Leases,
        settings: Settings,
        clock: Clock,
        next_cycle: int | NextNumber = 1,
        settled: Mapping[str, datetime.datetime] | None = None,
        on_cycle: OnCycle = lambda _cycle: None,
    ) -> None:
        """Prepare the tasks, in the order in which they run. Nothing is read or run yet.

        `next_cycle` is the number of the first cycle, or reserves each number while the lease is held. `settled` has
        the last run of each task, default: now. Due times since then are caught up. `on_cycle` receives each cycle
        that has ended. An error that it raises is stored as `SchedulerStatus.trouble`.

        Raises:
            InvalidRequest: the role may not compact, a cron is not valid, or two tasks have the same name.
        """
        check_may_compact(settings.role, doing="run the compactor")
        self._tasks = _by_name(tasks)
        self._leases = leases
        self._settings = settings
        self._clock = clock
        self._on_cycle = on_cycle
        now = clock.now()
        self._timings = {name: self._timing(name, (settled or {}).get(name, now)) for name in self._tasks}
        self._ticking = threading.Lock()
        self._leasing = threading.RLock()
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lease: Lease | None = None
        self._standby_reason: str | None = NOT_CHECKED
        self._paused = False
        self._number: NextNumber = itertools.count(next_cycle).__next__ if isinstance(next_cycle, int) else next_cycle
        self._requested: tuple[int, tuple[ScheduledTask, ...]] | None = None
        self._running: tuple[int, Trigger, tuple[str, ...]] | None = None
        self._history: deque[SchedulerCycle] = deque(maxlen=HISTORY_CYCLES)
        self._trouble: str | None = None

    def trigger(self, names: Iterable[str] | None = None) -> int:
        """Request a cycle of all tasks, or of the named ones, also while paused; see `CompactorService.trigger`."""
        tasks = self._selected(names)
        self._check_free()
        if self._held_lease() is None:
            because = (self._standby_reason or "it was stopped").rstrip(".")
            raise Conflict(
                f"This compactor is on standby: {because}. No cycle was begun. Trigger it where the lease is held."
            )
        with self._changed:
            self._check_free()
            number = self._number()
            self._requested = (number, tasks)
        self._wake.set()
        return number

    def wait(self, number: int, *, seconds: float) -> SchedulerCycle:
        """Wait until a cycle has ended; see `CompactorService.wait`."""

        def ended() -> SchedulerCycle | None:
            return next((cycle for cycle in self._history if cycle.number == number), None)

        with self._changed:
            self._changed.wait_for(
                lambda: ended() or (self._stopping.is_set() and self._running is None), timeout=seconds
            )
            cycle = ended()
        if cycle is None:
            raise Unavailable(
                f"Cycle {number} has not ended within {seconds:g} seconds. Wait again; silt compactor status shows its tasks."
            )
        return cycle

    def replace_tasks(self, tasks: Iterable[ScheduledTask]) -> None:
        """Schedule these tasks from now on. A task whose cron has not changed keeps its timing."""
        new = _by_name(tasks)
        with self._changed:
            old, now = self._tasks, self._clock.now()
            same = {name for name, task in new.items() if name in old and old[name].cron == task.cron}
            self._tasks = {name: old[name] if name in same else task for name, task in new.items()}
            self._timings = {
                name: self._timings[name] if name in same else self._timing(name, now) for name in self._tasks
            }

    def pause(self) -> None:
        """Begin no further scheduled cycle. A running cycle continues, and the scheduler keeps the lease."""
        self._paused = True

    def resume(self) -> None:
        """Resume the schedule. Tasks that came due meanwhile run once."""
        self._paused = False
        self._wake.set()

    def history(self) -> tuple[SchedulerCycle, ...]:
        """Return the last cycles, oldest first."""
        with self._changed:
            return tuple(self._history)

    def status(self) -> SchedulerStatus:
        """Return the status."""
        with self._changed:
            lease, running = self._lease, self._running
            return SchedulerStatus(
                state=self._state(),
                paused=self._paused,
                standing_by_because=self._standby_reason,
                holder=lease.row if lease is not None else None,
                running_cycle=running[0] if running else None,
                running_tasks=running[2] if running else (),
                cycles=len(self._history),
                due={name: timing.due_at for name, timing in self._timings.items()},
                trouble=self._trouble or (lease.trouble if lease is not None else None),
            )

    def _state(self) -> SchedulerState:
        if self._running is not None:
            return SchedulerState.RUNNING
        if self._stopping.is_set():
            return SchedulerState.STOPPED
        if self._standby_reason is not None:
            return SchedulerState.STANDING_BY
        return SchedulerState.PAUSED if self._paused else SchedulerState.WAITING

    def start(self) -> None:
        """Tick on a thread until `stop`; once per object."""
        if self._thread is not None or self._stopping.is_set():
            raise InvalidRequest("This compactor was started before. Make a new one.")
        self._thread = threading.Thread(target=self._loop, name="siltstone-scheduler", daemon=True)
        self._thread.start()

    def stop(self, *, seconds: float = STOP_SECONDS) -> bool:
        """Stop running tasks and release the lease. Return true if that was done within the time.

        A running task sees `TaskContext.stopping`. The lease is held until the task or the process ends.
        """
        self._stopping.set()
        self._wake.set()
        if self._thread is None:
            self._release()
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                try:
                    self.tick()
                except Exception as error:  # noqa: BLE001  # the loop outlives any error of one tick
                    self._trouble = error_text(error)
                self._wake.wait(TICK_SECONDS)
        finally:
            self._release()

    def _release(self) -> None:
        with self._leasing:
            lease, self._lease = self._lease, None
            if lease is not None:
                lease.release()
        with self._changed:
            self._standby_reason = "it was stopped"
            self._changed.notify_all()

    def tick(self) -> SchedulerCycle | None:
        """Check the lease and the clock once, and run the due tasks. Return the cycle if one ran."""
        with self._ticking:
            if self._stopping.is_set():
                return None
            now = self._clock.now()
            for name, timing in self._timings.items():
                if is_set_back(timing, now):
                    self._timings[name] = self._timing(name, now)
            lease = self._held_lease()
            if lease is None:
                self._stand_by(now)
                return None
            with self._changed:
                begun = self._begin(now)
            return None if begun is None else self._run(lease, now, *begun)

    def _stand_by(self, now: datetime.datetime) -> None:
        """Move old anchors forward: the lease holder runs these tasks. What it may have missed stays due."""
        anchor = now - datetime.timedelta(seconds=OVERLAP_LEASES * self._settings.lease_seconds)
        for name, timing in self._timings.items():
            if timing.anchor < anchor:
                self._timings[name] = self._timing(name, anchor)
        with self._changed:
            if self._requested is not None:
                number, tasks = self._requested
                self._requested = None
                names = tuple(task.name for task in tasks)
                error = f"the lease was lost: {self._standby_reason}"
                self._record(
                    SchedulerCycle(
                        number=number,
                        trigger=Trigger.MANUAL,
                        epoch=0,
                        started=now,
                        ended=now,
                        seconds=0.0,
                        results=(TaskResult(tasks=names, outcome=Outcome.SKIPPED, error=error),),
                    )
                )

    def _begin(self, now: datetime.datetime) -> tuple[int, Trigger, tuple[ScheduledTask, ...]] | None:
        if self._requested is not None:
            number, tasks = self._requested
            self._requested = None
            self._running = (number, Trigger.MANUAL, ())
            return number, Trigger.MANUAL, tasks
        names = () if self._paused else due(self._timings.items(), now)
        if not names:
            return None
        number = self._number()
        self._running = (number, Trigger.SCHEDULE, ())
        return number, Trigger.SCHEDULE, tuple(self._tasks[name] for name in names)

    def _run(
        self, lease: Lease, now: datetime.datetime, number: int, trigger: Trigger, tasks: tuple[ScheduledTask, ...]
    ) -> SchedulerCycle:
        started, epoch, results = self._clock.monotonic_seconds(), lease.epoch, []
        try:
            for _, neighbours in itertools.groupby(tasks, key=lambda task: task.run):
                group = tuple(neighbours)
                self._running = (number, trigger, tuple(task.name for task in group))
                results.append(self._run_group(lease, number, trigger, group))
                if results[-1].outcome is not Outcome.SKIPPED:
                    for task in group:
                        if self._tasks.get(task.name) is task:
                            self._timings[task.name] = self._timing(task.name, now)
        finally:
            cycle = SchedulerCycle(
                number=number,
                trigger=trigger,
                epoch=epoch,
                started=now,
                ended=self._clock.now(),
                seconds=self._clock.monotonic_seconds() - started,
                results=tuple(results),
            )
            with self._changed:
                self._running = None
                self._record(cycle)
        try:
            self._on_cycle(cycle)
        except Exception as error:  # noqa: BLE001  # a subscriber must not stop the scheduler
            self._trouble = f"A callback failed after cycle {number}: {error_text(error)}"
        return cycle

    def _run_group(self, lease: Lease, number: int, trigger: Trigger, tasks: tuple[ScheduledTask, ...]) -> TaskResult:
        names = tuple(task.name for task in tasks)
        if self._stopping.is_set():
            text = "the compactor was stopped"
            return TaskResult(tasks=names, outcome=Outcome.SKIPPED, error=text, error_reason=Reason.CANCELLED.value)
        started = self._clock.monotonic_seconds()
        try:
            lease.check()
        except Exception as error:  # noqa: BLE001  # nothing runs under a lease that cannot be checked
            return _failure(names, Outcome.SKIPPED, error)
        context = TaskContext(cycle=number, trigger=trigger, tasks=names, lease=lease, stopping=self._stopping.is_set)
        try:
            report = tasks[0].run(context)
        except Exception as error:  # noqa: BLE001  # an error of one group is its result and stops no other one
            return _failure(names, Outcome.FAILED, error, seconds=self._clock.monotonic_seconds() - started)
        seconds = self._clock.monotonic_seconds() - started
        return TaskResult(tasks=names, outcome=Outcome.DONE, seconds=seconds, report=report)

    def _record(self, cycle: SchedulerCycle) -> None:
        self._history.append(cycle)
        self._changed.notify_all()

    def _held_lease(self) -> Lease | None:
        """Return the lease if this process holds or can acquire it. Otherwise return None and set `_standby_reason`."""
        with self._leasing:
            try:
                self._renew()
                if self._lease is None and not self._stopping.is_set():
                    self._acquire()
            except Exception as error:  # noqa: BLE001  # a table that cannot be read is not a free lease
                self._standby_reason = error_text(error)
                return None
            if self._lease is not None:
                self._standby_reason = None
            return self._lease

    def _renew(self) -> None:
        lease = self._lease
        if lease is None:
            return
        try:
            lease.check()
            lease.renew_if_due()
        except Fenced:
            self._lease = None
            lease.release()

    def _acquire(self) -> None:
        lease = self._leases.acquire(COMPACTOR, role=self._settings.role)
        if lease is None:
            row = self._leases.row(COMPACTOR)
            self._standby_reason = f"{row.described()} holds the lease" if row else "another process was quicker"
        else:
            self._lease = lease.keep()

    def _timing(self, name: str, anchor: datetime.datetime) -> Timing:
        jitter = self._clock.jitter() * self._settings.schedule_jitter_seconds
        return timing_after(self._tasks[name].cron, anchor, jitter_seconds=jitter)

    def _selected(self, names: Iterable[str] | None) -> tuple[ScheduledTask, ...]:
        if names is None:
            return tuple(self._tasks.values())
        requested = set(names)
        if unknown := sorted(requested - self._tasks.keys()):
            raise NotFound(f"There is no task {unknown[0]!r}. There are: {', '.join(self._tasks)}.")
        if not requested:
            raise InvalidRequest("No task was named. Name some, or leave the names out to run all.")
        return tuple(task for name, task in self._tasks.items() if name in requested)

    def _check_free(self) -> None:
        with self._changed:
            if self._stopping.is_set():
                raise Unavailable("This compactor was stopped. Make a new one.")
            is_scheduled = self._running is None or self._running[1] is Trigger.SCHEDULE
            busy = self._requested if is_scheduled else self._running
            if busy is not None:
                raise Conflict(
                    f"Cycle {busy[0]} is already running. No other was begun. Wait until it has ended.",
                    reason=Reason.CYCLE_RUNNING,
                )


def _failure(tasks: tuple[str, ...], outcome: Outcome, error: Exception, *, seconds: float = 0.0) -> TaskResult:
    return TaskResult(
        tasks=tasks,
        outcome=outcome,
        seconds=seconds,
        error=error_text(error),
        error_kind=error.kind if isinstance(error, SiltstoneError) else SiltstoneError.kind,
        error_reason=reason_of(error),
    )


def _by_name(tasks: Iterable[ScheduledTask]) -> dict[str, ScheduledTask]:
    by_name: dict[str, ScheduledTask] = {}
    for task in tasks:
        if task.name in by_name:
            raise InvalidRequest(f"There are two tasks with the name {task.name!r}. Give each its own.")
        by_name[task.name] = task
    return by_name
