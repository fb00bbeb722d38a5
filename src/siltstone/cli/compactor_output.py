"""What a compactor tells, as people read it: one line for each event."""

from typing import Any, Final

from siltstone.cli import render

_LINES: Final = {
    "started": "compactor of {lake}, process {pid}, role {role}",
    "holding": "holds the lease, epoch {epoch}",
    "standing_by": "stands by: {because}",
    "recovery_failed": "{dataset} could not be recovered: {error}",
    "recovered": "recovered first: {text}",
    "journal_trouble": "{error}",
    "trouble": "trouble: {error}",
    "interrupting": "the running job takes too long; it is being ended",
}


def told_line(told: dict[str, Any]) -> str:
    """Return an event as people read it.

    >>> told_line({"event": "holding", "epoch": 7})
    'holds the lease, epoch 7'
    """
    match told["event"]:
        case "cycle_began":
            return f"cycle {told['cycle']}: {render.counted(told['jobs'], 'job')}, {render.size(told['cost_bytes'])}"
        case "job_began":
            return f"{_job(told)} began"
        case "job_ended":
            return f"{_job(told)}: {told_report(told)}"
        case "cycle_ended":
            errors = "".join(f"; {error}" for error in told["errors"])
            return f"cycle {told['cycle']} ended: {told_jobs(told)}, {render.seconds(told['seconds'])}{errors}"
        case "left_out":
            return left_out_line(told["dataset"], told["error"])
        case "stopped":
            return "stopped" if told["clean"] else "stopped; a job is still running and ends with this process"
        case other:
            return _LINES.get(other, str(other)).format_map(told)


def left_out_line(dataset: str, error: str) -> str:
    """Return that a cycle has left out a dataset."""
    return f"{dataset} cannot be read and was left out: {error}"


def told_jobs(told: dict[str, Any]) -> str:
    """Return how many jobs a cycle had, and how many of them did not come to their end.

    >>> told_jobs({"jobs": 2, "failed": 0, "cancelled": 1}), told_jobs({"jobs": 1, "failed": 1})
    ('2 jobs, 0 failed, 1 cancelled', '1 job, 1 failed')
    """
    cancelled = f", {told['cancelled']} cancelled" if told.get("cancelled") else ""
    return f"{render.counted(told['jobs'], 'job')}, {told['failed']} failed{cancelled}"


def told_report(told: dict[str, Any]) -> str:
    """Return what came of a job, in a few words."""
    report, error = told.get("report") or {}, told.get("error")
    parts = [_told_counts(report)] if report or not error else []
    if error:
        parts.append(f"{told.get('outcome') or 'failed'}: {error}")
    return "; ".join(parts)


def _told_counts(report: dict[str, Any]) -> str:
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


def _job(told: dict[str, Any]) -> str:
    return " ".join(filter(None, [told["lane"], told["dataset"], told.get("period", "")]))
