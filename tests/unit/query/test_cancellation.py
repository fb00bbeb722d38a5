"""Cancellation: one worker thread for many queries, errors are passed on, Ctrl-C and time limits end a running query."""

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from siltstone.errors import Reason, Unavailable
from siltstone.model.units import BYTES_PER_MB
from siltstone.query import cancellation
from siltstone.query.cancellation import ActiveQueries, ActiveQuery, InterruptibleExecutor, stream_from_thread
from siltstone.query.hot.residents import Residents
from tests.support.interrupts import SOON_SECONDS, ends_soon, interrupted_at
from tests.support.refusals import refused

TraceFunction = Callable[[FrameType, str, object], Any]


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "silt-query-worker"]


def unused() -> None:
    """Fail if it is called."""
    raise AssertionError("nothing was to be interrupted")


def patient() -> None:
    return None


PATIENTLY: dict[str, Any] = {"interrupt": unused, "give_up": patient}


def test_work_is_done_by_one_thread_that_waits_for_more():
    executor = InterruptibleExecutor()
    found = {executor.run(threading.get_ident, interrupt=unused, give_up=patient) for _ in range(5)}
    assert len(found) == 1
    assert threading.get_ident() not in found


def test_jobs_of_several_callers_never_wait_for_each_other():
    executor, callers = InterruptibleExecutor(), 4
    for _ in range(20):
        together = threading.Barrier(callers)  # broken unless all jobs run at once
        running = [
            threading.Thread(target=executor.run, args=(partial(together.wait, 10),), kwargs=PATIENTLY)
            for _ in range(callers)
        ]
        for one in running:
            one.start()
        for one in running:
            one.join(timeout=20)
        assert not together.broken


def test_a_stream_that_is_not_read_ends_when_its_query_is_given_up():
    cause: list[BaseException] = []
    ended = threading.Event()

    def make() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            ended.set()

    made = stream_from_thread(make, end=patient, give_up=lambda: cause[0] if cause else None)
    assert next(made) == 0
    cause.append(TimeoutError("given up"))
    assert ended.wait(timeout=10)


def test_a_caller_that_gives_up_leaves_the_work_behind():
    executor, ends = InterruptibleExecutor(), threading.Event()
    began = threading.Event()

    def work() -> None:
        began.set()
        ends.wait(timeout=60)

    with pytest.raises(TimeoutError, match="given up"):
        executor.run(work, interrupt=unused, give_up=lambda: TimeoutError("given up") if began.is_set() else None)
    assert not ends.is_set()
    assert executor.run(lambda: 7, interrupt=unused, give_up=patient) == 7
    ends.set()


def test_a_stream_comes_in_order_from_one_thread_and_ends_with_its_reader():
    ended, threads = threading.Event(), set()

    def make() -> Iterator[int]:
        for number in range(1_000):
            threads.add(threading.get_ident())
            yield number

    assert list(stream_from_thread(make, end=ended.set, give_up=patient)) == list(range(1_000))
    assert (len(threads), threading.get_ident() in threads, ended.is_set()) == (1, False, True)

    made = stream_from_thread(itertools.count, end=unused, give_up=patient)
    assert [next(made), next(made)] == [0, 1]
    with pytest.raises(AssertionError):
        made.close()  # type: ignore[attr-defined]  # it calls `end`, which raises

    def broken() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    broken_stream = stream_from_thread(broken, end=ended.set, give_up=patient)
    assert next(broken_stream) == 1
    with pytest.raises(ZeroDivisionError):
        next(broken_stream)


def test_a_stream_whose_maker_is_stuck_is_given_up():
    stuck = threading.Event()

    def make() -> Iterator[int]:
        stuck.wait(timeout=60)
        yield 1

    with pytest.raises(TimeoutError, match="given up"):
        next(stream_from_thread(make, end=stuck.set, give_up=lambda: TimeoutError("given up")))


