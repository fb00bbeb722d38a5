"""What a fold does inside Spark's Python workers: find changed keys in base files, and write those files anew.

`compaction.operations.fold_arrow` sends this module and `io` to the workers by value, so that they need pyarrow and nothing
of ours: it imports nothing else but pyarrow, numpy and the standard library. Base files are sorted by key, and so are the
changes: a changed key is found by binary search, a file is read, merged and written piece by piece, and its order stays. No
more than a piece is in memory.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
class Job:
    """What all tasks of one rewrite have in common."""

    target: Target
    defaults: Mapping[str, pa.Scalar]
    key: tuple[str, ...]
    op: str
    upsert: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One rewrite: these files, with these changes laid over them, become files of about so many rows."""

    inputs: tuple[str, ...]
    changes: bytes
    rows_per_file: int


# ---- what a Spark task runs --------------------------------------------------------------------------------------


def finder(files: Sequence[tuple[str, bytes]], *, verify: bool) -> Callable[[int], bytes]:
    """Return the work that finds, in each file, the given changed keys: their numbers as bytes."""

    def find(number: int) -> bytes:
        return found_in(*files[number], verify=verify).astype("<i8").tobytes()

    return find


def rewriter(tasks: Sequence[Task], job: Job) -> Callable[[int], bytes]:
    """Return the work that does these rewrites: the names of the files it wrote, one a line."""

    def write(number: int) -> bytes:
        names = rewrite(tasks[number], job, prefix=f"{number:05d}-{os.urandom(8).hex()}")
        return "\n".join(names).encode()

    return write


# ---- finding -----------------------------------------------------------------------------------------------------


def found_in(path: str, changes: bytes, *, verify: bool) -> Numbers:
    """Return the numbers of the changed keys (sorted, key columns alone) that the file has."""
    changed = unpacked(changes)
    key = changed.column_names
    found: list[Numbers] = []
    done = 0
    last = pa.schema([changed.schema.field(name) for name in key]).empty_table()
    with open_parquet(path, verify=verify) as file:
        for batch in batches(file, PIECE_ROWS, columns=key, use_threads=False):
            rows = pa.Table.from_batches([batch]).select(key).cast(changed.schema)
            _check_order(pa.concat_tables([last, rows]), key, path)
            last = rows.slice(rows.num_rows - 1)
            at, here = places(rows, changed.slice(done), key)
            found.append(done + np.flatnonzero(here))
            done += _before_the_end(at, batch.num_rows)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def places(sorted_rows: pa.Table, changed: pa.Table, key: Sequence[str]) -> tuple[Numbers, Flags]:
    """For each changed key: before which row it belongs, and whether that row has this very key."""
    rows, keys = comparable(sorted_rows, changed, key)
    left = pc.search_sorted(rows, keys, side="left").to_numpy(zero_copy_only=False).astype(np.int64)
    right = pc.search_sorted(rows, keys, side="right").to_numpy(zero_copy_only=False).astype(np.int64)
    return left, right > left


def _check_order(rows: pa.Table, key: Sequence[str], path: str) -> None:
    keys, _ = comparable(rows, rows.slice(0, 0), key)
    if len(keys) > 1 and not pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py():
        raise UnsortedFile(f"the keys of {path} are not in order")


def _before_the_end(at: Numbers, rows: int) -> int:
    """Return how many of the changes, by their places, belong before the last of the rows or replace it."""
    return int(np.searchsorted(at, rows, side="left"))


# ---- writing -----------------------------------------------------------------------------------------------------


def rewrite(task: Task, job: Job, *, prefix: str) -> list[str]:
    """Write the task's files anew and return the names of what was written."""
    changed = unpacked(task.changes)
    output = Output(target=job.target, rows_per_file=task.rows_per_file, prefix=prefix)
    for piece, last in _with_last(_pieces(task, job)):
        at, here = places(piece, changed, job.key)
        count = changed.num_rows if last else _before_the_end(at, piece.num_rows)
        output.add(_merged(piece, changed.slice(0, count), at[:count], here[:count], job))
        changed = changed.slice(count)
    output.close()
    return output.names


def _merged(piece: pa.Table, changed: pa.Table, at: Numbers, here: Flags, job: Job) -> pa.Table:
    """Lay changes over a piece: rows that are replaced or dropped go, upserts stand in their places."""
    if not changed.num_rows:
        return piece
    upserts = pc.equal(changed.column(job.op), job.upsert).to_numpy(zero_copy_only=False)
    kept = np.ones(piece.num_rows, dtype=bool)
    kept[at[here]] = False
    kept_before = np.concatenate([[0], np.cumsum(kept)])
    order = np.insert(np.flatnonzero(kept), kept_before[at[upserts]], piece.num_rows + np.arange(upserts.sum()))
    new = (
        changed.filter(pa.array(upserts)).select(job.target.schema.names).cast(job.target.schema)
    )  # a tombstone has no values
    rows = pa.concat_tables([piece, new])
    return rows.take(pa.array(order)) if len(order) else job.target.schema.empty_table()


def _pieces(task: Task, job: Job) -> Iterator[pa.Table]:
    """Yield the inputs in key order: one file as it stands, several sorted together; at least one piece, maybe empty."""
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


def _with_last(pieces: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, bool]]:
    """Say of each piece whether it is the last one."""
    before = next(pieces)
    for piece in pieces:
        yield before, False
        before = piece
    yield before, True
