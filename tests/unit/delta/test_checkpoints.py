import datetime
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.clock import SystemClock
from siltstone.delta import checkpoints
from siltstone.delta.background import Background, BackgroundCheckpoints
from siltstone.delta.checkpoint_checksums import checkpoint_lock
from siltstone.delta.checkpoints import Retention, clean_log, forget_history, heal_checkpoint
from siltstone.delta.layout import LOG, entry_name
from siltstone.delta.log_reader import LAST_CHECKPOINT, list_log
from siltstone.errors import Corruption, Reason
from tests.support.refusals import refused
from tests.support.tables import FAST, make_table

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
OWN = '{"commitInfo": {"siltstone.kind": "append"}}\n{"txn": {"appId": "a", "version": 1}}\n'
VACUUM = '{"commitInfo": {"operation": "VACUUM END"}}\n'


@dataclass(frozen=True, slots=True)
class StoppedClock(SystemClock):
    """A clock that always shows the first of January 2026."""

    def now(self) -> datetime.datetime:
        return NOW


def checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def log(table: Path, *, entries: range, checkpoints: tuple[int, ...] = (), age_hours: float = 0.0) -> Path:
    """Write a log of entries and readable checkpoints, all of one age."""
    (table / LOG).mkdir(parents=True)
    for version in entries:
        (table / LOG / entry_name(version)).write_text(OWN)
    for version in checkpoints:
        pq.write_table(pa.table({"x": [1]}), table / LOG / checkpoint(version))
        (table / LOG / LAST_CHECKPOINT).write_text("{}")
    moment = NOW.timestamp() - age_hours * 3600
    for path in (table / LOG).iterdir():
        os.utime(path, (moment, moment))
    return table


def versions_of(table: Path) -> tuple[list[int], list[int]]:
    listing = list_log(table)
    return list(listing.entries), sorted(listing.checkpoints)


def clean(table: Path, retention: Retention) -> int:
    return clean_log(table, retention=retention, clock=StoppedClock())


def test_without_a_checkpoint_nothing_is_cleaned(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(20), age_hours=1000)
    assert clean(table, Retention(hours=1, max_entries=1)) == 0


def test_young_entries_are_kept(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(20), checkpoints=(10,), age_hours=0.5)
    assert clean(table, Retention(hours=1)) == 0


def test_expired_entries_and_checkpoints_below_the_newest_checkpoint_go(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(20), checkpoints=(5, 10), age_hours=2)
    assert clean(table, Retention(hours=1)) == 11
    assert versions_of(table) == ([*range(10, 20)], [10])


def test_too_many_entries_are_expired_however_young(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(30), checkpoints=(5, 10, 25))
    assert clean(table, Retention(hours=100, max_entries=10)) == 11
    assert versions_of(table) == ([*range(10, 30)], [10, 25])


def test_the_newest_checkpoint_is_never_deleted(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(11), checkpoints=(10,), age_hours=10_000)
    clean(table, Retention(hours=0, max_entries=0))
    assert versions_of(table) == ([10], [10])


def test_cleaning_twice_cleans_once(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(20), checkpoints=(10,), age_hours=2)
    assert clean(table, Retention(hours=1)) == 10
    assert clean(table, Retention(hours=1)) == 0


def test_a_purge_forgets_everything_below_the_newest_checkpoint(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(20), checkpoints=(5, 15))
    assert forget_history(table) == 16
    assert versions_of(table) == ([*range(15, 20)], [15])


@pytest.mark.parametrize("forget", [True, False])
def test_entries_of_other_programs_above_our_last_commit_stay_and_everything_below_goes(
    tmp_path: Path, *, forget: bool
):
    table = log(tmp_path / "t", entries=range(20), checkpoints=(5, 19), age_hours=2)
    for version in (7, 17, 18, 19):
        (table / LOG / entry_name(version)).write_text(VACUUM)
    assert (forget_history(table) if forget else clean(table, Retention(hours=1, max_entries=0))) == 18
    assert versions_of(table) == ([17, 18, 19], [19])
    (table / LOG / entry_name(20)).write_text(OWN)
    assert forget_history(table) == 2
    assert versions_of(table) == ([19, 20], [19])


# ---- healing ---------------------------------------------------------------------------------------------------------


def spoil(table: Path, version: int) -> None:
    (table / LOG / checkpoint(version)).write_bytes(b"PAR1")


