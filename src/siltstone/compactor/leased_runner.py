"""Runs cycles and recovery under the epoch of the lease. The schedule is in `scheduler`.

Every commit of a job carries the epoch of the lease under which the job was planned. A purge raises a dataset's epoch,
so the lease may be below it. The lease holder raises its epoch to that of every dataset that it plans, *before* it
plans. Jobs that were planned before stay fenced out.
"""

from collections.abc import Callable
from typing import Final

from siltstone.clock import Clock
from siltstone.compaction.execution.events import Subscriber
from siltstone.compaction.execution.report import CycleReport
from siltstone.compactor.events import DatasetSkipped, JournalFailed, Recovered
from siltstone.compactor.tasks import TaskContext
from siltstone.coordination.leases import Lease
from siltstone.errors import Fenced
from siltstone.maintenance.service import MaintenanceService
from siltstone.model.compaction_request import Selection

CHECK_SECONDS: Final = 1.0
"""Seconds between two checks of the lease while a cycle runs."""


class LeasedRunner:
    """Runs cycles of one lake under its lease."""

    def __init__(self, maintenance: MaintenanceService, *, continuous: bool, on_event: Subscriber) -> None:
        """Run the cycles of this service. `continuous` is the argument of `MaintenanceService.run_cycle`."""
        self._maintenance = maintenance
        self._continuous = continuous
        self._on_event = on_event

    def run_cycle(self, selection: Selection, context: TaskContext) -> CycleReport:
        """Recover, plan and run one cycle.

        Raises:
            Fenced: the lease was lost. No further job began.
        """
        lease = context.lease
        monitor = LeaseMonitor(lease, context.stopping, clock=self._maintenance.clock)
        names = self._maintenance.names() if selection.names is None else selection.names
        highest = self._maintenance.highest_epoch(names)
        if highest > lease.epoch:
            lease.advance(above=highest - 1)
        report = self._maintenance.run_cycle(
            selection,
            cycle=context.cycle,
            epoch=lease.epoch,
            continuous=self._continuous,
            subscribers=[self._on_event],
            stopping=monitor.stopping,
        )
        if text := report.recovery.summary():
            self._on_event(Recovered(cycle=context.cycle, text=text))
        for dataset, error in report.unreadable.items():
            self._on_event(DatasetSkipped(cycle=context.cycle, dataset=dataset, error=error))
        if report.trouble is not None:
            self._on_event(JournalFailed(cycle=context.cycle, error=report.trouble))
        if monitor.lost is not None:
            raise monitor.lost
        return report

    def recover(self, context: TaskContext) -> CycleReport:
        """Recover without a plan. Return a report without jobs."""
        recovery = self._maintenance.recover(epoch=context.lease.epoch)
        return CycleReport(cycle=context.cycle, results=(), recovery=recovery)


class LeaseMonitor:
    """Stops a cycle when the compactor stops or the lease is lost."""

    def __init__(self, lease: Lease, stopping: Callable[[], bool], *, clock: Clock) -> None:
        """Monitor this lease from now on."""
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
