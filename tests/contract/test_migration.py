"""Logs of version 1: readable unchanged, migrated by a command, and writable after that."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.errors import InvalidRequest
from siltstone.eventlog.events import SCHEMA_VERSION, event_json
from siltstone.eventlog.log import EventLog
from tests.support.children import Child
from tests.support.histories import received
from tests.support.postgres import USER, Postgres

FIXTURES = Path(__file__).parents[1] / "fixtures" / "eventlog_v1"
OLD = ("sqlite", "postgresql", "delta")
EVENTS = (FIXTURES / "events.ndjson").read_text().splitlines()


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, address: Callable[[str], str]) -> str:
    """The address of a copy of a log of version 1."""
    uri = address(request.param)
    match request.param:
        case "sqlite":
            shutil.copy(FIXTURES / "log.db", uri.removeprefix("sqlite:///"))
        case "delta":
            shutil.copytree(FIXTURES / "delta", uri.removeprefix("delta://"))
        case _:
            server: Postgres = request.getfixturevalue("postgres")
            script = f"SET ROLE {USER};\n" + (FIXTURES / "postgresql.sql").read_text()
            server.run(script, database=uri.rsplit("/", 1)[-1])
    return uri


def texts(log: EventLog) -> list[str]:
    return [event_json(one.event) for one in log.events()]


def test_a_log_of_version_1_is_read(old: str) -> None:
    with EventLog.open(old) as log:
        assert log.version == 1
        assert texts(log) == EVENTS
        assert {one.appended_at for one in log.events()} == {None}
        assert log.summary().events == len(EVENTS)
        assert len(log.builds()) == 38
        assert log.event(next(iter(log.events())).event.event_id).index == 1


def test_a_log_of_version_1_refuses_appends_until_it_is_migrated(old: str) -> None:
    with EventLog.open(old) as log:
        with pytest.raises(InvalidRequest, match="silt events"):
            log.append(received("new"))
        assert texts(log) == EVENTS


def test_migration_adds_columns_and_changes_no_event(old: str) -> None:
    with EventLog.open(old) as other, EventLog.open(old) as log:
        assert log.migrate() == 1
        assert log.migrate() == log.version == SCHEMA_VERSION
        log.append(received("new"))
        assert texts(log)[:-1] == EVENTS
        assert texts(other)[:-1] == EVENTS  # a log opened before the migration can still be read
    with EventLog.open(old) as log:
        assert log.version == SCHEMA_VERSION
        *earlier, last = log.events()
        assert last.appended_at is not None
        assert {one.appended_at for one in earlier} == {None}


@pytest.mark.parametrize("place", ["eventlog.during_migration", "eventlog.before_commit", "eventlog.after_commit"])
def test_a_killed_migration_is_completed_by_the_next(old: str, place: str) -> None:
    if old.startswith("delta") and place != "eventlog.during_migration":
        place = "commit.before_entry" if place.endswith("before_commit") else "commit.after_entry"
    with EventLog.open(old) as log:
        log.summary()  # a projection exists, so that this path is the one to migrate
    outcome = Child("tests.support.appends:migrate", {"uri": old}, failpoint=f"{place}:kill").wait()
    assert outcome.killed, outcome.stderr
    with EventLog.open(old) as log:
        assert texts(log) == EVENTS
        log.migrate()
        log.append(received("new"))
        assert texts(log)[:-1] == EVENTS
    with EventLog.open(old) as log:
        assert log.version == SCHEMA_VERSION
