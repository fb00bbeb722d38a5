"""Restores a lake from a backup, to a new folder or its former one.

The target T must not exist or be empty. Flow, with W = ``.T.<id>.restore`` beside it and ``.T.<id>.live`` locked while
this process lives:

1. copy every file of the backup into W; the hash of each must be the recorded one;
2. cut audit records of sequences that the backup does not have;
3. fence each dataset with one commit on base. It raises the epoch far above every epoch of the backup. So a job that
   was planned before the restore is refused. It also advances the content version, so that followers and caches read
   everything again;
4. sync all, and rename W to T: this is the commit of the restore.

W is readable by its owner alone, and stays so as T. Where T was an empty folder, its owner and mode are preserved.

Leases, the compactor's state files, hot caches and scratch files are not part of a backup. A restored lake starts
without them. A crash before 4 leaves a hidden folder beside T, which the next restore to T deletes.
"""

import contextlib
import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any, Final

from siltstone.backup.folder import BackupFolder, ShowText, copy_hashed, id_of
from siltstone.backup.manifest import Manifest
from siltstone.backup.verify import make_registry, verify
from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.coordination.liveness import LivenessLock, is_live, remove_dead
from siltstone.dataset.store import Store
from siltstone.delta.fsync import sync_directory
from siltstone.delta.layout import Layout, local_folder
from siltstone.delta.path_checks import checked
from siltstone.delta.table import ParentVersion
from siltstone.errors import CommitUnknown, Corruption, InvalidRequest, Reason, SiltstoneError, Unavailable
from siltstone.failpoints import reach
from siltstone.host.private_folders import OWNER_ONLY
from siltstone.model.columns import APP_CONTENT, APP_EPOCH
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.names import DatasetName
from siltstone.model.reports import RestoreReport

FENCE_STEP: Final = 1_000_000
"""Step added to epochs and content versions: more than a lake can have used between the backup and the restore."""
_SIDE: Final = re.compile(r"\.(?P<name>.+)\.(?P<id>[0-9a-f]{32})\.(restore|live)\Z")


