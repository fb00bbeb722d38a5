"""The holder of a lease, and whether another process can acquire it. Pure. `coordination.leases` explains the rules."""

import datetime
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MARGIN_SECONDS: Final = 60.0
"""Allowed difference between the clocks of two machines, in seconds. With more, a lease may seem expired too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """The current or last holder of a lease. Times are those of the holder's clock."""

    name: str
    epoch: int
    holder: str
    machine: str
    host: str
    pid: int
    role: str
    since: datetime.datetime
    renewed_at: datetime.datetime
    expires_at: datetime.datetime
    ttl_seconds: float
    released: bool = False

    def described(self) -> str:
        """Return the holder as text, for messages."""
        since = f"{self.since:%Y-%m-%d %H:%M:%S} UTC"
        return f"process {self.pid} on {self.host} (role {self.role}, epoch {self.epoch}, since {since})"


class LeaseState(StrEnum):
    """The state of a lease for a process that wants to acquire it."""

    FREE = "free"
    HELD = "held"
    DEAD = "dead"
    EXPIRED = "expired"


def lease_state(
    row: LeaseRow | None, *, unchanged_seconds: float, now: datetime.datetime, present: bool | None
) -> LeaseState:
    """Return the state of a lease. Pure.

    Args:
        row: the row; None if the lease was never held.
        unchanged_seconds: seconds by our monotonic clock for which the row has not changed.
        now: our wall-clock time.
        present: whether the holder's liveness lock is held; None if the holder is on another machine.
    """
    if row is None or row.released:
        return LeaseState.FREE
    if present is False:
        return LeaseState.DEAD
    if unchanged_seconds >= row.ttl_seconds:
        return LeaseState.EXPIRED
    if present is None and now > row.expires_at + datetime.timedelta(seconds=MARGIN_SECONDS):
        return LeaseState.EXPIRED
    return LeaseState.HELD
