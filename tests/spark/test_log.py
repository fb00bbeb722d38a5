"""Log datasets on Spark: the view, the fold into periods, loads; each compared with an oracle in Python."""

import datetime
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone import Conflict, Dataset, InvalidRequest, Lake, Settings
from siltstone.dataset.read import spark_frames
from siltstone.erasure.scan import scan
from siltstone.failpoints import arm
from tests.support.clicks import NAME, SCHEMA, START, Oracle, Row, as_counter, click, clicks, create, period_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

both_sizes = pytest.mark.parametrize("arrow_changes_rows", [200_000, 0], ids=["as Arrow", "by executors"])


@pytest.fixture
def arrow_changes_rows() -> int:
    """Small change sets reach Spark as Arrow, unless a test requests `both_sizes`."""
    return 200_000


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession", arrow_changes_rows: int) -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=Settings(arrow_changes_rows=arrow_changes_rows)) as opened:
        yield opened


@pytest.fixture
def log(lake: Lake) -> Dataset:
    return create(lake)


def check(log: Dataset, oracle: Oracle) -> None:
    """Check that all readers return the oracle's rows."""
    assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
    assert as_counter(log.read().toArrow()) == as_counter(oracle.rows)


def base(log: Dataset) -> pa.Table:
    """Return the rows of base as another program reads them."""
    return DeltaTable(log.path / "base").to_pyarrow_table()


@both_sizes
def test_readers_agree_before_and_after_folds_and_squashes(log: Dataset) -> None:
    oracle, dice = Oracle(), random.Random(7)
    for turn in range(7):
        rows = [click(dice.randrange(6), account=dice.choice([None, 0, 1])) for _ in range(5)]
        log.append(rows)
        oracle.append(rows)
        if turn % 3 == 1:
            named: list[Row] = [
                {"visitor": f"V-{dice.randrange(5)}"},
                {"account": 1, "visitor": f"V-{dice.randrange(5)}"},
            ]
            log.tombstone(named)
            oracle.tombstone(named)
        if turn % 5 == 4:
            log.squash()
        if turn % 4 == 2:
            check(log, oracle)
            raw = log.read(raw=True)
            assert raw.columns == SCHEMA.names
            assert as_counter(raw.toArrow()) == as_counter(log.to_arrow(raw=True))
            report = log.compact()
            assert report.final_rows == len(oracle.rows)
            check(log, oracle)
            assert as_counter(log.to_arrow(raw=True)) == as_counter(oracle.rows)


def test_a_fold_puts_rows_into_their_hour_and_partition(log: Dataset) -> None:
    log.append(clicks(10))
    log.append(clicks(3))
    report = log.compact()
    assert (report.change_rows, report.upserts_applied, report.final_rows, report.files_removed) == (13, 13, 13, 0)
    rows_of_base = base(log)
    assert as_counter(rows_of_base.select(SCHEMA.names)) == as_counter(clicks(10) + clicks(3))
    assert rows_of_base.column("_period").to_pylist() == [period_of(row) for row in rows_of_base.to_pylist()]
    assert rows_of_base.column("_batch_id").null_count == rows_of_base.column("_written_at").null_count == 0
    assert len(set(rows_of_base.column("_batch_id").to_pylist())) == 2
    groups = {(row["_period"], row["region"]) for row in rows_of_base.to_pylist()}
    assert report.files_added == len(groups)
    assert log.status().backlog_rows == 0
    log.append([click(1, n=77)])  # it arrives late
    assert log.compact().files_removed == 0
    late = base(log).filter(pc.equal(base(log).column("n"), 77))
    assert late.column("_period").to_pylist() == [period_of(click(1))]


