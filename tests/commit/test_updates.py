"""Partial updates: columns that are left out keep their values beside any other writer."""

import datetime
import decimal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from siltstone import Dataset, InvalidRequest, Lake, NotFound
from siltstone.dataset.read.point_lookup import check_key_count
from siltstone.dataset.store import Store
from siltstone.dataset.write import partial_update
from siltstone.dataset.write.change_writer import Batch, ChangeWriter
from siltstone.errors import Conflict
from siltstone.model.reports import AlterReport
from tests.support.folds import fold_by_arrow
from tests.support.processes import Pool
from tests.support.refusals import refused
from tests.support.tables import FAST

NAME = "a.b.c"
COLUMNS = 8
ROUNDS = 5


@pytest.fixture
def people(tmp_path: Path) -> Dataset:
    lake = Lake.open(tmp_path / "lake", settings=FAST)
    made = lake.create(NAME, "id BIGINT NOT NULL, name STRING, city STRING, n BIGINT NOT NULL", key="id")
    made.upsert([{"id": n, "name": f"name {n}", "city": "Bern", "n": n} for n in range(4)])
    return made


def row(dataset: Dataset, key: object) -> dict[str, Any]:
    [found] = dataset.get([key]).to_pylist()
    return dict(found)


def test_columns_that_are_left_out_keep_their_values_and_null_is_a_value(people: Dataset):
    ack = people.update([{"id": 1, "city": "Zug"}, {"id": 2, "name": None, "n": 20}])
    assert (ack.sequence, ack.rows, ack.applied) == (2, 2, True)
    assert row(people, 1) == {"id": 1, "name": "name 1", "city": "Zug", "n": 1}
    assert row(people, 2) == {"id": 2, "name": None, "city": "Bern", "n": 20}
    assert row(people, 3) == {"id": 3, "name": "name 3", "city": "Bern", "n": 3}
    fold_by_arrow(people)
    people.update({"id": 1, "n": 7})
    assert row(people, 1) == {"id": 1, "name": "name 1", "city": "Zug", "n": 7}


@pytest.mark.parametrize("kind", [pa.table, pd.DataFrame])
def test_frames_change_the_columns_that_they_have(people: Dataset, kind: Any):  # noqa: ANN401
    people.update(kind({"id": [1, 2], "city": ["Zug", "Chur"]}))
    assert row(people, 2) == {"id": 2, "name": "name 2", "city": "Chur", "n": 2}


def test_later_rows_of_one_key_change_the_earlier_ones(people: Dataset):
    ack = people.update([{"id": 1, "city": "Zug"}, {"id": 1, "n": 9}, {"id": 1, "city": "Chur"}])
    assert ack.rows == 1
    assert row(people, 1) == {"id": 1, "name": "name 1", "city": "Chur", "n": 9}


def test_a_key_without_a_row_is_refused_or_inserted(people: Dataset):
    people.tombstone([3])
    with refused(NotFound, None, "2 of 3 keys", "id = 3"):
        people.update([{"id": 1, "city": "x"}, {"id": 3, "n": 3}, {"id": 9, "n": 9}])
    assert row(people, 1)["city"] == "Bern"
    people.update([{"id": 9, "n": 9}, {"id": 1, "city": "Zug"}], missing="insert")
    assert row(people, 9) == {"id": 9, "name": None, "city": None, "n": 9}
    assert row(people, 1)["city"] == "Zug"
    with pytest.raises(InvalidRequest, match="'n'"):
        people.update([{"id": 10, "city": "x"}], missing="insert")


@pytest.mark.parametrize(
    "rows", [[], [{"id": 1}], [{"city": "x"}], [{"id": 1, "nope": 2}], [{"id": None, "n": 1}], [{"id": 1, "n": "x"}], 7]
)
def test_an_update_that_does_not_fit_is_refused_and_writes_nothing(people: Dataset, rows: Any):  # noqa: ANN401
    with pytest.raises(InvalidRequest):
        people.update(rows)
    assert people.status().sequence == 1


def test_an_unknown_option_for_missing_rows_is_refused(people: Dataset):
    with pytest.raises(InvalidRequest, match="error, insert"):
        people.update([{"id": 1, "n": 1}], missing="maybe")


def test_every_type_of_column_keeps_its_value(tmp_path: Path):
    lake = Lake.open(tmp_path / "lake", settings=FAST)
    made = lake.create(
        NAME,
        "a STRING, b DATE, at TIMESTAMP, d DECIMAL(10,2), t BINARY, l ARRAY<BIGINT>, m MAP<STRING,BIGINT>, "
        "s STRUCT<x: BIGINT, y: STRING>, n BIGINT",
        key=["a", "b"],
    )
    noon = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
    whole = {
        "a": "k",
        "b": datetime.date(2026, 1, 2),
        "at": noon,
        "d": decimal.Decimal("1.50"),
        "t": b"\x00\xff",
        "l": [1, None],
        "m": [("k", 1)],
        "s": {"x": 1, "y": None},
        "n": 1,
    }
    made.upsert(pa.Table.from_pylist([whole, whole | {"a": "other"}], schema=made.schema))
    made.update([{"a": "k", "b": datetime.date(2026, 1, 2), "n": 2}])
    assert made.to_arrow(where="a = 'k'").to_pylist() == [whole | {"n": 2}]


