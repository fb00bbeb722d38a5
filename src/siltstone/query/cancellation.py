"""Cancellation and time limits of queries: one way for both engines, for answers and for streams.

::

    caller ── InterruptibleExecutor ──► worker thread: admit, translate, start the engine, run, fetch
       │ waits; Ctrl-C and time limit                     │ ActiveQuery.interruptible(interrupt)
       ▼                                                  ▼
    ActiveQuery.cancel ◄── DeadlineMonitor ──► interrupter thread: interrupt() until the engine returns

1. `ActiveQuery` is created when a call begins. Its time limit covers everything until the last row.
2. A worker thread runs the query. The caller's thread only waits, because Python runs signal handlers there,
   between two steps.
3. `CancelToken` ends a query: after Ctrl-C, by its id, at its time limit, or because its lake is closed.
4. `DeadlineMonitor`, one thread, then interrupts the engine repeatedly, because engines forget an interrupt between two
   steps.
5. The caller waits `GRACE_SECONDS` more and gets the error. An engine that does not stop is left behind on its thread.

Work and results pass between threads by objects that are implemented in C: locks, lists, simple queues. Events,
conditions, futures and `queue.Queue` are Python code. Ctrl-C in the middle of it would leave their locks acquired.
"""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from siltstone.errors import Conflict, NotFound, Reason, Unavailable
from siltstone.host.deferred_interrupts import Uninterrupted

TICK_SECONDS: Final = 0.05
"""Interval at which deadlines are checked and engines are interrupted."""
IDLE_TICKS: Final = 100
"""Ticks without a query after which the monitor thread ends.

Starting it for each query would take longer than most queries.
"""
GRACE_SECONDS: Final = 0.5
"""Time for an engine to end a cancelled query; then the caller gets the error."""
CLOSING_SECONDS: Final = 10.0
"""Longest wait for cancelled queries when a lake is closed."""
IDLE_SECONDS: Final = 5.0
"""Time after which an idle worker thread ends."""
SIGNAL_SECONDS: Final = 0.1
"""Longest delay until the waiting caller handles a signal or its time limit."""
INTERRUPT_SECONDS: Final = 5.0
"""Longest wait after Ctrl-C for work that does not end."""
AHEAD: Final = 2
"""Items of a stream that are produced before the caller reads them."""

_T = TypeVar("_T")
GiveUp = Callable[[], BaseException | None]
"""Returns the error for a caller that must not wait any longer, None while it may wait."""


class CancelToken:
    """Cancels a query from another thread: before it starts, while it runs, or without effect after it."""

    def __init__(self) -> None:
        self._limit = 0.0
        self._at = math.inf

    def cancel(self) -> None:
        """Cancel the query; its caller gets Unavailable."""
        self._at = min(self._at, time.monotonic())

    def expire(self, seconds: float) -> None:
        """Cancel the query because it has used up its time limit of `seconds`."""
        if not self.is_cancelled:
            self._limit = seconds
        self.cancel()

    @property
    def is_cancelled(self) -> bool:
        """True once the query was cancelled, also by its time limit."""
        return self._at < math.inf

    @property
    def seconds_ago(self) -> float:
        """Seconds since the cancellation; negative without one."""
        return time.monotonic() - self._at

    def error(self) -> Unavailable:
        """Return the error for the caller of the cancelled query."""
        if not self._limit:
            return Unavailable("The query was cancelled.", reason=Reason.CANCELLED)
        return Unavailable(
            f"The query took longer than {self._limit:g} s and was ended. Nothing was changed. Request less, or raise the limit "
            "(timeout=, --timeout or the setting query_seconds).",
            reason=Reason.TIME_LIMIT,
        )


