"""The commit lock: a short advisory lock that orders the commit attempts of several processes at one table.

It saves work and guarantees nothing. A process waits at most a second for it, then commits without it. The commit is
correct either way. A crash releases the lock. Its holder is in an `Uninterrupted` block. An interrupt before the `with`
block would otherwise leave the lock held.
"""

import os
from pathlib import Path
from typing import Final

from siltstone.clock import Clock
from siltstone.host.file_lock import lock_within
from siltstone.host.fork_safety import close, own

LOCK_FILE: Final = "_commit_lock"
LOCK_SECONDS: Final = 1.0
"""Longest wait for the lock, in seconds, before an attempt without it. The lock only saves work."""
_POLL_SECONDS: Final = 0.0005
_POLL_JITTER_SECONDS: Final = 0.001


class CommitLock:
    """The commit lock of one table, as a context manager."""

    def __init__(self, table: Path, *, clock: Clock) -> None:
        """Open the table's lock file and create it if necessary. An OSError means that the table cannot be written."""
        self._clock = clock
        self._handle = own(
            os.open(f"{table}/{LOCK_FILE}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        )

    def __enter__(self) -> None:
        """Wait for the lock among the processes of this machine, for a bounded time."""
        lock_within(
            self._handle,
            LOCK_SECONDS,
            clock=self._clock,
            poll_seconds=_POLL_SECONDS,
            jitter_seconds=_POLL_JITTER_SECONDS,
        )

    def __exit__(self, *_: object) -> None:
        close(self._handle)
