"""The merged view: correct at any moment, the same on Spark and without it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from siltstone import Dataset, InvalidRequest, Lake, NotFound, Settings
from siltstone.dataset.read import arrow_view, position_masks
from siltstone.dataset.read.spark_frames import arrow_frame
from siltstone.dataset.read.spark_view import merged_frame
from siltstone.errors import SiltstoneError
from tests.support.internals import store_of
from tests.support.people import NAME, SCHEMA, by_id, create, key, people, person, write_people
from tests.support.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


WAYS = {
    "changes as Arrow": Settings(),
    "changes read by executors": Settings(arrow_changes_rows=0),
    "by position": Settings(positions_from_rows=0),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


@pytest.fixture
def way() -> Settings:
    """Small change sets reach Spark as Arrow, unless a test requests `every_way`."""
    return Settings()


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession", way: Settings) -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=way) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake, tmp_path: Path) -> Dataset:
    made = create(lake)
    made.ingest(write_people(tmp_path / "in.parquet", 100))
    return made


def on_spark(frame: "DataFrame") -> pa.Table:
    return by_id(frame.toArrow())


@every_way
def test_spark_and_local_reads_give_equal_rows(dataset: Dataset) -> None:
    dataset.upsert([person(1, city="first"), person(2), person(1, city="last of the batch")])
    dataset.upsert([person(2, city="later batch"), person(500)])
    dataset.tombstone([key(3), key(4)])
    dataset.upsert([person(4, city="back again")])
    rows = by_id(dataset.to_arrow())
    assert on_spark(dataset.read()).equals(rows)
    found = {row["id"]: row["city"] for row in rows.to_pylist()}
    assert len(found) == 100
    assert found[key(1)] == "last of the batch"
    assert found[key(2)] == "later batch"
    assert key(3) not in found
    assert found[key(4)] == "back again"


@every_way
def test_raw_view_does_not_apply_tombstones(dataset: Dataset) -> None:
    dataset.upsert([person(1, city="changed"), person(900)])
    dataset.tombstone([key(1), key(2), key(900)])
    assert dataset.read().count() == 98
    raw = by_id(dataset.to_arrow(raw=True))
    assert on_spark(dataset.read(raw=True)).equals(raw)
    assert raw.num_rows == 101
    assert {row["id"]: row["city"] for row in raw.to_pylist()}[key(1)] == "changed"


@every_way
def test_predicate_on_another_column_is_not_pushed_below_the_merge(dataset: Dataset) -> None:
    dataset.upsert([person(1, city="elsewhere")])
    assert dataset.read().where("city = 'city 1' and id = 'P000001'").count() == 0
    dataset.tombstone([key(8)])
    assert dataset.read().where("city = 'city 1' and id = 'P000008'").count() == 0


@every_way
def test_frame_stays_at_its_snapshot(dataset: Dataset) -> None:
    dataset.upsert([person(200)])
    frame = dataset.read()
    dataset.upsert([person(201)])
    dataset.compact()
    assert frame.count() == 101
    assert dataset.read().count() == 102


def test_sql_answers_over_names_joins_and_raw_tables(lake: Lake, dataset: Dataset) -> None:
    dataset.tombstone([key(0)])
    result = lake.sql(
        f"""with some as (select id, n from {NAME} where n < 10)
            select count(*) as visible, max(a.n) as top, (select count(*) from crm.sales.__raw__people) as raw
            from some a join {NAME} as b on a.id = b.id"""
    )
    assert result.columns == ["visible", "top", "raw"]
    assert result.rows == [(9, 9, 100)]
    assert (result.row_count, result.truncated, result.engine) == (1, False, "spark")


def test_a_query_sees_a_dataset_and_its_raw_rows_at_one_moment(
    lake: Lake, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_at = Dataset.read_at

    def write_after(self: Dataset, *given: object, **named: object) -> object:
        frame = read_at(self, *given, **named)  # type: ignore[arg-type]
        dataset.upsert([person(900_000 + dataset.status().sequence)])
        return frame

    monkeypatch.setattr(Dataset, "read_at", write_after)
    name, raw = str(dataset.name), str(dataset.name).rpartition(".")
    query = f"SELECT (SELECT count(*) FROM {name}) - (SELECT count(*) FROM {raw[0]}.__raw__{raw[2]}) AS n"
    assert lake.sql(query).rows == [(0,)]


def test_sql_reports_truncation(lake: Lake, dataset: Dataset) -> None:
    result = lake.sql(f"select id from {dataset.name} order by id", max_rows=5)
    assert (result.row_count, result.truncated) == (5, True)
    assert result.rows[0] == (key(0),)
    assert result.to_pandas().shape == (5, 1)


@pytest.mark.parametrize(
    ("text", "error", "facts"),
    [
        ("select 1; select 2", InvalidRequest, ("SELECT",)),
        ("drop table crm.sales.people", InvalidRequest, ("SELECT",)),
        ("select * from parquet.`/etc/passwd`", InvalidRequest, ("line 1, column 15",)),
        ("select * from crm.sales.nobody", NotFound, ("crm.sales.nobody",)),
        ("select colour from crm.sales.people", InvalidRequest, ("colour",)),
        ("selec", InvalidRequest, ("'selec'",)),
        (
            "select java_method('java.lang.System', 'exit', 1) from crm.sales.people",
            InvalidRequest,
            ("line 1, column 8", "java_method"),
        ),
    ],
)
def test_sql_that_is_not_one_select_over_datasets_is_refused(
    lake: Lake, dataset: Dataset, text: str, error: type[SiltstoneError], facts: tuple[str, ...]
) -> None:
    with refused(error, None, *facts):
        lake.sql(text)
    assert dataset.to_arrow().num_rows == 100


def test_a_reader_of_a_removed_file_pins_a_new_snapshot(
    lake: Lake, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset.upsert([person(1, city="changed")])
    read, calls = arrow_view.unfolded_rows, []

    def purged_meanwhile(*arguments: object, **named: object) -> pa.Table:
        calls.append(1)
        if len(calls) == 1:
            lake.dataset(NAME).compact(purge=True)
        return read(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(arrow_view, "unfolded_rows", purged_meanwhile)
    rows = {row["id"]: row["city"] for row in dataset.to_arrow().to_pylist()}
    assert len(calls) >= 2
    assert len(rows) == 100
    assert rows[key(1)] == "changed"


def test_upsert_of_a_spark_frame_is_written_by_executors(dataset: Dataset, spark: "SparkSession") -> None:
    frame = spark.range(50, 150).selectExpr("concat('P', lpad(cast(id as string), 6, '0')) id", "-id n")
    ack = dataset.upsert(frame)
    assert (ack.sequence, ack.rows) == (1, 100)
    assert dataset.read().where("n < 0").count() == 100
    assert dataset.read().count() == 150
    dataset.upsert([person(50)])
    assert dataset.read().where("n < 0").count() == 99


def test_upsert_of_a_spark_frame_that_does_not_fit_changes_nothing(dataset: Dataset, spark: "SparkSession") -> None:
    for frame, facts in [
        (spark.sql("select 'a' id, 'x' n"), ("'n'",)),
        (spark.sql("select 'a' id, 1L colour"), ("'colour'",)),
        (spark.sql("select 1L n"), ("'id'",)),
        (spark.sql("select cast(null as string) id, 1L n"), ("'id'",)),
        (spark.sql("select 'a' id, 1L n where false"), ()),
    ]:
        with refused(InvalidRequest, None, *facts):
            dataset.upsert(frame)
    status = dataset.status()
    assert (status.sequence, status.unreferenced_files) == (0, 0)


def test_a_spark_frame_with_repeated_keys_is_refused_or_put_in_order(dataset: Dataset, spark: "SparkSession") -> None:
    frame = spark.sql(
        "select * from values ('a', 3L, 'x'), ('a', 7L, 'y'), ('a', 7L, 'y'), ('b', null, 'z') t(id, n, city)"
    )
    with refused(InvalidRequest, None, "3 rows", "(id)", "id='a'", "3 times", "order_by"):
        dataset.upsert(frame)
    assert dataset.status().sequence == 0
    assert dataset.upsert(frame, order_by="n").rows == 2
    assert dataset.get(["a", "b"]).column("city").to_pylist() == ["y", "z"]
    with refused(InvalidRequest, None, "2 rows", "(id)", "id='a'", "2 times"):
        dataset.upsert(frame.selectExpr("id", "7L n", "city"), order_by="n")
    with pytest.raises(InvalidRequest, match="'nope'"):
        dataset.upsert(frame, order_by="nope")
    status = dataset.status()
    assert (status.sequence, status.unreferenced_files) == (1, 0)


def test_clean_dataset_is_the_bare_base_scan(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    dataset.read().explain()
    plan = capsys.readouterr().out
    assert "FileScan parquet" in plan
    assert not any(word in plan for word in ("Join", "Union", "Exchange", "Filter (", "Project ["))


def test_empty_dataset_reads_as_no_rows(lake: Lake) -> None:
    empty = create(lake, "crm.sales.empty")
    assert empty.read().count() == 0
    assert empty.to_arrow().schema == SCHEMA
    empty.upsert([person(1)])
    assert empty.read().count() == 1
    assert by_id(empty.to_arrow()).num_rows == by_id(people(1)).num_rows


@pytest.mark.parametrize(
    "looked_up", [20, pytest.param(1000, marks=pytest.mark.deep)], ids=["some looked up", "all looked up"]
)
def test_positions_follow_every_change_and_fold(
    lake_path: Path, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: int
) -> None:
    monkeypatch.setattr(position_masks, "LOOKED_UP_KEYS", looked_up)
    with Lake.open(lake_path, spark=spark, settings=WAYS["by position"]) as lake:
        dataset = create(lake)
        dataset.ingest(write_people(tmp_path / "in.parquet", 1000))
        held = dataset.read()
        for number in range(3):
            dataset.upsert([person(row, city=f"round {number}") for row in range(number, 900, 37)])
            dataset.tombstone([key(number * 100 + 50), key(5)])
            dataset.upsert([person(2000 + number)])
            rows = by_id(dataset.to_arrow())
            assert on_spark(dataset.read()).equals(rows)
            assert on_spark(dataset.read()).equals(rows)
            assert dataset.read(raw=True).count() == dataset.to_arrow(raw=True).num_rows
            before = dataset.read()
            if number == 1:
                dataset.compact()
                assert on_spark(dataset.read()).equals(rows)
            assert before.where("city = 'round 0'").count() == sum(
                c == "round 0" for c in rows.column("city").to_pylist()
            )
        assert held.count() == 1000


def test_an_older_snapshot_does_not_use_the_positions_of_a_newer_one(
    lake_path: Path, spark: "SparkSession", tmp_path: Path
) -> None:
    with Lake.open(lake_path, spark=spark, settings=WAYS["by position"]) as lake:
        dataset = create(lake)
        dataset.ingest(write_people(tmp_path / "in.parquet", 10))
        dataset.upsert([person(1)])
        older = store_of(dataset).snapshot()
        dataset.upsert([person(5, city="newer")])
        assert dataset.read().count() == 10
        assert merged_frame(spark, store_of(dataset), older).count() == 10


def test_files_of_one_size_are_distinguished(lake_path: Path, spark: "SparkSession", tmp_path: Path) -> None:
    with Lake.open(lake_path, spark=spark, settings=WAYS["by position"]) as lake:
        dataset = create(lake)
        dataset.ingest(write_people(tmp_path / "in.parquet", 200))
        for number in range(6):
            dataset.upsert([person(7, city=f"city {number}"), person(number, city="same")])
        sizes = [file.size_bytes for file in store_of(dataset).snapshot().unfolded]
        assert len(set(sizes)) < len(sizes)
        assert on_spark(dataset.read()).equals(by_id(dataset.to_arrow()))


def test_rows_after_an_empty_chunk_reach_spark(spark: "SparkSession") -> None:
    table = pa.concat_tables([pa.table({"n": pa.array(rows, pa.int64())}) for rows in ([1], [], [2, 3], [], [4])])
    assert sorted(row.n for row in arrow_frame(spark, table).collect()) == [1, 2, 3, 4]
