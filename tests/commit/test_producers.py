"""Idempotent producers: a sequence that was applied is never applied again, whoever asks, and however the log looks."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import pytest

from siltstone.clock import SystemClock
from siltstone.dataset.dataset import Dataset
from siltstone.errors import InvalidRequest
from siltstone.lake import Lake
from siltstone.model.columns import APP_SEQ
from siltstone.model.results import Ack
from tests.support.processes import Pool, upsert_in_process
from tests.support.tables import FAST, checkpoint_and_clean


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
        checkpoint_and_clean(people.path / "changes")
    again = people if same_handle else opened(root)
    assert again.upsert([{"id": 1}], producer="p", sequence=5) == Ack(sequence=1, rows=1, applied=False)
    assert rows(again) == [1, 2]
    assert again._store.changes.version() == 2, "nothing is committed for a repeat"
    assert len(list((again.path / "changes" / "data").iterdir())) == 2, "the repeated batch leaves no file"


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_lower_sequence_is_not_applied_and_its_acknowledgement_is_forgotten(root: Path, *, cleaned: bool):
    people = opened(root)
    people.upsert([{"id": 1}], producer="p", sequence=5)
    people.upsert([{"id": 2}], producer="p", sequence=6)
    if cleaned:
        checkpoint_and_clean(people.path / "changes")
    assert opened(root).upsert([{"id": 3}], producer="p", sequence=5) == Ack(sequence=None, rows=1, applied=False)
    assert opened(root).upsert([{"id": 3}], producer="p", sequence=0) == Ack(sequence=None, rows=1, applied=False)
    assert rows(people) == [1, 2]


def test_sequences_may_leave_gaps_and_start_at_zero(root: Path):
    people = opened(root)
    assert people.upsert([{"id": 1}], producer="p", sequence=0).applied
    assert not people.upsert([{"id": 1}], producer="p", sequence=0).applied
    assert people.upsert([{"id": 2}], producer="p", sequence=1000).sequence == 2


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
    assert people.tombstone([1], producer="p", sequence=1) == Ack(sequence=2, rows=1, applied=False)
    assert rows(people) == [1]


def test_a_repeat_from_another_process_is_not_applied(root: Path, pool: Pool):
    first = pool.one(upsert_in_process, root, "p", 7, 1)
    checkpoint_and_clean(opened(root).path / "changes")
    second = pool.one(upsert_in_process, root, "p", 7, 1)
    assert (first.applied, second.applied) == (True, False)
    assert first.sequence == second.sequence == 1
    assert opened(root).upsert([{"id": 1}], producer="p", sequence=7).sequence == 1


def test_of_processes_that_repeat_one_batch_at_once_exactly_one_applies_it(root: Path, pool: Pool):
    acks = pool.at_once([(upsert_in_process, root, "p", 7, 1)] * 4)
    assert sorted(ack.applied for ack in acks) == [False, False, False, True]
    assert {ack.sequence for ack in acks} == {1}
    assert opened(root)._store.changes.pin(APP_SEQ).transactions == {APP_SEQ: 1}


@pytest.mark.parametrize(
    ("producer", "sequence"), [("p", None), (None, 1), ("", 1), ("x" * 201, 1), ("p", -1), ("p/ack", 1)]
)
def test_half_or_odd_producers_are_refused_and_nothing_is_written(
    root: Path, producer: str | None, sequence: int | None
):
    people = opened(root)
    with pytest.raises(InvalidRequest):
        people.upsert([{"id": 1}], producer=producer, sequence=sequence)
    assert people._store.changes.version() == 0
    assert not (people.path / "changes" / "data").exists()


@dataclass(frozen=True, slots=True)
class DaysAgo(SystemClock):
    """A clock that is behind."""

    days: float = 0.0

    def now(self) -> datetime.datetime:
        return SystemClock().now() - datetime.timedelta(days=self.days)


def test_a_producer_is_forgotten_after_its_retention_and_our_own_transactions_never(root: Path):
    old = Lake.open(root, settings=FAST, clock=DaysAgo(days=8)).dataset("a.b.c")
    old.upsert([{"id": 1}], producer="old", sequence=5)
    recent = Lake.open(root, settings=FAST, clock=DaysAgo(days=6)).dataset("a.b.c")
    recent.upsert([{"id": 2}], producer="recent", sequence=5)
    checkpoint_and_clean(old.path / "changes")
    people = opened(root)
    assert people._store.changes.pin(APP_SEQ).transactions == {APP_SEQ: 2}
    assert not people.upsert([{"id": 2}], producer="recent", sequence=5).applied
    assert people.upsert([{"id": 1}], producer="old", sequence=5).applied
