"""The first load of a log: straight to base, with the same result as an append and a fold."""

import datetime
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone import Dataset, InvalidRequest, Lake, Settings
from siltstone.failpoints import arm
from siltstone.model.columns import APP_CONTENT
from tests.support.clicks import SCHEMA, Oracle, as_counter, click, clicks, create, period_of
from tests.support.internals import store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=Settings(durable=False, squash_files=0)) as opened:
        yield opened


@pytest.fixture
def log(lake: Lake) -> Dataset:
    return create(lake)


def source(path: Path, rows: Rows, schema: pa.Schema = SCHEMA) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return path


def live(log: Dataset) -> list[dict[str, Any]]:
    """Return the files of base, by its log."""
    return list(pa.table(DeltaTable(log.path / "base").get_add_actions(flatten=False)).to_pylist())


def entries(log: Dataset) -> Counter[tuple[Any, ...]]:
    """Return partition values, rows, ranges and nulls of files from base's log, without system columns."""

    def ranges(file: dict[str, Any], name: str) -> str:
        found = {key: value for key, value in file[name].items() if key != "_written_at"}
        return json.dumps(found, default=str, sort_keys=True)

    return Counter(
        (
            json.dumps(file["partition"], default=str, sort_keys=True),
            file["num_records"],
            *(ranges(file, name) for name in ("min", "max", "null_count")),
        )
        for file in live(log)
    )


def rows_by_partition(log: Dataset) -> Counter[str]:
    found = DeltaTable(log.path / "base").to_pyarrow_table().drop_columns(["_batch_id", "_written_at"]).to_pylist()
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in found)


def same_as_folded(lake: Lake, rows: Rows, tmp_path: Path, schema: pa.Schema = SCHEMA, **given: Any) -> Dataset:  # noqa: ANN401
    """Load rows into one log, append and fold them into another; compare everything but the writer and the time."""
    loaded, folded = (lake.create(f"web.eu.{name}", schema, **given) for name in ("loaded", "folded"))
    report = loaded.ingest(source(tmp_path / "in.parquet", rows, schema))
    folded.append(rows)
    folded.compact()
    assert report.first_load
    assert report.rows == folded.status().rows_in_base
    assert report.rows + report.rows_duplicate == len(rows)
    assert entries(loaded) == entries(folded)
    assert rows_by_partition(loaded) == rows_by_partition(folded)
    status = loaded.status()
    assert (status.sequence, status.watermark, status.backlog_batches, status.backlog_rows) == (0, 0, 0, 0)
    assert (status.base_files, status.unreferenced_files) == (report.files, 0)
    return loaded


def test_a_first_load_leaves_what_an_append_and_a_fold_leave(lake: Lake, tmp_path: Path) -> None:
    rows = clicks(60) + clicks(5) + [click(7, region=None), click(8, region="x/y=z %")]
    given = {"time": "at", "subject": ["visitor", "account"], "partition_by": ["region"], "sort_by": ["visitor", "at"]}
    log = same_as_folded(lake, rows, tmp_path, **given)
    found = DeltaTable(log.path / "base").to_pyarrow_table()
    assert len(set(found.column("_batch_id").to_pylist())) == 1
    assert found.column("_written_at").null_count == 0
    expected = Counter((period_of(row), row["region"]) for row in rows)
    assert (
        Counter(zip(found.column("_period").to_pylist(), found.column("region").to_pylist(), strict=True)) == expected
    )
    for file in live(log):
        held = pq.read_table(log.path / "base" / file["path"], partitioning=None).select(["visitor", "at"]).to_pylist()
        assert held == sorted(held, key=lambda row: (row["visitor"], row["at"]))
        assert file["min"]["visitor"] is None
    assert as_counter(log.to_arrow()) == as_counter(log.read().toArrow()) == as_counter(rows)
    assert log.history(1)[0].operation == "first_load"
    assert store_of(log).base.pin(APP_CONTENT).transactions[APP_CONTENT] == 1


