"""Tombstones: the number of hidden rows, the history, and the audit record that outlives them."""

from pathlib import Path

import pytest

from siltstone import Dataset, Lake
from siltstone.compaction.operations.commit import prune
from siltstone.compaction.operations.garbage_collection import purge_files
from siltstone.config import Settings
from siltstone.dataset.audit import append_missing, records
from siltstone.errors import Corruption
from siltstone.failpoints import arm
from siltstone.model.reports import AuditRecord, HistoryEntry
from tests.support.folds import fold_by_arrow
from tests.support.internals import store_of

FAST = Settings(durable=False, vacuum_floor_hours=0.0)
NAME = "crm.sales.people"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", settings=FAST)


@pytest.fixture
def people(lake: Lake) -> Dataset:
    dataset = lake.create(NAME, "id STRING NOT NULL, n BIGINT", key="id", subject="id")
    dataset.upsert([{"id": f"P{number}", "n": number} for number in range(5)])
    return dataset


def audit_file(lake: Lake) -> Path:
    [found] = (lake.path / "_system" / "audit").iterdir()
    return found


def records_of(dataset: Dataset) -> list[tuple[int, str | None, str | None, int, int | None]]:
    return [(one.sequence, one.actor, one.reason, one.keys, one.rows) for one in records(store_of(dataset))]


def audited(entries: list[HistoryEntry]) -> list[tuple[str, str, AuditRecord]]:
    return [(entry.table, entry.operation, record) for entry in entries for record in entry.audit]


def cut_off(dataset: Dataset, keys: list[str], *, reason: str, actor: str | None = None) -> None:
    """Write tombstones in a process that ends between the commit and the audit record."""
    with arm("upsert.after_commit", "raise"), pytest.raises(OSError, match=r"upsert\.after_commit"):
        dataset.tombstone(keys, actor=actor, reason=reason)


# ---- rows that match ---------------------------------------------------------------------------------------------


def test_the_acknowledgement_counts_matching_rows_and_not_keys(people: Dataset):
    ack = people.tombstone(["P1", "P2", "unknown"])
    assert (ack.rows, ack.rows_matched) == (3, 2)
    assert people.tombstone(["P1"]).rows_matched == 0
    assert people.tombstone(["P3"], producer="dpo", sequence=1).to_dict()["rows_matched"] == 1
    assert people.tombstone(["P3"], producer="dpo", sequence=1).rows_matched is None


def test_rows_that_match_are_counted_in_base_and_in_changes(people: Dataset):
    fold_by_arrow(people)
    people.upsert([{"id": "new", "n": 1}])
    assert people.tombstone(["P1", "new", "no"]).rows_matched == 2


def test_a_log_counts_by_subject_while_it_is_small(tmp_path: Path):
    for rows, expected in ((1_000, 3), (2, None)):
        settings = Settings(durable=False, arrow_changes_rows=rows)
        lake = Lake.open(tmp_path / f"lake{rows}", settings=settings)
        log = lake.create(
            "web.eu.clicks", "at TIMESTAMP, visitor STRING, page STRING", time="at", subject=["visitor", "page"]
        )
        at = "2026-11-15T14:03:00Z"
        log.append([{"at": at, "visitor": v, "page": p} for v, p in (("a", "x"), ("a", "y"), ("b", "x"), ("c", "z"))])
        assert log.tombstone([{"visitor": "a"}, {"visitor": "b", "page": "x"}]).rows_matched == expected
        if expected:
            assert log.tombstone([{"visitor": "a"}]).rows_matched == 0


def test_rows_can_be_hidden_although_a_base_file_is_damaged(people: Dataset):
    fold_by_arrow(people)
    [file] = [path for path in (people.path / "base").rglob("*.parquet") if "_delta_log" not in path.parts]
    file.write_bytes(b"x" * file.stat().st_size)
    assert people.tombstone(["P1"]).rows_matched is None


# ---- audit records -----------------------------------------------------------------------------------------------


