"""The compactor service: a scheduler with the tasks of a lake, and its state files. `silt compactor` runs it.

It has two threads. The scheduler's thread (`scheduler`) holds the lease and runs cycles. The monitor thread polls the
state files:

1. ``paused.json``: while it exists, no scheduled task runs. It belongs to the lake, so a pause outlives the process.
2. ``stop.json``: names the lease holder that must stop.
3. ``status.json``: rewritten when the status has changed.

Each cycle recovers once, before it plans, because the previous lease holder may have died. The number of a cycle is
durable before the cycle begins, and the times of its tasks after it. So numbers rise, and tasks that were missed while
no compactor ran are caught up once.

Every commit of a job carries the epoch of the lease under which the job was planned. A purge raises a dataset's epoch,
so the lease may be below it. The lease holder raises its epoch to that of every dataset that it plans, *before* it
plans. Jobs that were planned before stay fenced out.
"""

import datetime
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from siltstone.clock import Clock, utc_text
from siltstone.compaction.execution.events import CompactionEvent, CycleBegan, CycleReported, JobsEnded, Subscriber
from siltstone.compaction.execution.report import CycleReport
from siltstone.compactor.events import (
    BackgroundError,
    CycleEnded,
    DatasetSkipped,
    Interrupting,
    JournalFailed,
    LeaseAcquired,
    Paused,
    Recovered,
    RecoveryFailed,
    Resumed,
    StandingBy,
    Stopped,
    Stopping,
)
from siltstone.compactor.schedule import due_crons, lane_of, schedule, scheduled_tasks
from siltstone.compactor.scheduler import NOT_CHECKED, Scheduler
from siltstone.compactor.status import CompactorState, holder_facts
from siltstone.compactor.tasks import (
    RECOVERY,
    Outcome,
    ScheduledTask,
    SchedulerCycle,
    SchedulerState,
    SchedulerStatus,
    TaskContext,
    Trigger,
)
from siltstone.coordination.leases import Lease
from siltstone.coordination.state_files import STATUS
from siltstone.errors import Fenced, SiltstoneError, error_text
from siltstone.maintenance.service import MaintenanceService
from siltstone.model.compaction_request import Selection

MONITOR_SECONDS: Final = 0.25
"""Seconds between two polls of the state files."""
INTERRUPT_SECONDS: Final = 15.0
"""Seconds that an interrupted job has to end."""
CHECK_SECONDS: Final = 1.0
"""Seconds between two checks of the lease while a cycle runs."""

Names = Callable[[], list[str] | None]


