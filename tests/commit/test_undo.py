"""Commits of another program on one of our tables: refused, listed as damage, and undone by one commit."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from siltstone.clock import SystemClock
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.table_repair import damage_of, repair
from siltstone.delta import log_reader
from siltstone.delta.checkpoints import Retention, checkpoint_and_clean, forget_history, write_checkpoint
from siltstone.delta.layout import LOG, entry_name
from siltstone.delta.log_reader import LogEntry
from siltstone.errors import Conflict, Corruption, Reason
from siltstone.failpoints import arm
from siltstone.lake import Lake
from siltstone.maintenance.repair import DamageKind
from tests.support.folds import fold_by_arrow
from tests.support.internals import parts_of
from tests.support.leasing import leases_of, taken
from tests.support.refusals import refused as refuses
from tests.support.tables import FAST, checkpoint_and_forget

NAME = "a.b.c"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        people = lake.create(NAME, "id BIGINT NOT NULL, name STRING", key="id")
        people.upsert([{"id": number, "name": f"n{number}"} for number in range(5)])
        fold_by_arrow(people)
        people.upsert([{"id": 9, "name": "later"}])
    return tmp_path / "lake"


def opened(root: Path) -> Dataset:
    return Lake.open(root, settings=FAST).dataset(NAME)


def rows(dataset: Dataset) -> list[tuple[int, str]]:
    return sorted((row["id"], row["name"]) for row in dataset.to_arrow().to_pylist())


TRUTH = [*((number, f"n{number}") for number in range(5)), (9, "later")]


def actions(base: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (base / LOG / entry_name(version)).read_text().splitlines()]


def put(base: Path, *more: dict[str, Any]) -> None:
    version = DeltaTable(base).version() + 1
    lines = [{"commitInfo": {"operation": "TEST"}}, *more]
    (base / LOG / entry_name(version)).write_text("".join(json.dumps(line) + "\n" for line in lines))


def append_rows(base: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    write_deltalake(base, pa.table({"id": [1, 77], "name": ["twice", "new"]}, schema=schema), mode="append")


def delete_rows(base: Path) -> None:
    DeltaTable(base).delete("id < 3")


def delete_all(base: Path) -> None:
    DeltaTable(base).delete()


def compact_files(base: Path) -> None:
    append_rows(base)
    DeltaTable(base).optimize.compact()


def raise_protocol(base: Path) -> None:
    DeltaTable(base).alter.add_feature([TableFeatures.ChangeDataFeed], allow_protocol_versions_increase=True)


def set_properties(base: Path) -> None:
    DeltaTable(base).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 hours"})


def hide_by_vector(base: Path) -> None:
    """Hide rows by a deletion vector, as Spark does: the file is removed and added again, with the vector."""
    [added] = [action["add"] for action in actions(base, 1) if "add" in action]
    features = ["deletionVectors"]
    vector = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
    put(
        base,
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {"add": {**added, "deletionVector": {**vector, "sizeInBytes": 40, "cardinality": 1}}},
        {"remove": {"path": added["path"], "deletionTimestamp": 1, "dataChange": True}},
    )


def rename_column(base: Path) -> None:
    """Rename a column by column mapping: files still have the old name."""
    [found] = [action["metaData"] for action in actions(base, 0) if "metaData" in action]
    schema = json.loads(found["schemaString"])
    for number, column in enumerate(schema["fields"], start=1):
        column["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": column["name"]}
    schema["fields"][1]["name"] = "renamed"
    changed = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    put(
        base,
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {
            "metaData": found
            | {"schemaString": json.dumps(schema), "configuration": {**found["configuration"], **changed}}
        },
    )


FOREIGN: dict[str, Callable[[Path], None]] = {
    "an append": append_rows,
    "a delete": delete_rows,
    "a delete of all": delete_all,
    "an append and an optimize": compact_files,
    "a raised protocol": raise_protocol,
    "other properties": set_properties,
    "a deletion vector": hide_by_vector,
    "a renamed column": rename_column,
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("swallowed", [False, True], ids=["entry", "checkpoint"])
def test_commits_of_another_program_are_refused_listed_and_undone(root: Path, what: str, *, swallowed: bool):
    live = opened(root)
    assert rows(live) == TRUTH
    base = live.path / "base"
    before = (DeltaTable(base).protocol(), DeltaTable(base).metadata().configuration)
    FOREIGN[what](base)
    if swallowed:
        DeltaTable(base).create_checkpoint()
    for refused in (live, opened(root)):
        for use in (
            refused.to_arrow,
            refused.status,
            lambda found=refused: found.get([1]),
            lambda found=refused: found.upsert([{"id": 1, "name": "x"}]),
        ):
            with refuses(Corruption, Reason.FOREIGN_COMMIT):
                use()
    with Lake.open(root, settings=FAST) as lake:
        [damage] = lake.damages()
        assert (damage.kind.value, damage.repairable) == ("tables", True)
        lake.repair(damage)
        assert lake.damages() == []
        with pytest.raises(Conflict):
            lake.repair(damage)
    for found in (live, opened(root)):
        assert rows(found) == TRUTH
        assert found.get([1]).num_rows == 1
    assert (DeltaTable(base).protocol(), DeltaTable(base).metadata().configuration) == before
    assert sorted(DeltaTable(base).to_pyarrow_table().column("id").to_pylist()) == list(range(5))
    live.upsert([{"id": 2, "name": "changed"}])
    fold_by_arrow(opened(root))
    checkpoint_and_clean(base, retention=Retention(hours=0), durable=False, clock=SystemClock())
    assert rows(opened(root)) == sorted([*(pair for pair in TRUTH if pair[0] != 2), (2, "changed")])


def test_an_interrupt_waits_until_the_repair_is_written(root: Path):
    base = parts_of(opened(root)).store.base
    append_rows(base.path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore interrupts
    try:
        with (
            arm("commit.before_entry", lambda _: os.kill(os.getpid(), signal.SIGINT)),
            pytest.raises(KeyboardInterrupt),
        ):
            base.undo_foreign()
    finally:
        signal.signal(signal.SIGINT, before)
    assert rows(opened(root)) == TRUTH


def test_history_names_the_commit_and_its_repair(root: Path):
    people = opened(root)
    delete_rows(people.path / "base")
    repair(parts_of(people).store)
    entries = [(entry.operation, entry.foreign) for entry in people.history() if entry.table == "base"]
    assert entries[:2] == [("repair", False), ("DELETE", True)]


@pytest.mark.parametrize("timestamp", [10**17, -(10**17), 253_402_300_800_000])
def test_history_shows_a_foreign_commit_with_a_time_that_no_calendar_has(root: Path, timestamp: int):
    people = opened(root)
    lines = [{"commitInfo": {"timestamp": timestamp, "operation": "DELETE"}}, {"metaData": {}}]
    entry = people.path / "base" / LOG / entry_name(DeltaTable(people.path / "base").version() + 1)
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    [newest] = [entry for entry in people.history() if entry.foreign]
    assert (newest.operation, newest.at[:2]) == ("DELETE", "20")


def test_a_log_that_is_cleaned_while_its_repair_is_read_is_listed_again(root: Path, monkeypatch: pytest.MonkeyPatch):
    people = opened(root)
    store = parts_of(people).store
    delete_rows(store.base.path)
    repair(store)
    store.base.set_properties({"siltstone.test": "x"})
    real = log_reader.entries_between
    cleaned: list[Path] = []

    def beside_a_purge(table: Path, *, after: int, until: int) -> Iterator[LogEntry]:
        if not cleaned:
            cleaned.append(table)
            write_checkpoint(table, durable=False)
            forget_history(table)
        return real(table, after=after, until=until)

    monkeypatch.setattr(log_reader, "entries_between", beside_a_purge)
    assert rows(opened(root)) == TRUTH
    assert cleaned == [store.base.path]


def test_a_foreign_commit_whose_files_were_deleted_cannot_be_undone(root: Path):
    people = opened(root)
    base = people.path / "base"
    delete_all(base)
    DeltaTable(base).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    found = damage_of(parts_of(people).store)
    assert found is not None
    assert not found.repairable
    assert "backup" in found.remedy
    before = sorted(path.name for path in (base / LOG).iterdir())
    with pytest.raises(Corruption):
        repair(parts_of(people).store)
    assert sorted(path.name for path in (base / LOG).iterdir()) == before


def test_a_foreign_commit_that_was_cleaned_from_the_log_cannot_be_undone(root: Path):
    people = opened(root)
    base = people.path / "base"
    append_rows(base)
    append_rows(base)
    checkpoint = DeltaTable(base)
    checkpoint.create_checkpoint()
    for entry in sorted((base / LOG).glob("*.json"))[:-1]:
        entry.unlink()
    found = damage_of(parts_of(people).store)
    assert found is not None
    assert not found.repairable


def test_an_earlier_time_never_shows_what_was_undone(root: Path):
    people = opened(root)
    moments = [people.history()[0].at]
    delete_rows(people.path / "base")
    moments.append(SystemClock().now().isoformat())
    repair(parts_of(people).store)
    moments.append(SystemClock().now().isoformat())
    for moment in moments:
        found = people.to_arrow(at=moment)
        assert sorted((row["id"], row["name"]) for row in found.to_pylist()) == TRUTH
    assert people.to_arrow(at=1).num_rows == 5


def test_a_commit_after_a_repair_is_refused_again(root: Path):
    people = opened(root)
    base = people.path / "base"
    append_rows(base)
    repair(parts_of(people).store)
    append_rows(base)
    with refuses(Corruption, Reason.FOREIGN_COMMIT):
        opened(root).to_arrow()
    repair(parts_of(people).store)
    assert rows(opened(root)) == TRUTH


def test_a_commit_of_another_program_on_changes_is_undone_too(root: Path):
    people = opened(root)
    DeltaTable(people.path / "changes").delete()
    with refuses(Corruption, Reason.FOREIGN_COMMIT):
        people.to_arrow()
    repair(parts_of(people).store)
    assert rows(opened(root)) == TRUTH
    assert people.changes_to_arrow(since=0).column("id").to_pylist() == [*range(5), 9], "each change once"
    checkpoint_and_forget(people.path / "changes")
    assert opened(root).upsert([{"id": 10, "name": "x"}]).sequence == 3


@pytest.mark.parametrize("subject", ["_system/datasets", "_system/leases", "_system/events"])
def test_a_commit_of_another_program_on_a_table_of_the_system_is_a_damage_and_undone(
    root: Path, subject: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(root.parent / "cache"))
    with Lake.open(root, settings=FAST) as lake:
        lake.dataset(NAME).upsert([{"id": 9, "name": "later"}])
        lake.run_cycle(only=["squash"], force=True)  # creates the journal
        taken(leases_of(root)).release()
        assert lake.damages() == []
    files = len(DeltaTable(root / subject).file_uris())
    delete_all(root / subject)
    with Lake.open(root, settings=FAST) as lake:
        [damage] = lake.damages()
        assert (damage.kind, damage.subject, damage.repairable) == (DamageKind.SYSTEM, subject, True)
        lake.repair(damage)
        assert lake.damages() == []
        with pytest.raises(Conflict):
            lake.repair(damage)
    assert len(DeltaTable(root / subject).file_uris()) == files
    assert rows(opened(root)) == TRUTH
    opened(root).upsert([{"id": 9, "name": "later"}])
    with Lake.open(root, settings=FAST) as lake:
        assert [result.error for result in lake.run_cycle(only=["squash"], force=True)] == [None]
        assert lake.damages() == []
