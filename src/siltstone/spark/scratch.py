"""Scratch folders: for Spark's spills and everything else that a JVM of ours writes outside a lake.

Spark's blocks, shuffle files, spills, artifacts and native libraries contain rows of users. They are all in one folder per
process, below ``<scratch_dir>/siltstone-<user id>``, which only its owner can enter::

    siltstone-1000/
      live/<id>      the lock of a live owner (`liveness.py`); a crash releases it
      <id>/          the folder of that owner

A process creates the lock first and then the folder. So a folder without a live lock belongs to a dead process, and `sweep`
deletes it. Every start of a JVM, every purge and ``silt doctor`` sweep.
"""

import os
import re
import shutil
import tempfile
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from siltstone.clock import Clock, SystemClock
from siltstone.config import Settings
from siltstone.coordination.liveness import LivenessLock, is_live, sweep_dead
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.host.private_folders import OWNER_ONLY, private_folder

LIVE: Final = "live"
REMEDY: Final = "Set scratch_dir to a folder in which you may make folders."
_OWNER: Final = re.compile(r"[0-9a-f]{32}\Z")


class Scratch(AbstractContextManager["Scratch"]):
    """A folder for one process. `close` deletes it; after a crash the next sweep does."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        """Sweep the folders of dead processes, and create a fresh one.

        Raises:
            Unavailable: the folder cannot be created, or belongs to another user.
        """
        root = private_folder(scratch_root(settings), remedy=REMEDY)
        sweep(root)
        owner = (SystemClock() if clock is None else clock).new_id()
        self.folder: Final = root / owner
        self._process = os.getpid()
        try:
            self._liveness_lock = LivenessLock(root / LIVE, owner)
            self.folder.mkdir(mode=OWNER_ONLY)
        except OSError as error:
            raise Unavailable(f"{self.folder} cannot be created: {error}. {REMEDY}") from error

    def close(self) -> None:
        """Delete the folder with its content. A second call, or one in a forked child, has no effect."""
        if self._process == os.getpid():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._liveness_lock.close()

    def __exit__(self, *_failure: object) -> None:
        self.close()


def scratch_root(settings: Settings) -> Path:
    """Return the folder of this user, below the setting `scratch_dir`; default: the system's folder for temporary files.

    Raises:
        InvalidRequest: the setting is a relative path, which would be another folder for each process.
    """
    above = Path(settings.scratch_dir).expanduser() if settings.scratch_dir else Path(tempfile.gettempdir()).absolute()
    if not above.is_absolute():
        raise InvalidRequest(f"The setting scratch_dir must be an absolute path, not {settings.scratch_dir!r}.")
    return above / f"siltstone-{os.getuid()}"


def sweep_all(settings: Settings) -> int:
    """Sweep the folder of this user. A worker's folder is inside the folder of its parent process: those are swept, too.

    Folders that cannot be swept are left, because a purge has done its work by then.
    """
    removed = 0
    try:
        root = scratch_root(settings)
    except InvalidRequest:
        return removed
    while True:
        with suppress(OSError, Unavailable):  # a later sweep deletes what cannot be deleted now
            removed += sweep(root)
        if not _OWNER.match(root.parent.name) or root.parent.parent.name != root.name:
            return removed
        root = root.parent.parent


def dead_folders(root: Path) -> list[Path]:
    """Return the folders of processes that ended without deleting them."""
    if root.is_symlink() or not root.is_dir() or root.stat().st_uid != os.getuid():
        return []
    folders = [path for path in root.iterdir() if _OWNER.match(path.name) and path.is_dir() and not path.is_symlink()]
    return sorted(path for path in folders if not is_live(root / LIVE, path.name))


def sweep(root: Path) -> int:
    """Delete the folders of dead processes; return their number. A folder that cannot be deleted is left for the next sweep."""
    dead = dead_folders(root)
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)
    if dead or (root / LIVE).is_dir():
        sweep_dead(root / LIVE)
    return sum(not path.exists() for path in dead)
