"""One cycle of compaction: the jobs of a plan; one that fails does not stop the others. Watchers are told of each step."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from siltstone.compaction.candidates import Plan
from siltstone.compaction.jobs import Job, Runner
from siltstone.errors import SiltstoneError
from siltstone.model.results import JobResult

if TYPE_CHECKING:
    from siltstone.compaction.jobs import Report


class Watcher(Protocol):
    """Is told what a cycle does, as it happens: the journal, a progress bar, a callback."""

    def cycle_began(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """The jobs of a plan are about to be done."""

    def job_began(self, job: Job) -> None:
        """A job is about to be done."""

    def job_ended(self, job: Job, result: JobResult) -> None:
        """A job was done, or failed."""

    def cycle_ended(self, plan: Plan, results: Sequence[JobResult]) -> None:
        """All jobs have ended, or were left when the cycle was told to stop."""


def run_cycle(
    plan: Plan,
    runner: Runner,
    *,
    epoch: int | None = None,
    watchers: Sequence[Watcher] = (),
    stopping: Callable[[], bool] = lambda: False,
) -> list[JobResult]:
    """Do the jobs of a plan in its order, and say what came of each; once `stopping` says so, no further one is begun."""
    jobs = [Job.of(planned, cycle=plan.cycle, epoch=epoch) for planned in plan.jobs]
    for watcher in watchers:
        watcher.cycle_began(plan, jobs)
    results = []
    for job in jobs:
        if stopping():
            break
        results.append(_watched(job, runner, watchers))
    for watcher in watchers:
        watcher.cycle_ended(plan, results)
    return results


def _watched(job: Job, runner: Runner, watchers: Sequence[Watcher]) -> JobResult:
    for watcher in watchers:
        watcher.job_began(job)
    result = _result(job, runner)
    for watcher in watchers:
        watcher.job_ended(job, result)
    return result


def _result(job: Job, runner: Runner) -> JobResult:
    report: Report | None = None
    error: str | None = None
    error_kind: str | None = None
    try:
        report = runner.run(job)
    except SiltstoneError as failure:
        error, error_kind = str(failure), failure.kind
    return JobResult(
        job=job.id,
        kind=str(job.planned.kind),
        lane=job.planned.lane,
        dataset=job.planned.dataset,
        period=job.planned.period,
        trigger=job.planned.trigger,
        report=report.to_dict() if report is not None else None,
        error=error,
        error_kind=error_kind,
    )
