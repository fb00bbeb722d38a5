"""The folder for files of this user that can be rebuilt: jars, class archives, projections, totals."""

import os
from collections.abc import Mapping
from pathlib import Path

from siltstone.host.private_folders import private_folder


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder for everything that can be rebuilt."""
    environment = os.environ if environment is None else environment
    root = environment.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "siltstone"


def private_cache(name: str) -> Path:
    """Return a folder of the cache that only its owner can enter, for files with user data. Raises as `private_folder`."""
    return private_folder(cache_folder() / name, remedy="Set XDG_CACHE_HOME to a folder of your own.")
