"""Long work beside the main thread, so that Ctrl-C is heard while it lasts.

Python hears signals on its main thread only, and only between its own steps; the engine waits there without looking while one of
its own threads has all the work. So what the main thread asks of the engine another thread asks. Starting one for each question
takes as long as a small answer, so one that is done waits a while for the next.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

IDLE_SECONDS: Final = 5.0
"""So long a thread waits for more work."""
HEARING_SECONDS: Final = 0.1
"""So long at most it takes until a signal is heard."""
REPEAT_SECONDS: Final = 0.05
"""How often the engine is told to end: it forgets an interrupt that comes before its work begins."""

_T = TypeVar("_T")
_Jobs = queue.SimpleQueue[Callable[[Callable[[], None]], None]]
"""What is to be done; each is given what to call when it is done."""


class Aside:
    """Does work on threads of its own, if the main thread asks; any other thread does its work itself.

    Nobody is chosen for a job: it lies where every thread that waits can take it. So whatever is raised on the way leaves no
    thread that waits for work of its own.
    """

    def __init__(self) -> None:
        """Start with no thread."""
        self._jobs: _Jobs = queue.SimpleQueue()
        self._idle: list[_Hand] = []

    def do(self, work: Callable[[], _T], *, interrupt: Callable[[], object]) -> _T:
        """Do work that may hold its thread for long; what is raised meanwhile interrupts it, and is raised when it has ended."""
        if threading.current_thread() is not threading.main_thread():
            return work()
        future: Future[_T] = Future()
        try:
            self._jobs.put(lambda done: _settle(future, work, done=done))
            self._have_somebody()
            return _awaited(future)
        except BaseException:
            while not (future.cancel() or future.done()):  # what has not begun does not begin
                interrupt()
                wait([future], REPEAT_SECONDS)
            raise

    def _have_somebody(self) -> None:
        """Start a thread if none waits; in a process that was forked those of its parent are not there."""
        if not any(hand.is_alive() for hand in list(self._idle)):
            _Hand(self._jobs, self._idle)


def _awaited(future: "Future[_T]") -> _T:
    """Wait for what comes of work; a signal that comes just before a wait does not end it, so each wait is short."""
    while not future.done():
        with contextlib.suppress(TimeoutError):  # one that the work raised is raised below
            return future.result(timeout=HEARING_SECONDS)
    return future.result()


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
    """A thread that does one job after another, and goes when none comes. It keeps nothing of a job that is done."""

    def __init__(self, jobs: "_Jobs", idle: "list[_Hand]") -> None:
        super().__init__(name="silt-hot-query", daemon=True)
        self._jobs = jobs
        self._idle = idle
        self.start()

    def run(self) -> None:
        self._wait_again()
        while self._goes_on():
            pass

    def _goes_on(self) -> bool:
        try:
            job = self._jobs.get(timeout=IDLE_SECONDS)
            self._idle.remove(self)
        except queue.Empty:
            self._idle.remove(self)
            try:  # one that came before the list was changed: who brought it saw somebody wait
                job = self._jobs.get_nowait()
            except queue.Empty:
                return False
        job(self._wait_again)
        return True

    def _wait_again(self) -> None:
        self._idle.append(self)
