"""A log on Delta as Spark sees it: the same events, and a report that adds up."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from siltstone.errors import InvalidRequest
from siltstone.eventlog.events import BuildStatus, EventType, JobStatus
from siltstone.eventlog.log import EventLog
from tests.support.histories import history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLog]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with EventLog.open(f"delta://{tmp_path}/log") as opened:
        events = list(history(300, seed=31))
        for start in range(0, len(events), 60):
            opened.append(*events[start : start + 60])
        yield opened


def test_spark_sees_every_event_with_its_index(log: EventLog, spark: "SparkSession") -> None:
    rows = log.read(spark).orderBy("index").toArrow().to_pylist()
    events = list(log.events())
    assert [(row["index"], row["event_id"]) for row in rows] == [(one.index, one.event.event_id) for one in events]
    for row, one in zip(rows, events, strict=True):
        assert [kind for kind in EventType if row[kind.column] is not None] == [one.event.type]


def test_the_report_adds_up(log: EventLog, spark: "SparkSession") -> None:
    found, summary = log.report(spark, limit=1000), log.summary()
    assert {row["status"]: row["count"] for row in found.builds} == summary.builds
    assert sum(row["runs"] for row in found.jobs) == sum(summary.jobs.values())
    assert sum(row["failed"] for row in found.jobs) == summary.jobs[JobStatus.FAILED.name]
    assert all(row["failure_rate"] == row["failed"] / row["runs"] for row in found.jobs)
    times = [row["seconds"] for row in found.partitions]
    assert times == sorted(times, reverse=True)
    assert BuildStatus.RECEIVED.name not in {row["status"] for row in found.partitions}
    assert len(log.report(spark, limit=2).partitions) == 2


def test_other_logs_are_not_for_spark(spark: "SparkSession", log: EventLog) -> None:
    with EventLog.open("memory:") as other, pytest.raises(InvalidRequest, match="memory:"):
        other.read(spark)
    with pytest.raises(InvalidRequest, match="1,000"):
        log.report(spark, limit=0)
