"""Arguments of a wrong type or range: each is an InvalidRequest, never an error of Python or Arrow."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siltstone import Dataset, Lake
from siltstone.dataset.load.jdbc import JdbcSource
from siltstone.dataset.load.quarantine import Quarantine
from siltstone.dataset.load.source_files import find_source
from siltstone.errors import InvalidRequest
from tests.support.internals import store_of
from tests.support.tables import FAST

CALLS: dict[str, Callable[[Dataset, Any], object]] = {
    "history": lambda dataset, number: dataset.history(limit=number),
    "changes": lambda dataset, number: dataset.changes_to_arrow(limit=number),
    "head": lambda dataset, number: dataset.head(number),
    "export": lambda dataset, number: dataset.export(dataset.path.parents[4] / "out", files=number),
}


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Dataset]:
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        dataset = lake.create("crm.sales.people", "id STRING NOT NULL", key="id")
        dataset.upsert([{"id": "a"}])
        dataset.upsert([{"id": "b"}])
        yield dataset


@pytest.mark.parametrize("number", ["x", "1", 2.5, True, -1, [1], 2**63, pytest.param(10**6000, id="6,000 digits")])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_number_of_another_type_or_below_the_least_is_refused(
    people: Dataset, call: Callable[[Dataset, Any], object], number: object
):
    with pytest.raises(InvalidRequest):
        call(people, number)


@pytest.mark.parametrize("number", [-(10**6000), 2**63, 10**6000], ids=["negative", "64 bits", "6,000 digits"])
def test_a_sequence_that_no_log_can_hold_is_refused(people: Dataset, number: int):
    for call in (
        lambda: people.to_arrow(at=number),
        lambda: people.changes_to_arrow(since=number),
        lambda: people.upsert([{"id": "c"}], producer="p", sequence=number),
    ):
        with pytest.raises(InvalidRequest):
            call()
    assert people.to_arrow().num_rows == 2


@pytest.mark.parametrize("path", ["~no-such-user", "~no-such-user/folder"])
def test_the_home_of_an_unknown_user_is_refused(people: Dataset, path: str):
    for call in (
        lambda: Lake.open(path),
        lambda: Quarantine.below(path, store_of(people)),
        lambda: find_source(path),
    ):
        with pytest.raises(InvalidRequest):
            call()


def test_integers_of_numpy_are_accepted(people: Dataset):
    one: Any = np.int64(1)
    assert people.head(one).num_rows == 1
    assert len(people.history(limit=one)) == 1
    assert people.changes_to_arrow(limit=one).num_rows == 1


@pytest.mark.parametrize("hours", ["x", [1], -1, float("nan"), float("inf")])
def test_a_retention_that_is_not_a_number_of_hours_is_refused(people: Dataset, hours: Any):  # noqa: ANN401
    with pytest.raises(InvalidRequest):
        people.vacuum(retention_hours=hours)


@pytest.mark.parametrize("text", [5, b"x", "\ud800", ["x"]])
@pytest.mark.parametrize("name", ["actor", "reason"])
def test_an_actor_or_a_reason_that_is_not_text_is_refused(people: Dataset, name: str, text: Any):  # noqa: ANN401
    with pytest.raises(InvalidRequest):
        people.tombstone(["a"], **{name: text})
    assert people.count() == 2


@pytest.mark.parametrize("producer", [5, b"x", ["x"]])
def test_a_producer_that_is_not_text_is_refused(people: Dataset, producer: Any):  # noqa: ANN401
    with pytest.raises(InvalidRequest):
        people.upsert([{"id": "c"}], producer=producer, sequence=1)


def test_changes_of_tiers_that_are_not_a_mapping_are_refused(tmp_path: Path):
    changes: Any = 5
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        clicks = lake.create("web.eu.clicks", "at TIMESTAMP NOT NULL", time="at")
        with pytest.raises(InvalidRequest):
            clicks.set_tiers(changes)


def test_a_quarantine_inside_a_source_of_the_home_folder_is_refused(
    people: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "in").mkdir()
    with pytest.raises(InvalidRequest):
        Quarantine.below("~/in/bad", store_of(people), ["~/in"])


@pytest.mark.parametrize("partitions", ["x", 2.5, 0, 1_000_000])
def test_a_number_of_partitions_that_is_not_valid_is_refused(partitions: Any):  # noqa: ANN401
    source = JdbcSource(url="jdbc:postgresql://host/name", table="t", partition_column="id", partitions=partitions)
    with pytest.raises(InvalidRequest):
        source.check()
