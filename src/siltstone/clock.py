"""Source of time, ids and randomness, which tests can replace.

No clock decides what a reader sees: visibility is decided by sequences alone. Time is information for users, and the measure for
retentions and time-outs.
"""

import datetime
import random
import time
import uuid
from dataclasses import dataclass, field
from typing import Final, Protocol

NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000
MS_PER_HOUR: Final = 3_600_000


class Clock(Protocol):
    """Time of day, monotonic time for durations, sleep, fresh ids and jitter."""

    def now(self) -> datetime.datetime:
        """Return the time of day in UTC."""

    def monotonic_seconds(self) -> float:
        """Return the monotonic time in seconds, for measuring durations."""

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""

    def new_id(self) -> str:
        """Return a fresh id of 32 hex digits."""

    def jitter(self) -> float:
        """Return a number in [0, 1) that spreads retries."""


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's own clock and randomness."""

    _random: random.Random = field(default_factory=random.SystemRandom)

    def now(self) -> datetime.datetime:
        """Return the time of day in UTC."""
        return datetime.datetime.now(datetime.UTC)

    def monotonic_seconds(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        time.sleep(seconds)

    def new_id(self) -> str:
        """Return a fresh id of 32 hex digits."""
        return uuid.uuid4().hex

    def jitter(self) -> float:
        """Return a number in [0, 1) that spreads retries."""
        return self._random.random()


def epoch_ns(moment: datetime.datetime) -> int:
    """Return a time in nanoseconds since 1970."""
    return epoch_ms(moment) * NS_PER_MS


def epoch_ms(moment: datetime.datetime) -> int:
    """Return a time in milliseconds since 1970, the unit of Delta log entries."""
    return int(moment.timestamp() * 1000)


def from_epoch_ms(at_ms: int) -> datetime.datetime:
    """Return the time of milliseconds since 1970, in UTC."""
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)


def utc_text(moment: datetime.datetime, *, timespec: str) -> str:
    """Return a time in the form of every report and output: ISO 8601 in UTC, with ``Z``.

    >>> utc_text(datetime.datetime(2026, 11, 16, 8, tzinfo=datetime.UTC), timespec="seconds")
    '2026-11-16T08:00:00Z'
    """
    return moment.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
