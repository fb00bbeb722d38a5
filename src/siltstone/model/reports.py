"""What calls return: acknowledgements, reports, status. Plain values that become JSON as they are."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


class _Plain:
    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the value as plain data."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack(_Plain):
    """A write is durable: its sequence and how many rows it carried.

    `applied` is False if nothing was written: an idempotent producer repeats its last sequence, and `sequence` is then that of
    the first time; or there was no row to write, and `sequence` is None.
    """

    sequence: int | None
    rows: int
    applied: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneAck(Ack):
    """Tombstones are durable; `rows` counts them.

    `rows_matched` counts the rows that they hid, as of just before the write. It is None where counting would read the
    whole dataset, and for a write that was applied before.
    """

    rows_matched: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord(_Plain):
    """Who hid rows, when and why: `keys` tombstones that matched `rows` rows (None: not counted). It outlives them."""

    sequence: int
    at: str
    actor: str | None
    reason: str | None
    keys: int
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow(_Plain):
    """A row that was not appended: its number in the batch, from 0, and what is wrong with it."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAck(Ack):
    """An append is durable, but for the rows that were `refused` one by one. If all were, nothing was written."""

    refused: tuple[RefusedRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport(_Plain):
    """What an ingest did: straight to base (`first_load`) or as one change batch.

    `files` and `bytes` are those that were written; `files_skipped` were loaded before, and `files_quarantined` and
    `rows_quarantined` were put aside in the folder `quarantine`. With nothing new to load `rows` is 0 and nothing changed.
    `rows_duplicate` are rows of a first load into a log without duplicates that were left out; of a change batch the fold
    leaves them out.
    """

    rows: int
    files: int
    bytes: int
    sequence: int
    first_load: bool
    seconds: float
    files_skipped: int = 0
    files_quarantined: int = 0
    rows_quarantined: int = 0
    quarantine: str | None = None
    rows_duplicate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile(_Plain):
    """A file that a compaction wrote, as it was verified before its commit; its path is below its table."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport(_Plain):
    """What a fold did, in exact counts. `delta_rows` and `deltas_merged` are the ancestors' names.

    `files_removed` and `files_added` are files of base, `change_files` those of changes that it took.
    Of a log, the appends that are seen count as upserts.
    """

    dataset: str
    base_rows: int
    change_rows: int
    batches_folded: int
    upserts_applied: int
    tombstones_applied: int
    rows_dropped_by_tombstones: int
    final_rows: int
    files_removed: int
    files_added: int
    bytes_before: int
    bytes_after: int
    watermark: int
    seconds: float
    purged: bool = False
    files_deleted: int = 0
    bytes_deleted: int = 0
    change_files: int = 0
    change_bytes: int = 0
    outputs: tuple[OutputFile, ...] = ()

    @property
    def delta_rows(self) -> int:
        """The ancestors' name for `change_rows`."""
        return self.change_rows

    @property
    def deltas_merged(self) -> int:
        """The ancestors' name for `batches_folded`."""
        return self.batches_folded

    def to_dict(self) -> dict[str, Any]:
        """Return the value as plain data, with the ancestors' names beside ours."""
        return asdict(self) | {"delta_rows": self.delta_rows, "deltas_merged": self.deltas_merged}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "CompactReport":
        """Return the report that another process wrote with `to_dict`."""
        return cls(**{one.name: found[one.name] for one in fields(cls) if one.name in found})


@dataclass(frozen=True, slots=True, kw_only=True)
class SquashReport(_Plain):
    """What a squash did; nothing, if no files were small and neighbours."""

    dataset: str
    files_removed: int
    files_added: int
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    dry_run: bool = False
    outputs: tuple[OutputFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollUpReport(_Plain):
    """What a roll-up or a clustering did: files of a period of a log became others with the same rows.

    `tier` is the tier of a roll-up, ``cluster`` for a clustering.
    """

    dataset: str
    tier: str
    period: str
    files_removed: int
    files_added: int
    rows: int
    bytes_before: int
    bytes_after: int
    seconds: float
    outputs: tuple[OutputFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedReport(_Plain):
    """What the log says of a job that was committed by a process that died before it could tell."""

    dataset: str
    files_removed: int
    files_added: int
    rows: int
    bytes_before: int
    bytes_after: int
    recovered: bool = True
    outputs: tuple[OutputFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt(_Plain):
    """One attempt of a job that failed: how deep it had been halved by then, over how many files, and what went wrong."""

    depth: int
    files: int
    failure: str
    error: str
    halved: bool
    """True if two attempts of half as many files came after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(_Plain):
    """What came of one job of a cycle: its report, or what went wrong.

    `outcome` is ``done``, ``partly`` (some of its files were left; `error` says why), ``failed`` or ``cancelled``; `failure` is
    the class of what is left of it (see `compaction.failures`). A job that was halved has the sum of its parts in `report`.
    """

    job: str
    kind: str
    lane: str
    dataset: str
    period: str
    trigger: str
    report: dict[str, Any] | None
    error: str | None
    error_kind: str | None = None
    """The kind of the error, by which a command ends with its exit code."""
    error_reason: str | None = None
    """The reason of the error within its kind (see `errors.Reason`), if it has one."""
    outcome: str = "done"
    failure: str | None = None
    attempts: int = 1
    seconds: float = 0.0
    failed_attempts: tuple[FailedAttempt, ...] = ()
    corrupt: tuple[str, ...] = ()
    """Inputs that cannot be read: they stay where they are, and the others are compacted without them."""
    outputs: tuple[OutputFile, ...] = ()
    """The manifest: every file that was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldEstimate(_Plain):
    """What a fold would have to do; it rewrites at most the touched files and perhaps fewer.

    A purge would delete what is unreferenced now, and what the fold replaces: change files and touched files.
    """

    dataset: str
    base_rows: int
    base_files: int
    base_bytes: int
    batches: int
    change_rows: int
    change_bytes: int
    files_touched_at_most: int
    bytes_touched_at_most: int
    change_files: int = 0
    unreferenced_files: int = 0
    unreferenced_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPeriod:
    """One period and set of partition values of a log, as a clustering would rewrite it."""

    period: str
    partition: dict[str, str | None]
    files: int
    files_after_at_most: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEstimate(_Plain):
    """What a clustering would rewrite, and by which columns it would order the rows; what is clustered already is left out."""

    dataset: str
    columns: tuple[str, ...]
    base_files: int
    base_bytes: int
    files: int = 0
    rows: int = 0
    bytes: int = 0
    periods: tuple[ClusterPeriod, ...] = ()
    dry_run: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReport(_Plain):
    """What changed about a dataset's columns, in words, and what they are now."""

    dataset: str
    changed: list[str]
    columns: list[dict[str, Any]]
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport(_Plain):
    """Which files a vacuum deleted, or would delete."""

    dataset: str
    retention_hours: float
    dry_run: bool
    files: tuple[str, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(_Plain):
    """How a dataset stands: its size, its backlog, how far `base` lags behind, and what a fold would have to rewrite.

    A stranger who reads `base` alone sees the dataset as it was `stale_seconds` ago, or a little later.
    """

    dataset: str
    kind: str
    rows_in_base: int
    base_files: int
    base_bytes: int
    base_version: int
    sequence: int
    watermark: int
    backlog_batches: int
    backlog_rows: int
    backlog_files: int
    backlog_bytes: int
    oldest_unfolded_at: str | None
    stale_seconds: float
    fold_files_at_most: int
    fold_bytes_at_most: int
    unreferenced_files: int
    unreferenced_bytes: int
    unreadable: dict[str, str] = field(default_factory=dict)
    """What is wrong with files that cannot be read, by their paths below the dataset's folder; rows cannot be read then."""
    unreadable_kinds: dict[str, str] = field(default_factory=dict)
    unreadable_reasons: dict[str, str | None] = field(default_factory=dict)
    """The kind of error of each of them: ``corruption``, or ``unavailable`` if the file may be sound and is out of reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo(_Plain):
    """What `list` and `describe` show."""

    name: str
    kind: str
    key: tuple[str, ...]
    subject: tuple[str, ...]
    fingerprint: str
    incarnation: str
    created_at: str
    columns: list[dict[str, Any]] = field(default_factory=list)
    time: str | None = None
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    dedup_by: tuple[str, ...] = ()
    survivor: str | None = None
    broken: str | None = None
    """Why it cannot be read; its columns are then those at creation."""
    broken_kind: str | None = None
    """The kind of that error: ``unavailable`` if the files may be sound and are out of reach."""
    broken_reason: str | None = None
    """The reason of that error within its kind (see `errors.Reason`), if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry(_Plain):
    """One commit of one of a dataset's tables, or what is left of one when the log has forgotten it: its audit record.

    `rows_removed` is None if another program did not say; `folded_to` is the watermark that a fold set. `foreign` commits were
    made by another program. An audit record alone has the table ``audit`` and no version.
    """

    at: str
    table: str
    version: int | None
    what: str
    first_sequence: int | None
    last_sequence: int | None
    folded_to: int | None
    rows_added: int
    rows_removed: int | None
    tombstones: int
    files_added: int
    files_removed: int
    bytes_added: int
    bytes_removed: int
    who: str | None
    pid: int | None
    engine: str | None
    foreign: bool
    audit: tuple[AuditRecord, ...] = ()
    """Who hid rows by this commit, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport(_Plain):
    """What an export wrote, and the sequence that it shows."""

    dataset: str
    path: str
    format: str
    sequence: int
    rows: int
    files: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport(_Plain):
    """What a backup has, and how much of it was copied; the rest was there already.

    `verified` is ``sizes`` or ``full``; `removed` are ids of older backups; `left_out` are datasets that could not be read.
    """

    id: str
    path: str
    taken_at: str
    datasets: int
    files: int
    bytes: int
    files_copied: int
    bytes_copied: int
    dry_run: bool
    verified: str
    removed: tuple[str, ...]
    left_out: dict[str, str]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport(_Plain):
    """What was restored, and where to."""

    id: str
    path: str
    target: str
    taken_at: str
    datasets: dict[str, int]
    """Each dataset with its last sequence."""
    files: int
    bytes: int
    dry_run: bool
    left_out: dict[str, str]
    seconds: float
