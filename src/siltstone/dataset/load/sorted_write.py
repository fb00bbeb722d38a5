"""Sorts the rows of a load by key and writes them to files of the target size.

Arrow sorts large loads inside Spark's tasks, in three steps:

1. a sample of the keys gives ranges with about the same number of rows;
2. each task divides its rows by range into a file of its own (a *run*, see `spark_tasks.sort`);
3. each task gathers some ranges from all runs, sorts them one by one and writes one Parquet file.

Tasks read Parquet files themselves where they can (`FileRows`). Spark sends them other rows (`FrameRows`). Spark's
shuffle sorts loads that fit one file, and all loads where tasks cannot do this (`staged_load`).

A bad row or a repeated key ends the Arrow sort. Spark's sort then counts the bad rows and can name them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from siltstone.dataset.load.partition_groups import file_rows
from siltstone.dataset.store import Store
from siltstone.delta.table import Table
from siltstone.failpoints import reach
from siltstone.model.schema import MAX_KEY_BYTES
from siltstone.spark.arrow_tasks import TaskFunction, WorkersUnfit, answers, in_numbered_tasks
from siltstone.spark_tasks import sort as sort_task
from siltstone.spark_tasks.io import Target, packed, unpacked
from siltstone.spark_tasks.sort import FilePart, Gathering, Reading, Share, Spreading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BYTES_PER_TASK: Final = 16 * 1024 * 1024
ROWS_PER_TASK: Final = 250_000
MIN_TASKS: Final = 4
"""Smallest number of tasks that sort a load above this many tasks' bytes or rows."""
ROWS_PER_PART: Final = 1_000_000
BYTES_PER_PART: Final = 128 * 1024 * 1024
"""Bytes of a file that one task reads, if the file has row groups small enough."""
MAX_SKEW: Final = 8
"""Largest ratio of a range's rows to its share that is still sorted in memory."""
MAX_RANGE_BYTES: Final = 512 * 1024 * 1024
"""Largest range in bytes that is sorted in memory."""
GUESSED_ROW_BYTES: Final = 64
"""Assumed size of a row in a file, in bytes, where only the number of rows is known."""
IS_BAD: Final = "_is_bad"
WEIGHT: Final = "_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a load; the number of rows is 0 where it is not known."""

    size_bytes: int
    rows: int = 0

    def files(self, store: Store) -> int:
        """Number of files of the target size, raised for a medium load to keep a few cores busy."""
        return max(self.by_target(store), min(MIN_TASKS, self._tasks(self.rows)))

    def by_target(self, store: Store) -> int:
        """Number of files of the target size."""
        return max(1, math.ceil(self.size_bytes / store.settings.target_file_bytes))

    def file_rows(self, store: Store) -> int:
        """Number of rows of a file of the target size."""
        is_known = self.rows and self.size_bytes
        rows, size = (self.rows, self.size_bytes) if is_known else (1, GUESSED_ROW_BYTES)
        return file_rows(store, rows=rows, size_bytes=size)

    def ranges(self, rows: int, *, files: int) -> int:
        """Number of ranges, each sorted in memory by itself, for the counted number of rows."""
        return max(files, self._tasks(rows))

    def _tasks(self, rows: int) -> int:
        return max(math.ceil(self.size_bytes / BYTES_PER_TASK), math.ceil(rows / ROWS_PER_TASK))


