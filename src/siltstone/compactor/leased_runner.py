"""Runs cycles and recovery under the epoch of the lease. The schedule is in `scheduler`.

Every commit of a job carries the epoch of the lease under which the job was planned. A purge raises a dataset's epoch,
so the lease may be below it. The lease holder raises its epoch to that of every dataset that it plans, *before* it
plans. Jobs that were planned before stay fenced out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from siltstone.clock import Clock
from siltstone.compactor.events import DatasetSkipped, JournalFailed, Recovered
from siltstone.coordination.leases import Lease
from siltstone.errors import Fenced
from siltstone.maintenance.service import MaintenanceService, Selection

if TYPE_CHECKING:
    from siltstone.compaction.execution.events import Subscriber
    from siltstone.compaction.execution.report import CycleReport

CHECK_SECONDS: Final = 1.0
"""Seconds between two checks of the lease while a cycle runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleContext:
    """Number of a cycle, the lease under which it runs, and whether it must stop."""

    number: int
    lease: Lease
    stopping: Callable[[], bool]


class LeasedRunner:
    """Runs cycles of one lake under its lease."""

    def __init__(self, maintenance: MaintenanceService, *, continuous: bool, on_event: "Subscriber") -> None:
        """Run the cycles of this service. `continuous` is the argument of `MaintenanceService.run_cycle`."""
        self._maintenance = maintenance
        self._continuous = continuous
        self._on_event = on_event

    def run_cycle(self, selection: Selection, context: CycleContext) -> "CycleReport":
        """Recover, plan and run one cycle.

        Raises:
            Fenced: the lease was lost. No further job began.
        """
        monitor = LeaseMonitor(context.lease, context.stopping, clock=self._maintenance.clock)
        report = self._maintenance.run_cycle(
            selection,
            cycle=context.number,
            epoch=self._raised_epoch(selection.names, context.lease),
            continuous=self._continuous,
            subscribers=[self._on_event],
            stopping=monitor.stopping,
        )
        if text := report.recovery.summary():
            self._on_event(Recovered(cycle=context.number, text=text))
        for dataset, why in report.unreadable.items():
            self._on_event(DatasetSkipped(cycle=context.number, dataset=dataset, error=why))
        if report.trouble is not None:
            self._on_event(JournalFailed(cycle=context.number, error=report.trouble))
        if monitor.lost is not None:
            raise monitor.lost
        return report

    def recover(self, context: CycleContext) -> "CycleReport":
        """Recover without a plan. Return a report without jobs."""
        from siltstone.compaction.execution.report import CycleReport

        recovery = self._maintenance.recover(epoch=context.lease.epoch)
        return CycleReport(cycle=context.number, results=(), recovery=recovery)

    def _raised_epoch(self, names: Sequence[str] | None, lease: Lease) -> int:
        """Raise the epoch of the lease to that of the datasets, if it is lower. Return the epoch."""
        highest = self._maintenance.highest_epoch(self._maintenance.names() if names is None else names)
        if highest > lease.epoch:
            lease.advance(above=highest - 1)
        return lease.epoch


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
        """Return true if the cycle must stop. Checks the lease at most once a second."""
        if self.lost is None and not self._is_stopping():
            now = self._clock.monotonic_seconds()
            if now - self._checked_seconds >= CHECK_SECONDS:
                self._checked_seconds = now
                self._check()
        return self.lost is not None or self._is_stopping()

    def _check(self) -> None:
        try:
            self._lease.check()
        except Fenced as error:
            self.lost = error
        except Exception:  # noqa: BLE001  # an error of the lease table must not end the thread that monitors
            return  # not readable now: every commit is checked anyway
