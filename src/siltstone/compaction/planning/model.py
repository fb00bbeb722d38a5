"""Inputs and outputs of the planner: plain values, without a table or a clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple

from siltstone.clock import from_epoch_ms, utc_text
from siltstone.model.tiers import DEFAULT_TIERS, Tier
from siltstone.model.units import BYTES_PER_MB

OPEN_COST_BYTES: Final = 4 * BYTES_PER_MB
"""Cost of opening a file, as the number of bytes that a reader could read in that time. Spark uses the same value."""
CLUSTERED: Final = "cluster"
"""Value of `FileEntry.tier` for a file that a clustering wrote."""

PartitionValues = tuple[tuple[str, str | None], ...]
"""The user's partition columns and their values."""


class JobKind(StrEnum):
    """Kinds of jobs."""

    FOLD = "fold"
    SQUASH = "squash"
    EVENTS = "events"
    ROLL_UP = "roll_up"
    CLUSTER = "cluster"
    VACUUM = "vacuum"
    PURGE = "purge"
    """Runs only by request. No plan of a cycle has a purge."""

    @property
    def ends_with_commit(self) -> bool:
        """True if a commit proves that the job is done. A purge deletes files after its commit."""
        return self is not JobKind.PURGE


class Shape(StrEnum):
    """Kind of a table: keyed dataset, log dataset, or event log (also other system tables with small files)."""

    KEYED = "keyed"
    LOG = "log"
    EVENTS = "events"


class FileEntry(NamedTuple):
    """One live file. A named tuple, because there may be a million of them."""

    path: str
    size_bytes: int
    rows: int = 0
    period: str = ""
    partition: PartitionValues = ()
    tier: str = ""
    """Tier that wrote the file, ``cluster`` for a clustering. Empty if a fold, a load or a writer wrote it."""
    modified_ms: int = 0
    order: int = 0
    """Its sequence (change files) or its first index (event logs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Changes that are written and not yet folded."""

    batches: int = 0
    rows: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    """Time at which the oldest change of the backlog was written, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """State of one dataset or event log, as the planner needs it."""

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
    """Number of removed files that wait for a vacuum; None if they were not counted."""
    removed_since: datetime | None = None
    """Time since which the oldest of these files has waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedJob:
    """A job that has begun and has not ended. No other job may use its files."""

    job: str
    dataset: str
    kind: JobKind
    files: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All inputs of the plan of one cycle."""

    tables: Sequence[TableState]
    cycle: int = 0
    """Number of the cycle. It decides which lane is first."""
    unfinished: Sequence[UnfinishedJob] = ()
    only: frozenset[str] | None = None
    """Lanes that the caller requested, as names of tiers and kinds of jobs; None means all."""
    force: bool = False
    """True to ignore thresholds and minimum ages. An open period is never planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A possible job: its files, its numbers, and the reason if it was left out.

    `cost_bytes` is the size of the files to rewrite. `saved_bytes` is the work that every later reader saves: files not
    opened, and change rows not merged. Each file counts as `OPEN_COST_BYTES`. The score is `saved_bytes` divided by the
    cost. The cost includes one more `OPEN_COST_BYTES` for the start of the job.
    """

    kind: JobKind
    lane: str
    """Name of the tier of a roll-up; kind of any other job."""
    dataset: str
    period: str = ""
    """Target period of a roll-up."""
    partition: PartitionValues = ()
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
    """Requested columns of a clustering, if they differ from the dataset's own."""
    retention_hours: float | None = None
    """Retention of a vacuum in hours; default: from the settings."""
    trigger: str = ""
    """Reason why the job is due; empty if it is not."""
    reason: str = ""
    """Reason why the job was left out; empty if it is planned."""

    @property
    def planned(self) -> bool:
        """True if this is a job of the cycle."""
        return not self.reason

    @property
    def score(self) -> float:
        """Gain divided by cost."""
        return self.saved_bytes / (self.cost_bytes + OPEN_COST_BYTES)

    @property
    def sort_key(self) -> tuple[str, str, tuple[tuple[str, str], ...], int]:
        """Total order of the candidates of one lane: a plan does not depend on the order of a listing."""
        partition = tuple((name, "" if value is None else f"={value}") for name, value in self.partition)
        return self.dataset, self.period, partition, self.batch

    def over(self, files: Sequence[FileEntry]) -> "JobSpec":
        """Return the same job over these files, with their numbers."""
        size = total_bytes(files)
        after = files_needed(size, self.target_bytes) if self.target_bytes else 1
        return replace(
            self,
            files=tuple(files),
            files_after=after,
            rows=total_rows(files),
            cost_bytes=size,
            saved_bytes=max(0, len(files) - after) * OPEN_COST_BYTES,
        )

    def to_dict(self, *, with_files: bool = False) -> dict[str, Any]:
        """Return the candidate as plain data. The paths of its files are included only with `with_files`."""
        names = ("dataset", "period", "batch", "batches", "files_after", "rows", "cost_bytes", "saved_bytes")
        since = (
            utc_text(from_epoch_ms(self.waiting_since_ms), timespec="milliseconds") if self.waiting_since_ms else None
        )
        data: dict[str, Any] = {"kind": str(self.kind), "lane": self.lane}
        data |= {name: getattr(self, name) for name in names}
        data |= {"partition": dict(self.partition), "files": len(self.files), "target_bytes": self.target_bytes}
        data |= {"score": round(self.score, 3), "waiting_since": since}
        data |= {"planned": self.planned, "trigger": self.trigger, "reason": self.reason}
        return data | ({"paths": [file.path for file in self.files]} if with_files else {})

    def table_row(self) -> tuple[str, ...]:
        """Return the candidate as texts for people, under `COLUMNS`."""
        where = [self.period, *(f"{name}={'' if value is None else value}" for name, value in self.partition)]
        return (
            self.lane,
            self.dataset,
            " ".join(filter(None, where)),
            f"{self.batch} of {self.batches}" if self.batches > 1 else "",
            f"{len(self.files):,} → {self.files_after:,}" if self.files else "",
            f"{self.cost_bytes / BYTES_PER_MB:,.1f}" if self.cost_bytes else "",
            f"{self.score:.2f}" if self.saved_bytes else "",
            f"planned: {self.trigger}" if self.planned else f"left out: {self.reason}",
        )


