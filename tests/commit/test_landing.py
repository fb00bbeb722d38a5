"""A commit is applied once or not at all, for any answer of the call that writes its entry."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from siltstone.config import Settings
from siltstone.delta.checkpoints import Retention, write_checkpoint
from siltstone.delta.fsync import sync_directory
from siltstone.delta.layout import LOG, entry_name
from siltstone.delta.log_reader import list_log, read_entry
from siltstone.delta.table import ParentVersion, Table
from siltstone.errors import CommitUnknown, Conflict, Gone, Unavailable
from siltstone.failpoints import arm
from siltstone.lake import Lake
from siltstone.model.columns import APP_SEQ
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from tests.support.clocks import FakeClock
from tests.support.faults import ERRORS, FaultyEntry, lands_then_raises, overtaken, raises
from tests.support.internals import replace_back_off, replace_entry_writing, replace_refresh, store_of
from tests.support.tables import (
    FAST,
    append,
    append_commit,
    checkpoint_and_forget,
    ids,
    make_table,
    move,
    open_table,
    stage,
    state,
)

Act = Callable[[Table], int]
ACTS: dict[str, Act] = {
    "an append": lambda table: append(table, 9).version,
    "a change of properties": lambda table: table.set_properties({"siltstone.test": "x"}),
}
IMPATIENT = Settings(durable=False, commit_timeout_seconds=0.5)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for the commit lock: another writer commits while this one holds it."""
    monkeypatch.setattr("siltstone.delta.commit_lock.LOCK_SECONDS", 0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_table(tmp_path / "t", appends=2)
    return tmp_path / "t"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("act", ACTS)
def test_a_commit_that_lands_and_then_raises_is_not_repeated(
    path: Path, act: str, error: str, monkeypatch: pytest.MonkeyPatch
):
    fake = FaultyEntry(lands_then_raises(ERRORS[error]("after the fact"))).install(monkeypatch)
    assert ACTS[act](open_table(path)) == 3
    assert fake.tries == 1
    assert state(path).version == 3
    assert ids(path) == ([1, 2, 9] if act == "an append" else [1, 2])


@pytest.mark.parametrize("act", ACTS)
def test_a_failure_after_the_entry_is_written_changes_nothing_for_the_caller(path: Path, act: str):
    with arm("commit.after_entry", "raise"):
        assert ACTS[act](open_table(path)) == 3
    assert state(path).version == 3


@pytest.mark.parametrize("error", ERRORS)
def test_a_commit_that_landed_and_was_folded_before_its_error_came_is_still_known_to_have_landed(
    path: Path, error: str, monkeypatch: pytest.MonkeyPatch
):
    def fold_everything() -> None:
        other = open_table(path)
        commit = move(other, other.pin().files)
        other.commit(lambda _: commit)

    FaultyEntry(lands_then_raises(ERRORS[error]("late"), after=fold_everything)).install(monkeypatch)
    assert append(open_table(path), 9).version == 3
    assert ids(path) == [1, 2, 9]


@pytest.mark.parametrize("act", ACTS)
def test_a_lost_race_is_tried_again_on_the_new_parent(path: Path, act: str, monkeypatch: pytest.MonkeyPatch):
    FaultyEntry(overtaken(lambda: append(open_table(path), 7))).install(monkeypatch)
    assert ACTS[act](open_table(path)) == state(path).version == 4
    assert 7 in ids(path)


def test_an_overtaken_append_takes_the_next_sequence(path: Path, monkeypatch: pytest.MonkeyPatch):
    FaultyEntry(overtaken(lambda: append(open_table(path), 7))).install(monkeypatch)
    committed = append(open_table(path), 9)
    assert committed.commit.transactions == {APP_SEQ: 4}
    assert sorted(file.partition["_seq"] or "" for file in open_table(path).pin().files) == ["1", "2", "3", "4"]
    assert ids(path) == [1, 2, 7, 9]


def test_an_overtaken_compaction_is_checked_again(path: Path, monkeypatch: pytest.MonkeyPatch):
    table = open_table(path)
    files = table.pin().files
    mine, theirs = move(table, files), move(table, files)
    FaultyEntry(overtaken(lambda: open_table(path).commit(lambda _: theirs))).install(monkeypatch)
    with pytest.raises(Conflict):
        table.commit(lambda _: mine)
    assert state(path).files == {theirs.adds[0].path}


@pytest.mark.parametrize("error", [DeltaError, OSError])
@pytest.mark.parametrize("act", ACTS)
def test_an_error_without_an_entry_is_unavailable_and_leaves_nothing(
    path: Path, act: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    before = state(path)
    FaultyEntry(raises(error("disk full"))).install(monkeypatch)
    table = open_table(path)
    with pytest.raises(Unavailable):
        ACTS[act](table)
    assert state(path) == before
    assert ACTS[act](table) == before.version + 1


@pytest.mark.parametrize("act", ACTS)
def test_races_that_are_lost_for_too_long_are_unavailable_and_leave_nothing(
    path: Path, act: str, monkeypatch: pytest.MonkeyPatch
):
    before = state(path)
    fake = FaultyEntry(*[raises(CommitFailedError("again"))] * 50).install(monkeypatch)
    table = Table(path, settings=IMPATIENT, clock=FakeClock(), retention=Retention(hours=1), label="Table t")
    with pytest.raises(Unavailable):
        ACTS[act](table)
    assert fake.tries > 1
    assert state(path) == before


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("act", ACTS)
def test_an_outcome_that_can_no_longer_be_seen_is_unknown_and_never_repeated(
    path: Path, act: str, *, landed: bool, monkeypatch: pytest.MonkeyPatch
):
    def forget() -> None:
        append(open_table(path), 7)
        append(open_table(path), 8)
        checkpoint_and_forget(path)

    fault = lands_then_raises(CommitFailedError("?"), after=forget) if landed else raises(OSError("?"), before=forget)
    fake = FaultyEntry(fault).install(monkeypatch)
    with pytest.raises(CommitUnknown):
        ACTS[act](open_table(path))
    assert fake.left == []
    assert ids(path).count(9) == (1 if landed and act == "an append" else 0)


@pytest.mark.parametrize("act", ACTS)
def test_an_entry_that_cannot_be_read_back_is_unknown(path: Path, act: str, monkeypatch: pytest.MonkeyPatch):
    entry = path / LOG / entry_name(3)
    fault = lands_then_raises(OSError("io"), after=lambda: entry.write_bytes(entry.read_bytes()[:30]))
    FaultyEntry(fault).install(monkeypatch)
    with pytest.raises(CommitUnknown):
        ACTS[act](open_table(path))


@pytest.mark.parametrize("act", ACTS)
def test_a_table_that_disappears_during_a_commit_is_gone(path: Path, act: str, monkeypatch: pytest.MonkeyPatch):
    FaultyEntry(raises(OSError("no such file"), before=lambda: shutil.rmtree(path))).install(monkeypatch)
    with pytest.raises(Gone):
        ACTS[act](open_table(path))


def test_an_entry_that_lands_beneath_a_newer_checkpoint_is_not_acknowledged(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A process sleeps between its check and its write; meanwhile other commits land and the log is cleaned."""
    table = open_table(path)
    file = stage(table, [9])

    def sleep_and_write(_table: Table, version: int, commit: Commit, commit_id: str) -> None:
        replace_entry_writing(monkeypatch, write_entry)
        for number in (6, 7, 8):
            append(open_table(path), number)
        checkpoint_and_forget(path)
        write_entry(table, version, commit, commit_id)

    write_entry = replace_entry_writing(monkeypatch, sleep_and_write)
    with pytest.raises(CommitUnknown):
        table.commit(lambda parent: append_commit(parent, file))
    assert ids(path) == [1, 2, 6, 7, 8]


def test_a_log_that_is_cleaned_while_a_commit_is_built_only_costs_another_try(path: Path):
    """delta-rs reads transactions from the log on request, not when the table is opened."""
    table = open_table(path)
    file = stage(table, [9])
    tries: list[int] = []

    def build(parent: ParentVersion) -> Commit:
        tries.append(parent.version)
        if len(tries) == 1:
            append(open_table(path), 7)
            append(open_table(path), 8)
            checkpoint_and_forget(path)
        return append_commit(parent, file)

    assert table.commit(build).version == 5
    assert tries == [2, 4]
    assert ids(path) == [1, 2, 7, 8, 9]


def test_a_log_that_is_cleaned_while_it_is_pinned_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch):
    write_checkpoint(path, durable=False)  # so that delta-rs opens it, which reads transactions late
    table = open_table(path)
    moved: list[int] = []

    def refresh_then_clean() -> int:
        version: int = refresh()
        if not moved:
            moved.append(append(open_table(path), 7).version)
            moved.append(append(open_table(path), 8).version)
            checkpoint_and_forget(path)
        return version

    refresh = replace_refresh(monkeypatch, table, refresh_then_clean)
    pinned = table.pin(APP_SEQ)
    assert (pinned.version, pinned.transactions, pinned.rows) == (4, {APP_SEQ: 4}, 4)


def test_a_commit_that_lands_late_is_found_before_the_next_try(path: Path, monkeypatch: pytest.MonkeyPatch):
    """The write is reported as lost, and its entry appears only after the search for it."""
    table = open_table(path)
    held: list[tuple[Path, bytes]] = []

    def hide(real: Callable[[], None]) -> None:
        real()
        entry = path / LOG / entry_name(3)
        held.append((entry, entry.read_bytes()))
        entry.unlink()
        raise CommitFailedError("timed out")

    def appear(tries: int) -> None:
        del tries
        for entry, text in held:
            entry.write_bytes(text)

    fake = FaultyEntry(hide).install(monkeypatch)
    replace_back_off(monkeypatch, table, appear)
    assert append(table, 9).version == 3
    assert fake.tries == 1
    assert ids(path) == [1, 2, 9]


def test_a_disk_that_refuses_to_sync_the_entry_leaves_an_unknown_outcome(path: Path, monkeypatch: pytest.MonkeyPatch):
    table = open_table(path, settings=Settings(durable=True))
    file = stage(table, [9])

    def refuse(folder: str | Path) -> None:
        if Path(folder).name == LOG:
            raise OSError(5, "Input/output error")
        sync_directory(folder)

    monkeypatch.setattr("siltstone.delta.fsync.sync_directory", refuse)
    with pytest.raises(CommitUnknown):
        table.commit(lambda parent: append_commit(parent, file))
    assert ids(path) == [1, 2, 9]


def test_each_entry_carries_the_id_of_its_commit(path: Path):
    table = open_table(path)
    first, second = append(table, 8), append(table, 9)
    assert read_entry(path, first.version).commit_id == first.commit_id
    assert read_entry(path, second.version).commit_id == second.commit_id != first.commit_id


# ---- staged files after a failed write ----------------------------------------------------------------------------------


def staged(lake: Lake) -> list[Path]:
    return sorted((lake.dataset("a.b.c").path / "changes" / "data").glob("*.parquet"))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake.open(tmp_path / "lake", settings=FAST)
    found.create("a.b.c", "id BIGINT NOT NULL", key="id").upsert([{"id": 1}])
    return found


def test_a_batch_that_was_certainly_not_written_leaves_no_file(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    people, before = lake.dataset("a.b.c"), staged(lake)
    FaultyEntry(raises(OSError("disk full"))).install(monkeypatch)
    with pytest.raises(Unavailable):
        people.upsert([{"id": 2}])
    assert staged(lake) == before
    assert people.upsert([{"id": 2}]).sequence == 2


def test_a_batch_whose_outcome_is_unknown_keeps_its_file(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    people, before = lake.dataset("a.b.c"), staged(lake)
    entry = people.path / "changes" / LOG / entry_name(2)
    fault = lands_then_raises(OSError("io"), after=lambda: entry.rename(entry.with_name("away")))

    def broken(_table: Path, _version: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("siltstone.delta.table.read_entry", broken)
    FaultyEntry(fault).install(monkeypatch)
    with pytest.raises(CommitUnknown):
        people.upsert([{"id": 2}])
    assert len(staged(lake)) == len(before) + 1


def test_an_acknowledged_batch_survives_a_failed_checkpoint_after_it(lake: Lake):
    """Checkpoints and cleaning follow the acknowledgement; their failure is reported, and undoes nothing."""
    people = lake.dataset("a.b.c")

    def fail(_table: Table, _version: int) -> None:
        raise Unavailable("the checkpoint failed")

    object.__setattr__(store_of(people), "after_commit", fail)
    with contextlib.suppress(Unavailable):
        people.upsert([{"id": 2}])
    object.__setattr__(store_of(people), "after_commit", lambda _table, _version: None)
    assert sorted(people.to_arrow().column("id").to_pylist()) == [1, 2]


def test_a_commit_of_nothing_but_a_transaction_lands(path: Path):
    table = open_table(path)
    table.commit(lambda p: Commit(kind=CommitKind.EPOCH, plan_version=p.version, transactions={"siltstone.epoch": 3}))
    assert state(path).transactions["siltstone.epoch"] == 3


def test_a_file_that_is_added_twice_is_refused(path: Path):
    table = open_table(path)
    live = table.pin().files[0]
    again = DataFile(path=live.path, size_bytes=live.size_bytes, rows=live.rows, partition=live.partition)
    before = state(path)
    with pytest.raises(Conflict, match=again.path):
        table.commit(lambda p: Commit(kind=CommitKind.CLUSTER, plan_version=p.version, adds=(again,)))
    assert state(path) == before


def test_processes_of_one_commit_each_checkpoint_too(tmp_path: Path):
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        lake.create("a.b.c", "id STRING", key="id")
    for number in range(25):
        with Lake.open(tmp_path / "lake", settings=Settings(durable=False)) as lake:
            lake.dataset("a.b.c").upsert([{"id": str(number)}])
    with Lake.open(tmp_path / "lake") as lake:
        listing = list_log(lake.dataset("a.b.c").path / "changes")
    assert listing.newest_checkpoint >= 20
