"""Events of the compactor as text for people: one line each."""

from siltstone.cli import render
from siltstone.cli.job_output import job_counts, job_text, recovered_line, result_text, skipped_line
from siltstone.compaction.execution.events import CompactionEvent, CycleBegan, JobBegan, JobEnded
from siltstone.compactor import events


def event_line(event: CompactionEvent) -> str:  # noqa: C901, PLR0911, PLR0912  # one case for each event
    """Return an event as one line.

    >>> from siltstone.compactor.events import LeaseAcquired
    >>> event_line(LeaseAcquired(epoch=7))
    'holds the lease, epoch 7'
    """
    match event:
        case events.Started(pid=pid, lake=lake, role=role):
            return f"compactor of {lake}, process {pid}, role {role}"
        case events.LeaseAcquired(epoch=epoch):
            return f"holds the lease, epoch {epoch}"
        case events.StandingBy(because=because):
            return f"standby: {because}"
        case CycleBegan(plan=plan, jobs=jobs):
            return f"cycle {plan.cycle}: {render.counted(len(jobs), 'job')}, {render.size(plan.cost_bytes)}"
        case JobBegan(job=job):
            return f"{job_text(job.spec)} began"
        case JobEnded(result=result):
            return f"{job_text(result)}: {result_text(result)}"
        case events.CycleEnded(cycle=cycle):
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
        case events.BackgroundError(error=error):
            return f"trouble: {error}"
        case events.Interrupting():
            return "the running job takes too long; it is being ended"
        case events.Stopped(clean=False):
            return "stopped; a job is still running and ends with this process"
        case _:
            return event.name
