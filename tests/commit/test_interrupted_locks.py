"""Ctrl-C while Python code of `threading` holds a lock: nothing hangs afterwards, and futures are completed."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from siltstone.clock import SystemClock
from siltstone.dataset.write.buffered_producer import Limits, Producer
from siltstone.delta.background import Background
from siltstone.delta.group_commit import WriterQueue
from siltstone.model.reports import AppendAck
from tests.support.interrupts import SOON_SECONDS, ends_soon, interrupt, interrupted_at

INTERRUPT_SECONDS = 0.3
LIMITS = Limits(rows=2, seconds=60.0, size_bytes=1_000_000)


@pytest.fixture(autouse=True)
def _can_be_interrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore interrupts
    yield
    signal.signal(signal.SIGINT, before)


def acknowledge(rows: Sequence[Any]) -> AppendAck:
    return AppendAck(sequence=1, rows=len(rows), applied=True, refused=())


@pytest.mark.parametrize("call", [lambda p: p.insert({"n": 2}), Producer.flush, Producer.close])
def test_a_producer_can_be_closed_after_ctrl_c_at_any_moment(
    call: Callable[[Producer], object], monkeypatch: pytest.MonkeyPatch
):
    number, is_interrupted = 0, True
    while is_interrupted:
        producer = Producer(acknowledge, LIMITS, clock=SystemClock())
        first = producer.insert({"n": 1})
        is_interrupted = interrupted_at(number, lambda: call(producer), monkeypatch)  # noqa: B023
        assert ends_soon(producer.close), number
        assert ends_soon(first.result), number
        assert first.exception() is None, number
        number += 1
    assert number > 1


def test_ctrl_c_ends_the_wait_for_another_flush():
    is_writing, is_written = threading.Event(), threading.Event()

    def append(rows: list[Any]) -> AppendAck:
        is_writing.set()
        is_written.wait(SOON_SECONDS)
        return acknowledge(rows)

    producer = Producer(append, LIMITS, clock=SystemClock())
    waiting = producer.insert({"n": 1})
    flush = threading.Thread(target=producer.flush)
    flush.start()
    is_writing.wait(SOON_SECONDS)
    threading.Timer(INTERRUPT_SECONDS, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    assert not waiting.done()
    is_written.set()
    flush.join(SOON_SECONDS)
    assert waiting.result(SOON_SECONDS).rows == 1
    producer.close()


def test_background_work_starts_after_ctrl_c_at_any_moment_of_an_earlier_start(monkeypatch: pytest.MonkeyPatch):
    number, is_interrupted = 0, True
    while is_interrupted:
        background = Background()
        assert background.start("first", Path("a"), lambda: None)
        is_interrupted = interrupted_at(
            number,
            lambda: background.start("first", Path("a"), lambda: None),  # noqa: B023
            monkeypatch,
        )
        assert ends_soon(lambda: background.start("second", Path("a"), lambda: None)), number  # noqa: B023
        assert ends_soon(background.close), number
        number += 1
    assert number > 1


def test_a_writer_queue_works_after_ctrl_c_at_any_moment_of_a_call(monkeypatch: pytest.MonkeyPatch):
    calls: list[Callable[[WriterQueue[int, int]], object]] = [
        lambda queue: queue.submit(1),
        lambda queue: queue.submit_soon(1),
        WriterQueue.close,
    ]
    for call in calls:
        number, is_interrupted = 0, True
        while is_interrupted:
            queue: WriterQueue[int, int] = WriterQueue(list, label="Table t", bound=10, wait_seconds=SOON_SECONDS)
            assert queue.submit(1) == 1
            is_interrupted = interrupted_at(number, lambda: call(queue), monkeypatch)  # noqa: B023
            assert ends_soon(lambda: queue.submit(2)), number  # noqa: B023
            assert ends_soon(queue.close), number
            number += 1


def test_ctrl_c_ends_the_wait_of_a_close():
    is_written = threading.Event()

    def commit(batches: Sequence[int]) -> list[int]:
        is_written.wait(SOON_SECONDS)
        return list(batches)

    queue: WriterQueue[int, int] = WriterQueue(commit, label="Table t", bound=10, wait_seconds=SOON_SECONDS)
    future: Future[int] = queue.submit_soon(1)
    threading.Timer(INTERRUPT_SECONDS, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        queue.close()
    is_written.set()
    assert future.result(SOON_SECONDS) == 1
    queue.close()
