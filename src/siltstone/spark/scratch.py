"""Scratch: where Spark spills, and where everything is that a JVM of ours writes beside a lake.

Spark's blocks, shuffle files, spills, artifacts and native libraries hold rows of users. They are all in one folder for
each process, below ``<scratch_dir>/siltstone-<user id>``, which only its owner can enter::

    siltstone-1000/
      live/<id>      the lock of a live owner (`presence.py`); a crash releases it
      <id>/          the folder of that owner

A folder is taken in this order: lock, then folder. So a folder without a live lock is that of a dead process, and `sweep`
removes it. Every start of a JVM, every purge and ``silt doctor`` sweep.
"""

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from siltstone.clock import Clock, SystemClock
from siltstone.config import Settings
from siltstone.coordination.liveness import Presence, is_live, sweep_dead
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.host.private_folders import OWNER_ONLY, private_folder

LIVE: Final = "live"
REMEDY: Final = "Set scratch_dir to a folder in which you may make folders."
_OWNER: Final = re.compile(r"[0-9a-f]{32}\Z")


class Scratch:
    """A folder for one process. `close` removes it; after a crash the next sweep does."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        """Sweep what dead processes left, and take a fresh folder.

        Raises:
            Unavailable: the folder cannot be made, or belongs to another user.
        """
        root = private_folder(scratch_root(settings), remedy=REMEDY)
        sweep(root)
        owner = (SystemClock() if clock is None else clock).new_id()
        self.folder: Final = root / owner
        self._process = os.getpid()
        try:
            self._presence = Presence(root / LIVE, owner)
            self.folder.mkdir(mode=OWNER_ONLY)
        except OSError as error:
            raise Unavailable(f"{self.folder} cannot be made: {error}. {REMEDY}") from error

    def close(self) -> None:
        """Remove the folder with all that is in it; a second call, or one in a forked child, does nothing."""
        if self._process == os.getpid():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._presence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()


def scratch_root(settings: Settings) -> Path:
    """Return the folder of this user: below the setting `scratch_dir`, else the system's folder for temporary files.

    Raises:
        InvalidRequest: the setting is a relative path, which each process would take for another folder.
    """
    above = Path(settings.scratch_dir).expanduser() if settings.scratch_dir else Path(tempfile.gettempdir()).absolute()
    if not above.is_absolute():
        raise InvalidRequest(f"The setting scratch_dir takes an absolute path, not {settings.scratch_dir!r}.")
    return above / f"siltstone-{os.getuid()}"


def sweep_all(settings: Settings) -> int:
    """Sweep the folder of this user. A worker's is in the folder of its parent process: the ones above are swept, too.

    What cannot be swept is left: a purge has done its work by then.
    """
    removed = 0
    try:
        root = scratch_root(settings)
    except InvalidRequest:
        return removed
    while True:
        with suppress(OSError, Unavailable):  # what cannot be removed now is removed by a later sweep
            removed += sweep(root)
        if not _OWNER.match(root.parent.name) or root.parent.parent.name != root.name:
            return removed
        root = root.parent.parent


def dead_folders(root: Path) -> list[Path]:
    """Return the folders that processes left which have ended without removing them."""
    if root.is_symlink() or not root.is_dir() or root.stat().st_uid != os.getuid():
        return []
    found = [path for path in root.iterdir() if _OWNER.match(path.name) and path.is_dir() and not path.is_symlink()]
    return sorted(path for path in found if not is_live(root / LIVE, path.name))


def sweep(root: Path) -> int:
    """Remove the folders of dead processes; return how many. One that cannot be removed is left for the next sweep."""
    doomed = dead_folders(root)
    for path in doomed:
        shutil.rmtree(path, ignore_errors=True)
    if doomed or (root / LIVE).is_dir():
        sweep_dead(root / LIVE)
    return sum(not path.exists() for path in doomed)
