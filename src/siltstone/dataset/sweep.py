"""The sweep of a lake: what crashed creates and drops left behind, and rows of the registry that nobody needs any more.

The order of looking is the safety of it all: first the listing of the disk, then who is alive, then the registry's log. A folder
or file that was on disk and whose owner was dead before the log was read is either named by that log or never will be.
A crash on the way leaves less than before; the sweep can be run again.
"""

import re
import shutil
from pathlib import Path
from typing import Final

from siltstone.dataset.registry import Registry, remove_empty_parents
from siltstone.storage.layout import DATA, SYSTEM, Layout
from siltstone.storage.presence import is_live

INCARNATION: Final = re.compile(r"[0-9a-f]{32}")


def sweep(registry: Registry, layout: Layout) -> list[Path]:
    """Sweep the lake; return the folders that were removed."""
    if not layout.is_lake():
        return []
    removed = _sweep_folders(registry, layout)
    _sweep_rows(registry, layout)
    return removed


def _sweep_folders(registry: Registry, layout: Layout) -> list[Path]:
    """Finish crashed drops and creates: folders that the registry does not name and nobody is making."""
    idle = [path for path in _incarnations(layout) if not is_live(layout.work, path.name)]
    rows = registry.rows()  # after `idle`: who has registered is named here
    named = {layout.dataset(row.name, row.incarnation) for row in rows if row.is_live}
    dropped = {layout.dataset(row.name, row.incarnation): row for row in rows if not row.is_live}
    removed = [path for path in idle if path not in named]
    for path in removed:
        if path in dropped:
            registry.bury(dropped[path])
        else:
            shutil.rmtree(path, ignore_errors=True)
            remove_empty_parents(path, layout)
    return removed


def _incarnations(layout: Layout) -> list[Path]:
    """Return every folder that was made for a dataset, by its place and shape."""
    found = [catalog for catalog in _inside(layout.root) if catalog.name != SYSTEM]
    for _ in ("schema", "table", "incarnation"):
        found = [inner for folder in found for inner in _inside(folder)]
    return [path for path in found if INCARNATION.fullmatch(path.name)]


def _inside(folder: Path) -> list[Path]:
    """List a folder; one that a drop has just removed is empty."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sweep_rows(registry: Registry, layout: Layout) -> None:
    """Delete the registry's files that no reader can need: replaced longer ago than the retention, or never registered."""
    idle = [path for path in (layout.registry / DATA).glob("*.parquet") if not is_live(layout.work, path.stem)]
    needed = registry.needed_files()  # after `idle`: what was committed is named here
    for path in idle:
        if path.relative_to(layout.registry).as_posix() not in needed:
            path.unlink(missing_ok=True)
