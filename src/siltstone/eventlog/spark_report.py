"""Reads an event log on Delta with Spark: all events with their indexes, and a report on builds and jobs.

Spark reads the newest version of the Delta table itself. The projection is not used. The driver receives only a few
rows of each kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from siltstone.clock import NS_PER_SECOND
from siltstone.delta.parquet import PAGE_CHECKSUMS
from siltstone.errors import InvalidRequest
from siltstone.eventlog.arrow_rows import FIRST_INDEX, IDX, POS
from siltstone.eventlog.events import EventType, JobStatus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INDEX: Final = "index"
MAX_SHOWN: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogReport:
    """Builds by outcome, jobs with their failure rates, and the slowest partitions. Times are in seconds."""

    builds: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    partitions: list[dict[str, Any]]


def read_events(spark: "SparkSession", path: str) -> "DataFrame":
    """Return every event of a log on Delta as a Spark frame, with its index, in no order."""
    from pyspark.sql import functions as F

    spark.conf.set(PAGE_CHECKSUMS, "true")  # Delta passes session options to its scans, but not options of a read
    rows = spark.read.format("delta").load(path)
    index = F.coalesce(F.col(IDX), F.col(FIRST_INDEX) + F.col(POS)).alias(INDEX)
    return rows.select(index, *[name for name in rows.columns if name not in (IDX, POS, FIRST_INDEX)])


def report(events: "DataFrame", *, limit: int) -> EventLogReport:
    """Compute the outcomes of builds, jobs and partitions; at most `limit` jobs and partitions, slowest first."""
    from pyspark.sql import functions as F

    if not 1 <= limit <= MAX_SHOWN:
        raise InvalidRequest(f"A report shows 1 to {MAX_SHOWN:,} jobs and partitions at most, not {limit:,}.")
    count, failed = F.count(F.lit(1)), F.sum(F.when(F.col("status") == JobStatus.FAILED.name, 1).otherwise(0))
    times = F.avg("seconds").alias("mean_seconds"), F.max("seconds").alias("longest_seconds")
    builds = _spans(events, EventType.BUILD_REQUEST, ["build_request_id"]).groupBy("status")
    jobs = _spans(events, EventType.JOB, ["job_run_id"], "job_label").groupBy("job_label")
    rates = count.alias("runs"), failed.alias("failed"), (failed / count).alias("failure_rate")
    partitions = _spans(events, EventType.PARTITION, ["build_request_id", "partition_ref"])
    return EventLogReport(
        builds=_rows(builds.agg(count.alias("count"), *times).orderBy("status"), MAX_SHOWN),
        jobs=_rows(jobs.agg(*rates, *times).orderBy(F.desc("longest_seconds"), "job_label"), limit),
        partitions=_rows(
            partitions.select("partition_ref", "build_request_id", "status", "seconds").orderBy(
                F.desc("seconds"), "partition_ref", "build_request_id"
            ),
            limit,
        ),
    )


def _spans(events: "DataFrame", kind: EventType, key: Sequence[str], *more: str) -> "DataFrame":
    """Return for each key the seconds between its first and its last event, and its last status."""
    from pyspark.sql import functions as F

    payload = kind.column
    inner = [name for name in (*key, *more) if name != "build_request_id"]
    status_changes = events.where(F.col(payload).isNotNull()).select(
        INDEX,
        "timestamp",
        "build_request_id",
        F.col(f"{payload}.status_name").alias("status"),
        *[F.col(f"{payload}.{name}").alias(name) for name in inner],
    )
    return status_changes.groupBy(*key).agg(
        ((F.max("timestamp") - F.min("timestamp")) / F.lit(float(NS_PER_SECOND))).alias("seconds"),
        F.max_by("status", INDEX).alias("status"),
        *[F.max_by(name, INDEX).alias(name) for name in more],
    )


def _rows(frame: "DataFrame", limit: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.limit(limit).toArrow().to_pylist()
    return rows
