"""One cycle of compaction: the jobs of a plan, one after the other; one that fails does not stop the others."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from siltstone.compaction.candidates import Candidate, JobKind, Plan
from siltstone.compaction.compactor import Compactor
from siltstone.dataset.store import Store
from siltstone.errors import InvalidRequest, SiltstoneError
from siltstone.model.results import JobResult

if TYPE_CHECKING:
    from siltstone.model.results import CompactReport, RollUpReport, SquashReport, VacuumReport

    Report = CompactReport | RollUpReport | SquashReport | VacuumReport


def run_cycle(plan: Plan, compactor: Compactor, store: Callable[[str], Store]) -> list[JobResult]:
    """Do the jobs of a plan in its order, and say what came of each."""
    return [_result(job, compactor, store) for job in plan.jobs]


def _result(job: Candidate, compactor: Compactor, store: Callable[[str], Store]) -> JobResult:
    report: Report | None = None
    error: str | None = None
    try:
        report = _run(job, compactor, store(job.dataset))
    except SiltstoneError as failure:
        error = str(failure)
    return JobResult(
        kind=str(job.kind),
        lane=job.lane,
        dataset=job.dataset,
        period=job.period,
        trigger=job.trigger,
        report=report.to_dict() if report is not None else None,
        error=error,
    )


def _run(job: Candidate, compactor: Compactor, store: Store) -> "Report":
    match job.kind:
        case JobKind.FOLD:
            return compactor.compact(store, purge=False)
        case JobKind.SQUASH:
            return compactor.squash(store)
        case JobKind.ROLL_UP:
            return compactor.roll_up(store, job)
        case JobKind.VACUUM:
            return compactor.vacuum(store, retention_hours=store.settings.vacuum_retention_hours, dry_run=False)
        case _:
            raise InvalidRequest(f"Dataset {job.dataset}: {job.kind} is not there yet.")
