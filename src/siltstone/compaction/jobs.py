"""A job: one planned piece of work with a name, and whoever can do it."""

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from siltstone.compaction.candidates import Candidate, JobKind
from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from siltstone.compaction.compactor import Compactor
    from siltstone.dataset.store import Store
    from siltstone.model.results import CompactReport, RollUpReport, SquashReport, VacuumReport

    Report = CompactReport | RollUpReport | SquashReport | VacuumReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One planned piece of work.

    `epoch` is that of the lease under which it was planned: its commit carries it, and is refused once a higher one has
    committed. None stands for the dataset's own.
    """

    id: str
    cycle: int
    planned: Candidate
    epoch: int | None = None

    @classmethod
    def of(cls, planned: Candidate, *, cycle: int, epoch: int | None) -> "Job":
        """Give a planned piece of work a name that no other job has."""
        return cls(id=f"{cycle}-{secrets.token_hex(6)}", cycle=cycle, planned=planned, epoch=epoch)


class Runner(Protocol):
    """Does jobs: in this process, or in one of its own."""

    def run(self, job: Job) -> "Report":
        """Do one job.

        Raises:
            SiltstoneError: it could not be done; nothing was changed, or what was changed is whole.
        """
        ...


class Inline:
    """Does jobs in this process."""

    def __init__(self, compactor: "Compactor", store: "Callable[[str], Store]") -> None:
        """Take who does the work, and how a dataset's store is found by its name."""
        self._compactor = compactor
        self._store = store

    def run(self, job: Job) -> "Report":
        """Do one job here."""
        store = self._store(job.planned.dataset).for_job(job.id)
        match job.planned.kind:
            case JobKind.FOLD:
                return self._compactor.compact(store, purge=False)
            case JobKind.SQUASH:
                return self._compactor.squash(store)
            case JobKind.ROLL_UP:
                return self._compactor.roll_up(store, job.planned, epoch=job.epoch)
            case JobKind.CLUSTER:
                return self._compactor.cluster(store, job.planned, epoch=job.epoch)
            case JobKind.VACUUM:
                hours = store.settings.vacuum_retention_hours
                return self._compactor.vacuum(store, retention_hours=hours, dry_run=False)
            case _:
                raise InvalidRequest(f"Dataset {job.planned.dataset}: {job.planned.kind} is not there yet.")