def test_a_record_has_actor_reason_and_counts_but_no_key(lake: Lake, people: Dataset):
    ack = people.tombstone(["P1", "P2", "unknown"], actor="dpo", reason="request 17")
    assert records_of(people) == [(ack.sequence, "dpo", "request 17", 3, 2)]
    content = audit_file(lake).read_text()
    assert "P1" not in content and "unknown" not in content  # noqa: PT018


def test_a_tombstone_without_actor_and_reason_has_no_record(lake: Lake, people: Dataset):
    people.tombstone(["P1"])
    assert not (lake.path / "_system" / "audit").exists()


def test_the_history_shows_the_record_with_its_commit_and_alone_after_a_purge(people: Dataset):
    people.tombstone(["P1"], actor="dpo", reason="request 17")
    [(table, what, record)] = audited(people.history())
    assert (table, what, record.actor, record.rows) == ("changes", "tombstone", "dpo", 1)
    fold_by_arrow(people)
    prune(store_of(people))
    purge_files(store_of(people))
    assert all(entry.operation != "tombstone" for entry in people.history() if entry.table == "changes")
    assert audited(people.history()) == [("audit", "tombstone", record)]
    assert audited(people.history(limit=1)) in ([], [("audit", "tombstone", record)])


def test_a_squash_writes_the_record_that_a_crash_cut_off_before_a_later_row_replaces_the_tombstone(people: Dataset):
    cut_off(people, ["P1", "P2"], actor="dpo", reason="request 17")
    assert records_of(people) == []
    people.upsert([{"id": "P1", "n": 100}])
    people.squash()
    people.squash()
    assert records_of(people) == [(2, "dpo", "request 17", 2, None)]


def test_a_missing_record_counts_the_tombstones_of_all_files_of_its_batch(tmp_path: Path):
    lake = Lake.open(tmp_path / "lake", settings=Settings(durable=False, upsert_rows=2))
    people = lake.create(NAME, "id STRING NOT NULL, n BIGINT", key="id")
    cut_off(people, [f"P{number}" for number in range(5)], reason="request 18")
    store = store_of(people)
    append_missing(store, store.snapshot())
    assert records_of(people) == [(1, None, "request 18", 5, None)]


def test_folded_tombstones_are_not_recorded_again(people: Dataset):
    people.tombstone(["P1"], actor="dpo")
    fold_by_arrow(people, with_prune=False)
    store = store_of(people)
    append_missing(store, store.snapshot())
    assert len(records_of(people)) == 1


def test_a_truncated_line_is_skipped_and_the_next_record_replaces_it(lake: Lake, people: Dataset):
    people.tombstone(["P1"], actor="one")
    people.tombstone(["P2"], actor="two")
    file = audit_file(lake)
    file.write_bytes(file.read_bytes()[:-9])
    assert [one[1] for one in records_of(people)] == ["one"]
    people.tombstone(["P3"], actor="three")
    assert [one[1] for one in records_of(people)] == ["one", "three"]
    store = store_of(people)
    append_missing(store, store.snapshot())
    assert [one[1] for one in records_of(people)] == ["one", "two", "three"]


def test_a_flipped_bit_is_an_error_of_the_history_and_stops_no_squash(lake: Lake, people: Dataset):
    people.tombstone(["P1"], actor="dpo")
    people.tombstone(["P2"], actor="dpo")
    file = audit_file(lake)
    content = bytearray(file.read_bytes())
    content[content.index(b"dpo")] ^= 1
    file.write_bytes(content)
    with pytest.raises(Corruption, match="line 1"):
        people.history()
    people.squash()
    assert len(people.tombstones()) == 2


def test_a_record_that_cannot_be_written_does_not_fail_the_tombstone(lake: Lake, people: Dataset):
    (lake.path / "_system" / "audit").write_text("in the way")
    assert people.tombstone(["P1"], actor="dpo").applied
    (lake.path / "_system" / "audit").unlink()
    store = store_of(people)
    append_missing(store, store.snapshot())
    assert records_of(people) == [(2, "dpo", None, 1, None)]
