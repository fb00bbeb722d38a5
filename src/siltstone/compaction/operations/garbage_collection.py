"""Garbage collection: the sweep of orphans, the vacuum, and the purge that removes deleted rows from disk.

Terms. A file is *live* if the newest version of its table names it. It is *removed* if the log names it as removed and
it is younger than the retention. Otherwise it is an *orphan*. Orphans are output of a crashed job, refused batches,
side files of Spark, and files that were removed longer ago. Live files are never deleted. Removed files are deleted
after their retention or by a purge. Orphans are deleted once their owner is dead. A file is *foreign* if no log names
it and its path has no owner's id that proves it ours. The sweep and the vacuum leave foreign files alone. Only a purge
deletes them, because they may be copies of rows that must be forgotten.

The order of the steps makes deletion safe. List the disk, then check which owners are alive, then read the logs. Take a
file that was on disk, and whose owner was dead, before the log was read. Either that log names it, or no log ever will.
A failed listing raises an error, and is never taken for an empty one. Symbolic links are not followed. A link, or a
file behind one, is not deleted. A vacuum or purge of a table behind a link is refused.
"""

import contextlib
import math
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from siltstone.config import Settings
from siltstone.coordination.liveness import is_live, sweep_dead
from siltstone.dataset.store import Store
from siltstone.delta.checkpoints import forget_history, write_checkpoint
from siltstone.delta.layout import DATA, LOG, is_owned, is_squashed, owner_of
from siltstone.delta.table import LOCK_FILE, Table, TableVersion
from siltstone.errors import Corruption, InvalidRequest, Reason, SiltstoneError, Unavailable
from siltstone.failpoints import reach
from siltstone.host.system_errors import read_failure
from siltstone.model.reports import VacuumReport
from siltstone.spark.scratch import sweep_all

OTHER_JOB_SECONDS: Final = 120.0
"""Seconds that a purge waits for another job that is still writing into base."""
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreferencedFile:
    """A file that the newest version of its table does not name."""

    table: Table
    path: str
    size_bytes: int
    owner_live: bool


def unreferenced_files(store: Store) -> list[UnreferencedFile]:
    """List every file of the dataset that is not live, with the liveness of its owner."""
    disk = Disk.of(store)  # before the logs are read
    unreferenced, missing = scan_files(store, disk, base=store.base.pin(), changes=store.changes.pin())
    if path := min(missing, default=None):
        raise Corruption(
            f"Dataset {store.name}: live file {path} is missing from {store.path}. Restore it.",
            reason=Reason.MISSING_FILE,
            paths=[path],
        )
    return unreferenced


@dataclass(frozen=True, slots=True)
class Disk:
    """Files of a dataset's tables, and the owners that were alive then. Build it before the logs are read."""

    listed: dict[Path, list[tuple[str, int]]]
    """Files of each table, with their sizes in bytes."""
    alive: frozenset[str]

    @classmethod
    def of(cls, store: Store) -> "Disk":
        """List the files, then check which owners are alive. Raise Unavailable if a folder cannot be listed."""
        try:
            listed = {table.path: list(_data_files(table.path)) for table in (store.base, store.changes)}
            owners = {owner for files in listed.values() for path, _ in files if (owner := owner_of(path))}
            return cls(listed, frozenset(owner for owner in owners if is_live(store.layout.liveness, owner)))
        except OSError as error:
            raise read_failure(error.filename or store.path, error) from error


def scan_files(
    store: Store, disk: Disk, *, base: TableVersion, changes: TableVersion
) -> tuple[list[UnreferencedFile], dict[str, SiltstoneError]]:
    """List the files that are not live, and the live files that are missing.

    The missing files are given by their paths below the dataset's folder, each with its error. Both tables must have
    been pinned after the disk was listed.
    """
    unreferenced: list[UnreferencedFile] = []
    missing: dict[str, SiltstoneError] = {}
    for table, pinned in ((store.base, base), (store.changes, changes)):
        listed = disk.listed[table.path]
        live = {file.path for file in pinned.files}
        missing |= {
            f"{table.path.name}/{path}": Corruption("it is missing", reason=Reason.MISSING_FILE)
            for path in live - {path for path, _ in listed}
            if not (table.path / path).exists()
        }
        dead = [(path, size) for path, size in listed if path not in live]
        if dead and not store.layout.link_in(table.path):  # files behind a link are not ours to delete
            unreferenced += [
                UnreferencedFile(table=table, path=path, size_bytes=size, owner_live=owner_of(path) in disk.alive)
                for path, size in dead
            ]
    return unreferenced, missing


