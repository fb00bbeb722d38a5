"""Merges small files of a log by Arrow inside Spark's tasks.

Each task reads the rows of its output file, and sorts them.

The rows never pass through Spark's row format, and there is no shuffle. The footers contain the range of the first sort
column of each file. The values are cut into as many ranges as there are output files. A task reads the files that
overlap its range. This suits files that were written one after the other, as those of a log are. If most files overlap
several ranges, each would be read many times. Then Spark's shuffle is better, and `merge_small_files` returns None. It
also returns None for files that are too large to be sorted in a task's memory.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.dataset.store import Store
from siltstone.delta.parquet import column_statistics, key_ranges
from siltstone.model.files import DataFile, KeyRange, whole_range
from siltstone.model.schema import default_of
from siltstone.spark.arrow_tasks import in_numbered_tasks
from siltstone.spark_tasks import merge_files
from siltstone.spark_tasks.merge_files import MergeJob, MergeTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TASK_BYTES: Final = 1024 * 1024 * 1024
"""Highest number of bytes that a task reads, in Arrow's format, because it sorts them in memory."""
MAX_READS: Final = 1.5
"""Highest ratio of bytes read to bytes stored: a file in several ranges is read several times. Above: a shuffle."""
FOOTER_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class _Input:
    """A file, its size in memory, and the range of its first sort column."""

    file: DataFile
    memory_bytes: int
    values: KeyRange
    has_nulls: bool
    """True if the column may have nulls. Rows with a null belong to the lowest range."""

    def overlaps(self, low: Any, high: Any) -> bool:  # noqa: ANN401
        """True if the file may have rows of a range. A bound of None is open."""
        if low is None and self.has_nulls:
            return True
        return (high is None or self.values.low < high) and (low is None or self.values.high >= low)


def merge_small_files(
    spark: "SparkSession", store: Store, taken: Sequence[DataFile], folder: str, *, files: int
) -> list[str] | None:
    """Write the sorted rows of files into `files` files. Return their names; None if a shuffle is better."""
    first = store.spec.sort_by[0]
    if files > 1 and pa.types.is_floating(store.schema.field(first).type):
        return None  # NaN is in no range
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        inputs = list(pool.map(lambda file: _read_input(store, file, first), taken))
    work = _divided(inputs, files)
    if work is None or any(task.memory_bytes > MAX_TASK_BYTES for task in work):
        return None
    target = store.base.make_folder(folder, exist_ok=False)
    job = MergeJob(
        root=str(store.base.path),
        target=store.task_target(store.base_schema, target),
        defaults={field.name: default_of(field) for field in store.base_schema},
        order=store.spec.sort_by,
    )
    answers = in_numbered_tasks(spark, len(work), merge_files.merger(work, job))
    return [name for _, data in answers for name in data.decode().split("\n") if name]


def _read_input(store: Store, file: DataFile, first: str) -> _Input:
    metadata = store.footer(store.base.path / file.path)
    values = whole_range(key_ranges(metadata, first))
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return _Input(file, max(size, file.size_bytes), values, _has_nulls(metadata, first))


def _has_nulls(metadata: pq.FileMetaData, name: str) -> bool:
    """Return false only if the footer proves that every row has a value."""
    statistics = column_statistics(metadata, name)
    return any(stats is None or not stats.has_null_count or stats.null_count for stats in statistics)


def _divided(inputs: Sequence[_Input], files: int) -> list[MergeTask] | None:
    """Return the tasks; None if files would be read too many times, or their ranges are not known."""
    if files == 1:
        return [_task(inputs, None, None)]
    if not all(source.values.known for source in inputs):
        return None
    edges = _edges(inputs, files)
    work = [
        _task([source for source in inputs if source.overlaps(low, high)], low, high)
        for low, high in pairwise([None, *edges, None])
    ]
    total = sum(source.memory_bytes for source in inputs)
    return work if sum(task.memory_bytes for task in work) <= MAX_READS * total else None


def _edges(inputs: Sequence[_Input], files: int) -> list[Any]:
    """Return the first value of each range except the lowest: a file begins there, and sizes are similar."""
    total = sum(source.file.size_bytes for source in inputs)
    edges: list[Any] = []
    size = 0
    for source in sorted(inputs, key=lambda source: (source.values.low, source.file.path)):
        if size >= total * (len(edges) + 1) / files and (not edges or source.values.low > edges[-1]):
            edges.append(source.values.low)
        size += source.file.size_bytes
    return edges[: files - 1]


def _task(inputs: Sequence[_Input], low: Any, high: Any) -> MergeTask:  # noqa: ANN401
    return MergeTask(
        inputs=tuple(source.file.path for source in inputs),
        low=low,
        high=high,
        memory_bytes=sum(source.memory_bytes for source in inputs),
    )
