"""Order of syncs: a power cut after any acknowledgement must not undo it.

Each fsync is recorded with the state of the log at that moment, so that tests can check the order.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable

from siltstone.clock import SystemClock
from siltstone.compaction.operations.commit import prune
from siltstone.compaction.operations.garbage_collection import purge_files
from siltstone.config import Settings
from siltstone.delta import checkpoints
from siltstone.delta.checkpoints import Retention, checkpoint_and_clean, forget_history, write_checkpoint
from siltstone.delta.layout import LOG, entry_name
from siltstone.delta.log_reader import LAST_CHECKPOINT
from siltstone.errors import Unavailable
from siltstone.failpoints import arm
from siltstone.lake import Lake
from siltstone.model.columns import APP_FOLD
from siltstone.model.commit import Commit, CommitKind
from tests.support.internals import store_of
from tests.support.refusals import refused
from tests.support.tables import FAST, append, append_commit, ids, make_table, open_table, stage

DURABLE = Settings(durable=True, checkpoint_interval_commits=1_000_000)


@dataclass
class Syncs:
    """Every fsync of this process: its path, and the entries of a watched log at that moment."""

    watched: Path | None = None
    paths: list[Path] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    """Versions whose bytes were synced: as the entry, or as the draft that is linked to its path."""
    logs: list[frozenset[str]] = field(default_factory=list)

    def record(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        self.paths.append(path)
        self.entries += [int(path.name[:20])] if ".json" in path.name and path.parent.name == LOG else []
        log = self.watched / LOG if self.watched else None
        self.logs.append(frozenset(item.name for item in log.iterdir()) if log and log.is_dir() else frozenset())

    def position(self, path: Path) -> int:
        """Return the index of the first sync of a path."""
        return self.paths.index(path)

    def log_at(self, path: Path) -> frozenset[str]:
        """Return the entries of the watched log at the first sync of a path."""
        return self.logs[self.position(path)]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    found = Syncs()
    real = os.fsync

    def fsync(handle: int) -> None:
        found.record(handle)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_data_file_and_its_folders_are_synced_before_the_entry_that_names_it(tmp_path: Path, syncs: Syncs):
    table = make_table(tmp_path / "t", settings=DURABLE)
    file = stage(table, [1])
    syncs.watched = table.path
    syncs.paths.clear()
    syncs.logs.clear()
    table.commit(lambda parent: append_commit(parent, file))
    for path in (table.path / file.path, table.path / "data", table.path):
        assert entry_name(1) not in syncs.log_at(path), path


def test_the_entry_and_the_log_folder_are_synced_before_the_commit_returns(tmp_path: Path, syncs: Syncs):
    table = make_table(tmp_path / "t", settings=DURABLE)
    syncs.watched = table.path
    append(table, 1)
    (draft,) = [path for path in syncs.paths if path.name.startswith(entry_name(1))]
    last_folder_sync = len(syncs.paths) - 1 - syncs.paths[::-1].index(table.path / LOG)
    assert syncs.position(draft) < last_folder_sync
    assert entry_name(1) in syncs.logs[last_folder_sync]


def test_the_entries_of_others_are_synced_before_an_acknowledgement_on_top_of_them(tmp_path: Path, syncs: Syncs):
    table = make_table(tmp_path / "t", settings=DURABLE, appends=1)
    careless = open_table(table.path, settings=FAST)
    append(careless, 2)
    append(careless, 3)
    syncs.entries.clear()
    append(table, 4)
    assert sorted(syncs.entries) == [2, 3, 4]


def test_a_new_handle_syncs_what_it_builds_on(tmp_path: Path, syncs: Syncs):
    path = make_table(tmp_path / "t", settings=FAST, appends=3).path
    append(open_table(path, settings=DURABLE), 4)
    assert set(range(5)) <= set(syncs.entries)


def test_a_synced_file_is_not_synced_again(tmp_path: Path, syncs: Syncs):
    table = make_table(tmp_path / "t", settings=DURABLE, appends=5)
    syncs.paths.clear()
    append(table, 6)
    names = [path.name for path in syncs.paths if path.parent == table.path / LOG]
    assert [name.partition("#")[0] for name in names] == [entry_name(6)]  # the draft that becomes the entry
    assert table.path not in syncs.paths


def test_a_draft_is_synced_before_it_becomes_the_entry(tmp_path: Path, syncs: Syncs):
    table = make_table(tmp_path / "t", settings=DURABLE)
    syncs.watched = table.path
    append(table, 1)
    (draft,) = [path for path in syncs.paths if path.name.startswith(f"{entry_name(1)}#")]
    assert entry_name(1) not in syncs.log_at(draft)


def test_a_changed_property_is_synced_too(tmp_path: Path, syncs: Syncs):
    table = make_table(tmp_path / "t", settings=DURABLE)
    version = table.set_properties({"siltstone.test": "x"})
    assert [path for path in syncs.paths if path.name.startswith(f"{entry_name(version)}#")], "its draft was synced"
    assert syncs.paths[-1] == table.path / LOG


def test_a_new_table_is_synced_with_the_folders_above_it(tmp_path: Path, syncs: Syncs):
    path = tmp_path / "a" / "b" / "t"
    make_table(path, settings=DURABLE)
    for synced in (path / LOG / entry_name(0), path / LOG, path, path.parent, path.parent.parent):
        assert synced in syncs.paths


def test_a_new_catalog_is_on_disk_before_the_registry_names_its_dataset(tmp_path: Path, syncs: Syncs):
    with Lake.open(tmp_path / "lake", settings=DURABLE) as lake:
        lake.create("a.b.c", "id STRING", key="id")
        before = len(syncs.paths)
        lake.create("fresh.b.c", "id STRING", key="id")
    later = syncs.paths[before:]
    assert later.index(tmp_path / "lake") < later.index(tmp_path / "lake" / "_system" / "datasets" / LOG)


def test_without_durability_nothing_is_synced(tmp_path: Path, syncs: Syncs):
    path = make_table(tmp_path / "t", settings=FAST, appends=3).path
    table = open_table(path)
    table.set_properties({"siltstone.test": "x"})
    table.sync()
    checkpoint_and_clean(path, retention=Retention(hours=0), durable=False, clock=SystemClock())
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        lake.create("a.b.c", "id BIGINT NOT NULL", key="id").upsert([{"id": 1}])
        lake.drop("a.b.c")
    assert syncs.paths == []


def test_a_checkpoint_is_synced_before_the_entries_that_it_covers_are_cleaned(tmp_path: Path, syncs: Syncs):
    path = make_table(tmp_path / "t", settings=FAST, appends=3).path
    syncs.watched = path
    checkpoint_and_clean(path, retention=Retention(hours=0), durable=True, clock=SystemClock())
    checkpoint = path / LOG / f"{3:020d}.checkpoint.parquet"
    for synced in (checkpoint, path / LOG / LAST_CHECKPOINT, path / LOG):
        assert {entry_name(version) for version in range(4)} <= syncs.log_at(synced)
    assert syncs.position(checkpoint) < syncs.position(path / LOG / LAST_CHECKPOINT)
    assert not (path / LOG / entry_name(0)).exists()


def test_base_is_synced_before_the_changes_that_it_covers_are_pruned(tmp_path: Path, syncs: Syncs):
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        people = lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
        people.upsert([{"id": 1}])
        careless = store_of(people)
        folded = careless.base.commit(
            lambda p: Commit(kind=CommitKind.FOLD, plan_version=p.version, transactions={APP_FOLD: 1})
        )
    with Lake.open(tmp_path / "lake", settings=DURABLE) as lake:
        store = store_of(lake.dataset("a.b.c"))
        syncs.watched = store.changes.path
        assert prune(store) == 1
    entry = store.base.path / LOG / entry_name(folded.version)
    assert entry_name(2) not in syncs.log_at(entry)
    assert any(p.parent == store.changes.path / LOG and p.name.startswith(entry_name(2)) for p in syncs.paths)


def test_an_upsert_is_on_disk_when_it_is_acknowledged(tmp_path: Path, syncs: Syncs):
    with Lake.open(tmp_path / "lake", settings=DURABLE) as lake:
        people = lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
        syncs.paths.clear()
        people.upsert([{"id": 1}])
        changes = people.path / "changes"
        files = list((changes / "data").glob("*.parquet"))
    assert {*files, changes / "data", changes, changes / LOG} <= set(syncs.paths)
    assert any(p.parent == changes / LOG and p.name.startswith(entry_name(1)) for p in syncs.paths)


def test_a_data_folder_that_a_purge_deleted_is_synced_again_when_it_is_recreated(tmp_path: Path, syncs: Syncs):
    with Lake.open(tmp_path / "lake", settings=DURABLE) as lake:
        people = lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
        people.upsert([{"id": 1}])
        store = store_of(people)
        store.base.commit(lambda p: Commit(kind=CommitKind.FOLD, plan_version=p.version, transactions={APP_FOLD: 1}))
        prune(store)
        purge_files(store)
        data_exists = (store.changes.path / "data").exists()
        syncs.paths.clear()
        people.upsert([{"id": 2}])
    assert data_exists or store.changes.path in syncs.paths, "a folder without a synced name is lost in a power cut"


@pytest.mark.parametrize("tries", [1, checkpoints.CHECKPOINT_TRIES])
def test_a_log_that_is_cleaned_while_a_checkpoint_is_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    table = make_table(tmp_path / "t", appends=3)
    write_checkpoint(table.path, durable=False)
    append(table, 4)

    def clean(_: str) -> None:
        append(table, 5)
        DeltaTable(table.path).create_checkpoint()  # another program: our processes wait for the lock
        assert forget_history(table.path)

    monkeypatch.setattr(checkpoints, "CHECKPOINT_TRIES", tries)
    with arm("checkpoint.before_write", clean):
        if tries == 1:
            with refused(Unavailable, None, table.path):
                write_checkpoint(table.path, durable=False)
        else:
            assert write_checkpoint(table.path, durable=False) == table.version()
    assert ids(table.path) == [1, 2, 3, 4, 5]
