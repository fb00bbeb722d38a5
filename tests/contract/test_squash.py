"""Merges of small files of a log on Delta: no event is lost, duplicated or reordered, for any follower."""

from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.delta.checkpoints import Retention
from siltstone.delta.table import Table
from siltstone.errors import Conflict
from siltstone.eventlog import compaction, local_table
from siltstone.eventlog.arrow_rows import DAY
from siltstone.eventlog.events import event_json
from siltstone.eventlog.local_table import RETAINED_HOURS, sweep
from siltstone.eventlog.log import EventLog
from siltstone.model.files import DataFile
from siltstone.model.small_runs import EVENT_CLASSES, small_event_files
from tests.support.appends import append_all
from tests.support.histories import history
from tests.support.internals import replace_squash_writing

MANY = Settings().event_log_files


def table_of(uri: str) -> Table:
    return Table(
        Path(uri.removeprefix("delta://")),
        settings=Settings(),
        clock=SystemClock(),
        retention=Retention(hours=RETAINED_HOURS, max_entries=100),
        label="log",
    )


def squashed(table: Table) -> int:
    return compaction.squash(table, clock=SystemClock(), many=MANY)


def texts(uri: str) -> list[str]:
    with EventLog.open(uri, create=False) as log:
        return [event_json(one.event) for one in log.events()]


def expected(count: int) -> list[str]:
    return [event_json(one) for one in history(count, seed=9)]


@pytest.fixture
def uri(address: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A log of forty files that are not merged yet."""
    found = address("delta")
    monkeypatch.setattr(local_table.LocalEventTable, "notice", lambda *_: None)
    append_all(found, first=0, last=40, at_once=1)
    return found


def test_a_squash_changes_no_event_for_old_and_new_readers(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(uri)
    with EventLog.open(uri) as follower:
        assert follower.summary().events == 40
        days = {file.partition[DAY] for file in table.pin().files}
        assert squashed(table) == 40 - len(days)
        assert [event_json(one.event) for one in follower.events()] == expected(40)
        assert append_all(uri, first=40, last=50, at_once=5) == 10
        assert [event_json(one.event) for one in follower.events()] == expected(50)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert texts(uri) == expected(50)
    with EventLog.open(uri) as log:
        assert [one.index for one in log.events()] == list(range(1, 51))
        assert {one.appended_at is None for one in log.events()} == {False}


def test_a_follower_that_is_behind_reads_moved_events(uri: str) -> None:
    with EventLog.open(uri) as behind:
        assert behind.summary().events == 40
        append_all(uri, first=40, last=80, at_once=1)
        table = table_of(uri)
        while squashed(table):
            pass
        for file in (table.path / "data").glob("*.parquet"):  # as if the sweep had run already
            if f"data/{file.name}" not in {one.path for one in table.pin().files}:
                file.unlink()
        assert [event_json(one.event) for one in behind.events()] == expected(80)


def test_the_sweep_leaves_recently_replaced_files(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(uri)
    squashed(table)
    assert sweep(table) == 0
    monkeypatch.setattr(local_table, "SWEPT_AFTER_HOURS", 0.0)
    assert sweep(table) == 40
    assert texts(uri) == expected(40)


def test_of_two_concurrent_squashes_one_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = table_of(uri), table_of(uri)

    def slow(*arguments: object) -> list[DataFile]:
        replace_squash_writing(monkeypatch, write)
        found: list[DataFile] = write(*arguments)
        squashed(other)
        return found

    write = replace_squash_writing(monkeypatch, slow)
    with pytest.raises(Conflict):
        squashed(table)
    assert texts(uri) == expected(40)
    live = {one.path for one in table.pin().files}
    referenced = live | table.removed()
    assert {f"data/{path.name}" for path in (table.path / "data").glob("*.parquet")} <= referenced


def test_a_log_squashes_its_files_by_itself(address: Callable[[str], str]) -> None:
    uri = address("delta")
    append_all(uri, first=0, last=120, at_once=1)
    append_all(uri, first=120, last=140, at_once=1)  # an opened log checkpoints, and so squashes, without a pause
    days = len({file.partition[DAY] for file in table_of(uri).pin().files})
    assert len(table_of(uri).pin().files) < 140 // 2 + days
    assert texts(uri) == expected(140)


@given(st.lists(st.integers(1, 40_000), max_size=200))
def test_selected_files_are_many_and_of_one_size_class(sizes: list[int]) -> None:
    files = [DataFile(path=str(n), size_bytes=1, rows=rows, partition={DAY: "d"}) for n, rows in enumerate(sizes)]
    run = small_event_files(files, compaction.day_of, many=MANY)
    classes = {bisect_left(EVENT_CLASSES, file.rows) for file in run.files}
    assert len(classes) <= 1
    assert len(EVENT_CLASSES) not in classes, "large files are left alone"
    assert run.enough == (len(run.files) >= MANY)
    if not run.enough:
        for number in range(len(EVENT_CLASSES)):
            assert sum(bisect_left(EVENT_CLASSES, rows) == number for rows in sizes) < MANY


def test_files_of_different_days_are_not_merged() -> None:
    files = [DataFile(path=str(n), size_bytes=1, rows=1, partition={DAY: str(n)}) for n in range(100)]
    assert not small_event_files(files, compaction.day_of, many=MANY).enough
