"""Rows of a load brought into the order of their keys and into files of the target size.

Large loads are sorted by Arrow inside Spark's tasks, in three steps: a sample of the keys gives ranges of about as many rows;
each task spreads its rows over the ranges into a file of its own (a *run*, see `arrange_worker`); then each task gathers some
ranges from all runs, sorts them one by one and writes one Parquet file. Rows pass through Spark's row format once, on their
way in, whatever they are read from. Loads that fit one file, and all where tasks cannot do this, are sorted by Spark's shuffle.

A bad row or a repeated key ends the quick way: the other one counts them and can say which.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from siltstone.dataset import arrange_worker
from siltstone.dataset.arrange_worker import Gathering, Share, Spreading
from siltstone.dataset.store import Store
from siltstone.dataset.task_files import Target, packed, unpacked
from siltstone.dataset.tasks import WorkersUnfit, answers, in_numbered_tasks, store_target
from siltstone.failpoints import reach

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BYTES_PER_TASK: Final = 16 * 1024 * 1024
ROWS_PER_TASK: Final = 250_000
MIN_TASKS: Final = 4
"""A load above this many tasks' bytes or rows is sorted by this many tasks at least."""
MAX_SKEW: Final = 8
"""A range with so many times the rows that it should have is not sorted in memory."""
GUESSED_ROW_BYTES: Final = 64
"""What a row takes in a file, where nothing is known but the number of rows."""
IS_BAD: Final = "_is_bad"
WEIGHT: Final = "_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a load is; the number of rows is 0 where it is not known."""

    size_bytes: int
    rows: int = 0

    def files(self, store: Store) -> int:
        """Files of the target size, but enough of them to keep a few cores busy with a middling load."""
        by_target = math.ceil(self.size_bytes / store.settings.target_file_bytes)
        return max(1, by_target, min(MIN_TASKS, self._tasks(self.rows)))

    def ranges(self, rows: int, *, files: int) -> int:
        """Ranges that are sorted in memory, each by itself, given the number of rows that were counted."""
        return max(files, self._tasks(rows))

    def _tasks(self, rows: int) -> int:
        return max(math.ceil(self.size_bytes / BYTES_PER_TASK), math.ceil(rows / ROWS_PER_TASK))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """The files that were written, by name, and how many rows were read for them."""

    names: list[str]
    rows: int


def sorted_by_spark(frame: "DataFrame", store: Store, size: Size | None) -> "DataFrame":
    """Return the frame in ranges of keys, as many as there should be files, each of them sorted."""
    key = store.spec.key
    files = size.files(store) if size is not None else 1
    return frame.repartitionByRange(files, *key).sortWithinPartitions(*key)


def runs_folder(folder: str) -> str:
    """Return where the runs of a load lie until it is written; remove it afterwards."""
    return f"{folder}-runs"


def arranged(
    frame: "DataFrame", bad: "Column", store: Store, size: Size | None, *, schema: pa.Schema, folder: Path
) -> Arranged | None:
    """Write the frame into the folder, sorted by key; None if a row is bad, a key is repeated or tasks cannot do this."""
    runs = folder.parent / runs_folder(folder.name)
    for made in (folder, runs):
        made.mkdir(parents=True)
    try:
        rows, sample = _sampled(frame, store.spec.key)
        size = size or Size(size_bytes=rows * GUESSED_ROW_BYTES, rows=rows)
        if size.files(store) == 1:
            return None
        bounds = _bounds(sample, store.spec.key, size.ranges(rows, files=size.files(store)))
        spread = _spread(frame.withColumn(IS_BAD, bad), bounds, store.spec.key, folder=runs)
        if spread is None or max(spread.counts) > MAX_SKEW * max(ROWS_PER_TASK, rows // len(spread.counts)):
            return None
        reach("ingest.after_spread")
        return _gather(frame, spread, store, size.files(store), target=store_target(store, schema, folder))
    except WorkersUnfit:
        return None


_Sample = list[tuple[int, pa.Table]]
"""Of each task, how many rows it had, and some of their keys."""


def _sampled(frame: "DataFrame", key: tuple[str, ...]) -> tuple[int, _Sample]:
    """Count the rows and take a sample of their keys."""
    told = answers(frame.select(*key), arrange_worker.sampler(), arrange_worker.SAMPLED, modules=(arrange_worker,))
    sample = [(row["rows"], unpacked(row["keys"])) for row in told.to_pylist()]
    return sum(rows for rows, _ in sample), sample


def _bounds(sample: _Sample, key: tuple[str, ...], wanted: int) -> pa.Table:
    """Return the first key of each range but the lowest, sorted and distinct."""
    parts = [(rows / keys.num_rows, keys.drop_null()) for rows, keys in sample if keys.num_rows]
    weights = np.concatenate([np.full(keys.num_rows, weight) for weight, keys in parts])
    table = pa.concat_tables([keys for _, keys in parts]).combine_chunks()
    table = table.append_column(WEIGHT, pa.array(weights)).sort_by([(name, "ascending") for name in key])
    reached = np.cumsum(table.column(WEIGHT).to_numpy())
    at = np.searchsorted(reached, reached[-1] * np.arange(1, wanted) / wanted) if len(reached) else []
    rows = table.select(list(key))
    return rows.take(pa.array(at, pa.int64())).group_by(list(key), use_threads=False).aggregate([])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """The runs, and how many rows each range has."""

    runs: tuple[str, ...]
    counts: list[int]


def _spread(frame: "DataFrame", bounds: pa.Table, key: tuple[str, ...], *, folder: Path) -> _Spread | None:
    """Let each task spread its rows over the ranges; None if there is a bad row."""
    job = Spreading(folder=str(folder), key=key, bounds=packed(bounds), bad=IS_BAD)
    told = answers(frame, arrange_worker.spreader(job), arrange_worker.SPREAD, modules=(arrange_worker,))
    done = told.to_pylist()
    if not done or not all(row["clean"] for row in done):
        return None
    counts = np.sum([np.frombuffer(row["counts"], "<i8") for row in done], axis=0)
    return _Spread(runs=tuple(str(folder / row["name"]) for row in done), counts=counts.tolist())


def _gather(frame: "DataFrame", spread: _Spread, store: Store, files: int, *, target: Target) -> Arranged | None:
    """Let each task gather and sort some ranges; None if a key is repeated."""
    ranges = len(spread.counts)
    files = min(files, ranges)
    edges = [ranges * number // files for number in range(files + 1)]
    shares = [
        Share(low=low, high=high, rows=rows) for low, high in pairwise(edges) if (rows := sum(spread.counts[low:high]))
    ]
    job = Gathering(target=target, key=store.spec.key, runs=spread.runs, ranges=ranges)
    work = arrange_worker.gatherer(shares, job)
    found = [data for _, data in in_numbered_tasks(frame.sparkSession, len(shares), work, modules=(arrange_worker,))]
    if not all(found):
        return None
    return Arranged(names=[name for data in found for name in data.decode().split("\n")], rows=sum(spread.counts))
