"""Work beside the main thread: one thread for many questions, errors come back, Ctrl-C ends what runs."""

import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from siltstone.query import aside
from siltstone.query.aside import Aside

TraceFunction = Callable[[FrameType, str, object], Any]


def hands() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "silt-hot-query"]


def nobody() -> None:
    raise AssertionError("nothing was to be interrupted")


def test_the_main_thread_has_its_work_done_by_one_thread_that_waits_for_more():
    beside = Aside()
    found = {beside.do(threading.get_ident, interrupt=nobody) for _ in range(5)}
    assert len(found) == 1
    assert threading.get_ident() not in found


def test_another_thread_does_its_work_itself():
    found: list[int] = []
    beside = Aside()
    thread = threading.Thread(target=lambda: found.append(beside.do(threading.get_ident, interrupt=nobody)))
    thread.start()
    thread.join()
    assert found == [thread.ident]


def test_what_work_raises_is_raised_and_the_thread_goes_on():
    beside = Aside()
    first = beside.do(threading.get_ident, interrupt=nobody)
    with pytest.raises(ZeroDivisionError):
        beside.do(lambda: 1 // 0, interrupt=nobody)

    def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        beside.do(late, interrupt=nobody)
    assert beside.do(threading.get_ident, interrupt=nobody) == first


def test_a_thread_that_is_not_needed_goes_and_another_one_comes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aside, "IDLE_SECONDS", 0.01)
    beside = Aside()
    hand = beside.do(threading.current_thread, interrupt=nobody)
    hand.join(timeout=10)
    assert not hand.is_alive()
    assert beside.do(lambda: 7, interrupt=nobody) == 7


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """A job of a shell may have been started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("wait_seconds", [0.0, 0.001, 0.05])
def test_ctrl_c_interrupts_the_work_until_it_has_ended(wait_seconds: float):
    beside, ended = Aside(), threading.Event()

    def work() -> bool:
        time.sleep(wait_seconds)
        os.kill(os.getpid(), signal.SIGINT)
        return ended.wait(timeout=10)

    with pytest.raises(KeyboardInterrupt):
        beside.do(work, interrupt=ended.set)
    assert ended.is_set()


@pytest.mark.parametrize("line", range(1, 12))
def test_ctrl_c_at_any_step_of_handing_work_over_leaves_no_thread_behind(line: int, monkeypatch: pytest.MonkeyPatch):
    """Raise before the n-th line that the main thread runs in the module, as a signal may."""
    monkeypatch.setattr(aside, "IDLE_SECONDS", 0.05)
    beside, lines = Aside(), [0]
    beside.do(lambda: 1, interrupt=nobody)

    def step(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if frame.f_code.co_filename != aside.__file__:
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
            beside.do(lambda: 1, interrupt=lambda: None)
    finally:
        sys.settrace(before)
    until = time.monotonic() + 10
    while (left := hands()) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == []
    assert beside.do(lambda: 7, interrupt=nobody) == 7


def test_nothing_of_a_job_that_is_done_is_kept():
    class Rows:
        pass

    beside = Aside()
    rows = beside.do(Rows, interrupt=nobody)
    gone = weakref.ref(rows)
    del rows
    until = time.monotonic() + 10
    while gone() is not None and time.monotonic() < until:
        time.sleep(0.001)
    assert gone() is None
