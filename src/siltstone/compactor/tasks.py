"""Values of the scheduler: tasks, the context and result of a run, cycles, and the status."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from siltstone.coordination.leases import Lease
from siltstone.model.lease import LeaseRow

if TYPE_CHECKING:
    from siltstone.compaction.execution.report import CycleReport

RECOVERY: Final = "recovery"
"""The task that only recovers. Every other task recovers first, too."""


class Trigger(StrEnum):
    """Why a cycle runs."""

    SCHEDULE = "schedule"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What a task gets when it runs.

    `epoch` is that of the lease when the run began; every commit of the run carries it. A long task calls `check` between its
    steps and polls `stopping`.
    """

    cycle: int
    trigger: Trigger
    tasks: tuple[str, ...]
    """All tasks of this run: those that are due together and have the same function."""
    epoch: int
    lease: Lease
    stopping: Callable[[], bool]

    def check(self) -> None:
        """Check that this process still holds the lease.

        Raises:
            Fenced: another process has taken the lease.
        """
        self.lease.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTask:
    """A function with a schedule.

    Neighbouring tasks with the same function that are due together are one run, so that they are planned together.
    """

    name: str
    run: "Callable[[TaskContext], CycleReport | None]"
    cron: str | None = None
    """When it is due, in UTC; None means only when it is triggered."""


class Outcome(StrEnum):
    """How one run of a cycle ended."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of one run: its report, or the error, or why it did not run."""

    tasks: tuple[str, ...]
    outcome: Outcome
    seconds: float = 0.0
    report: "CycleReport | None" = None
    error: str | None = None
    error_kind: str | None = None
    error_reason: str | None = None

    @property
    def jobs(self) -> int:
        """The number of jobs that ran."""
        return len(self.report) if self.report is not None else 0

    @property
    def cancelled(self) -> int:
        """The number of jobs that were cancelled because the compactor stopped."""
        return sum(1 for job in self.report or () if job.outcome == "cancelled")

    @property
    def failed(self) -> int:
        """The number of failures: the run itself, its jobs without the cancelled ones, and records it could not recover."""
        if self.report is None:
            return int(self.error is not None)
        unrecovered = len(self.report.recovery.problems) if RECOVERY in self.tasks else 0
        return int(self.error is not None) + len(self.report.failed) - self.cancelled + unrecovered

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        report = self.report.to_dict() if self.report is not None else None
        return {
            "tasks": list(self.tasks),
            "outcome": str(self.outcome),
            "seconds": self.seconds,
            "report": report,
            "error": self.error,
            "error_kind": self.error_kind,
            "error_reason": self.error_reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle of the scheduler that has ended."""

    number: int
    trigger: Trigger
    epoch: int
    started: datetime.datetime
    ended: datetime.datetime
    seconds: float
    results: tuple[TaskResult, ...]

    @property
    def failed(self) -> bool:
        """True if a run failed or was skipped."""
        return any(result.outcome is not Outcome.DONE for result in self.results)

    def summary(self) -> dict[str, Any]:
        """Return the counts of the cycle as plain data."""
        return {
            "cycle": self.number,
            "trigger": str(self.trigger),
            "tasks": [name for result in self.results for name in result.tasks],
            "jobs": sum(result.jobs for result in self.results),
            "failed": sum(result.failed for result in self.results),
            "cancelled": sum(result.cancelled for result in self.results),
            "errors": [result.error for result in self.results if result.error],
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 3),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data; times as ISO text."""
        return {
            "number": self.number,
            "trigger": str(self.trigger),
            "epoch": self.epoch,
            "started": self.started.isoformat(),
            "ended": self.ended.isoformat(),
            "seconds": self.seconds,
            "results": [result.to_dict() for result in self.results],
        }


class State(StrEnum):
    """What a scheduler is doing."""

    STANDING_BY = "standing_by"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a scheduler."""

    state: State
    paused: bool
    standing_by_because: str | None
    holder: LeaseRow | None
    running_cycle: int | None
    running_tasks: tuple[str, ...]
    cycles: int
    due: dict[str, datetime.datetime | None]
    trouble: str | None
    """The last error outside of any task: a subscriber that failed, a lease that could not be renewed."""
