"""Values of the scheduler: tasks, the context and result of a run, cycles, and the status."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from siltstone.clock import utc_text
from siltstone.coordination.leases import Lease
from siltstone.model.lease import LeaseRow

if TYPE_CHECKING:
    from siltstone.compaction.execution.report import CycleReport

RECOVERY: Final = "recovery"
"""The task that only recovers. Every other task also recovers first."""


class Trigger(StrEnum):
    """Trigger of a cycle."""

    SCHEDULE = "schedule"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """Context of a run. A long task calls `lease.check` between its steps and polls `stopping`."""

    cycle: int
    trigger: Trigger
    tasks: tuple[str, ...]
    """Names of all tasks of this run. They are due together and have the same function."""
    lease: Lease
    stopping: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTask:
    """A function with a schedule. Due neighbours with the same function form one run and are planned together."""

    name: str
    run: "Callable[[TaskContext], CycleReport | None]"
    cron: str | None = None
    """Cron expression in UTC; None means that the task runs only when it is triggered."""


class Outcome(StrEnum):
    """Outcome of one run of a cycle."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Result of one run: its report, its error, or the reason why it did not run."""

    tasks: tuple[str, ...]
    outcome: Outcome
    seconds: float = 0.0
    report: "CycleReport | None" = None
    error: str | None = None
    error_kind: str | None = None
    error_reason: str | None = None

    @property
    def jobs(self) -> int:
        """Number of jobs that ran."""
        return len(self.report) if self.report is not None else 0

    @property
    def cancelled(self) -> int:
        """Number of jobs that were cancelled because the compactor stopped."""
        return sum(1 for job in self.report or () if job.outcome == "cancelled")

    @property
    def failed(self) -> int:
        """Number of failures: the run itself, its failed jobs without cancelled ones, and unrecovered records."""
        if self.report is None:
            return int(self.error is not None)
        unrecovered = len(self.report.recovery.problems) if RECOVERY in self.tasks else 0
        return int(self.error is not None) + len(self.report.failed) - self.cancelled + unrecovered

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        report = self.report.to_dict() if self.report is not None else None
        return data | {"tasks": list(self.tasks), "outcome": str(self.outcome), "report": report}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerCycle:
    """A cycle of the scheduler that has ended."""

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
            "started": utc_text(self.started, timespec="seconds"),
            "seconds": round(self.seconds, 3),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the cycle as plain data, with times as ISO text."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        times = {
            name: utc_text(at, timespec="microseconds")
            for name, at in (("started", self.started), ("ended", self.ended))
        }
        return data | times | {"trigger": str(self.trigger), "results": [result.to_dict() for result in self.results]}


class SchedulerState(StrEnum):
    """State of a scheduler."""

    STANDING_BY = "standing_by"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    """Status of a scheduler."""

    state: SchedulerState
    paused: bool
    standing_by_because: str | None
    holder: LeaseRow | None
    running_cycle: int | None
    running_tasks: tuple[str, ...]
    cycles: int
    due: dict[str, datetime.datetime | None]
    trouble: str | None
    """Text of the last error outside any task: a subscriber that failed, or a lease that could not be renewed."""
