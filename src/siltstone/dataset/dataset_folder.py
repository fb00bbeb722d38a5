"""The folder of one incarnation of a dataset: its marker, and the proof that it may be deleted.

`create` writes a *marker* into the folder before the tables: the dataset's name and the incarnation. A folder is
deleted only with proof that it is ours and no longer needed:

* the registry records the drop of this incarnation, or both tables carry the mark `siltstone.dropped`;
* its name is ``<incarnation>.dropped`` and its marker names that incarnation: an interrupted removal;
* its marker names its own path and the tables hold no data: an interrupted create;
* it holds only checkpoints, each of a table of ours: one was being written while a drop removed the rest;
* it holds only folders of our tables, without any file.

Symbolic links are never followed. Every other folder stays, whatever its name. A folder that holds a dataset is
reported (`dataset.adoption`). The marker is deleted last, so that an interrupted removal can be finished.
"""

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from siltstone.coordination.liveness import is_live
from siltstone.delta.checkpoint_checksums import checkpoint_lock
from siltstone.delta.commit_lock import LOCK_FILE
from siltstone.delta.fsync import sync_directory, sync_file
from siltstone.delta.layout import BASE, CHANGES, LOG, Layout, has_versions
from siltstone.delta.log_reader import checkpointed_properties, entry_version, is_checkpoint, is_draft, read_entry
from siltstone.errors import SiltstoneError, Unavailable
from siltstone.failpoints import reach
from siltstone.model.names import DatasetName
from siltstone.model.spec import PROPERTY_DROPPED, PROPERTY_SPEC

MARKER: Final = "siltstone-dataset.json"
INCARNATION: Final = re.compile(r"[0-9a-f]{32}\Z")
REMOVED: Final = re.compile(r"(?P<incarnation>[0-9a-f]{32})(?P<ending>\.dropped|\.unused)\Z")
DROPPED_ENDING: Final = ".dropped"
UNUSED_ENDING: Final = ".unused"
_CHECKPOINT_SECONDS: Final = 10.0
"""Longest wait for a checkpoint of each table before a folder is renamed. A large checkpoint takes seconds."""
LAST_OF_CREATION: Final = 1
"""Highest version that a creation writes: the table, and for some columns a feature that they need."""


class Content(StrEnum):
    """Content of a folder at the path of an incarnation, by its own evidence."""

    DATASET = "dataset"
    """Tables of ours with committed data or a history."""
    UNUSED = "unused"
    """Our marker, and tables without a commit besides their creation, which may be incomplete."""
    DROPPED = "dropped"
    """Tables of ours that carry the mark of a drop."""
    EMPTY = "empty"
    """Folders of our tables without any file. Spark creates them for a job whose dataset is dropped meanwhile."""
    FOREIGN = "foreign"
    """Nothing that Siltstone provably wrote, or an interrupted create of a Siltstone that wrote no markers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Content of the marker: the dataset that the folder was created for."""

    dataset: str
    incarnation: str


def write_marker(folder: Path, marker: Marker, *, durable: bool) -> None:
    """Write the marker in one step. A crash leaves no marker, or a draft beside it that is part of the folder."""
    draft = folder / f".{MARKER}"
    draft.write_text(json.dumps(asdict(marker)))
    if durable:
        sync_file(draft)
    draft.replace(folder / MARKER)
    if durable:
        sync_directory(folder)


