import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.delta.entry_writer import entry_content
from siltstone.delta.layout import LOG, entry_name, has_versions, owner_of
from siltstone.delta.log_reader import (
    MISSING_LOOKED_UP,
    LogListing,
    check_chain,
    check_entries,
    entries_between,
    list_log,
    parse_entry,
    read_entry,
    readable_versions,
)
from siltstone.errors import Corruption, Reason
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from tests.support.refusals import refused


def write(table: Path, version: int, *actions: dict[str, object]) -> None:
    (table / LOG).mkdir(parents=True, exist_ok=True)
    (table / LOG / entry_name(version)).write_text("\n".join(json.dumps(action) for action in actions) + "\n")


def touch(table: Path, *names: str) -> None:
    (table / LOG).mkdir(parents=True, exist_ok=True)
    for name in names:
        (table / LOG / name).write_text("x")


def checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def test_an_entry_is_read_for_what_a_later_commit_must_know(tmp_path: Path):
    write(
        tmp_path,
        3,
        {"commitInfo": {"operation": "WRITE", "siltstone.commit": "abc"}},
        {"add": {"path": "data/a.parquet", "size": 1}},
        {"add": {"path": "data/b.parquet"}},
        {"remove": {"path": "data/c.parquet", "deletionTimestamp": 9}},
        {"txn": {"appId": "siltstone.seq", "version": 7}},
        {"txn": {"appId": "producer/p", "version": 1, "lastUpdated": 5}},
        {"txn": {"appId": "producer/q", "version": 2, "lastUpdated": 1}},
    )
    entry = read_entry(tmp_path, 3)
    assert entry.version == 3
    assert entry.adds == {"data/a.parquet", "data/b.parquet"}
    assert entry.removes == {"data/c.parquet": 9}
    assert entry.transactions == {"siltstone.seq": 7, "producer/p": 1}
    assert entry.forgotten == {"producer/q"}
    assert entry.commit_id == "abc"
    assert entry.info["operation"] == "WRITE"
    assert (entry.metadata, entry.protocol, entry.changes_table) == (None, None, False)


def test_changes_of_metadata_and_protocol_are_seen(tmp_path: Path):
    write(tmp_path, 0, {"metaData": {"id": "x"}})
    write(tmp_path, 1, {"protocol": {"minReaderVersion": 1}})
    first, second = read_entry(tmp_path, 0), read_entry(tmp_path, 1)
    assert (first.metadata, first.protocol, first.changes_table) == ({"id": "x"}, None, True)
    assert (second.metadata, second.protocol, second.changes_table) == (None, {"minReaderVersion": 1}, True)


@pytest.mark.parametrize("kind", ["metaData", "protocol"])
def test_an_empty_action_is_damage(tmp_path: Path, kind: str):
    write(tmp_path, 0, {kind: None}, {"commitInfo": {}})
    with refused(Corruption, Reason.DAMAGED_FILE, entry_name(0)):
        read_entry(tmp_path, 0)


def test_an_entry_of_another_program_has_no_commit_id(tmp_path: Path):
    write(tmp_path, 0, {"add": {"path": "x"}}, {"cdc": {"path": "y"}}, {"domainMetadata": {}})
    entry = read_entry(tmp_path, 0)
    assert (entry.commit_id, entry.info) == (None, {})


@pytest.mark.parametrize("text", ["", "\n", "  \n\n"])
def test_an_empty_entry_is_corruption(tmp_path: Path, text: str):
    touch(tmp_path)
    (tmp_path / LOG / entry_name(0)).write_text(text)
    with refused(Corruption, Reason.DAMAGED_FILE, entry_name(0)):
        read_entry(tmp_path, 0)