def _data_files(root: Path) -> Iterable[tuple[str, int]]:
    """Walk a table's folder. Its log, its commit lock file and links are left out."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    top = str(root)
    for folder, names, files in os.walk(top, onerror=fail):
        below = f"{folder[len(top) + 1 :]}/" if folder != top else ""
        if not below:
            names[:] = [name for name in names if name != LOG]
        for name in files:
            if not below and name == LOCK_FILE:
                continue
            try:
                info = os.lstat(f"{folder}/{name}")
            except FileNotFoundError:
                continue
            if not stat.S_ISLNK(info.st_mode):
                yield f"{below}{name}", info.st_size


def vacuum(store: Store, *, retention_hours: float | None, dry_run: bool) -> VacuumReport:
    """Delete removed files older than the retention, and orphans of dead owners."""
    hours = checked_retention(store.settings, retention_hours)
    check_no_link(store)
    unreferenced = unreferenced_files(store)
    if not all(is_owned(file.path) for file in unreferenced):  # a file is also ours if the log names it as removed
        named = {table.path: table.removed() for table in (store.base, store.changes)}
        unreferenced = [file for file in unreferenced if is_owned(file.path) or file.path in named[file.table.path]]
    floor = store.settings.vacuum_floor_hours
    needed = {  # removed files that a reader of an older version may still need
        table.path: table.removed(within_hours=max(floor, min(hours, table.retention.hours)))
        for table in (store.base, store.changes)
    }
    to_delete = [file for file in unreferenced if not file.owner_live and file.path not in needed[file.table.path]]
    if not dry_run and to_delete:
        reach("vacuum.before_delete")
        _delete(to_delete)
        sweep_dead(store.layout.liveness)
    return VacuumReport(
        dataset=str(store.name),
        retention_hours=hours,
        dry_run=dry_run,
        files=tuple(f"{file.table.path.name}/{file.path}" for file in to_delete),
        bytes=sum(file.size_bytes for file in to_delete),
    )


def checked_retention(settings: Settings, hours: float | None) -> float:
    """Return the retention of a vacuum in hours; default: that of base. Raise InvalidRequest if it is too short."""
    floor = settings.vacuum_floor_hours
    retention = max(floor, settings.base_retention_hours) if hours is None else hours
    try:
        is_valid = floor <= retention < math.inf
    except TypeError:
        is_valid = False
    if not is_valid:
        raise InvalidRequest(
            f"The retention of a vacuum is at least {floor:g} h; running readers may need those files. To delete at once use "
            "compact with purge."
        )
    return retention


def check_no_link(store: Store) -> None:
    """Raise InvalidRequest if a table is reached through a symbolic link. Nothing behind a link is deleted."""
    for table in (store.base, store.changes):
        for path in (table.path / DATA, table.path / LOG):
            if link := store.layout.link_in(path):
                raise InvalidRequest(
                    f"Dataset {store.name} is behind the symbolic link {link}, and Siltstone deletes nothing behind links. No "
                    "file was deleted. Replace the link by a folder or a mount point."
                )


def sweep_orphans(store: Store) -> int:
    """Delete the files that crashed jobs and writers left, and no file that a log names. Return the number of files."""
    orphans = [file for file in unreferenced_files(store) if not file.owner_live]
    if orphans:
        named = {table.path: table.removed() for table in (store.base, store.changes)}
        orphans = [file for file in orphans if is_owned(file.path) and file.path not in named[file.table.path]]
        _delete(orphans)
    _remove_empty_folders(store)
    sweep_dead(store.layout.liveness)
    return len(orphans)


def _remove_empty_folders(store: Store) -> None:
    """Remove empty folders of dead owners. Spark leaves them if a job is cut off before it writes a file."""
    root = store.base.path
    if store.layout.link_in(root / DATA):
        return
    for folder, _, files in os.walk(root / DATA, topdown=False):
        if files:
            continue
        owner = owner_of(f"{Path(folder).relative_to(root).as_posix()}/")
        if owner and not is_live(store.layout.liveness, owner):
            with contextlib.suppress(OSError):  # not empty, or already gone
                Path(folder).rmdir()


def purge_files(store: Store) -> tuple[int, int]:
    """Delete every file that is not live, checkpoint, and delete the log's history. Return deleted files and bytes.

    Files of writers that are committing now stay, because they are newer than this purge. The purge waits for jobs
    that are still rewriting rows, because they may hold rows that must be forgotten. Files that killed Spark processes
    left in scratch folders are deleted, too. A crash leaves fewer unreferenced files than before, and the purge can be
    repeated.
    """
    check_no_link(store)
    reach("purge.before_delete")
    deadline = store.clock.monotonic_seconds() + OTHER_JOB_SECONDS
    files = size = 0
    while True:
        unreferenced = unreferenced_files(store)
        to_delete = [file for file in unreferenced if not file.owner_live]
        _delete(to_delete)
        files += len(to_delete)
        size += sum(file.size_bytes for file in to_delete)
        if not any(file.owner_live and (file.table is store.base or is_squashed(file.path)) for file in unreferenced):
            break
        if store.clock.monotonic_seconds() > deadline:
            raise Unavailable(f"Dataset {store.name}: another job is still writing; purge again when it is done.")
        store.clock.sleep(POLL_SECONDS)
    reach("purge.after_delete")
    for table in (store.base, store.changes):
        write_checkpoint(table.path, durable=store.settings.durable)
        reach("purge.after_checkpoint")
        forget_history(table.path)
        reach("purge.after_log_clean")
    sweep_all(store.settings)
    return files, size


def _delete(to_delete: Iterable[UnreferencedFile]) -> None:
    folders: set[Path] = set()
    for file in to_delete:
        path = file.table.path / file.path
        path.unlink(missing_ok=True)
        reach("purge.during_delete")
        folders |= {parent for parent in path.parents if file.table.path / DATA in parent.parents}
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        with contextlib.suppress(OSError):  # not empty, or already gone
            folder.rmdir()
