"""Queries that run: each by its id, so that another thread can end it, or its time limit can."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from siltstone.errors import Conflict, NotFound, Unavailable

TICK_SECONDS: Final = 0.05
"""How often running queries are looked at, and an engine is told to end: it forgets what comes before its work begins."""
IDLE_TICKS: Final = 100
"""So long the watchman stays when nothing runs: starting a thread for each query would take longer than most of them."""


class _Watched:
    """Something that runs until its time is up or its query is cancelled."""

    def __init__(self, run: "Run", interrupt: Callable[[], object], seconds: float) -> None:
        self.run = run
        self.interrupt = interrupt
        self.ends = time.monotonic() + seconds if seconds else None

    def look(self) -> None:
        """Interrupt it if it is to end."""
        if not self.run.was_ended and self.ends is not None and time.monotonic() >= self.ends:
            self.run.late = True
        if self.run.was_ended:
            self.interrupt()


CLOSING_SECONDS: Final = 10.0
"""How long a lake that is closed waits for the queries that it has ended."""


class Watchman:
    """One thread that ends what is to end; it comes with the first query and goes when nothing runs for a while."""

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()

    @contextmanager
    def over(self, watched: _Watched) -> Iterator[None]:
        """Watch for the length of a block; after it nothing is interrupted any more."""
        with self._mutex:
            self._watched.append(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="silt-queries", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._mutex:
                self._watched.remove(watched)

    def _watch(self) -> None:
        idle = 0
        while True:
            time.sleep(TICK_SECONDS)
            with self._mutex:
                self._look()
                idle = 0 if self._watched else idle + 1
                if idle > IDLE_TICKS:
                    self._thread = None
                    return

    def _look(self) -> None:
        """Look at all of them; in a function of its own, so that the thread holds none while it sleeps."""
        for one in self._watched:
            one.look()


class Run:
    """One query while it runs. `query_id` names it, `seconds` is its time limit, 0 for none."""

    def __init__(self, query_id: str, seconds: float, watchman: Watchman) -> None:
        self.query_id = query_id
        self.seconds = seconds
        self.cancelled = False
        self.late = False
        self.since = 0
        """How often kept answers had been forgotten when it began to read."""
        self._watchman = watchman
        self._listeners: list[Callable[[], object]] = []
        self._mutex = threading.Lock()

    def cancel(self) -> None:
        """End it."""
        with self._mutex:
            self.cancelled = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def on_cancel(self, listener: Callable[[], object]) -> None:
        """Have something called when somebody cancels; at once, if somebody has."""
        with self._mutex:
            self._listeners.append(listener)
        if self.cancelled:
            listener()

    def ended(self) -> Unavailable:
        """Return what to raise where it was ended."""
        if self.late:
            return Unavailable(
                f"The query took longer than {self.seconds:g} s and was ended. Ask for less, or raise the limit "
                "(timeout=, --timeout or the setting query_seconds)."
            )
        return Unavailable("The query was cancelled.")

    @property
    def was_ended(self) -> bool:
        """True once its time was up or somebody cancelled it."""
        return self.cancelled or self.late

    @contextmanager
    def watched(self, interrupt: Callable[[], object], *, seconds: float) -> Iterator[None]:
        """Have `interrupt` called, again and again until the block is left, once so much time is up or somebody cancels."""
        if self.cancelled:
            raise self.ended()
        with self._watchman.over(_Watched(self, interrupt, seconds)):
            yield


class Running:
    """The queries of this process. Safe to share between threads."""

    def __init__(self) -> None:
        """None runs yet."""
        self._runs: dict[str, Run] = {}
        self._watchman = Watchman()
        self._mutex = threading.Lock()
        self._none_left = threading.Condition(self._mutex)

    @contextmanager
    def run(self, query_id: str, *, seconds: float) -> Iterator[Run]:
        """Take a query into the list for the length of a block.

        Raises:
            Conflict: one with that id runs already.
        """
        run = Run(query_id, seconds, self._watchman)
        with self._mutex:
            if query_id in self._runs:
                raise Conflict(f"A query with the id {query_id!r} is running already. Choose another id.")
            self._runs[query_id] = run
        try:
            yield run
        finally:
            with self._mutex:
                del self._runs[query_id]
                self._none_left.notify_all()

    def cancel(self, query_id: str) -> None:
        """End a query; whoever waits for it gets Unavailable.

        Raises:
            NotFound: no query with that id runs here.
        """
        with self._mutex:
            run = self._runs.get(query_id)
        if run is None:
            raise NotFound(f"No query with the id {query_id!r} is running in this process.")
        run.cancel()

    def end_all(self) -> None:
        """End every query, and wait for a bounded time until none runs any more."""
        with self._mutex:
            runs = list(self._runs.values())
        for run in runs:
            run.cancel()
        with self._none_left:
            self._none_left.wait_for(lambda: not any(run in runs for run in self._runs.values()), CLOSING_SECONDS)

    def ids(self) -> list[str]:
        """Return the ids of the queries that run."""
        with self._mutex:
            return list(self._runs)
