"""Work beside the thread that waits for it, so that Ctrl-C and time limits are served while it lasts.

Python runs signal handlers on its main thread only, and only between its own steps. An engine that plans, starts or works
holds its thread without such steps. So the thread of the caller only waits, and another one works. A caller that gives up
leaves the work behind: it ends by itself, or with the process. Starting a thread for each question takes as long as a small
answer, so one that is done waits a while for the next.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Final, TypeVar

IDLE_SECONDS: Final = 5.0
"""So long a thread waits for more work."""
HEARING_SECONDS: Final = 0.1
"""So long at most it takes until a signal is heard."""
REPEAT_SECONDS: Final = 0.05
"""How often the engine is told to end: it forgets an interrupt that comes before its work begins."""
UNHEARD_SECONDS: Final = 5.0
"""Longest wait after Ctrl-C for work that does not end."""
AHEAD: Final = 2
"""Items of a stream that are made before the caller asks for them."""

_T = TypeVar("_T")
_Jobs = queue.SimpleQueue[Callable[[Callable[[], None]], None]]
"""What is to be done; each is given what to call when it is done."""


GivenUp = Callable[[], BaseException | None]
"""Returns what to raise if the caller waits no more."""


class Aside:
    """Does work on threads of its own, each job on a thread that does nothing else. Safe to share between threads.

    An exception between the claim of a thread and the hand-over of its job leaves a thread that ends by itself.
    """

    def __init__(self) -> None:
        """Start with no thread."""
        self._idle: list[_Hand] = []
        """Each step on it is one of Python's own, so it needs no lock. Ctrl-C could leave a lock taken."""

    def do(self, work: Callable[[], _T], *, interrupt: Callable[[], object], given_up: GivenUp) -> _T:
        """Do work that may hold its thread for long, and return its result.

        What is raised here meanwhile (Ctrl-C) interrupts the work, and is raised when that has ended, or after
        `UNHEARD_SECONDS`. What `given_up` returns is raised at once; the work may go on.
        """
        future: Future[_T] = Future()
        try:
            self._claimed().jobs.put(lambda done: _settle(future, work, done=done))
            return _awaited(future, given_up)
        except _GivenUpError as error:
            future.cancel()  # what has not begun does not begin
            raise error.cause from None
        except BaseException:
            until = time.monotonic() + UNHEARD_SECONDS
            while not (future.cancel() or future.done()) and time.monotonic() < until:
                interrupt()
                wait([future], REPEAT_SECONDS)
            raise

    def _claimed(self) -> "_Hand":
        """Return a thread for one job: the one that was idle last, or a new one. A fork has none of its parent's threads."""
        while True:
            try:
                hand = self._idle.pop()
            except IndexError:
                return _Hand(self._idle)
            if hand.is_alive():
                return hand


class _GivenUpError(Exception):
    """The caller waits no more; `cause` is what it gets."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__()
        self.cause = cause


def _awaited(future: "Future[_T]", given_up: GivenUp) -> _T:
    """Wait for what comes of work; a signal that comes just before a wait does not end it, so each wait is short."""
    while not future.done():
        with contextlib.suppress(TimeoutError):  # one that the work raised is raised below
            return future.result(timeout=HEARING_SECONDS)
        _check(given_up)
    return future.result()


def _check(given_up: GivenUp) -> None:
    cause = given_up()
    if cause is not None:
        raise _GivenUpError(cause)


def _settle(future: "Future[_T]", work: Callable[[], _T], *, done: Callable[[], None]) -> None:
    if not future.set_running_or_notify_cancel():
        done()
        return
    try:
        found = work()
    except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
        done()
        future.set_exception(error)
    else:
        done()
        future.set_result(found)


class _Hand(threading.Thread):
    """A thread that does one job after another, and ends when none comes. It keeps nothing of a job that is done."""

    def __init__(self, idle: "list[_Hand]") -> None:
        super().__init__(name="silt-hot-query", daemon=True)
        self.jobs: _Jobs = queue.SimpleQueue()
        self._idle = idle
        self.start()

    def run(self) -> None:
        while self._goes_on():
            pass

    def _goes_on(self) -> bool:
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
        job(self._wait_again)
        return True

    def _wait_again(self) -> None:
        self._idle.append(self)


def streamed(make: Callable[[], Iterator[_T]], *, end: Callable[[], object], given_up: GivenUp) -> Iterator[_T]:
    """Yield what an iterator makes on one thread of its own, a few items ahead of the caller.

    `end` makes the iterator end early; it is called when the caller reads no further. What `given_up` returns is raised, and
    ends the iterator also while the caller reads nothing.
    """
    items: queue.Queue[tuple[str, _T | BaseException | None]] = queue.Queue(AHEAD)
    left = threading.Event()

    def is_over() -> bool:
        return left.is_set() or given_up() is not None

    def put(kind: str, item: "_T | BaseException | None") -> None:
        while not is_over():
            with contextlib.suppress(queue.Full):
                items.put((kind, item), timeout=HEARING_SECONDS)
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

    threading.Thread(target=work, name="silt-stream", daemon=True).start()
    try:
        yield from _read(items, given_up)
    finally:
        left.set()
        end()


def _read(items: "queue.Queue[tuple[str, _T | BaseException | None]]", given_up: GivenUp) -> Iterator[_T]:
    while True:
        try:
            kind, item = items.get(timeout=HEARING_SECONDS)
        except queue.Empty:
            cause = given_up()
            if cause is not None:
                raise cause from None
            continue
        if kind == "end":
            return
        if kind == "error":
            assert isinstance(item, BaseException)  # noqa: S101
            raise item
        yield item  # type: ignore[misc]  # an item that was made
