"""When a log on Delta folds what its own process has appended: as long as it can not beside appends, and never too late."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from siltstone.eventlog import delta_backend as delta
from siltstone.eventlog import local_table as local_place
from siltstone.eventlog.delta_backend import BEHIND, FAR_BEHIND, FOLDED_AT_COMMITS, DeltaKeeper
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.pending_commits import Run
from tests.support.histories import received
from tests.support.internals import (
    count_append,
    delta_keeper_of,
    keep_up,
    projection_of,
    replace_take_in,
    stop_background,
    wait_with,
)

PATIENCE_SECONDS = 60.0
HOUR_SECONDS = 3600.0


@pytest.fixture
def log(address: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLog]:
    monkeypatch.setattr(local_place.LocalPlace, "notice", lambda *_: None)  # a squash would be a commit more
    with EventLog.open(address("delta")) as opened:
        yield opened


def unfolded(log: EventLog) -> int:
    """Return how many commits were not folded yet; asking the log itself would fold them."""
    return projection_of(delta_keeper_of(log)).backlog.commits


def append(log: EventLog, count: int, name: str) -> None:
    for number in range(count):
        log.append(received(f"{name}{number}"))


def test_what_was_appended_is_folded_once_nobody_appends(log: EventLog):
    append(log, FOLDED_AT_COMMITS, "a")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while unfolded(log):
        assert time.monotonic() < deadline, "it is never folded"
        time.sleep(0.05)
    assert log.next_index() == FOLDED_AT_COMMITS + 1


def test_where_folding_does_not_keep_up_who_appends_folds(log: EventLog, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delta, "QUIET_SECONDS", HOUR_SECONDS)
    append(log, FAR_BEHIND.commits - 1, "a")
    assert unfolded(log) == FAR_BEHIND.commits - 1
    append(log, 3, "b")
    assert unfolded(log) == 2
    assert log.next_index() == FAR_BEHIND.commits + 3


def test_a_log_that_is_closed_does_not_wait_for_quiet(address: Callable[[str], str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delta, "QUIET_SECONDS", HOUR_SECONDS)
    uri = address("delta")
    with EventLog.open(uri) as log:
        append(log, FOLDED_AT_COMMITS + 1, "a")
    with EventLog.open(uri) as log:
        assert log.next_index() == FOLDED_AT_COMMITS + 2


class Busy(threading.Event):
    """Somebody appends during the first waits."""

    def __init__(self, keeper: DeltaKeeper, appends: int) -> None:
        super().__init__()
        self._keeper = keeper
        self.appends = appends
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.waits += 1
        if self.waits <= self.appends:
            count_append(self._keeper)
        return False


@pytest.fixture
def keeper(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> DeltaKeeper:
    """A keeper that folds nothing beside appends until it is told to."""
    found = delta_keeper_of(log)
    stop_background(monkeypatch, found)
    return found


def test_it_is_quiet_only_after_a_wait_in_which_nobody_appended(keeper: DeltaKeeper):
    busy = Busy(keeper, appends=3)
    wait_with(keeper, busy)
    assert keep_up(keeper) is None
    assert busy.waits == busy.appends + 1


def test_while_somebody_appends_little_waits_for_quiet_and_too_much_does_not(log: EventLog, keeper: DeltaKeeper):
    busy = Busy(keeper, appends=3)
    wait_with(keeper, busy)
    append(log, BEHIND.commits - 1, "a")
    keep_up(keeper)
    assert (busy.waits, unfolded(log)) == (busy.appends + 1, 0)
    busy = Busy(keeper, appends=3)
    wait_with(keeper, busy)
    append(log, BEHIND.commits, "b")
    keep_up(keeper)
    assert (busy.waits, unfolded(log)) == (0, 0)


def test_who_waits_for_quiet_in_vain_tidies_all_the_same(log: EventLog, keeper: DeltaKeeper):
    append(log, 1, "a")
    busy = Busy(keeper, appends=delta.QUIET_WAITS)
    wait_with(keeper, busy)
    keep_up(keeper)
    assert (busy.waits, unfolded(log)) == (delta.QUIET_WAITS, 0)


@pytest.fixture
def beside(log: EventLog, keeper: DeltaKeeper, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Somebody appends once more after each of the first three folds; return how many commits then wait."""
    waiting: list[int] = []

    def folded(run: Run) -> None:
        take_in(run)
        if len(waiting) < 3:
            append(log, 1, f"beside{len(waiting)}")
            waiting.append(unfolded(log))

    take_in = replace_take_in(monkeypatch, projection_of(keeper), folded)
    return waiting


def test_who_asks_folds_what_was_there_and_not_all_that_comes_meanwhile(
    log: EventLog, keeper: DeltaKeeper, beside: list[int]
):
    append(log, 1, "a")
    projection_of(keeper).flush()
    assert (len(beside), unfolded(log)) == (1, 1)
    assert log.next_index() == 3, (
        "the second append is folded, the third comes beside it and is for the next one who asks"
    )


def test_in_the_background_everything_is_folded_that_came_meanwhile(
    log: EventLog, keeper: DeltaKeeper, beside: list[int]
):
    append(log, 1, "a")
    wait_with(keeper, Busy(keeper, appends=0))
    keep_up(keeper)
    assert (len(beside), unfolded(log)) == (3, 0)


def test_many_events_are_too_much_in_few_commits(log: EventLog, keeper: DeltaKeeper):
    log.append(*[received(f"a{number}") for number in range(BEHIND.events)])
    busy = Busy(keeper, appends=3)
    wait_with(keeper, busy)
    keep_up(keeper)
    assert (busy.waits, unfolded(log)) == (0, 0)
    log.append(*[received(f"b{number}") for number in range(FAR_BEHIND.events)])
    assert unfolded(log) == 0, "who has appended so many folds them"
