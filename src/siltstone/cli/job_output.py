"""Results of compaction as text for people."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from siltstone.cli import render

if TYPE_CHECKING:
    from siltstone.compaction.planning.model import JobSpec
    from siltstone.model.reports import JobResult


def recovered_line(text: str) -> str:
    """Return what a cycle has recovered before it planned."""
    return f"recovered first: {text}"


def skipped_line(dataset: str, error: str) -> str:
    """Return that a cycle has left out a dataset."""
    return f"{dataset} cannot be read and was left out: {error}"


def job_counts(summary: Mapping[str, Any]) -> str:
    """Return the number of jobs of a cycle, and how many failed or were cancelled.

    >>> job_counts({"jobs": 2, "failed": 0, "cancelled": 1}), job_counts({"jobs": 1, "failed": 1})
    ('2 jobs, 0 failed, 1 cancelled', '1 job, 1 failed')
    """
    cancelled = f", {summary['cancelled']} cancelled" if summary.get("cancelled") else ""
    return f"{render.counted(summary['jobs'], 'job')}, {summary['failed']} failed{cancelled}"


def job_text(job: "JobResult | JobSpec") -> str:
    """Return the lane, the dataset and the period of a job."""
    return " ".join(filter(None, [job.lane, job.dataset, job.period]))


def result_text(result: "JobResult") -> str:
    """Return the result of a job in a few words."""
    parts = [report_text(result.report or {})] if result.report or not result.error else []
    if result.error:
        parts.append(f"{result.outcome}: {result.error}")
    return "; ".join(parts)


def report_text(report: Mapping[str, Any]) -> str:
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