class ActiveQuery:
    """One query from the start of its call. Its time limit of `seconds` starts now; 0 means none."""

    def __init__(self, query_id: str, seconds: float = 0.0, *, token: CancelToken | None = None) -> None:
        self.query_id = query_id
        self.cache_generation = 0
        """Invalidations of the result cache when the query began to read."""
        self._token = token or CancelToken()
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds if seconds else math.inf
        self._interrupters: list[_Interrupter] = []
        self._is_abandoned = False

    def cancel(self) -> None:
        """Cancel the query."""
        self._token.cancel()

    def error(self) -> Unavailable:
        """Return the error for the caller of the cancelled query."""
        return self._token.error()

    @property
    def is_cancelled(self) -> bool:
        """True once the query was cancelled or its time is up."""
        if time.monotonic() >= self._deadline and not self._token.is_cancelled:
            self._token.expire(self._seconds)
        return self._token.is_cancelled

    def check(self) -> None:
        """Raise Unavailable if the query is cancelled."""
        if self.is_cancelled:
            raise self.error()

    def give_up(self) -> Unavailable | None:
        """Return the error for the caller if the query is cancelled and its engine has not stopped in time."""
        if self.is_cancelled and self._token.seconds_ago >= GRACE_SECONDS:
            self.abandon()
            return self.error()
        return None

    def abandon(self) -> None:
        """Record that the caller no longer waits for the query."""
        self._is_abandoned = True

    @property
    def blocks_close(self) -> bool:
        """True if the lake must not be closed: a caller waits for the query, or it reads the lake's memory."""
        return not self._is_abandoned or any(interrupter.in_process for interrupter in self._interrupters)

    @contextmanager
    def interruptible(
        self, interrupt: Callable[[], object], *, every: float = TICK_SECONDS, in_process: bool = False
    ) -> Iterator[None]:
        """Run a block on an engine that `interrupt` stops.

        Once the query is cancelled, another thread calls `interrupt` repeatedly until the block is left, and never
        after.

        Args:
            interrupt: stops the engine, or does nothing if the engine has not started yet.
            every: seconds between two calls.
            in_process: True if the engine reads memory of this process, so that the lake waits for it on close.

        Raises:
            Unavailable: the query is cancelled already.
        """
        self.check()
        interrupter = _Interrupter(interrupt, every, in_process=in_process)
        self._interrupters.append(interrupter)
        try:
            yield
        finally:
            self._interrupters.remove(interrupter)
            interrupter.stop()

    def enforce(self) -> None:
        """Start interrupting the engine if the query is cancelled. The monitor calls this at each tick."""
        if self.is_cancelled:
            for interrupter in list(self._interrupters):
                interrupter.start()


class _Interrupter:
    """Interrupts one engine on a thread of its own, because interrupting Spark is a call over the network."""

    def __init__(self, interrupt: Callable[[], object], every: float, *, in_process: bool) -> None:
        self.in_process = in_process
        self._interrupt, self._every = interrupt, every
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()

    def start(self) -> None:
        with self._mutex:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="silt-interrupter", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Return when no call is running, because the next query may use the same engine."""
        with self._mutex:
            self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._interrupt()
            self._stopped.wait(self._every)


class DeadlineMonitor:
    """One thread that enforces cancellations and time limits. It starts with the first query and ends when idle."""

    def __init__(self, queries: "Callable[[], Iterable[ActiveQuery]]") -> None:
        self._queries = queries
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()

    def ensure_running(self) -> None:
        """Start the thread if it is not running. A forked process has none of its parent's threads."""
        with self._mutex:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="silt-queries", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        idle = 0
        while True:
            time.sleep(TICK_SECONDS)
            with self._mutex:
                idle = 0 if self._enforce() else idle + 1
                if idle > IDLE_TICKS:
                    self._thread = None
                    return

    def _enforce(self) -> bool:
        """Enforce all queries, and return whether there are any. The sleeping thread holds no reference to a query."""
        queries = list(self._queries())
        for query in queries:
            query.enforce()
        return bool(queries)


class ActiveQueries:
    """The running queries of one lake in this process, by id. Thread-safe."""

    def __init__(self) -> None:
        self._queries: dict[str, ActiveQuery] = {}
        self._mutex = threading.Lock()
        self._monitor = DeadlineMonitor(self._all)

    @contextmanager
    def listed(self, query: ActiveQuery) -> Iterator[None]:
        """List and monitor a query while a block does its work."""
        with self._mutex:
            if query.query_id in self._queries:
                raise Conflict(f"A query with the id {query.query_id!r} is running already. Choose another id.")
            self._queries[query.query_id] = query
        try:
            self._monitor.ensure_running()
            yield
        finally:
            with self._mutex:
                del self._queries[query.query_id]

    def cancel(self, query_id: str) -> None:
        """Cancel a query; its caller gets Unavailable."""
        with self._mutex:
            query = self._queries.get(query_id)
        if query is None:
            raise NotFound(f"No query with the id {query_id!r} is running in this process.")
        query.cancel()

    def cancel_all(self) -> None:
        """Cancel every query, and wait for a bounded time for those that block a close."""
        queries = self._all()
        for query in queries:
            query.cancel()
        until = time.monotonic() + CLOSING_SECONDS
        while any(query in queries and query.blocks_close for query in self._all()) and time.monotonic() < until:
            time.sleep(TICK_SECONDS)

    def ids(self) -> list[str]:
        """Return the ids of the running queries."""
        return [query.query_id for query in self._all()]

    def _all(self) -> list[ActiveQuery]:
        with self._mutex:
            return list(self._queries.values())


