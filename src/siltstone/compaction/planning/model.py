"""What the planner is given and what it answers: plain values, without a table or a clock behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple

from siltstone.model.tiers import DEFAULT_TIERS, Tier
from siltstone.model.units import BYTES_PER_MB

OPEN_COST_BYTES: Final = 4 * BYTES_PER_MB
"""Opening a file costs a reader about as much as reading so many bytes; Spark reckons with the same."""
CLUSTERED: Final = "cluster"
"""What `FileEntry.tier` says of a file that a clustering wrote."""

Partition = tuple[tuple[str, str | None], ...]
"""The user's partition columns and their values."""


class JobKind(StrEnum):
    """The kinds of work."""

    FOLD = "fold"
    SQUASH = "squash"
    EVENTS = "events"
    ROLL_UP = "roll_up"
    CLUSTER = "cluster"
    VACUUM = "vacuum"
    PURGE = "purge"
    """Only ever asked for: no plan of a cycle has one."""

    @property
    def ends_with_commit(self) -> bool:
        """True if a job is done whose commit is in the log. A purge deletes after it, and nothing tells how much."""
        return self is not JobKind.PURGE


class Shape(StrEnum):
    """What kind of table it is: the two kinds of dataset, and logs of events (system tables with small files, too)."""

    KEYED = "keyed"
    LOG = "log"
    EVENTS = "events"


class FileEntry(NamedTuple):
    """One live file. A named tuple, because there may be a million of them."""

    path: str
    size_bytes: int
    rows: int = 0
    period: str = ""
    partition: Partition = ()
    tier: str = ""
    """Which tier wrote it, ``cluster`` for a clustering; empty if a fold, a load or a writer did."""
    modified_ms: int = 0
    order: int = 0
    """Its sequence (change files) or its first index (event logs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What is written and not yet folded."""

    batches: int = 0
    rows: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    """When the oldest of it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """One dataset or event log as the planner sees it."""

    name: str
    shape: Shape
    files: Sequence[FileEntry] = ()
    """The live files of base, or of the event log."""
    change_files: Sequence[FileEntry] = ()
    """The live change files above the watermark."""
    backlog: Backlog = field(default_factory=Backlog)
    tiers: tuple[Tier, ...] = DEFAULT_TIERS
    cluster_by: tuple[str, ...] = ()
    clustered_at: datetime | None = None
    vacuumed_at: datetime | None = None
    removed_files: int | None = None
    """How many files wait for a vacuum; None if nobody counted."""
    removed_since: datetime | None = None
    """Since when the oldest of them waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedJob:
    """A job that has begun and has not ended: nobody else takes its files."""

    job: str
    dataset: str
    kind: JobKind
    files: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that a cycle looks at."""

    tables: Sequence[TableState]
    cycle: int = 0
    """The number of the cycle: whose turn it is to be first."""
    unfinished: Sequence[UnfinishedJob] = ()
    only: frozenset[str] | None = None
    """The lanes that are asked for: names of tiers and kinds of work; None means all."""
    force: bool = False
    """Take what is below its thresholds and too young, but never an open period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A possible job: its files, its numbers, and why it was left out if it was.

    `cost_bytes` are rewritten; `saved_bytes` is what every later reader is spared: files it need not open, each counted as
    `OPEN_COST_BYTES`, and change rows it need not merge. The score is the one over the other, one more opening added to the cost
    for starting the job.
    """

    kind: JobKind
    lane: str
    """The name of the tier of a roll-up, the kind of any other work."""
    dataset: str
    period: str = ""
    """Where a roll-up writes to."""
    partition: Partition = ()
    files: tuple[FileEntry, ...] = field(default=(), repr=False)
    batch: int = 1
    batches: int = 1
    files_after: int = 0
    rows: int = 0
    cost_bytes: int = 0
    saved_bytes: int = 0
    target_bytes: int = 0
    waiting_since_ms: int = 0
    by: tuple[str, ...] = ()
    """The columns of a clustering that was asked for by others than the dataset's own."""
    retention_hours: float | None = None
    """What a vacuum keeps; as the settings say unless told."""
    trigger: str = ""
    """What made it due; empty if it is not."""
    reason: str = ""
    """Why it was left out; empty if it is planned."""

    @property
    def planned(self) -> bool:
        """True if it is a job of this cycle."""
        return not self.reason

    @property
    def score(self) -> float:
        """Gain over cost."""
        return self.saved_bytes / (self.cost_bytes + OPEN_COST_BYTES)

    @property
    def place(self) -> tuple[str, str, tuple[tuple[str, str], ...], int]:
        """A total order of the candidates of one lane, so that a plan does not depend on a listing."""
        partition = tuple((name, "" if value is None else f"={value}") for name, value in self.partition)
        return self.dataset, self.period, partition, self.batch

    def to_dict(self, *, with_files: bool = False) -> dict[str, Any]:
        """Return the candidate as plain data; the paths of its files only if asked for."""
        names = ("dataset", "period", "batch", "batches", "files_after", "rows", "cost_bytes", "saved_bytes")
        found: dict[str, Any] = {"kind": str(self.kind), "lane": self.lane}
        found |= {name: getattr(self, name) for name in names}
        found |= {"partition": dict(self.partition), "files": len(self.files), "target_bytes": self.target_bytes}
        found |= {"score": round(self.score, 3), "waiting_since": _moment(self.waiting_since_ms)}
        found |= {"planned": self.planned, "trigger": self.trigger, "reason": self.reason}
        return found | ({"paths": [file.path for file in self.files]} if with_files else {})


