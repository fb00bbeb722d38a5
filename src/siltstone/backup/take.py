"""Takes a backup beside writers.

A dataset is copied at one snapshot (changes version c, base version v, watermark w). The order is that of every reader:
`changes` is pinned first, then `base`. So no change is missing that was pruned meanwhile. A reader may hold a base that
is ahead of its changes. A copy may not, because its next write would get a sequence that base already claims to hold.
So a pair is copied only if all of this holds, and otherwise another pair is pinned:

* the watermark of base@v is at most the last sequence of changes@c;
* changes@c was pruned at most up to that watermark, which the order of pinning guarantees (`dataset.table_invariants`);
* the columns of base@v are not newer than those of changes@c.

Flow:

1. the event journal and other system tables, except leases, each at one version;
2. each dataset: pin the pair, copy both logs up to exactly c and v, then their data files. A busy table cleans log
   entries after seconds, data files stay for minutes. If a file is gone the dataset is pinned again;
3. the registry, last. A dataset that was created meanwhile is copied, too, and a dropped one is left out. This is
   repeated until the registry names exactly the copied datasets;
4. verify the copy (`verify`), publish the manifest, remove older backups if requested, delete files that no manifest
   lists.

Data files never change. A file that an earlier backup has under the same path and size is not read again. A copied file
has its footer and indexes checked. A full verification reads every page of every data file, and its hash before it is
reused.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

from siltstone.backup.folder import BackupFolder, ShowText, hash_of
from siltstone.backup.manifest import BackedDataset, BackedFile, Manifest
from siltstone.backup.verify import damage, is_always_hashed, verify
from siltstone.clock import Clock, utc_text
from siltstone.config import CONFIG_FILE, Settings
from siltstone.coordination.leases import Leases
from siltstone.dataset.dataset_folder import MARKER
from siltstone.dataset.orphan_folders import unregistered_folders
from siltstone.dataset.registry import Registration, Registry
from siltstone.dataset.snapshot import Snapshot, files_vanished
from siltstone.dataset.store import Store
from siltstone.delta.layout import LOG, SYSTEM, Layout, entry_name, has_versions, local_folder
from siltstone.delta.log_reader import LAST_CHECKPOINT, list_log, since_own
from siltstone.delta.table_reader import TableReader, TableVersion
from siltstone.errors import Corruption, Gone, InvalidRequest, Reason, SiltstoneError, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import APP_SEQ
from siltstone.model.files import DataFile
from siltstone.model.numbers import whole_number
from siltstone.model.reports import BackupReport
from siltstone.model.units import size_text

PIN_TRIES: Final = 50
"""Pairs of versions that are tried. Each further try needs a fold or an alteration between two reads."""
COPY_TRIES: Final = 20
"""Rounds of copying one table. Each further round needs files that were deleted since they were pinned."""
SETTLE_TRIES: Final = 100
"""Rounds until the registry names exactly the copied datasets. Each further round needs a create or a drop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRequest:
    """A validated backup request."""

    path: Path
    keep: int | None = None
    full: bool = False
    dry_run: bool = False
    skip_broken: bool = False


def check_request(
    layout: Layout, path: str | Path, *, keep: int | None, verify: str, dry_run: bool, skip_broken: bool
) -> BackupRequest:
    """Return a backup request. Refuse a folder or an option that is not valid with InvalidRequest."""
    folder = local_folder(path, what="Backup folder")
    real, root = folder.resolve(), layout.root.resolve()
    if real.is_relative_to(root) or root.is_relative_to(real):
        raise InvalidRequest(f"Backup folder {folder} must be outside of the lake {layout.root}.")
    if keep is not None:
        keep = whole_number("keep, which counts this backup,", keep, least=1)
    if verify not in ("sizes", "full"):
        raise InvalidRequest(f"verify is 'sizes' or 'full', not {verify!r}.")
    return BackupRequest(path=folder, keep=keep, full=verify == "full", dry_run=dry_run, skip_broken=skip_broken)


class _FilesDeleted(Exception):  # noqa: N818
    """Files were deleted since they were pinned."""


@dataclass(slots=True)
class _Copied:
    """The copy of one table or dataset."""

    files: dict[str, BackedFile] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    dataset: BackedDataset | None = None
    epoch: int = 0

    def add(self, *files: BackedFile) -> None:
        self.files |= {file.path: file for file in files}

    def include(self, *copies: "_Copied") -> None:
        for copied in copies:
            self.files |= copied.files
            self.tables |= copied.tables


