import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from siltstone.delta.group_commit import WriterQueue
from siltstone.errors import Conflict, Unavailable
from tests.support.faults import InterruptedEvent
from tests.support.internals import leave_queue, new_tickets, report_round, waiting_in


class Gate:
    """A commit that waits for a signal, and records its groups."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.groups: list[list[int]] = []
        self.error: Exception | None = None

    def commit(self, batches: Sequence[int]) -> list[str]:
        self.groups.append(list(batches))
        self.entered.set()
        assert self.open.wait(10)
        if self.error is not None:
            raise self.error
        return [f"ack {batch}" for batch in batches]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


def submit_behind(gate: Gate, queue: WriterQueue[int, str], pool: ThreadPoolExecutor, count: int) -> list[Future[str]]:
    """Submit one batch, whose commit waits, and then others behind it."""
    first = pool.submit(queue.submit, 0)
    assert gate.entered.wait(10)
    return [first, *[pool.submit(queue.submit, number) for number in range(1, count)]]


def ten_in_two_rounds(gate: Gate, queue: WriterQueue[int, str], pool: ThreadPoolExecutor) -> None:
    """Commit one batch, and then nine together that have waited for it."""
    running = submit_behind(gate, queue, pool, 10)
    until(lambda: len(waiting_in(queue)) == 9)
    gate.open.set()
    assert [task.result(10) for task in running] == [f"ack {number}" for number in range(10)]


def test_a_quiet_queue_commits_each_batch_alone():
    gate = Gate()
    gate.open.set()
    queue = WriterQueue(gate.commit, label="Table t", bound=50, wait_seconds=1)
    assert [queue.submit(number) for number in range(3)] == ["ack 0", "ack 1", "ack 2"]
    assert gate.groups == [[0], [1], [2]]


def test_batches_that_wait_for_a_commit_share_the_next_one():
    gate = Gate()
    queue = WriterQueue(gate.commit, label="Table t", bound=50, wait_seconds=10)
    with ThreadPoolExecutor(10) as pool:
        ten_in_two_rounds(gate, queue, pool)
    assert [len(group) for group in gate.groups] == [1, 9]
    assert sorted(gate.groups[1]) == list(range(1, 10))


def test_an_error_reaches_every_writer_of_the_group_and_no_later_one():
    gate = Gate()
    queue = WriterQueue(gate.commit, label="Table t", bound=50, wait_seconds=10)
    gate.error = Conflict("refused")
    with ThreadPoolExecutor(5) as pool:
        running = submit_behind(gate, queue, pool, 5)
        until(lambda: len(waiting_in(queue)) == 4)
        gate.open.set()
        for task in running:
            with pytest.raises(Conflict, match="refused"):
                task.result(10)
    gate.error = None
    assert queue.submit(7) == "ack 7"
    assert gate.groups[-1] == [7]


def test_no_more_than_the_bound_wait_and_the_next_one_waits_outside():
    gate = Gate()
    queue = WriterQueue(gate.commit, label="Table t", bound=50, wait_seconds=10)
    with ThreadPoolExecutor(51) as pool:
        running = submit_behind(gate, queue, pool, 50)
        until(lambda: len(waiting_in(queue)) == 49)
        late = pool.submit(queue.submit, 50)
        time.sleep(0.05)
        assert len(waiting_in(queue)) == 49, "the 51st has no place yet"
        gate.open.set()
        assert [task.result(10) for task in [*running, late]] == [f"ack {number}" for number in range(51)]
    assert max(len(group) for group in gate.groups) <= 50


def test_a_queue_that_stays_full_is_unavailable_and_the_batch_is_not_committed():
    gate = Gate()
    queue = WriterQueue(gate.commit, label="Table t", bound=2, wait_seconds=0.05)
    with ThreadPoolExecutor(2) as pool:
        running = submit_behind(gate, queue, pool, 2)
        until(lambda: len(waiting_in(queue)) == 1)
        with pytest.raises(Unavailable):
            queue.submit(99)
        gate.open.set()
        assert [task.result(10) for task in running] == ["ack 0", "ack 1"]
    assert gate.groups == [[0], [1]]


def test_a_slot_is_free_again_after_an_error():
    gate = Gate()
    gate.open.set()
    gate.error = Conflict("refused")
    queue = WriterQueue(gate.commit, label="Table t", bound=1, wait_seconds=0.05)
    for _ in range(3):
        with pytest.raises(Conflict):
            queue.submit(1)
    gate.error = None
    assert queue.submit(1) == "ack 1"


def test_callers_wake_each_other_past_those_that_gave_up():
    queue: WriterQueue[int, str] = WriterQueue(
        lambda batches: [str(batch) for batch in batches], label="Table t", bound=50, wait_seconds=1
    )
    tickets = new_tickets(6)
    own, left, *_ = tickets
    leave_queue(queue, left)  # before the round is acknowledged
    report_round(queue, tickets, own)
    leave_queue(queue, tickets[3])  # after it, while it waits for its turn to wake up
    for ticket in (tickets[2], tickets[4], tickets[5]):
        assert ticket.is_woken
        ticket.wait()
    assert all(ticket.is_done for ticket in tickets)


def test_a_returning_writer_does_not_wait_for_those_that_stay_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("siltstone.delta.group_commit.IDLE_SECONDS", 60.0)
    monkeypatch.setattr("siltstone.delta.group_commit.GATHER_FACTOR", 1e9)
    gate = Gate()
    queue = WriterQueue(gate.commit, label="Table t", bound=50, wait_seconds=10)
    with ThreadPoolExecutor(10) as pool:
        ten_in_two_rounds(gate, queue, pool)
        assert pool.submit(queue.submit, 10).result(10) == "ack 10"  # eight other callers of the round have returned
    assert gate.groups[-1] == [10]


def test_an_interrupt_while_a_batch_enters_leaves_no_lock_held(monkeypatch: pytest.MonkeyPatch):
    gate, event = Gate(), InterruptedEvent()
    gate.open.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Event", lambda: event)
        queue = WriterQueue(gate.commit, label="Table t", bound=50, wait_seconds=1)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            queue.submit(1)
        assert not event.lock.locked()
    assert waiting_in(queue) == []


def test_an_interrupt_ends_the_wait_for_room():
    gate = Gate()
    queue = WriterQueue(gate.commit, label="Table t", bound=1, wait_seconds=60)
    with ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(queue.submit, 1)
        assert gate.entered.wait(10)
        interrupt = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            queue.submit(2)
        gate.open.set()
        assert submitted.result(10) == "ack 1"
    assert gate.groups == [[1]]
