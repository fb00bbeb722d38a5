"""Our own replay of entries equals that of delta-rs, and delta-rs is used where ours is not possible."""

import dataclasses
import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, TableFeatures
from deltalake.transaction import AddAction

from siltstone.clock import SystemClock
from siltstone.delta.checkpoints import Retention, checkpoint_and_clean, forget_history, write_checkpoint
from siltstone.delta.full_replay import Replayed
from siltstone.delta.layout import LOG, entry_name
from siltstone.delta.log_reader import list_log, readable_entries
from siltstone.delta.table import ParentVersion, Table
from siltstone.delta.table_reader import FOLLOW_SECONDS, TableVersion
from siltstone.errors import Corruption, Reason, Unavailable
from siltstone.model.columns import APP_EPOCH, APP_FOLD, APP_PRODUCER, APP_SEQ, COMMIT_KIND, SEQ
from siltstone.model.commit import Commit, CommitKind
from tests.support.faults import FaultyEntry, overtaken
from tests.support.internals import replace_log_opening
from tests.support.refusals import refused
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

PRODUCER = f"{APP_PRODUCER}p"
ALL = (APP_SEQ, APP_FOLD, APP_EPOCH, PRODUCER)
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_table(tmp_path / "t", appends=2)
    return tmp_path / "t"


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths of tables that were opened to be followed, once per open."""
    found: list[Path] = []

    def opened(path: Path) -> DeltaTable | Replayed:
        found.append(path)
        replayed: DeltaTable | Replayed = real(path)
        return replayed

    real = replace_log_opening(monkeypatch, opened)
    return found


def state_of(pinned: TableVersion) -> tuple[object, ...]:
    """Return the contents of a pinned version, independent of the order of its files."""
    files = sorted((f.path, f.size_bytes, f.rows, sorted(f.partition.items())) for f in pinned.files)
    return (pinned.version, files, dict(pinned.transactions), pinned.schema)


def step(table: Table, number: int, choose: random.Random) -> None:
    """Apply one random operation to a table."""
    match choose.randrange(6):
        case 0 | 1 | 2:
            append(table, number)
        case 3:
            files = table.pin().files
            if len(files) > 1:
                commit = move(table, choose.sample(files, 2))
                table.commit(lambda _: commit)
        case 4:
            table.commit(
                lambda p: Commit(
                    kind=CommitKind.APPEND, plan_version=p.version, transactions={PRODUCER: number, APP_FOLD: number}
                )
            )
        case _:
            if choose.random() < 0.5:
                table.set_properties({"siltstone.test": str(number)})
            else:
                checkpoint_and_clean(
                    table.path, retention=Retention(hours=100, max_entries=5), durable=False, clock=SystemClock()
                )


@pytest.mark.parametrize("seed", range(6))
def test_a_follower_sees_what_a_fresh_reader_sees(path: Path, seed: int):
    choose = random.Random(seed)
    mine, theirs = open_table(path), open_table(path)
    for number in range(10, 50):
        step(choose.choice([mine, theirs]), number, choose)
        if choose.random() < 0.7:
            fresh = state_of(open_table(path).pin(*ALL))
            assert state_of(mine.pin(*ALL)) == fresh
            assert state(path).version == fresh[0]


def test_own_and_foreign_entries_are_followed_without_opening_the_table(path: Path, opens: list[Path]):
    mine, theirs = open_table(path), open_table(path)
    append(mine, 3)
    append(theirs, 4)
    opens.clear()
    for number in range(5, 25, 2):
        append(mine, number)
        append(theirs, number + 1)
    write_checkpoint(path, durable=False)
    append(mine, 25)
    assert mine.pin(APP_SEQ).transactions == {APP_SEQ: 25}
    assert opens == []
    assert ids(path) == list(range(1, 26))


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_commit_of_another_program_is_refused_by_readers_and_writers(path: Path, *, swallowed: bool):
    """Also if readers read only a checkpoint of the other program that includes its entry."""
    table = open_table(path)
    table.pin()
    before = state(path)
    file = stage(table, [3])
    stranger = DeltaTable(path)
    stranger.create_write_transaction(
        [AddAction(file.path, file.size_bytes, {SEQ: "3"}, 0, True, file.stats)],  # noqa: FBT003
        "append",
        stranger.schema(),
        [SEQ],
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=NO_HOOKS,
    )
    if swallowed:
        DeltaTable(path).create_checkpoint()
    for found in (table, open_table(path)):
        with refused(Corruption, Reason.FOREIGN_COMMIT):
            found.pin()
        with refused(Corruption, Reason.FOREIGN_COMMIT):
            found.commit(lambda parent: append_commit(parent, stage(table, [4])))
    assert state(path).version == before.version + 1


def test_a_foreign_commit_is_refused_after_its_entries_were_cleaned(path: Path):
    file = stage(open_table(path), [3])
    stranger = DeltaTable(path)
    stranger.create_write_transaction(
        [AddAction(file.path, file.size_bytes, {SEQ: "3"}, 0, True, file.stats)],  # noqa: FBT003
        "append",
        stranger.schema(),
        [SEQ],
        post_commithook_properties=NO_HOOKS,
    )
    DeltaTable(path).create_checkpoint()
    forget_history(path)
    (path / LOG / entry_name(3)).unlink()
    with refused(Corruption, Reason.FOREIGN_COMMIT, "version 2 "):
        open_table(path).pin()


def test_a_vacuum_of_another_program_changes_nothing_and_does_not_cause_a_refusal(path: Path):
    table = open_table(path)
    first, *_ = table.pin().files
    commit = move(table, [first])
    table.commit(lambda _: commit)
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert [entry.info["operation"] for entry in readable_entries(path)][-2:] == ["VACUUM START", "VACUUM END"]
    assert append(table, 3).version == 6
    assert append(open_table(path), 4).version == 7
    assert ids(path) == [1, 2, 3, 4]


def test_a_log_that_is_cleaned_after_a_vacuum_of_another_program_can_be_opened_and_written(path: Path):
    for version in (3, 4):
        (path / LOG / entry_name(version)).write_text('{"commitInfo": {"operation": "VACUUM END"}}\n')
    for _ in range(2):
        checkpoint_and_forget(path)
        assert list_log(path).entries == (3, 4)
        assert open_table(path).pin().version == 4
    assert append(open_table(path), 3).version == 5
    checkpoint_and_forget(path)
    assert list_log(path).entries == (5,)
    assert ids(path) == [1, 2, 3]


def test_delta_rs_reads_what_we_write(path: Path):
    table = open_table(path)
    first, *_ = table.pin().files
    commit = move(table, [first])
    version = table.commit(lambda _: commit).version
    found = DeltaTable(path)
    assert found.version() == version
    assert found.history(1)[0]["operation"] == "WRITE"
    assert set(pa.table(found.get_add_actions()).column("num_records").to_pylist()) == {1}
    assert found.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True) == [first.path]
    checkpoint_and_forget(path)
    assert ids(path) == [1, 2]


def test_new_metadata_opens_the_table_again(path: Path, opens: list[Path]):
    table = open_table(path)
    table.pin()
    open_table(path).set_properties({"siltstone.test": "new"})
    opens.clear()
    assert table.properties()["siltstone.test"] == "new"
    assert len(opens) == 1


@dataclass(frozen=True, slots=True)
class MovedClock(SystemClock):
    """A clock that a test sets forward."""

    ahead: list[float] = field(default_factory=lambda: [0.0])

    def monotonic_seconds(self) -> float:
        return SystemClock.monotonic_seconds(self) + self.ahead[0]


def test_the_table_is_opened_again_after_a_minute(path: Path, opens: list[Path]):
    clock = MovedClock()
    table = Table(path, settings=FAST, clock=clock, retention=Retention(hours=1), label="Table t")
    append(table, 3)
    append(table, 4)
    assert len(opens) == 1
    clock.ahead[0] = FOLLOW_SECONDS + 1
    append(table, 5)
    append(table, 6)
    assert len(opens) == 2
    assert ids(path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_reader_reopens_a_log_that_was_cleaned_past_its_version(path: Path, *, ordered: bool):
    """The cleaner deletes the oldest entry first, as ours does, or keeps the reader's own entry."""
    table = open_table(path)
    table.pin()
    stat_before = (path / LOG / entry_name(2)).stat()
    other = open_table(path)
    for number in (3, 4, 5):
        append(other, number)
    write_checkpoint(path, durable=False)
    if ordered:
        forget_history(path)
    else:
        (path / LOG / entry_name(3)).unlink()
        (path / LOG / entry_name(4)).unlink()
        assert (path / LOG / entry_name(2)).stat() == stat_before
    assert (table.pin().version, table.pin(APP_SEQ).transactions) == (5, {APP_SEQ: 5})


