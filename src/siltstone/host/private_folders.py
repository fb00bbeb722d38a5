"""Folders that only their owner can enter: what lies below them may be readable by its own mode."""

import os
import stat
from pathlib import Path
from typing import Final

from siltstone.errors import Unavailable

OWNER_ONLY: Final = 0o700
OTHERS: Final = 0o077
"""The permission bits of everybody but the owner."""


def private_folder(path: Path, *, remedy: str) -> Path:
    """Make a folder, or take the one that exists, for its owner only; `remedy` is what to do where that fails.

    Raises:
        Unavailable: it belongs to another user, is a link or a file, or cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=OWNER_ONLY, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise Unavailable(f"{path} is not a folder. {remedy}")
        if found.st_uid != os.getuid():
            raise Unavailable(f"{path} belongs to another user. {remedy}")
        if found.st_mode & OTHERS:
            path.chmod(OWNER_ONLY)
    except OSError as error:
        raise Unavailable(f"{path} cannot be used: {error}. {remedy}") from error
    return path
