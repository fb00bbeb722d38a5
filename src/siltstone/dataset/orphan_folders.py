"""The sweep of a lake: removes folders that crashed creates and drops left, and registry files that no reader needs.

The order of the steps makes it safe: list the disk, find live owners, read the registry's log. Take a folder or file
that was on disk, with a dead owner, before the log was read. That log names it, or no log ever will. `dataset_folder`
decides which folder may be deleted: only one with proof that it is ours and no longer needed. No link is followed. A
crash leaves less than before; the sweep can be run again.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from siltstone.coordination.liveness import is_live
from siltstone.dataset.dataset_folder import (
    DROPPED_ENDING,
    INCARNATION,
    REMOVED,
    UNUSED_ENDING,
    Content,
    content_of,
    is_removed,
    is_unused,
    remove_empty,
    remove_folder,
    remove_incarnation,
)
from siltstone.dataset.registry import Registration, Registry, remove_empty_parents
from siltstone.delta.layout import DATA, SYSTEM, Layout
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.model.names import DatasetName

_ENDINGS: Final = {Content.DROPPED: DROPPED_ENDING, Content.UNUSED: UNUSED_ENDING}
"""Content that may be deleted, with the ending of the folder's name during its removal."""


@dataclass(frozen=True, slots=True)
class UnregisteredFolder:
    """A folder at the path of an incarnation, by its name alone."""

    name: DatasetName
    path: Path


def sweep(registry: Registry, layout: Layout) -> list[Path]:
    """Sweep the lake; return the folders that were removed. A folder that cannot be removed is left to the next sweep."""
    if not layout.is_lake():
        return []
    removed = []
    for folder, dropped in _unnamed(registry, layout):  # interrupted drops and creates
        with contextlib.suppress(Unavailable):  # one folder that cannot be removed must not end the sweep
            if dropped is not None:
                registry.remove_dropped(dropped)
            elif REMOVED.match(folder.path.name):
                _finish_removal(folder.path)
            elif (content := content_of(folder.path, folder.name)) is Content.EMPTY:
                remove_empty(folder.path)
            elif ending := _ENDINGS.get(content):
                remove_incarnation(folder.path, folder.name, ending=ending)
        if not folder.path.exists():
            remove_empty_parents(folder.path, layout)
            removed.append(folder.path)
    _sweep_rows(registry, layout)
    return removed


def unregistered_folders(registry: Registry, layout: Layout) -> list[UnregisteredFolder]:
    """List the folders with a dataset that the registry does not name and no process is creating; nothing is changed.

    If the registry was lost, all folders with datasets are listed.
    """
    idle = [folder for folder, row in _unnamed(registry, layout) if row is None and INCARNATION.match(folder.path.name)]
    return [folder for folder in idle if content_of(folder.path, folder.name) is Content.DATASET]


def _finish_removal(path: Path) -> None:
    """Delete the rest of an interrupted removal. A created dataset that a writer has used since gets its name back."""
    if not is_removed(path):
        return
    if path.name.endswith(UNUSED_ENDING) and not is_unused(path):
        path.rename(path.with_name(path.name.removesuffix(UNUSED_ENDING)))
    else:
        remove_folder(path)


def _unnamed(registry: Registry, layout: Layout) -> list[tuple[UnregisteredFolder, Registration | None]]:
    """List the idle folders that no live row of the registry names, each with the row that records its drop."""
    idle = [folder for folder in _incarnations(layout) if not is_live(layout.liveness, folder.path.name)]
    rows = registry.rows() if layout.is_lake() else []  # after `idle`: what was registered meanwhile is named here
    named = {layout.dataset(row.name, row.incarnation) for row in rows if row.is_live}
    dropped = {layout.dataset(row.name, row.incarnation): row for row in rows if not row.is_live}
    return [(folder, dropped.get(folder.path)) for folder in idle if folder.path not in named]


def _incarnations(layout: Layout) -> Iterator[UnregisteredFolder]:
    """List every folder with the path and name of an incarnation. Links are skipped at every level."""
    for catalog in _folders(layout.root):
        for path in (p for schema in _folders(catalog) for table in _folders(schema) for p in _folders(table)):
            if catalog.name != SYSTEM and (INCARNATION.match(path.name) or REMOVED.match(path.name)):
                try:
                    yield UnregisteredFolder(DatasetName.parse(".".join(path.relative_to(layout.root).parts[:3])), path)
                except InvalidRequest:
                    continue  # no dataset can have that name


def _folders(folder: Path) -> list[Path]:
    """List the folders in a folder, without links. A removed or inaccessible folder has nothing to delete."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _sweep_rows(registry: Registry, layout: Layout) -> None:
    """Delete the registry's files that no reader can need: replaced before the retention, or never registered."""
    if layout.link_in(layout.registry / DATA):
        return
    idle = [path for path in (layout.registry / DATA).glob("*.parquet") if not is_live(layout.liveness, path.stem)]
    needed = registry.needed_files()  # after `idle`: what was committed is named here
    for path in idle:
        if path.relative_to(layout.registry).as_posix() not in needed:
            path.unlink(missing_ok=True)
