"""The commit path refuses before an entry is written: falling transactions, old epochs, files that differ from their entries."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone.delta.layout import LOG, entry_name
from siltstone.delta.log_reader import read_entry
from siltstone.delta.table import Table
from siltstone.errors import Conflict, Corruption, Fenced, Gone, InvalidRequest, NotFound
from siltstone.lake import Lake
from siltstone.model.columns import APP_EPOCH, APP_FOLD, SEQ
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.spec import FORMAT_VERSION, PROPERTY_DROPPED, PROPERTY_FORMAT
from tests.support.refusals import refused
from tests.support.tables import (
    FAST,
    TABLE_SCHEMA,
    append,
    append_commit,
    checkpoint_and_forget,
    ids,
    make_table,
    move,
    open_table,
    rows_of,
    stage,
    state,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_table(tmp_path / "t", appends=2)
    return tmp_path / "t"


def set_transaction(table: Table, app: str, version: int) -> None:
    table.commit(lambda p: Commit(kind=CommitKind.APPEND, plan_version=p.version, transactions={app: version}))


# ---- transactions and epochs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_transaction_never_decreases(path: Path, *, cleaned: bool):
    set_transaction(open_table(path), APP_FOLD, 7)
    if cleaned:
        append(open_table(path), 3)
        checkpoint_and_forget(path)
    before = state(path)
    with refused(Conflict, None, APP_FOLD, "6"):
        set_transaction(open_table(path), APP_FOLD, 6)
    assert state(path) == before
    set_transaction(open_table(path), APP_FOLD, 7)
    set_transaction(open_table(path), APP_FOLD, 8)
    assert state(path).transactions[APP_FOLD] == 8


def compaction(table: Table, *, epoch: int) -> Commit:
    return dataclasses.replace(move(table, table.pin().files), epoch=epoch)


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_lower_epoch_is_fenced_an_equal_one_passes_and_a_higher_one_is_written(path: Path, *, cleaned: bool):
    table = open_table(path)
    five = compaction(table, epoch=5)
    version = table.commit(lambda _: five).version
    assert read_entry(path, version).transactions == {APP_EPOCH: 5}
    if cleaned:
        append(table, 3)
        checkpoint_and_forget(path)
    before = state(path)
    four = compaction(open_table(path), epoch=4)
    with refused(Fenced, None, "4", "5"):
        open_table(path).commit(lambda _: four)
    assert state(path) == before
    again = compaction(table, epoch=5)
    version = table.commit(lambda _: again).version
    assert read_entry(path, version).transactions == {}, "an equal epoch is not written again"
    six = compaction(table, epoch=6)
    table.commit(lambda _: six)
    assert state(path).transactions[APP_EPOCH] == 6


def test_two_jobs_of_one_epoch_do_not_conflict(path: Path):
    table = open_table(path)
    one, two = (dataclasses.replace(move(table, [file]), epoch=3) for file in table.pin().files)
    open_table(path).commit(lambda _: one)
    open_table(path).commit(lambda _: two)
    assert ids(path) == [1, 2]


def test_a_job_planned_before_an_epoch_was_raised_is_fenced(path: Path):
    table = open_table(path)
    job = compaction(table, epoch=0)
    open_table(path).commit(
        lambda p: Commit(kind=CommitKind.EPOCH, plan_version=p.version, transactions={APP_EPOCH: 1})
    )
    before = state(path)
    with pytest.raises(Fenced):
        table.commit(lambda _: job)
    assert state(path) == before


# ---- removed and added files -----------------------------------------------------------------------------------------


def test_a_removed_file_must_be_live(path: Path):
    table = open_table(path)
    ghost = DataFile(path="data/ghost.parquet", size_bytes=1, rows=1, partition={SEQ: "1"})
    before = state(path)
    with pytest.raises(Conflict, match=ghost.path):
        table.commit(lambda p: Commit(kind=CommitKind.CLUSTER, plan_version=p.version, removes=(ghost,)))
    assert state(path) == before


def test_a_file_that_was_removed_before_the_plan_is_refused_too(path: Path):
    table = open_table(path)
    old = table.pin().files
    first = move(table, old)
    table.commit(lambda _: first)
    before = state(path)
    with pytest.raises(Conflict, match=old[0].path):
        table.commit(lambda p: Commit(kind=CommitKind.CLUSTER, plan_version=p.version, removes=old[:1]))
    assert state(path) == before


def missing(table: Table, file: DataFile) -> DataFile:
    (table.path / file.path).unlink()
    return file


def truncated(table: Table, file: DataFile) -> DataFile:
    path = table.path / file.path
    path.write_bytes(path.read_bytes()[:-20])
    return dataclasses.replace(file, size_bytes=file.size_bytes - 20)


def empty(table: Table, file: DataFile) -> DataFile:
    (table.path / file.path).write_bytes(b"")
    return dataclasses.replace(file, size_bytes=0)


def grown(_table: Table, file: DataFile) -> DataFile:
    return dataclasses.replace(file, size_bytes=file.size_bytes + 1)


def miscounted(_table: Table, file: DataFile) -> DataFile:
    return dataclasses.replace(file, rows=file.rows + 1)


def with_columns(**columns: pa.Array) -> pa.Table:
    return pa.table(columns)


NOT_AS_SAID = {
    "missing": missing,
    "truncated": truncated,
    "empty": empty,
    "of another size": grown,
    "of other rows": miscounted,
}
WRONG_COLUMNS = {
    "a column too few": with_columns(id=pa.array([1])),
    "a column too many": rows_of([1]).append_column("extra", pa.array([1])),
    "another type": with_columns(id=pa.array(["1"]), note=pa.array(["x"])),
    "a narrower type": with_columns(id=pa.array([1], pa.int32()), note=pa.array(["x"])),
    "another name": with_columns(ID=pa.array([1]), note=pa.array(["x"])),
}


@pytest.mark.parametrize("fault", NOT_AS_SAID)
def test_an_added_file_that_differs_from_its_entry_is_refused_before_the_commit(path: Path, fault: str):
    table = open_table(path)
    file = NOT_AS_SAID[fault](table, stage(table, [9]))
    before = state(path)
    with pytest.raises(Corruption, match=file.path):
        table.commit(lambda parent: append_commit(parent, file))
    assert state(path) == before


@pytest.mark.parametrize("fault", WRONG_COLUMNS)
def test_an_added_file_with_other_columns_is_refused_before_the_commit(path: Path, fault: str):
    table = open_table(path)
    file = stage(table, [9], rows=WRONG_COLUMNS[fault])
    before = state(path)
    with refused(Corruption, None, file.path):
        table.commit(lambda parent: append_commit(parent, file))
    assert state(path) == before


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_nanoseconds_and_int96_never_get_into_a_table(tmp_path: Path, zone: str | None):
    schema = pa.schema([pa.field("at", pa.timestamp("us", tz=zone))])
    Table.create(tmp_path / "t", schema, partition_by=[], properties={}, durable=False)
    table = open_table(tmp_path / "t")
    rows = pa.table({"at": pa.array([1_000], pa.timestamp("ns", tz=zone))})
    written: dict[str, dict[str, Any]] = {
        "nanoseconds": {"version": "2.6"},
        "int96": {"use_deprecated_int96_timestamps": True},
    }
    for name, options in written.items():
        pq.write_table(rows, table.path / f"{name}.parquet", **options)
        size = (table.path / f"{name}.parquet").stat().st_size
        file = DataFile(path=f"{name}.parquet", size_bytes=size, rows=1)
        with refused(Corruption, None, file.path):
            table.commit(
                lambda p, file=file: Commit(kind=CommitKind.APPEND, plan_version=p.version, adds=(file,))  # type: ignore[misc]
            )
    assert state(table.path).version == 0


def test_microseconds_of_both_kinds_are_accepted_and_the_protocol_stays_low(tmp_path: Path):
    for zone, protocol in {"UTC": (1, 2), None: (3, 7)}.items():
        path = tmp_path / str(zone)
        schema = pa.schema([pa.field("at", pa.timestamp("us", tz=zone))])
        Table.create(path, schema, partition_by=[], properties={}, durable=False)
        table = open_table(path)
        file = stage(table, [], rows=pa.table({"at": pa.array([1], pa.timestamp("us", tz=zone))}))
        table.commit(lambda p, file=file: Commit(kind=CommitKind.APPEND, plan_version=p.version, adds=(file,)))  # type: ignore[misc]
        found = DeltaTable(path).protocol()
        assert (found.min_reader_version, found.min_writer_version) == protocol
        assert found.reader_features in (None, [], ["timestampNtz"])
        assert found.writer_features in (None, [], ["timestampNtz"])


def test_a_retry_does_not_verify_a_file_again(path: Path, monkeypatch: pytest.MonkeyPatch):
    table = open_table(path)
    file = stage(table, [9])
    table.verify((file,))

    def forbidden(*_given: object, **_named: object) -> None:
        raise AssertionError("verified twice")

    monkeypatch.setattr("siltstone.delta.staged_files.read_footer", forbidden)
    table.commit(lambda parent: append_commit(parent, file))


# ---- other tables at the same place ----------------------------------------------------------------------------------


CALLS: dict[str, Callable[[Table], object]] = {
    "pin": lambda table: table.pin(),
    "version": lambda table: table.version(),
    "properties": lambda table: table.properties(),
    "append": lambda table: table.commit(lambda parent: append_commit(parent, stage(table, [9]))),
    "set_properties": lambda table: table.set_properties({"siltstone.test": "x"}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_table_marked_as_dropped_is_gone_for_open_handles(path: Path, call: str):
    table = open_table(path)
    table.pin()
    open_table(path).set_properties({PROPERTY_DROPPED: "x"})
    before = state(path)
    for _ in range(2):
        with pytest.raises(Gone):
            CALLS[call](table)
    assert state(path) == before


@pytest.mark.parametrize("appends", [0, 2, 5])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_another_table_at_the_same_path_is_gone_for_open_handles(
    path: Path, call: str, appends: int, *, checkpointed: bool
):
    """The new table may have fewer, as many or more versions than the old one."""
    table = open_table(path)
    table.pin()
    shutil.rmtree(path)
    make_table(path, appends=appends)
    if checkpointed:
        checkpoint_and_forget(path)
    before = state(path)
    for _ in range(2):
        with pytest.raises(Gone):
            CALLS[call](table)
    assert state(path) == before


@pytest.mark.parametrize("call", CALLS)
def test_a_table_that_was_removed_is_gone_for_open_handles(path: Path, call: str):
    table = open_table(path)
    table.pin()
    shutil.rmtree(path / LOG)
    for _ in range(2):
        with pytest.raises(Gone):
            CALLS[call](table)
    assert not (path / LOG).exists()


def test_a_table_that_never_was_is_not_found(tmp_path: Path):
    with pytest.raises(NotFound):
        open_table(tmp_path / "nothing").pin()
    (tmp_path / "folder" / LOG).mkdir(parents=True)
    with pytest.raises(NotFound):
        open_table(tmp_path / "folder").pin()


def test_a_table_of_a_newer_format_is_refused(path: Path):
    table = open_table(path)
    table.pin()
    open_table(path).set_properties({PROPERTY_FORMAT: str(FORMAT_VERSION + 1)})
    for handle in (table, open_table(path)):
        with refused(InvalidRequest, None, FORMAT_VERSION + 1):
            handle.pin()
        with refused(InvalidRequest, None, FORMAT_VERSION + 1):
            append(handle, 9)


# ---- create ----------------------------------------------------------------------------------------------------------


def test_a_table_is_not_created_over_another(path: Path):
    before = state(path)
    with pytest.raises(Conflict):
        Table.create(path, TABLE_SCHEMA, partition_by=[SEQ], properties={}, durable=False)
    append(open_table(path), 3)
    checkpoint_and_forget(path)
    assert not (path / LOG / entry_name(0)).exists()
    with pytest.raises(Conflict):
        Table.create(path, TABLE_SCHEMA, partition_by=[SEQ], properties={}, durable=False)
    assert state(path).version == before.version + 1


def test_a_create_that_crashed_before_version_0_does_not_block_the_next(tmp_path: Path):
    (tmp_path / "t" / LOG).mkdir(parents=True)
    (tmp_path / "t" / LOG / f"{entry_name(0)}#1").write_text("")
    assert make_table(tmp_path / "t", appends=1).version() == 1


def test_a_lake_whose_first_create_crashed_is_still_an_empty_lake(tmp_path: Path):
    root = tmp_path / "lake"
    (root / "_system" / "datasets" / LOG).mkdir(parents=True)
    with Lake.open(root, settings=FAST) as lake:
        assert lake.datasets() == []
        with pytest.raises(NotFound):
            lake.dataset("a.b.c")
        assert lake.create("a.b.c", "id BIGINT NOT NULL", key="id").upsert([{"id": 1}]).sequence == 1
