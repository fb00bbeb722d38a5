"""Folders that only their owner can enter. So files below them are protected whatever their own mode is."""

import os
import stat
from pathlib import Path
from typing import Final

from siltstone.errors import Unavailable

OWNER_ONLY: Final = 0o700
OTHERS: Final = 0o077
"""Permission bits of all users except the owner."""


def private_folder(path: Path, *, remedy: str) -> Path:
    """Create a folder, or use the existing one, for its owner only. `remedy` is the advice in error messages.

    Raises:
        Unavailable: the folder belongs to another user, is a link or a file, or cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=OWNER_ONLY, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise Unavailable(f"{path} is not a folder. {remedy}")
        if status.st_uid != os.getuid():
            raise Unavailable(f"{path} belongs to another user. {remedy}")
        if status.st_mode & OTHERS:
            path.chmod(OWNER_ONLY)
    except OSError as error:
        raise Unavailable(f"{path} cannot be used: {error}. {remedy}") from error
    return path
