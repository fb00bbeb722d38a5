"""A dataset's files and rows as Spark frames, and joins by key: the parts of reads and folds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.dataset.snapshot import Snapshot, sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.parquet import PAGE_CHECKSUMS
from siltstone.model.columns import POS, ROW_SEQ, SEQ
from siltstone.model.files import DataFile
from siltstone.model.schema import default_text, to_struct_json, type_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

LISTED_FILES: Final = 256
"""Largest number of base files that are passed to Spark by name."""


def spark_schema(schema: pa.Schema) -> str:
    """Return the columns as Spark DDL, without nullability: a reader guarantees none."""
    return ", ".join(f"`{f.name}` {type_name(f.type)}" for f in schema)


def scan_schema(schema: pa.Schema) -> "StructType | str":
    """Return the columns for a scan of Parquet files, of which some may be older than some columns.

    For a column that a file lacks Spark shows null, or its existence default, an expression in the field's metadata.
    """
    defaults = {f.name: text for f in schema if (text := default_text(f)) is not None}
    if not defaults:
        return spark_schema(schema)
    from pyspark.sql.types import StructType

    struct = to_struct_json(pa.schema([f.with_nullable(True).with_metadata({}) for f in schema]))  # noqa: FBT003
    for field in struct["fields"]:
        if field["name"] in defaults:
            value = f"CAST(CAST(X'{defaults[field['name']].encode().hex()}' AS STRING) AS {field['type']})"
            field["metadata"] = {"EXISTS_DEFAULT": value, "CURRENT_DEFAULT": value}
    return StructType.fromJson(struct)


def arrow_frame(spark: "SparkSession", table: pa.Table) -> "DataFrame":
    """Return an Arrow table as a frame.

    Types are explicit, because Spark would read a time without zone in its own zone.
    Chunks are combined first, because PySpark 4.2 loses every row that comes after an empty chunk.
    """
    ddl = spark_schema(table.schema)
    return spark.createDataFrame(table.combine_chunks() if table.num_rows else [], ddl)


def scan(spark: "SparkSession", store: Store, schema: pa.Schema, paths: Sequence[Path]) -> "DataFrame":
    """Return the rows of exactly these files of the dataset. Spark verifies the checksums of their pages.

    Spark cannot verify footers and indexes. This process does, once for each file.
    """
    store.check_files(paths)
    verify = str(store.settings.verify_checksums).lower()
    return spark.read.schema(scan_schema(schema)).option(PAGE_CHECKSUMS, verify).parquet(*map(str, paths))


def base_frame(spark: "SparkSession", store: Store, snapshot: Snapshot) -> "DataFrame":
    """Return base, pinned to the snapshot: to exactly its files, or, where they are many, to its version.

    Resolving an old version costs Spark 0.2 s to 2 s each time. A short list of files costs a tenth of that. With many
    files the log's statistics are worth it, because they keep the executors from opening all files.
    """
    if len(snapshot.base.files) <= LISTED_FILES or any(default_text(f) is not None for f in store.schema):
        return files_frame(spark, store, snapshot.base.files)
    if store.settings.verify_checksums:
        store.check_files([store.base.path / file.path for file in snapshot.base.files])
        spark.conf.set(PAGE_CHECKSUMS, "true")  # Delta passes options of a read to no scan, only those of the session
    return spark.read.format("delta").option("versionAsOf", snapshot.base.version).load(str(store.base.path))


def files_frame(spark: "SparkSession", store: Store, files: Sequence[DataFile]) -> "DataFrame":
    """Return the rows of exactly these base files."""
    if not files:
        return spark.createDataFrame([], spark_schema(store.schema))
    return scan(spark, store, store.schema, [store.base.path / file.path for file in files])


def changes_frame(spark: "SparkSession", store: Store, snapshot: Snapshot) -> "DataFrame":
    """Return Δ read by the executors: every change row above the watermark with its own sequence as ``_seq``.

    The sequence is in the log and is joined by file name. So no version of `changes` has to stay readable.
    """
    from pyspark.sql import functions as F

    files = snapshot.unfolded
    scanned = scan(spark, store, store.change_schema, [store.changes.path / file.path for file in files])
    rows = scanned.withColumn("_name", F.col("_metadata.file_name"))
    names = spark.createDataFrame(
        [(file.path.rsplit("/", 1)[-1], sequence_of(file)) for file in files], f"_name string, {SEQ} long"
    )
    rows = rows.join(F.broadcast(names), "_name").withColumn(SEQ, F.coalesce(F.col(ROW_SEQ), F.col(SEQ)))
    return rows.drop("_name", ROW_SEQ).where(F.col(SEQ) > snapshot.watermark)


def latest_of(changes: "DataFrame", key: Sequence[str]) -> "DataFrame":
    """Return the last row of each key by (sequence, position)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*key).orderBy(F.col(SEQ).desc(), F.col(POS).desc())
    return changes.withColumn("_rank", F.row_number().over(order)).where(F.col("_rank") == 1).drop("_rank")


def by_hash(changed: "DataFrame", key: Sequence[str]) -> "tuple[DataFrame, Column]":
    """Return the frame with its key renamed beside its hash, and the condition that joins it to rows by key.

    The key itself is compared by two inequalities, because an equality would become part of the lookup, which is slow.
    """
    from pyspark.sql import functions as F

    renamed = changed.withColumn("_hash", F.xxhash64(*key))
    same = F.xxhash64(*key) == F.col("_hash")
    for number, column in enumerate(key):
        renamed = renamed.withColumnRenamed(column, f"_key{number}")
        same = same & (F.col(column) >= F.col(f"_key{number}")) & (F.col(column) <= F.col(f"_key{number}"))
    return renamed, same


def join_side(changed: "DataFrame", *, broadcast: bool) -> "DataFrame":
    """Choose the join of changed keys and base: a small set is broadcast, a large one never passes the driver."""
    from pyspark.sql import functions as F

    return F.broadcast(changed) if broadcast else changed.hint("shuffle_hash")


@contextmanager
def persisted_on_disk(frame: "DataFrame") -> "Iterator[DataFrame]":
    """Cache the frame on disk inside the block, so that Spark computes it once."""
    from pyspark import StorageLevel

    persisted = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield persisted
    finally:
        persisted.unpersist()
