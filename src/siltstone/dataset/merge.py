"""The merged view on Spark: frames in, frames out, no actions.

Small change sets reach Spark as one Arrow table (opening a hundred small files costs more than the query); large ones
are read by the executors. A dataset without unfolded changes is the bare base scan.
No predicate on a column outside the key is ever pushed below "latest per key": the join comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from siltstone.dataset.local import latest_per_key, unfolded_rows
from siltstone.dataset.store import Snapshot, Store, sequence_of
from siltstone.model.columns import OP, POS, ROW_SEQ, SEQ, Op
from siltstone.model.files import DataFile
from siltstone.model.schema import type_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

LISTED_FILES: Final = 256
"""Up to this many base files are named to Spark one by one."""


def spark_schema(schema: "pa.Schema") -> str:
    """Return the columns in the words of Spark's DDL, without nullability: a reader promises nothing."""
    return ", ".join(f"`{f.name}` {type_name(f.type)}" for f in schema)


def arrow_frame(spark: "SparkSession", table: "pa.Table") -> "DataFrame":
    """Return an Arrow table as a frame; the types are said, as Spark would take a time without zone for one in its own."""
    ddl = spark_schema(table.schema)
    return spark.createDataFrame(table, schema=ddl) if table.num_rows else spark.createDataFrame([], ddl)


def base_frame(spark: "SparkSession", store: Store, snapshot: Snapshot) -> "DataFrame":
    """Return base, pinned to the snapshot: to exactly its files, or, where they are many, to its version.

    Resolving an old version costs Spark 0.2 s to 2 s each time, a short list of files a tenth of that; with many files the
    log's statistics are worth it, because they keep the executors from opening them all.
    """
    if len(snapshot.base.files) <= LISTED_FILES:
        return files_frame(spark, store, snapshot.base.files)
    return spark.read.format("delta").option("versionAsOf", snapshot.base.version).load(str(store.base.path))


def files_frame(spark: "SparkSession", store: Store, files: Sequence[DataFile]) -> "DataFrame":
    """Return the rows of exactly these base files."""
    ddl = spark_schema(store.schema)
    if not files:
        return spark.createDataFrame([], ddl)
    return spark.read.schema(ddl).parquet(*[str(store.base.path / file.path) for file in files])


def changes_frame(spark: "SparkSession", store: Store, snapshot: Snapshot) -> "DataFrame":
    """Return Δ read by the executors: every change row above the watermark with its own sequence as ``_seq``.

    The sequence lives in the log, so it is joined by file name: that needs no version of `changes` to stay readable.
    """
    from pyspark.sql import functions as F

    files = snapshot.unfolded
    rows = (
        spark.read.schema(spark_schema(store.change_schema))
        .parquet(*[str(store.changes.path / file.path) for file in files])
        .withColumn("_name", F.col("_metadata.file_name"))
    )
    names = spark.createDataFrame(
        [(file.path.rsplit("/", 1)[-1], sequence_of(file)) for file in files], f"_name string, {SEQ} long"
    )
    own = F.coalesce(F.col(ROW_SEQ), F.col(SEQ))
    return (
        rows.join(F.broadcast(names), "_name")
        .withColumn(SEQ, own)
        .drop("_name", ROW_SEQ)
        .where(F.col(SEQ) > snapshot.watermark)
    )


@dataclass(frozen=True, slots=True)
class Overlay:
    """The last change of each key, ready to be laid over base: the keys it hides, and the rows it brings."""

    keys: "DataFrame"
    upserts: "DataFrame"
    small: bool


def overlay_frames(spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool = False) -> Overlay:
    """Return the last changes as frames; with `raw`, tombstones do not count.

    A small set is kept with the store until the dataset changes, so that a second read of the same changes neither opens
    their files nor hands them over again.
    """
    if snapshot.unfolded_rows <= store.settings.arrow_changes_rows:
        return store.frames.get(
            (snapshot.changes.version, snapshot.watermark, raw), spark, lambda: _small(spark, store, snapshot, raw=raw)
        )
    return _large(spark, store, snapshot, raw=raw)


def _small(spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool) -> Overlay:
    import pyarrow.compute as pc

    rows = unfolded_rows(store, snapshot, columns=[*store.schema.names, OP])
    if raw:
        rows = rows.filter(pc.not_equal(rows.column(OP), Op.TOMBSTONE.value))
    latest = latest_per_key(rows, store.spec.key)
    upserts = latest.filter(pc.equal(latest.column(OP), Op.UPSERT.value))
    return Overlay(
        arrow_frame(spark, latest.select(list(store.spec.key))),
        arrow_frame(spark, upserts.select(store.schema.names)),
        True,  # noqa: FBT003
    )


def _large(spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool) -> Overlay:
    from pyspark.sql import functions as F

    changes = changes_frame(spark, store, snapshot)
    if raw:
        changes = changes.where(F.col(OP) != Op.TOMBSTONE.value)
    latest = latest_of(changes, store.spec.key)
    upserts = latest.where(F.col(OP) == Op.UPSERT.value).select(*store.schema.names)
    return Overlay(latest.select(*store.spec.key), upserts, False)  # noqa: FBT003


def latest_of(changes: "DataFrame", key: Sequence[str]) -> "DataFrame":
    """Keep the last row of each key by (sequence, position)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*key).orderBy(F.col(SEQ).desc(), F.col(POS).desc())
    return changes.withColumn("_rank", F.row_number().over(order)).where(F.col("_rank") == 1).drop("_rank")


def merged_frame(spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool = False) -> "DataFrame":
    """Return the merged view: base without the changed keys, and the upserts among the last changes."""
    base = base_frame(spark, store, snapshot)
    if not snapshot.unfolded:
        return base
    over = overlay_frames(spark, store, snapshot, raw=raw)
    kept = without_keys(base, over, key=store.spec.key, schema=store.schema).select(*store.schema.names)
    return kept.unionByName(over.upserts)


def without_keys(base: "DataFrame", over: Overlay, *, key: Sequence[str], schema: "pa.Schema") -> "DataFrame":
    """Return the base rows whose key was not changed.

    Spark looks a number up in a broadcast table faster than text, so other keys than numbers are found by their hash.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F

    if not over.small or (len(key) == 1 and pa.types.is_integer(schema.field(key[0]).type)):
        return base.join(join_side(over.keys, broadcast=over.small), list(key), "left_anti")
    changed, same = by_hash(over.keys, key)
    return base.join(F.broadcast(changed), same, "left_anti")


def by_hash(changed: "DataFrame", key: Sequence[str]) -> "tuple[DataFrame, Column]":
    """Return the frame with its key under other names beside its hash, and the condition that joins it to rows by key.

    The key itself is compared by two inequalities: an equality would become part of the lookup, and that is what is slow.
    """
    from pyspark.sql import functions as F

    renamed = changed.withColumn("_hash", F.xxhash64(*key))
    same = F.xxhash64(*key) == F.col("_hash")
    for number, column in enumerate(key):
        renamed = renamed.withColumnRenamed(column, f"_key{number}")
        same = same & (F.col(column) >= F.col(f"_key{number}")) & (F.col(column) <= F.col(f"_key{number}"))
    return renamed, same


def join_side(changed: "DataFrame", *, broadcast: bool) -> "DataFrame":
    """Say how the changed keys meet the base: a small set goes to every task, a large one never through the driver."""
    from pyspark.sql import functions as F

    return F.broadcast(changed) if broadcast else changed.hint("shuffle_hash")
