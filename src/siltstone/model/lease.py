"""Who holds a lease, and whether it can be taken. Pure; `coordination.leases` keeps the rows and says what the rules are for."""

import datetime
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MARGIN_SECONDS: Final = 60.0
"""How far the clocks of two machines may be apart before one believes the other's lease to be over too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """Who holds a lease, or held it last. Times are those of the holder's clock, for people."""

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
        """Say who it is, for messages."""
        since = f"{self.since:%Y-%m-%d %H:%M:%S} UTC"
        return f"process {self.pid} on {self.host} (role {self.role}, epoch {self.epoch}, since {since})"


class LeaseState(StrEnum):
    """How a lease stands for somebody who wants it."""

    FREE = "free"
    HELD = "held"
    DEAD = "dead"
    EXPIRED = "expired"


def lease_state(
    row: LeaseRow | None, *, unchanged_seconds: float, now: datetime.datetime, present: bool | None
) -> LeaseState:
    """Judge a lease. Pure.

    Args:
        row: the row, None if nobody ever held the lease.
        unchanged_seconds: for how long we have seen exactly this row, by our monotonic clock.
        now: our time of day.
        present: whether the holder's presence is locked; None if it is on another machine and cannot be seen.
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
