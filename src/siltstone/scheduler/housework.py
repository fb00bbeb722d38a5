"""What is done under the lease: cycles and recovery. Nothing here decides when.

Epochs. Every commit of a job carries the epoch of the lease under which it was planned. A purge raises a dataset's epoch, so
that the lease's can be below it: whoever holds the lease brings its own up to that of every dataset it is going to work on,
*before* it plans. What was planned before stays fenced out. A purge takes an epoch above the lease's, so that no job that was
planned under the lease before it can commit after it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.coordination.leases import Lease, Leases
from siltstone.coordination.state_files import Notes
from siltstone.errors import Fenced

if TYPE_CHECKING:
    from siltstone.compaction.execution.cycle_runner import Watcher
    from siltstone.compaction.execution.job import Job
    from siltstone.compaction.execution.report import CycleReport
    from siltstone.compaction.journal.recovery import RecoveryReport
    from siltstone.compaction.planning.model import Plan
    from siltstone.model.reports import JobResult

LOOK_SECONDS: Final = 1.0
"""How often a running cycle looks whether the lease is still its own."""

Told = dict[str, Any]
Tell = Callable[[Told], None]
Crons = Mapping[str, frozenset[str | None]]


class Lakework(Protocol):
    """What a lake can do for its compactor; `Lake` does."""

    def names(self) -> list[str]:
        """Return the names of all datasets."""
        ...

    def highest_epoch(self, names: Sequence[str]) -> int:
        """Return the highest epoch that has committed to any of these datasets; one that cannot be read is left out."""
        ...

    def run_cycle(
        self,
        names: Sequence[str] | None = None,
        *,
        only: Sequence[str] | None = None,
        crons: "Crons | None" = None,
        force: bool = False,
        cycle: int | None = None,
        epoch: int | None = None,
        watchers: "Sequence[Watcher]" = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> "CycleReport":
        """Plan and do one cycle."""
        ...

    def recover(self, *, epoch: int | None = None) -> "RecoveryReport":
        """Put in order what crashed processes left; return what was done, and what cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """Where the compactor of a lake is met: the leases, what others ask, what others read."""

    leases: Leases
    notes: Notes
    settings: Settings
    clock: Clock
    next_cycle: Callable[[], int]
    """Reserves the number of the next cycle, higher than any before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One time of working under the lease."""

    number: int
    lease: Lease
    stopping: Callable[[], bool]
    tell: Tell


class Housework:
    """Does what is due or asked for in one lake."""

    def __init__(self, lake: Lakework, *, clock: Clock) -> None:
        """Take the lake."""
        self._lake = lake
        self._clock = clock

    def cycle(
        self,
        names: Sequence[str] | None,
        turn: Turn,
        *,
        only: Sequence[str] | None = None,
        crons: Crons | None = None,
        force: bool = False,
    ) -> list[Told]:
        """Plan and do one cycle under the lease; `crons` says by which crons a tier is due, if not all are meant.

        Raises:
            Fenced: the lease was lost; no further job was begun.
        """
        epoch = self._epoch(names, turn)
        watch = LeaseWatch(turn.lease, turn.stopping, clock=self._clock)
        done = self._lake.run_cycle(
            names,
            only=only,
            crons=crons,
            force=force,
            cycle=turn.number,
            epoch=epoch,
            watchers=[Telling(turn.tell, turn.number)],
            stopping=watch.stopping,
        )
        self._note(done, turn)
        if watch.lost is not None:
            raise watch.lost
        return [result.to_dict() for result in done]

    def _note(self, done: "CycleReport", turn: Turn) -> None:
        """Tell what goes beyond single jobs: what was recovered first, what was left out, what is missing in the journal."""
        if text := done.recovery.told():
            turn.tell({"event": "recovered", "cycle": turn.number, "text": text})
        for dataset, why in done.unreadable.items():
            turn.tell({"event": "left_out", "cycle": turn.number, "dataset": dataset, "error": why})
        if done.trouble is not None:
            turn.tell({"event": "journal_trouble", "cycle": turn.number, "error": done.trouble})

    def recover(self, turn: Turn) -> list[Told]:
        """Finish and sweep what crashed processes left; return what went wrong, for each dataset where something did."""
        found = self._lake.recover(epoch=turn.lease.epoch)
        return [{"dataset": one.dataset or one.what, "error": one.why} for one in found.quarantined]

    def _epoch(self, names: Sequence[str] | None, turn: Turn) -> int:
        """Raise the lease's epoch above that of the datasets, if it is below it, and return it."""
        highest = self._lake.highest_epoch(self._lake.names() if names is None else names)
        if highest > turn.lease.epoch:
            turn.lease.advance(above=highest - 1)
        return turn.lease.epoch


class LeaseWatch:
    """Tells a cycle to stop: because somebody said so, or because the lease is not ours any more."""

    def __init__(self, lease: Lease, stopping: Callable[[], bool], *, clock: Clock) -> None:
        """Look at the lease from now on."""
        self.lost: Fenced | None = None
        self._lease = lease
        self._told = stopping
        self._clock = clock
        self._looked_seconds = clock.monotonic_seconds()

    def stopping(self) -> bool:
        """Tell whether to stop; looks at the lease once a second at most."""
        if self.lost is None and not self._told():
            now = self._clock.monotonic_seconds()
            if now - self._looked_seconds >= LOOK_SECONDS:
                self._looked_seconds = now
                self._look()
        return self.lost is not None or self._told()

    def _look(self) -> None:
        try:
            self._lease.check()
        except Fenced as error:
            self.lost = error
        except Exception:  # noqa: BLE001  # whatever the table says, it must not end the thread that watches
            return  # cannot be read just now: commits are checked whatever the lease says


class Telling:
    """Tells what a cycle does, as it happens."""

    def __init__(self, tell: Tell, number: int) -> None:
        """Take whom to tell."""
        self._tell = tell
        self._number = number

    def cycle_began(self, plan: "Plan", jobs: "Sequence[Job]") -> None:
        """Say which jobs are to be done; nothing, if there are none."""
        if jobs:
            self._tell(
                {"event": "cycle_began", "cycle": self._number, "jobs": len(jobs), "cost_bytes": plan.cost_bytes}
            )

    def job_began(self, job: "Job") -> None:
        """Say that a job begins."""
        self._tell({"event": "job_began", "cycle": self._number, **_named(job)})

    def job_ended(self, job: "Job", result: "JobResult") -> None:  # noqa: ARG002  # as every watcher is called
        """Say what came of it."""
        self._tell({"event": "job_ended", "cycle": self._number, **result.to_dict()})

    def cycle_ended(self, plan: "Plan", results: "Sequence[JobResult]") -> None:
        """The one who runs the cycle says that."""


def _named(job: "Job") -> Told:
    planned = job.planned
    return {
        "job": job.id,
        "kind": str(planned.kind),
        "lane": planned.lane,
        "dataset": planned.dataset,
        "period": planned.period,
    }
