"""Work after the acknowledgement: one background thread per process, which writes checkpoints and cleans logs.

Nothing here can fail a write. Errors are discarded, and later commits try again.
"""

import contextlib
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.delta.checkpoints import try_checkpoint_and_clean
from siltstone.delta.log_reader import list_log
from siltstone.delta.log_replay import LogChanged
from siltstone.delta.table import Table
from siltstone.errors import SiltstoneError
from siltstone.host.deferred_interrupts import Uninterrupted

PAUSE_SECONDS: Final = 1.0
"""Shortest time between two checkpoints of one log, in seconds. Ignored after `HURRIED` checkpoint intervals of commits."""
HURRIED: Final = 10
LIVE_FILES_PER_COMMIT: Final = 1000
"""Live files for which a checkpoint waits one more commit. Its cost grows with the live files."""


class Background:
    """Runs tasks one after the other. A task of one kind for one path is never queued twice."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[tuple[str, Path], Future[str | None]] = {}

    def start(self, kind: str, path: Path, task: Callable[[], str | None]) -> bool:
        """Start a task, unless the same task is running; return whether it was started.

        The task returns the text of its error, or None.
        """
        with Uninterrupted(), self._mutex:  # pools and futures are Python code, too (see `group_commit`)
            running = self._running.get((kind, path))
            if running is not None and not running.done():
                return False
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="siltstone-background")
            try:
                self._running[kind, path] = self._pool.submit(task)
            except RuntimeError:  # the interpreter shuts down and accepts no more work
                return False
            return True

    def close(self) -> None:
        """Wait for the running tasks."""
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)


class BackgroundCheckpoints:
    """Keeps the logs of tables short."""

    def __init__(self, background: Background, *, settings: Settings, clock: Clock) -> None:
        self._background = background
        self._settings = settings
        self._clock = clock
        self._mutex = threading.Lock()
        self._last: dict[Path, int] = {}
        self._checkpointed_at: dict[Path, float] = {}

    def notice(self, table: Table, version: int, *, then: Callable[[Table], object] | None = None) -> None:
        """Record a commit. Once per checkpoint interval write a checkpoint, clean the log, then call `then`."""
        with contextlib.suppress(SiltstoneError, LogChanged, OSError), self._mutex:
            # several processes may each make a few commits: the log shows when the last checkpoint was
            if table.path not in self._last:
                self._last[table.path] = max(0, list_log(table.path).newest_checkpoint)
            since = version - self._last[table.path]
            interval = self._settings.checkpoint_interval_commits
            if since < interval:
                return
            now = self._clock.monotonic_seconds()
            if now < self._checkpointed_at.get(table.path, -math.inf) + PAUSE_SECONDS and since < HURRIED * interval:
                return
            if since < len(table.files()) // LIVE_FILES_PER_COMMIT:  # last, because it lists the files
                return
            if self._background.start("checkpoint", table.path, partial(self._checkpoint, table, then)):
                self._last[table.path] = version
                self._checkpointed_at[table.path] = now

    def _checkpoint(self, table: Table, then: Callable[[Table], object] | None) -> str | None:
        failure = try_checkpoint_and_clean(
            table.path, retention=table.retention, durable=self._settings.durable, clock=self._clock
        )
        if failure is None and then is not None:
            then(table)
        return failure
