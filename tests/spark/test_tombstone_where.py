"""Tombstones by condition: Spark finds the keys, only keys are written, and the condition is not stored."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from siltstone import Ack, Dataset, InvalidRequest, Lake
from siltstone.dataset.load.loader import Loader
from siltstone.failpoints import arm
from siltstone.model.reports import TombstoneAck
from tests.support.people import create, key, person
from tests.support.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    made = create(lake)
    made.upsert([person(number) for number in range(20)])
    made.compact()
    made.upsert([person(3, city="Bern"), person(30, city="Bern")])
    return made


def ids(dataset: Dataset) -> set[str]:
    return set(dataset.to_arrow().column("id").to_pylist())


def test_rows_of_base_and_of_changes_are_found_and_hidden(dataset: Dataset) -> None:
    before = ids(dataset)
    ack = dataset.tombstone(where="city = 'Bern' OR n = 7", actor="dpo", reason="request 9")
    assert ack == TombstoneAck(sequence=3, rows=3, rows_matched=3)
    assert before - ids(dataset) == {key(3), key(7), key(30)}
    listed = dataset.tombstones()
    assert {row["id"] for row in listed} == {key(3), key(7), key(30)}
    assert {(row["actor"], row["reason"]) for row in listed} == {("dpo", "request 9")}
    dataset.compact()
    assert before - ids(dataset) == {key(3), key(7), key(30)}


def test_the_history_calls_it_a_tombstone_and_knows_the_actor_after_a_purge(dataset: Dataset) -> None:
    with (
        arm("upsert.after_commit", "raise"),
        pytest.raises(OSError, match=r"upsert\.after_commit"),
    ):  # before the audit record
        dataset.tombstone(where="n = 7", actor="officer", reason="request 8")
    dataset.tombstone(where="city = 'Bern'", actor="dpo", reason="request 9")
    newest = dataset.history()[0]
    assert (newest.operation, newest.tombstones, newest.rows_added) == ("tombstone", 2, 2)
    dataset.compact(purge=True)
    records = [(one.actor, one.reason, one.keys, one.rows) for entry in dataset.history() for one in entry.audit]
    assert records == [("dpo", "request 9", 2, 2), ("officer", "request 8", 1, None)]


def test_a_row_that_no_longer_fits_stays(dataset: Dataset) -> None:
    """The merged view decides: in base the row with n = 3 has another city."""
    dataset.tombstone(where="city = 'city 3'")
    assert key(3) in ids(dataset)
    assert key(10) not in ids(dataset)


def test_a_condition_that_holds_for_none_writes_nothing(dataset: Dataset) -> None:
    before = dataset.status()
    assert dataset.tombstone(where="n = -1") == TombstoneAck(sequence=None, rows=0, applied=False)
    assert dataset.status().sequence == before.sequence
    assert dataset.status().unreferenced_files == before.unreferenced_files


def test_the_text_of_a_condition_is_in_no_file(dataset: Dataset) -> None:
    dataset.upsert([person(40, city="Secretville")])
    dataset.compact(purge=True)
    dataset.tombstone(where="city = 'Secretville'")
    dataset.compact(purge=True)
    assert not [path for path in dataset.path.rglob("*") if path.is_file() and b"Secretville" in path.read_bytes()]


def test_a_producer_hides_once(dataset: Dataset) -> None:
    first = dataset.tombstone(where="n = 1", producer="feed", sequence=1)
    again = dataset.tombstone(where="n = 2", producer="feed", sequence=1)
    assert (first.applied, again.applied, again.sequence) == (True, False, first.sequence)
    assert key(2) in ids(dataset)
    assert (
        dataset.status().unreferenced_files == 1
    )  # the base file that the fixture's fold replaced is missing: see below


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"where": "colour = 'red'"}, ("'colour'",)),
        ({"where": "n = 'x' +"}, ()),
        ({"where": "city + 1 > array(1)"}, ("city",)),
        ({"where": "n = 1", "keys": ["a"]}, ("where",)),
        ({}, ()),
        ({"where": "n = 1", "producer": "p"}, ("producer",)),
    ],
)
def test_a_condition_that_does_not_fit_changes_nothing(
    dataset: Dataset, given: dict[str, object], facts: tuple[str, ...]
) -> None:
    before = dataset.status()
    with refused(InvalidRequest, None, *facts):
        dataset.tombstone(**given)  # type: ignore[arg-type]
    assert dataset.status().sequence == before.sequence


def test_a_purge_meanwhile_costs_another_try(dataset: Dataset, lake_path: Path, spark: "SparkSession") -> None:
    other = Lake.open(lake_path, spark=spark).dataset(str(dataset.name))
    done: list[bool] = []
    read_at = Dataset.read_at

    def purge_after(self: Dataset, *given: object, **named: object) -> object:
        frame = read_at(self, *given, **named)  # type: ignore[arg-type]
        if self is dataset and not done:
            done.append(True)
            other.compact(purge=True)
        return frame

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dataset, "read_at", purge_after)
        assert dataset.tombstone(where="n = 5").rows == 1
    assert done
    assert key(5) not in ids(dataset)


def test_a_crash_before_the_commit_hides_nothing(dataset: Dataset) -> None:
    before = ids(dataset)
    with arm("commit.before_entry", "raise"), pytest.raises(OSError, match=r"commit\.before_entry"):
        dataset.tombstone(where="n = 5")
    assert ids(dataset) == before


@pytest.mark.parametrize("compacts", [False, True])
def test_a_row_that_changes_while_the_condition_is_evaluated_is_evaluated_again(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    compacts: bool,  # noqa: FBT001
) -> None:
    dataset = create(lake, "crm.sales.racing")
    dataset.upsert([person(1, city="old"), person(2, city="old"), person(3, city="new")])
    original = Loader.tombstone_frame
    calls: list[int] = []

    def slow(self: Loader, keys: Any, **given: Any) -> Ack:  # noqa: ANN401
        calls.append(1)
        if len(calls) == 1:
            dataset.upsert([person(1, city="new"), person(9, city="other")])
            if compacts:
                dataset.compact()
        return original(self, keys, **given)

    monkeypatch.setattr(Loader, "tombstone_frame", slow)
    ack = dataset.tombstone(where="city = 'old'")
    assert (ack.rows, len(calls)) == (1, 2)
    assert sorted(dataset.to_arrow().column("id").to_pylist()) == [key(1), key(3), key(9)]


def test_rows_that_do_not_match_may_change_meanwhile(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = create(lake, "crm.sales.calm")
    dataset.upsert([person(1, city="old"), person(2, city="new")])
    original = Loader.tombstone_frame
    calls: list[int] = []

    def slow(self: Loader, keys: Any, **given: Any) -> Ack:  # noqa: ANN401
        calls.append(1)
        dataset.upsert([person(2, city="newer"), person(7)])
        return original(self, keys, **given)

    monkeypatch.setattr(Loader, "tombstone_frame", slow)
    assert dataset.tombstone(where="city = 'old'").rows == 1
    assert (len(calls), dataset.to_arrow().num_rows) == (1, 2)
