"""A backup has each dataset at one moment, beside writers and folds; a restore brings it back, fenced."""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from siltstone.backup.folder import BackupFolder
from siltstone.backup.restore import list_backups
from siltstone.backup.take import log_files
from siltstone.compaction.operations.garbage_collection import purge_files
from siltstone.coordination.leases import COMPACTOR, Leases
from siltstone.dataset.audit import records
from siltstone.dataset.dataset import Dataset
from siltstone.delta.checkpoints import forget_history, write_checkpoint
from siltstone.delta.layout import LOG, Layout, entry_name
from siltstone.errors import (
    CommitUnknown,
    Conflict,
    Corruption,
    Fenced,
    InvalidRequest,
    NotFound,
    Reason,
    Unavailable,
)
from siltstone.failpoints import arm
from siltstone.lake import Lake
from siltstone.model.columns import APP_FOLD, APP_SEQ
from siltstone.model.commit import Commit, CommitKind
from tests.support.backups import NAME, SCHEMA, expected, fill, held
from tests.support.folds import fold_by_arrow
from tests.support.hot import fold_log
from tests.support.internals import clock_of, registry_of, store_of
from tests.support.refusals import refused
from tests.support.refusals import refused as refuses
from tests.support.tables import FAST


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "lake", rows=20)
    return tmp_path / "lake"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def opened(path: Path) -> Lake:
    return Lake.open(path, settings=FAST)


def people(path: Path) -> Dataset:
    return opened(path).dataset(NAME)


def restored(to: Path, target: Path, backup: str | None = None) -> Path:
    Lake.restore(to, target, backup=backup, settings=FAST)
    return target


def pooled(to: Path) -> list[Path]:
    return list((to / "files").glob("*/*"))


def test_the_progress_of_a_backup_has_the_units_of_all_other_output(root: Path, to: Path):
    opened(root).create("a.b.later", "id BIGINT NOT NULL", key="id")
    texts: list[str] = []
    report = opened(root).backup(to, show=texts.append)
    copied = [text.rpartition(", ")[2] for text in texts if text.endswith(" copied")]
    assert report.bytes_copied < 1024 * 1024
    assert len(copied) == 2
    assert [text for text in copied if not text.endswith((" KB copied", " B copied"))] == []


# ---- restored contents -----------------------------------------------------------------------------------------------


def test_a_restored_lake_has_its_rows_and_accepts_writes(root: Path, to: Path, tmp_path: Path):
    fold_by_arrow(people(root))
    people(root).upsert([{"id": 100, "n": 1}])
    log = opened(root).create(
        "a.b.clicks", "at TIMESTAMP, who STRING, region STRING", time="at", subject="who", partition_by="region"
    )
    log.append([{"at": "2026-11-15T14:03:00Z", "who": "V-7", "region": "eu"}])
    fold_log(log)
    log.tombstone(["V-7"], actor="dpo", reason="request 17")
    (root / "silt.toml").write_text("max_rows = 77\n")
    opened(root).backup(to)
    again = opened(restored(to, tmp_path / "new"))
    for name in (NAME, "a.b.clicks"):
        assert again.dataset(name).to_arrow().equals(opened(root).dataset(name).to_arrow())
        assert again.dataset(name).info() == opened(root).dataset(name).info()
    assert [one.actor for one in records(store_of(again.dataset("a.b.clicks")))] == ["dpo"]
    assert (again.path / "silt.toml").read_text() == "max_rows = 77\n"
    found = again.dataset(NAME)
    assert found.upsert([{"id": 101, "n": 2}]).sequence == 22
    assert found.get([101]).num_rows == 1
    assert (fold_by_arrow(found), found.to_arrow().num_rows) == (22, 9)
    assert (again.unregistered(), again.damages(), again.sweep()) == ([], [], [])
    again.create("a.b.new", SCHEMA, key="id")


def test_process_state_is_not_restored(root: Path, to: Path, tmp_path: Path):
    lake = opened(root)
    lake.pause_compactor()
    people(root).squash()
    lake.backup(to)
    target = restored(to, tmp_path / "new")
    assert not (target / "_system" / "leases").exists()
    assert not (target / "_system" / "compactor").exists()
    assert not (target / "_system" / "hot").exists()
    assert opened(target).recover().problems == ()


