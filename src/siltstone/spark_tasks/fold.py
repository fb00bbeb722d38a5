"""Folds inside Spark's Python workers: find changed keys in base files, and rewrite those files.

Base files and changes are both sorted by key. A changed key is found by binary search. A file is read, merged and written piece
by piece, and its order stays. At most two pieces are in memory. `compaction.operations.fold_arrow` uses this module.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.spark_tasks.io import (
    PIECE_ROWS,
    Flags,
    Numbers,
    Output,
    Target,
    UnsortedFile,
    comparable,
    in_columns,
    piece_rows,
    read_file,
    unpacked,
)
from siltstone.spark_tasks.parquet_checksums import batches, open_parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldJob:
    """Common parameters of all tasks of one rewrite."""

    target: Target
    defaults: Mapping[str, pa.Scalar]
    key: tuple[str, ...]
    op: str
    upsert: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One rewrite: these files, merged with these changes, become files of about `rows_per_file` rows."""

    inputs: tuple[str, ...]
    changes: bytes
    rows_per_file: int


def finder(files: Sequence[tuple[str, bytes]], *, verify: bool) -> Callable[[int], bytes]:
    """Return the function that finds the given changed keys in each file, and returns their numbers as bytes."""

    def find(number: int) -> bytes:
        return matching_keys(*files[number], verify=verify).astype("<i8").tobytes()

    return find


def rewriter(tasks: Sequence[Task], job: FoldJob) -> Callable[[int], bytes]:
    """Return the function that does these rewrites, and returns the names of the written files, one per line."""

    def write(number: int) -> bytes:
        names = rewrite(tasks[number], job, prefix=f"{number:05d}-{os.urandom(8).hex()}")
        return "\n".join(names).encode()

    return write


def matching_keys(path: str, changes: bytes, *, verify: bool) -> Numbers:
    """Return the numbers of the changed keys (sorted, key columns only) that the file contains."""
    changed = unpacked(changes)
    key = changed.column_names
    matches: list[Numbers] = []
    done = 0
    last = pa.schema([changed.schema.field(name) for name in key]).empty_table()
    with open_parquet(path, verify=verify) as file:
        for batch in batches(file, PIECE_ROWS, columns=key, use_threads=False):
            rows = pa.Table.from_batches([batch]).select(key).cast(changed.schema)
            joined = pa.concat_tables([last, rows])
            keys, _ = comparable(joined, joined.slice(0, 0), key)
            if len(keys) > 1 and not pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py():
                raise UnsortedFile(f"the keys of {path} are not in order")
            last = rows.slice(rows.num_rows - 1)
            at, here = insert_positions(rows, changed.slice(done), key)
            matches.append(done + np.flatnonzero(here))
            done += _before_the_end(at, batch.num_rows)
    return np.concatenate(matches) if matches else np.empty(0, np.int64)


def insert_positions(sorted_rows: pa.Table, changed: pa.Table, key: Sequence[str]) -> tuple[Numbers, Flags]:
    """Return for each changed key the row before which it belongs, and whether that row has the same key."""
    rows, keys = comparable(sorted_rows, changed, key)
    left = pc.search_sorted(rows, keys, side="left").to_numpy(zero_copy_only=False).astype(np.int64)
    right = pc.search_sorted(rows, keys, side="right").to_numpy(zero_copy_only=False).astype(np.int64)
    return left, right > left


def _before_the_end(at: Numbers, rows: int) -> int:
    """Return how many changes, by their positions, belong before the last row or replace it."""
    return int(np.searchsorted(at, rows, side="left"))


def rewrite(task: Task, job: FoldJob, *, prefix: str) -> list[str]:
    """Rewrite the task's files and return the names of the written files."""
    changed = unpacked(task.changes)
    output = Output(target=job.target, rows_per_file=task.rows_per_file, prefix=prefix)
    for piece, following in pairwise(chain(_pieces(task, job), [None])):
        at, here = insert_positions(piece, changed, job.key)
        count = changed.num_rows if following is None else _before_the_end(at, piece.num_rows)
        output.add(_merged(piece, changed.slice(0, count), at[:count], here[:count], job))
        changed = changed.slice(count)
    output.close()
    return output.names


def _merged(piece: pa.Table, changed: pa.Table, at: Numbers, here: Flags, job: FoldJob) -> pa.Table:
    """Merge changes into a piece: replaced and deleted rows are dropped, upserts take their positions."""
    if not changed.num_rows:
        return piece
    upserts = pc.equal(changed.column(job.op), job.upsert).to_numpy(zero_copy_only=False)
    retained = np.ones(piece.num_rows, dtype=bool)
    retained[at[here]] = False
    retained_before = np.concatenate([[0], np.cumsum(retained)])
    order = np.insert(np.flatnonzero(retained), retained_before[at[upserts]], piece.num_rows + np.arange(upserts.sum()))
    # only upserts: a tombstone has no values
    new = changed.filter(pa.array(upserts)).select(job.target.schema.names).cast(job.target.schema)
    rows = pa.concat_tables([piece, new])
    return rows.take(pa.array(order)) if len(order) else job.target.schema.empty_table()


def _pieces(task: Task, job: FoldJob) -> Iterator[pa.Table]:
    """Yield the inputs in key order: one file as it is, several files sorted together. Yields at least one piece."""
    if len(task.inputs) == 1:
        with open_parquet(task.inputs[0], verify=job.target.verify) as file:
            if not file.metadata.num_rows:
                yield job.target.schema.empty_table()
            for batch in batches(file, piece_rows(file), columns=job.target.schema.names, use_threads=False):
                yield in_columns(pa.Table.from_batches([batch]), job.target.schema, job.defaults)
        return
    parts = [read_file(path, job.target, job.defaults) for path in task.inputs]
    whole = pa.concat_tables([job.target.schema.empty_table(), *parts])
    if whole.num_rows:
        whole = whole.sort_by([(name, "ascending") for name in job.key])
    yield whole