def test_delta_readers_read_the_rows_of_base(log: Dataset, spark: "SparkSession") -> None:
    log.append(clicks(8))
    log.compact()
    frame = spark.read.format("delta").load(str(log.path / "base"))
    assert as_counter(frame.select(*SCHEMA.names).toArrow()) == as_counter(clicks(8))
    assert frame.where("_period = '2026-11-15T14' AND region IS NULL").count() == 2
    assert frame.where("region = 'eu'").count() == sum(row["region"] == "eu" for row in clicks(8))
    delta = DeltaTable(log.path / "base")
    assert delta.to_pyarrow_table(filters=[("region", "=", "eu")]).num_rows == frame.where("region = 'eu'").count()


def test_files_are_sorted_and_know_nothing_of_subjects_in_the_log(log: Dataset) -> None:
    log.append([click(0, at=START + datetime.timedelta(seconds=n), visitor=f"V-{n * 7 % 10}", n=n) for n in range(50)])
    log.compact()
    [file] = (log.path / "base" / "data").rglob("*.parquet")
    rows = pq.ParquetFile(file).read()
    assert rows.column_names == [*SCHEMA.names, "_written_at", "_batch_id"]
    order = [(row["visitor"], row["at"]) for row in rows.to_pylist()]
    assert order == sorted(order)
    entry = max((log.path / "base" / "_delta_log").glob("*.json")).read_text()
    assert "V-0" not in entry
    assert '\\"at\\"' in entry


def test_a_fold_rewrites_only_files_with_hidden_rows(log: Dataset) -> None:
    log.append(clicks(20))
    log.compact()
    before = set(DeltaTable(log.path / "base").file_uris())
    log.tombstone([{"visitor": "V-3", "account": 1}], actor="dpo")
    log.append([click(100)])
    gone = [row for row in clicks(20) if row["visitor"] == "V-3" and row["account"] == 1]
    report = log.compact()
    assert (report.tombstones_applied, report.rows_dropped_by_tombstones) == (1, len(gone))
    assert report.final_rows == 20 - len(gone) + 1
    remaining = before & set(DeltaTable(log.path / "base").file_uris())
    assert report.files_removed == len(before) - len(remaining)
    assert 0 < report.files_removed <= len(gone)
    assert log.tombstones() == []
    rows_of_base = base(log)
    assert rows_of_base.column("_period").to_pylist() == [period_of(row) for row in rows_of_base.to_pylist()]


def test_a_fold_of_tombstones_alone_can_empty_the_log(log: Dataset) -> None:
    log.append(clicks(10))
    log.compact()
    log.tombstone([{"account": 0}, {"account": 1}])
    report = log.compact()
    assert (report.final_rows, report.files_added) == (0, 0)
    assert log.to_arrow().num_rows == log.read().count() == 0


def test_hours_are_utc_whatever_zone_the_session_has(log: Dataset, spark: "SparkSession") -> None:
    times = [
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC),
        datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC),
        datetime.datetime(2026, 3, 29, 1, 0, tzinfo=datetime.UTC),
    ]
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        log.append([click(0, at=at) for at in times])
        log.compact()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    assert sorted(base(log).column("_period").to_pylist()) == [
        "0001-01-01T00",
        "1969-12-31T23",
        "2026-03-29T01",
        "9999-12-31T23",
    ]


