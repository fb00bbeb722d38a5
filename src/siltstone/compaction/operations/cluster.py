"""The clustering: sorts the rows of a period of a log by several columns at once.

A search by any of them opens few files.

`rewrite` plans, verifies and commits the job. The order is a *Z-order*: rows that are close in it are close in each of
the columns. Each column's values are cut into ranges. The number of a value's range is its *rank*. The bits of the
ranks are interleaved, the highest bits first and the columns in rotation. So each column has its share of the order. A
column with few different values has few bits. A column with a single value has none, and costs the others nothing.

Spark computes everything:

1. One task sorts a sample of the rows column by column. Every 64th part of it leaves Spark as a bound.
2. A tree of comparisons with the bounds, which Spark compiles, finds each row's rank in each column. The interleaved
   bits of the ranks are the row's position.
3. Rows are divided by ranges of positions, into as many files as planned, and sorted by position inside each file.

No row reaches the driver, independent of the number of rows. Partition columns have one value in a job, and are left
out.

Only logs are clustered. Base files of a keyed dataset are sorted by key, and folds, lookups and merged reads rely on
it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from siltstone.compaction.operations.rewrite import rewrite
from siltstone.compaction.planning.model import CLUSTERED, JobKind, JobSpec, by_period
from siltstone.compaction.planning.table_state import base_entry
from siltstone.dataset.read.spark_frames import scan
from siltstone.dataset.store import Store
from siltstone.errors import InvalidRequest
from siltstone.model.files import DataFile
from siltstone.model.reports import ClusterEstimate, ClusterPeriod, RollUpReport
from siltstone.model.schema import check_order
from siltstone.model.spec import MOST_CLUSTER_COLUMNS
from siltstone.spark.output_files import write_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

POSITION: Final = "_position"
RANGES: Final = 64
"""Number of ranges of a column. Four columns have 24 bits, which is more positions than any period has files."""
SAMPLE_ROWS: Final = 20_000
"""Approximate number of rows in the sample for bounds. One task sorts them."""
TEXT_CHARS: Final = 64
"""Number of leading characters by which text is compared. Bounds need no more."""


def cluster(
    spark: "SparkSession", store: Store, spec: JobSpec, *, epoch: int | None = None, job: str = ""
) -> RollUpReport:
    """Run one planned clustering, by the columns of the plan; default: the dataset's columns. See `rewrite`."""
    if not store.spec.is_log:
        raise _keyed(store)

    def write(taken: Sequence[DataFile], folder: str) -> None:
        rows = scan(spark, store, store.base_schema, [store.base.path / file.path for file in taken])
        names = _order(store, spec.by)
        values = [comparable(store.schema.field(name)) for name in names]
        positioned = rows.withColumn(POSITION, _position(rows, values, count=sum(file.rows for file in taken)))
        order, files = [POSITION, *names], max(1, spec.files_after)
        divided = positioned.coalesce(1) if files == 1 else positioned.repartitionByRange(files, *order)
        ordered = divided.sortWithinPartitions(*order).drop(POSITION)
        write_frame(ordered, store.base.path, folder, schema=store.base_schema, key=store.spec.found_by)

    return rewrite(spark, store, spec, write, mark=CLUSTERED, epoch=epoch, job=job)


def whole_base(store: Store, *, by: Sequence[str] = ()) -> list[JobSpec]:
    """Return the clusterings of all periods and partitions of base that are not clustered yet.

    By columns that differ from the dataset's own, all periods and partitions are clustered.
    """
    if not store.spec.is_log:
        raise _keyed(store)
    check_order(store.schema, by, most=MOST_CLUSTER_COLUMNS)
    groups = by_period(map(base_entry, store.snapshot().base.files))
    return [
        JobSpec(
            kind=JobKind.CLUSTER,
            lane=CLUSTERED,
            dataset=str(store.name),
            period=period,
            partition=partition,
            target_bytes=store.settings.target_file_bytes,
            by=tuple(by),
        ).over(files)
        for (period, partition), files in groups
        if (by and tuple(by) != store.spec.clustered_by) or not all(file.tier == CLUSTERED for file in files)
    ]


def estimate(store: Store, *, by: Sequence[str] = ()) -> ClusterEstimate:
    """Estimate what a clustering of the whole base would rewrite. Nothing is changed, and Spark is not used."""
    jobs, base = whole_base(store, by=by), store.snapshot().base
    return ClusterEstimate(
        dataset=str(store.name),
        columns=tuple(_order(store, by)),
        base_files=len(base.files),
        base_bytes=base.size_bytes,
        files=sum(len(job.files) for job in jobs),
        rows=sum(job.rows for job in jobs),
        bytes=sum(job.cost_bytes for job in jobs),
        periods=tuple(
            ClusterPeriod(
                period=job.period,
                partition=dict(job.partition),
                files=len(job.files),
                files_after_at_most=job.files_after,
                rows=job.rows,
                bytes=job.cost_bytes,
            )
            for job in jobs
        ),
    )