class CompactorService:
    """Maintains one lake on a schedule. `start` and `stop` it, or use it in a ``with`` block."""

    def __init__(
        self,
        maintenance: MaintenanceService,
        *,
        names: Names = lambda: None,
        only: Sequence[str] | None = None,
        on_event: Subscriber = lambda _event: None,
        interrupt: Callable[[], None] = lambda: None,
        continuous: bool = True,
    ) -> None:
        """Prepare the tasks; see `Lake.compactor`. Nothing runs yet. `interrupt` interrupts the running Spark work.

        Raises:
            InvalidRequest: the role may not compact, a task is unknown, or settings contradict each other.
            Corruption: the state files of the lake cannot be read.
        """
        components = maintenance.components
        self._maintenance = maintenance
        self._files = components.state_files
        self._state = CompactorState(components.leases, self._files, maintenance.clock)
        self._settings = maintenance.settings
        self._clock = maintenance.clock
        self._names = names
        self._only = only
        self._on_event = on_event
        self._interrupt = interrupt
        self._continuous = continuous
        self._crons = self._schedule()
        settled = self._files.cycles().get("settled", {})
        self._scheduler = Scheduler(
            self._tasks(),
            leases=components.leases,
            settings=self._settings,
            clock=self._clock,
            next_cycle=maintenance.next_cycle,
            settled={name: datetime.datetime.fromisoformat(at) for name, at in settled.items()},
            on_cycle=self._on_cycle,
        )
        self._report_mutex = threading.Lock()
        self._written: dict[str, Any] = {}
        self._holder: str | None = None
        self._recovered: str | None = None
        """The lease under which recovery has run."""
        self._standing_by_because: str | None = None
        self._trouble: str | None = None
        self._running_since: dict[int, str] = {}
        self._stop_requested = threading.Event()
        self._closing = threading.Event()
        self._monitor: threading.Thread | None = None

    def start(self) -> None:
        """Run until `stop`, on separate threads."""
        self._apply_pause()
        self._scheduler.start()
        self._monitor = threading.Thread(target=self._poll, name="siltstone-compactor-monitor", daemon=True)
        self._monitor.start()

    def step(self) -> SchedulerCycle | None:
        """Check the state files and the schedule once, for a caller with its own loop. Return the cycle if one ran."""
        self.check_files()
        cycle = self._scheduler.tick()
        self.check_files()
        return cycle

    def stop(self, *, seconds: float | None = None) -> bool:
        """Begin no further job, cancel running jobs, and release the lease. The next lease holder plans the jobs again.

        Return true if all of that was done. Otherwise only the end of the process releases the lease.
        """
        limit = self._settings.stop_seconds if seconds is None else seconds
        self._on_event(Stopping())
        done = self._scheduler.stop(seconds=limit)
        if not done:
            self._on_event(Interrupting())
            until = self._clock.monotonic_seconds() + INTERRUPT_SECONDS
            while not done and self._clock.monotonic_seconds() < until:
                try:
                    self._interrupt()  # a session that is still starting is interrupted by the next call
                except Exception as error:  # noqa: BLE001  # an error of Spark must not keep the compactor from stopping
                    self._on_event(BackgroundError(error=error_text(error)))
                done = self._scheduler.stop(seconds=1.0)
        self._closing.set()
        if self._monitor is not None:
            self._monitor.join(INTERRUPT_SECONDS)
        self._write_stopped()
        self._on_event(Stopped(clean=done))
        return done

    def __enter__(self) -> "CompactorService":
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def wait_for_stop_request(self, seconds: float) -> bool:
        """Wait `seconds`, or until another process requests a stop (`silt compactor stop`). Return true if one did."""
        return self._stop_requested.wait(seconds)

    def trigger(self, names: Sequence[str] | None = None) -> int:
        """Request a cycle of all tasks, or of the named ones, also while paused; return its number.

        The cycle begins after a scheduled cycle that is running.

        Raises:
            NotFound: there is no task of that name.
            Conflict: another triggered cycle has not ended, or this compactor is on standby.
            Unavailable: the compactor was stopped.
        """
        if names is not None:  # also the tasks of crons that only some datasets have
            tasks = self._scheduler.status().due
            names = [*names, *(task for task in tasks if task not in names and lane_of(task) in names)]
        number = self._scheduler.trigger(names)
        self._report_holder(self._scheduler.status())
        return number

    def wait(self, number: int, *, seconds: float) -> SchedulerCycle:
        """Wait until a cycle has ended.

        Raises:
            Unavailable: the cycle did not end within that time, or the compactor was stopped before the cycle began.
        """
        return self._scheduler.wait(number, seconds=seconds)

    def pause(self) -> None:
        """Pause the schedule of all compactors of this lake until a resume. A running cycle continues."""
        self._state.pause()
        self._apply_pause()

    def resume(self) -> None:
        """Resume the schedule. Tasks that came due meanwhile run once."""
        self._state.resume()
        self._apply_pause()

    def status(self) -> SchedulerStatus:
        """Return the status of this compactor."""
        return self._scheduler.status()

    def history(self) -> tuple[SchedulerCycle, ...]:
        """Return the last cycles of this compactor, oldest first."""
        return self._scheduler.history()

    def _schedule(self) -> dict[str, str | None]:
        crons = schedule(self._settings, of_datasets=self._maintenance.dataset_tiers())
        return crons if self._continuous else dict.fromkeys(crons)

    def _tasks(self) -> list[ScheduledTask]:
        return scheduled_tasks(self._crons, run=self._run, only=self._only)

    def _update_schedule(self) -> None:
        """Apply changed crons of datasets. An error is left to the cycle, which reports it."""
        with suppress(SiltstoneError):
            crons = self._schedule()
            if crons != self._crons:
                self._crons = crons
                self._scheduler.replace_tasks(self._tasks())

    def _run(self, task: TaskContext) -> CycleReport | None:
        """Run the due tasks as one cycle, which recovers first. Recovery alone plans nothing."""
        names = self._names()
        crons = due_crons(task.tasks, self._crons)
        report: CycleReport | None = None
        if crons and (names is None or names):
            selection = Selection(
                names=names,
                only=tuple(crons),
                crons=crons if task.trigger is Trigger.SCHEDULE else None,
                known_tiers=frozenset(map(lane_of, self._crons)),
            )
            self._update_schedule()
            report = self._run_cycle(selection, task)
        elif RECOVERY in task.tasks:
            recovery = self._maintenance.recover(epoch=task.lease.epoch)
            report = CycleReport(cycle=task.cycle, results=(), recovery=recovery)
        if report is not None:
            holder = task.lease.row.holder
            if RECOVERY in task.tasks or self._recovered != holder:  # the first recovery under a lease, or a due one
                for problem in report.recovery.problems:
                    subject = problem.dataset or problem.subject
                    self._on_event(RecoveryFailed(cycle=task.cycle, dataset=subject, error=problem.error))
            self._recovered = holder
        return report

    def _run_cycle(self, selection: Selection, task: TaskContext) -> CycleReport:
        """Recover, plan and run one cycle. Raise Fenced if the lease was lost: then no further job began."""
        lease, maintenance = task.lease, self._maintenance
        monitor = LeaseMonitor(lease, task.stopping, clock=self._clock)
        highest = maintenance.highest_epoch(maintenance.names() if selection.names is None else selection.names)
        if highest > lease.epoch:
            lease.advance(above=highest - 1)
        report = maintenance.run_cycle(
            selection,
            cycle=task.cycle,
            epoch=lease.epoch,
            continuous=self._continuous,
            subscribers=[self._on_cycle_event],
            stopping=monitor.stopping,
        )
        if text := report.recovery.summary():
            self._on_event(Recovered(cycle=task.cycle, text=text))
        for dataset, error in report.unreadable.items():
            self._on_event(DatasetSkipped(cycle=task.cycle, dataset=dataset, error=error))
        if report.trouble is not None:
            self._on_event(JournalFailed(cycle=task.cycle, error=report.trouble))
        if monitor.lost is not None:
            raise monitor.lost
        return report

    def _on_cycle_event(self, event: CompactionEvent) -> None:
        """Pass on the events of cycles that concern jobs. `CycleEnded` follows when all tasks have ended."""
        is_empty = isinstance(event, CycleBegan) and not event.jobs
        if not is_empty and not isinstance(event, JobsEnded | CycleReported):
            self._on_event(event)

    def _on_cycle(self, cycle: SchedulerCycle) -> None:
        """Record the result of a cycle, and the times of its tasks."""
        summary = cycle.summary()
        if summary["jobs"] or summary["failed"] or summary["cancelled"]:
            self._on_event(CycleEnded(cycle=cycle))
        settled = {
            name: utc_text(cycle.started, timespec="microseconds")
            for result in cycle.results
            if result.outcome is not Outcome.SKIPPED
            for name in result.tasks
        }
        self._files.ended(summary, settled=settled)

    def _poll(self) -> None:
        while not self._closing.is_set():
            try:
                self.check_files()
                self._trouble = None
            except Exception as error:  # noqa: BLE001  # the monitor outlives any error of one check
                text = error_text(error)
                if text != self._trouble:
                    self._trouble = text
                    self._on_event(BackgroundError(error=text))
            self._closing.wait(MONITOR_SECONDS)

    def check_files(self) -> None:
        """Apply a pause or a stop request, and write the status."""
        status = self._scheduler.status()
        self._report_holder(status)
        self._apply_pause()
        if status.holder is None or status.state in (SchedulerState.STANDING_BY, SchedulerState.STOPPED):
            return
        if self._state.is_stop_requested(status.holder.holder):
            self._stop_requested.set()
        self._write_status(self._scheduler.status())

    def _report_holder(self, status: SchedulerStatus) -> None:
        """Report when this compactor acquires or loses the lease."""
        with self._report_mutex:
            if status.holder is None or status.state is SchedulerState.STANDING_BY:
                self._holder = None
                reason = status.standing_by_because
                is_new = reason not in (self._standing_by_because, NOT_CHECKED)
                if is_new and status.state is SchedulerState.STANDING_BY:
                    self._standing_by_because = reason
                    self._on_event(StandingBy(because=reason or ""))
            elif status.holder.holder != self._holder and status.state is not SchedulerState.STOPPED:
                self._holder, self._standing_by_because = status.holder.holder, None
                self._on_event(LeaseAcquired(epoch=status.holder.epoch))

    def _apply_pause(self) -> None:
        paused = self._state.is_paused()
        if paused == self._scheduler.status().paused:
            return
        (self._scheduler.pause if paused else self._scheduler.resume)()
        self._on_event(Paused() if paused else Resumed())

    def _write_status(self, status: SchedulerStatus) -> None:
        if status.holder is None:  # the lease was lost meanwhile
            return
        cycle = status.running_cycle
        if cycle is not None and cycle not in self._running_since:
            self._running_since = {cycle: utc_text(self._clock.now(), timespec="seconds")}
        content = {
            **holder_facts(status.holder),
            "state": str(status.state),
            "paused": status.paused,
            "running_cycle": cycle,
            "running_tasks": list(status.running_tasks),
            "running_since": self._running_since.get(cycle) if cycle is not None else None,
            "due": {name: utc_text(at, timespec="seconds") if at else None for name, at in status.due.items()},
            "trouble": self._trouble or status.trouble,
        }
        if content != self._written:
            self._files.write(STATUS, content)
            self._written = content

    def _write_stopped(self) -> None:
        """Write that this compactor has stopped, unless another compactor has written its status meanwhile."""
        with suppress(SiltstoneError):  # the released lease shows the same
            status = self._files.read(STATUS) if self._written else None
            if status is not None and status.get("holder") == self._written["holder"]:
                stopped = {"state": str(SchedulerState.STOPPED), "running_cycle": None}
                self._files.write(STATUS, {**self._written, **stopped})


class LeaseMonitor:
    """Stops a cycle when the compactor stops or the lease is lost."""

    def __init__(self, lease: Lease, stopping: Callable[[], bool], *, clock: Clock) -> None:
        self.lost: Fenced | None = None
        self._lease = lease
        self._is_stopping = stopping
        self._clock = clock
        self._checked_seconds = clock.monotonic_seconds()

    def stopping(self) -> bool:
        """True if the cycle must stop. Checks the lease at most once a second."""
        now = self._clock.monotonic_seconds()
        if self.lost is None and not self._is_stopping() and now - self._checked_seconds >= CHECK_SECONDS:
            self._checked_seconds = now
            try:
                self._lease.check()
            except Fenced as error:
                self.lost = error
            except Exception:  # noqa: BLE001, S110  # it must not end the thread that monitors; every commit is checked anyway
                pass
        return self.lost is not None or self._is_stopping()
