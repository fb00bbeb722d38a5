"""Loads of several files: sorted by Arrow inside Spark's tasks, or by Spark where they cannot, with the same outcome."""

import gzip
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, InvalidRequest, Lake
from siltstone.config import Settings
from siltstone.dataset.load import sorted_write, staged_load
from siltstone.dataset.load.file_formats import check_files
from siltstone.dataset.load.source_files import find_source
from siltstone.failpoints import arm
from siltstone.spark.arrow_tasks import WorkersUnfit
from siltstone.spark.output_files import writer_settings
from tests.support.internals import current_parts, replace_spread, session_of, store_of, tasks_of
from tests.support.people import by_id, create, people
from tests.support.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 3000


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, settings=Settings(target_file_bytes=4000), spark=spark) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    return create(lake)


@pytest.fixture(autouse=True)
def sorted_by_tasks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each load whether Arrow tasks sorted it."""
    ways: list[bool] = []

    def noted(*given: object, **named: object) -> sorted_write.SortedFiles | None:
        done = sorted_write.write_sorted(*given, **named)  # type: ignore[arg-type]
        ways.append(done is not None)
        return done

    monkeypatch.setattr(staged_load, "write_sorted", noted)
    return ways


def shuffled(folder: Path, table: pa.Table, *, files: int = 3) -> Path:
    """Write a table's rows in random order, as several Parquet files."""
    order = list(range(table.num_rows))
    random.Random(5).shuffle(order)
    folder.mkdir()
    for number in range(files):
        pq.write_table(table.take(pa.array(order[number::files], pa.int64())), folder / f"{number}.parquet")
    return folder


def key_spans(dataset: Dataset, table: str) -> list[tuple[str, str]]:
    """Return the lowest and the highest key of each file; each file must be sorted."""
    spans = []
    for file in (dataset.path / table / "data").rglob("*.parquet"):
        keys = pq.read_table(file, columns=["id"]).column("id").to_pylist()
        assert keys == sorted(keys)
        spans.append((keys[0], keys[-1]))
    return sorted(spans)


def nothing_is_left(dataset: Dataset) -> bool:
    return not [path for path in dataset.path.rglob("data/*/*") if path.name.endswith("-runs")]


def test_first_load_writes_files_of_ranges_that_do_not_meet(
    dataset: Dataset, tmp_path: Path, sorted_by_tasks: list[bool]
) -> None:
    report = dataset.ingest(shuffled(tmp_path / "in", people(ROWS)))
    assert (report.rows, report.first_load) == (ROWS, True)
    assert sorted_by_tasks == [True]
    spans = key_spans(dataset, "base")
    assert len(spans) == report.files > 3
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))
    assert by_id(dataset.to_arrow()).equals(people(ROWS))
    assert nothing_is_left(dataset)
    assert dataset.status().unreferenced_files == 0


def test_a_later_load_is_one_sorted_change_batch(dataset: Dataset, tmp_path: Path, sorted_by_tasks: list[bool]) -> None:
    dataset.upsert(people(10, start=ROWS))
    report = dataset.ingest(shuffled(tmp_path / "in", people(ROWS)))
    assert (report.rows, report.first_load, report.sequence) == (ROWS, False, 2)
    assert sorted_by_tasks == [True]
    assert by_id(dataset.to_arrow()).equals(people(ROWS + 10))
    dataset.compact()
    assert by_id(dataset.to_arrow()).equals(people(ROWS + 10))
    assert nothing_is_left(dataset)


def test_repeated_keys_are_refused_with_the_same_words(
    dataset: Dataset, tmp_path: Path, sorted_by_tasks: list[bool]
) -> None:
    twice = pa.concat_tables([people(ROWS), people(2, start=7)])
    with refused(InvalidRequest, None, "4 rows", "id='P000007'", "2 times"):
        dataset.ingest(shuffled(tmp_path / "in", twice))
    assert sorted_by_tasks == [False]
    assert dataset.to_arrow().num_rows == 0
    assert dataset.status().unreferenced_files == 0


def test_bad_rows_are_refused_with_the_same_words(
    dataset: Dataset, tmp_path: Path, sorted_by_tasks: list[bool]
) -> None:
    keyless = pa.table(
        {"id": pa.array([None, None, "x"], pa.string()), "n": [1, 2, 3], "city": ["a", "b", "c"], "at": [None] * 3}
    ).cast(people(0).schema.remove(0).insert(0, pa.field("id", pa.string())))
    folder = shuffled(tmp_path / "in", people(ROWS))
    pq.write_table(keyless, folder / "keyless.parquet")
    with refused(InvalidRequest, None, "2 rows", "(id)"):
        dataset.ingest(folder)
    assert sorted_by_tasks == [False]
    assert dataset.status().unreferenced_files == 0