class InterruptibleExecutor:
    """Runs calls on worker threads while their callers wait for signals and time limits. Thread-safe.

    Starting a thread takes as long as a small answer, so an idle one waits for the next call. An exception between a
    thread's claim and the hand-over of its job leaves a thread that ends by itself.
    """

    def __init__(self) -> None:
        self._idle: list[_WorkerThread] = []

    def run(self, work: Callable[[], _T], *, interrupt: Callable[[], object], give_up: GiveUp) -> _T:
        """Run work that may block its thread for long, and return its result.

        An exception in the waiting caller (Ctrl-C) interrupts the work. It is raised when that has ended, or after
        `INTERRUPT_SECONDS`. The error of `give_up` is raised at once; the work may go on.
        """
        job = _Job(work)
        error: BaseException | None = None
        try:
            self._claim().jobs.put(job.run)
            # a signal just before a wait does not end that wait, so each wait is short
            while error is None and not job.wait(SIGNAL_SECONDS):
                error = give_up()
        except BaseException:
            until = time.monotonic() + INTERRUPT_SECONDS
            while not (job.cancel() or job.is_done) and time.monotonic() < until:
                interrupt()
                job.wait(TICK_SECONDS)
            raise
        if error is not None:
            job.cancel()
            raise error
        return job.result()

    def _claim(self) -> "_WorkerThread":
        """Return a thread for one job: the one that became idle last, or a new one.

        A forked process has none of its parent's threads.
        """
        while True:
            try:
                thread = self._idle.pop()
            except IndexError:
                return _WorkerThread(self._idle)
            if thread.is_alive():
                return thread


class _Job(Generic[_T]):
    """Work for a worker thread, and its result."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self.is_done = False
        self._work = work
        self._claim = threading.Lock()
        """Acquired once: by the thread that starts the work, or by the caller that cancels it."""
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._result: _T
        self._error: BaseException | None = None

    def run(self, become_idle: Callable[[], None]) -> None:
        if self._claim.acquire(blocking=False):
            try:
                self._result = self._work()
            except BaseException as error:  # noqa: BLE001  # it is raised in the caller
                self._error = error
        become_idle()
        self.is_done = True
        self._ended.put(None)

    def cancel(self) -> bool:
        """Prevent the start of the work; return False if it has started."""
        return self._claim.acquire(blocking=False)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the work; return whether it has ended."""
        with contextlib.suppress(queue.Empty):
            self._ended.get(timeout=seconds)
        return self.is_done

    def result(self) -> _T:
        if self._error is not None:
            raise self._error
        return self._result


class _WorkerThread(threading.Thread):
    """Runs one job after another, and ends when idle. It holds no reference to a job that is done."""

    def __init__(self, idle: "list[_WorkerThread]") -> None:
        super().__init__(name="silt-query-worker", daemon=True)
        self.jobs: queue.SimpleQueue[Callable[[Callable[[], None]], None]] = queue.SimpleQueue()
        """Jobs. Each is called with the function that it must call at its end."""
        self._idle = idle
        with Uninterrupted():
            self.start()

    def run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        try:
            job = self.jobs.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            with contextlib.suppress(ValueError):  # claimed: its job is on the way, or the claimer was interrupted
                self._idle.remove(self)
                return False
            try:
                job = self.jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                return False
        job(lambda: self._idle.append(self))
        return True


def stream_from_thread(make: Callable[[], Iterator[_T]], *, end: Callable[[], object], give_up: GiveUp) -> Iterator[_T]:
    """Yield the items of an iterator that runs on its own thread, a few items ahead of the caller.

    `end` makes the iterator end early. It is called when the caller reads no further. The error of `give_up` is raised,
    and ends the iterator also while the caller reads nothing.
    """
    items: queue.SimpleQueue[tuple[str, _T | BaseException | None]] = queue.SimpleQueue()
    room: queue.SimpleQueue[None] = queue.SimpleQueue()  # one for each item that may be produced ahead
    for _ in range(AHEAD):
        room.put(None)
    is_closed = False

    def is_over() -> bool:
        return is_closed or give_up() is not None

    def put(kind: str, item: "_T | BaseException | None") -> None:
        while not is_over():
            with contextlib.suppress(queue.Empty):
                room.get(timeout=SIGNAL_SECONDS)
                items.put((kind, item))
                return

    def work() -> None:
        try:
            for item in make():
                put("item", item)
                if is_over():
                    return
            put("end", None)
        except BaseException as error:  # noqa: BLE001  # it is raised where the items are read
            put("error", error)

    try:
        with Uninterrupted():
            threading.Thread(target=work, name="silt-stream", daemon=True).start()
        yield from _read(items, room, give_up)
    finally:
        is_closed = True
        end()


def _read(
    items: "queue.SimpleQueue[tuple[str, _T | BaseException | None]]", room: "queue.SimpleQueue[None]", give_up: GiveUp
) -> Iterator[_T]:
    while True:
        try:
            kind, item = items.get(timeout=SIGNAL_SECONDS)
        except queue.Empty:
            if cause := give_up():
                raise cause from None
            continue
        room.put(None)
        if kind == "end":
            return
        if kind == "error":
            assert isinstance(item, BaseException)  # noqa: S101
            raise item
        yield item  # type: ignore[misc]  # an item of the iterator