def _order(store: Store, by: Sequence[str]) -> list[str]:
    """Return the columns that define the order. Partition columns have one value in a job and are left out."""
    names = by or store.spec.clustered_by
    return [name for name in names if name not in store.spec.partition_by] or list(store.spec.sort_by)


def _keyed(store: Store) -> InvalidRequest:
    return InvalidRequest(f"Dataset {store.name} is keyed: its files are sorted by key and cannot be clustered.")


def comparable(field: pa.Field) -> "Column":
    """Return a column as numbers or text in the same order, whose bounds can be written as literals."""
    from pyspark.sql import functions as F

    column, kind = F.col(f"`{field.name}`"), field.type
    if pa.types.is_string(kind):
        return F.substring(column, 1, TEXT_CHARS)
    if pa.types.is_date(kind):
        return F.unix_date(column)
    if pa.types.is_timestamp(kind):
        return F.unix_micros(column.cast("timestamp"))
    if pa.types.is_boolean(kind):
        return column.cast("int")
    return column.cast("double" if pa.types.is_decimal(kind) or pa.types.is_floating(kind) else "long")


def _position(rows: "DataFrame", values: Sequence["Column"], *, count: int) -> "Column":
    """Return the position of a row in the order."""
    from pyspark.sql import functions as F

    bounds = _bounds(rows, values, count=count)
    parts = interleaved([len(edges) + 1 for edges in bounds])
    position = F.lit(0).cast("long")
    for value, edges, adds in zip(values, bounds, parts, strict=True):
        tree = _ranked(value, edges, adds)
        position = position.bitwiseOR(F.when(value.isNull(), F.lit(0).cast("long")).otherwise(tree))
    return position


def _bounds(rows: "DataFrame", values: Sequence["Column"], *, count: int) -> list[list[Any]]:
    """Return the first value of each range except the lowest, for each column. Only these values leave Spark."""
    from pyspark.sql import functions as F

    share = min(1.0, SAMPLE_ROWS / max(1, count))
    sample = rows.select(*[value.alias(f"_{at}") for at, value in enumerate(values)])
    if share < 1.0:
        sample = sample.sample(withReplacement=False, fraction=share, seed=0)
    lists = sample.agg(*[F.sort_array(F.collect_list(f"_{at}")).alias(f"_{at}") for at in range(len(values))])
    picks = [_picked(F.col(f"_{at}")).alias(f"_{at}") for at in range(len(values))]
    [row] = lists.select(*picks).toArrow().to_pylist()
    bounds = [row[f"_{at}"] for at in range(len(values))]
    return [sorted({value for value in column if value is not None and value == value}) for column in bounds]  # noqa: PLR0124  # not NaN


def _picked(values: "Column") -> "Column":
    """Return the values at every `RANGES`-th part of a sorted list."""
    from pyspark.sql import functions as F

    at = F.sequence(F.lit(1), F.lit(RANGES - 1))
    return F.transform(at, lambda part: F.get(values, F.floor(F.size(values) * part / RANGES).cast("int")))


def _ranked(value: "Column", bounds: Sequence[Any], adds: Sequence[int]) -> "Column":
    """Return the share of a value's rank in the position, by binary search. A bound is in the range above it."""
    from pyspark.sql import functions as F

    if not bounds:
        return F.lit(adds[0]).cast("long")
    middle = len(bounds) // 2
    below = _ranked(value, bounds[:middle], adds[: middle + 1])
    above = _ranked(value, bounds[middle + 1 :], adds[middle + 1 :])
    return F.when(value < F.lit(bounds[middle]), below).otherwise(above)


def interleaved(ranks: Sequence[int]) -> list[list[int]]:
    """Return the share of each rank of each column in a row's position. Columns are given by their numbers of ranks.

    >>> interleaved([4, 2])
    [[0, 1, 4, 5], [0, 2]]
    >>> interleaved([1, 3])
    [[0], [0, 1, 2]]
    """
    bits = [(count - 1).bit_length() for count in ranks]
    at = sum(bits)
    positions: list[list[int]] = [[] for _ in bits]  # of each column's bits, the highest bit first
    for level in range(max(bits, default=0)):
        for column, count in enumerate(bits):
            if level < count:
                at -= 1
                positions[column].append(at)
    return [
        [sum((rank >> bit & 1) << to for bit, to in enumerate(reversed(positions[column]))) for rank in range(count)]
        for column, count in enumerate(ranks)
    ]
