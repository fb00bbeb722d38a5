"""The part of a sorted load that runs inside Spark's tasks, on real files, without Spark."""

import itertools
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.delta.parquet import writer_options
from siltstone.spark_tasks import sort
from siltstone.spark_tasks.io import Target, packed, unpacked
from tests.support.internals import sample_bounds
from tests.unit.spark_tasks.test_fold import KEYS

BAD = "_is_bad"


def rows_of(kinds: Sequence[str], numbers: Sequence[int]) -> pa.Table:
    """Return rows whose key has a column of each kind; if there are several, the first has few distinct values."""
    columns: dict[str, Any] = {}
    for at, kind in enumerate(kinds):
        arrow, make = KEYS[kind]
        own = numbers if at == len(kinds) - 1 else [number % 3 for number in numbers]
        columns[f"k{at}"] = pa.array([make(number) for number in own], arrow)
    tags = pa.array([["x"] * (number % 3) for number in numbers], pa.list_(pa.string()))
    return pa.table(columns | {"value": list(numbers), "tags": tags})


def batches_of(table: pa.Table, size: int) -> Iterator[pa.RecordBatch]:
    return iter(table.combine_chunks().to_batches(max_chunksize=size))


def arrange_all(parts: Sequence[pa.Table], key: tuple[str, ...], folder: Path, *, wanted: int, files: int) -> list[Any]:
    """Sample, spread and gather, as the driver does it; return the result of each gathering task."""
    sample = [
        (row["rows"], unpacked(row["keys"]))
        for part in parts
        for answer in sort.sampler()(batches_of(part.select(list(key)), 7))
        for row in answer.to_pylist()
    ]
    bounds = sample_bounds(sample, key, wanted)
    job = sort.Spreading(folder=str(folder), key=key, bounds=packed(bounds), bad=BAD)
    sorted_runs = [
        row
        for part in parts
        for answer in sort.spreader(job)(batches_of(part.append_column(BAD, pa.array([False] * part.num_rows)), 7))
        for row in answer.to_pylist()
    ]
    counts = np.sum([np.frombuffer(row["counts"], "<i8") for row in sorted_runs], axis=0).tolist()
    schema = parts[0].schema
    target = Target(
        schema=schema, folder=str(folder), options=writer_options(schema, key), row_group_rows=10, durable=False
    )
    gathering = sort.Gathering(
        target=target, key=key, runs=tuple(str(folder / row["name"]) for row in sorted_runs), ranges=len(counts)
    )
    edges = [len(counts) * number // files for number in range(files + 1)]
    shares = [
        sort.Share(low=a, high=b, rows=sum(counts[a:b])) for a, b in itertools.pairwise(edges) if sum(counts[a:b])
    ]
    work = sort.gatherer(shares, gathering)
    return [work(number).decode() for number in range(len(shares))]


@pytest.mark.parametrize("kinds", [*[[kind] for kind in KEYS], ["string", "long"], ["date", "decimal"]])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rows_come_out_once_and_in_the_order_of_their_keys(kinds: list[str], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, 59), unique=True, min_size=1, max_size=60))
    parts = data.draw(st.integers(1, 4))
    held = data.draw(st.sampled_from([5, 1_000_000]))
    key = tuple(f"k{at}" for at in range(len(kinds)))
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sort, "SPREAD_ROWS", held)
        shares = [numbers[at::parts] for at in range(parts) if numbers[at::parts]]
        tables = [rows_of(kinds, share) for share in shares]
        wanted = data.draw(st.integers(1, 9))
        found = arrange_all(tables, key, Path(place), wanted=wanted, files=data.draw(st.integers(1, wanted)))
        assert all(found)
        read = [pq.read_table(Path(place) / name) for names in found for name in names.split("\n")]
        expected = pa.concat_tables(tables).sort_by([(name, "ascending") for name in key])
        assert pa.concat_tables(read).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("kinds", [["string"], ["decimal"], ["string", "long"]])
def test_a_repeated_key_is_noticed_wherever_its_rows_are(kinds: list[str], tmp_path: Path) -> None:
    first, second = list(range(50)), [7]
    random.Random(1).shuffle(first)
    key = tuple(f"k{at}" for at in range(len(kinds)))
    parts = [rows_of(kinds, first), rows_of(kinds, second)]
    found = arrange_all(parts, key, tmp_path, wanted=6, files=3)
    assert sum(not names for names in found) == 1


def test_a_bad_row_is_noticed_and_all_batches_are_taken(tmp_path: Path) -> None:
    rows = rows_of(["long"], range(30)).append_column(BAD, pa.array([number == 3 for number in range(30)]))
    bounds = rows.select(["k0"]).slice(10, 1)
    job = sort.Spreading(folder=str(tmp_path), key=("k0",), bounds=packed(bounds), bad=BAD)
    given_batches = batches_of(rows, 10)
    (answer,) = sort.spreader(job)(given_batches)
    assert answer.column("clean").to_pylist() == [False]
    assert next(given_batches, None) is None