def test_a_sound_log_needs_no_healing(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(3))
    assert not heal_checkpoint(table)


def test_an_unreadable_checkpoint_goes_if_its_entries_are_there(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(8), checkpoints=(5,))
    spoil(table, 5)
    assert heal_checkpoint(table)
    assert versions_of(table) == ([*range(8)], [])
    assert not (table / LOG / LAST_CHECKPOINT).exists()


def test_an_older_sound_checkpoint_is_read_instead_of_an_unreadable_one(tmp_path: Path):
    table = log(tmp_path / "t", entries=range(3, 8), checkpoints=(3, 6))
    spoil(table, 6)
    assert heal_checkpoint(table)
    assert versions_of(table) == ([*range(3, 8)], [3])


def test_an_unreadable_checkpoint_that_another_process_replaces_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other process cleans the entries below its checkpoint: without the checkpoint the table would be lost."""
    table = log(tmp_path / "t", entries=range(8), checkpoints=(5,))
    sound = (table / LOG / checkpoint(5)).read_bytes()
    spoil(table, 5)
    waiting = threading.Event()

    def lock(path: Path) -> AbstractContextManager[None]:
        waiting.set()
        return checkpoint_lock(path)

    monkeypatch.setattr(checkpoints, "checkpoint_lock", lock)
    with ThreadPoolExecutor(1) as pool:
        with checkpoint_lock(table):
            healed = pool.submit(heal_checkpoint, table)
            assert waiting.wait(60), "it has read the unreadable one"
            with pytest.raises(TimeoutError):
                healed.result(timeout=0.1)
            (table / LOG / checkpoint(5)).write_bytes(sound)
        assert not healed.result(timeout=60)
    assert versions_of(table) == ([*range(8)], [5])


@pytest.mark.parametrize("entries", [range(5, 8), range(1, 8), range(5), range(0)])
def test_an_unreadable_checkpoint_stays_if_an_entry_it_covers_is_missing(tmp_path: Path, entries: range):
    table = log(tmp_path / "t", entries=entries, checkpoints=(5,))
    spoil(table, 5)
    before = versions_of(table)
    with refused(Corruption, Reason.DAMAGED_FILE, table):
        heal_checkpoint(table)
    assert versions_of(table) == before


@pytest.mark.parametrize(
    ("entries", "checkpoints", "healed"),
    [
        (range(5), (), True),
        (range(3, 6), (3,), True),
        (range(4, 6), (3,), True),
        (range(2, 5), (), False),
        (range(5, 6), (3,), False),
        (range(0), (), False),
    ],
)
def test_a_dangling_pointer_is_deleted_if_the_rest_of_the_log_is_complete(
    tmp_path: Path, entries: range, checkpoints: tuple[int, ...], *, healed: bool
):
    table = log(tmp_path / "t", entries=entries, checkpoints=checkpoints)
    pointer = table / LOG / LAST_CHECKPOINT
    pointer.write_text('{"version": 9}')
    assert heal_checkpoint(table) is healed
    assert pointer.exists() is not healed


def test_a_purge_takes_the_drafts_that_crashed_writers_left(tmp_path: Path):
    table = log(tmp_path, entries=range(5), checkpoints=(4,))
    drafts = [f"{entry_name(3)}#17", f"{entry_name(4)}#18", f"{checkpoint(4)}#1"]
    young = f"{entry_name(5)}#19"
    for name in (*drafts, young):
        (table / LOG / name).write_text("secret")
    forget_history(table)
    names = {path.name for path in (table / LOG).iterdir()}
    assert not names & set(drafts)
    assert young in names


def test_a_checkpoint_that_was_cleaned_since_it_was_listed_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table = log(tmp_path / "t", entries=range(5, 12), checkpoints=(4, 9))
    listing = list_log(table)
    (table / LOG / checkpoint(4)).unlink()
    monkeypatch.setattr(checkpoints, "list_log", lambda _: listing)
    heal_checkpoint(table)
    assert versions_of(table) == (list(range(5, 12)), [9])


def test_a_log_that_cannot_be_listed_does_not_fail_the_commit_before(tmp_path: Path):
    table = make_table(tmp_path / "t", appends=1)
    shutil.rmtree(table.path)
    BackgroundCheckpoints(Background(), settings=FAST, clock=SystemClock()).notice(table, 1)
