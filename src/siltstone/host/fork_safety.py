"""Forked children: what a process must not do after `os.fork`, and which locks it must not inherit.

A forked child has the memory of its parent and none of its threads. delta-rs, the writer queue and background work need theirs:
a lake that the parent has used cannot be used in the child, not even by opening it again. `check` refuses it. A child of a
process that has only opened lakes may use them.

A child also inherits file handles, and a file lock lasts until its last handle is closed. A child that lives on would make a
dead parent look alive. So the child closes every lock that is in `own`; the parent keeps its own handle, and the lock.
"""

import os
from typing import Final

from siltstone.errors import Unavailable

_handles: Final[set[int]] = set()
"""Open handles that hold a lock."""


class _Process:
    """What is known of this process."""

    uses_tables = False
    """True once a table was opened, and native threads may run."""
    is_child_of_user = False
    """True in a child that was forked after that."""


def check() -> None:
    """Note that this process uses tables.

    Raises:
        Unavailable: it was forked from a process that did.
    """
    if _Process.is_child_of_user:
        raise Unavailable(
            "This process was forked after its parent used a lake, and a lake does not work across a fork; nothing was done. "
            "Use the start method spawn or forkserver of multiprocessing, or fork before the first use of a lake."
        )
    _Process.uses_tables = True


def own(handle: int) -> int:
    """Return a handle that holds a lock, and let children close it."""
    _handles.add(handle)
    return handle


def close(handle: int) -> None:
    """Close a handle that was given to `own`; in a child, which has closed it, do nothing."""
    if handle in _handles:
        _handles.discard(handle)
        os.close(handle)


def _in_child() -> None:
    _Process.is_child_of_user = _Process.is_child_of_user or _Process.uses_tables
    while _handles:
        handle = _handles.pop()
        try:
            os.close(handle)
        except OSError:  # it was closed already
            continue


os.register_at_fork(after_in_child=_in_child)
