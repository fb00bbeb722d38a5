"""When a log on Delta projects its own commits: between appends if possible, and always in time."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from siltstone.eventlog import delta_backend, local_table
from siltstone.eventlog.delta_backend import BEHIND, FAR_BEHIND, PROJECTED_AT_COMMITS, DeltaBackend
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.pending_commits import CommitRange
from tests.support.faults import InterruptedEvent
from tests.support.histories import received
from tests.support.internals import (
    count_append,
    delta_backend_of,
    keep_up,
    projection_of,
    replace_apply,
    stop_background,
    wait_with,
)

PATIENCE_SECONDS = 60.0
HOUR_SECONDS = 3600.0


@pytest.fixture
def log(address: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLog]:
    monkeypatch.setattr(local_table.LocalEventTable, "notice", lambda *_: None)  # a squash would add a commit
    with EventLog.open(address("delta")) as opened:
        yield opened


def unprojected(log: EventLog) -> int:
    """Return the number of unprojected commits. A query of the log would project them first."""
    return projection_of(delta_backend_of(log)).backlog.commits


def append(log: EventLog, count: int, name: str) -> None:
    for number in range(count):
        log.append(received(f"{name}{number}"))


def test_appends_are_projected_in_the_next_pause(log: EventLog):
    append(log, PROJECTED_AT_COMMITS, "a")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while unprojected(log):
        assert time.monotonic() < deadline, "it is never projected"
        time.sleep(0.05)
    assert log.next_index() == PROJECTED_AT_COMMITS + 1


def test_appends_wait_for_a_projection_that_does_not_keep_up(log: EventLog, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delta_backend, "QUIET_SECONDS", HOUR_SECONDS)
    append(log, FAR_BEHIND.commits - 1, "a")
    assert unprojected(log) == FAR_BEHIND.commits - 1
    append(log, 3, "b")
    assert unprojected(log) == 2
    assert log.next_index() == FAR_BEHIND.commits + 3


def test_closing_a_log_does_not_wait_for_a_pause_in_appends(
    address: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delta_backend, "QUIET_SECONDS", HOUR_SECONDS)
    uri = address("delta")
    with EventLog.open(uri) as log:
        append(log, PROJECTED_AT_COMMITS + 1, "a")
    with EventLog.open(uri) as log:
        assert log.next_index() == PROJECTED_AT_COMMITS + 2


def test_an_interrupt_of_a_close_leaves_no_lock_to_the_background_thread(log: EventLog):
    event = InterruptedEvent()
    wait_with(delta_backend_of(log), event)
    with pytest.raises(KeyboardInterrupt):
        log.close()
    wait_with(delta_backend_of(log), threading.Event())
    assert not event.lock.locked()


class Busy(threading.Event):
    """An event to wait for; another thread appends during the first waits."""

    def __init__(self, backend: DeltaBackend, appends: int) -> None:
        super().__init__()
        self._backend = backend
        self.appends = appends
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.waits += 1
        if self.waits <= self.appends:
            count_append(self._backend)
        return False


@pytest.fixture
def backend(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> DeltaBackend:
    """A backend that projects nothing beside appends until a test calls it."""
    found = delta_backend_of(log)
    stop_background(monkeypatch, found)
    return found


def test_a_pause_is_a_wait_without_an_append(backend: DeltaBackend):
    busy = Busy(backend, appends=3)
    wait_with(backend, busy)
    assert keep_up(backend) is None
    assert busy.waits == busy.appends + 1


def test_a_small_backlog_waits_for_a_pause_and_a_large_one_does_not(log: EventLog, backend: DeltaBackend):
    busy = Busy(backend, appends=3)
    wait_with(backend, busy)
    append(log, BEHIND.commits - 1, "a")
    keep_up(backend)
    assert (busy.waits, unprojected(log)) == (busy.appends + 1, 0)
    busy = Busy(backend, appends=3)
    wait_with(backend, busy)
    append(log, BEHIND.commits, "b")
    keep_up(backend)
    assert (busy.waits, unprojected(log)) == (0, 0)


def test_after_the_last_wait_the_backlog_is_projected_without_a_pause(log: EventLog, backend: DeltaBackend):
    append(log, 1, "a")
    busy = Busy(backend, appends=delta_backend.QUIET_WAITS)
    wait_with(backend, busy)
    keep_up(backend)
    assert (busy.waits, unprojected(log)) == (delta_backend.QUIET_WAITS, 0)


@pytest.fixture
def beside(log: EventLog, backend: DeltaBackend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Append once after each of the first three applied ranges; return the number of pending commits."""
    waiting: list[int] = []

    def applied(pending: CommitRange) -> None:
        apply(pending)
        if len(waiting) < 3:
            append(log, 1, f"beside{len(waiting)}")
            waiting.append(unprojected(log))

    apply = replace_apply(monkeypatch, projection_of(backend), applied)
    return waiting


def test_a_query_projects_earlier_appends_and_not_concurrent_ones(
    log: EventLog, backend: DeltaBackend, beside: list[int]
):
    append(log, 1, "a")
    projection_of(backend).flush()
    assert (len(beside), unprojected(log)) == (1, 1)
    assert log.next_index() == 3, "the second append is projected, the third comes beside it and is for the next query"


def test_the_background_projects_concurrent_appends_too(log: EventLog, backend: DeltaBackend, beside: list[int]):
    append(log, 1, "a")
    wait_with(backend, Busy(backend, appends=0))
    keep_up(backend)
    assert (len(beside), unprojected(log)) == (3, 0)


def test_many_events_in_few_commits_are_a_large_backlog(log: EventLog, backend: DeltaBackend):
    log.append(*[received(f"a{number}") for number in range(BEHIND.events)])
    busy = Busy(backend, appends=3)
    wait_with(backend, busy)
    keep_up(backend)
    assert (busy.waits, unprojected(log)) == (0, 0)
    log.append(*[received(f"b{number}") for number in range(FAR_BEHIND.events)])
    assert unprojected(log) == 0, "a large append projects its events"
