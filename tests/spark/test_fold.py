"""Fold, prune, purge, vacuum: exact results, only necessary rewrites, and real deletion."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone import Conflict, Dataset, Fenced, Gone, InvalidRequest, Lake, Settings
from siltstone.erasure.scan import scan
from siltstone.failpoints import arm
from siltstone.spark_tasks import fold
from tests.support.internals import store_of
from tests.support.people import NAME, by_id, create, key, people, person, write_people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


both_ways = pytest.mark.parametrize("arrow_changes_rows", [200_000, 0], ids=["in place", "by shuffle"])


@pytest.fixture
def arrow_changes_rows() -> int:
    """Small change sets are folded in place, unless a test requests `both_ways`."""
    return 200_000


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession", arrow_changes_rows: int) -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=Settings(arrow_changes_rows=arrow_changes_rows)) as opened:
        yield opened


@pytest.fixture
def small_files(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    """A lake whose base files are a few hundred rows each."""
    with Lake.open(lake_path, spark=spark, settings=Settings(target_file_bytes=2048)) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake, tmp_path: Path) -> Dataset:
    made = create(lake)
    made.ingest(write_people(tmp_path / "in.parquet", 1000))
    return made


def base_files(dataset: Dataset) -> set[str]:
    return set(DeltaTable(dataset.path / "base").file_uris())


@both_ways
def test_fold_reports_exact_counts(dataset: Dataset) -> None:
    dataset.upsert([person(i, city="x") for i in range(10)])
    dataset.upsert([person(2000), person(2001), person(2000, city="again")])
    dataset.tombstone([key(5), key(6), "P999999"], actor="dpo", reason="request 17")
    before = by_id(dataset.to_arrow())
    report = dataset.compact()
    assert report.base_rows == 1000
    assert report.change_rows == 16
    assert report.batches_folded == 3
    assert report.upserts_applied == 8 + 2
    assert report.tombstones_applied == 3
    assert report.rows_dropped_by_tombstones == 2
    assert report.final_rows == 1000
    status = dataset.status()
    assert (status.rows_in_base, status.backlog_batches, status.watermark) == (1000, 0, 3)
    assert report.bytes_after == status.base_bytes
    assert dataset.tombstones() == []
    assert by_id(dataset.to_arrow()).equals(before)


def test_other_readers_see_the_folded_base(dataset: Dataset, spark: "SparkSession") -> None:
    dataset.upsert([person(1, city="changed"), person(5000)])
    dataset.tombstone([key(2)])
    dataset.compact()
    expected = by_id(dataset.to_arrow())
    base = dataset.path / "base"
    assert by_id(DeltaTable(base).to_pyarrow_table()).equals(expected)
    assert by_id(spark.read.format("delta").load(str(base)).toArrow()).equals(expected)
    assert DeltaTable(base).protocol().min_reader_version == 1


@both_ways
def test_fold_keeps_upsert_written_after_plan(dataset: Dataset, lake: Lake) -> None:
    dataset.upsert([person(1, city="in the plan")])
    other = lake.dataset(NAME)

    def write(_: str) -> None:
        other.upsert([person(1, city="after the plan"), person(7777)])

    with arm("fold.after_plan", write):
        report = dataset.compact()
    assert report.watermark == 1
    assert dataset.status().backlog_batches == 1
    rows = {row["id"]: row["city"] for row in dataset.to_arrow().to_pylist()}
    assert rows[key(1)] == "after the plan"
    assert key(7777) in rows
    dataset.compact()
    assert {row["id"]: row["city"] for row in dataset.to_arrow().to_pylist()} == rows


def test_of_two_folds_one_commits_and_the_other_reports_conflict(dataset: Dataset, lake: Lake) -> None:
    dataset.upsert([person(1, city="changed")])
    other = lake.dataset(NAME)

    def fold_first(_: str) -> None:
        other.compact()

    before = by_id(dataset.to_arrow())
    with arm("fold.before_commit", fold_first), pytest.raises(Conflict):
        dataset.compact()
    assert by_id(dataset.to_arrow()).equals(before)
    assert dataset.compact().change_rows == 0


def test_a_purge_that_another_fold_overtakes_folds_once_more(dataset: Dataset, lake: Lake) -> None:
    dataset.tombstone([key(9)])
    other = lake.dataset(NAME)
    overtaken: list[int] = []

    def fold_first(_: str) -> None:
        if not overtaken:
            overtaken.append(1)
            other.compact()

    with arm("fold.before_commit", fold_first):
        report = dataset.compact(purge=True)
    assert (overtaken, report.purged, dataset.status().unreferenced_files) == ([1], True, 0)
    assert dataset.to_arrow().num_rows == 999


@pytest.mark.parametrize("place", ["fold.after_plan", "fold.before_commit", "fold.after_commit"])
def test_a_purge_deletes_rows_that_a_squash_beside_its_fold_merged_with_newer_ones(
    dataset: Dataset, lake: Lake, place: str
) -> None:
    dataset.upsert([person(5000, city="Oslo-5000")])
    dataset.tombstone([key(5000), key(9)])
    other = lake.dataset(NAME)

    def write_and_squash(_: str) -> None:
        for number in range(3):
            other.upsert([person(6000 + number)])
        other.squash()

    with arm(place, write_and_squash):
        assert dataset.compact(purge=True).purged
    assert scan(dataset.path, [key(5000), key(9), "Oslo-5000"]).findings == ()
    assert dataset.to_arrow().num_rows == 999 + 3
    assert dataset.get([key(6000), key(6002), key(5000)]).num_rows == 2


def test_fold_planned_before_a_purge_is_fenced(dataset: Dataset, lake: Lake) -> None:
    dataset.upsert([person(1, city="changed")])
    other = lake.dataset(NAME)

    def purge_first(_: str) -> None:
        other.tombstone([key(9)])
        other.compact(purge=True)

    with arm("fold.after_plan", purge_first), pytest.raises((Conflict, Fenced)):
        dataset.compact()
    assert dataset.compact(purge=True).files_deleted == 0
    assert dataset.to_arrow().num_rows == 999


def test_fold_with_nothing_to_do_changes_nothing(dataset: Dataset) -> None:
    files = base_files(dataset)
    report = dataset.compact()
    assert (report.change_rows, report.files_added, report.final_rows) == (0, 0, 1000)
    assert base_files(dataset) == files


def test_tombstones_of_unknown_keys_rewrite_nothing(dataset: Dataset) -> None:
    files = base_files(dataset)
    dataset.tombstone(["nobody"])
    report = dataset.compact()
    assert (report.tombstones_applied, report.rows_dropped_by_tombstones, report.files_removed) == (1, 0, 0)
    assert base_files(dataset) == files
    assert dataset.status().backlog_batches == 0


@both_ways
@pytest.mark.parametrize("place", ["fold.after_plan", "fold.after_write", "fold.before_commit"])
def test_a_fold_beside_a_drop_is_gone_and_leaves_no_file(dataset: Dataset, lake: Lake, place: str) -> None:
    dataset.upsert([person(i, city="x") for i in range(10)])
    folder = dataset.path
    with arm(place, lambda _place: lake.drop(NAME)), pytest.raises(Gone):
        dataset.compact()
    lake.sweep()
    assert not folder.exists()


@both_ways
def test_every_row_can_be_dropped_and_written_again(dataset: Dataset) -> None:
    dataset.tombstone([key(i) for i in range(1000)])
    assert dataset.compact(purge=True).final_rows == 0
    assert dataset.to_arrow().num_rows == 0
    assert dataset.read().count() == 0
    dataset.upsert(people(5))
    assert dataset.compact().final_rows == 5


def test_only_touched_files_are_rewritten(small_files: Lake, tmp_path: Path) -> None:
    dataset = create(small_files)
    assert dataset.ingest(write_people(tmp_path / "in.parquet", 3000)).files > 4
    before = base_files(dataset)
    dataset.upsert([person(1, city="changed")])
    report = dataset.compact()
    assert (report.files_removed, report.final_rows) == (1, 3000)
    assert len(before & base_files(dataset)) == len(before) - 1
    dataset.upsert([person(9000)])
    report = dataset.compact()
    assert (report.files_removed, report.files_added, report.final_rows) == (0, 1, 3001)


def test_new_keys_go_into_the_file_whose_range_they_fall_into_and_files_stay_sorted(lake: Lake) -> None:
    dataset = create(lake, "crm.sales.sorted")
    dataset.upsert([person(number) for number in range(0, 100, 2)])
    dataset.compact()
    dataset.upsert([person(10, city="changed"), person(11), person(500)])
    report = dataset.compact()
    assert (report.files_removed, report.files_added, report.final_rows) == (1, 2, 52)
    for file in base_files(dataset):
        ids = pq.read_table(file.removeprefix("file://"), columns=["id"]).column("id").to_pylist()
        assert ids == sorted(ids)
        assert (key(11) in ids) == (key(10) in ids) != (key(500) in ids)


def test_without_python_in_the_tasks_spark_folds_alone(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object, **_options: bool) -> Callable[[int], bytes]:
        def work(_: int) -> bytes:
            raise ModuleNotFoundError("No module named 'pyarrow'")

        return work

    monkeypatch.setattr(fold, "finder", missing)
    dataset.upsert([person(1, city="changed"), person(5000)])
    dataset.tombstone([key(2)])
    before = by_id(dataset.to_arrow())
    report = dataset.compact()
    assert (report.upserts_applied, report.rows_dropped_by_tombstones, report.final_rows) == (2, 1, 1000)
    assert by_id(dataset.to_arrow()).equals(before)


def test_files_of_a_retried_task_do_not_count(dataset: Dataset) -> None:
    dataset.upsert([person(1, city="changed")])

    def leave(_: str) -> None:
        (folder,) = (dataset.path / "base" / "data").glob("*/0/00000-*")
        (folder.parent / "00000-0000-0.parquet").write_bytes(folder.read_bytes())

    with arm("fold.after_write", leave):
        report = dataset.compact()
    assert (report.files_added, report.final_rows) == (1, 1000)
    assert not list((dataset.path / "base" / "data").glob("*/0/00000-0000-0.parquet"))


def test_many_small_files_are_rewritten_too(lake: Lake) -> None:
    dataset = create(lake, "crm.sales.grown")
    for number in range(10):
        dataset.upsert([person(number)])
        dataset.compact()
    assert dataset.status().base_files < 10
    assert dataset.to_arrow().num_rows == 10


def test_purge_leaves_only_live_files_and_no_history(dataset: Dataset) -> None:
    dataset.upsert([person(1, city="changed")])
    dataset.tombstone([key(2)])
    report = dataset.compact(purge=True)
    assert report.purged
    assert report.files_deleted >= 3
    assert report.bytes_deleted > 0
    status = dataset.status()
    assert (status.unreferenced_files, status.rows_in_base) == (0, 999)
    for table in ("base", "changes"):
        log = dataset.path / table / "_delta_log"
        assert len(list(log.glob("*.json"))) == 1
        assert len(list(log.glob("*.parquet"))) == 1
    assert not [f for f in dataset.path.rglob("*") if f.is_file() and key(2).encode() in f.read_bytes()]
    assert dataset.read().count() == 999
    dataset.upsert([person(2)])
    dataset.compact()
    assert dataset.read().count() == 1000


def test_subject_values_never_enter_the_log(dataset: Dataset) -> None:
    dataset.upsert([person(1)])
    dataset.compact()
    for entry in (dataset.path / "base" / "_delta_log").glob("*.json"):
        assert "P00" not in entry.read_text()


def test_key_ranges_are_in_the_log_without_a_subject(lake: Lake, tmp_path: Path) -> None:
    dataset = create(lake, "crm.sales.open", subject=None)
    dataset.ingest(write_people(tmp_path / "more.parquet", 10))
    entry = (dataset.path / "base" / "_delta_log" / "00000000000000000001.json").read_text().splitlines()
    stats = json.loads(next(json.loads(line)["add"]["stats"] for line in entry if "add" in json.loads(line)))
    assert (stats["minValues"]["id"], stats["maxValues"]["id"], stats["numRecords"]) == (key(0), key(9), 10)
    assert "city" not in stats["minValues"]


def test_vacuum_keeps_young_files_and_shows_what_it_would_delete(dataset: Dataset) -> None:
    dataset.upsert([person(1, city="changed")])
    dataset.compact()
    left = dataset.status().unreferenced_files
    assert left > 0
    assert dataset.vacuum(dry_run=True).files == ()
    assert dataset.vacuum(retention_hours=1).files == ()
    assert dataset.status().unreferenced_files == left
    with pytest.raises(InvalidRequest, match=r"\b1 h\b"):
        dataset.vacuum(retention_hours=0)


def test_vacuum_deletes_orphans_of_dead_owners_only(dataset: Dataset) -> None:
    orphan = dataset.path / "base" / "data" / ("0" * 32) / "0" / "part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"left by a crash")
    assert dataset.vacuum(dry_run=True).files == (f"base/data/{'0' * 32}/0/part-0.parquet",)
    assert orphan.exists()
    assert dataset.vacuum().bytes == len(b"left by a crash")
    assert not orphan.parent.parent.exists()
    assert dataset.to_arrow().num_rows == 1000


def test_lookups_find_the_same_rows_before_and_after_a_fold_and_a_purge_empties_their_memory(
    small_files: Lake, tmp_path: Path
) -> None:
    dataset = create(small_files)
    dataset.ingest(write_people(tmp_path / "in.parquet", 3000))
    dataset.upsert(small_files.spark().createDataFrame(people(50, start=2990).to_pandas()))
    dataset.upsert([person(7, city="changed")])
    dataset.tombstone([key(8), key(2995)])
    keys = [key(number) for number in (3039, 7, 8, 1500, 2995, 2991, 5000)]
    before = dataset.get(keys)
    assert before.column("n").to_pylist() == [3039, 7, 1500, 2991]
    dataset.compact()
    assert len(base_files(dataset)) > 1
    assert dataset.get(keys).equals(before)
    dataset.tombstone([key(7)])
    assert dataset.get([key(7)]).num_rows == 0
    assert small_files.dataset(NAME).compact(purge=True).purged
    assert store_of(dataset).reads.size_bytes == 0
    assert dataset.get(keys).column("n").to_pylist() == [3039, 1500, 2991]
