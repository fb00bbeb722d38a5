"""Report of a cycle, and the journal's entries about past cycles: values for people and for JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

from siltstone.clock import NS_PER_SECOND
from siltstone.compaction.journal.records import cycle_number, iso
from siltstone.compaction.journal.recovery import RecoveryReport
from siltstone.eventlog.queries import Build
from siltstone.eventlog.transitions import ENDED_BUILDS
from siltstone.model.reports import JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport(Sequence[JobResult]):
    """Report of a cycle: results of its jobs in order, the recovery before it, and the datasets left out."""

    cycle: int
    results: tuple[JobResult, ...]
    recovery: RecoveryReport = field(default_factory=RecoveryReport)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Datasets that were left out because they cannot be read, each with its reason."""
    trouble: str | None = None
    """Error of writing the journal; None if everything was written."""

    @overload
    def __getitem__(self, index: int) -> JobResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[JobResult, ...]: ...
    def __getitem__(self, index: int | slice) -> JobResult | tuple[JobResult, ...]:
        return self.results[index]

    def __len__(self) -> int:
        return len(self.results)

    @property
    def failed(self) -> tuple[JobResult, ...]:
        """Results of the failed jobs."""
        return tuple(result for result in self.results if result.error is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "cycle": self.cycle,
            "jobs": [result.to_dict() for result in self.results],
            "recovery": self.recovery.to_dict(),
            "unreadable": self.unreadable,
            "trouble": self.trouble,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleEntry:
    """A cycle as the journal recorded it."""

    cycle: int
    status: str
    message: str
    began_at: str
    ended_at: str | None
    seconds: float | None
    partitions: int

    @classmethod
    def of(cls, build: Build) -> "CycleEntry":
        """Read a cycle from its build request."""
        ended = build.status in ENDED_BUILDS
        return cls(
            cycle=cycle_number(build.build_request_id) or 0,
            status=build.status.name.lower(),
            message=build.message,
            began_at=iso(build.created_at) or "",
            ended_at=iso(build.updated_at) if ended else None,
            seconds=round((build.updated_at - build.created_at) / NS_PER_SECOND, 3) if ended else None,
            partitions=len(build.requested_partitions),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the cycle as plain data."""
        return asdict(self)
