"""Whether the owner of a cycle lives: what the locks of this machine say, what the lease says, and what nobody can say.

1. On this machine the presence lock says so, at once, for as long as the process lives.
2. An owner on another machine lives while it holds the lease: it renews it. That it has written no event for days means only that
   a job of it takes days.
3. It is dead if the epoch of its lease is below ours, if it ran before this machine was started anew, or after a day of silence.

A host name proves nothing: two machines may have the same one. Whoever is called dead by mistake does work for nothing: its
commits are checked like any other, and its events are refused.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from siltstone.clock import Clock, epoch_ns
from siltstone.compaction.journal.journal import OpenCycle
from siltstone.compaction.journal.records import NS_PER_SECOND, Owner
from siltstone.coordination.host_identity import installation, machine
from siltstone.coordination.liveness import is_live
from siltstone.errors import SiltstoneError
from siltstone.model.lease import LeaseRow

SILENT_HOURS: Final = 24.0
"""An owner on another machine that holds no lease and has written nothing for so long is taken for dead."""

Holder = Callable[[], LeaseRow | None]
"""Returns the row of whoever holds the lease now, as far as can be told; None if nobody does."""


class Life(StrEnum):
    """What can be said of the owner of a cycle."""

    LIVES = "lives"
    """Its cycle is left alone, however long it takes."""
    OVERTAKEN = "overtaken"
    """It lives and has lost its lease to us: it may hang for ever."""
    DEAD = "dead"
    UNKNOWN = "unknown"


class Owners:
    """Judges the owners of cycles."""

    def __init__(self, work: Path, *, clock: Clock, holder: Holder) -> None:
        """Take where presences are, and who knows the lease."""
        self._work = work
        self._clock = clock
        self._holder = holder

    def life(self, cycle: OpenCycle, epoch: int | None) -> Life:
        """Judge the owner of a cycle; `epoch` is that of our lease, if we hold one."""
        owner = cycle.owner
        if owner is None:
            return Life.UNKNOWN if cycle.unreadable else Life.DEAD  # no job at all: nothing is under way
        overtaken = epoch is not None and cycle.epoch is not None and cycle.epoch < epoch
        if owner.machine == machine():
            here = Life.OVERTAKEN if overtaken else Life.LIVES
            return here if is_live(self._work, owner.id) else Life.DEAD
        if overtaken:
            return Life.DEAD
        if self._holds_lease(cycle, owner):
            return Life.LIVES
        gone = _ran_before(owner) or self.age_hours(cycle.build.updated_at) > SILENT_HOURS
        return Life.DEAD if gone else Life.UNKNOWN

    def age_hours(self, at: int) -> float:
        """Return how long ago a moment was, given in nanoseconds."""
        return (epoch_ns(self._clock.now()) - at) / NS_PER_SECOND / 3600

    def _holds_lease(self, cycle: OpenCycle, owner: Owner) -> bool:
        """Tell whether the lease under which a cycle runs is held; one that cannot be read is no free lease."""
        epoch = cycle.epoch
        if epoch is None:
            return False
        try:
            row = self._holder()
        except SiltstoneError:
            return True
        if row is None:
            return False
        same = (row.machine, row.host, row.pid) == (owner.machine, owner.host, owner.pid)
        return row.epoch == epoch or (same and epoch_ns(row.since) <= cycle.build.created_at)  # its epoch was raised


def _ran_before(owner: Owner) -> bool:
    """Tell whether an owner of another running kernel ran here, before this machine was started anew."""
    return owner.installation != "" and owner.installation == installation()
