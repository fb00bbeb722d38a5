"""Queries that run: each by its id, with a time limit that counts from the start of the call.

1. `Run` is made when a call begins. Its limit covers reading the text, translating, starting an engine, planning and fetching.
2. One thread, the `Watchman`, ends runs whose time is up, and interrupts their engine again and again until it stops.
3. The caller waits for the answer or for `Run.given_up`: an engine that does not stop is left alone after `GRACE_SECONDS`.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from siltstone.errors import Conflict, NotFound, Reason, Unavailable

TICK_SECONDS: Final = 0.05
"""How often running queries are looked at, and an engine is told to end: it forgets what comes before its work begins."""
IDLE_TICKS: Final = 100
"""So long the watchman stays when nothing runs: starting a thread for each query would take longer than most of them."""
GRACE_SECONDS: Final = 0.5
"""Time for an engine to end a query in good order; after it the caller gets the error, whatever the engine does."""
CLOSING_SECONDS: Final = 10.0
"""How long a lake that is closed waits for the queries that it has ended."""


def time_is_up(seconds: float) -> Unavailable:
    """Return what to raise when a query has used up its time limit."""
    return Unavailable(
        f"The query took longer than {seconds:g} s and was ended. Nothing was changed. Ask for less, or raise the limit "
        "(timeout=, --timeout or the setting query_seconds).",
        reason=Reason.TIME_LIMIT,
    )


class Cancellation:
    """A way to end a query from another thread: before it, while it runs, or in vain."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._limit = 0.0
        self._at = math.inf

    def cancel(self) -> None:
        """End the query; its caller gets Unavailable."""
        self._at = min(self._at, time.monotonic())
        self._asked.set()

    def expire(self, seconds: float) -> None:
        """End the query because its time limit of so many seconds is used up."""
        if not self.asked:
            self._limit = seconds
        self.cancel()

    @property
    def asked(self) -> bool:
        """True once the end was requested."""
        return self._asked.is_set()

    @property
    def seconds_ago(self) -> float:
        """How long ago the end was requested; negative if it was not."""
        return time.monotonic() - self._at

    def wait(self, seconds: float | None) -> bool:
        """Wait for the request to end; return whether it was made."""
        return self._asked.wait(seconds)

    def error(self) -> Unavailable:
        """Return what to raise where the query was ended."""
        return (
            time_is_up(self._limit) if self._limit else Unavailable("The query was cancelled.", reason=Reason.CANCELLED)
        )


class Run:
    """One query while it runs. `query_id` names it, `seconds` is its time limit, 0 for none; the time starts now."""

    def __init__(self, query_id: str, seconds: float, *, cancellation: Cancellation | None = None) -> None:
        self.query_id = query_id
        self.seconds = seconds
        self.cancellation = cancellation or Cancellation()
        self.since = 0
        """How often kept answers had been forgotten when it began to read."""
        self._ends = time.monotonic() + seconds if seconds else math.inf
        self._interrupts: list[Callable[[], object]] = []
        self._abandoned = False

    def cancel(self) -> None:
        """End it."""
        self.cancellation.cancel()

    def ended(self) -> Unavailable:
        """Return what to raise where it was ended."""
        return self.cancellation.error()

    @property
    def was_ended(self) -> bool:
        """True once its time was up or it was cancelled."""
        if time.monotonic() >= self._ends and not self.cancellation.asked:
            self.cancellation.expire(self.seconds)
        return self.cancellation.asked

    def check(self) -> None:
        """Raise Unavailable if it is to end."""
        if self.was_ended:
            raise self.ended()

    def given_up(self) -> Unavailable | None:
        """Return what the caller gets if the query was ended and its engine does not stop; None while it may wait."""
        if self.was_ended and self.cancellation.seconds_ago >= GRACE_SECONDS:
            self.abandon()
            return self.ended()
        return None

    def abandon(self) -> None:
        """Note that its caller waits for it no more."""
        self._abandoned = True

    @property
    def is_awaited(self) -> bool:
        """True if a lake that is closed has to wait for its end: its caller does, or it reads the lake's memory."""
        return not self._abandoned or bool(self._interrupts)

    def look(self) -> None:
        """Interrupt what works for it if it is to end."""
        if self.was_ended:
            for interrupt in list(self._interrupts):
                interrupt()

    @contextmanager
    def watched(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Have `interrupt` called, again and again until the block is left, once the query is to end."""
        self.check()
        self._interrupts.append(interrupt)
        try:
            yield
        finally:
            self._interrupts.remove(interrupt)


class Watchman:
    """One thread that ends what is to end; it comes with the first query and goes when nothing runs for a while."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()

    @contextmanager
    def over(self, run: Run) -> Iterator[None]:
        """Watch for the length of a block; after it nothing is interrupted any more."""
        with self._mutex:
            self._runs.append(run)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="silt-queries", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._mutex:
                self._runs.remove(run)

    def _watch(self) -> None:
        idle = 0
        while True:
            time.sleep(TICK_SECONDS)
            with self._mutex:
                self._look()
                idle = 0 if self._runs else idle + 1
                if idle > IDLE_TICKS:
                    self._thread = None
                    return

    def _look(self) -> None:
        """Look at all of them; in a function of its own, so that the thread holds none while it sleeps."""
        for one in self._runs:
            one.look()


class Running:
    """The queries of this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._watchman = Watchman()
        self._mutex = threading.Lock()
        self._none_left = threading.Condition(self._mutex)

    @contextmanager
    def listed(self, run: Run) -> Iterator[None]:
        """List and watch a query for the length of a block, which is that of its work.

        Raises:
            Conflict: one with that id runs already.
        """
        with self._mutex:
            if run.query_id in self._runs:
                raise Conflict(f"A query with the id {run.query_id!r} is running already. Choose another id.")
            self._runs[run.query_id] = run
        try:
            with self._watchman.over(run):
                yield
        finally:
            with self._mutex:
                del self._runs[run.query_id]
                self._none_left.notify_all()

    def cancel(self, query_id: str) -> None:
        """End a query; its caller gets Unavailable.

        Raises:
            NotFound: no query with that id runs here.
        """
        with self._mutex:
            run = self._runs.get(query_id)
        if run is None:
            raise NotFound(f"No query with the id {query_id!r} is running in this process.")
        run.cancel()

    def end_all(self) -> None:
        """End every query, and wait for a bounded time until none runs any more that is waited for."""
        with self._mutex:
            runs = list(self._runs.values())
        for run in runs:
            run.cancel()
        with self._none_left:
            self._none_left.wait_for(
                lambda: not any(run in runs and run.is_awaited for run in self._runs.values()), CLOSING_SECONDS
            )

    def ids(self) -> list[str]:
        """Return the ids of the queries that run."""
        with self._mutex:
            return list(self._runs)