def test_dates_times_without_a_zone_and_every_kind_of_partition_are_divided_as_a_fold_divides_them(
    lake: Lake, tmp_path: Path
) -> None:
    days = [
        datetime.date(1, 1, 1),
        datetime.date(1969, 12, 31),
        datetime.date(2026, 2, 28),
        datetime.date(9999, 12, 31),
    ]
    schema = pa.schema([("day", pa.date32()), ("kind", pa.int32()), ("on", pa.date32()), ("yes", pa.bool_())])
    rows: Rows = [
        {"day": day, "kind": kind, "on": on, "yes": yes}
        for day in days
        for kind in (None, -7)
        for on in (None, days[2])
        for yes in (None, True)
    ]
    same_as_folded(lake, rows, tmp_path, schema, time="day", partition_by=["kind", "on", "yes"])
    for name in ("loaded", "folded"):
        lake.drop(f"web.eu.{name}")
    moments = [datetime.datetime.combine(day, datetime.time(23, 59, 59, 999999)) for day in days]
    plain = pa.schema([("at", pa.timestamp("us")), ("n", pa.int64())])
    same_as_folded(lake, [{"at": at, "n": n} for n, at in enumerate(moments)], tmp_path, plain, time="at")


@pytest.mark.parametrize("survivor", ["first", "last"])
def test_duplicates_of_a_first_load_are_left_out_with_the_survivor_that_a_fold_keeps(
    lake: Lake, tmp_path: Path, survivor: str
) -> None:
    columns = ("at", "visitor", "account", "region")
    rows = [*clicks(8), *[click(n, n=100 + n) for n in range(4)], click(0, visitor=None), click(0, visitor=None, n=9)]
    given = {"time": "at", "subject": ["visitor", "account"], "partition_by": ["region"], "sort_by": ["visitor", "at"]}
    log = same_as_folded(lake, rows, tmp_path, **given, dedup_by=list(columns), survivor=survivor)
    oracle = Oracle(dedup_by=columns, survivor=survivor)
    oracle.append(rows)
    assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
    more = [click(1, n=201), click(30), click(30, n=31)]
    log.append(more)
    oracle.append(more)
    assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
    log.compact()
    assert as_counter(log.to_arrow()) == as_counter(oracle.rows)


def test_a_large_first_load_is_cut_into_files_of_the_target_size(
    lake_path: Path, tmp_path: Path, spark: "SparkSession"
) -> None:
    settings = Settings(durable=False, target_file_bytes=64 * 1024)
    rows = [click(n % 8, n=n, visitor=f"V-{n * 7919 % 20_000:05d}") for n in range(20_000)]
    with Lake.open(lake_path, spark=spark, settings=settings) as lake:
        log = create(lake)
        report = log.ingest(source(tmp_path / "in.parquet", rows))
        assert report.rows == 20_000
        assert len({json.dumps(file["partition"]) for file in live(log)}) < report.files < 60
        assert as_counter(log.to_arrow()) == as_counter(rows)


# ---- bad rows ------------------------------------------------------------------------------------------------------


def test_bad_rows_of_a_first_load_go_into_quarantine_and_take_no_part_in_duplicates(lake: Lake, tmp_path: Path) -> None:
    nullable = pa.schema([f.with_nullable(True) for f in SCHEMA])  # noqa: FBT003
    rows = [click(0), click(1, at=None), click(2, region=""), click(2, region="", n=3), click(0, n=4), click(5)]
    bad = source(tmp_path / "in.parquet", rows, nullable)
    log = create(lake, dedup_by=["at", "visitor", "account", "region"], survivor="last")
    with pytest.raises(InvalidRequest, match=r"\b1 row\b"):
        log.ingest(bad)
    assert log.status().unreferenced_files == 0
    report = log.ingest(bad, quarantine=tmp_path / "bad")
    assert (report.first_load, report.rows, report.rows_quarantined, report.rows_duplicate) == (True, 2, 3, 1)
    assert sorted(log.to_arrow().column("n").to_pylist()) == [4, 5]
    assert report.quarantine is not None
    aside = pq.read_table(f"{report.quarantine}/rows").to_pylist()
    assert sorted(row["n"] for row in aside) == [1, 2, 3]


