"""A clock that a test moves."""

import datetime
import time
import uuid
from typing import Final

START: Final = datetime.datetime(2026, 11, 15, 14, 0, 30, tzinfo=datetime.UTC)
_SPIN_SECONDS: Final = 0.0005
"""A sleep returns at once, but yields to other threads.

So waiting for a lock does not set the clock forward by hours.
"""


class FakeClock:
    """A clock that only a test moves. The time of day can jump; the monotonic time never does."""

    def __init__(self, now: datetime.datetime = START, *, jitter: float = 0.0) -> None:
        self._now = now
        self._monotonic_seconds = 1000.0
        self.next_jitter = jitter

    def pass_time(self, **given: float) -> None:
        """Advance the clock, with the arguments of `timedelta`."""
        passed = datetime.timedelta(**given)
        self._now += passed
        self._monotonic_seconds += passed.total_seconds()

    def jump(self, **given: float) -> None:
        """Set the time of day forwards or back; the monotonic time is unchanged."""
        self._now += datetime.timedelta(**given)

    def now(self) -> datetime.datetime:
        return self._now

    def monotonic_seconds(self) -> float:
        return self._monotonic_seconds

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, _SPIN_SECONDS))
        self.pass_time(seconds=seconds)

    def new_id(self) -> str:
        return uuid.uuid4().hex  # noqa: TID251  # ids are unique at any time

    def jitter(self) -> float:
        return self.next_jitter