def test_order_by_still_decides_which_row_wins(dataset: Dataset, tmp_path: Path) -> None:
    old = people(ROWS).set_column(1, "n", pa.array([-1] * ROWS, pa.int64()))
    dataset.ingest(shuffled(tmp_path / "in", pa.concat_tables([people(ROWS), old])), order_by="n")
    assert by_id(dataset.to_arrow()).equals(people(ROWS))


def test_spark_sorts_where_its_tasks_cannot(
    dataset: Dataset, tmp_path: Path, sorted_by_tasks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(*_: object, **__: object) -> None:
        raise WorkersUnfit

    replace_spread(monkeypatch, unfit)
    assert dataset.ingest(shuffled(tmp_path / "in", people(ROWS))).files > 3
    assert sorted_by_tasks == [False]
    assert by_id(dataset.to_arrow()).equals(people(ROWS))
    assert nothing_is_left(dataset)


def test_ranges_too_full_to_sort_in_memory_go_to_spark(
    dataset: Dataset, tmp_path: Path, sorted_by_tasks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_write, "MAX_SKEW", 0)
    dataset.ingest(shuffled(tmp_path / "in", people(ROWS)))
    assert sorted_by_tasks == [False]
    assert by_id(dataset.to_arrow()).equals(people(ROWS))


def test_a_load_of_unknown_size_is_counted_first(
    dataset: Dataset, spark: "SparkSession", sorted_by_tasks: list[bool]
) -> None:
    frame = spark.createDataFrame(people(ROWS))
    report = current_parts(dataset).loader.load(staged_load.LoadRequest(frame=frame))
    assert sorted_by_tasks == [True]
    assert report.files > 3
    assert by_id(dataset.to_arrow()).equals(people(ROWS))


def test_tasks_read_parquet_themselves_and_spark_reads_the_rest(
    dataset: Dataset, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = people(ROWS).set_column(1, "n", people(ROWS).column("n").cast(pa.int32())).drop_columns(["city"])
    folder = shuffled(tmp_path / "in", narrow)
    read_by: list[str] = []

    def noted(name: str, way: Callable[..., sorted_write.Rows]) -> Callable[..., sorted_write.Rows]:
        def make(**given: object) -> sorted_write.Rows:
            read_by.append(name)
            return way(**given)

        return make

    for name, way in (("FileRows", sorted_write.FileRows), ("FrameRows", sorted_write.FrameRows)):
        monkeypatch.setattr(staged_load, name, noted(name, way))
    dataset.ingest(folder)
    other = create(lake, "crm.sales.others")
    csv = tmp_path / "in.csv"
    narrow.select(["id", "n"]).to_pandas().to_csv(csv, index=False)
    other.ingest(csv)
    assert read_by == ["FileRows", "FrameRows"]
    assert (
        dataset.to_arrow().select(["id", "n"]).sort_by("id").equals(other.to_arrow().select(["id", "n"]).sort_by("id"))
    )
    assert by_id(dataset.to_arrow()).column("city").null_count == ROWS


@pytest.mark.parametrize(
    ("metadata", "plain"),
    [
        ({}, True),
        ({"org.apache.spark.version": "4.2.0"}, True),
        ({"org.apache.spark.version": "2.4.8"}, False),
        ({"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyDateTime": ""}, False),
    ],
)
def test_files_of_an_old_calendar_are_left_to_spark(metadata: dict[str, str], plain: bool, tmp_path: Path) -> None:  # noqa: FBT001
    table = people(5).replace_schema_metadata(metadata)
    with pq.ParquetWriter(tmp_path / "in.parquet", table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
    checked = check_files(find_source(tmp_path / "in.parquet"), people(0).schema, dataset="d")
    assert bool(checked.plain_files) is plain


def test_many_small_files_share_tasks(dataset: Dataset, tmp_path: Path, sorted_by_tasks: list[bool]) -> None:
    report = dataset.ingest(shuffled(tmp_path / "in", people(ROWS), files=60))
    assert (report.rows, sorted_by_tasks) == (ROWS, [True])

    def tasks(count: int, rows: int) -> list[int]:
        files = tuple(sorted_write.ParquetFile(path=Path(f"{n}"), rows=rows, size_bytes=10) for n in range(count))
        found = sorted_write.FileRows(spark=session_of(dataset), store=store_of(dataset), files=files)
        return [len(task) for task in tasks_of(found)]

    assert tasks(5, 600_000) == [1] * 5
    assert tasks(500, 100) == [500]
    assert tasks(1, 2_500_000) == [1, 1, 1]


def test_rows_that_take_too_much_memory_go_to_spark(
    dataset: Dataset, tmp_path: Path, sorted_by_tasks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_write, "MAX_RANGE_BYTES", 1000)
    dataset.ingest(shuffled(tmp_path / "in", people(ROWS)))
    assert sorted_by_tasks == [False]
    assert dataset.to_arrow().num_rows == ROWS


def test_files_without_rows_are_reported_as_such(lake: Lake, tmp_path: Path) -> None:
    folder = shuffled(tmp_path / "in", people(0), files=5)
    with Lake.open(lake.path, settings=Settings(target_file_bytes=200), spark=lake.spark()) as small:
        empty = create(small, "crm.sales.none")
        with pytest.raises(InvalidRequest):
            empty.ingest(folder)


@pytest.mark.parametrize("target", [200, 10**9])
def test_text_inside_of_lists_and_structs_must_be_utf8_too(lake: Lake, tmp_path: Path, target: int) -> None:
    bad = pa.array([b"ok", b"\xff\xfe"], pa.binary()).view(pa.string())
    lists = pa.ListArray.from_arrays([0, 1, 2], bad)
    structs = pa.StructArray.from_arrays([pa.array(["a", "b"]), lists], names=["x", "y"])
    for number, column in enumerate((lists, structs)):
        rows = pa.table({"id": ["1", "2"], "v": column})
        pq.write_table(rows, tmp_path / f"{number}.parquet")
        with Lake.open(lake.path, settings=Settings(target_file_bytes=target), spark=lake.spark()) as opened:
            made = opened.create(f"a.b.nested{number}", rows.schema, key="id")
            with refused(InvalidRequest, None, "1 row", "UTF-8"):
                made.ingest(tmp_path / f"{number}.parquet")


def test_a_file_that_changes_while_it_is_loaded_refuses_the_load(dataset: Dataset, tmp_path: Path) -> None:
    for place in ("ingest.after_spread", "ingest.after_write"):
        folder = shuffled(tmp_path / place, people(ROWS))

        def replace_one(_: str, folder: Path = folder) -> None:
            pq.write_table(people(5), folder / "0.parquet")

        with arm(place, replace_one), pytest.raises(InvalidRequest):
            dataset.ingest(folder)
        assert dataset.to_arrow().num_rows == 0
        assert dataset.status().unreferenced_files == 0


def test_a_session_keeps_our_settings_until_the_last_one_has_written(spark: "SparkSession") -> None:
    zone = "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    spark.conf.set(zone, "America/New_York")
    try:
        first, second = writer_settings(spark), writer_settings(spark)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert spark.conf.get(zone) == "UTC"
        second.__exit__(None, None, None)
        assert spark.conf.get(zone) == "America/New_York"
    finally:
        spark.conf.set(zone, str(before))


def test_csv_that_is_not_utf8_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(b"id,city\nA1,Z\xfcrich\n")
    with refused(InvalidRequest, None, "line 2", "UTF-8"):
        dataset.ingest(tmp_path / "latin.csv")
    with gzip.open(tmp_path / "latin.csv.gz", "wb") as file:
        file.write(b"id,city\nA1,Z\xfcrich\n")
    with pytest.raises(InvalidRequest, match="UTF-8"):
        dataset.ingest(tmp_path / "latin.csv.gz")


@pytest.mark.parametrize("name", ["data[12]", "x{a,b}", "a\\b", "w*?"])
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson"])
def test_a_name_that_looks_like_a_pattern_is_this_one_file(lake: Lake, tmp_path: Path, name: str, suffix: str) -> None:
    for number, other in enumerate([name, "data1", "data2", "xa", "xb", "wonder"]):
        path = tmp_path / f"{other}{suffix}"
        rows = people(3, start=number * 100)
        if suffix == ".parquet":
            pq.write_table(rows, path)
        elif suffix == ".csv":
            rows.select(["id", "n"]).to_pandas().to_csv(path, index=False)
        else:
            rows.select(["id", "n"]).to_pandas().to_json(path, orient="records", lines=True)
    with Lake.open(lake.path, spark=lake.spark()) as plain:
        dataset = create(plain, "crm.sales.odd")
        dataset.ingest(tmp_path / f"{name}{suffix}")
        assert sorted(dataset.to_arrow().column("n").to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize("where", ["n", "n / 0 > 1", "n = 'abc'"])
def test_a_condition_that_spark_refuses_is_one_error(dataset: Dataset, where: str) -> None:
    dataset.upsert(people(3))
    for ask in (lambda: dataset.tombstone(where=where), lambda: dataset.count_matching(where)):
        with pytest.raises(InvalidRequest, match="Spark"):
            ask()
    assert dataset.count_matching("n >= 1") == 2


def test_the_feed_keeps_to_its_limit_after_a_squash(dataset: Dataset) -> None:
    for number in range(20):
        dataset.upsert(people(10, start=number * 10))
    dataset.squash()
    found = dataset.changes_to_arrow(since=5, limit=25)
    assert (found.num_rows, set(found.column("_seq").to_pylist())) == (20, {6, 7})
    assert set(dataset.changes_to_arrow(since=7, limit=3).column("_seq").to_pylist()) == {8}
