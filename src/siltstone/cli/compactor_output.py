"""Events and results of compaction as text for people: one line each."""

from typing import TYPE_CHECKING, Any

from siltstone.cli import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from siltstone.compaction.execution.events import CompactionEvent
    from siltstone.model.reports import JobResult


def event_line(event: "CompactionEvent") -> str:  # noqa: C901, PLR0911, PLR0912  # one case for each event
    """Return an event as one line.

    >>> from siltstone.compactor.events import LeaseAcquired
    >>> event_line(LeaseAcquired(epoch=7))
    'holds the lease, epoch 7'
    """
    from siltstone.compaction.execution.events import CycleBegan, JobBegan, JobEnded
    from siltstone.compactor import events

    match event:
        case events.Started(pid=pid, lake=lake, role=role):
            return f"compactor of {lake}, process {pid}, role {role}"
        case events.LeaseAcquired(epoch=epoch):
            return f"holds the lease, epoch {epoch}"
        case events.StandingBy(because=because):
            return f"stands by: {because}"
        case CycleBegan(plan=plan, jobs=jobs):
            return f"cycle {plan.cycle}: {render.counted(len(jobs), 'job')}, {render.size(plan.cost_bytes)}"
        case JobBegan(job=job):
            return f"{_job(job.spec.lane, job.spec.dataset, job.spec.period)} began"
        case JobEnded(result=result):
            return f"{_job(result.lane, result.dataset, result.period)}: {result_text(result)}"
        case events.CycleCompleted(cycle=cycle):
            summary = cycle.summary()
            errors = "".join(f"; {error}" for error in summary["errors"])
            return f"cycle {cycle.number} ended: {job_counts(summary)}, {render.seconds(summary['seconds'])}{errors}"
        case events.Recovered(text=text):
            return recovered_line(text)
        case events.RecoveryFailed(dataset=dataset, error=error):
            return f"{dataset} could not be recovered: {error}"
        case events.DatasetSkipped(dataset=dataset, error=error):
            return skipped_line(dataset, error)
        case events.JournalFailed(error=error):
            return error
        case events.Trouble(error=error):
            return f"trouble: {error}"
        case events.Interrupting():
            return "the running job takes too long; it is being ended"
        case events.Stopped(clean=False):
            return "stopped; a job is still running and ends with this process"
        case _:
            return event.name


def recovered_line(text: str) -> str:
    """Return what a cycle has recovered before it planned."""
    return f"recovered first: {text}"


def skipped_line(dataset: str, error: str) -> str:
    """Return that a cycle has left out a dataset."""
    return f"{dataset} cannot be read and was left out: {error}"


def job_counts(summary: "Mapping[str, Any]") -> str:
    """Return the number of jobs of a cycle, and how many failed or were cancelled.

    >>> job_counts({"jobs": 2, "failed": 0, "cancelled": 1}), job_counts({"jobs": 1, "failed": 1})
    ('2 jobs, 0 failed, 1 cancelled', '1 job, 1 failed')
    """
    cancelled = f", {summary['cancelled']} cancelled" if summary.get("cancelled") else ""
    return f"{render.counted(summary['jobs'], 'job')}, {summary['failed']} failed{cancelled}"


def result_text(result: "JobResult") -> str:
    """Return the result of a job in a few words."""
    parts = [report_text(result.report or {})] if result.report or not result.error else []
    if result.error:
        parts.append(f"{result.outcome}: {result.error}")
    return "; ".join(parts)


def report_text(report: "Mapping[str, Any]") -> str:
    """Return the counts of a job's report."""
    parts = []
    if report.get("batches_folded"):
        parts.append(f"{render.counted(report['batches_folded'], 'batch')} folded")
    if "files_added" in report:
        parts.append(f"{render.counted(report['files_removed'], 'file')} became {report['files_added']}")
    if "bytes_before" in report:
        parts.append(f"{render.size(report['bytes_before'])} → {render.size(report['bytes_after'])}")
    deleted = report.get("files_deleted") or (len(report["files"]) if "retention_hours" in report else 0)
    if deleted:
        parts.append(f"{render.counted(deleted, 'file')} deleted")
    if "seconds" in report:
        parts.append(render.seconds(report["seconds"]))
    return ", ".join(parts) or "done"


def _job(lane: str, dataset: str, period: str) -> str:
    return " ".join(filter(None, [lane, dataset, period]))