def test_other_times_and_partitions_are_folded_too(lake: Lake) -> None:
    rows: list[Row] = [
        {"at": "2026-03-29T02:30:00", "day": "2026-01-02", "flag": True, "who": 7, "n": 1},
        {"at": "2026-03-29T02:30:00", "day": "2026-01-02", "flag": True, "who": 8, "n": -2},
        {"at": "2026-03-29T02:30:00", "day": None, "flag": False, "who": 8, "n": None},
    ]
    for kind, cut, period in (("TIMESTAMP_NTZ", 19, "2026-03-29T02"), ("DATE", 10, "2026-03-29")):
        name, schema = f"a.b.{kind.lower()}", f"at {kind}, day DATE, flag BOOLEAN, who DECIMAL(10,0), n INT"
        log = lake.create(name, schema, time="at", subject="who", partition_by=["day", "flag"])
        log.append([row | {"at": str(row["at"])[:cut]} for row in rows])
        log.compact()
        before = log.to_arrow().to_pylist()
        assert set(base(log).column("_period").to_pylist()) == {period}
        assert len(before) == 3
        fresh = Lake.open(lake.path, spark=lake.spark()).dataset(
            name
        )  # knows partition values by delta-rs, not by entries
        fresh.tombstone([7])
        remaining = [row for row in before if row["who"] != 7]
        assert as_bag(fresh.to_arrow()) == as_bag(fresh.read().toArrow()) == as_bag(remaining)
        assert fresh.compact().rows_dropped_by_tombstones == 1
        assert as_bag(fresh.to_arrow()) == as_bag(remaining)
        values = [file.partition for file in fresh.snapshot().base.files]
        assert sorted(values, key=str) == sorted(
            [
                {"_period": period, "day": "2026-01-02", "flag": "true"},
                {"_period": period, "day": None, "flag": "false"},
            ],
            key=str,
        )


def as_bag(rows: pa.Table | list[Row]) -> Counter[str]:
    return Counter(str(row) for row in (rows.to_pylist() if isinstance(rows, pa.Table) else rows))


def test_a_large_hour_becomes_several_files(lake_path: Path, spark: "SparkSession") -> None:
    with Lake.open(lake_path, spark=spark, settings=Settings(target_file_bytes=4096)) as lake:
        log = create(lake)
        rows = pa.table(
            {
                "at": pa.array([START] * 5000, SCHEMA.field("at").type),
                "visitor": [f"V-{n * 7919 % 5000:05d}" for n in range(5000)],
                "n": list(range(5000)),
            }
        )
        log.append(rows)
        report = log.compact()
        assert report.files_added >= 5
        assert report.final_rows == 5000
        ranges = []
        for file in (log.path / "base" / "data").rglob("*.parquet"):
            visitors = pq.ParquetFile(file).read(columns=["visitor"]).column("visitor").to_pylist()
            assert visitors == sorted(visitors)
            ranges.append((visitors[0], visitors[-1]))
        ranges.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))


def test_appends_beside_a_fold_are_kept(log: Dataset) -> None:
    oracle = Oracle()
    log.append(clicks(10))
    oracle.append(clicks(10))
    more = clicks(5, start=50)

    def write(_: str) -> None:
        log.append(more)
        log.tombstone([{"visitor": "V-1"}])
        log.squash()

    with arm("fold.before_commit", write):
        log.compact()
    oracle.append(more)
    oracle.tombstone([{"visitor": "V-1"}])
    check(log, oracle)
    log.compact()
    check(log, oracle)


def test_of_two_folds_one_is_refused(lake: Lake, log: Dataset) -> None:
    log.append(clicks(10))

    def other(_: str) -> None:
        lake.dataset(NAME).compact()

    with arm("fold.before_commit", other), pytest.raises(Conflict):
        log.compact()
    assert as_counter(log.to_arrow()) == as_counter(clicks(10))


def test_a_purge_leaves_no_byte_of_a_hidden_subject(log: Dataset) -> None:
    log.append([click(n, visitor="V-secret-77" if n % 4 == 0 else "V-other") for n in range(12)])
    log.compact()
    log.append([click(50, visitor="V-secret-77")])
    log.tombstone([{"visitor": "V-secret-77"}], actor="dpo", reason="request 17")
    report = log.compact(purge=True)
    assert report.purged
    assert log.to_arrow().num_rows == 9
    assert scan(log.path, ["V-secret-77"]).clean


