"""Roll-ups inside Spark's Python workers: read small files, sort their rows, write one file.

A task holds all its rows in memory. Its caller, `compaction.operations.merge_small_files`, bounds their number.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.spark_tasks.io import Output, Target, read_file

READ_THREADS: Final = 4
"""Files that are read in parallel. Opening dominates the cost of small files, and parallel reads hide it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """One task: the rows of these files from `low` to below `high` by the first sort column (None: no bound).

    Rows without a value belong to the lowest range.
    """

    inputs: tuple[str, ...]
    low: Any
    high: Any
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """Common parameters of all tasks of one job."""

    root: str
    target: Target
    defaults: Mapping[str, pa.Scalar]
    order: tuple[str, ...]


def merger(work: Sequence[MergeTask], job: MergeJob) -> Callable[[int], bytes]:
    """Return the function that writes one sorted file and returns its name; empty if there are no rows."""

    def merge(number: int) -> bytes:
        task = work[number]
        with ThreadPoolExecutor(READ_THREADS) as pool:
            parts = list(pool.map(lambda path: _read(path, task, job), task.inputs))
        rows = pa.concat_tables([job.target.schema.empty_table(), *parts]).combine_chunks()
        output = Output(
            target=job.target, rows_per_file=max(1, rows.num_rows), prefix=f"{number:05d}-{os.urandom(8).hex()}"
        )
        if rows.num_rows:
            output.add(rows.sort_by([(name, "ascending") for name in job.order]))
        output.close()
        return "\n".join(output.names).encode()

    return merge


def _read(path: str, task: MergeTask, job: MergeJob) -> pa.Table:
    """Read the rows of a file that are within the task's range, in the current columns."""
    rows = read_file(os.path.join(job.root, path), job.target, job.defaults)  # noqa: PTH118
    column = rows.column(job.order[0])
    masks = [] if task.low is None else [pc.greater_equal(column, pa.scalar(task.low, column.type))]
    if task.high is not None:
        masks.append(pc.less(column, pa.scalar(task.high, column.type)))
    return rows.filter(pc.fill_null(reduce(pc.and_, masks), task.low is None)) if masks else rows
