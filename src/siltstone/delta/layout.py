"""File and folder names below a lake's folder. Every path of the project is built here.

::

    <lake>/
      <catalog>/<schema>/<table>/<incarnation>/base/      compacted rows
      <catalog>/<schema>/<table>/<incarnation>/changes/   everything not yet folded
      <catalog>/<schema>/<table>/<incarnation>/siltstone-dataset.json   the marker: name and incarnation
      _system/datasets/                                   the registry
      _system/events/                                     the journal of compaction cycles
      _system/leases/                                     which process may run compactions
      _system/audit/                                      which actor tombstoned rows, and the reason
      _system/compactor/                                  state files: status, last cycle, paused, stop
      _system/hot/                                        directives for hot caches, and their status
      _system/liveness/                                   liveness locks of writers and jobs
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from siltstone.errors import InvalidRequest, Unavailable
from siltstone.model.names import DatasetName

SYSTEM: Final = "_system"
JOURNAL: Final = "_system/events"
"""Name of the lake's own event log wherever a dataset name is expected."""
REGISTRY: Final = "_system/datasets"
BASE: Final = "base"
CHANGES: Final = "changes"
AUDIT: Final = "audit"
DATA: Final = "data"
LOG: Final = "_delta_log"
_SQUASHED: Final = "squashed-"
_OWNER: Final = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one lake."""

    root: Path

    @classmethod
    def at(cls, path: str | Path) -> "Layout":
        """Return the layout of a folder. Raises as `local_folder` does."""
        return cls(local_folder(path, what="Lake path"))

    @property
    def registry(self) -> Path:
        """The registry's Delta table."""
        return self.root / REGISTRY

    @property
    def events(self) -> Path:
        """The Delta table of the journal, an event log."""
        return self.root / JOURNAL

    @property
    def leases(self) -> Path:
        """The Delta table of leases."""
        return self.root / SYSTEM / "leases"

    @property
    def audit(self) -> Path:
        """Audit records of tombstones, a file for each incarnation."""
        return self.root / SYSTEM / AUDIT

    @property
    def compactor(self) -> Path:
        """State files of the compactor."""
        return self.root / SYSTEM / "compactor"

    @property
    def hot(self) -> Path:
        """Directives for the hot caches of this lake, and their status."""
        return self.root / SYSTEM / "hot"

    @property
    def liveness(self) -> Path:
        """Liveness locks of running writers and jobs."""
        return self.root / SYSTEM / "liveness"

    def dataset(self, name: DatasetName, incarnation: str) -> Path:
        """The folder of one incarnation of a dataset."""
        return self.root / name.catalog / name.schema / name.table / incarnation

    def link_in(self, path: Path) -> Path | None:
        """Return the first symbolic link between the lake's folder and a path below it, the path included, or None.

        The target of a link is not ours to delete.
        """
        inner = str(self.root)
        for part in path.relative_to(self.root).parts:
            inner = f"{inner}/{part}"
            if is_link(inner):
                return Path(inner)
        return None

    def is_lake(self) -> bool:
        """True once the first dataset was created.

        Raises:
            Unavailable: the operating system does not let this process read the folder.
        """
        try:
            return has_versions(self.registry)
        except OSError as error:
            raise Unavailable(f"Lake {self.root} cannot be read ({error}). Check its permissions.") from error


def expanded(path: str | Path, *, what: str) -> Path:
    """Return an absolute path, with ``~`` and ``~user`` replaced. `what` names it in errors."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:  # pathlib's error for a user without a home
        raise InvalidRequest(f"{what} {str(path)!r}: that user has no home folder. Name the folder in full.") from error


def local_folder(path: str | Path, *, what: str) -> Path:
    """Return a folder of this machine, given absolute or relative, that exists or can be created. `what` names it in errors.

    Raises:
        InvalidRequest: the path is a file, an address that is not a local path, or not a path.
        Unavailable: the operating system does not let this process look for the folder.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidRequest(f"{what} must be text or a Path, not {type(path).__name__}.")
    text = os.fspath(path)
    if not text or "://" in text:
        raise InvalidRequest(f"{what} {text!r} must be a folder on this machine.")
    root = expanded(text, what=what)
    if patterns := sorted(set(str(root)) & set("[]{}*?%\\")):
        raise InvalidRequest(f"{what} {root}: Spark reads {patterns[0]!r} as a pattern. Choose another path.")
    try:
        existing = next(part for part in (root, *root.parents) if part.exists())
        is_folder = existing.is_dir()
    except OSError as error:
        raise Unavailable(f"{what} {root} cannot be read ({error}). Check the path and its permissions.") from error
    if not is_folder:
        raise InvalidRequest(f"{what} {root}: {existing} is a file, not a folder. Choose another path.")
    return root


def is_link(path: str) -> bool:
    """True for a symbolic link; False for a missing path."""
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def in_log(table: Path, name: str) -> str:
    """Return the path of a file in a table's log, as text. A commit needs a dozen, and building a Path is slow."""
    return f"{table}/{LOG}/{name}"


def entry_name(version: int) -> str:
    """The file name of a log entry.

    >>> entry_name(7)
    '00000000000000000007.json'
    """
    return f"{version:020d}.json"


def has_versions(table: Path) -> bool:
    """True if a Delta table exists. A log folder without entries belongs to an unfinished or crashed create."""
    try:
        with os.scandir(f"{table}/{LOG}") as items:
            return any(item.name[:20].isdigit() and item.name.endswith((".json", ".parquet")) for item in items)
    except (FileNotFoundError, NotADirectoryError):
        return False


def squashed_file(owner: str) -> str:
    """Return the path of a squash's file, below `changes`. It contains rows that were written before, unlike a staged file."""
    return f"{DATA}/{owner}/{_SQUASHED}{owner}.parquet"


def is_squashed(relative: str) -> bool:
    """True for the file of a squash.

    >>> is_squashed(squashed_file("ab12")), is_squashed("data/ab12.parquet")
    (True, False)
    """
    return relative.rsplit("/", 1)[-1].startswith(_SQUASHED)


def owner_of(relative: str) -> str | None:
    """Return the id of the writer or job of a data file: ``data/<owner>.parquet`` or ``data/<owner>/<attempt>/<file>``.

    >>> owner_of("data/ab12/0/part-0.parquet"), owner_of("data/cd34.parquet"), owner_of("_commit_lock")
    ('ab12', 'cd34', None)
    """
    parts = relative.split("/")
    if len(parts) < 2 or parts[0] != DATA:  # noqa: PLR2004
        return None
    return parts[1].removeprefix(".").split(".")[0]


def is_owned(relative: str) -> bool:
    """True if the path of a data file contains an owner id. Every writer and job of Siltstone adds one.

    >>> is_owned(f"data/{'ab' * 16}.parquet"), is_owned("data/copy.parquet"), is_owned("notes.txt")
    (True, False, False)
    """
    return bool(_OWNER.match(owner_of(relative) or ""))
