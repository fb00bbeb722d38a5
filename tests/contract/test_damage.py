"""Damage to the files of event logs: a log raises Corruption, a projection is rebuilt. Neither returns other events."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from siltstone.errors import Corruption, Reason
from siltstone.eventlog.events import Event
from siltstone.eventlog.log import EventLog
from siltstone.host.user_cache import cache_folder
from tests.support.flips import flipped
from tests.support.histories import history, received
from tests.support.refusals import refused

EVENTS = 60
ZEROS = 512


def filled(uri: str) -> list[tuple[int, Event]]:
    with EventLog.open(uri) as log:
        events = list(history(EVENTS, seed=3))
        for start in range(0, EVENTS, 20):
            log.append(*events[start : start + 20])
        return [(one.index, one.event) for one in log.events()]


def found(uri: str) -> list[tuple[int, Event]] | None:
    """Return all events, or None if the log reports damage."""
    try:
        with EventLog.open(uri) as log:
            assert log.summary().events == EVENTS
            return [(one.index, one.event) for one in log.events()]
    except Corruption:
        return None


def zeroed(path: Path) -> Iterator[None]:
    content = path.read_bytes()
    for at in range(0, len(content), ZEROS):
        if any(content[at : at + ZEROS]):
            path.write_bytes(content[:at] + bytes(ZEROS) + content[at + ZEROS :])
            yield
    path.write_bytes(content)


def without_wal(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def damaged(path: Path) -> Iterator[None]:
    """Flip bits all over a database, then zero its sectors one by one."""
    for _ in flipped(path, step=path.stat().st_size // 20):
        yield
        without_wal(path)
    for _ in zeroed(path):
        yield
        without_wal(path)


def test_a_damaged_sqlite_log_is_corruption_or_has_the_same_events(address: Callable[[str], str]) -> None:
    uri = address("sqlite")
    truth = filled(uri)
    answers = [found(uri) for _ in damaged(Path(uri.removeprefix("sqlite:///")))]
    assert answers.count(None) > 20
    assert all(answer in (None, truth) for answer in answers)
    assert found(uri) == truth


def test_a_damaged_projection_is_rebuilt_from_its_log(address: Callable[[str], str]) -> None:
    uri = address("delta")
    truth = filled(uri)
    projection = next(cache_folder().rglob("*.db"))
    for turn, _ in enumerate(damaged(projection)):
        if turn % 9 == 0:
            assert found(uri) == truth


def test_a_flipped_bit_in_a_file_of_a_delta_log_is_corruption_or_harmless(address: Callable[[str], str]) -> None:
    uri = address("delta")
    truth = filled(uri)
    file = next(
        path for path in Path(uri.removeprefix("delta://")).rglob("*.parquet") if "_delta_log" not in path.parts
    )
    answers = []
    for _ in flipped(file, step=397):
        for projection in cache_folder().rglob("*.db*"):
            projection.unlink()
        answers.append(found(uri))
    assert answers.count(None) > 2
    assert all(answer in (None, truth) for answer in answers)


def test_an_event_that_is_missing_or_changed_is_named(address: Callable[[str], str]) -> None:
    uri = address("sqlite")
    filled(uri)
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE build_events SET timestamp = timestamp + 1 WHERE idx = 7")
        database.execute("DELETE FROM build_events WHERE idx = 9")
    database.close()
    with EventLog.open(uri) as log:
        with refused(Corruption, Reason.DAMAGED_FILE, "event 7 "):
            log.page(1)
        with refused(Corruption, Reason.DAMAGED_FILE, "9"):
            log.page(8)
        assert len(log.page(10).events) == EVENTS - 9


def test_nothing_is_appended_after_a_lost_end(address: Callable[[str], str]) -> None:
    uri = address("sqlite")
    filled(uri)
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        database.execute(f"DELETE FROM build_events WHERE idx = {EVENTS}")
    database.close()
    with EventLog.open(uri) as log, refused(Corruption, Reason.DAMAGED_FILE, "index 59"):
        log.append(received("another"))


def test_a_log_without_checksums_gets_them_with_its_next_append(address: Callable[[str], str]) -> None:
    uri = address("sqlite")
    truth = filled(uri)
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        database.execute("DROP TABLE event_checks")  # as an earlier version writes it
    database.close()
    with EventLog.open(uri) as log:
        assert [(one.index, one.event) for one in log.events()] == truth
        log.append(received("another"))
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        assert database.execute("SELECT idx FROM event_checks").fetchall() == [(EVENTS + 1,)]
    database.close()