COLUMNS: Final = ("job", "dataset", "period", "batch", "files", "MB", "score", "decision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Jobs of a cycle, in the order in which they run, and the candidates that are left out."""

    cycle: int
    budget_bytes: int
    jobs: tuple[JobSpec, ...]
    left_out: tuple[JobSpec, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Datasets that were not planned because they cannot be read, each with its reason."""

    @property
    def cost_bytes(self) -> int:
        """Total bytes that the jobs rewrite."""
        return sum(job.cost_bytes for job in self.jobs)

    def table(self) -> list[tuple[str, ...]]:
        """Return one line per candidate, jobs first, under `COLUMNS`."""
        return [candidate.table_row() for candidate in (*self.jobs, *self.left_out)]

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


_SIZE_BYTES: Final = attrgetter("size_bytes")
_ROWS: Final = attrgetter("rows")
Busy = Mapping[str, str]
"""Paths of one dataset's files that unfinished jobs use, each with the id of the job."""


class View(NamedTuple):
    """Inputs of every rule beside the table itself."""

    now: datetime
    now_ms: int
    force: bool
    busy: Busy
    under_way: Mapping[JobKind, str]
    """Kinds of jobs that are unfinished in this dataset, each with the id of the job."""


def idle(files: Sequence[FileEntry], busy: Busy) -> list[FileEntry]:
    """Return the files that no unfinished job uses."""
    return [file for file in files if file.path not in busy] if busy else list(files)


def by_period(files: Iterable[FileEntry]) -> list[tuple[tuple[str, PartitionValues], list[FileEntry]]]:
    """Group files by period and partition, in order."""
    groups: dict[tuple[str, PartitionValues], list[FileEntry]] = {}
    for file in files:
        groups.setdefault((file.period, file.partition), []).append(file)
    return sorted(groups.items(), key=lambda item: (item[0][0], str(item[0][1])))


def total_bytes(files: Sequence[FileEntry]) -> int:
    """Return the total size of files in bytes."""
    return sum(map(_SIZE_BYTES, files))


def total_rows(files: Sequence[FileEntry]) -> int:
    """Return the total rows of files."""
    return sum(map(_ROWS, files))


def files_needed(size_bytes: int, target_bytes: int) -> int:
    """Return the number of files of the target size that hold `size_bytes`: at least one.

    >>> files_needed(0, 100), files_needed(100, 100), files_needed(101, 100)
    (1, 1, 2)
    """
    return max(1, -(-size_bytes // target_bytes))


def unfinished_text(busy: Busy, files: Sequence[FileEntry]) -> str:
    """Name the unfinished jobs that use some of these files; empty if there are none."""
    jobs = sorted({busy[file.path] for file in files if file.path in busy}) if busy else []
    if not jobs:
        return ""
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"files of unfinished job {jobs[0]}{more}"