UNKNOWN_SIZE: Final = Size(size_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedFiles:
    """The written files by name, and the number of rows that were read for them."""

    names: list[str]
    rows: int


def runs_folder(folder: str) -> str:
    """Return the folder of a load's runs. The caller removes it after the write."""
    return f"{folder}-runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRows:
    """Rows of a Spark frame; `bad` marks the bad ones."""

    frame: "DataFrame"
    bad: "Column"

    @property
    def spark(self) -> "SparkSession":
        """The session that runs the tasks."""
        return self.frame.sparkSession

    def sampled(self, key: tuple[str, ...], work: TaskFunction) -> pa.Table:
        """Run tasks over the key columns of all rows."""
        return answers(self.frame.select(*key), work, sort_task.SAMPLED)

    def spread(self, work: TaskFunction) -> pa.Table:
        """Run tasks over all rows, with a column `IS_BAD`."""
        return answers(self.frame.withColumn(IS_BAD, self.bad), work, sort_task.SPREAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFile:
    """A file to load, its number of rows and its size."""

    path: Path
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """Rows of Parquet files that fit the dataset's columns. Tasks read them, so they never become Spark rows."""

    spark: "SparkSession"
    files: tuple[ParquetFile, ...]
    store: Store

    def sampled(self, key: tuple[str, ...], work: TaskFunction) -> pa.Table:
        """Run tasks over the key columns of all rows."""
        schema = self.store.schema
        return self._read(pa.schema([schema.field(name) for name in key]), work, sort_task.SAMPLED, bad=None)

    def spread(self, work: TaskFunction) -> pa.Table:
        """Run tasks over all rows, with a column `IS_BAD`."""
        return self._read(self.store.schema, work, sort_task.SPREAD, bad=IS_BAD)

    def _read(self, schema: pa.Schema, work: TaskFunction, output: str, *, bad: str | None) -> pa.Table:
        reading = Reading(
            schema=pa.schema([field.with_nullable(True) for field in schema]),  # noqa: FBT003
            required=tuple(field.name for field in self.store.schema if not field.nullable),
            key=self.store.spec.key,
            max_key_bytes=MAX_KEY_BYTES,
            bad=bad,
        )
        tasks = list(self._tasks())
        numbers = self.spark.range(0, len(tasks), 1, numPartitions=len(tasks))
        return answers(numbers, sort_task.over_files(work, tasks, reading), output)

    def _tasks(self) -> Iterator[list[FilePart]]:
        """Yield the input of each task: parts of large files, several small ones together."""
        small: list[FilePart] = []
        rows = size = 0
        for file in self.files:
            count = max(1, math.ceil(file.rows / ROWS_PER_PART), math.ceil(file.size_bytes / BYTES_PER_PART))
            parts = [FilePart(path=str(file.path), number=number, of=count) for number in range(count)]
            if count > 1:
                yield from ([part] for part in parts)
                continue
            if small and (rows + file.rows > ROWS_PER_PART or size + file.size_bytes > BYTES_PER_PART):
                yield small
                small, rows, size = [], 0, 0
            small += parts
            rows, size = rows + file.rows, size + file.size_bytes
        if small:
            yield small


Rows = FrameRows | FileRows


def write_sorted(
    rows: Rows, store: Store, size: Size | None, *, schema: pa.Schema, table: Table, folder: str
) -> SortedFiles | None:
    """Write rows into the folder, sorted by key.

    Return None if a row is bad, a key is repeated, or tasks cannot do this.
    """
    target, runs = (table.make_folder(made, exist_ok=False) for made in (folder, runs_folder(folder)))
    key = store.spec.key
    try:
        sampled = rows.sampled(key, sort_task.sampler()).to_pylist()
        sample = [(row["rows"], unpacked(row["keys"])) for row in sampled]
        count = sum(task_rows for task_rows, _ in sample)
        size = size or Size(size_bytes=count * GUESSED_ROW_BYTES, rows=count)
        if not count or size.files(store) == 1:
            return None
        bounds = _bounds(sample, key, size.ranges(count, files=size.files(store)))
        spread = _spread(rows, Spreading(folder=str(runs), key=key, bounds=packed(bounds), bad=IS_BAD))
        if spread is None or not spread.fits_memory():
            return None
        reach("ingest.after_spread")
        return _gather(rows.spark, spread, key, size.files(store), target=store.task_target(schema, target))
    except WorkersUnfit:
        return None


def _bounds(sample: list[tuple[int, pa.Table]], key: tuple[str, ...], ranges: int) -> pa.Table:
    """Return the first key of each range except the lowest, sorted and distinct.

    `sample` has for each task the number of its rows, and some of their keys.
    """
    parts = [(rows / keys.num_rows, keys.drop_null()) for rows, keys in sample if keys.num_rows]
    weights = np.concatenate([np.full(keys.num_rows, weight) for weight, keys in parts])
    table = pa.concat_tables([keys for _, keys in parts]).combine_chunks()
    table = table.append_column(WEIGHT, pa.array(weights)).sort_by([(name, "ascending") for name in key])
    reached = np.cumsum(table.column(WEIGHT).to_numpy())
    at = np.searchsorted(reached, reached[-1] * np.arange(1, ranges) / ranges) if len(reached) else []
    rows = table.select(list(key))
    return rows.take(pa.array(at, pa.int64())).group_by(list(key), use_threads=False).aggregate([])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """The runs, and the number of rows of each range."""

    runs: tuple[str, ...]
    counts: list[int]
    size_bytes: int

    def fits_memory(self) -> bool:
        """True if the fullest range can be sorted in memory, by its rows and the average size of a row."""
        most, rows = max(self.counts), sum(self.counts)
        even = max(ROWS_PER_TASK, rows // len(self.counts))
        return most <= MAX_SKEW * even and most * self.size_bytes // max(1, rows) <= MAX_RANGE_BYTES


def _spread(rows: Rows, job: Spreading) -> _Spread | None:
    """Divide the rows of each task by range; None if there is a bad row."""
    done = rows.spread(sort_task.spreader(job)).to_pylist()
    if not done or not all(row["clean"] for row in done):
        return None
    counts = np.sum([np.frombuffer(row["counts"], "<i8") for row in done], axis=0)
    return _Spread(
        runs=tuple(f"{job.folder}/{row['name']}" for row in done),
        counts=counts.tolist(),
        size_bytes=sum(row["bytes"] for row in done),
    )


def _gather(
    spark: "SparkSession", spread: _Spread, key: tuple[str, ...], files: int, *, target: Target
) -> SortedFiles | None:
    """Gather and sort some ranges in each task; None if a key is repeated."""
    ranges = len(spread.counts)
    files = min(files, ranges)
    edges = [ranges * number // files for number in range(files + 1)]
    shares = [
        Share(low=low, high=high, rows=rows) for low, high in pairwise(edges) if (rows := sum(spread.counts[low:high]))
    ]
    job = Gathering(target=target, key=key, runs=spread.runs, ranges=ranges)
    work = sort_task.gatherer(shares, job)
    results = [data for _, data in in_numbered_tasks(spark, len(shares), work)]
    if not all(results):
        return None
    return SortedFiles(names=[name for data in results for name in data.decode().split("\n")], rows=sum(spread.counts))
