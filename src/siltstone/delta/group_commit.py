"""The writer queue: batches that wait for the same table in one process are committed together (group commit).

A quiet table needs no thread. The first caller that finds no commit under way becomes the *leader*. It commits all
waiting batches as one entry with consecutive sequences, and passes each caller its own result. Callers that arrive
meanwhile wait. A single waiting caller leads the next round. For several waiting callers the queue's own thread leads,
because it already has in memory what a commit needs. It gives the callers of the last round a moment to submit their
next batch. A commit costs the same for one batch and for many. So one commit carries one batch when the table is quiet
and many when it is busy.

Callers that do not wait (`submit_soon`) receive a future. If such a batch would have to lead, the queue's thread leads instead.

A batch that fails its own check (a repeat of an idempotent producer) gets its own answer. The other batches are
committed. If the commit itself fails, every caller of that round receives the error: nothing of the round was written.

Ctrl-C is deferred in every step but the wait for the wake-up. Events and conditions of `threading` are Python code: an
interrupt inside one leaves its lock held for ever.
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
from siltstone.host.deferred_interrupts import INTERRUPT_CHECK_SECONDS, Uninterrupted, raise_noted

GATHER_FACTOR: Final = 2.0
"""Longest wait for more batches before a group commit, as a multiple of the last commit's duration."""
IDLE_SECONDS: Final = 0.005
"""Seconds without a new batch after which a round starts. In this time the interpreter runs every thread once."""
ALL_AWAKE_SECONDS: Final = 0.0005
"""The same bound once all callers of the last round are awake. A caller that writes again at once has done so by then."""

B = TypeVar("B")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Ticket(Generic[B, R]):
    batch: B
    result: R | None = None
    error: BaseException | None = None
    is_done: bool = False
    wake_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held from the start, released when the ticket is done or must lead. Cheaper than an event."""
    is_woken: bool = False
    leads: bool = False
    """True if the caller was the first and must lead."""
    is_abandoned: bool = False
    """True once the caller was interrupted and no longer waits."""
    then: Callable[[], None] | None = None
    """Called by the caller when it is awake: it wakes the next caller."""

    def __post_init__(self) -> None:
        """Acquire the wake lock."""
        self.wake_lock.acquire()

    def wait(self) -> None:
        """Wait for the wake-up, then wake the next caller."""
        self.wake_lock.acquire()
        with Uninterrupted():
            self.wake_next()

    def wake_next(self) -> None:
        """Wake the next caller of the round. An interrupt may cause a second wake-up, never a missing one."""
        if self.then is not None:
            self.then()
            self.then = None

    @property
    def is_waited_for(self) -> bool:
        """True if a caller waits for this ticket and can wake the next one."""
        return not self.is_abandoned

    def begin(self) -> bool:
        """Mark the round as begun; False if the batch was cancelled."""
        return True

    def wake(self) -> None:
        """Wake the waiting caller. A second call has no effect."""
        self.is_woken = True
        if self.wake_lock.locked():
            self.wake_lock.release()


@dataclass(slots=True, eq=False)
class _FutureTicket(_Ticket[B, R]):
    """A ticket without a waiting caller. Its future receives the result. If it must lead, the queue's thread leads for it."""

    future: "Future[R]" = field(default_factory=Future)
    lead: Callable[[], object] = field(default=lambda: None)

    @property
    def is_waited_for(self) -> bool:
        """False, because no caller waits."""
        return False

    def begin(self) -> bool:
        """Make the future uncancellable; False if it was cancelled before."""
        return self.future.set_running_or_notify_cancel()

    def wake(self) -> None:
        """Complete the future, or start a leader."""
        if not self.is_done:
            self.lead()
        elif self.error is not None:
            self.future.set_exception(self.error)
        elif isinstance(self.result, Exception):  # only this batch was refused, not the other ones
            self.future.set_exception(self.result)
        elif self.result is not None:
            self.future.set_result(self.result)


