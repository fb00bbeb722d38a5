"""Jobs and their runners.

The log entry that a job commits contains the id of the job (`model.columns.JOB`). So every process can check whether a
job was done, and checks before it retries the job.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from siltstone.compaction.planning.model import FileEntry, JobKind, JobSpec
from siltstone.errors import InvalidRequest
from siltstone.model.reports import CompactReport, LandedReport, RollUpReport, SquashReport, VacuumReport

if TYPE_CHECKING:
    from siltstone.compaction.operations.dataset_maintenance import DatasetMaintenance
    from siltstone.dataset.store import Store

JobReport = CompactReport | LandedReport | RollUpReport | SquashReport | VacuumReport

ON_GIVEN_FILES: Final = frozenset({JobKind.ROLL_UP, JobKind.CLUSTER})
"""Kinds that rewrite a given list of files. The list may be split. The parts run in any order and side by side."""
DIVISIBLE: Final = ON_GIVEN_FILES | {JobKind.FOLD}
"""Kinds that can be split. The parts of a fold run one after the other, because each folds changes up to a sequence."""
ON_SPARK: Final = frozenset({JobKind.FOLD, JobKind.ROLL_UP, JobKind.CLUSTER, JobKind.PURGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One planned job."""

    id: str
    cycle: int
    spec: JobSpec
    epoch: int | None = None
    """Epoch of its lease; None means that of the dataset. Its commit is refused once a higher epoch has committed."""
    is_part: bool = False
    """True for a part of a job that was split."""

    @classmethod
    def of(cls, spec: JobSpec, *, cycle: int, epoch: int | None) -> "Job":
        """Return a job with a unique id."""
        return cls(id=f"{cycle}-{secrets.token_hex(6)}", cycle=cycle, spec=spec, epoch=epoch)

    def part(self, number: int, files: Sequence[FileEntry]) -> "Job":
        """Return the same job over some of its files, with an id below its own."""
        return replace(self, id=f"{self.id}.{number}", spec=self.spec.over(files), is_part=True)

    @property
    def until(self) -> int | None:
        """Sequence up to which a part of a fold takes changes; None for a whole fold, which takes all."""
        if not self.is_part or self.spec.kind is not JobKind.FOLD:
            return None
        return max((file.order for file in self.spec.files), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain data for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Job":
        """Return the job from the data that `to_dict` returned."""
        from pydantic import TypeAdapter  # only workers read jobs

        return TypeAdapter(cls).validate_python(data)


def exclude_each_other(first: JobSpec, second: JobSpec) -> bool:
    """True if two jobs must not run side by side: one would be refused, or wait for the other.

    Jobs over given files run beside jobs over different files of the same dataset. A fold, squash or vacuum runs
    alone.
    """
    if first.dataset != second.dataset:
        return False
    if first.kind not in ON_GIVEN_FILES or second.kind not in ON_GIVEN_FILES:
        return True
    return not {file.path for file in first.files}.isdisjoint(file.path for file in second.files)


class Runner(Protocol):
    """Runs jobs, in this process or in a worker."""

    def run(self, job: Job) -> JobReport:
        """Run one job. Raise an error if it failed: nothing was changed, or what was committed is complete."""
        ...


@runtime_checkable
class StoppableRunner(Runner, Protocol):
    """A runner that can cancel a job. It may run several jobs at once, each called from a separate thread."""

    width: int
    """Number of jobs that it runs at once."""
    limit_seconds: float
    """Time limit of one attempt in seconds; 0 means no limit."""

    def stop(self, job: Job) -> None:
        """Cancel a job: its `run` raises, unless the job has committed. May be called repeatedly, from any thread."""
        ...


class InlineRunner:
    """Runs jobs in this process, one at a time."""

    width = 1

    def __init__(
        self, operations: "DatasetMaintenance", store: "Callable[[str], Store]", *, limit_seconds: float = 0.0
    ) -> None:
        """Use these operations. `store` returns the store of a dataset by name."""
        self._operations = operations
        self._store = store
        self.limit_seconds = limit_seconds

    def run(self, job: Job) -> JobReport:
        """Run one job in this process."""
        spec, operations = job.spec, self._operations
        with operations.tagged(job.id):
            store = self._store(spec.dataset)
            match spec.kind:
                case JobKind.FOLD | JobKind.PURGE:
                    purge = spec.kind is JobKind.PURGE
                    return operations.compact(store, purge=purge, epoch=job.epoch, job=job.id, until=job.until)
                case JobKind.SQUASH:
                    return operations.squash(store, epoch=job.epoch, job=job.id)
                case JobKind.ROLL_UP:
                    return operations.roll_up(store, spec, epoch=job.epoch, job=job.id)
                case JobKind.CLUSTER:
                    return operations.cluster(store, spec, epoch=job.epoch, job=job.id)
                case JobKind.VACUUM:
                    requested = spec.retention_hours
                    hours = store.settings.vacuum_retention_hours if requested is None else requested
                    return operations.vacuum(store, retention_hours=hours, dry_run=False)
                case _:
                    raise InvalidRequest(f"Dataset {spec.dataset}: {spec.kind} is not an operation on a dataset.")

    def stop(self, job: Job) -> None:
        """Interrupt the Spark work of the job."""
        self._operations.interrupt(job.id)
