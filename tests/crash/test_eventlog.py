"""A process that dies while it appends leaves all of its events or none, and the next writer appends to them."""

from pathlib import Path

import pytest

from siltstone.eventlog.events import event_json
from siltstone.eventlog.local_table import LocalEventTable
from siltstone.eventlog.log import EventLog
from tests.support.appends import append_all, squash_files
from tests.support.children import Child
from tests.support.histories import history

SQLITE = {"eventlog.before_commit": 0, "eventlog.after_commit": 20}
DELTA = {
    "eventlog.after_stage": 0,
    "commit.before_entry": 0,
    "commit.after_draft": 0,
    "commit.after_entry": 20,
    "eventlog.after_append": 20,
    "eventlog.before_commit": 20,
    "eventlog.after_commit": 20,
}
"""Where a process dies, and the number of events then stored, out of twenty.

On Delta, a transaction is one of the projection.
"""
SQUASH = ("eventlog.after_squash_write", "eventlog.after_squash", "commit.after_draft", "commit.after_entry")
PLACES = {
    *SQLITE,
    *DELTA,
    *SQUASH,
    "eventlog.during_catch_up",
    "eventlog.during_migration",
}  # the last: contract/test_migration
APPEND = "tests.support.appends:append_all"


@pytest.fixture(autouse=True)
def _own_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def texts(uri: str) -> list[str]:
    with EventLog.open(uri, create=False) as log:
        return [event_json(one.event) for one in log.events()]


def expected(count: int) -> list[str]:
    return [event_json(one) for one in history(count, seed=9)]


@pytest.mark.parametrize(
    ("scheme", "place", "there"),
    [("sqlite:///", *one) for one in SQLITE.items()] + [("delta://", *one) for one in DELTA.items()],
)
def test_an_append_that_is_killed_is_whole_or_not_there(scheme: str, place: str, there: int, tmp_path: Path) -> None:
    uri = f"{scheme}{tmp_path}/log"
    append_all(uri, first=0, last=30, at_once=7)
    arguments = {"uri": uri, "first": 30, "last": 50, "at_once": 20}
    outcome = Child(APPEND, arguments, failpoint=f"{place}:kill").wait()
    assert outcome.killed, outcome.stderr
    assert texts(uri) == expected(30 + there)
    assert append_all(uri, first=30, last=50, at_once=20) == 20 - there
    assert texts(uri) == expected(50)


@pytest.mark.parametrize("scheme", ["sqlite:///", "delta://"])
@pytest.mark.parametrize("place", ["eventlog.before_commit", "eventlog.after_commit"])
def test_a_log_whose_making_is_killed_is_made_by_the_next(scheme: str, place: str, tmp_path: Path) -> None:
    uri = f"{scheme}{tmp_path}/log"
    arguments = {"uri": uri, "first": 0, "last": 5, "at_once": 5}
    assert Child(APPEND, arguments, failpoint=f"{place}:kill").wait().killed
    assert append_all(uri, first=0, last=5, at_once=5) == 5
    assert texts(uri) == expected(5)


@pytest.mark.parametrize(
    "place", ["eventlog.during_catch_up", "eventlog.before_commit:kill:2", "eventlog.after_commit:kill:2"]
)
def test_a_projection_killed_while_it_catches_up_resumes_where_it_was(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"delta://{tmp_path}/log"
    append_all(uri, first=0, last=30, at_once=3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other cache"))
    name, _, rest = place.partition(":")
    outcome = Child("tests.support.appends:count_events", {"uri": uri}, failpoint=f"{name}:{rest or 'kill'}").wait()
    assert outcome.killed, outcome.stderr
    assert texts(uri) == expected(30)


@pytest.mark.parametrize("scheme", ["sqlite:///", "delta://"])
def test_a_process_killed_in_a_race_loses_no_events_of_the_others(scheme: str, tmp_path: Path) -> None:
    uri = f"{scheme}{tmp_path}/log"
    append_all(uri, first=0, last=10, at_once=10)
    place = "eventlog.before_commit:kill:4" if scheme == "sqlite:///" else "eventlog.after_stage:kill:4"
    dying = Child(APPEND, {"uri": uri, "first": 10, "last": 60, "at_once": 5}, failpoint=place)
    living = Child(APPEND, {"uri": uri, "first": 0, "last": 10, "at_once": 1})
    assert dying.wait().killed
    assert living.wait().value == 0
    assert texts(uri) == expected(25)


@pytest.mark.parametrize("place", SQUASH)
def test_a_squash_that_is_killed_loses_and_doubles_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"delta://{tmp_path}/log"
    monkeypatch.setattr(LocalEventTable, "notice", lambda *_: None)
    append_all(uri, first=0, last=40, at_once=1)
    outcome = Child("tests.support.appends:squash_files", {"uri": uri}, failpoint=f"{place}:kill").wait()
    assert outcome.killed, outcome.stderr
    assert texts(uri) == expected(40)
    squash_files(uri)
    assert append_all(uri, first=40, last=45, at_once=1) == 5
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other cache"))
    assert texts(uri) == expected(45)
