"""The rows that every contender gets, and the work folder that holds them.

Base rows have the even key numbers 0, 2, 4, ... and changes pick from the whole range: nine of ten an even number (a key
that exists), one of ten an odd one (a new key between two old ones). Rows are made from their number alone, so every run
measures the same data. `Stage` prepares each size once: the source files, a lake loaded from them, and plain Delta tables
with the same rows in the same order in as many files. What is measured works on a copy of these.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone import Lake
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "bench.main.orders"
KEY: Final = "id"
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("quantity", pa.int32()),
        pa.field("price", pa.float64()),
        pa.field("amount", pa.float64()),
        pa.field("status", pa.string()),
        pa.field("note", pa.string()),
        pa.field("updated_at", pa.timestamp("us", tz="UTC")),
    ]
)
STATUSES: Final = ("new", "paid", "packed", "shipped", "returned")
FIRST_SECOND: Final = 1_735_689_600
"""2025-01-01T00:00:00Z."""
THREE_DAYS_SECONDS: Final = 259_200
NEW_KEY_EVERY: Final = 10
MEMORY_MB: Final = 6000


def settings(*, durable: bool, **others: Any) -> Settings:  # noqa: ANN401
    """Return the lake's settings: defaults, with or without fsync, and what a benchmark says besides."""
    return Settings(durable=durable, spark_memory_mb=MEMORY_MB, spark_shared=False, **others)


