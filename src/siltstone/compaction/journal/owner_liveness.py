"""Whether the owner of a cycle is alive, by the locks of this machine and by the lease.

1. On this machine the liveness lock decides, immediately, as long as the process lives.
2. An owner on another machine is alive while it holds the lease, because it renews the lease. It may write no event
   for days, because a job may take days.
3. An owner is dead if the epoch of its lease is below ours, or after a day without events. It is also dead if it ran
   before this machine was restarted.

A host name proves nothing, because two machines may have the same. If a live owner is taken for dead, only its work is
lost. Its commits are checked like any other, and its events are refused.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from siltstone.clock import NS_PER_SECOND, Clock, epoch_ns
from siltstone.compaction.journal.journal import OpenCycle
from siltstone.compaction.journal.records import Owner
from siltstone.coordination.host_identity import installation, machine
from siltstone.coordination.liveness import is_live
from siltstone.errors import SiltstoneError
from siltstone.model.lease import LeaseRow

SILENT_HOURS: Final = 24.0
"""Hours without an event after which an owner counts as dead, if it cannot be observed and holds no lease."""

Holder = Callable[[], LeaseRow | None]
"""Returns the row of the lease holder; None if the lease is free."""


class OwnerState(StrEnum):
    """Liveness of the owner of a cycle, as far as it can be observed."""

    ALIVE = "alive"
    """Its cycle is left alone, no matter how long it takes."""
    SUPERSEDED = "superseded"
    """The owner is alive on this machine and has lost its lease to us. It may hang for ever."""
    DEAD = "dead"


class OwnerLiveness:
    """Decides whether owners of cycles are alive."""

    def __init__(self, folder: Path, *, clock: Clock, holder: Holder) -> None:
        self._folder = folder
        self._clock = clock
        self._holder = holder

    def state(self, cycle: OpenCycle, epoch: int | None) -> OwnerState:
        """Return the state of a cycle's owner; `epoch` is that of our lease, if we hold one."""
        owner = cycle.owner
        if owner is None:  # without a job nothing is running; without a readable job the owner is unknown
            is_dead = not cycle.unreadable or self._is_silent(cycle)
            return OwnerState.DEAD if is_dead else OwnerState.ALIVE
        superseded = epoch is not None and cycle.epoch is not None and cycle.epoch < epoch
        if owner.machine == machine():
            if not is_live(self._folder, owner.id):
                return OwnerState.DEAD
            return OwnerState.SUPERSEDED if superseded else OwnerState.ALIVE
        if superseded:
            return OwnerState.DEAD
        if self._holds_lease(cycle, owner):
            return OwnerState.ALIVE
        # an owner of this machine that the check above has not found ran before the machine's last restart
        ran_before_restart = owner.installation != "" and owner.installation == installation()
        return OwnerState.DEAD if ran_before_restart or self._is_silent(cycle) else OwnerState.ALIVE

    def age_hours(self, at: int) -> float:
        """Return the hours since a moment, given in nanoseconds."""
        return (epoch_ns(self._clock.now()) - at) / NS_PER_SECOND / 3600

    def _is_silent(self, cycle: OpenCycle) -> bool:
        return self.age_hours(cycle.build.updated_at) > SILENT_HOURS

    def _holds_lease(self, cycle: OpenCycle, owner: Owner) -> bool:
        """True if the owner still holds the lease of a cycle. A lease that cannot be read counts as held."""
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
