"""A job: one planned piece of work with a name, and whoever can do it.

A job's name is in the entry that it commits (`model.columns.JOB`), so that anybody can tell later whether it was done: whoever
lost sight of the one that did it looks there before it is tried again.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from siltstone.compaction.planning.model import (
    OPEN_COST_BYTES,
    FileEntry,
    JobKind,
    JobSpec,
    files_needed,
    total_bytes,
    total_rows,
)
from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    from siltstone.compaction.operations.dataset_maintenance import Compactor
    from siltstone.dataset.store import Store
    from siltstone.model.reports import CompactReport, LandedReport, RollUpReport, SquashReport, VacuumReport

    Report = CompactReport | LandedReport | RollUpReport | SquashReport | VacuumReport

ON_GIVEN_FILES: Final = frozenset({JobKind.ROLL_UP, JobKind.CLUSTER})
"""Work over a list of files that may as well be done over two lists, in any order and side by side."""
DIVISIBLE: Final = ON_GIVEN_FILES | {JobKind.FOLD}
"""Work that can be done in parts. Those of a fold come one after the other: each takes the changes up to a sequence."""
ON_SPARK: Final = frozenset({JobKind.FOLD, JobKind.ROLL_UP, JobKind.CLUSTER, JobKind.PURGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One planned piece of work.

    `epoch` is that of the lease under which it was planned: its commit carries it, and is refused once a higher one has
    committed. None stands for the dataset's own.
    """

    id: str
    cycle: int
    spec: JobSpec
    epoch: int | None = None

    @classmethod
    def of(cls, spec: JobSpec, *, cycle: int, epoch: int | None) -> "Job":
        """Give a planned piece of work a name that no other job has."""
        return cls(id=f"{cycle}-{secrets.token_hex(6)}", cycle=cycle, spec=spec, epoch=epoch)

    def part(self, number: int, files: Sequence[FileEntry]) -> "Job":
        """Return the same work over some of its files, with a name below its own."""
        return replace(self, id=f"{self.id}.{number}", spec=narrowed(self.spec, files))

    @property
    def until(self) -> int | None:
        """The sequence up to which a part of a fold takes changes; None for a whole one, which takes what it finds."""
        is_part = "." in self.id and self.spec.kind is JobKind.FOLD
        return max((file.order for file in self.spec.files), default=0) if is_part else None

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain data, with everything that `from_dict` needs."""
        return {"id": self.id, "cycle": self.cycle, "epoch": self.epoch, "spec": asdict(self.spec)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Job":
        """Return the job that became this data."""
        spec = dict(found["spec"])
        files = tuple(_entry(values) for values in spec.pop("files"))
        kind, partition = JobKind(spec.pop("kind")), _partition(spec.pop("partition"))
        by = tuple(spec.pop("by"))
        candidate = JobSpec(kind=kind, partition=partition, files=files, by=by, **spec)
        return cls(id=found["id"], cycle=found["cycle"], epoch=found["epoch"], spec=candidate)


def _entry(values: Sequence[Any]) -> FileEntry:
    entry = FileEntry(*values)
    return entry._replace(partition=_partition(entry.partition))


def _partition(values: Sequence[Sequence[Any]]) -> tuple[tuple[str, str | None], ...]:
    return tuple((name, value) for name, value in values)


def narrowed(spec: JobSpec, files: Sequence[FileEntry]) -> JobSpec:
    """Return the same work over some of its files, with the numbers that these have."""
    size = total_bytes(files)
    after = files_needed(size, spec.target_bytes) if spec.target_bytes else 1
    return replace(
        spec,
        files=tuple(files),
        files_after=after,
        rows=total_rows(files),
        cost_bytes=size,
        saved_bytes=max(0, len(files) - after) * OPEN_COST_BYTES,
    )


def exclude_each_other(one: JobSpec, other: JobSpec) -> bool:
    """Tell whether two jobs must not run side by side: one of them would be refused, or wait for the other.

    Work over given files goes beside work over other files of the same dataset; a fold, a squash or a vacuum goes alone.
    """
    if one.dataset != other.dataset:
        return False
    if one.kind not in ON_GIVEN_FILES or other.kind not in ON_GIVEN_FILES:
        return True
    return not {file.path for file in one.files}.isdisjoint(file.path for file in other.files)


class Runner(Protocol):
    """Does jobs: in this process, or in one of its own."""

    def run(self, job: Job) -> "Report":
        """Do one job.

        Raises:
            SiltstoneError: it could not be done; nothing was changed, or what was changed is whole.
        """
        ...


@runtime_checkable
class StoppableRunner(Protocol):
    """A runner that can be told to end a job, and may do several at once, each called from a thread of its own."""

    width: int
    """How many jobs it does at once."""
    limit_seconds: float
    """How long one attempt may take; 0 means no limit."""

    def run(self, job: Job) -> "Report":
        """Do one job; see `Runner`."""
        ...

    def stop(self, job: Job) -> None:
        """End what is done for a job, really: its `run` raises, unless it was committed. May be called again; from any thread."""
        ...


class InlineRunner:
    """Does jobs in this process, one at a time."""

    width = 1

    def __init__(self, compactor: "Compactor", store: "Callable[[str], Store]", *, limit_seconds: float = 0.0) -> None:
        """Take who does the work, how a dataset's store is found by its name, and how long an attempt may take."""
        self._compactor = compactor
        self._store = store
        self.limit_seconds = limit_seconds

    def run(self, job: Job) -> "Report":
        """Do one job here."""
        with self._compactor.tagged(job.id):
            return self._run(job)

    def stop(self, job: Job) -> None:
        """Let Spark cancel what it does for the job."""
        self._compactor.interrupt(job.id)

    def _run(self, job: Job) -> "Report":
        store = self._store(job.spec.dataset)
        match job.spec.kind:
            case JobKind.FOLD | JobKind.PURGE:
                purge = job.spec.kind is JobKind.PURGE
                return self._compactor.compact(store, purge=purge, epoch=job.epoch, job=job.id, until=job.until)
            case JobKind.SQUASH:
                return self._compactor.squash(store, epoch=job.epoch, job=job.id)
            case JobKind.ROLL_UP:
                return self._compactor.roll_up(store, job.spec, epoch=job.epoch, job=job.id)
            case JobKind.CLUSTER:
                return self._compactor.cluster(store, job.spec, epoch=job.epoch, job=job.id)
            case JobKind.VACUUM:
                asked = job.spec.retention_hours
                hours = store.settings.vacuum_retention_hours if asked is None else asked
                return self._compactor.vacuum(store, retention_hours=hours, dry_run=False)
            case _:
                raise InvalidRequest(f"Dataset {job.spec.dataset}: {job.spec.kind} is no work of a dataset.")