def test_logs_are_copied_up_to_exactly_one_version_from_any_checkpoint(root: Path, to: Path, tmp_path: Path):
    changes = store_of(people(root)).changes.path
    write_checkpoint(changes, durable=False)
    fill(root, rows=5, start=21)
    with arm("backup.after_logs", lambda _name: fill(root, rows=5, start=26)):
        opened(root).backup(to)
    target = restored(to, tmp_path / "new")
    assert held(target) == (25, expected(25))
    forget_history(changes)
    version = store_of(people(root)).changes.version()
    names = log_files(changes, version)
    assert (names[0].endswith(".checkpoint.parquet"), names[-1]) == (True, "_last_checkpoint")
    with pytest.raises(FileNotFoundError):
        log_files(changes, 3)


def test_a_log_is_copied_with_foreign_entries_since_our_last_commit(root: Path, to: Path, tmp_path: Path):
    changes = store_of(people(root)).changes.path
    version = store_of(people(root)).changes.version()
    for number in (version + 1, version + 2):
        (changes / LOG / entry_name(number)).write_text('{"commitInfo": {"operation": "VACUUM END"}}\n')
    write_checkpoint(changes, durable=False)
    purge_files(store_of(people(root)))
    opened(root).backup(to)
    target = restored(to, tmp_path / "new")
    assert held(target) == held(root)
    assert people(target).upsert([{"id": 100, "n": 1}]).sequence == people(root).upsert([{"id": 100, "n": 1}]).sequence