def test_a_log_that_is_cleaned_between_check_and_write_costs_another_try(path: Path):
    table = open_table(path)
    file = stage(table, [9])
    tries: list[int] = []

    def build(parent: ParentVersion) -> Commit:
        tries.append(parent.version)
        commit = append_commit(parent, file)
        if len(tries) == 1:
            append(open_table(path), 7)
            append(open_table(path), 8)
            checkpoint_and_forget(path)
        return commit

    assert table.commit(build).version == 5
    assert tries == [2, 4]
    assert not (path / LOG / entry_name(3)).exists(), "nothing is written where an entry was cleaned away"
    assert ids(path) == [1, 2, 7, 8, 9]


def test_a_refused_try_leaves_no_draft(path: Path, monkeypatch: pytest.MonkeyPatch):
    FaultyEntry(overtaken(lambda: append(open_table(path), 7))).install(monkeypatch)
    monkeypatch.setattr("siltstone.delta.commit_lock.LOCK_SECONDS", 0.01)
    append(open_table(path), 9)
    assert [item.name for item in (path / LOG).iterdir() if "#" in item.name] == []


def test_the_draft_of_a_crashed_writer_is_cleaned_with_the_log_and_no_sooner(path: Path):
    old, young = (path / LOG / f"{entry_name(version)}#{number}" for version, number in ((1, 17), (4, 18)))
    old.write_text("half an ent")
    young.write_text("half an ent")
    assert append(open_table(path), 3).version == 3
    checkpoint_and_forget(path)
    assert not old.exists()
    assert young.exists(), "its writer may be alive"
    append(open_table(path), 4)
    checkpoint_and_forget(path)
    assert not young.exists()
    assert ids(path) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "feature", [TableFeatures.ChangeDataFeed, TableFeatures.DeletionVectors, TableFeatures.ColumnMapping]
)
def test_a_table_of_a_raised_protocol_is_neither_read_nor_written(path: Path, feature: TableFeatures):
    table = open_table(path)
    table.pin()
    DeltaTable(path).alter.add_feature(
        [feature],
        allow_protocol_versions_increase=True,
        commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={COMMIT_KIND: "metadata"}),
        post_commithook_properties=NO_HOOKS,
    )
    file = stage(table, [9])
    for found in (table, open_table(path)):
        with refused(Corruption, Reason.FOREIGN_COMMIT):
            found.commit(lambda parent: append_commit(parent, file))
        with refused(Corruption, Reason.FOREIGN_COMMIT):
            found.pin()
    assert not (path / LOG / entry_name(4)).exists()