COLUMNS: Final = ("work", "dataset", "period", "batch", "files", "MB", "score", "decision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a cycle does, in this order, and what it leaves out."""

    cycle: int
    budget_bytes: int
    jobs: tuple[JobSpec, ...]
    left_out: tuple[JobSpec, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Datasets that were not looked at because they cannot be read, each with why."""

    @property
    def cost_bytes(self) -> int:
        """How many bytes the jobs rewrite."""
        return sum(job.cost_bytes for job in self.jobs)

    def table(self) -> list[tuple[str, ...]]:
        """Return a line for each candidate, jobs first, under `COLUMNS`."""
        return [_line(candidate) for candidate in (*self.jobs, *self.left_out)]

    def to_dict(self, *, with_files: bool = False) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "cycle": self.cycle,
            "budget_bytes": self.budget_bytes,
            "cost_bytes": self.cost_bytes,
            "jobs": [job.to_dict(with_files=with_files) for job in self.jobs],
            "left_out": [candidate.to_dict(with_files=with_files) for candidate in self.left_out],
            "unreadable": dict(self.unreadable),
        }


def _line(candidate: JobSpec) -> tuple[str, ...]:
    where = [candidate.period, *(f"{name}={'' if value is None else value}" for name, value in candidate.partition)]
    return (
        candidate.lane,
        candidate.dataset,
        " ".join(filter(None, where)),
        f"{candidate.batch} of {candidate.batches}" if candidate.batches > 1 else "",
        f"{len(candidate.files):,} → {candidate.files_after:,}" if candidate.files else "",
        f"{candidate.cost_bytes / BYTES_PER_MB:,.1f}" if candidate.cost_bytes else "",
        f"{candidate.score:.2f}" if candidate.saved_bytes else "",
        f"planned: {candidate.trigger}" if candidate.planned else candidate.reason,
    )


def _moment(at_ms: int) -> str | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds") if at_ms else None


_SIZE_BYTES: Final = attrgetter("size_bytes")
_ROWS: Final = attrgetter("rows")
Busy = Mapping[str, str]
"""Paths of one dataset's files that an unfinished job has, each with the job."""


class View(NamedTuple):
    """What every rule looks at beside the table itself."""

    now: datetime
    now_ms: int
    force: bool
    busy: Busy
    under_way: Mapping[JobKind, str]
    """The kinds of work that are unfinished in this dataset, each with its job."""


def idle(files: Sequence[FileEntry], busy: Busy) -> list[FileEntry]:
    """Return the files that no unfinished job has."""
    return [file for file in files if file.path not in busy] if busy else list(files)


def total_bytes(files: Sequence[FileEntry]) -> int:
    """Return the size of files together."""
    return sum(map(_SIZE_BYTES, files))


def total_rows(files: Sequence[FileEntry]) -> int:
    """Return the rows of files together."""
    return sum(map(_ROWS, files))


def files_needed(size_bytes: int, target_bytes: int) -> int:
    """Return how many files of the target size hold so many bytes: at least one.

    >>> files_needed(0, 100), files_needed(100, 100), files_needed(101, 100)
    (1, 1, 2)
    """
    return max(1, -(-size_bytes // target_bytes))


def unfinished_text(busy: Busy, files: Sequence[FileEntry]) -> str:
    """Say which unfinished jobs have some of these files; empty if none has."""
    jobs = sorted({busy[file.path] for file in files if file.path in busy}) if busy else []
    if not jobs:
        return ""
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"files of unfinished job {jobs[0]}{more}"
