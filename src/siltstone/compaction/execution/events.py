"""Events of a compaction cycle, in the order in which they happen.

The thread that runs a cycle passes each event to every subscriber, one after the other. The journal is the first subscriber.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from siltstone.compaction.execution.job import Job
from siltstone.compaction.planning.model import Plan
from siltstone.model.reports import JobResult

if TYPE_CHECKING:
    from siltstone.compaction.execution.report import CycleReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionEvent:
    """Base of all events. `name` identifies the kind of an event in JSON."""

    name: ClassVar[str] = "event"

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return {"event": self.name, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleBegan(CompactionEvent):
    """The jobs of a plan are about to run; there may be none."""

    name = "cycle_began"
    plan: Plan
    jobs: tuple[Job, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the number of jobs and their cost."""
        return {
            "event": self.name,
            "cycle": self.plan.cycle,
            "jobs": len(self.jobs),
            "cost_bytes": self.plan.cost_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBegan(CompactionEvent):
    """A job is about to run."""

    name = "job_began"
    job: Job

    def to_dict(self) -> dict[str, Any]:
        """Return the identity of the job, without its files."""
        spec = self.job.spec
        return {
            "event": self.name,
            "cycle": self.job.cycle,
            "job": self.job.id,
            "kind": str(spec.kind),
            "lane": spec.lane,
            "dataset": spec.dataset,
            "period": spec.period,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(CompactionEvent):
    """A job has completed, failed or been cancelled."""

    name = "job_ended"
    job: Job
    result: JobResult

    def to_dict(self) -> dict[str, Any]:
        """Return the result of the job."""
        return {"event": self.name, "cycle": self.job.cycle, **self.result.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsEnded(CompactionEvent):
    """All jobs have ended, or were left when the cycle was stopped."""

    name = "jobs_ended"
    plan: Plan
    results: tuple[JobResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the number of jobs that ran."""
        return {"event": self.name, "cycle": self.plan.cycle, "jobs": len(self.results)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReported(CompactionEvent):
    """A cycle is over and in the journal; its report is complete."""

    name = "cycle_reported"
    report: "CycleReport"

    def to_dict(self) -> dict[str, Any]:
        """Return the report."""
        return {"event": self.name, **self.report.to_dict()}


Subscriber = Callable[[CompactionEvent], object]
