"""Work after the acknowledgement: one background thread of a process, and the tidying of logs on it.

Nothing here can fail a write: what goes wrong is returned to nobody, and the next commits try again.
"""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.delta.checkpoints import try_tidy_log
from siltstone.delta.log_reader import list_log
from siltstone.delta.table import Table

PAUSE_SECONDS: Final = 1.0
"""Where commits come fast a log is tidied once in so long, or after `HURRIED` times as many commits."""
HURRIED: Final = 10
LIVE_FILES_PER_COMMIT: Final = 1000
"""A checkpoint costs by live files, so a table with many waits longer: one commit for each thousand."""

Work = Callable[[], str | None]
"""Something to do; it returns what went wrong."""


class Background:
    """Does one thing after the other, each kind of work at a place once at a time."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[tuple[str, Path], Future[str | None]] = {}

    def start(self, kind: str, place: Path, work: Work) -> bool:
        """Start work, unless the same is running; return whether it was started."""
        with self._mutex:
            running = self._running.get((kind, place))
            if running is not None and not running.done():
                return False
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="siltstone-upkeep")
            try:
                self._running[kind, place] = self._pool.submit(work)
            except RuntimeError:  # the interpreter is ending and starts nothing any more
                return False
            return True

    def close(self) -> None:
        """Wait for what is running."""
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)


class Tidying:
    """Keeps the logs of tables short."""

    def __init__(self, background: Background, *, settings: Settings, clock: Clock) -> None:
        """Tidy on this thread."""
        self._background = background
        self._settings = settings
        self._clock = clock
        self._mutex = threading.Lock()
        self._last: dict[Path, int] = {}
        self._tidied_at: dict[Path, float] = {}

    def notice(self, table: Table, version: int, *, then: Callable[[Table], object] | None = None) -> None:
        """Take note of a commit; every so many, the table's log is tidied, and `then` something else is done."""
        with self._mutex:
            if (
                table.path not in self._last
            ):  # many processes may each make a few commits: the log knows when it was last
                self._last[table.path] = max(0, list_log(table.path).newest_checkpoint)
            since = version - self._last[table.path]
            interval = self._settings.checkpoint_interval_commits
            if since < interval:
                return
            now = self._clock.monotonic_seconds()
            if now < self._tidied_at.get(table.path, -math.inf) + PAUSE_SECONDS and since < HURRIED * interval:
                return
            if since < len(table.files()) // LIVE_FILES_PER_COMMIT:  # last: it costs by files
                return
            if self._background.start("tidy", table.path, partial(self._tidy, table, then)):
                self._last[table.path] = version
                self._tidied_at[table.path] = now

    def _tidy(self, table: Table, then: Callable[[Table], object] | None) -> str | None:
        failure = try_tidy_log(table.path, retention=table.retention, durable=self._settings.durable, clock=self._clock)
        if failure is None and then is not None:
            then(table)
        return failure
