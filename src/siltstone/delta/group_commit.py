"""The writer queue: batches that wait for one table of one process are committed together.

A quiet table needs no thread: the first caller that finds nobody committing becomes the *leader*: it takes everything that is
waiting, commits it as one entry with consecutive sequences, and hands each caller its own result. Whoever arrives
meanwhile waits. If it is one, it leads the next round; where several wait a thread of the queue does, which has everything at
hand that a commit needs. It gives the callers of the last round a moment to come back with their next batch: a commit costs the
same for one batch and for many. One commit so carries one batch when the table is quiet and many when it is busy.

Callers that do not wait (`submit_soon`) get a future; where one of those would have to lead, the queue's thread does.

A batch that fails its own check (an idempotent producer's repeat) is answered without failing the others. If the
commit itself fails, every caller of that round gets the error: nothing of the round was written.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final, Generic, TypeVar

from siltstone.errors import Unavailable
from siltstone.host import fork_safety
from siltstone.host.deferred_interrupts import Uninterrupted

PATIENCE: Final = 2.0
"""How long a round waits at most for callers that may come back, in times of what the last commit took."""
LULL_SECONDS: Final = 0.005
"""A round waits no longer when nobody has come back for so long: in that time the interpreter lets every thread run once."""
GRACE_SECONDS: Final = 0.0005
"""The same once all callers of the last round were woken: whoever comes back at once is back by then."""

B = TypeVar("B")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Ticket(Generic[B, R]):
    batch: B
    result: R | None = None
    error: BaseException | None = None
    is_done: bool = False
    bell: threading.Lock = field(default_factory=threading.Lock)
    """Held from the start, let go of when the ticket is done, or is to lead: cheaper than an event."""
    is_rung: bool = False
    leads: bool = False
    """True if its caller was the first, and has to lead."""
    has_left: bool = False
    """True once its caller was interrupted and waits no more."""
    then: Callable[[], None] | None = None
    """What the caller does when it was woken: it wakes the next one."""

    def __post_init__(self) -> None:
        """Hold the bell."""
        self.bell.acquire()

    def wait(self) -> None:
        """Wait until the bell is rung, and pass it on."""
        self.bell.acquire()
        self.pass_on()

    def pass_on(self) -> None:
        """Wake the next caller of the round; an interrupt on the way may make it twice, never not at all."""
        if self.then is not None:
            self.then()
            self.then = None

    @property
    def is_waited_for(self) -> bool:
        """True if its caller can pass on that the round is done."""
        return not self.has_left

    def begin(self) -> bool:
        """Say that the round begins; False if nobody wants the batch written any more."""
        return True

    def ring(self) -> None:
        """Wake whoever waits; a second time does nothing."""
        self.is_rung = True
        if self.bell.locked():
            self.bell.release()


@dataclass(slots=True, eq=False)
class _Soon(_Ticket[B, R]):
    """A ticket nobody waits for: its future is told. If it is to lead, a thread of the queue does that for it."""

    future: "Future[R]" = field(default_factory=Future)
    lead: Callable[[], object] = field(default=lambda: None)

    @property
    def is_waited_for(self) -> bool:
        """No caller waits."""
        return False

    def begin(self) -> bool:
        """Let the future not be cancelled any more; False if it was."""
        return self.future.set_running_or_notify_cancel()

    def ring(self) -> None:
        """Tell the future, or lead."""
        if not self.is_done:
            self.lead()
        elif self.error is not None:
            self.future.set_exception(self.error)
        elif isinstance(self.result, Exception):  # this batch was refused, and the others were not
            self.future.set_exception(self.result)
        elif self.result is not None:
            self.future.set_result(self.result)


class WriterQueue(Generic[B, R]):
    """Groups what several threads write at once."""

    def __init__(
        self,
        commit: Callable[[Sequence[B]], Sequence[R]],
        *,
        bound: int,
        wait_seconds: float,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit groups with `commit`, which returns one result a batch, in order; let at most `bound` batches wait.

        The leader does what comes `after` a commit while the other callers of the round go their way; it must not raise.
        """
        self._commit = commit
        self._after = after
        self._wait_seconds = wait_seconds
        self._bound = bound
        self._under_way = 0
        self._mutex = threading.Lock()
        self._room = threading.Condition(self._mutex)
        self._idle = threading.Condition(self._mutex)
        self._waiting: list[_Ticket[B, R]] = []
        self._is_led = False
        self._pool: ThreadPoolExecutor | None = None
        self._pump: int | None = None
        self._pool_mutex = threading.Lock()
        self._expected = 0
        self._round = 0
        self._are_all_woken = True
        self._news = threading.Event()
        """Rung for who gathers: all are back, or all of the last round were woken."""
        self._patient_until = 0.0

    def submit(self, batch: B) -> R:
        """Return the batch's result once it is durable.

        Raises:
            Unavailable: the queue stayed full for the whole time limit.
        """
        fork_safety.check()
        ticket: _Ticket[B, R] = _Ticket(batch)
        try:
            if not self._enter(ticket):
                ticket.wait()
            if not ticket.is_done:
                self._gather()
                with Uninterrupted():
                    self._lead(ticket)
        except BaseException:
            with Uninterrupted():
                self._leave(ticket, leads=ticket.leads or ticket.is_rung)
            raise
        if ticket.error is not None:
            raise ticket.error
        assert ticket.result is not None  # noqa: S101  # a done ticket has a result or an error
        return ticket.result

    def submit_soon(self, batch: B) -> "Future[R]":
        """Return at once, with a future of the batch's result; a result that is an exception is raised by it.

        Callbacks of the future run on the queue's own thread, and may submit the next batch.

        Raises:
            Unavailable: the queue stayed full for the whole time limit.
        """
        fork_safety.check()
        ticket: _Soon[B, R] = _Soon(batch, lead=self._lead_soon)
        if self._enter(ticket):
            self._lead_soon()
        return ticket.future

    def _enter(self, ticket: _Ticket[B, R]) -> bool:
        """Let a batch wait; return whether its caller is to lead."""
        with self._mutex:
            if not self._has_room() and threading.get_ident() != self._pump:  # who makes room must not wait for it
                self._wait_for_room()
            self._waiting.append(ticket)
            ticket.leads, self._is_led = not self._is_led, True  # an interrupt comes before both or after both
            if len(self._waiting) >= self._expected:
                self._news.set()
            return ticket.leads

    def _has_room(self) -> bool:
        return len(self._waiting) + self._under_way < self._bound

    def _wait_for_room(self) -> None:
        if not self._room.wait_for(self._has_room, self._wait_seconds):
            raise Unavailable("The writer queue is full; nothing was written. Write slower or in larger batches.")

    def _lead_soon(self) -> None:
        with self._pool_mutex:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="siltstone-writer")
            try:
                self._pool.submit(self._lead_patiently)
            except RuntimeError:  # the main thread has ended; pools start nothing any more, threads may
                threading.Thread(target=self._lead_patiently, name="siltstone-writer").start()

    def _lead_patiently(self) -> None:
        self._pump = threading.get_ident()
        self._gather()
        with suppress(Exception):  # the futures are told
            self._lead()

    def close(self) -> None:
        """Wait for what is under way; nothing may be submitted any more."""
        with self._idle:
            self._idle.wait_for(lambda: not self._is_led)
        with self._pool_mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def _gather(self) -> None:
        """Give the callers of the last round time to come back, as long as they keep coming."""
        while time.monotonic() < self._patient_until:
            self._news.clear()  # before the look: what comes after it is heard
            back, lull = len(self._waiting), GRACE_SECONDS if self._are_all_woken else LULL_SECONDS
            if back >= self._expected or (not self._news.wait(lull) and len(self._waiting) == back):
                return

    def _note_all_woken(self, number: int) -> None:
        """Take note that all callers of a round were woken, if no other one was told meanwhile."""
        if number == self._round:
            self._are_all_woken = True
            self._news.set()

    def _leave(self, ticket: _Ticket[B, R], *, leads: bool) -> None:
        """Take back a batch whose caller was interrupted while it waited; one whose round has begun goes its way."""
        with self._mutex:
            ticket.has_left = True
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                if leads:
                    self._hand_over()
        ticket.pass_on()

    def _lead(self, own: _Ticket[B, R] | None = None) -> None:
        with self._mutex:
            waiting, self._waiting = self._waiting, []
            self._under_way = len(waiting)
        started = time.monotonic()
        group: list[_Ticket[B, R]] = []
        if own is not None:
            own.is_done = True  # whatever comes of it: its caller is here and need not be told
        try:
            group = [ticket for ticket in waiting if ticket.begin()]
            results = self._commit([ticket.batch for ticket in group]) if group else []
            for ticket, result in zip(group, results, strict=True):
                ticket.result = result
        except BaseException as error:
            for ticket in group:
                ticket.error = error
            raise
        finally:
            try:
                self._tell(group, own)
            finally:
                self._go_on(time.monotonic() - started)

    def _tell(self, group: list[_Ticket[B, R]], own: _Ticket[B, R] | None) -> None:
        """Let everybody go on whose batch is done; a callback that ends its thread keeps nobody else from that.

        Callers that wait are woken by each other, one by one: woken all at once they would fight for the interpreter, and the
        round would take half as long again.
        """
        with self._mutex:
            self._expected = len(self._waiting) + len(group)
            self._under_way = 0
            self._room.notify_all()
            for ticket in group:
                ticket.is_done = True
            waited = [ticket for ticket in group if ticket.is_waited_for and ticket is not own]
            for ticket, following in pairwise(waited):
                ticket.then = following.ring
            self._round += 1
            self._are_all_woken = not waited
            if waited:
                waited[-1].then = partial(self._note_all_woken, self._round)
        failure: BaseException | None = None
        for ticket in (*waited[:1], *(ticket for ticket in group if not ticket.is_waited_for)):
            try:
                ticket.ring()
            except BaseException as error:  # noqa: BLE001
                failure = failure or error
        if failure is not None:
            raise failure

    def _go_on(self, took: float) -> None:
        """Do what comes after a commit, and let the next round begin, whatever happens."""
        try:
            self._after()
        finally:
            with self._mutex:
                self._patient_until = time.monotonic() + PATIENCE * took
                self._hand_over()

    def _hand_over(self) -> None:
        """Let somebody lead the next round: the one that waits or, for several, the queue's own thread, which is warm.

        Several are those that wait, and also those of the last round: they will be back in a moment.
        """
        are_several = max(len(self._waiting), self._expected) > 1
        self._is_led = bool(self._waiting) or are_several
        if are_several:
            self._lead_soon()
        elif self._waiting:
            self._waiting[0].ring()
        else:
            self._idle.notify_all()