@pytest.mark.parametrize("text", ['{"add":{"path":"x"', '{"add":{"path":"x"}}\n{"txn', "\x00\x00\x00", "no json"])
def test_an_entry_that_cannot_be_parsed_is_corruption(tmp_path: Path, text: str):
    touch(tmp_path)
    (tmp_path / LOG / entry_name(0)).write_text(text)
    with refused(Corruption, Reason.DAMAGED_FILE, entry_name(0)):
        read_entry(tmp_path, 0)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{}", b"[1, 2]\n", b"5\n", b'{"add": 5}\n', b'{"add": {}}\n', b'{"txn": {"appId": "x"}}\n']
)
def test_an_entry_that_is_json_but_no_entry_is_corruption(tmp_path: Path, content: bytes):
    touch(tmp_path)
    (tmp_path / LOG / entry_name(0)).write_bytes(content)
    with pytest.raises(Corruption):
        read_entry(tmp_path, 0)


def test_a_missing_entry_raises_file_not_found(tmp_path: Path):
    touch(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_entry(tmp_path, 0)


def test_a_listing_knows_entries_and_checkpoints_and_nothing_else(tmp_path: Path):
    touch(
        tmp_path,
        entry_name(10),
        entry_name(9),
        checkpoint(9),
        f"{5:020d}.checkpoint.0000000001.0000000002.parquet",
        f"{5:020d}.checkpoint.0000000002.0000000002.parquet",
        f"{4:020d}.checkpoint.1ab2.parquet",
        "_last_checkpoint",
        f"{entry_name(11)}#1",
        f"{entry_name(11)}.tmp",
        ".00000000000000000010.json.crc",
        "7.json",
    )
    listing = list_log(tmp_path)
    assert listing.entries == (9, 10)
    assert set(listing.checkpoints) == {4, 5, 9}
    assert len(listing.checkpoints[5]) == 2
    assert listing.newest_checkpoint == 9


def test_an_entry_that_a_listing_left_out_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for version in range(4):
        write(tmp_path, version, {"commitInfo": {}})
    listed = [name for name in os.listdir(tmp_path / LOG) if name != entry_name(2)]  # noqa: PTH208
    monkeypatch.setattr(os, "listdir", lambda _: listed)
    assert list_log(tmp_path).entries == (0, 1, 2, 3)  # a directory that another process writes to during the read
    (tmp_path / LOG / entry_name(2)).unlink()
    assert list_log(tmp_path).missing() == [2]
    with refused(Corruption, Reason.MISSING_FILE, entry_name(2)):
        check_entries(tmp_path)


def test_few_missing_entries_are_looked_up_whatever_a_file_is_called(tmp_path: Path):
    write(tmp_path, 10**19, {"commitInfo": {}})
    assert len(list_log(tmp_path).missing()) == MISSING_LOOKED_UP


def test_the_newest_checkpoint_of_a_log_without_one_is_minus_one(tmp_path: Path):
    touch(tmp_path, entry_name(0))
    assert list_log(tmp_path).newest_checkpoint == -1


def test_a_listing_that_fails_is_never_an_empty_one(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        list_log(tmp_path / "nothing")


def test_the_entries_after_a_plan_are_read_in_order(tmp_path: Path):
    for version in range(5):
        write(tmp_path, version, {"commitInfo": {}})
    assert [entry.version for entry in entries_between(tmp_path, after=1, until=3)] == [2, 3]
    assert list(entries_between(tmp_path, after=4, until=4)) == []


def test_a_cleaned_entry_is_unknown_and_a_missing_one_is_corruption(tmp_path: Path):
    for version in (0, 1, 3, 4):
        write(tmp_path, version, {"commitInfo": {}})
    with refused(Corruption, Reason.MISSING_FILE, entry_name(2)):
        list(entries_between(tmp_path, after=0, until=4))
    touch(tmp_path, checkpoint(1))
    with refused(Corruption, Reason.MISSING_FILE, entry_name(2)):
        list(entries_between(tmp_path, after=0, until=4))
    touch(tmp_path, checkpoint(3))
    with pytest.raises(LookupError):
        list(entries_between(tmp_path, after=0, until=4))


@pytest.mark.parametrize(
    ("entries", "checkpoints", "whole"),
    [
        ((0, 1, 2), (), True),
        ((1, 2), (), False),
        ((0, 2), (), False),
        ((3, 4, 5), (3,), True),
        ((4, 5), (3,), True),
        ((5,), (3,), False),
        ((0, 3, 4), (3,), True),
        ((3,), (3,), True),
        ((), (3,), True),
        ((3, 5), (3,), False),
    ],
)
def test_a_log_is_whole_if_nothing_is_missing_after_its_newest_checkpoint(
    tmp_path: Path, entries: tuple[int, ...], checkpoints: tuple[int, ...], *, whole: bool
):
    touch(tmp_path, *map(checkpoint, checkpoints))
    for version in entries:
        write(tmp_path, version, {"commitInfo": {}})
    if whole:
        check_entries(tmp_path)
        return
    with refused(Corruption, Reason.MISSING_FILE, entry_name(list_log(tmp_path).missing()[0])):
        check_entries(tmp_path)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"add":' + "[" * 100_000])
def test_an_entry_that_is_nested_without_end_is_named(line: str):
    with refused(Corruption, Reason.DAMAGED_FILE, " x "):
        parse_entry(line.encode(), 3, where="x")


def test_a_check_reads_every_entry_above_the_newest_checkpoint(tmp_path: Path):
    write(tmp_path, 0, {"commitInfo": {}})
    (tmp_path / LOG / entry_name(1)).write_text("{")
    with refused(Corruption, Reason.DAMAGED_FILE, entry_name(1)):
        check_entries(tmp_path)
    touch(tmp_path, checkpoint(1))
    check_entries(tmp_path)


SEALED = entry_content(
    Commit(
        kind=CommitKind.APPEND,
        plan_version=2,
        adds=(DataFile(path="data/a.parquet", size_bytes=7, rows=1, partition={"_seq": "3"}),),
        transactions={"siltstone.seq": 3, "producer/p": 8},
    ),
    version=3,
    commit_id="ab12",
    now_ms=99,
)


def test_an_entry_of_ours_carries_its_checksum_and_its_version():
    entry = parse_entry(SEALED, 3, where="x")
    assert (entry.commit_id, entry.is_foreign, set(entry.adds)) == ("ab12", False, {"data/a.parquet"})
    assert entry.transactions == {"siltstone.seq": 3, "producer/p": 8}
    assert json.loads(SEALED.splitlines()[-1]) == {"txn": {"appId": "siltstone.committed", "version": 3}}


def test_every_entry_that_is_cut_after_a_line_or_a_byte_is_corruption():
    for end in range(len(SEALED)):
        with pytest.raises(Corruption):
            parse_entry(SEALED[:end], 3, where="x")


def test_every_flipped_bit_of_an_entry_is_named_or_changes_nothing():
    sound = parse_entry(SEALED, 3, where="x")
    for place in range(len(SEALED)):
        for bit in range(8):
            flipped = bytearray(SEALED)
            flipped[place] ^= 1 << bit
            try:
                found = parse_entry(bytes(flipped), 3, where="x")
            except Corruption:
                continue
            assert replace(found, info={}) == replace(sound, info={})
            assert found.commit_id == sound.commit_id


@pytest.mark.parametrize("text", ["{}\n", '{"commitInfo":{"siltstone.kind":"append"}}\n', '{"add":{"path":"x"}}\n{}\n'])
def test_an_entry_without_checksum_that_lacks_its_actions_is_corruption(text: str):
    with refused(Corruption, Reason.DAMAGED_FILE, " x "):
        parse_entry(text.encode(), 3, where="x")


@pytest.mark.parametrize(
    ("actions", "foreign"),
    [
        (({"add": {"path": "x"}},), True),
        (({"commitInfo": {"operation": "DELETE"}}, {"remove": {"path": "x"}}), True),
        (({"commitInfo": {}}, {"metaData": {"id": "x"}}), True),
        (({"commitInfo": {}}, {"domainMetadata": {}}), True),
        (({"commitInfo": {"operation": "VACUUM START"}},), False),
        (({"commitInfo": {}}, {"txn": {"appId": "theirs", "version": 1}}), False),
        (({"commitInfo": {"siltstone.kind": "create"}}, {"metaData": {"id": "x"}}), False),
    ],
)
def test_an_entry_of_another_program_that_changes_the_table_is_foreign(
    tmp_path: Path, actions: tuple[dict[str, object], ...], *, foreign: bool
):
    write(tmp_path, 0, *actions)
    assert read_entry(tmp_path, 0).is_foreign is foreign
    if foreign:
        with refused(Corruption, Reason.FOREIGN_COMMIT, " 0 ", tmp_path):
            check_entries(tmp_path)
    else:
        check_entries(tmp_path)


def test_foreign_commits_below_a_checkpoint_are_found_by_what_we_committed_last(tmp_path: Path):
    write(tmp_path, 4, {"commitInfo": {"operation": "WRITE"}}, {"add": {"path": "x"}})
    write(tmp_path, 5, {"commitInfo": {"operation": "VACUUM END"}})
    touch(tmp_path, checkpoint(5))
    check_entries(tmp_path)
    check_chain(tmp_path, committed=None, version=5)
    check_chain(tmp_path, committed=5, version=5)
    check_chain(tmp_path, committed=4, version=5)
    with refused(Corruption, Reason.FOREIGN_COMMIT, " 4 ", "WRITE"):
        check_chain(tmp_path, committed=3, version=5)
    with refused(Corruption, Reason.FOREIGN_COMMIT, " 2 "):
        check_chain(tmp_path, committed=2, version=5)


@pytest.mark.parametrize(
    ("names", "there"),
    [
        ((), False),
        ((f"{entry_name(0)}#1",), False),
        (("_last_checkpoint",), False),
        ((entry_name(0),), True),
        ((entry_name(17),), True),
        ((checkpoint(9),), True),
    ],
)
def test_a_table_exists_once_it_has_a_version(tmp_path: Path, names: tuple[str, ...], *, there: bool):
    touch(tmp_path, *names)
    assert has_versions(tmp_path) is there
    assert not has_versions(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("data/ab12.parquet", "ab12"),
        ("data/.ab12.parquet.crc", "ab12"),
        ("data/ab12/0/part-0.parquet", "ab12"),
        ("data/ab12/0/.part-0.parquet.crc", "ab12"),
        ("data/ab12/0/_temporary/0/x", "ab12"),
        ("data/ab12", "ab12"),
        ("_commit_lock", None),
        ("part-0.parquet", None),
        ("other/ab12.parquet", None),
        ("data", None),
    ],
)
def test_a_file_names_its_owner_by_its_path(path: str, owner: str | None):
    assert owner_of(path) == owner


@pytest.mark.parametrize(
    ("entries", "checkpoints", "readable"),
    [
        ([0, 1, 2], [], [0, 1, 2]),
        ([0, 1, 2], [1], [0, 1, 2]),
        ([3, 4, 5], [3], [3, 4, 5]),
        ([4, 5], [3], [3, 4, 5]),
        ([3, 4, 5, 6], [5], [5, 6]),
        ([1, 2, 3], [], []),
        ([0, 1, 4, 5], [4], [0, 1, 4, 5]),
        ([0, 2, 3], [], [0]),
        ([], [], []),
    ],
)
def test_a_version_can_be_opened_from_a_checkpoint_or_the_first_entry_on_without_a_gap(
    entries: list[int], checkpoints: list[int], readable: list[int]
):
    listing = LogListing(entries=tuple(entries), checkpoints=dict.fromkeys(checkpoints, ("",)))
    assert list(readable_versions(listing)) == readable


def test_an_entry_without_a_time_has_that_of_its_file(tmp_path: Path):
    (tmp_path / LOG).mkdir()
    write(tmp_path, 0, {"commitInfo": {"timestamp": 1234}})
    write(tmp_path, 1, {"remove": {"path": "a", "size": 7}}, {"remove": {"path": "b"}})
    os.utime(tmp_path / LOG / entry_name(1), (5678, 5678))
    assert read_entry(tmp_path, 0).at_ms == 1234
    assert read_entry(tmp_path, 1).at_ms == 5_678_000
    assert read_entry(tmp_path, 1).removed_bytes == 7
