"""Masks of hidden rows, and finding a few keys in a base file without reading it whole."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone import Lake
from siltstone.dataset.read import arrow_view
from siltstone.delta.parquet import write_file
from siltstone.model.files import DataFile
from tests.support.internals import masks_with_shared_names, outdated_masks, position_masks, store_of, united_masks
from tests.support.people import SCHEMA, create, key, people


def shown(table: pa.Table) -> set[tuple[int, int, str | None]]:
    """Return the rows that masks hide, as (size, row, name)."""
    found = set()
    for row in table.to_pylist():
        size, run = row["_place"] >> 20, row["_place"] & (2**20 - 1)
        found |= {(size, run * 64 + bit, row["_name"]) for bit in range(64) if row["_mask"] >> bit & 1}
    return found


def masks(size: int, rows: set[int], name: str) -> pa.Table:
    file = DataFile(path=f"data/{name}", size_bytes=size, rows=1000)
    return position_masks(file, np.array(sorted(rows), np.int64))


ROWS = st.sets(st.integers(0, 500))


@given(first=ROWS, second=ROWS, other=ROWS)
def test_masks_hide_exactly_the_given_rows_however_they_are_merged(
    first: set[int], second: set[int], other: set[int]
) -> None:
    united = united_masks(masks(7, first, "a"), pa.concat_tables([masks(7, second, "a"), masks(7, other, "b")]))
    assert shown(united) == {(7, row, "a") for row in first | second} | {(7, row, "b") for row in other}
    assert len({(row["_place"], row["_name"]) for row in united.to_pylist()}) == united.num_rows


def test_only_files_of_one_size_keep_their_names() -> None:
    files = [DataFile(path=f"data/{name}", size_bytes=size, rows=9) for name, size in (("a", 7), ("b", 7), ("c", 8))]
    every = pa.concat_tables([masks(7, {1}, "a"), masks(7, {1}, "b"), masks(8, {1}, "c")])
    assert shown(masks_with_shared_names(every, files)) == {(7, 1, "a"), (7, 1, "b"), (8, 1, None)}


def test_a_row_that_is_not_the_last_upsert_of_its_key_is_outdated() -> None:
    files = [DataFile(path=f"data/{number}", size_bytes=number + 5, rows=3) for number in range(3)]
    latest = pa.table({"_op": ["U", "D", "U"], "_file": [0, 1, 2], "_row": [2, 0, 1]})
    assert shown(outdated_masks(files, latest)) == {
        *((5, row, "0") for row in (0, 1)),
        *((6, row, "1") for row in (0, 1, 2)),
        *((7, row, "2") for row in (0, 2)),
    }


@pytest.mark.parametrize(
    ("wanted", "found"),
    [([key(0), key(9999)], [0, 9999]), ([key(4999), "nobody", key(5000)], [4999, 5000]), (["A", "Z"], []), ([], [])],
)
def test_a_few_keys_are_found_by_reading_the_row_groups_that_may_hold_them(
    lake_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: list[str], found: list[int]
) -> None:
    monkeypatch.setattr("siltstone.delta.parquet.ROW_GROUP_ROWS", 1000)
    with Lake.open(lake_path) as lake:
        store = store_of(create(lake))
        write_file(people(10_000), store.base.path / "f.parquet", key=["id"])
        file = DataFile(path="f.parquet", size_bytes=1, rows=10_000)
        keys = pa.table({"id": pa.array(wanted, pa.string())}, schema=pa.schema([SCHEMA.field("id")]))
        assert sorted(arrow_view.base_places(store, file, keys)) == found
