"""Idempotent producers: an applied sequence is never applied again, by any process and in any state of the log."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.clock import SystemClock
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.write.change_writer import Batch
from siltstone.dataset.write.idempotency_marks import forget_oldest
from siltstone.dataset.write.row_conversion import change_rows
from siltstone.delta.table import ParentVersion
from siltstone.errors import Conflict, InvalidRequest
from siltstone.lake import Lake
from siltstone.model.columns import APP_SEQ, Op
from siltstone.model.commit import Commit, Committed
from siltstone.model.reports import Ack
from tests.support.internals import commit_batches, current_parts, parts_of, staged_batch, store_of
from tests.support.processes import Pool, upsert_in_process
from tests.support.tables import FAST, checkpoint_and_forget

MOST_WRITES = 1000  # a checkpoint is due after at most 30 commits, but may be late on a busy machine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
    return tmp_path / "lake"


def opened(root: Path) -> Dataset:
    return Lake.open(root, settings=FAST).dataset("a.b.c")


def rows(dataset: Dataset) -> list[int]:
    return sorted(dataset.to_arrow().column("id").to_pylist())


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("same_handle", [True, False])
def test_a_repeat_returns_the_first_acknowledgement(root: Path, *, same_handle: bool, cleaned: bool):
    people = opened(root)
    assert people.upsert([{"id": 1}], producer="p", sequence=5) == Ack(sequence=1, rows=1)
    people.upsert([{"id": 2}])
    if cleaned:
        checkpoint_and_forget(people.path / "changes")
    again = people if same_handle else opened(root)
    assert again.upsert([{"id": 1}], producer="p", sequence=5) == Ack(sequence=1, rows=1, applied=False)
    assert rows(again) == [1, 2]
    assert store_of(again).changes.version() == 2, "nothing is committed for a repeat"
    assert len(list((again.path / "changes" / "data").iterdir())) == 2, "the repeated batch leaves no file"


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("number", [5, 3, 0, 8])
def test_a_sequence_that_is_neither_the_last_nor_the_next_is_refused(root: Path, number: int, *, cleaned: bool):
    people = opened(root)
    people.upsert([{"id": 1}], producer="p", sequence=5)
    people.upsert([{"id": 2}], producer="p", sequence=6)
    if cleaned:
        checkpoint_and_forget(people.path / "changes")
    for found in (people, opened(root)):
        with pytest.raises(InvalidRequest, match=rf"\b{number}\b.*\b7\b"):
            found.upsert([{"id": 3}], producer="p", sequence=number)
        with pytest.raises(InvalidRequest, match=rf"\b{number}\b.*\b7\b"):
            found.tombstone([1], producer="p", sequence=number)
    assert rows(people) == [1, 2]
    assert store_of(people).changes.version() == 2
    assert len(list((people.path / "changes" / "data").iterdir())) == 2, "a refused batch leaves no file"
    assert people.upsert([{"id": 3}], producer="p", sequence=7).applied


def test_a_producer_may_start_at_any_sequence_and_continues_by_one(root: Path):
    people = opened(root)
    assert people.upsert([{"id": 1}], producer="p", sequence=0).applied
    assert not people.upsert([{"id": 1}], producer="p", sequence=0).applied
    assert people.upsert([{"id": 2}], producer="p", sequence=1).sequence == 2
    assert people.upsert([{"id": 3}], producer="q", sequence=2**63 - 1).sequence == 3
    with pytest.raises(InvalidRequest, match=r"\bq\b"):
        people.upsert([{"id": 4}], producer="q", sequence=4)


def test_a_batch_out_of_order_does_not_block_the_others_of_its_group(root: Path):
    people = opened(root)
    people.upsert([{"id": 1}], producer="p", sequence=5)
    staged = [batch(people, number, sequence) for number, sequence in ((2, 8), (3, 6), (4, 7))]
    gap, first, second = commit_batches(parts_of(people).writer, staged)
    assert isinstance(gap, InvalidRequest)
    assert [first, second] == [Ack(sequence=2, rows=1), Ack(sequence=3, rows=1)]
    assert rows(people) == [1, 3, 4]


def batch(dataset: Dataset, number: int, sequence: int) -> Batch:
    """Stage one row of producer p."""
    parts = current_parts(dataset)
    batch_id = parts.store.clock.new_id()
    table = change_rows(
        pa.table({"id": [number]}),
        op=Op.UPSERT,
        schema=parts.store.change_schema,
        batch_id=batch_id,
        written_at=parts.store.clock.now(),
    )
    [file] = staged_batch(parts.writer, [table], batch_id).files
    return Batch(files=(file,), rows=1, producer="p", producer_sequence=sequence)


def test_a_write_without_rows_uses_a_sequence_of_its_producer(tmp_path: Path):
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        log = lake.create("a.b.events", "at TIMESTAMP NOT NULL, n BIGINT", time="at")
        good = {"at": "2026-11-15T10:00:00Z", "n": 1}
        assert log.append([good], producer="p", sequence=1).sequence == 1
        assert log.append([{"at": None}], producer="p", sequence=2, on_bad_row="skip").rows == 0
        assert not log.append([{"at": None}], producer="p", sequence=2, on_bad_row="skip").applied
        assert log.append([good], producer="p", sequence=3).sequence == 2
        assert log.to_arrow().num_rows == 2


def test_producers_do_not_see_each_other(root: Path):
    people = opened(root)
    assert people.upsert([{"id": 1}], producer="p", sequence=9).applied
    assert people.upsert([{"id": 2}], producer="q", sequence=1).applied
    assert people.upsert([{"id": 3}]).applied


def test_a_tombstone_is_idempotent_too(root: Path):
    people = opened(root)
    people.upsert([{"id": 1}])
    assert people.tombstone([1], producer="p", sequence=1).sequence == 2
    people.upsert([{"id": 1}])
    again = people.tombstone([1], producer="p", sequence=1)
    assert (again.sequence, again.applied) == (2, False)
    assert rows(people) == [1]


def test_a_repeat_from_another_process_is_not_applied(root: Path, pool: Pool):
    first = pool.one(upsert_in_process, root, "p", 7, 1)
    checkpoint_and_forget(opened(root).path / "changes")
    second = pool.one(upsert_in_process, root, "p", 7, 1)
    assert (first.applied, second.applied) == (True, False)
    assert first.sequence == second.sequence == 1
    assert opened(root).upsert([{"id": 1}], producer="p", sequence=7).sequence == 1


def test_of_processes_that_repeat_one_batch_at_once_exactly_one_applies_it(root: Path, pool: Pool):
    acks = pool.at_once([(upsert_in_process, root, "p", 7, 1)] * 4)
    assert sorted(ack.applied for ack in acks) == [False, False, False, True]
    assert {ack.sequence for ack in acks} == {1}
    assert store_of(opened(root)).changes.pin(APP_SEQ).transactions == {APP_SEQ: 1}


@pytest.mark.parametrize(
    ("producer", "sequence"), [("p", None), (None, 1), ("", 1), ("x" * 201, 1), ("p", -1), ("p/ack", 1)]
)
def test_incomplete_or_invalid_producers_are_refused_and_nothing_is_written(
    root: Path, producer: str | None, sequence: int | None
):
    people = opened(root)
    with pytest.raises(InvalidRequest):
        people.upsert([{"id": 1}], producer=producer, sequence=sequence)
    assert store_of(people).changes.version() == 0
    assert not (people.path / "changes" / "data").exists()


@dataclass(frozen=True, slots=True)
class DaysAgo(SystemClock):
    """A clock that is some days behind."""

    days: float = 0.0

    def now(self) -> datetime.datetime:
        return SystemClock().now() - datetime.timedelta(days=self.days)


@pytest.mark.parametrize("days", [9, -9, 20_000], ids=["behind", "ahead", "before 1972"])
def test_no_clock_makes_a_producer_be_forgotten(root: Path, days: float):
    """A checkpoint by a process whose clock is nine days ahead equals a checkpoint of marks nine days old."""
    old = Lake.open(root, settings=FAST, clock=DaysAgo(days=days)).dataset("a.b.c")
    old.upsert([{"id": 1}], producer="old", sequence=5)
    opened(root).upsert([{"id": 2}], producer="recent", sequence=5)
    checkpoint_and_forget(old.path / "changes")
    people = opened(root)
    assert not people.upsert([{"id": 1}], producer="old", sequence=5).applied
    assert not people.upsert([{"id": 2}], producer="recent", sequence=5).applied
    assert rows(people) == [1, 2]


def test_beyond_the_limit_the_producers_of_the_oldest_sequences_are_forgotten(root: Path):
    people = opened(root)
    for number in range(10):
        people.upsert([{"id": number}], producer=f"p{number}", sequence=5)
    people.upsert([{"id": 0}], producer="p0", sequence=6)
    changes = store_of(people).changes
    other = opened(root)
    other.upsert([{"id": 9}], producer="p9", sequence=6)
    assert forget_oldest(changes, most=10) == 0
    assert forget_oldest(changes, most=9) == 2
    for cleaned in (False, True):
        if cleaned:
            checkpoint_and_forget(changes.path)
        for found in (people, other, opened(root)):
            marks = {app for app in store_of(found).changes.marks("producer/") if not app.endswith("/ack")}
            assert marks == {f"producer/p{number}" for number in (0, 3, 4, 5, 6, 7, 8, 9)}
            assert store_of(found).changes.pin(APP_SEQ, "producer/p1", "producer/p3").transactions == {
                APP_SEQ: 12,
                "producer/p3": 5,
            }
    assert not people.upsert([{"id": 3}], producer="p3", sequence=5).applied
    assert people.upsert([{"id": 1}], producer="p1", sequence=1).applied, "it is a new producer"
    assert "p2" not in str(changes.marks("producer/"))


def test_a_producer_that_writes_meanwhile_is_not_forgotten(root: Path, monkeypatch: pytest.MonkeyPatch):
    people, other = opened(root), opened(root)
    for number in range(4):
        people.upsert([{"id": number}], producer=f"p{number}", sequence=5)
    changes = store_of(people).changes
    real = changes.commit

    def overtaken(build: Callable[[ParentVersion], Commit]) -> Committed:
        other.upsert([{"id": 0}], producer="p0", sequence=6)
        return real(build)

    monkeypatch.setattr(changes, "commit", overtaken)
    with pytest.raises(Conflict):
        forget_oldest(changes, most=2)
    assert not opened(root).upsert([{"id": 0}], producer="p0", sequence=6).applied


def test_a_new_producer_does_not_keep_the_oldest_from_being_forgotten(root: Path, monkeypatch: pytest.MonkeyPatch):
    people, other = opened(root), opened(root)
    for number in range(4):
        people.upsert([{"id": number}], producer=f"p{number}", sequence=5)
    changes = store_of(people).changes
    real = changes.version

    def beside_a_writer() -> int:
        other.upsert([{"id": 4}], producer="p4", sequence=5)
        return real()

    with monkeypatch.context() as patch:
        patch.setattr(changes, "version", beside_a_writer)
        assert forget_oldest(changes, most=2) == 3
    assert {app for app in changes.marks("producer/") if not app.endswith("/ack")} == {"producer/p3", "producer/p4"}


def test_the_background_forgets_after_a_checkpoint(tmp_path: Path):
    settings = replace(FAST, checkpoint_interval_commits=3, idempotence_marks=4)
    with Lake.open(tmp_path / "lake", settings=settings) as lake:
        people = lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
        changes = store_of(people).changes
        written = 0
        while not written or "producer/p0" in changes.marks("producer/"):
            assert written < MOST_WRITES
            people.upsert([{"id": written}], producer=f"p{written}", sequence=1)
            written += 1
        assert changes.marks("producer/")[f"producer/p{written - 1}"] == 1
        assert rows(people) == list(range(written))