def test_a_first_load_of_nothing_but_bad_rows_is_refused(log: Dataset, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(
        "at,visitor,account,region,n\nnever,V-1,1,eu,1\n2026-11-15T14:30:00Z,V-1,1,eu,one\n"
    )
    with pytest.raises(InvalidRequest, match=r"\b2 rows"):
        log.ingest(tmp_path / "in.csv", quarantine=tmp_path / "bad")
    assert (log.status().rows_in_base, log.status().sequence, log.status().unreferenced_files) == (0, 0, 0)


# ---- other writers at the same time ----------------------------------------------------------------------------------


def meanwhile(log: Dataset, path: Path, place: str, action: Callable[[], object]) -> Any:  # noqa: ANN401
    def act(_: str) -> None:
        action()

    with arm(place, act):
        return log.ingest(path)


def check(log: Dataset, expected: Rows, *, pruned: int = 0) -> None:
    assert log.status().unreferenced_files == pruned
    assert as_counter(log.to_arrow()) == as_counter(expected)
    log.compact()
    assert as_counter(log.to_arrow()) == as_counter(DeltaTable(log.path / "base").to_pyarrow_table())
    assert as_counter(log.to_arrow()) == as_counter(expected)


@pytest.mark.parametrize("place", ["ingest.after_write", "commit.before_entry"])
def test_of_two_first_loads_the_loser_becomes_a_change_batch(
    log: Dataset, lake: Lake, tmp_path: Path, place: str
) -> None:
    mine, theirs = (
        source(tmp_path / f"{name}.parquet", clicks(20, start=start)) for name, start in (("a", 0), ("b", 15))
    )
    other = lake.dataset(str(log.name))
    report = meanwhile(log, mine, place, lambda: other.ingest(theirs))
    assert (report.first_load, report.sequence, report.rows) == (False, 1, 20)
    check(log, clicks(20) + clicks(20, start=15))


def test_rows_appended_during_a_first_load_stay_and_a_tombstone_hides_the_load(
    log: Dataset, lake: Lake, tmp_path: Path
) -> None:
    other = lake.dataset(str(log.name))

    def write() -> None:
        other.append(clicks(3))
        other.tombstone([{"visitor": "V-4"}])

    assert meanwhile(log, source(tmp_path / "in.parquet", clicks(20)), "ingest.after_write", write).first_load
    check(log, [row for row in clicks(20) if row["visitor"] != "V-4"] + clicks(3))


def test_a_fold_during_a_first_load_makes_it_a_change_batch(log: Dataset, lake: Lake, tmp_path: Path) -> None:
    other = lake.dataset(str(log.name))

    def fold() -> None:
        other.append(clicks(3))
        other.tombstone([{"visitor": "V-1"}])
        other.compact()

    report = meanwhile(log, source(tmp_path / "in.parquet", clicks(20)), "commit.before_entry", fold)
    assert (report.first_load, report.sequence) == (False, 3)
    check(log, clicks(20) + [row for row in clicks(3) if row["visitor"] != "V-1"], pruned=2)


def load_as_changes(dataset: Dataset, path: Path) -> None:
    dataset.append(clicks(1, start=90))
    assert not dataset.ingest(path).first_load


@pytest.mark.parametrize("place", ["ingest.after_write", "commit.before_entry"])
def test_a_file_is_not_loaded_straight_to_base_if_another_process_loads_it_as_changes(
    log: Dataset, lake: Lake, tmp_path: Path, place: str
) -> None:
    path, other = source(tmp_path / "in.parquet", clicks(20)), lake.dataset(str(log.name))
    report = meanwhile(log, path, place, lambda: load_as_changes(other, path))
    assert (report.rows, report.files_skipped) == (0, 1)
    check(log, clicks(20) + clicks(1, start=90))


@pytest.mark.parametrize(("place", "is_first"), [("ingest.after_write", True), ("ingest.after_closing", False)])
def test_a_file_is_not_loaded_as_changes_if_another_process_is_quicker(
    log: Dataset, lake: Lake, tmp_path: Path, place: str, *, is_first: bool
) -> None:
    path, other = source(tmp_path / "in.parquet", clicks(20)), lake.dataset(str(log.name))
    staged, go = threading.Event(), threading.Event()

    def wait(_: str) -> None:
        staged.set()
        assert go.wait(60)

    def overtake(_: str) -> None:
        go.set()
        assert loading.result(60).first_load is is_first

    with ThreadPoolExecutor(1) as pool, arm("ingest.after_write", wait):
        loading = pool.submit(log.ingest, path)
        assert staged.wait(60)
        other.append(clicks(1, start=90))
        with arm(place, overtake):
            report = other.ingest(path)
    assert (report.rows, report.files_skipped) == (0, 1)
    check(log, clicks(20) + clicks(1, start=90))
