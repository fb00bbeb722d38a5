"""The folder of backups: a pool of files named by their content, and one manifest for each backup.

::

    <backup>/
      siltstone-backup.json        the marker: which lake is backed up here
      files/<2 digits>/<sha256>    the bytes of every file, each once
      backups/<number>-<id>.ndjson one manifest for each backup; no clock decides which is the newest
      drafts/                      files that a process is writing

A backup exists once its manifest has its name: every file it lists was synced before. A crash at any point leaves the
earlier backups unchanged, and files in the pool that no manifest lists. The next backup reuses or deletes them.
Removing a backup deletes its manifest first.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from siltstone.backup.manifest import FORMAT, BackedFile, Manifest, read_manifest
from siltstone.delta.fsync import sync_directory, sync_file
from siltstone.errors import (
    CommitUnknown,
    Conflict,
    Corruption,
    InvalidRequest,
    NotFound,
    Reason,
    SiltstoneError,
    Unavailable,
)
from siltstone.failpoints import reach
from siltstone.host.file_lock import try_lock

MARKER: Final = "siltstone-backup.json"
LOCK: Final = "lock"
FOLDERS: Final = ("files", "backups", "drafts")
CHUNK_BYTES: Final = 1024 * 1024
_MANIFEST: Final = re.compile(r"(?P<number>\d{8})-(?P<id>[0-9a-f]{32})\.ndjson\Z")
_POOLED: Final = re.compile(r"[0-9a-f]{64}\Z")

ShowText = Callable[[str], None]
"""A function that shows the progress of a backup or a restore."""


class BackupFolder:
    """One folder of backups."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self._durable = durable

    def check(self, lake_id: str) -> None:
        """Reject a folder that holds anything but backups of this lake. An empty or missing folder is accepted."""
        marker = self._marker()
        if marker is None:
            names = (path.relative_to(self.path).as_posix() for path in self.path.rglob("*"))
            # Files of an interrupted `prepare` may be there.
            if self.path.is_dir() and not all(
                name in FOLDERS or name.startswith(f"drafts/{MARKER}.") for name in names
            ):
                raise InvalidRequest(f"{self.path} is not empty and not a folder of backups. Choose an empty folder.")
        elif marker.get("lake_id") != lake_id:
            raise InvalidRequest(
                f"{self.path} holds backups of another lake ({marker.get('lake')}). Choose another folder."
            )

    def prepare(self, lake_id: str, lake: str) -> None:
        """Create the folder, readable by its owner alone."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in FOLDERS:
            (self.path / name).mkdir(mode=0o700, exist_ok=True)
        if self._marker() is None:
            draft = self._draft(MARKER)
            draft.write_text(json.dumps({"format": FORMAT, "lake_id": lake_id, "lake": lake}))
            self._put(draft, self.path / MARKER)

    def require(self) -> None:
        """Raise NotFound if this is not a folder of backups."""
        if self._marker() is None:
            raise NotFound(f"There are no backups at {self.path}.")

    def _marker(self) -> dict[str, object] | None:
        try:
            return dict(json.loads((self.path / MARKER).read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, RecursionError) as error:
            raise Corruption(
                f"{self.path / MARKER} cannot be read. Choose another folder.", reason=Reason.DAMAGED_FILE
            ) from error
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be read ({error}). Check its permissions.") from error

    @contextlib.contextmanager
    def lock(self, *, shared: bool = False) -> Iterator[None]:
        """Lock the folder against other backups; `shared` excludes only writers. A crash releases the lock."""
        handle = self._lock_file(shared=shared)
        if handle is None:
            yield
            return
        try:
            if not try_lock(handle, shared=shared):
                raise Conflict(f"Another process uses the backups at {self.path}. Wait until it has ended.")
            yield
        finally:
            os.close(handle)

    def _lock_file(self, *, shared: bool) -> int | None:
        """Open the lock file; None if the folder is read-only, because then no other process writes there either."""
        try:
            return os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if shared and error.errno in (errno.EROFS, errno.EACCES):
                return None
            raise

    def pooled(self, sha256: str) -> Path:
        """Return the path of a file's bytes in the pool."""
        return self.path / "files" / sha256[:2] / sha256

    def has(self, file: BackedFile) -> bool:
        """Return whether the pool has the bytes of a file, by their size."""
        try:
            return self.pooled(file.sha256).stat().st_size == file.size_bytes
        except FileNotFoundError:
            return False

    def has_sound(self, file: BackedFile) -> bool:
        """Return whether the pool has the bytes of a file, by their hash: all of them are read."""
        return self.has(file) and hash_of(self.pooled(file.sha256)) == file.sha256

    def add(self, source: Path, relative: str, *, size_bytes: int | None) -> tuple[BackedFile, bool]:
        """Copy a file into the pool; return it, and False if the pool already had its bytes. `publish` syncs it.

        Raises:
            FileNotFoundError: it is gone.
            Corruption: its size differs from the size in its log.
        """
        draft = self._draft("file")
        modified_ns = source.stat().st_mtime_ns  # before its bytes are read: an append meanwhile makes it another file
        digest, size = copy_hashed(source, draft)
        if size_bytes is not None and size != size_bytes:
            draft.unlink()
            raise Corruption(
                f"{source} has {size} bytes, and its log says {size_bytes}. Restore it from an older backup.",
                reason=Reason.DAMAGED_FILE,
            )
        file = BackedFile(path=relative, size_bytes=size, sha256=digest, modified_ns=modified_ns)
        is_new = not self.has_sound(file)
        self.pooled(digest).parent.mkdir(mode=0o700, exist_ok=True)
        draft.replace(self.pooled(digest))  # the existing file may have been damaged since
        reach("backup.after_file")
        return file, is_new

    def _draft(self, name: str) -> Path:
        return self.path / "drafts" / f"{name}.{os.getpid()}"

    def _put(self, draft: Path, path: Path) -> None:
        """Sync a draft, and rename it to its name durably."""
        if self._durable:
            sync_file(draft)
        draft.replace(path)
        if self._durable:
            sync_directory(path.parent)

    def manifests(self) -> list[Path]:
        """List the manifests, the newest last."""
        folder = self.path / "backups"
        return sorted(path for path in folder.iterdir() if _MANIFEST.match(path.name)) if folder.is_dir() else []

    def read(self, backup: str | None = None) -> Manifest:
        """Return one backup by its id or a prefix of it that no other has; default: the newest."""
        paths = [path for path in self.manifests() if backup is None or id_of(path).startswith(backup)]
        if not paths:
            raise NotFound(f"There is no backup {backup or ''} at {self.path}.".replace("  ", " "))
        if backup is not None and len(paths) > 1:
            raise InvalidRequest(f"Several backups at {self.path} begin with {backup!r}. Name more of the id.")
        return read_manifest(paths[-1].read_bytes(), where=str(paths[-1]))

    def publish(self, manifest: Manifest) -> None:
        """Publish a backup: its files are in the pool, and now its manifest gets its name.

        CommitUnknown if only the sync of the name fails.
        """
        if self._durable:
            os.sync()  # every file at once: there can be many small ones
        draft = self._draft("manifest")
        draft.write_text("".join(f"{line}\n" for line in manifest.lines()))
        reach("backup.after_draft")
        last = max((int(path.name[:8]) for path in self.manifests()), default=0)
        path = self.path / "backups" / f"{last + 1:08d}-{manifest.id}.ndjson"
        try:
            self._put(draft, path)
            reach("backup.after_manifest")
        except OSError as error:
            if not path.exists():
                raise
            raise CommitUnknown(
                f"Backup {manifest.id} is at {self.path}, but could not be synced ({error}). Check the disk, then take another."
            ) from error

    def keep(self, count: int | None) -> list[str]:
        """Remove all but the newest backups, and files that no backup lists; return the ids of the removed backups."""
        to_delete = self.manifests()[: -count or None] if count is not None else []
        removed = [id_of(path) for path in to_delete]
        for path in to_delete:
            path.unlink(missing_ok=True)
            reach("backup.after_removal")
        self._collect()
        return removed

    def _collect(self) -> None:
        """Delete the pool's files that no manifest lists, and drafts; nothing if a manifest cannot be read."""
        listed: set[str] = set()
        try:
            for path in self.manifests():
                listed |= {file.sha256 for file in read_manifest(path.read_bytes(), where=str(path)).files}
        except SiltstoneError:
            return
        for path in (self.path / "files").glob("*/*"):
            if _POOLED.match(path.name) and path.name not in listed:
                path.unlink(missing_ok=True)
        for path in (self.path / "drafts").iterdir():
            path.unlink(missing_ok=True)


def id_of(manifest: Path) -> str:
    """Return the id of the backup that a manifest describes."""
    return manifest.stem.rpartition("-")[2]


def copy_hashed(source: Path, target: Path) -> tuple[str, int]:
    """Copy a file, byte by byte; return its SHA-256 and size."""
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as read, target.open("wb") as written:
        while chunk := read.read(CHUNK_BYTES):
            digest.update(chunk)
            written.write(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as read:
        return hashlib.file_digest(read, "sha256").hexdigest()