def read_marker(folder: Path) -> Marker | None:
    """Return the marker; None if it is missing or not a valid marker."""
    path = folder / MARKER
    try:
        if path.is_symlink():
            return None
        fields = json.loads(path.read_text())
        return Marker(dataset=str(fields["dataset"]), incarnation=str(fields["incarnation"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def content_of(folder: Path, name: DatasetName) -> Content:
    """Classify the content of a folder. Unreadable content counts as data."""
    if has_only_checkpoints(folder):
        return Content.DROPPED
    tables = [_properties(folder / table) for table in (CHANGES, BASE)]
    ours = [properties for properties in tables if properties is not None and PROPERTY_SPEC in properties]
    if ours and all(PROPERTY_DROPPED in properties for properties in ours):
        return Content.DROPPED
    marker = read_marker(folder)
    if marker is None:
        if _is_empty(folder):
            return Content.EMPTY
        return Content.DATASET if ours and not is_unused(folder) else Content.FOREIGN
    is_here = marker == Marker(dataset=str(name), incarnation=folder.name)
    return Content.UNUSED if is_here and is_unused(folder) else Content.DATASET


def _properties(table: Path) -> Mapping[str, str] | None:
    """Return a table's properties; None if it cannot be read. Nothing is repaired: it may be another program's."""
    try:
        return DeltaTable(table).metadata().configuration if has_versions(table) else None
    except (DeltaError, OSError):
        return None


def has_only_checkpoints(folder: Path) -> bool:
    """True if a folder holds only checkpoints of our tables, which were being written while a drop removed the rest."""
    try:
        files = list(_files(folder))
        tables = {path.parent.parent for path in files}
        return (
            bool(files)
            and all(path.parent.name == LOG and not path.is_symlink() and is_checkpoint(path.name) for path in files)
            and all(table.parent == folder and table.name in (CHANGES, BASE) for table in tables)
            and all(PROPERTY_SPEC in checkpointed_properties(table) for table in tables)
        )
    except (OSError, SiltstoneError):
        return False


def is_unused(folder: Path) -> bool:
    """Return whether nothing was committed here since both tables were created; False where that cannot be read."""
    try:
        return all(map(_is_of_creation, _files(folder)))
    except (OSError, SiltstoneError):
        return False


def _is_empty(folder: Path) -> bool:
    """True if a folder holds only the folders of our tables, and these hold no file."""
    try:
        inside = {path.name for path in folder.iterdir()}
        return bool(inside) and inside <= {CHANGES, BASE} and next(_files(folder), None) is None
    except OSError:
        return False


def _files(folder: Path) -> Iterator[Path]:
    """List every file and link below a folder, without following links."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path


def _is_of_creation(path: Path) -> bool:
    if path.is_symlink():
        return False
    if path.name in (MARKER, f".{MARKER}", LOCK_FILE):
        return True
    version = entry_version(path.name)
    if path.parent.name != LOG or version is None:
        return path.parent.name == LOG and is_draft(path.name)
    if version <= LAST_OF_CREATION and not path.stat().st_size:  # a power cut; a table with data has other files, too
        return True
    entry = read_entry(path.parent.parent, version)
    return not entry.adds and not entry.transactions and not entry.removes


def is_removed(folder: Path) -> bool:
    """Return whether an interrupted removal left a folder: its name shows it, and its marker, or it is empty."""
    named = REMOVED.match(folder.name)
    if named is None:
        return False
    marker = read_marker(folder)
    if marker is not None:
        return marker.incarnation == named["incarnation"]
    with contextlib.suppress(FileNotFoundError):  # another process has removed it
        return not any(folder.iterdir())
    return False


def remove_folder(folder: Path) -> None:
    """Delete a folder without following links, the marker last. Failed deletions are left to the next sweep.

    All is deleted through one handle of the folder, so a link that replaces it meanwhile is not followed.
    """
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in os.listdir(handle):  # noqa: PTH208  # a handle is not a path
                if name != MARKER:
                    _remove(name, handle)
            if os.listdir(handle) in ([MARKER], []):  # noqa: PTH208
                _remove(MARKER, handle)
                folder.rmdir()
        finally:
            os.close(handle)


def _remove(name: str, handle: int) -> None:
    """Delete one file, link or folder of an open folder."""
    with contextlib.suppress(FileNotFoundError):  # another process removes it
        if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=handle)
        else:
            os.unlink(name, dir_fd=handle)


def remove_incarnation(folder: Path, name: DatasetName, *, ending: str) -> None:
    """Rename a folder and delete it, because no reader may find a log that is half deleted.

    No checkpoint is being written during the rename, because delta-rs would create the folder again. The wait for a
    checkpoint is bounded by `_CHECKPOINT_SECONDS`. A crash leaves the renamed folder with its marker, which the next
    sweep deletes.

    Unavailable: the folder cannot be renamed. Nothing was deleted.
    """
    with contextlib.suppress(OSError):  # a full disk must not prevent the deletion of files
        if read_marker(folder) is None:  # made by an older Siltstone
            write_marker(folder, Marker(dataset=str(name), incarnation=folder.name), durable=False)
    removed = folder.with_name(folder.name + ending)
    if removed.is_dir() and is_removed(removed):  # the folder came back after an interrupted removal
        remove_folder(removed)
    with contextlib.ExitStack() as locks:
        for table in (CHANGES, BASE):
            with contextlib.suppress(Unavailable, OSError):  # no such table, or a checkpoint takes too long
                locks.enter_context(checkpoint_lock(folder / table, seconds=_CHECKPOINT_SECONDS))
        try:
            folder.rename(removed)
        except FileNotFoundError:
            return  # another process removes it
        except OSError as error:
            raise Unavailable(
                f"Dataset {name}: it was dropped, but its files in {folder} cannot be removed ({error}). Check the permissions "
                f"of {folder.parent}. The next compaction cycle removes them then."
            ) from error
    reach("drop.after_rename")
    if ending == UNUSED_ENDING and not is_unused(removed):  # a writer committed between the first check and the rename
        removed.rename(folder)
        return
    remove_folder(removed)


def remove_empty(folder: Path) -> None:
    """Remove a folder and the folders in it, as far as they hold no file. A file that was written meanwhile stays."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if not path.is_symlink():
                remove_empty(path)
        folder.rmdir()


def dataset_folders(layout: Layout, name: DatasetName) -> list[Path]:
    """List the folders of a name that hold a dataset and that no process is creating, registered ones included."""
    above = layout.dataset(name, "")
    if not above.is_dir() or layout.link_in(above):
        return []
    try:
        paths = list(above.iterdir())
    except FileNotFoundError:  # a drop has removed the empty folder
        return []
    idle = [path for path in paths if INCARNATION.match(path.name) and not is_live(layout.liveness, path.name)]
    return [path for path in idle if content_of(path, name) is Content.DATASET]


def missing_tables(folder: Path) -> list[str]:
    """Return which of the two tables of an incarnation are not on disk. One without permission counts as present."""
    missing: list[str] = []
    for table in (CHANGES, BASE):
        with contextlib.suppress(PermissionError):
            missing += [] if has_versions(folder / table) else [table]
    return missing
