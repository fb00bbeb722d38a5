"""Where time, ids and randomness come from, so that tests can hold them still.

No clock ever decides what a reader sees: visibility is decided by sequences alone. Time is information for
people, and the measure for retentions and time-outs.
"""

import datetime
import random
import time
import uuid
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """The time of day, a monotonic time for durations, sleep, fresh ids and jitter."""

    def now(self) -> datetime.datetime:
        """Return the time of day in UTC."""
        ...

    def monotonic_seconds(self) -> float:
        """Return seconds that never run backwards, for measuring durations."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def new_id(self) -> str:
        """Return a fresh id of 32 hex digits."""
        ...

    def jitter(self) -> float:
        """Return a number in [0, 1) that spreads retries."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's own clock and randomness."""

    _random: random.Random = field(default_factory=random.SystemRandom)

    def now(self) -> datetime.datetime:
        """Return the time of day in UTC."""
        return datetime.datetime.now(datetime.UTC)

    def monotonic_seconds(self) -> float:
        """Return seconds that never run backwards."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def new_id(self) -> str:
        """Return a fresh id of 32 hex digits."""
        return uuid.uuid4().hex

    def jitter(self) -> float:
        """Return a number in [0, 1) that spreads retries."""
        return self._random.random()


def epoch_ns(moment: datetime.datetime) -> int:
    """Return a moment as nanoseconds since 1970."""
    return epoch_ms(moment) * 1_000_000


def epoch_ms(moment: datetime.datetime) -> int:
    """Return milliseconds since 1970, as Delta log entries count time."""
    return int(moment.timestamp() * 1000)


def utc_text(moment: datetime.datetime, *, timespec: str) -> str:
    """Return a time as every report and output writes it: ISO 8601 in UTC, with ``Z``.

    >>> utc_text(datetime.datetime(2026, 11, 16, 8, tzinfo=datetime.UTC), timespec="seconds")
    '2026-11-16T08:00:00Z'
    """
    return moment.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