def test_an_error_of_the_work_is_raised_and_the_thread_continues():
    executor = InterruptibleExecutor()
    first = executor.run(threading.get_ident, interrupt=unused, give_up=patient)
    with pytest.raises(ZeroDivisionError):
        executor.run(lambda: 1 // 0, interrupt=unused, give_up=patient)

    def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        executor.run(late, interrupt=unused, give_up=patient)
    assert executor.run(threading.get_ident, interrupt=unused, give_up=patient) == first


def test_an_idle_thread_ends_and_a_new_one_starts_when_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cancellation, "IDLE_SECONDS", 0.01)
    executor = InterruptibleExecutor()
    worker = executor.run(threading.current_thread, interrupt=unused, give_up=patient)
    worker.join(timeout=10)
    assert not worker.is_alive()
    assert executor.run(lambda: 7, interrupt=unused, give_up=patient) == 7


@pytest.fixture
def accepts_ctrl_c() -> Iterator[None]:
    """Run a test with Ctrl-C enabled: a job of a shell may have been started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("accepts_ctrl_c")
@pytest.mark.parametrize("wait_seconds", [0.0, 0.001, 0.05])
def test_ctrl_c_interrupts_the_work_until_it_has_ended(wait_seconds: float):
    executor, ended = InterruptibleExecutor(), threading.Event()

    def work() -> bool:
        time.sleep(wait_seconds)
        os.kill(os.getpid(), signal.SIGINT)
        return ended.wait(timeout=10)

    with pytest.raises(KeyboardInterrupt):
        executor.run(work, interrupt=ended.set, give_up=patient)
    assert ended.is_set()


@pytest.mark.parametrize("line", range(1, 24))
def test_ctrl_c_at_any_step_of_handing_work_over_leaves_no_thread_behind(line: int, monkeypatch: pytest.MonkeyPatch):
    """Raise before the n-th line that the main thread runs in the module, as a signal may."""
    monkeypatch.setattr(cancellation, "IDLE_SECONDS", 0.05)
    executor, lines = InterruptibleExecutor(), [0]
    executor.run(lambda: 1, interrupt=unused, give_up=patient)

    def step(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if frame.f_code.co_filename != cancellation.__file__:
            return None
        lines[0] += event == "line"
        if lines[0] == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            executor.run(lambda: 1, interrupt=lambda: None, give_up=patient)
    finally:
        sys.settrace(before)
    until = time.monotonic() + 10
    while (left := workers()) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == []
    assert executor.run(lambda: 7, interrupt=unused, give_up=patient) == 7


def test_nothing_of_a_finished_job_stays_referenced():
    class Rows:
        pass

    executor = InterruptibleExecutor()
    rows = executor.run(Rows, interrupt=unused, give_up=patient)
    gone = weakref.ref(rows)
    del rows
    until = time.monotonic() + 10
    while gone() is not None and time.monotonic() < until:
        time.sleep(0.001)
    assert gone() is None


def test_an_engine_is_interrupted_from_its_time_limit_until_it_returns_and_never_after(monkeypatch: pytest.MonkeyPatch):
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0], sleep=time.sleep)
    monkeypatch.setattr(cancellation, "time", clock)
    calls: list[float] = []
    query = ActiveQuery("one", 600.0)
    with ActiveQueries().listed(query):
        with query.interruptible(lambda: calls.append(time.monotonic()), every=0.001):
            assert calls == []
            passed[0] = 600.0
            until = time.monotonic() + 10
            while len(calls) < 3 and time.monotonic() < until:
                time.sleep(0.001)
        made = len(calls)
        assert made >= 3
        time.sleep(0.2)
        assert len(calls) == made
        with refused(Unavailable, Reason.TIME_LIMIT, "600 s"), query.interruptible(unused):
            pytest.fail("a query that has ended was run")


def test_an_interrupt_that_hangs_delays_no_other():
    hangs, heard = threading.Event(), threading.Event()
    queries, first, second = ActiveQueries(), ActiveQuery("first"), ActiveQuery("second")
    with (
        queries.listed(first),
        queries.listed(second),
        first.interruptible(lambda: hangs.wait(timeout=60)),
        second.interruptible(heard.set),
    ):
        first.cancel()
        second.cancel()
        assert heard.wait(timeout=10)
        hangs.set()


def test_an_abandoned_query_blocks_a_close_only_while_its_engine_reads_the_memory_of_the_process():
    query = ActiveQuery("one")
    blocks = [query.blocks_close]
    query.abandon()
    blocks.append(query.blocks_close)
    with query.interruptible(unused):
        blocks.append(query.blocks_close)
    with query.interruptible(unused, in_process=True):
        blocks.append(query.blocks_close)
    assert blocks == [True, False, False, True]


@pytest.mark.usefixtures("accepts_ctrl_c")
def test_an_executor_works_after_ctrl_c_at_any_moment_of_a_call(monkeypatch: pytest.MonkeyPatch):
    number, is_interrupted = 0, True
    while is_interrupted:
        executor = InterruptibleExecutor()
        work = partial(executor.run, partial(time.sleep, 0.01), interrupt=patient, give_up=patient)
        is_interrupted = interrupted_at(number, work, monkeypatch)
        assert ends_soon(work), number
        number += 1
    assert number > 1


@pytest.mark.usefixtures("accepts_ctrl_c")
def test_a_stream_ends_after_ctrl_c_at_any_moment_of_its_reading(monkeypatch: pytest.MonkeyPatch):
    number, is_interrupted = 0, True
    while is_interrupted:
        ended = threading.Event()

        def make(ended: threading.Event = ended) -> Iterator[int]:
            try:
                yield from range(10)
            finally:
                ended.set()

        made = stream_from_thread(make, end=patient, give_up=patient)
        is_interrupted = interrupted_at(number, partial(list, made), monkeypatch)
        assert ended.wait(SOON_SECONDS), number
        left = [thread for thread in threading.enumerate() if thread.name == "silt-stream"]
        assert all(ends_soon(thread.join) for thread in left), number
        number += 1
    assert number > 1


@pytest.mark.usefixtures("accepts_ctrl_c")
def test_a_query_can_be_cancelled_after_ctrl_c_during_its_cancellation(monkeypatch: pytest.MonkeyPatch):
    query = ActiveQuery("one")
    interrupted_at(0, query.cancel, monkeypatch)
    assert ends_soon(query.cancel)
    assert query.is_cancelled


def test_a_close_waits_only_until_the_caller_of_a_query_gives_up():
    queries, query = ActiveQueries(), ActiveQuery("one")
    with queries.listed(query):
        closing = threading.Thread(target=queries.cancel_all, daemon=True)
        closing.start()
        while not query.is_cancelled:
            time.sleep(0.001)
        assert closing.is_alive()
        query.abandon()
        closing.join(cancellation.CLOSING_SECONDS / 2)
        assert not closing.is_alive()


@pytest.mark.usefixtures("accepts_ctrl_c")
@pytest.mark.parametrize("call", [lambda residents: residents.run_later(patient), Residents.close])
def test_a_hot_cache_can_be_closed_after_ctrl_c_at_any_moment(
    call: Callable[[Residents], object], monkeypatch: pytest.MonkeyPatch
):
    number, is_interrupted = 0, True
    while is_interrupted:
        residents = Residents(budget_bytes=100 * BYTES_PER_MB, query_bytes=100 * BYTES_PER_MB)
        residents.run_later(patient)
        is_interrupted = interrupted_at(number, partial(call, residents), monkeypatch)
        assert ends_soon(partial(residents.run_later, patient)), number
        assert ends_soon(residents.close), number
        number += 1


def test_an_interrupt_of_a_list_of_queries_locks_no_later_query_out(monkeypatch: pytest.MonkeyPatch):
    def interrupted(condition: threading.Condition) -> None:  # Ctrl-C between the lock and the block of a `with`
        condition.acquire()
        raise KeyboardInterrupt

    queries, found = ActiveQueries(), []
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(threading.Condition, "__enter__", interrupted)
        queries.ids()
    later = threading.Thread(target=lambda: found.append(queries.ids()), daemon=True)
    later.start()
    later.join(5)
    assert found == [[]]
