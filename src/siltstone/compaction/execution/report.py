"""What came of a cycle, and what the journal tells of cycles that were: values for people and for JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

from siltstone.compaction.journal.records import NS_PER_SECOND, cycle_number, iso
from siltstone.compaction.journal.recovery import RecoveryReport
from siltstone.eventlog.queries import Build
from siltstone.eventlog.transitions import ENDED_BUILDS
from siltstone.model.reports import JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport(Sequence[JobResult]):
    """What came of a cycle: the results of its jobs, in their order; what was recovered before it; what it had to leave alone."""

    cycle: int
    results: tuple[JobResult, ...]
    recovery: RecoveryReport = field(default_factory=RecoveryReport)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Datasets that were left out because they cannot be read, each with why."""
    trouble: str | None = None
    """What could not be written into the journal; None if all was."""

    @overload
    def __getitem__(self, index: int) -> JobResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[JobResult, ...]: ...
    def __getitem__(self, index: int | slice) -> JobResult | tuple[JobResult, ...]:
        return self.results[index]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[JobResult]:
        return iter(self.results)

    @property
    def failed(self) -> tuple[JobResult, ...]:
        """The jobs that failed."""
        return tuple(result for result in self.results if result.error is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "cycle": self.cycle,
            "jobs": [result.to_dict() for result in self.results],
            "recovery": self.recovery.to_dict(),
            "unreadable": self.unreadable,
            "trouble": self.trouble,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleEntry:
    """A cycle as the journal tells it."""

    cycle: int
    status: str
    message: str
    began_at: str
    ended_at: str | None
    seconds: float | None
    partitions: int

    @classmethod
    def of(cls, build: Build) -> "CycleEntry":
        """Read it from its build request."""
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
        """Return it as plain data."""
        return asdict(self)