@pytest.mark.parametrize("arrow_changes_rows", [0])
def test_sql_export_and_time_travel_work_on_logs(lake: Lake, log: Dataset, tmp_path: Path) -> None:
    log.append(clicks(10))
    log.compact()
    log.tombstone([{"visitor": "V-1"}])
    log.append(clicks(2, start=20))
    assert lake.sql(f"SELECT count(*), max(n) FROM {NAME}").rows == [(10, 21)]
    assert lake.sql(f"SELECT count(*) FROM {NAME.replace('clicks', '__raw__clicks')}").rows == [(12,)]
    report = log.export(tmp_path / "out", format="delta")
    assert report.rows == 10
    assert as_counter(DeltaTable(tmp_path / "out").to_pyarrow_table()) == as_counter(log.to_arrow())
    assert log.read(at=2).count() == log.to_arrow(at=2).num_rows == 8
    assert Counter(row["_op"] for row in log.changes(since=1).toArrow().to_pylist()) == {"D": 1, "A": 2}
    assert [entry.operation for entry in log.history()][:2] == ["append", "tombstone"]


def test_columns_added_to_a_log_are_folded(log: Dataset) -> None:
    log.append(clicks(3))
    log.compact()
    log.alter(add="page STRING", defaults={"page": "/"})
    log.append([click(3, page="/shop")])
    log.tombstone([{"visitor": "V-0"}])
    expected = Counter({"/": 2, "/shop": 1})
    for _ in range(2):
        assert Counter(log.to_arrow().column("page").to_pylist()) == expected
        assert Counter(log.read().toArrow().column("page").to_pylist()) == expected
        log.compact()


def test_a_base_of_many_files_is_read_by_its_log(log: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(clicks(6))
    log.compact()
    log.tombstone([{"visitor": "V-0"}])
    log.append([click(7)])
    monkeypatch.setattr(spark_frames, "LISTED_FILES", 1)
    found = log.read()
    assert found.columns == SCHEMA.names
    assert as_counter(found.toArrow()) == as_counter(log.to_arrow())


# ---- loads -------------------------------------------------------------------------------------------------------


def test_files_are_loaded_as_one_batch_of_appends_once_a_log_has_rows(log: Dataset, tmp_path: Path) -> None:
    log.append(clicks(2, start=90))
    expected = as_counter(clicks(30) + clicks(5) + clicks(2, start=90))
    pq.write_table(pa.Table.from_pylist(clicks(30) + clicks(5), SCHEMA), tmp_path / "in.parquet")
    report = log.ingest(tmp_path / "in.parquet")
    assert (report.rows, report.first_load, report.sequence) == (35, False, 2)
    assert as_counter(log.to_arrow()) == expected == as_counter(log.read().toArrow())
    assert log.ingest(tmp_path / "in.parquet").files_skipped == 1
    log.compact()
    assert as_counter(log.to_arrow()) == expected
    with pytest.raises(InvalidRequest, match="order_by"):
        log.ingest(tmp_path / "in.parquet", order_by="at", reload=True)


def test_bad_rows_of_a_load_are_refused_or_quarantined(log: Dataset, tmp_path: Path) -> None:
    nullable = pa.schema([f.with_nullable(True) for f in SCHEMA])  # noqa: FBT003
    rows = [click(0), click(1, at=None), click(2, region=""), click(3)]
    pq.write_table(pa.Table.from_pylist(rows, nullable), tmp_path / "in.parquet")
    with pytest.raises(InvalidRequest, match=r"\b1 row\b"):
        log.ingest(tmp_path / "in.parquet")
    report = log.ingest(tmp_path / "in.parquet", quarantine=tmp_path / "bad")
    assert (report.rows, report.rows_quarantined) == (2, 2)
    assert sorted(log.to_arrow().column("n").to_pylist()) == [0, 3]


def test_a_spark_frame_is_appended(log: Dataset, spark: "SparkSession") -> None:
    frame = spark.createDataFrame(pa.Table.from_pylist(clicks(10), SCHEMA))
    ack = log.append(frame, producer="spark", sequence=1)
    assert (ack.rows, ack.applied) == (10, True)
    assert not log.append(frame, producer="spark", sequence=1).applied
    assert as_counter(log.to_arrow()) == as_counter(clicks(10))
    with pytest.raises(InvalidRequest):
        log.append(frame, on_bad_row="skip")
