"""What somebody asked for, as the jobs of a plan: it goes the way of every cycle, with its journal, workers, limits and halves.

Whether there is something to do is not asked here: a fold that finds nothing is a job that says so. Nothing is changed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

from siltstone.compaction.operations.cluster import whole_base
from siltstone.compaction.operations.garbage_collection import checked_retention
from siltstone.compaction.planning.model import JobKind, JobSpec, Plan
from siltstone.compaction.planning.table_state import change_entry
from siltstone.config import Settings
from siltstone.dataset.store import Store
from siltstone.delta.table_reader import LogMoved
from siltstone.errors import InvalidRequest, SiltstoneError
from siltstone.model.compaction_request import Ask, Wish

FindStore = Callable[[str], Store]


def asked_plan(
    wish: Wish, names: Sequence[str], *, store: FindStore, settings: Settings, cycle: int, trigger: str
) -> Plan:
    """Return the jobs of a wish, in the order of the names.

    Raises:
        InvalidRequest: what is asked for is no work on datasets, a retention is too short, or a dataset cannot be clustered so.
        NotFound: a dataset that is to be clustered is not there; for any other work its own job says so (`Lake.ask` looks first).
    """
    jobs = tuple(replace(found, trigger=trigger) for name in names for found in _of(wish, name, store, settings))
    return Plan(cycle=cycle, budget_bytes=settings.cycle_bytes, jobs=jobs, left_out=())


def _of(wish: Wish, name: str, store: FindStore, settings: Settings) -> Iterator[JobSpec]:
    match wish.ask:
        case Ask.COMPACT:
            yield _fold(name, store, JobKind.PURGE if wish.purge else JobKind.FOLD)
        case Ask.SQUASH:
            yield JobSpec(kind=JobKind.SQUASH, lane=str(JobKind.SQUASH), dataset=name)
        case Ask.CLUSTER:
            yield from whole_base(store(name), by=wish.by)
        case Ask.VACUUM:
            hours = checked_retention(settings, wish.retention_hours)
            yield JobSpec(kind=JobKind.VACUUM, lane=str(JobKind.VACUUM), dataset=name, retention_hours=hours)
        case Ask.CYCLE | Ask.STOP:
            raise InvalidRequest(f"{wish.ask} is no work on datasets.")


def _fold(name: str, store: FindStore, kind: JobKind) -> JobSpec:
    """Return a fold with the changes that it is to take, as far as they can be seen now; the fold itself looks again."""
    found = JobSpec(kind=kind, lane=str(kind), dataset=name)
    with suppress(SiltstoneError, OSError, LogMoved):
        files = tuple(sorted(map(change_entry, store(name).snapshot().unfolded), key=attrgetter("order", "path")))
        return replace(
            found,
            files=files,
            rows=sum(file.rows for file in files),
            cost_bytes=sum(file.size_bytes for file in files),
            waiting_since_ms=min((file.modified_ms for file in files if file.modified_ms), default=0),
        )
    return found