class Backup:
    """Takes one backup of one lake."""

    def __init__(
        self,
        request: BackupRequest,
        *,
        registry: Registry,
        layout: Layout,
        settings: Settings,
        clock: Clock,
        show: ShowText | None = None,
    ) -> None:
        self._request = request
        self._registry = registry
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._show = show or (lambda _text: None)
        self._folder = BackupFolder(request.path, durable=settings.durable)
        self._earlier: dict[str, BackedFile] = {}
        self._files_copied = self._bytes_copied = 0
        self._left_out: dict[str, str] = {}

    def run(self) -> BackupReport:
        """Take the backup and return a report.

        Raises:
            InvalidRequest: the folder holds something else, or backups of another lake.
            Conflict: another process uses the folder.
            Corruption: a dataset cannot be read, or the copy fails its verification. No backup was recorded.
            Unavailable: the disk is full, or files disappeared at every try. No backup was recorded, except where the
                message names one: then older backups could not be deleted.
            CommitUnknown: the backup was recorded, but the disk failed to sync it.
        """
        started = self._clock.monotonic_seconds()
        self._registry.require_lake()
        lake_id = self._reader(self._layout.registry).id
        self._folder.check(lake_id)
        try:
            if self._request.dry_run:
                return self._report(self._manifest(lake_id), started)
            self._folder.prepare(lake_id, str(self._layout.root))
            with self._folder.lock():
                manifest = self._manifest(lake_id)
                self._show("verifying")
                verify(self._folder, manifest, settings=self._settings, clock=self._clock, full=self._request.full)
                self._folder.publish(manifest)
                return self._report(manifest, started, removed=self._remove_older(manifest))
        except OSError as error:
            raise Unavailable(
                f"The backup at {self._request.path} failed ({error}). No backup was recorded; earlier ones are as they were."
            ) from error

    def _remove_older(self, manifest: Manifest) -> list[str]:
        try:
            return self._folder.keep(self._request.keep)
        except OSError as error:
            raise Unavailable(
                f"Backup {manifest.id} at {self._request.path} was recorded, but older backups or files that no backup lists "
                f"could not be deleted ({error}). Check the disk. The next backup with the same options deletes them."
            ) from error

    def _report(self, manifest: Manifest, started: float, *, removed: Iterable[str] = ()) -> BackupReport:
        return BackupReport(
            id=manifest.id,
            path=str(self._request.path),
            taken_at=manifest.taken_at,
            datasets=len(manifest.datasets),
            files=len(manifest.files),
            bytes=manifest.size_bytes,
            files_copied=self._files_copied,
            bytes_copied=self._bytes_copied,
            dry_run=self._request.dry_run,
            verified="full" if self._request.full else "sizes",
            removed=tuple(removed),
            left_out=dict(manifest.left_out),
            seconds=self._clock.monotonic_seconds() - started,
        )

    def _manifest(self, lake_id: str) -> Manifest:
        with contextlib.suppress(SiltstoneError):  # a damaged older backup only costs its reuse
            self._earlier = {file.path: file for file in self._folder.read().files}
        self._check_registered()
        taken_at = utc_text(self._clock.now(), timespec="seconds")
        whole = self._copy_system_tables()
        datasets, registry = self._copy_datasets()
        config = self._layout.root / CONFIG_FILE
        # Audit records after the datasets: a fold's records are written before it commits.
        audits = sorted(self._layout.audit.glob("*.ndjson")) if self._layout.audit.is_dir() else []
        whole.add(*map(self._copy, [config, *audits] if config.is_file() else audits))
        whole.include(*datasets, registry)
        return Manifest(
            id=self._clock.new_id(),
            taken_at=taken_at,
            lake=str(self._layout.root),
            lake_id=lake_id,
            siltstone=version("siltstone"),
            epoch=max(
                [Leases(self._layout, self._settings, self._clock).epoch(), *(copied.epoch for copied in datasets)]
            ),
            datasets=tuple(copied.dataset for copied in datasets if copied.dataset is not None),
            tables=whole.tables,
            files=tuple(whole.files[path] for path in sorted(whole.files)),
            left_out=self._left_out,
        )

    def _check_registered(self) -> None:
        """Reject a lake with committed data that its registry does not name: the backup would lack it."""
        for folder in unregistered_folders(self._registry, self._layout):
            why = (
                f"Dataset {folder.name}: {folder.path} holds committed data, and the registry does not name it. Run silt doctor "
                "--repair to register it again."
            )
            if not self._request.skip_broken:
                raise Corruption(f"{why} No backup was recorded.")
            self._left_out[f"{folder.name}/{folder.path.name}"] = why

    def _copy_system_tables(self) -> _Copied:
        """Copy the system tables, except leases, which are of no use elsewhere, and the registry, which is last."""
        copied = _Copied()
        for path in sorted((self._layout.root / SYSTEM).iterdir()):
            if path not in (self._layout.leases, self._layout.registry) and has_versions(path):
                copied.include(self._copy_newest(path))
        return copied

    def _copy_datasets(self) -> tuple[list[_Copied], _Copied]:
        """Copy the datasets, and then a registry that names exactly these."""
        done: dict[tuple[str, str], _Copied] = {}
        for _ in range(SETTLE_TRIES):
            pinned, rows = self._registry.pin()
            live = {(str(row.name), row.incarnation): row for row in rows if row.is_live}
            new = [key for key in live if key not in done and key[0] not in self._left_out]
            for number, key in enumerate(new):
                self._show(f"{key[0]} ({number + 1} of {len(new)}), {size_text(self._bytes_copied)} copied")
                if (copied := self._copy_dataset(live[key])) is not None:
                    done[key] = copied
            if not new:
                with contextlib.suppress(_FilesDeleted):
                    registry = self._copy_version(self._layout.registry, pinned)
                    return [copied for key, copied in done.items() if key in live], registry
        raise Unavailable(
            f"Other processes kept creating and dropping datasets while lake {self._layout.root} was copied. No backup was "
            "recorded. Try again."
        )

    def _copy_dataset(self, row: Registration) -> _Copied | None:
        """Copy one dataset; None if it was dropped meanwhile, or is broken and may be left out."""
        try:
            return self._copy_pair(self._registry.store(row))
        except (Gone, Corruption) as error:
            missing = self._registry.broken(row)
            if isinstance(error, Gone) and missing is None:
                return None  # it was dropped: the next read of the registry shows it
            why = str(missing or error)
            if not self._request.skip_broken:
                raise Corruption(f"{why} No backup was recorded.", reason=(missing or error).reason) from error
            self._left_out[str(row.name)] = why
            return None

    def _copy_pair(self, store: Store) -> _Copied:
        """Copy both tables of a dataset at one pair of versions."""
        for _ in range(COPY_TRIES):
            with contextlib.suppress(_FilesDeleted):
                snapshot = self._pin_pair(store)
                copied = _Copied(epoch=snapshot.epoch)
                tables = (store.changes.path, snapshot.changes), (store.base.path, snapshot.base)
                for path, pinned in tables:
                    copied.include(self._copy_log(path, pinned))
                reach("backup.after_logs")
                for path, pinned in tables:
                    copied.add(*self._copy_data_files(path, pinned, of=f"Dataset {store.name}"))
                if (marker := store.path / MARKER).is_file():
                    copied.add(self._copy(marker))
                copied.dataset = BackedDataset(
                    name=str(store.name),
                    incarnation=store.incarnation,
                    sequence=snapshot.sequence,
                    watermark=snapshot.watermark,
                    changes_version=snapshot.changes.version,
                    base_version=snapshot.base.version,
                )
                return copied
        raise files_vanished(store)

    def _pin_pair(self, store: Store) -> Snapshot:
        """Pin a pair of versions that can be restored."""
        for _ in range(PIN_TRIES):
            snapshot = store.snapshot()
            now = store.changes.pin()
            if now.version == snapshot.changes.version:
                return snapshot
            sequence = snapshot.changes.transactions.get(APP_SEQ, 0)
            if snapshot.watermark <= sequence and now.schema.equals(snapshot.changes.schema):
                return snapshot  # otherwise a fold or an alteration came between the two pins
        raise Unavailable(
            f"Dataset {store.name}: it was folded or altered each time it was pinned. No backup was recorded. Try again."
        )

    def _copy_newest(self, path: Path) -> _Copied:
        for _ in range(COPY_TRIES):
            with contextlib.suppress(_FilesDeleted):
                return self._copy_version(path, self._reader(path).pin())
        raise Unavailable(f"Files of {path} kept disappearing while it was copied. No backup was recorded. Try again.")

    def _copy_version(self, path: Path, pinned: TableVersion) -> _Copied:
        """Copy a table at one version: its log up to there, and its files. `_FilesDeleted` if one was deleted meanwhile."""
        copied = self._copy_log(path, pinned)
        copied.add(*self._copy_data_files(path, pinned, of=f"Table {path}"))
        return copied

    def _copy_log(self, path: Path, pinned: TableVersion) -> _Copied:
        copied = _Copied(tables={path.relative_to(self._layout.root).as_posix(): pinned.version})
        try:
            for name in log_files(path, pinned.version):
                copied.add(self._copy(path / LOG / name))
        except FileNotFoundError as error:
            raise _FilesDeleted from error
        return copied

    def _copy_data_files(self, path: Path, pinned: TableVersion, *, of: str) -> list[BackedFile]:
        try:
            return [self._copy_data_file(path / file.path, file, of=of) for file in pinned.files]
        except FileNotFoundError as error:
            raise _FilesDeleted from error

    def _copy_data_file(self, path: Path, file: DataFile, *, of: str) -> BackedFile:
        """Copy one data file. It is checked in the lake unless an earlier backup has it and a check of sizes is enough."""
        copied, full = self._copy(path, size_bytes=file.size_bytes), self._request.full
        earlier = self._earlier.get(copied.path)
        if self._request.dry_run or (copied is earlier and not full):
            return copied
        why = damage(path, rows=file.rows, whole=full)
        if (
            not why
            and earlier is not None
            and earlier.sha256 != (hash_of(path) if copied is earlier else copied.sha256)
        ):
            why = "it has other bytes than an earlier backup has copied"
        if why:
            raise Corruption(
                f"{of}: data file {path} is damaged: {why}. Restore it from an older backup.",
                reason=Reason.DAMAGED_FILE,
            )
        return copied

    def _copy(self, path: Path, *, size_bytes: int | None = None) -> BackedFile:
        """Copy one file. Without a size from a log, its time decides whether an earlier backup has it."""
        relative = path.relative_to(self._layout.root).as_posix()
        earlier = self._earlier.get(relative)
        if earlier is not None and (self._request.dry_run or self._is_reusable(earlier)):
            if earlier.size_bytes == size_bytes:
                return earlier
            status = path.stat()
            is_same = (status.st_size, status.st_mtime_ns) == (earlier.size_bytes, earlier.modified_ns)
            if size_bytes is None and is_same and (not self._request.full or hash_of(path) == earlier.sha256):
                return earlier
        if self._request.dry_run:
            status = path.stat()
            copied = BackedFile(path=relative, size_bytes=status.st_size, sha256="", modified_ns=status.st_mtime_ns)
            is_new = True
        else:
            copied, is_new = self._folder.add(path, relative, size_bytes=size_bytes)
        self._files_copied += is_new
        self._bytes_copied += copied.size_bytes if is_new else 0
        return copied

    def _is_reusable(self, earlier: BackedFile) -> bool:
        """Return whether the pool's copy is sound. One that verification hashes is hashed here, too."""
        is_hashed = self._request.full or is_always_hashed(earlier.path)
        return self._folder.has_sound(earlier) if is_hashed else self._folder.has(earlier)

    def _reader(self, path: Path) -> TableReader:
        return TableReader(path, clock=self._clock, label=f"Table {path}")


def log_files(table: Path, version: int) -> list[str]:
    """Return the log files that open exactly this version: a checkpoint, its entry, and the entries above it.

    Entries above the last commit of Siltstone are among them, as `check_chain` needs them.

    Raises:
        FileNotFoundError: the log was cleaned past that version.
    """
    listing = list_log(table)
    checkpoint = max((number for number in listing.checkpoints if number <= version), default=-1)
    entries = range(max(min(checkpoint, since_own(table, listing, until=version)), 0), version + 1)
    if missing := set(entries) - set(listing.entries):
        raise FileNotFoundError(f"{table}: log entry {min(missing)} is gone")
    names = [*listing.checkpoints.get(checkpoint, ()), *map(entry_name, entries)]
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # no pointer, or a damaged one
        if int(json.loads((table / LOG / LAST_CHECKPOINT).read_text())["version"]) == checkpoint:
            names.append(LAST_CHECKPOINT)
    return names
