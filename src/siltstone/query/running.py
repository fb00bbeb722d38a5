"""Queries that run: each by its id, so that another thread can end it, or its time limit can."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from siltstone.errors import Conflict, NotFound, Unavailable

REPEAT_SECONDS: Final = 0.05
"""How often an engine is told to end: it forgets an interrupt that comes before its work begins."""


class Run:
    """One query while it runs. `query_id` names it, `seconds` is its time limit, 0 for none."""

    def __init__(self, query_id: str, seconds: float) -> None:
        self.query_id = query_id
        self.seconds = seconds
        self.cancelled = False
        self._late = False
        self._wake = threading.Event()
        self._listeners: list[Callable[[], object]] = []
        self._mutex = threading.Lock()

    def cancel(self) -> None:
        """End it."""
        with self._mutex:
            self.cancelled = True
            listeners = list(self._listeners)
        self._wake.set()
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
        if self._late:
            return Unavailable(
                f"The query took longer than {self.seconds:g} s and was ended. Ask for less, or raise the limit "
                "(timeout=, --timeout or the setting query_seconds)."
            )
        return Unavailable("The query was cancelled.")

    @property
    def was_ended(self) -> bool:
        """True once its time was up or somebody cancelled it."""
        return self.cancelled or self._late

    @contextmanager
    def watched(self, interrupt: Callable[[], object], *, seconds: float) -> Iterator[None]:
        """Have `interrupt` called, again and again until the block is left, once so much time is up or somebody cancels."""
        if self.cancelled:
            raise self.ended()
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(interrupt, done, seconds), name="silt-query", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            self._wake.set()
            watcher.join()
            if not self.cancelled:
                self._wake.clear()

    def _watch(self, interrupt: Callable[[], object], done: threading.Event, seconds: float) -> None:
        self._wake.wait(seconds or None)
        if done.is_set():
            return
        self._late = not self.cancelled
        interrupt()
        while not done.wait(REPEAT_SECONDS):
            interrupt()


class Running:
    """The queries of this process. Safe to share between threads."""

    def __init__(self) -> None:
        """None runs yet."""
        self._runs: dict[str, Run] = {}
        self._mutex = threading.Lock()

    @contextmanager
    def run(self, query_id: str, *, seconds: float) -> Iterator[Run]:
        """Take a query into the list for the length of a block.

        Raises:
            Conflict: one with that id runs already.
        """
        run = Run(query_id, seconds)
        with self._mutex:
            if query_id in self._runs:
                raise Conflict(f"A query with the id {query_id!r} is running already. Choose another id.")
            self._runs[query_id] = run
        try:
            yield run
        finally:
            with self._mutex:
                del self._runs[query_id]

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

    def ids(self) -> list[str]:
        """Return the ids of the queries that run."""
        with self._mutex:
            return list(self._runs)
