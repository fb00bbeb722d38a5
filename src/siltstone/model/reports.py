"""Results of public calls: acknowledgements, reports, status. Plain values with a direct JSON form."""

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
    """Acknowledgement of a durable write: its sequence and number of rows.

    `applied` is False if nothing was written. If an idempotent producer repeated its last sequence, `sequence` is that
    of the first write. If there was no row to write, `sequence` is None.
    """

    sequence: int | None
    rows: int
    applied: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneAck(Ack):
    """Acknowledgement of durable tombstones; `rows` counts them.

    `rows_matched` counts the rows that they hid, in the state just before the write. It is None if counting would
    read the whole dataset, and for a write that was applied before.
    """

    rows_matched: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord(_Plain):
    """Actor, time and reason of `keys` tombstones, which matched `rows` rows (None: not counted). It outlives them."""

    sequence: int
    at: str
    actor: str | None
    reason: str | None
    keys: int
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow(_Plain):
    """A row that was not appended: its number in the batch, from 0, and the error."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAck(Ack):
    """Acknowledgement of a durable append without its `refused` rows. If all rows were refused, nothing was written."""

    refused: tuple[RefusedRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport(_Plain):
    """Result of an ingest: directly to base (`first_load`) or as one change batch.

    `files` and `bytes` count written files. `files_skipped` were loaded before. `files_quarantined` and
    `rows_quarantined` are in the folder `quarantine`. With nothing new to load, `rows` is 0 and nothing changed.
    `rows_duplicate` counts the duplicates that a first load into a log with dedup columns left out. Duplicates in a
    change batch are removed by the fold.
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
    """A file that a compaction wrote and verified before its commit. Its path is below its table."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport(_Plain):
    """Result of a fold, in exact counts.

    `files_removed` and `files_added` are files of base. `change_files` are the folded files of changes.
    In a log, visible appends count as upserts.
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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "CompactReport":
        """Return the report that another process wrote with `to_dict`."""
        return cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})


@dataclass(frozen=True, slots=True, kw_only=True)
class SquashReport(_Plain):
    """Result of a squash. Without small neighbouring files it did nothing."""

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
    """Result of a roll-up or a clustering.

    Files of a period of a log were replaced by files with the same rows. `tier` is the tier of a roll-up, ``cluster``
    for a clustering.
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
    """Result of a job, read from the log, because its process committed it and died before it reported."""

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
    """One failed attempt of a job: how often the job had been split, the number of files, and the error."""

    depth: int
    files: int
    failure: str
    error: str
    split: bool
    """True if the job was then split into two attempts with half as many files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(_Plain):
    """Outcome of one job of a cycle: its report or its error.

    `outcome` is ``done``, ``partly`` (some of its files were left; `error` says why), ``failed`` or ``cancelled``.
    `failure` is the failure class of the remaining files (see `compaction.failures`). The `report` of a split job has
    the sums of its parts.
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
    """The kind of the error, which decides the exit code of a command."""
    error_reason: str | None = None
    """The reason of the error within its kind (see `errors.Reason`), if it has one."""
    outcome: str = "done"
    failure: str | None = None
    attempts: int = 1
    seconds: float = 0.0
    failed_attempts: tuple[FailedAttempt, ...] = ()
    corrupt: tuple[str, ...] = ()
    """Unreadable inputs. They are not moved, and the other inputs are compacted without them."""
    outputs: tuple[OutputFile, ...] = ()
    """The manifest: all committed files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldEstimate(_Plain):
    """Estimate of a fold. It rewrites at most the touched files, perhaps fewer.

    A purge would delete the unreferenced files, and the files that the fold replaces: change files and touched files.
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
    """Files that a clustering would rewrite, and the columns to order rows by. Clustered files are left out."""

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
    """Result of an alter: the changes as text, and the new columns."""

    dataset: str
    changed: list[str]
    columns: list[dict[str, Any]]
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport(_Plain):
    """Files that a vacuum deleted, or would delete."""

    dataset: str
    retention_hours: float
    dry_run: bool
    files: tuple[str, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(_Plain):
    """Status of a dataset: its size, its backlog, the lag of `base`, and the files that a fold would rewrite.

    Another program that reads `base` alone sees the dataset as it was `stale_seconds` ago, or a little later.
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
    """Errors of unreadable files, by their paths below the dataset's folder. With any, rows cannot be read."""
    unreadable_kinds: dict[str, str] = field(default_factory=dict)
    """Error kind of each of these files: ``corruption``, or ``unavailable`` if an intact file may be out of reach."""
    unreadable_reasons: dict[str, str | None] = field(default_factory=dict)
    """Reason of each error within its kind (see `errors.Reason`), if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo(_Plain):
    """A dataset in `list` and `describe`."""

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
    """Why the dataset cannot be read. Its columns are then those at creation."""
    broken_kind: str | None = None
    """The kind of that error: ``unavailable`` if the files may be intact and are out of reach."""
    broken_reason: str | None = None
    """The reason of that error within its kind (see `errors.Reason`), if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry(_Plain):
    """One commit to a table of a dataset. If the log no longer has the commit: only its audit record.

    `rows_removed` is None if another program did not record it. `folded_to` is the watermark that a fold set.
    `foreign` commits were made by another program. An audit record without its commit has the table ``audit`` and no
    version.
    """

    at: str
    table: str
    version: int | None
    operation: str
    first_sequence: int | None
    last_sequence: int | None
    folded_to: int | None = None
    rows_added: int = 0
    rows_removed: int | None = 0
    tombstones: int
    files_added: int = 0
    files_removed: int = 0
    bytes_added: int = 0
    bytes_removed: int = 0
    user: str | None = None
    pid: int | None = None
    engine: str | None = None
    foreign: bool = False
    audit: tuple[AuditRecord, ...] = ()
    """Actors and reasons of the tombstones of this commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport(_Plain):
    """Result of an export: its files, and the sequence of its snapshot."""

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
    """Content of a backup, and how much of it was copied. The rest was in the folder already.

    `verified` is ``sizes`` or ``full``; `removed` are ids of older backups; `left_out` are datasets that could not be
    read.
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
    """Result of a restore: its content and its target."""

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