def test_a_sample_is_small_and_counts_all_rows() -> None:
    count = 100_000
    (answer,) = sort.sampler()(batches_of(pa.table({"k0": np.arange(count)}), 10_000))
    (row,) = answer.to_pylist()
    keys = unpacked(row["keys"]).column("k0").to_numpy()
    assert row["rows"] == count
    assert sort.SAMPLE_KEYS // 4 < len(keys) <= sort.SAMPLE_KEYS
    assert abs(keys.mean() - count / 2) < count / 20


def test_ranges_are_even_even_if_tasks_are_not() -> None:
    low, high = pa.table({"k": np.arange(1000)}), pa.table({"k": np.arange(1000, 1010)})
    bounds = sample_bounds([(1000, low), (9000, high)], ("k",), 10).column("k").to_pylist()
    assert len(bounds) == 9
    assert sum(bound >= 1000 for bound in bounds) == 8


def test_bounds_do_without_keys_that_are_missing_or_repeated() -> None:
    assert sample_bounds([(4, pa.table({"k": pa.array([None, 5, 5, 5], pa.int64())}))], ("k",), 4).num_rows == 1
    assert sample_bounds([(2, pa.table({"k": pa.array([None, None], pa.int64())}))], ("k",), 4).num_rows == 0


WANTED = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("note", pa.string()),
    ]
)


def read(path: Path, *, parts: int = 1, bad: str | None = BAD, schema: pa.Schema = WANTED) -> pa.Table:
    reading = sort.Reading(schema=schema, required=("id",), key=("id",), max_key_bytes=10, bad=bad)
    shares = [[sort.FilePart(path=str(path), number=number, of=parts)] for number in range(parts)]
    numbers = iter([pa.RecordBatch.from_pydict({"id": [number]}) for number in range(parts)])
    return pa.Table.from_batches(list(sort.over_files(lambda rows: rows, shares, reading)(numbers)))


def test_narrower_columns_are_widened_and_missing_ones_are_null(tmp_path: Path) -> None:
    given_rows = pa.table(
        {
            "at": pa.array([1000, 2000], pa.timestamp("ms", tz="UTC")),
            "id": pa.array(["a", "b"], pa.large_string()).dictionary_encode(),
            "n": pa.array([1, None], pa.int16()),
        }
    )
    pq.write_table(given_rows, tmp_path / "in.parquet")
    rows = read(tmp_path / "in.parquet")
    assert rows.drop_columns([BAD]).schema == WANTED
    assert rows.column("id").to_pylist() == ["a", "b"]
    assert rows.column("n").to_pylist() == [1, None]
    assert rows.column("at").cast(pa.int64()).to_pylist() == [1_000_000, 2_000_000]
    assert rows.column("note").null_count == 2
    assert rows.column(BAD).to_pylist() == [False, False]


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 20])
def test_parts_of_a_file_make_up_the_whole(tmp_path: Path, parts: int) -> None:
    pq.write_table(pa.table({"id": [str(n) for n in range(100)]}), tmp_path / "in.parquet", row_group_size=13)
    assert read(tmp_path / "in.parquet", parts=parts).column("id").to_pylist() == [str(n) for n in range(100)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None], pa.string()),
        pa.array(["a", "b" * 11], pa.string()),
        pa.array(["a", "é" * 6], pa.string()),
        pa.array([b"a", b"\xff"], pa.binary()).view(pa.string()),
    ],
    ids=["no key", "long key", "long in bytes", "not UTF-8"],
)
def test_bad_rows_are_marked_with_those_beside_them(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"id": column, "n": [1, 2]}), tmp_path / "in.parquet")
    assert set(read(tmp_path / "in.parquet").column(BAD).to_pylist()) == {True}
    keys_alone = pa.schema([WANTED.field("id")])
    assert read(tmp_path / "in.parquet", bad=None, schema=keys_alone).num_rows == 2


def test_a_value_that_does_not_fit_is_bad_and_no_crash(tmp_path: Path) -> None:
    far = pa.table({"id": ["a"], "at": pa.array([2**62], pa.timestamp("ms", tz="UTC"))})
    pq.write_table(far, tmp_path / "in.parquet")
    assert read(tmp_path / "in.parquet").column(BAD).to_pylist() == [True]


def test_a_time_past_the_year_9999_is_bad(tmp_path: Path) -> None:
    far = pa.table({"id": ["a"], "at": pa.array([253402300800000000], pa.timestamp("us", tz="UTC"))})
    pq.write_table(far, tmp_path / "in.parquet")
    assert read(tmp_path / "in.parquet").column(BAD).to_pylist() == [True]
