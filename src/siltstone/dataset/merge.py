"""The merged view on Spark: frames in, frames out, no actions.

Small change sets reach Spark as one Arrow table (opening a hundred small files costs more than the query); large ones
are read by the executors. A dataset without unfolded changes is the bare base scan.
No predicate on a column outside the key is ever pushed below "latest per key": the join comes first.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from siltstone.dataset.local import latest_per_key, unfolded_rows
from siltstone.dataset.store import Snapshot, Store, sequence_of
from siltstone.model.columns import OP, POS, ROW_SEQ, SEQ, Op
from siltstone.model.files import DataFile
from siltstone.model.schema import type_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LISTED_FILES: Final = 256
"""Up to this many base files are named to Spark one by one."""


def spark_schema(schema: "pa.Schema") -> str:
    """Return the columns in the words of Spark's DDL, without nullability: a reader promises nothing."""
    return ", ".join(f"`{f.name}` {type_name(f.type)}" for f in schema)


def arrow_frame(spark: "SparkSession", table: "pa.Table") -> "DataFrame":
    """Return an Arrow table as a frame; the types are said, as Spark would take a time without zone for one in its own."""
    return spark.createDataFrame(table, schema=spark_schema(table.schema))


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


def latest_frame(
    spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool = False
) -> "tuple[DataFrame, bool]":
    """Return the last change of each key (user columns and ``_op``), and whether it is small enough to broadcast."""
    from pyspark.sql import functions as F

    columns = [*store.schema.names, OP]
    if snapshot.unfolded_rows <= store.settings.arrow_changes_rows:
        rows = unfolded_rows(store, snapshot, columns=columns)
        if raw:
            rows = rows.filter(_is_upsert(rows))
        return arrow_frame(spark, latest_per_key(rows, store.spec.key).select(columns)), True
    frame = changes_frame(spark, store, snapshot)
    if raw:
        frame = frame.where(F.col(OP) != Op.TOMBSTONE.value)
    return latest_of(frame, store.spec.key).select(*columns), False


def _is_upsert(rows: "pa.Table") -> "pa.ChunkedArray":
    import pyarrow.compute as pc

    return pc.not_equal(rows.column(OP), Op.TOMBSTONE.value)


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
    latest, small = latest_frame(spark, store, snapshot, raw=raw)
    return overlay(base, latest, key=store.spec.key, columns=store.schema.names, broadcast=small)


def join_side(changed: "DataFrame", *, broadcast: bool) -> "DataFrame":
    """Say how the changed keys meet the base: a small set goes to every task, a large one never through the driver."""
    from pyspark.sql import functions as F

    return F.broadcast(changed) if broadcast else changed.hint("shuffle_hash")


def overlay(
    base: "DataFrame", latest: "DataFrame", *, key: Sequence[str], columns: Sequence[str], broadcast: bool
) -> "DataFrame":
    """Lay the last changes over base rows."""
    from pyspark.sql import functions as F

    keys = join_side(latest.select(*key), broadcast=broadcast)
    kept = base.join(keys, list(key), "left_anti").select(*columns)
    return kept.unionByName(latest.where(F.col(OP) == Op.UPSERT.value).select(*columns))
