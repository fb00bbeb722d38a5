"""Plans a manual request: its jobs run as a cycle, with journal, workers, time limits and splitting.

The plan does not check whether there is work to do. A fold without changes is a job that reports so. Planning changes
nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

from siltstone.compaction.operations.cluster import whole_base
from siltstone.compaction.operations.garbage_collection import checked_retention
from siltstone.compaction.planning.model import JobKind, JobSpec, Plan, total_bytes, total_rows
from siltstone.compaction.planning.table_state import change_entry
from siltstone.config import Settings
from siltstone.dataset.store import Store
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import InvalidRequest, SiltstoneError
from siltstone.model.compaction_request import CompactionRequest, RequestKind

FindStore = Callable[[str], Store]


def request_plan(
    request: CompactionRequest, names: Sequence[str], *, store: FindStore, settings: Settings, cycle: int, trigger: str
) -> Plan:
    """Return the jobs of a request, in the order of the names.

    Raises:
        InvalidRequest: a cycle, a retention that is too short, or columns by which a dataset cannot be clustered.
        NotFound: a dataset to cluster does not exist. For any other operation its job fails (`Lake.submit` checks first).
    """
    jobs = tuple(replace(spec, trigger=trigger) for name in names for spec in _specs(request, name, store, settings))
    return Plan(cycle=cycle, budget_bytes=settings.cycle_bytes, jobs=jobs, left_out=())


def _specs(request: CompactionRequest, name: str, store: FindStore, settings: Settings) -> Iterator[JobSpec]:
    match request.kind:
        case RequestKind.COMPACT:
            yield _fold(name, store, JobKind.PURGE if request.purge else JobKind.FOLD)
        case RequestKind.SQUASH:
            yield JobSpec(kind=JobKind.SQUASH, lane=str(JobKind.SQUASH), dataset=name)
        case RequestKind.CLUSTER:
            yield from whole_base(store(name).current(), by=request.by)
        case RequestKind.VACUUM:
            hours = checked_retention(settings, request.retention_hours)
            yield JobSpec(kind=JobKind.VACUUM, lane=str(JobKind.VACUUM), dataset=name, retention_hours=hours)
        case RequestKind.CYCLE:
            raise InvalidRequest(
                f"A {request.kind} is planned from thresholds, not from a request. Use Lake.run_cycle."
            )


def _fold(name: str, store: FindStore, kind: JobKind) -> JobSpec:
    """Return a fold with the changes that are visible now. The fold reads them again."""
    spec = JobSpec(kind=kind, lane=str(kind), dataset=name)
    with suppress(SiltstoneError, OSError, LogChanged):
        files = tuple(sorted(map(change_entry, store(name).snapshot().unfolded), key=attrgetter("order", "path")))
        return replace(
            spec,
            files=files,
            rows=total_rows(files),
            cost_bytes=total_bytes(files),
            waiting_since_ms=min((file.modified_ms for file in files if file.modified_ms), default=0),
        )
    return spec
