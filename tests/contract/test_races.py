"""Many processes on one log: no event is lost or duplicated, and a contested transition has one winner."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siltstone.delta import commit_lock
from siltstone.eventlog.event_store import AppendPlan
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.projection import Projection
from tests.support.children import Child
from tests.support.histories import received
from tests.support.internals import delta_backend_of, projection_of

PROCESSES = 4
LONG_SECONDS = 1200.0


def race(uri: str, *, processes: int, each: int, killed_at: int, place: str) -> None:
    """Append from several processes, one of which is killed; check that every acknowledged event exists once."""
    EventLog.open(uri).close()
    arguments = [{"uri": uri, "name": f"p{number}", "count": each} for number in range(processes)]
    target = "tests.support.appends:append_builds"
    dying = Child(target, arguments[0], failpoint=f"{place}:kill:{killed_at}")
    others = [Child(target, given) for given in arguments[1:]]
    acknowledged = [index for child in others for index in child.value(LONG_SECONDS)]
    assert dying.wait(LONG_SECONDS).killed
    with EventLog.open(uri) as log:
        events = list(log.events())
    assert [one.index for one in events] == list(range(1, len(events) + 1))
    assert len(set(acknowledged)) == (processes - 1) * each
    names = [one.event.build_request_id for one in events]
    assert len(set(names)) == len(names)
    assert {f"p{number}-{at}" for number in range(1, processes) for at in range(each)} <= set(names)
    assert 0 < sum(name.startswith("p0-") for name in names) < each


@pytest.mark.parametrize("kind", ["sqlite", "delta"])
def test_concurrent_processes_lose_no_event(kind: str, address: Callable[[str], str]) -> None:
    place = "eventlog.after_stage" if kind == "delta" else "eventlog.before_commit"
    race(address(kind), processes=PROCESSES, each=20, killed_at=9, place=place)


def test_an_append_that_was_overtaken_during_its_check_is_tried_again(
    address: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    """Two commits land between the read of the table and the check; the projection already has the first one."""
    monkeypatch.setattr(commit_lock, "LOCK_SECONDS", 0.05)
    uri = address("delta")
    with EventLog.open(uri) as slow, EventLog.open(uri) as quick:
        slow.append(received("before"))
        check = Projection.check
        overtaken: list[int] = []

        def late(self: Projection, *given: Any, **named: Any) -> AppendPlan:  # noqa: ANN401
            if self is projection_of(delta_backend_of(slow)) and not overtaken:
                overtaken.append(1)
                quick.append(received("one"))
                assert quick.next_index() == 3, "and it is projected"
                quick.append(received("two"))
            return check(self, *given, **named)

        monkeypatch.setattr(Projection, "check", late)
        assert slow.append(received("three"))[0].index == 4
        assert overtaken
        assert [one.event.build_request_id for one in slow.events()] == ["before", "one", "two", "three"]


@pytest.mark.deep
def test_eight_processes_of_five_hundred_events_lose_nothing_on_delta(
    address: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = address("delta")
    race(uri, processes=8, each=500, killed_at=200, place="eventlog.after_stage")
    with EventLog.open(uri) as log:
        first = [one.event for one in log.events()]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another reader"))
    with EventLog.open(uri) as log:
        assert [one.event for one in log.events()] == first


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "delta"])
def test_of_processes_that_append_the_same_transition_one_wins(kind: str, address: Callable[[str], str]) -> None:
    uri = address(kind)
    with EventLog.open(uri) as log:
        log.append(received())
    children = [
        Child("tests.support.appends:contest", {"uri": uri, "name": f"p{number}"}) for number in range(PROCESSES)
    ]
    assert sum(child.wait().value for child in children) == 1
    with EventLog.open(uri) as log:
        assert log.summary().events == 2
