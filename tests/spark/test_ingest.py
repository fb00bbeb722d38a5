"""Bulk loads: straight to base while the dataset is empty, as one change batch otherwise, and never partially."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, Gone, InvalidRequest, Lake, NotFound
from siltstone.failpoints import arm
from tests.support.people import SCHEMA, by_id, create, key, people, person, write_people
from tests.support.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    return create(lake)


def nothing_was_written(dataset: Dataset) -> bool:
    status = dataset.status()
    return (status.rows_in_base, status.backlog_batches, status.sequence, status.unreferenced_files) == (0, 0, 0, 0)


def test_first_load_goes_straight_to_base_sorted_by_key(dataset: Dataset, tmp_path: Path) -> None:
    shuffled = people(5000).take(pa.array([(i * 2477) % 5000 for i in range(5000)]))
    pq.write_table(shuffled, tmp_path / "in.parquet")
    report = dataset.ingest(tmp_path / "in.parquet")
    assert (report.rows, report.first_load, report.sequence) == (5000, True, 0)
    files = sorted((dataset.path / "base" / "data").rglob("*.parquet"))
    assert files
    for file in files:
        keys = pq.read_table(file, columns=["id"]).column("id").to_pylist()
        assert keys == sorted(keys)
    assert by_id(dataset.to_arrow()).equals(by_id(people(5000)))
    assert not [f for f in dataset.path.rglob("*") if f.name.endswith(".crc") or f.name == "_SUCCESS"]


def test_written_files_have_our_parquet_options(dataset: Dataset, tmp_path: Path) -> None:
    dataset.ingest(write_people(tmp_path / "in.parquet", 70_000))
    file = pq.ParquetFile(next((dataset.path / "base" / "data").rglob("*.parquet")))
    group = file.metadata.row_group(0)
    assert group.num_rows <= 32_768
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert columns["id"].compression == "ZSTD"
    assert file.schema_arrow.field("at").type == pa.timestamp("us", tz="UTC")
    assert columns["at"].physical_type == "INT64"


def test_load_into_a_dataset_with_rows_becomes_one_change_batch(dataset: Dataset, tmp_path: Path) -> None:
    dataset.ingest(write_people(tmp_path / "a.parquet", 100))
    report = dataset.ingest(write_people(tmp_path / "b.parquet", 100, start=50))
    assert (report.rows, report.first_load, report.sequence) == (100, False, 1)
    assert dataset.status().backlog_batches == 1
    assert by_id(dataset.to_arrow()).equals(by_id(people(150)))


def test_loser_of_two_first_loads_becomes_a_change_batch(dataset: Dataset, lake: Lake, tmp_path: Path) -> None:
    mine = write_people(tmp_path / "mine.parquet", 100)
    theirs = write_people(tmp_path / "theirs.parquet", 60, start=80)
    other = lake.dataset(str(dataset.name))

    def load_first(_: str) -> None:
        assert other.ingest(theirs).first_load

    with arm("ingest.after_write", load_first):
        report = dataset.ingest(mine)
    assert not report.first_load
    assert report.sequence == 1
    assert by_id(dataset.to_arrow()).equals(by_id(people(140)))
    assert dataset.status().unreferenced_files == 0


def test_upsert_during_a_first_load_stays_on_top(dataset: Dataset, lake: Lake, tmp_path: Path) -> None:
    source = write_people(tmp_path / "in.parquet", 10)
    other = lake.dataset(str(dataset.name))

    def write(_: str) -> None:
        other.upsert([person(3, city="newer")])

    with arm("ingest.after_write", write):
        assert dataset.ingest(source).first_load
    rows = {row["id"]: row["city"] for row in dataset.to_arrow().to_pylist()}
    assert len(rows) == 10
    assert rows[key(3)] == "newer"


def test_csv_with_header_quotes_and_missing_columns_is_loaded(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('city,id,n\n"a ""quoted"", city",P1,1\n,P2,\n')
    assert dataset.ingest(tmp_path / "in.csv").rows == 2
    rows = dataset.to_arrow().sort_by("id").to_pylist()
    assert rows[0] == {"id": "P1", "n": 1, "city": 'a "quoted", city', "at": None}
    assert rows[1]["n"] is None


def test_globs_folders_and_lists_of_files_are_loaded(dataset: Dataset, tmp_path: Path) -> None:
    write_people(tmp_path / "in" / "a.parquet", 10)
    write_people(tmp_path / "in" / "deep" / "b.parquet", 10, start=10)
    write_people(tmp_path / "c1.parquet", 10, start=20)
    (tmp_path / "in" / "_ignored.parquet").write_bytes(b"not parquet")
    report = dataset.ingest([tmp_path / "in", str(tmp_path / "c*.parquet")])
    assert report.rows == 30


def test_duplicate_keys_are_refused_with_a_count_and_examples(dataset: Dataset, tmp_path: Path) -> None:
    table = pa.concat_tables([people(100), people(3), people(1)])
    pq.write_table(table, tmp_path / "in.parquet")
    with refused(InvalidRequest, None, "7 rows", "(id)", "P000000", "3 times", "order_by"):
        dataset.ingest(tmp_path / "in.parquet")
    assert nothing_was_written(dataset)


def test_order_by_decides_which_duplicate_wins(dataset: Dataset, tmp_path: Path) -> None:
    older = people(5)
    newer = people(5).set_column(1, SCHEMA.field("n"), pa.array([100 + i for i in range(5)]))
    pq.write_table(pa.concat_tables([newer, older]), tmp_path / "in.parquet")
    assert dataset.ingest(tmp_path / "in.parquet", order_by="n").rows == 5
    assert sorted(dataset.to_arrow().column("n").to_pylist()) == [100, 101, 102, 103, 104]


@pytest.mark.parametrize(
    ("columns", "first", "second"),
    [
        ("x STRING, y STRING", {"x": None, "y": "a"}, {"x": "a", "y": None}),
        ("x STRUCT<p: STRING, q: STRING>", {"x": {"p": None, "q": "a"}}, {"x": {"p": "a", "q": None}}),
        ("x ARRAY<STRING>", {"x": [None, "a"]}, {"x": ["a", None]}),
    ],
    ids=["columns", "struct", "array"],
)
def test_rows_that_differ_in_the_position_of_a_null_are_not_equal(
    lake: Lake, tmp_path: Path, columns: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    dataset = lake.create("a.b.nulls", f"id STRING, n BIGINT, {columns}", key="id")
    rows = [{"id": "k", "n": 1, **first}, {"id": "k", "n": 1, **second}]
    (tmp_path / "in.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InvalidRequest, match=r"\b2 rows"):
        dataset.ingest(tmp_path / "in.ndjson", order_by="n")
    assert nothing_was_written(dataset)
    (tmp_path / "twice.ndjson").write_text((json.dumps(rows[0]) + "\n") * 2)
    assert dataset.ingest(tmp_path / "twice.ndjson", order_by="n").rows == 1


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        (pa.table({"id": ["a", None], "n": [1, 2]}), ("1 row",)),
        (pa.table({"id": ["a"], "colour": ["red"]}), ("'colour'",)),
        (pa.table({"n": [1]}), ("'id'",)),
        (pa.table({"id": ["a"], "n": ["one"]}), ("'n'",)),
        (pa.table({"id": ["a"], "n": [1.5]}), ("'n'",)),
        (pa.table({"id": ["a"], "at": pa.array([1], pa.timestamp("ns", tz="UTC"))}), ("'at'", "timestamp[ns")),
        (pa.table({"id": ["x" * 2000]}), ("1024",)),
        (SCHEMA.empty_table(), ()),
    ],
    ids=["null key", "unknown column", "no key", "text", "fraction", "nanoseconds", "long key", "empty"],
)
def test_rows_that_do_not_fit_are_refused_by_name(
    dataset: Dataset, tmp_path: Path, table: pa.Table, facts: tuple[str, ...]
) -> None:
    pq.write_table(table, tmp_path / "in.parquet")
    with refused(InvalidRequest, None, *facts):
        dataset.ingest(tmp_path / "in.parquet")
    assert nothing_was_written(dataset)


def test_narrower_integers_are_widened(dataset: Dataset, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "n": pa.array([7], pa.int32())}), tmp_path / "in.parquet")
    dataset.ingest(tmp_path / "in.parquet")
    assert dataset.to_arrow().column("n").to_pylist() == [7]


def test_truncated_parquet_file_is_named_and_nothing_is_loaded(dataset: Dataset, tmp_path: Path) -> None:
    good = write_people(tmp_path / "in" / "a.parquet", 10)
    (tmp_path / "in" / "b.parquet").write_bytes(good.read_bytes()[:-20])
    with refused(InvalidRequest, None, "b.parquet"):
        dataset.ingest(tmp_path / "in")
    assert nothing_was_written(dataset)


def not_utf8(column: str) -> pa.Table:
    """Arrow does not check the bytes of a text column, so a file can hold bytes that are not UTF-8."""
    spoiled = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    rows = people(2)
    good = rows.column(column).combine_chunks().slice(1)
    return rows.set_column(rows.column_names.index(column), column, pa.concat_arrays([spoiled, good]))


@pytest.mark.parametrize("column", ["id", "city"])
def test_text_that_is_not_utf8_is_refused(dataset: Dataset, spark: "SparkSession", tmp_path: Path, column: str) -> None:
    pq.write_table(not_utf8(column), tmp_path / "in.parquet")
    with pytest.raises(InvalidRequest, match="UTF-8"):
        dataset.ingest(tmp_path / "in.parquet")
    with pytest.raises(InvalidRequest, match="UTF-8"):
        dataset.upsert(spark.read.parquet(str(tmp_path / "in.parquet")))
    with pytest.raises(InvalidRequest, match="UTF8"):
        dataset.upsert(not_utf8(column))
    assert nothing_was_written(dataset)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("", ()),
        ("id,n\nP1,notanumber\n", ("'n'", "'notanumber'")),
        ("id,colour\nP1,red\n", ("'colour'",)),
        ("id,id\nP1,P2\n", ()),
        ("id,n\nP1,1,2,3\n", ("in.csv",)),
    ],
    ids=["empty", "bad number", "unknown column", "repeated column", "too many fields"],
)
def test_csv_that_does_not_fit_is_refused(dataset: Dataset, tmp_path: Path, text: str, facts: tuple[str, ...]) -> None:
    (tmp_path / "in.csv").write_text(text)
    with refused(InvalidRequest, None, *facts):
        dataset.ingest(tmp_path / "in.csv")
    assert nothing_was_written(dataset)


def test_missing_mixed_and_unknown_sources_are_named(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        dataset.ingest(tmp_path / "nowhere")
    write_people(tmp_path / "mixed" / "a.parquet", 1)
    (tmp_path / "mixed" / "b.csv").write_text("id\nP1\n")
    with pytest.raises(InvalidRequest):
        dataset.ingest(tmp_path / "mixed")
    (tmp_path / "c.xml").write_text("<a/>")
    with refused(InvalidRequest, None, "c.xml"):
        dataset.ingest(tmp_path / "c.xml")
    with pytest.raises(InvalidRequest, match="'orc'"):
        dataset.ingest(tmp_path / "c.xml", format="orc")
    with pytest.raises(InvalidRequest, match="'colour'"):
        dataset.ingest(tmp_path / "mixed" / "a.parquet", order_by="colour")


def test_load_into_a_dropped_dataset_is_gone(dataset: Dataset, lake: Lake, tmp_path: Path) -> None:
    source = write_people(tmp_path / "in.parquet", 1)
    lake.drop(str(dataset.name))
    create(lake)
    with pytest.raises(Gone):
        dataset.ingest(source)
    assert nothing_was_written(lake.dataset(str(dataset.name)))


@pytest.mark.parametrize("earlier_rows", [0, 1])
def test_a_load_beside_a_drop_is_gone_and_leaves_no_file(
    dataset: Dataset, lake: Lake, tmp_path: Path, earlier_rows: int
) -> None:
    for number in range(earlier_rows):
        dataset.upsert([person(number)])
    folder = dataset.path
    with arm("ingest.after_write", lambda _place: lake.drop(str(dataset.name))), pytest.raises(Gone):
        dataset.ingest(write_people(tmp_path / "in.parquet", 100))
    lake.sweep()
    assert not folder.exists()
