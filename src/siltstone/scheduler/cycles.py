"""Cycles as data: what is to run, what a run is told, and what came of it."""

import datetime
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from siltstone.coordination.leases import Lease
from siltstone.model.lease import LeaseRow


class Why(StrEnum):
    """Why a cycle runs."""

    SCHEDULE = "schedule"
    TRIGGER = "trigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a work is told when it runs.

    `epoch` is for every commit of this run: it is that of the lease when the run began, and stays so. A work that takes long
    calls `check` between its steps, and looks at `stopping` as often as it can.
    """

    cycle: int
    why: Why
    work: str
    works: tuple[str, ...]
    """The names of all works that are done by this run: those that are due together and have the same function."""
    epoch: int
    lease: Lease
    stopping: Callable[[], bool]

    def check(self) -> None:
        """Do nothing while the lease is ours.

        Raises:
            Fenced: somebody has taken over; stop.
        """
        self.lease.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something that is done by the clock or on request. What it returns is kept in the history, so it is small and plain.

    Works with the same function that are to run in one cycle, one after the other, are one run: they are planned together.
    """

    name: str
    run: Callable[[Run], Any]
    cron: str | None = None
    """When it is due, in UTC; without one it runs only when it is asked for."""


class Outcome(StrEnum):
    """How one work of a cycle ended."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkResult:
    """What came of one work: its value, or the error, or why it did not run."""

    work: str
    outcome: Outcome
    seconds: float = 0.0
    value: Any = None
    error: str | None = None
    error_kind: str | None = None
    error_reason: str | None = None

    @property
    def works(self) -> list[str]:
        """The names of the works that were this one run.

        >>> WorkResult(work="fold, squash", outcome=Outcome.DONE).works
        ['fold', 'squash']
        """
        return self.work.split(", ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle that has ended."""

    number: int
    why: Why
    epoch: int
    started: datetime.datetime
    ended: datetime.datetime
    seconds: float
    results: tuple[WorkResult, ...]

    @property
    def failed(self) -> bool:
        """True if a work failed or was left out."""
        return any(result.outcome is not Outcome.DONE for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data; times as ISO text."""
        found = asdict(self)
        return found | {"started": self.started.isoformat(), "ended": self.ended.isoformat()}


class State(StrEnum):
    """What a scheduler is doing."""

    STANDING_BY = "standing_by"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a scheduler is doing, as data."""

    state: State
    paused: bool
    standing_by_because: str | None
    holder: LeaseRow | None
    running_cycle: int | None
    running_work: str | None
    cycles: int
    due: dict[str, datetime.datetime | None]
    trouble: str | None
    """What went wrong outside of any work: a callback that failed, a lease that could not be renewed."""