def test_an_update_is_idempotent_with_a_producer(people: Dataset):
    first = people.update([{"id": 1, "n": 5}], producer="p", sequence=1)
    people.upsert([{"id": 1, "n": 6}])
    again = people.update([{"id": 1, "n": 5}], producer="p", sequence=1)
    assert (again.sequence, again.applied) == (first.sequence, False)
    assert row(people, 1)["n"] == 6


def test_a_row_that_is_changed_between_the_read_and_the_commit_is_read_again(
    people: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = Lake.open(tmp_path / "lake", settings=FAST).dataset(NAME)
    submit = ChangeWriter.submit
    tries: list[int] = []

    def overtaken(self: ChangeWriter, batch: Batch) -> Any:  # noqa: ANN401
        if batch.planned_at is not None:
            tries.append(batch.planned_at)
            if len(tries) == 1:
                other.upsert([{"id": 1, "name": "new", "city": "Chur", "n": 100}, {"id": 2, "n": 0}])
        return submit(self, batch)

    monkeypatch.setattr(ChangeWriter, "submit", overtaken)
    people.update([{"id": 1, "city": "Zug"}])
    assert tries == [1, 2]
    assert row(people, 1) == {"id": 1, "name": "new", "city": "Zug", "n": 100}


def test_an_update_keeps_the_value_of_a_column_that_is_added_before_its_snapshot(
    people: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = Lake.open(tmp_path / "lake", settings=FAST).dataset(NAME)
    alterations: list[AlterReport] = []

    def overtaken(store: Store, keys: int) -> None:
        if not alterations:  # the update has read its columns, and opens its snapshot next
            alterations.append(other.alter(add="added INT"))
            other.update([{"id": 1, "added": 7}])
        check_key_count(store, keys)

    monkeypatch.setattr(partial_update, "check_key_count", overtaken)
    people.update([{"id": 1, "city": "Zug"}])
    assert (row(people, 1)["added"], row(people, 1)["city"]) == (7, "Zug")


def test_an_update_that_is_overtaken_until_its_time_is_up_is_a_conflict(
    tmp_path: Path, people: Dataset, monkeypatch: pytest.MonkeyPatch
):
    hurried = Lake.open(tmp_path / "lake", settings=replace(FAST, commit_timeout_seconds=0.0)).dataset(NAME)
    submit = ChangeWriter.submit

    def overtaken(self: ChangeWriter, batch: Batch) -> Any:  # noqa: ANN401
        if batch.planned_at is not None:
            people.upsert([{"id": 1, "n": 100}])
        return submit(self, batch)

    monkeypatch.setattr(ChangeWriter, "submit", overtaken)
    with pytest.raises(Conflict):
        hurried.update([{"id": 1, "city": "Zug"}])
    assert row(people, 1)["city"] is None
    assert len(list((people.path / "changes" / "data").iterdir())) == people.status().backlog_files


def test_updates_of_one_commit_do_not_lose_each_other(people: Dataset):
    """Threads of one process share a commit: earlier batches of the commit count as changes, too."""
    fields = ["name", "city", "n"]
    start = threading.Barrier(len(fields))

    def change(field: str) -> None:
        start.wait()
        for number in range(ROUNDS):
            people.update([{"id": 1, field: 10 + number if field == "n" else str(10 + number)}])

    threads = [threading.Thread(target=change, args=(field,)) for field in fields]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = ROUNDS + 9
    assert row(people, 1) == {"id": 1, "name": str(last), "city": str(last), "n": last}
    seen = people.changes_to_arrow(since=1).to_pylist()
    assert len(seen) == len(fields) * ROUNDS
    for field in fields:  # no change reverted the column of another update
        values = [int(one[field]) for one in seen if str(one[field]).isdigit() and int(one[field]) >= 10]
        assert values == sorted(values)


def update_in_process(root: Path, column: str, rounds: int) -> int:
    dataset = Lake.open(root, settings=replace(FAST, commit_timeout_seconds=60.0)).dataset(NAME)
    for number in range(1, rounds + 1):
        dataset.update([{"id": 1, column: number}])
    return rounds


def test_processes_that_update_different_columns_of_one_row_lose_nothing(tmp_path: Path, pool: Pool):
    root = tmp_path / "lake"
    columns = [f"c{number}" for number in range(COLUMNS)]
    made = Lake.open(root, settings=FAST).create(
        NAME, "id BIGINT NOT NULL, " + ", ".join(f"{name} BIGINT" for name in columns), key="id"
    )
    made.upsert([{"id": 1, **dict.fromkeys(columns, 0)}])
    pool.at_once([(update_in_process, root, name, ROUNDS) for name in columns])
    assert row(made, 1) == {"id": 1, **dict.fromkeys(columns, ROUNDS)}
    assert made.status().sequence == 1 + COLUMNS * ROUNDS
