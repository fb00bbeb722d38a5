"""Paths that a Delta log names: each must lead to a file below its own table.

A log is data that another user may have written. Delta allows absolute paths, URLs and ``..`` in it, and a file system allows
links. A reader that follows one shows a file of its own user as rows of the lake. A compactor copies it into the lake.
Siltstone writes none of these, so each function here raises Corruption for a table that has one.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from siltstone.delta.layout import is_link
from siltstone.errors import Corruption

_OUTSIDE: Final = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|\A[A-Za-z][A-Za-z0-9+.-]*:|[\x00-\x1f\\]")
"""An empty part, ``.`` or ``..`` (so also a leading slash); a scheme; characters that some reader treats as a separator."""

LISTED_FROM: Final = 16
"""Number of files in one folder from which the folder is listed instead of checking each file."""


def checked(path: str) -> str:
    """Return a path from a log if it can only lead below the table.

    >>> checked("data/ab12/0/part-0.parquet")
    'data/ab12/0/part-0.parquet'
    """
    if _OUTSIDE.search(path):
        raise Corruption(
            f"The log names the file {path!r}, which is not below its table; it was not read. "
            "Restore the log from a copy that you trust."
        )
    return path


def check_links(table: Path, paths: Iterable[str]) -> None:
    """Refuse files that are symbolic links, or that are below a linked folder of the table. Missing files are skipped."""
    by_folder: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, set()).add(name)
    folders = [folder.split("/") for folder in by_folder if folder]
    for above in {"/".join(parts[:count]) for parts in folders for count in range(1, len(parts) + 1)}:
        if is_link(f"{table}/{above}"):
            raise _refused(table, above)
    for folder, names in by_folder.items():
        for name in _links(f"{table}/{folder}" if folder else str(table), names):
            raise _refused(table, f"{folder}/{name}" if folder else name)


def _links(folder: str, names: set[str]) -> list[str]:
    """Return which of these files are links."""
    if len(names) < LISTED_FROM:
        return [name for name in names if is_link(f"{folder}/{name}")]
    try:
        with os.scandir(folder) as items:
            return sorted(item.name for item in items if item.name in names and item.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _refused(table: Path, path: str) -> Corruption:
    return Corruption(
        f"{table}/{path} is a symbolic link; it was not read. A table's files must be in its own folder. "
        "Replace the link by the file if you trust it."
    )