class WriterQueue(Generic[B, R]):
    """Commits batches of several threads together."""

    def __init__(
        self,
        commit: Callable[[Sequence[B]], Sequence[R]],
        *,
        label: str,
        bound: int,
        wait_seconds: float,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit groups with `commit`, which returns one result per batch, in order. At most `bound` batches wait.

        `label` names the table in errors. The leader calls `after` once a commit is done, while the other callers of the
        round continue. It must not raise.
        """
        self._commit = commit
        self._label = label
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
        self._leader_thread: int | None = None
        self._pool_mutex = threading.Lock()
        self._expected = 0
        self._round = 0
        self._are_all_woken = True
        self._gather_event = threading.Event()
        """Set for the gathering leader: all callers are back, or all callers of the last round are awake."""
        self._gather_until = 0.0

    def submit(self, batch: B) -> R:
        """Return the batch's result once it is durable.

        Raises:
            Unavailable: the queue stayed full for the whole time limit.
        """
        fork_safety.check()
        ticket: _Ticket[B, R] = _Ticket(batch)
        try:
            with Uninterrupted():
                must_lead = self._enter(ticket)
            if not must_lead:
                ticket.wait()
            if not ticket.is_done:
                with Uninterrupted():
                    self._gather()
                    self._lead(ticket)
        except BaseException:
            with Uninterrupted():
                self._leave(ticket, leads=ticket.leads or ticket.is_woken)
            raise
        if ticket.error is not None:
            raise ticket.error
        assert ticket.result is not None  # noqa: S101  # a done ticket has a result or an error
        return ticket.result

    def submit_soon(self, batch: B) -> "Future[R]":
        """Return a future of the batch's result, without waiting. A result that is an exception is raised by the future.

        Callbacks of the future run on the queue's own thread and may submit the next batch. Raises as `submit` does.
        """
        fork_safety.check()
        ticket: _FutureTicket[B, R] = _FutureTicket(batch, lead=self._start_leader)
        with Uninterrupted():
            if self._enter(ticket):
                self._start_leader()
        return ticket.future

    def _enter(self, ticket: _Ticket[B, R]) -> bool:
        """Add a batch to the waiting ones; return whether its caller must lead."""
        with self._mutex:
            if (
                not self._has_room()
                and threading.get_ident() != self._leader_thread  # the leader itself makes room
                and not self._wait_for_room()
            ):
                raise Unavailable(
                    f"{self._label}: the writer queue is full; nothing was written. Write slower or in larger batches."
                )
            self._waiting.append(ticket)
            ticket.leads, self._is_led = not self._is_led, True
            if len(self._waiting) >= self._expected:
                self._gather_event.set()
            return ticket.leads

    def _wait_for_room(self) -> bool:
        """Wait until a batch may enter; False after the time limit. An interrupt ends the wait."""
        deadline = time.monotonic() + self._wait_seconds
        while not self._has_room() and (remaining := deadline - time.monotonic()) > 0:
            raise_noted()
            self._room.wait(min(remaining, INTERRUPT_CHECK_SECONDS))
        return self._has_room()

    def _has_room(self) -> bool:
        return len(self._waiting) + self._under_way < self._bound

    def _start_leader(self) -> None:
        with self._pool_mutex:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="siltstone-writer")
            try:
                self._pool.submit(self._gather_and_lead)
            except RuntimeError:  # the main thread has ended: a pool no longer accepts work, a thread can still start
                threading.Thread(target=self._gather_and_lead, name="siltstone-writer").start()

    def _gather_and_lead(self) -> None:
        self._leader_thread = threading.get_ident()
        self._gather()
        with suppress(Exception):  # the futures received the error
            self._lead()

    def close(self) -> None:
        """Wait for the commits under way. The caller must not submit any more batches."""
        with Uninterrupted(), self._mutex:
            while self._is_led:
                raise_noted()
                self._idle.wait(INTERRUPT_CHECK_SECONDS)
        with self._pool_mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def _gather(self) -> None:
        """Wait for the callers of the last round as long as further ones arrive."""
        while time.monotonic() < self._gather_until:
            self._gather_event.clear()  # before the check, so that no later event is missed
            back, idle = len(self._waiting), ALL_AWAKE_SECONDS if self._are_all_woken else IDLE_SECONDS
            if back >= self._expected or (not self._gather_event.wait(idle) and len(self._waiting) == back):
                return

    def _note_all_woken(self, number: int) -> None:
        """Record that all callers of a round are awake, unless a newer round was published meanwhile."""
        if number == self._round:
            self._are_all_woken = True
            self._gather_event.set()

    def _leave(self, ticket: _Ticket[B, R], *, leads: bool) -> None:
        """Withdraw the batch of an interrupted caller. A batch whose round has begun is still committed."""
        with self._mutex:
            ticket.is_abandoned = True
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                if leads:
                    self._hand_over()
        ticket.wake_next()

    def _lead(self, leader: _Ticket[B, R] | None = None) -> None:
        with self._mutex:
            waiting, self._waiting = self._waiting, []
            self._under_way = len(waiting)
        started = time.monotonic()
        group: list[_Ticket[B, R]] = []
        if leader is not None:
            leader.is_done = True  # whatever the outcome, its caller is this thread and needs no wake-up
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
                self._publish(group, leader)
            finally:
                self._finish_round(time.monotonic() - started)

    def _publish(self, group: list[_Ticket[B, R]], leader: _Ticket[B, R] | None) -> None:
        """Wake all callers whose batch is done. A callback that raises does not prevent the other wake-ups.

        Waiting callers wake each other one by one. If all woke at once they would compete for the interpreter, and the round
        would take half as long again.
        """
        with self._mutex:
            self._expected = len(self._waiting) + len(group)
            self._under_way = 0
            self._room.notify_all()
            for ticket in group:
                ticket.is_done = True
            waited = [ticket for ticket in group if ticket.is_waited_for and ticket is not leader]
            for ticket, following in pairwise(waited):
                ticket.then = following.wake
            self._round += 1
            self._are_all_woken = not waited
            if waited:
                waited[-1].then = partial(self._note_all_woken, self._round)
        failure: BaseException | None = None
        for ticket in (*waited[:1], *(ticket for ticket in group if not ticket.is_waited_for)):
            try:
                ticket.wake()
            except BaseException as error:  # noqa: BLE001
                failure = failure or error
        if failure is not None:
            raise failure

    def _finish_round(self, seconds: float) -> None:
        """Call `after`, then start the next round even if it raises."""
        try:
            self._after()
        finally:
            with self._mutex:
                self._gather_until = time.monotonic() + GATHER_FACTOR * seconds
                self._hand_over()

    def _hand_over(self) -> None:
        """Choose the next leader: the single waiting caller or, for several callers, the queue's own thread.

        "Several" counts the waiting callers and also those of the last round, because they return in a moment.
        """
        are_several = max(len(self._waiting), self._expected) > 1
        self._is_led = bool(self._waiting) or are_several
        if are_several:
            self._start_leader()
        elif self._waiting:
            self._waiting[0].wake()
        else:
            self._idle.notify_all()
