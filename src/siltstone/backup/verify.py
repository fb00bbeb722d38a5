"""Checks a backup without the lake: all bytes exist, its logs open, and they name exactly the backup's files.

The logs of every table are copied to a scratch folder and opened as any reader opens them. The lake is not read, and
nothing is written to the backup, which may be on a read-only disk.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from siltstone.backup.folder import BackupFolder
from siltstone.backup.manifest import BackedDataset, BackedFile, Manifest
from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.dataset.registry import Registry
from siltstone.dataset.table_invariants import check_gapless, check_pruned, check_watermark
from siltstone.delta.layout import BASE, CHANGES, LOG, SYSTEM, Layout
from siltstone.delta.parquet import READ_ERRORS
from siltstone.delta.path_checks import checked
from siltstone.delta.read_cache import ReadCache
from siltstone.delta.table_reader import TableReader, TableVersion
from siltstone.errors import Corruption, Reason, Unavailable
from siltstone.host.system_errors import read_failure
from siltstone.model.columns import APP_FOLD, APP_PRUNE, APP_SEQ
from siltstone.model.names import DatasetName
from siltstone.spark.scratch import Scratch
from siltstone.spark_tasks.parquet_checksums import batches, check_file, open_parquet

BATCH_ROWS: Final = 8_192


def verify(folder: BackupFolder, manifest: Manifest, *, settings: Settings, clock: Clock, full: bool) -> None:
    """Check one backup: sizes, logs with their hashes, and counts; with `full` also the hash of every data file."""
    _check_bytes(folder, manifest, full=full)
    files = {file.path: file for file in manifest.files}
    with Scratch(settings, clock=clock) as scratch:
        root = scratch.folder
        layout = Layout(root)
        registry_path = layout.registry.relative_to(root).as_posix()
        for file in manifest.files:
            if f"/{LOG}/" in file.path or file.path.startswith(f"{registry_path}/"):
                target = root / checked(file.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder.pooled(file.sha256), target)
        pinned = {
            path: _check_table(root / path, version, files, below=path, clock=clock)
            for path, version in manifest.tables.items()
        }
        rows = make_registry(layout, settings=settings, clock=clock).all()
        live = {(str(row.name), row.incarnation) for row in rows if str(row.name) not in manifest.left_out}
        if live != {(dataset.name, dataset.incarnation) for dataset in manifest.datasets}:
            raise Corruption(
                f"Backup {manifest.id}: its registry names other datasets than were copied. Use another backup."
            )
    for dataset in manifest.datasets:
        _check_dataset(dataset, pinned)


def damage(path: Path, *, rows: int, whole: bool) -> str:
    """Return the damage of a data file: its footer, indexes and row count, with `whole` also its pages. Empty if sound.

    Raises:
        FileNotFoundError: it is gone.
        Unavailable: this process cannot read it; it may be sound.
    """
    try:
        check_file(path)
        with open_parquet(path, pre_buffer=False) as file:
            if file.metadata.num_rows != rows:
                return f"its footer counts {file.metadata.num_rows} rows, and the log {rows}"
            if whole:
                for _ in batches(file, BATCH_ROWS, use_threads=False):
                    continue
    except FileNotFoundError:
        raise
    except READ_ERRORS as error:
        failure = read_failure(path, error)
        if isinstance(failure, Unavailable):
            raise failure from error
        return str(error)
    return ""


def _check_bytes(folder: BackupFolder, manifest: Manifest, *, full: bool) -> None:
    for file in manifest.files:
        if not folder.has(file):
            raise Corruption(
                f"Backup {manifest.id}: {file.path} is missing or has another size. Use another backup.",
                reason=Reason.DAMAGED_FILE,
            )
        if (full or is_always_hashed(file.path)) and not folder.has_sound(file):
            raise Corruption(
                f"Backup {manifest.id}: {file.path} has other bytes than were copied. Use another backup.",
                reason=Reason.DAMAGED_FILE,
            )


def is_always_hashed(path: str) -> bool:
    """Return whether a file is small and opened to check a backup: logs, and files of the lake itself."""
    return f"/{LOG}/" in path or path.startswith(f"{SYSTEM}/")


def _check_table(
    table: Path, version: int, files: Mapping[str, BackedFile], *, below: str, clock: Clock
) -> TableVersion:
    pinned = TableReader(table, clock=clock, label=f"Table {below} of the backup").pin(APP_SEQ, APP_PRUNE, APP_FOLD)
    if pinned.version != version:
        raise Corruption(
            f"The backup's log of {below} ends at version {pinned.version}, not {version}. Use another backup."
        )
    for file in pinned.files:
        backed = files.get(f"{below}/{file.path}")
        if backed is None or backed.size_bytes != file.size_bytes:
            raise Corruption(
                f"The backup's log of {below} names {file.path}, which is missing from the backup or has another size. "
                "Use another backup."
            )
    return pinned


def make_registry(layout: Layout, *, settings: Settings, clock: Clock) -> Registry:
    """Return a registry whose commits start nothing in the background."""
    return Registry(
        layout,
        settings=settings,
        clock=clock,
        after_commit=lambda _table, _version: None,
        after_write=lambda _store, _version: None,
        reads=ReadCache(0),
    )


def _check_dataset(dataset: BackedDataset, pinned: Mapping[str, TableVersion]) -> None:
    """Check the invariants between the copies of both tables (`dataset.table_invariants`)."""
    name = DatasetName.parse(dataset.name)
    folder = f"{name.catalog}/{name.schema}/{name.table}/{dataset.incarnation}"
    changes, base = pinned[f"{folder}/{CHANGES}"], pinned[f"{folder}/{BASE}"]
    sequence, watermark = changes.transactions.get(APP_SEQ, 0), base.transactions.get(APP_FOLD, 0)
    check_watermark(name, sequence=sequence, watermark=watermark)
    check_pruned(name, pruned=changes.transactions.get(APP_PRUNE, 0), watermark=watermark)
    check_gapless(name, changes.files, watermark=watermark, sequence=sequence)
