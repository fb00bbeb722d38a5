"""Writing one log entry: whole or not at all, and once."""

import getpass
import json
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from siltstone.clock import SystemClock
from siltstone.delta.entry_writer import entry_content, put_entry
from siltstone.delta.layout import LOG, entry_name
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile

FILE = DataFile(path="data/a.parquet", size_bytes=7, rows=2, partition={"_seq": "3"}, stats='{"numRecords": 2}')


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / LOG).mkdir()
    return tmp_path


def put(table: Path, content: bytes) -> None:
    put_entry(table, 5, content, draft_id=SystemClock().new_id(), durable=True)


def names(table: Path) -> list[str]:
    return sorted(path.name for path in (table / LOG).iterdir())


def test_an_entry_is_written_and_its_draft_is_gone(table: Path):
    put(table, b"one\n")
    assert names(table) == [entry_name(5)]
    assert (table / LOG / entry_name(5)).read_bytes() == b"one\n"


def test_a_version_that_is_taken_is_left_as_it_is(table: Path):
    put(table, b"one\n")
    with pytest.raises(FileExistsError):
        put(table, b"two\n")
    assert names(table) == [entry_name(5)]
    assert (table / LOG / entry_name(5)).read_bytes() == b"one\n"


def test_of_many_writers_of_one_version_exactly_one_succeeds(table: Path):
    def attempt(number: int) -> int | None:
        try:
            put(table, b"%d\n" % number)
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(attempt, range(64)) if number is not None]
    assert len(won) == 1
    assert (table / LOG / entry_name(5)).read_bytes() == b"%d\n" % won[0]
    assert names(table) == [entry_name(5)]


def test_files_of_an_entry_are_on_disk_before_the_entry(table: Path, monkeypatch: pytest.MonkeyPatch):
    """Threads sync the files of the entry and its draft at the same time; the link waits for all of them."""
    beside = [table / name for name in ("a", "b", "c")]
    for path in beside:
        path.write_text("x")
    synced: list[Path] = []
    real = os.fsync

    def slow(handle: int) -> None:
        time.sleep(0.02)
        real(handle)
        assert not (table / LOG / entry_name(5)).exists()
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())

    monkeypatch.setattr(os, "fsync", slow)
    put_entry(table, 5, b"one\n", draft_id="1", durable=True, beside=[str(path) for path in beside])
    assert {path.name for path in synced} == {"a", "b", "c", f"{entry_name(5)}#1"}
    assert names(table) == [entry_name(5)]


def test_a_file_that_cannot_be_synced_keeps_the_entry_from_being_there(table: Path):
    with pytest.raises(FileNotFoundError):
        put_entry(table, 5, b"one\n", draft_id="1", durable=True, beside=[str(table / "gone")])
    assert names(table) == []


def test_a_forked_process_syncs_with_threads_of_its_own(table: Path):
    (table / "a").write_text("x")
    put_entry(table, 4, b"parent\n", draft_id="1", durable=True, beside=[str(table / "a")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside a fork, in Python versions that emit it
        child = os.fork()
    if child == 0:
        try:
            put_entry(table, 5, b"child\n", draft_id="2", durable=True, beside=[str(table / "a")])
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert names(table) == [entry_name(4), entry_name(5)]


def test_a_disk_that_refuses_leaves_neither_entry_nor_draft(table: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="No space left"):
        put(table, b"one\n")
    assert names(table) == []


def test_a_draft_that_cannot_be_deleted_fails_no_commit(table: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_given: object, **_named: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "unlink", refuse)
    put(table, b"one\n")
    assert (table / LOG / entry_name(5)).read_bytes() == b"one\n"
    assert len(names(table)) == 2, "the draft is still there"


def lines(commit: Commit) -> list[dict[str, Any]]:
    text = entry_content(commit, version=5, commit_id="ab12", now_ms=99).decode()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_a_commit_is_written_as_delta_has_it():
    commit = Commit(
        kind=CommitKind.FOLD,
        plan_version=4,
        adds=(FILE,),
        removes=(FILE,),
        transactions={"siltstone.seq": 3, "producer/p": 8},
        info={"why": "test"},
    )
    info, add, remove, producer, sequence, version = lines(commit)
    assert (info["commitInfo"]["siltstone.commit"], info["commitInfo"]["why"]) == ("ab12", "test")
    assert info["commitInfo"]["timestamp"] == 99
    commit_info = info["commitInfo"]
    assert (commit_info["siltstone.kind"], commit_info["siltstone.rows_removed"]) == ("fold", "2")
    assert (commit_info["userName"], commit_info["siltstone.pid"]) == (getpass.getuser(), str(os.getpid()))
    assert add["add"] == {
        "path": "data/a.parquet",
        "partitionValues": {"_seq": "3"},
        "size": 7,
        "modificationTime": 99,
        "dataChange": True,
        "stats": '{"numRecords": 2}',
    }
    assert remove["remove"] == {
        "path": "data/a.parquet",
        "deletionTimestamp": 99,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {"_seq": "3"},
        "size": 7,
    }
    assert producer["txn"] == {"appId": "producer/p", "version": 8}, "without a time no clock can expire it"
    assert sequence["txn"] == {"appId": "siltstone.seq", "version": 3}
    assert version["txn"] == {"appId": "siltstone.committed", "version": 5}


@pytest.mark.parametrize("kind", CommitKind)
def test_a_commit_that_only_moves_rows_is_marked(kind: CommitKind):
    _, add, remove, _ = lines(Commit(kind=kind, plan_version=0, adds=(FILE,), removes=(FILE,)))
    assert add["add"]["dataChange"] is remove["remove"]["dataChange"] is not kind.moves_rows_only


def test_a_path_is_written_as_an_address_and_text_of_any_kind_on_one_line():
    odd = DataFile(path="data/a b%\u00e9.parquet", size_bytes=1, rows=1, partition={"name": "x\n\u00fc\U0001f600"})
    _, add, _ = lines(Commit(kind=CommitKind.APPEND, plan_version=0, adds=(odd,)))
    assert add["add"]["path"] == "data/a%20b%25%C3%A9.parquet"
    assert add["add"]["partitionValues"] == {"name": "x\n\u00fc\U0001f600"}
    assert "stats" not in add["add"]
