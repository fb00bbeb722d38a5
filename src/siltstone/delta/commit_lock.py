"""The turn: a short advisory lock that orders the tries of several processes at one table.

It saves work and decides nothing: who does not get it within a second tries without it, and a commit is right either way.
A crash lets go of it. Whoever takes it is `uninterrupted`: an interrupt between the lock and its block would leave it taken.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final

from siltstone.clock import Clock
from siltstone.host.fork_safety import close, own

TURN: Final = "_turn"
TURN_SECONDS: Final = 1.0
"""How long to wait for a turn before trying without one: the turn is for speed only."""
_POLL_SECONDS: Final = 0.0005
_POLL_JITTER_SECONDS: Final = 0.001


class Turn:
    """One turn at one table, as a context manager."""

    def __init__(self, table: Path, *, clock: Clock) -> None:
        """Open the table's turn file, making it if need be; an OSError says that the table cannot be written."""
        self._clock = clock
        self._handle = own(os.open(f"{table}/{TURN}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))

    def __enter__(self) -> None:
        """Wait for the turn among the processes of this machine, for a bounded time."""
        deadline = self._clock.monotonic_seconds() + TURN_SECONDS
        while self._clock.monotonic_seconds() < deadline:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._clock.sleep(_POLL_SECONDS + _POLL_JITTER_SECONDS * self._clock.jitter())
            else:
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close(self._handle)
