"""Pending appends of one thread: the same answers and errors as blocking appends."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

import pytest

from siltstone.errors import Conflict, InvalidRequest
from siltstone.eventlog.event_store import Appended
from siltstone.eventlog.log import EventLog
from tests.support.histories import history, received


def test_pending_appends_are_committed_in_submission_order(log: EventLog) -> None:
    events = list(history(200, seed=5))
    under_way = [log.append_soon(event) for event in events]
    assert [done.result(60) for done in under_way] == [
        [Appended(index=index, is_new=True)] for index in range(1, len(events) + 1)
    ]
    assert [one.event for one in log.events()] == events


def test_a_refused_append_does_not_affect_the_others(log: EventLog) -> None:
    log.append(received("there"))
    under_way = [log.append_soon(received(name)) for name in ("a", "there", "b")]
    wait(under_way)
    assert [done.exception() is None for done in under_way] == [True, False, True]
    assert isinstance(under_way[1].exception(), Conflict)
    assert {one.event.build_request_id for one in log.events()} == {"there", "a", "b"}


def test_invalid_input_is_refused_at_once(log: EventLog) -> None:
    with pytest.raises(InvalidRequest):
        log.append_soon()


def test_callbacks_may_append_the_next_event(log: EventLog) -> None:
    rest = iter([received(f"b{number}") for number in range(20)])
    ended = threading.Event()

    def go_on(done: "Future[list[Appended]] | None" = None) -> None:
        event = next(rest, None)
        if event is None or (done is not None and done.exception() is not None):
            ended.set()
        else:
            log.append_soon(event).add_done_callback(go_on)

    go_on()
    assert ended.wait(60)
    assert log.summary().events == 20


def test_threads_and_futures_share_a_log(log: EventLog) -> None:
    def append(name: str) -> None:
        for number in range(20):
            log.append(received(f"{name} {number}"))

    # Each thread has a unique name: the system reuses the id of an ended thread.
    threads = [threading.Thread(target=append, args=(f"thread {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    under_way = [log.append_soon(received(f"soon {number}")) for number in range(80)]
    for thread in threads:
        thread.join()
    wait(under_way)
    assert [one.index for one in log.events()] == list(range(1, 161))


def test_closing_waits_for_pending_appends(address: Callable[[str], str]) -> None:
    uri = address("delta")
    with EventLog.open(uri) as log:
        under_way = [log.append_soon(received(f"b{number}")) for number in range(50)]
    assert all(done.done() and done.exception() is None for done in under_way)
    with EventLog.open(uri) as log:
        assert log.summary().events == 50