def change_rows(base_rows: int, count: int, *, seed: int) -> pa.Table:
    """Make rows with distinct keys scattered over the whole key range; every tenth key is new."""
    random = np.random.default_rng(seed)
    picked = (
        random.choice(base_rows, size=count, replace=False)
        if count * 10 > base_rows
        else _distinct(random, base_rows, count)
    )
    fresh = (np.arange(count) + seed) % NEW_KEY_EVERY == 0
    numbers = picked * 2 + fresh
    quantity = random.integers(1, 100, count).astype(np.int32)
    price = random.integers(100, 100_000, count) / 100.0
    times = (FIRST_SECOND + random.integers(0, 31_536_000, count)) * 1_000_000
    columns: list[Any] = [
        key_column(numbers),
        pa.array(random.integers(0, 1_000_000, count)),
        pa.array(quantity),
        pa.array(price),
        pa.array(quantity * price),
        pa.array([STATUSES[i] for i in random.integers(0, len(STATUSES), count)]),
        pa.array([f"changed {seed} {number:016x}" for number in random.integers(0, 2**62, count)]),
        pa.array(times, pa.int64()).cast(SCHEMA.field("updated_at").type),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def key_column(numbers: "np.ndarray[Any, Any]") -> pa.Array:
    """Return keys like ``K000123456``."""
    digits = pc.utf8_lpad(pa.array(numbers, pa.int64()).cast(pa.string()), width=9, padding="0")
    return pc.binary_join_element_wise("K", digits, "")


def _distinct(random: np.random.Generator, base_rows: int, count: int) -> "np.ndarray[Any, Any]":
    """Pick distinct numbers without a permutation of the whole range."""
    picked = np.unique(random.integers(0, base_rows, count))
    while len(picked) < count:
        picked = np.unique(np.concatenate([picked, random.integers(0, base_rows, count - len(picked))]))
    return random.permutation(picked)


def base_rows_frame(spark: "SparkSession", rows: int) -> "DataFrame":
    """Make the base rows on Spark, in key order."""
    from pyspark.sql import functions as F

    number = F.col("n")
    mixed = F.abs(F.xxhash64(number) % 1_000_000_007)
    quantity = (mixed % 99 + 1).cast("int")
    price = (mixed % 99_900 + 100) / F.lit(100.0)
    status = F.element_at(F.array(*[F.lit(name) for name in STATUSES]), (mixed % len(STATUSES) + 1).cast("int"))
    return (
        spark.range(0, rows, numPartitions=max(1, rows // 1_000_000))
        .withColumnRenamed("id", "n")
        .select(
            F.format_string("K%09d", number * 2).alias("id"),
            (mixed % 1_000_000).alias("customer"),
            quantity.alias("quantity"),
            price.alias("price"),
            (quantity * price).alias("amount"),
            status.alias("status"),
            F.concat(F.lit("order "), F.lpad(F.hex(F.xxhash64(number, F.lit(7))), 16, "0")).alias("note"),
            F.timestamp_seconds(F.lit(FIRST_SECOND) + mixed % 31_536_000).alias("updated_at"),
        )
    )


@dataclass(kw_only=True)
class Stage:
    """The work folder: what is prepared once, and copies of it to measure on."""

    spark: "SparkSession"
    folder: Path
    _copies: int = field(default=0, init=False)

    def source(self, rows: int) -> Path:
        """Return Parquet files with this many base rows."""

        def build(path: Path) -> None:
            base_rows_frame(self.spark, rows).write.option("compression", "zstd").parquet(str(path))

        return self._once(f"source-{rows}", build)

    def shuffled(self, rows: int) -> Path:
        """Return Parquet files with the same rows in no order."""

        def build(path: Path) -> None:
            from pyspark.sql import functions as F

            frame = self.spark.read.parquet(str(self.source(rows)))
            files = max(2, rows // 1_000_000)
            mixed = frame.repartition(files, F.xxhash64(KEY)).sortWithinPartitions(F.xxhash64(KEY))
            mixed.write.option("compression", "zstd").parquet(str(path))

        return self._once(f"shuffled-{rows}", build)

    def of_three_days(self, rows: int) -> Path:
        """Return Parquet files with the same rows in no order, all of three days: what a log is loaded from."""

        def build(path: Path) -> None:
            from pyspark.sql import functions as F

            second = F.lit(FIRST_SECOND) + F.unix_seconds("updated_at") % THREE_DAYS_SECONDS
            frame = self.spark.read.parquet(str(self.shuffled(rows)))
            frame.withColumn("updated_at", F.timestamp_seconds(second)).write.option("compression", "zstd").parquet(
                str(path)
            )

        return self._once(f"three-days-{rows}", build)

    def lake(self, rows: int) -> Path:
        """Return a lake whose one dataset was loaded from the source; do not change it."""

        def build(path: Path) -> None:
            with Lake.open(path, settings=settings(durable=False), spark=self.spark) as lake:
                lake.create(NAME, SCHEMA, key=KEY).ingest(self.source(rows))

        return self._once(f"lake-{rows}", build)

    def plain(self, rows: int, *, deletion_vectors: bool) -> Path:
        """Return a Delta table written by Spark: the lake's rows and order, in as many files; do not change it."""

        def build(path: Path) -> None:
            with Lake.open(self.lake(rows), settings=settings(durable=False), spark=self.spark) as lake:
                files = lake.dataset(NAME).status().base_files
            frame = self.spark.read.parquet(str(self.source(rows)))
            frame = frame.repartitionByRange(files, KEY).sortWithinPartitions(KEY)
            vectors = str(deletion_vectors).lower()
            frame.write.format("delta").option("delta.enableDeletionVectors", vectors).save(str(path))

        return self._once(f"{'vectors' if deletion_vectors else 'plain'}-{rows}", build)

    def _once(self, name: str, build: Callable[[Path], None]) -> Path:
        """Build under another name first: what a broken-off run left is never taken for whole."""
        path, part = self.folder / name, self.folder / f"{name}.part"
        if not path.exists():
            self.discard(part)
            build(part)
            part.rename(path)
        return path

    def copy(self, prepared: Path, name: str) -> Path:
        """Return a copy to work on. Data files are linked, because they never change; logs and locks are copied."""
        self._copies += 1
        target = self.folder / f"{name}-{self._copies}"
        self.discard(target)  # a run that was broken off may have left one
        shutil.copytree(prepared, target, copy_function=_link_or_copy)
        return target

    def discard(self, *paths: Path) -> None:
        """Remove copies."""
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith(".parquet") and "_delta_log" not in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def open_dataset(stage: Stage, path: Path, *, durable: bool) -> tuple[Lake, Dataset]:
    """Open a lake's one dataset; close the lake afterwards."""
    lake = Lake.open(path, settings=settings(durable=durable), spark=stage.spark)
    return lake, lake.dataset(NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePercent:
    """One percent of the rows changed in a hundred batches, and one percent of those removed again."""

    upserts: tuple[pa.Table, ...]
    tombstones: list[str]

    BATCHES = 100

    @classmethod
    def of(cls, rows: int) -> "OnePercent":
        """Make the changes for a base of this size."""
        count = max(cls.BATCHES, rows // 100)
        changed = change_rows(rows, count, seed=1)
        size = count // cls.BATCHES
        batches = tuple(changed.slice(i * size, size) for i in range(cls.BATCHES))
        return cls(upserts=batches, tombstones=changed.column(KEY).slice(0, max(1, count // 100)).to_pylist())

    def apply(self, dataset: Dataset) -> None:
        """Write them into a dataset."""
        for batch in self.upserts:
            dataset.upsert(batch)
        dataset.tombstone(self.tombstones)

    def merged(self) -> pa.Table:
        """Return the last change of each key, with what to do in ``_op``: what a MERGE takes."""
        rows = pa.concat_tables(self.upserts)
        gone = pc.is_in(rows.column(KEY), value_set=pa.array(self.tombstones))
        return rows.append_column("_op", pc.if_else(gone, "D", "U"))


def spread_seeds(start: int) -> Iterator[int]:
    """Yield seeds, so that no two batches of a run pick the same keys but by chance."""
    while True:
        start += 1
        yield start
