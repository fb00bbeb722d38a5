"""Loads sqlglot from its Python source, also if its compiled form (``sqlglot[c]``) is installed.

The gate's parser is a subclass of sqlglot's, and compiled classes cannot have Python subclasses. The package
``sqlglotc`` puts compiled modules beside the source of the same names, and Python prefers them. The finder here prefers
the source. It is installed when `siltstone.query` is imported, and only if there are compiled modules.

A process that has imported the compiled modules before keeps them. `check_source` then rejects SQL, and names the
remedy.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Final

from siltstone.errors import Unavailable

PACKAGE: Final = "sqlglot"
_COMPILED: Final = "parser"
"""The module whose file shows whether the package is compiled."""


class SourceFinder:
    """Finds the modules of sqlglot as Python source, and no other module."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the location of a module's source; None leaves the module to other finders."""
        if path is None or not name.startswith(f"{PACKAGE}."):
            return None
        finders = (FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)) for folder in path)
        return next(filter(None, (finder.find_spec(name, target) for finder in finders)), None)


def prefer_source() -> None:
    """Install the finder if sqlglot is compiled and not imported yet."""
    if PACKAGE in sys.modules or SourceFinder in sys.meta_path:
        return
    package = PathFinder.find_spec(PACKAGE)
    folders = (package and package.submodule_search_locations) or ()
    if any(Path(folder, _COMPILED + suffix).exists() for folder in folders for suffix in EXTENSION_SUFFIXES):
        sys.meta_path.insert(0, SourceFinder)


def check_source() -> None:
    """Reject SQL if the parser is compiled.

    Raises:
        Unavailable: this process imported the compiled sqlglot before Siltstone's queries.
    """
    loaded = sys.modules[f"{PACKAGE}.{_COMPILED}"].__file__ or ""
    if not loaded.endswith(tuple(SOURCE_SUFFIXES)):
        raise Unavailable(
            "SQL cannot be read: this process has imported the compiled sqlglot, and Siltstone needs its Python source. "
            "Nothing was run. Run 'import siltstone.query' before sqlglot is imported, or uninstall sqlglotc."
        )
