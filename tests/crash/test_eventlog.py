"""A process that dies while it appends leaves all of its events or none, and whoever comes after appends on."""

from pathlib import Path

import pytest

from siltstone.eventlog.events import event_json
from siltstone.eventlog.log import EventLog
from tests.support.appends import append_all
from tests.support.children import Child
from tests.support.histories import history

PLACES = {"eventlog.before_commit": 0, "eventlog.after_commit": 20}
"""Where it dies, and how many of twenty events are there then."""


@pytest.mark.parametrize(("place", "there"), PLACES.items())
def test_an_append_that_is_killed_is_whole_or_not_there(place: str, there: int, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/log.db"
    append_all(uri, first=0, last=30, at_once=7)
    arguments = {"uri": uri, "first": 30, "last": 50, "at_once": 20}
    outcome = Child("tests.support.appends:append_all", arguments, failpoint=f"{place}:kill").wait()
    assert outcome.killed, outcome.stderr
    with EventLog.open(uri, create=False) as log:
        assert log.summary().events == 30 + there
    assert append_all(uri, first=30, last=50, at_once=20) == 20 - there
    with EventLog.open(uri, create=False) as log:
        assert [event_json(one.event) for one in log.events()] == [event_json(one) for one in history(50, seed=9)]


@pytest.mark.parametrize("place", ["eventlog.before_commit", "eventlog.after_commit"])
def test_a_log_whose_making_is_killed_is_made_by_the_next(place: str, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/log.db"
    arguments = {"uri": uri, "first": 0, "last": 5, "at_once": 5}
    assert Child("tests.support.appends:append_all", arguments, failpoint=f"{place}:kill").wait().killed
    assert append_all(uri, first=0, last=5, at_once=5) == 5


def test_a_process_that_is_killed_in_a_race_takes_nothing_of_the_others_with_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/log.db"
    append_all(uri, first=0, last=10, at_once=10)
    dying = Child(
        "tests.support.appends:append_all",
        {"uri": uri, "first": 10, "last": 60, "at_once": 5},
        failpoint="eventlog.before_commit:kill:4",
    )
    living = Child("tests.support.appends:append_all", {"uri": uri, "first": 0, "last": 10, "at_once": 1})
    assert dying.wait().killed
    assert living.wait().value == 0
    with EventLog.open(uri) as log:
        assert [one.index for one in log.events()] == list(range(1, 26))
