"""Clustering of logs: rows are ordered by several columns, searches open few files, and the rows are unchanged."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone import Dataset, Lake, Settings
from siltstone.compaction.operations.rewrite import tier_of
from siltstone.errors import Conflict, InvalidRequest
from siltstone.failpoints import arm
from tests.support.clicks import Oracle, as_counter, clicks, create
from tests.support.internals import store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "web.eu.grid"
SIDE = 64
NO_TIERS = "hourly.enabled=no; daily.enabled=no; monthly.enabled=no"
START = datetime.datetime(2026, 11, 15, 14, 0, tzinfo=datetime.UTC)


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    settings = Settings(tiers=NO_TIERS, durable=False, cluster_bytes=1, cluster_share=0.9, target_file_bytes=2_000)
    with Lake.open(lake_path, spark=spark, settings=settings) as opened:
        yield opened


def grid(lake: Lake, name: str = NAME, **given: Any) -> Dataset:  # noqa: ANN401
    """A log with a row for each of 64 seconds and 64 sensors, folded in the order of sensors within seconds."""
    log = lake.create(name, "at TIMESTAMP, sensor BIGINT, label STRING", time="at", **given)
    for part in range(2):
        rows = [
            {"at": START + datetime.timedelta(seconds=second), "sensor": sensor, "label": f"{sensor * 7919 % 4096:04d}"}
            for second in range(part * SIDE // 2, (part + 1) * SIDE // 2)
            for sensor in range(SIDE)
        ]
        log.append(rows)
        log.compact()
    return log


def ranges(log: Dataset, column: str) -> list[tuple[Any, Any]]:
    """Return the smallest and largest value of a column in each file."""
    found = []
    for file in store_of(log).snapshot().base.files:
        values = pq.ParquetFile(store_of(log).base.path / file.path).read(columns=[column]).column(column).to_pylist()
        found.append((min(values), max(values)))
    return found


def opened(log: Dataset, column: str, values: list[Any]) -> float:
    """Return the average share of files that a search for one value must open."""
    files = ranges(log, column)
    found = [low <= value <= high for value in values for low, high in files]
    return found.count(True) / len(found)


def rows_of(log: Dataset) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in log.to_arrow().to_pylist())


def test_a_search_by_either_column_opens_few_files(lake: Lake) -> None:
    log = grid(lake, cluster_by=["at", "sensor"])
    before = rows_of(log)
    sensors, seconds = list(range(SIDE)), [START + datetime.timedelta(seconds=second) for second in range(SIDE)]
    assert opened(log, "sensor", sensors) == 1.0
    [done] = lake.run_cycle([NAME], only=["cluster"], force=True)
    assert done.error is None
    assert done.report is not None
    assert done.report["rows"] == SIDE * SIDE
    files = store_of(log).snapshot().base.files
    assert len(files) >= 4
    assert {tier_of(file.path) for file in files} == {"cluster"}
    assert opened(log, "sensor", sensors) <= 0.6
    assert opened(log, "at", seconds) <= 0.6
    assert rows_of(log) == before
    assert sorted(tuple(row.values()) for row in log.read().toArrow().to_pylist()) == before


def test_the_log_of_base_has_the_ranges_by_which_other_readers_skip_files(lake: Lake) -> None:
    log = grid(lake, cluster_by=["at", "sensor"])
    log.cluster()
    entries = pa.table(DeltaTable(log.path / "base").get_add_actions(flatten=True)).to_pylist()
    narrow = [one for one in entries if one["max.sensor"] - one["min.sensor"] < SIDE - 1]
    assert len(narrow) > len(entries) / 2


def test_a_clustered_base_is_not_clustered_again_until_it_has_grown(lake: Lake) -> None:
    log = grid(lake)
    assert [one.error for one in lake.run_cycle([NAME], only=["cluster"])] == [None]
    assert lake.plan([NAME], only=["cluster"]).jobs == ()
    assert log.cluster() == []
    assert log.cluster(by=["label"])
    log.append([{"at": START, "sensor": 1, "label": "new"}])
    log.compact()
    [left] = lake.plan([NAME], only=["cluster"]).left_out
    assert left.reason


@pytest.mark.parametrize(
    "by",
    [
        ["label", "sensor", "at"],
        pytest.param(["label"], marks=pytest.mark.deep),
        pytest.param(["at"], marks=pytest.mark.deep),
    ],
    ids="-".join,
)
def test_text_numbers_and_times_can_be_clustered_by(lake: Lake, by: list[str]) -> None:
    log = grid(lake)
    before = rows_of(log)
    assert sum(report.rows for report in log.cluster(by=by)) == SIDE * SIDE
    assert rows_of(log) == before


def test_nulls_odd_numbers_and_single_values_can_be_clustered(lake: Lake) -> None:
    log = lake.create(
        "web.eu.odd",
        "at TIMESTAMP, d DOUBLE, t STRING, day DATE, flag BOOLEAN, price DECIMAL(9,2)",
        time="at",
        cluster_by=["d", "t", "flag", "price"],
    )
    values = [None, float("nan"), float("inf"), -0.0, 1.5]
    rows = [
        {"at": START, "d": values[n % 5], "t": [None, "", "ä" * 100, "b"][n % 4], "flag": [None, True][n % 2]}
        for n in range(100)
    ]
    log.append(rows)
    log.compact()
    log.append(rows)
    log.compact()
    [report] = log.cluster()
    assert report.rows == 200
    assert log.to_arrow().num_rows == 200
    [report] = log.cluster(by=["day", "at"])
    assert report.rows == 200


def test_groups_tombstones_and_partitions_stay(lake: Lake) -> None:
    log = create(lake)
    oracle = Oracle()
    for _ in range(2):
        log.append(clicks(16))
        oracle.append(clicks(16))
        log.compact()
    groups = {tuple(file.partition.values()) for file in store_of(log).snapshot().base.files}
    assert len(log.cluster()) == len(groups)
    assert {tuple(file.partition.values()) for file in store_of(log).snapshot().base.files} == groups
    log.tombstone([{"visitor": "V-1"}])
    oracle.tombstone([{"visitor": "V-1"}])
    log.compact()
    assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
    assert as_counter(log.read().toArrow()) == as_counter(oracle.rows)


def test_of_a_clustering_and_a_fold_of_the_same_files_one_is_refused(lake: Lake) -> None:
    log = create(lake)
    log.append(clicks(16))
    log.compact()

    def fold(_: str) -> None:
        log.tombstone([{"visitor": f"V-{number}"} for number in range(5)])
        log.compact()

    with arm("cluster.after_write", fold), pytest.raises(Conflict):
        log.cluster()
    assert log.to_arrow().num_rows == 0


def test_a_keyed_dataset_and_columns_without_an_order_are_refused(lake: Lake) -> None:
    keyed = lake.create("web.eu.people", "id STRING, n BIGINT", key="id")
    with pytest.raises(InvalidRequest, match="keyed"):
        keyed.cluster()
    log = lake.create("web.eu.nested", "at TIMESTAMP, tags ARRAY<STRING>", time="at")
    with pytest.raises(InvalidRequest, match="'tags'"):
        log.cluster(by="tags")
    with pytest.raises(InvalidRequest, match="'nothing'"):
        log.cluster(by="nothing")
    with pytest.raises(InvalidRequest, match="cluster_by"):
        lake.create("web.eu.other", "id STRING", key="id", cluster_by=["id"])
    with pytest.raises(InvalidRequest, match="cluster_by"):
        lake.create(
            "web.eu.many", "at TIMESTAMP, a INT, b INT, c INT, d INT, e INT", time="at", cluster_by=list("abcde")
        )


def test_a_log_shows_what_it_is_clustered_by(lake: Lake) -> None:
    log = create(lake, cluster_by=["account", "at"])
    assert log.info().cluster_by == ("account", "at")
    assert create(lake, name="web.eu.usual").info().cluster_by == ("at", "region", "visitor")
