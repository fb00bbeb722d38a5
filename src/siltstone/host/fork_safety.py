"""Forked children: operations that are refused after `os.fork`, and locks that a child must not inherit.

A forked child has the memory of its parent but none of its threads. delta-rs, the writer queue and background work need their
threads. So a lake that the parent has used cannot be used in the child, not even by opening it again. `check` refuses it. A
child of a process that has only opened lakes may use them.

A child also inherits file handles, and a file lock lasts until its last handle is closed. A child that lives on would make a
dead parent look alive. So the child closes every lock that is in `own`. The parent retains its own handle, and the lock.
"""

import os
from contextlib import suppress
from typing import Final

from siltstone.errors import Unavailable

_handles: Final[set[int]] = set()
"""Open handles that hold a lock."""


class _Process:
    """State of this process."""

    uses_tables = False
    """True once a table was opened and native threads may run."""
    is_child_of_user = False
    """True in a child that was forked after a table was opened."""


def check() -> None:
    """Record that this process uses tables.

    Raises:
        Unavailable: the process was forked from a process that uses tables.
    """
    if _Process.is_child_of_user:
        raise Unavailable(
            "This process was forked after its parent used a lake, and a lake does not work across a fork; nothing was done. "
            "Use the start method spawn or forkserver of multiprocessing, or fork before the first use of a lake."
        )
    _Process.uses_tables = True


def own(handle: int) -> int:
    """Register a handle that holds a lock, so that children close it; return the handle."""
    _handles.add(handle)
    return handle


def close(handle: int) -> None:
    """Close a registered handle. In a child, which has already closed it, this has no effect."""
    if handle in _handles:
        _handles.discard(handle)
        os.close(handle)


def _in_child() -> None:
    _Process.is_child_of_user = _Process.is_child_of_user or _Process.uses_tables
    while _handles:
        with suppress(OSError):  # it was already closed
            os.close(_handles.pop())


os.register_at_fork(after_in_child=_in_child)