def test_a_base_that_is_ahead_of_its_changes_is_not_copied(
    root: Path, to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A write and a fold between the two pins: the pair would use a sequence twice."""
    store = store_of(people(root))
    pin, done = store.base.pin, list[int]()

    def folded_meanwhile(*apps: str) -> object:
        if not done:
            done.append(1)
            fill(root, rows=1, start=21)
            fold_by_arrow(people(root))
        return pin(*apps)

    monkeypatch.setattr(store.base, "pin", folded_meanwhile)
    seen = store.snapshot()
    assert (seen.watermark, seen.changes.transactions[APP_SEQ]) == (21, 20), "a reader may see it so"
    done.clear()
    lake = opened(root)
    monkeypatch.setattr(registry_of(lake), "store", lambda _row: store)
    lake.backup(to)
    target = restored(to, tmp_path / "new")
    assert held(target) == (22, {**expected(20), 0: 21})
    people(target).upsert([{"id": 50, "n": 50}])
    assert people(target).get([50]).num_rows == 1


def test_backups_beside_a_writer_and_folds_are_each_one_moment(root: Path, to: Path, tmp_path: Path):
    stop = threading.Event()

    def work() -> None:
        number = 21
        while not stop.is_set():
            fill(root, rows=2, start=number)
            fold_by_arrow(people(root))
            fill(root, rows=1, start=number + 2)
            number += 3

    worker = threading.Thread(target=work)
    worker.start()
    sequence = 0
    try:
        for number in range(4):
            opened(root).backup(to)
            sequence, rows = held(restored(to, tmp_path / f"new{number}"))
            assert rows == expected(sequence)
    finally:
        stop.set()
        worker.join()
    assert sequence > 20, "the worker was at work meanwhile"


def test_datasets_created_or_dropped_meanwhile_are_copied_as_the_registry_says(root: Path, to: Path, tmp_path: Path):
    lake = opened(root)
    lake.create("a.b.dropped", SCHEMA, key="id").upsert([{"id": 1}])

    def change(_name: str) -> None:
        other = opened(root)
        other.create("a.b.created", SCHEMA, key="id").upsert([{"id": 1}])
        other.drop("a.b.dropped")

    with arm("backup.after_logs", change):
        report = lake.backup(to)
    assert report.datasets == 2
    again = opened(restored(to, tmp_path / "new"))
    assert [info.name for info in again.datasets()] == ["a.b.created", NAME]
    assert [info.broken for info in again.datasets()] == [None, None]


# ---- increments --------------------------------------------------------------------------------------------------


def test_a_second_backup_copies_only_what_is_new(root: Path, to: Path):
    first = opened(root).backup(to)
    assert (first.files_copied, first.bytes_copied) == (first.files, first.bytes)
    again = opened(root).backup(to)
    assert (again.files, again.files_copied, again.bytes_copied) == (first.files, 0, 0)
    fill(root, rows=1, start=21)
    plan = opened(root).backup(to, dry_run=True)
    third = opened(root).backup(to)
    assert third.files_copied == plan.files_copied == 2, "a change file and a log entry"
    assert third.bytes_copied == plan.bytes_copied > 0
    assert all(path.stat().st_nlink == 1 for path in pooled(to))


def test_a_dry_run_writes_nothing(root: Path, to: Path):
    report = opened(root).backup(to, dry_run=True)
    assert (report.dry_run, report.files_copied > 20, to.exists()) == (True, True, False)


def test_older_backups_can_be_restored_until_they_are_removed(root: Path, to: Path, tmp_path: Path):
    first = opened(root).backup(to)
    fold_by_arrow(people(root))
    write_checkpoint(store_of(people(root)).changes.path, durable=False)
    people(root).upsert([{"id": 1, "n": 99}])
    second = opened(root).backup(to)
    assert held(restored(to, tmp_path / "old", backup=first.id[:8])) == (20, expected(20))
    assert held(restored(to, tmp_path / "new"))[0] == 21
    before = len(pooled(to))
    third = opened(root).backup(to, keep=1)
    assert third.removed == (first.id, second.id)
    assert len(pooled(to)) < before
    with pytest.raises(NotFound):
        restored(to, tmp_path / "gone", backup=first.id)
    assert held(restored(to, tmp_path / "last"))[0] == 21


def test_a_backup_that_cannot_remove_older_ones_is_recorded_and_named_by_the_error(root: Path, to: Path):
    first = opened(root).backup(to)
    with arm("backup.after_removal", "raise"), pytest.raises(Unavailable) as failure:
        opened(root).backup(to, keep=1)
    (newest,) = (backup["id"] for backup in list_backups(to))
    assert newest != first.id
    assert newest in str(failure.value)


def test_a_backup_that_cannot_be_synced_is_not_called_missing(root: Path, to: Path):
    with arm("backup.after_manifest", "raise"), pytest.raises(CommitUnknown) as failure:
        opened(root).backup(to)
    (newest,) = (backup["id"] for backup in list_backups(to))
    assert newest in str(failure.value)


@pytest.mark.parametrize("keep", [0, 1.5, "3", True])
def test_a_number_of_backups_that_is_not_valid_is_refused(root: Path, to: Path, keep: Any):  # noqa: ANN401
    with refused(InvalidRequest, None, repr(keep)):
        opened(root).backup(to, keep=keep)
    assert not to.exists()


def test_a_restored_lake_that_cannot_be_synced_is_not_called_missing(root: Path, to: Path, tmp_path: Path):
    opened(root).backup(to)
    with arm("restore.after_rename", "raise"), refused(CommitUnknown, None, tmp_path / "new"):
        restored(to, tmp_path / "new")
    assert held(tmp_path / "new") == (20, expected(20))


# ---- damage ------------------------------------------------------------------------------------------------------


def test_a_backup_with_a_flipped_bit_is_refused_by_name(root: Path, to: Path, tmp_path: Path):
    opened(root).backup(to)
    folder = BackupFolder(to, durable=False)
    victim = next(folder.pooled(file.sha256) for file in folder.read().files if "/changes/data/" in file.path)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with refused(Corruption, Reason.DAMAGED_FILE, "/changes/data/"):
        restored(to, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    with refused(Corruption, Reason.DAMAGED_FILE, "/changes/data/"):
        Lake.restore(to, tmp_path / "new", dry_run=True, settings=FAST)
    assert opened(root).backup(to).files_copied == 0  # by size, all files are complete
    with refused(Corruption, Reason.DAMAGED_FILE, "/changes/data/"):
        restored(to, tmp_path / "new")
    assert opened(root).backup(to, verify="full").files_copied == 1  # the lake has the intact file
    assert held(restored(to, tmp_path / "new")) == (20, expected(20))


@pytest.mark.parametrize("part", ["/_delta_log/", "_system/datasets/data/"])
def test_a_damaged_copy_of_a_small_file_is_replaced_by_the_next_backup(root: Path, to: Path, tmp_path: Path, part: str):
    opened(root).backup(to)
    folder = BackupFolder(to, durable=False)
    victim = next(file for file in folder.read().files if part in file.path)
    flipped(folder.pooled(victim.sha256), 20)
    with refused(Corruption, Reason.DAMAGED_FILE, victim.path):
        restored(to, tmp_path / "new")
    assert opened(root).backup(to).files_copied == 1
    assert held(restored(to, tmp_path / "new")) == (20, expected(20))


def flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def newest_change(root: Path) -> Path:
    return max(people(root).path.glob("changes/**/*.parquet"), key=lambda path: path.stat().st_mtime_ns)


def test_a_damaged_footer_ends_a_backup_or_leaves_its_dataset_out(root: Path, to: Path):
    victim = newest_change(root)
    flipped(victim, -20)
    with refused(Corruption, Reason.DAMAGED_FILE, NAME, victim.name):
        opened(root).backup(to)
    assert BackupFolder(to, durable=False).manifests() == []
    assert list(opened(root).backup(to, skip_broken=True).left_out) == [NAME]


def test_a_damaged_page_ends_a_backup_with_full_verification_even_if_an_earlier_one_took_it(root: Path, to: Path):
    victim = newest_change(root)
    with pq.ParquetFile(victim) as file:
        column = file.metadata.row_group(0).column(0)
        start, size = column.dictionary_page_offset or column.data_page_offset, column.total_compressed_size
    flipped(victim, start + size - 1)
    opened(root).backup(to)
    with refused(Corruption, Reason.DAMAGED_FILE, NAME, victim.name):
        opened(root).backup(to, verify="full")
    assert list(opened(root).backup(to, verify="full", skip_broken=True).left_out) == [NAME]


def test_full_verification_finds_a_file_that_changed_since_an_earlier_backup(root: Path, to: Path):
    opened(root).backup(to, verify="full")
    victim = newest_change(root)
    flipped(victim, 0)  # no checksum of Parquet covers the first bytes
    with refused(Corruption, Reason.DAMAGED_FILE, victim.name):
        opened(root).backup(to, verify="full")


def test_a_file_that_the_backup_lost_is_copied_again_and_missed_by_a_restore(root: Path, to: Path, tmp_path: Path):
    opened(root).backup(to)
    folder = BackupFolder(to, durable=False)
    lost = next(file for file in folder.read().files if "/changes/data/" in file.path)
    folder.pooled(lost.sha256).unlink()
    with refused(Corruption, Reason.DAMAGED_FILE, lost.path):
        restored(to, tmp_path / "new")
    assert opened(root).backup(to).files_copied == 1
    assert held(restored(to, tmp_path / "new")) == (20, expected(20))


def test_a_damaged_manifest_is_refused(root: Path, to: Path, tmp_path: Path):
    opened(root).backup(to)
    [manifest] = BackupFolder(to, durable=False).manifests()
    lines = manifest.read_text().splitlines(keepends=True)
    for text in ("".join(lines[:-1]), "".join(lines[:3] + lines[4:]), "{", ""):
        manifest.write_text(text)
        with pytest.raises(Corruption):
            restored(to, tmp_path / "new")
    head = json.loads(lines[0]) | {"format": 99}
    manifest.write_text("".join([json.dumps(head) + "\n", *lines[1:]]))
    with pytest.raises(InvalidRequest, match=r"\b99\b"):
        restored(to, tmp_path / "new")
    hostile = json.loads(lines[1]) | {"path": "../../outside"}
    manifest.write_text("".join([lines[0], json.dumps(hostile) + "\n", *lines[2:]]))
    with pytest.raises(Corruption):
        restored(to, tmp_path / "new")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (1, {"sha256": "/dev/zero", "size_bytes": 0}),  # it was read without a limit
        (1, {"sha256": 5}),
        (1, {"path": 5}),
        (1, {"modified_ns": "x"}),
        (1, {"modified_ns": 10**30}),
        (0, {"tables": [1]}),
    ],
)
def test_a_manifest_with_wrong_values_is_refused_and_does_not_stop_the_next_backup(
    root: Path, to: Path, tmp_path: Path, line: int, wrong: dict[str, object]
):
    opened(root).backup(to)
    [manifest] = BackupFolder(to, durable=False).manifests()
    lines = manifest.read_text().splitlines(keepends=True)
    lines[line] = json.dumps(json.loads(lines[line]) | wrong) + "\n"
    manifest.write_text("".join(lines))
    with refused(Corruption, Reason.DAMAGED_FILE, manifest.stem.rpartition("-")[2]):
        restored(to, tmp_path / "new")
    assert list_backups(to)[0]["broken"]
    opened(root).backup(to)
    assert held(restored(to, tmp_path / "new")) == (20, expected(20))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"5"])
def test_an_invalid_manifest_or_marker_is_refused(root: Path, to: Path, tmp_path: Path, content: bytes):
    opened(root).backup(to)
    [manifest] = BackupFolder(to, durable=False).manifests()
    manifest.write_bytes(content)
    with pytest.raises(Corruption):
        restored(to, tmp_path / "new")
    opened(root).backup(to)
    (to / "siltstone-backup.json").write_bytes(content)
    with pytest.raises(Corruption):
        restored(to, tmp_path / "new")
    with pytest.raises(Corruption):
        opened(root).backup(to)


def test_a_first_backup_that_ended_before_its_marker_does_not_block_the_folder(root: Path, to: Path):
    for name in ("files", "backups", "drafts"):
        (to / name).mkdir(parents=True)
    (to / "drafts" / "siltstone-backup.json.77").write_text("{")
    (to / "files" / "theirs.txt").write_text("of the user")
    with pytest.raises(InvalidRequest):
        opened(root).backup(to)
    (to / "files" / "theirs.txt").unlink()
    assert opened(root).backup(to).datasets == 1


def test_a_broken_dataset_ends_a_backup_or_is_left_out_on_request(root: Path, to: Path, tmp_path: Path):
    lake = opened(root)
    lake.create("a.b.torn", SCHEMA, key="id").upsert([{"id": 1}])
    shutil.rmtree(lake.dataset("a.b.torn").path / "base")
    with refuses(Corruption, Reason.MISSING_FILE, "a.b.torn"):
        opened(root).backup(to)
    assert BackupFolder(to, durable=False).manifests() == []
    report = opened(root).backup(to, skip_broken=True)
    assert list(report.left_out) == ["a.b.torn"]
    again = opened(restored(to, tmp_path / "new"))
    assert [(info.name, info.broken is not None) for info in again.datasets()] == [(NAME, False), ("a.b.torn", True)]


def test_a_dataset_that_the_registry_does_not_name_ends_a_backup_or_is_left_out(root: Path, to: Path, tmp_path: Path):
    registry = Layout.at(root).registry
    shutil.copytree(registry, tmp_path / "older")
    opened(root).create("a.b.later", SCHEMA, key="id").upsert([{"id": 1}])
    shutil.rmtree(registry)
    shutil.copytree(tmp_path / "older", registry)
    with pytest.raises(Corruption, match="--repair"):
        opened(root).backup(to)
    report = opened(root).backup(to, skip_broken=True)
    assert (report.datasets, len(report.left_out)) == (1, 1)
    assert held(restored(to, tmp_path / "new")) == (20, expected(20))


def test_tables_that_do_not_belong_together_are_not_backed_up(root: Path, to: Path):
    store_of(people(root)).base.commit(
        lambda parent: Commit(kind=CommitKind.EPOCH, plan_version=parent.version, transactions={APP_FOLD: 99})
    )
    with pytest.raises(Corruption, match=NAME):
        opened(root).backup(to)


# ---- places ------------------------------------------------------------------------------------------------------


def test_folders_that_hold_something_else_are_refused(root: Path, to: Path, tmp_path: Path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.doc").write_text("mine")
    lake = opened(root)
    for path, facts in ((full, ("full",)), (root / "bak", ("bak",)), (root, ()), (tmp_path, ())):
        with refuses(InvalidRequest, None, *facts):
            lake.backup(path)
    with pytest.raises(InvalidRequest, match="keep"):
        lake.backup(to, keep=0)
    with pytest.raises(InvalidRequest, match="verify"):
        lake.backup(to, verify="maybe")
    lake.backup(to)
    fill(tmp_path / "other", rows=1)
    with pytest.raises(InvalidRequest):
        opened(tmp_path / "other").backup(to)
    with pytest.raises(NotFound):
        opened(tmp_path / "none").backup(to)
    for target, facts in ((full, ("full",)), (root, ()), (to / "x", ())):
        with refuses(InvalidRequest, None, *facts):
            restored(to, target)
    with pytest.raises(NotFound):
        restored(full, tmp_path / "new")
    assert (full / "thesis.doc").read_text() == "mine"


def test_one_backup_at_a_time_in_a_folder(root: Path, to: Path):
    lake = opened(root)
    lake.backup(to)
    with BackupFolder(to, durable=False).lock(), pytest.raises(Conflict):
        lake.backup(to)


def test_a_backup_that_can_only_be_read_is_restored(root: Path, to: Path, tmp_path: Path):
    opened(root).backup(to)
    (to / "lock").unlink()
    shutil.rmtree(to / "drafts")
    before = sorted(to.rglob("*"))
    refused = PermissionError(errno.EACCES, "no")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("siltstone.backup.folder.os.open", _raising(refused, of=to / "lock"))
        assert held(restored(to, tmp_path / "new")) == (20, expected(20))
    assert sorted(to.rglob("*")) == before


def _raising(error: OSError, *, of: Path) -> Callable[..., int]:
    real = os.open

    def fail(path: str | Path, *arguments: int) -> int:
        if Path(path) == of:
            raise error
        return real(path, *arguments)

    return fail


def test_an_empty_folder_can_be_restored_to(root: Path, to: Path, tmp_path: Path):
    opened(root).backup(to)
    (tmp_path / "empty").mkdir()
    assert held(restored(to, tmp_path / "empty")) == (20, expected(20))


def test_a_backup_is_readable_by_its_owner_alone(root: Path, to: Path):
    opened(root).backup(to)
    assert [oct(path.stat().st_mode & 0o777) for path in (to, to / "files", to / "backups")] == ["0o700"] * 3


def test_a_restored_lake_is_readable_by_its_owner_alone_or_has_the_mode_of_the_target(
    root: Path, to: Path, tmp_path: Path
):
    opened(root).backup(to)
    assert oct(restored(to, tmp_path / "new").stat().st_mode & 0o777) == "0o700"
    for mode in (0o750, 0o700):
        (tmp_path / f"{mode}").mkdir()
        (tmp_path / f"{mode}").chmod(mode)
        assert restored(to, tmp_path / f"{mode}").stat().st_mode & 0o777 == mode


# ---- fencing -----------------------------------------------------------------------------------------------------


def test_a_restore_to_the_same_path_fences_earlier_jobs_and_followers(root: Path, to: Path):
    lake = opened(root)
    store = store_of(people(root))
    fold_by_arrow(people(root))
    lake.backup(to)
    epoch, content = store.snapshot().epoch, store.snapshot().content
    root.rename(root.with_name("damaged"))
    restored(to, root)
    after = store_of(people(root)).snapshot()
    assert (after.epoch > epoch + 1000, after.content > content) == (True, True)
    assert people(root).history()[0].operation == "restore"
    with pytest.raises(Fenced):
        store.base.commit(lambda parent: Commit(kind=CommitKind.EPOCH, plan_version=parent.version, epoch=epoch + 1000))
    with opened(root) as again:
        lease = Leases(Layout.at(root), FAST, clock_of(again)).acquire(COMPACTOR, role=FAST.role)
        assert lease is not None
        lease.advance(above=again.maintenance.highest_epoch([NAME]))
        assert lease.row.epoch > after.epoch
        lease.release()