def test_files_that_are_added_and_removed_again_are_not_live(path: Path):
    table, other = open_table(path), open_table(path)
    table.pin()
    append(other, 3)
    first = dataclasses.replace(move(other, other.pin().files), epoch=1)
    other.commit(lambda _: first)
    second = dataclasses.replace(move(other, other.pin().files), epoch=1)
    other.commit(lambda _: second)
    assert [file.path for file in table.pin().files] == [second.adds[0].path]
    assert table.pin(APP_EPOCH).transactions == {APP_EPOCH: 1}


def test_a_file_has_the_same_path_in_an_entry_and_in_a_checkpoint(path: Path):
    """An entry stores the path as a URL, and delta-rs returns it unchanged."""
    table = open_table(path)
    staged = stage(table, [9])
    odd = dataclasses.replace(staged, path="data/a b%20\u00e9.parquet")
    (path / staged.path).rename(path / odd.path)
    version = table.commit(lambda parent: append_commit(parent, odd)).version
    for files in (table.pin().files, table.at(version).files):
        assert odd.path in {file.path for file in files}
    checkpoint_and_forget(path)
    assert odd.path in {file.path for file in open_table(path).pin().files}


def test_a_log_that_cannot_be_listed_is_unavailable(path: Path):
    table = open_table(path)
    (path / LOG).rename(path / "aside")
    (path / LOG).symlink_to(LOG)
    for read in (table.removals, lambda: table.marks(APP_PRODUCER)):
        with pytest.raises(Unavailable):
            read()