class Restore:
    """Restores one backup."""

    def __init__(
        self,
        path: str | Path,
        target: str | Path,
        *,
        backup: str | None,
        settings: Settings,
        clock: Clock,
        show: ShowText | None = None,
    ) -> None:
        """Store the request; nothing is read or written yet. InvalidRequest if a path is not local."""
        self._folder = BackupFolder(local_folder(path, what="Backup folder"), durable=settings.durable)
        self._target = local_folder(target, what="Restore target")
        self._backup = backup
        self._settings = settings
        self._clock = clock
        self._show = show or (lambda _text: None)

    def run(self, *, dry_run: bool = False) -> RestoreReport:
        """Restore, and return a report; a dry run verifies the backup and writes nothing at the target.

        Raises:
            NotFound: there is no such backup.
            InvalidRequest: the target is not empty. Nothing was written.
            Conflict: another process writes backups there.
            Corruption: the backup is damaged. Nothing is at the target.
            Unavailable: the disk failed. Nothing is at the target.
            CommitUnknown: the lake is at the target, but the disk failed to sync it.
        """
        started = self._clock.monotonic_seconds()
        self._folder.require()
        try:
            self._check_target()
            with self._folder.lock(shared=True):
                manifest = self._folder.read(self._backup)
                verify(self._folder, manifest, settings=self._settings, clock=self._clock, full=dry_run)
                if not dry_run:
                    self._restore(manifest)
        except OSError as error:
            raise Unavailable(
                f"The restore to {self._target} failed ({error}). Nothing was restored. Check the disk, and restore again."
            ) from error
        return RestoreReport(
            id=manifest.id,
            path=str(self._folder.path),
            target=str(self._target),
            taken_at=manifest.taken_at,
            datasets={dataset.name: dataset.sequence for dataset in manifest.datasets},
            files=len(manifest.files),
            bytes=manifest.size_bytes,
            dry_run=dry_run,
            left_out=dict(manifest.left_out),
            seconds=self._clock.monotonic_seconds() - started,
        )

    def _check_target(self) -> None:
        target, backup = self._target, self._folder.path
        real, other = target.resolve(), backup.resolve()
        if real.is_relative_to(other) or other.is_relative_to(real):
            raise InvalidRequest(f"Restore target {target} must be outside of the backups at {backup}.")
        if target.is_symlink():
            raise InvalidRequest(f"Restore target {target} is a link. Name the folder itself.")
        if target.is_mount():
            raise InvalidRequest(f"Restore target {target} is a mount point. Name a folder below it.")
        if target.is_dir() and any(target.iterdir()):
            raise InvalidRequest(f"Restore target {target} is not empty. Move it away, or name another folder.")

    def _restore(self, manifest: Manifest) -> None:
        owner = self._clock.new_id()
        work = self._side(owner, "restore")
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._sweep()
        with LivenessLock(self._target.parent, self._side(owner, "live").name):
            try:
                self._fill(work, manifest)
                with contextlib.suppress(FileNotFoundError):  # an empty target passes on its owner and mode
                    status = self._target.stat()
                    with contextlib.suppress(PermissionError):  # only root can change the owner
                        os.chown(work, status.st_uid, status.st_gid)
                    work.chmod(stat.S_IMODE(status.st_mode))
                work.rename(self._target)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
            try:
                reach("restore.after_rename")
                if self._settings.durable:
                    sync_directory(self._target.parent)
            except OSError as error:
                raise CommitUnknown(
                    f"The lake was restored to {self._target}, but could not be synced ({error}). Check the disk, and then "
                    "whether the lake exists."
                ) from error

    def _fill(self, work: Path, manifest: Manifest) -> None:
        """Build the lake in a work folder under a temporary name."""
        work.mkdir(mode=OWNER_ONLY)
        for number, file in enumerate(manifest.files):
            if number % 100 == 0:
                self._show(f"file {number:,} of {len(manifest.files):,}")
            target = work / checked(file.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            digest, _ = copy_hashed(self._folder.pooled(file.sha256), target)
            if digest != file.sha256:
                raise Corruption(
                    f"Backup at {self._folder.path}: {file.path} has other bytes than were copied. Nothing was restored. Use "
                    "another backup.",
                    reason=Reason.DAMAGED_FILE,
                )
            os.utime(target, ns=(file.modified_ns, file.modified_ns))
        layout = Layout(work)
        for dataset in manifest.datasets:
            # audit records after its sequence describe writes that the backup does not have
            path = layout.audit / f"{dataset.incarnation}.ndjson"
            with contextlib.suppress(FileNotFoundError):
                lines = path.read_bytes().split(b"\n")[:-1]
                path.write_bytes(b"".join(line + b"\n" for line in lines if not _is_later(line, dataset.sequence)))
        reach("restore.after_files")
        registry = make_registry(layout, settings=self._settings, clock=self._clock)
        for dataset in manifest.datasets:
            row = registry.find(DatasetName.parse(dataset.name))
            _fence(registry.store(row), epoch=manifest.epoch + FENCE_STEP, backup=manifest.id)
        reach("restore.after_fence")
        if self._settings.durable:
            os.sync()  # every file at once: there can be many small ones

    def _side(self, owner: str, end: str) -> Path:
        return self._target.with_name(f".{self._target.name}.{owner}.{end}")

    def _sweep(self) -> None:
        """Delete the folders that interrupted restores to this target left beside it."""
        sides = [_SIDE.match(path.name) for path in self._target.parent.iterdir()]
        for owner in {side["id"] for side in sides if side is not None and side["name"] == self._target.name}:
            lock = self._side(owner, "live")
            if lock.is_file() and not is_live(lock.parent, lock.name):
                shutil.rmtree(self._side(owner, "restore"), ignore_errors=True)
                remove_dead(lock)


def _is_later(line: bytes, sequence: int) -> bool:
    try:
        return int(json.loads(line)["sequence"]) > sequence
    except (ValueError, KeyError, TypeError):
        return False  # a damaged line stays, and its reader reports it


def _fence(store: Store, *, epoch: int, backup: str) -> None:
    """Refuse jobs planned before the restore, and make every follower read the dataset again."""

    def build(parent: ParentVersion) -> Commit:
        return Commit(
            kind=CommitKind.RESTORE,
            plan_version=parent.version,
            transactions={
                APP_EPOCH: max(epoch, parent.transaction(APP_EPOCH) or 0),
                APP_CONTENT: (parent.transaction(APP_CONTENT) or 0) + FENCE_STEP,
            },
            info={"siltstone.restored": backup},
        )

    store.base.commit(build)


def list_backups(path: str | Path) -> list[dict[str, Any]]:
    """Describe the backups of a folder, the newest first. A damaged one has its error. NotFound if there are none."""
    folder = BackupFolder(local_folder(path, what="Backup folder"), durable=False)
    folder.require()
    backups: list[dict[str, Any]] = []
    for manifest_path in reversed(folder.manifests()):
        name = id_of(manifest_path)
        try:
            manifest = folder.read(name)
        except SiltstoneError as error:
            backups.append({"id": name, "broken": str(error)})
            continue
        backups.append(
            {
                "id": manifest.id,
                "taken_at": manifest.taken_at,
                "lake": manifest.lake,
                "datasets": {dataset.name: dataset.sequence for dataset in manifest.datasets},
                "files": len(manifest.files),
                "bytes": manifest.size_bytes,
                "left_out": dict(manifest.left_out),
                "broken": None,
            }
        )
    return backups
