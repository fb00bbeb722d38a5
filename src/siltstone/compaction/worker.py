"""What a fold does inside Spark's Python workers: find changed keys in base files, and write those files anew.

`in_place` sends this module to the workers by value, so that they need pyarrow and nothing of ours: it imports only
pyarrow, numpy and the standard library. Base files are sorted by key, and so are the changes: a changed key is found by
binary search, a file is read, merged and written piece by piece, and its order stays. No more than a piece is in memory.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PIECE_ROWS: Final = 262_144
PIECE_BYTES: Final = 64 * 1024 * 1024
WIDTH_ROWS: Final = 1024
SAMPLE_ROWS: Final = 16_384
DICTIONARY_SHARE: Final = 4
"""A column is written with a dictionary if at most one in this many sampled values is distinct."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all tasks of one rewrite have in common."""

    schema: pa.Schema
    defaults: Mapping[str, pa.Scalar]
    key: tuple[str, ...]
    op: str
    upsert: str
    folder: str
    options: Mapping[str, Any]
    row_group_rows: int
    durable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One rewrite: these files, with these changes laid over them, become files of about so many rows."""

    inputs: tuple[str, ...]
    changes: bytes
    rows_per_file: int


def packed(table: pa.Table) -> bytes:
    """Return a table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> pa.Table:
    """Return the table that was packed."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


# ---- what a Spark task runs --------------------------------------------------------------------------------------


def in_tasks(work: Callable[[int], bytes]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` over numbers: each number comes back with what the work says to it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            asked = batch.column(0).to_pylist()
            yield pa.RecordBatch.from_pydict({"id": asked, "answer": [work(number) for number in asked]})

    return run


def finder(files: Sequence[tuple[str, bytes]]) -> Callable[[int], bytes]:
    """Return the work that finds, in each file, the given changed keys: their numbers as bytes."""

    def find(number: int) -> bytes:
        return found_in(*files[number]).astype("<i8").tobytes()

    return find


def rewriter(tasks: Sequence[Task], job: Job) -> Callable[[int], bytes]:
    """Return the work that does these rewrites: the names of the files it wrote, one a line."""

    def write(number: int) -> bytes:
        names = rewrite(tasks[number], job, prefix=f"{number:05d}-{os.urandom(8).hex()}")
        return "\n".join(names).encode()

    return write


# ---- finding -----------------------------------------------------------------------------------------------------


def found_in(path: str, changes: bytes) -> Numbers:
    """Return the numbers of the changed keys (sorted, key columns alone) that the file has."""
    changed = unpacked(changes)
    key = changed.column_names
    found: list[Numbers] = []
    done = 0
    last = pa.schema([changed.schema.field(name) for name in key]).empty_table()
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(PIECE_ROWS, columns=key, use_threads=False):
            rows = pa.Table.from_batches([batch]).select(key).cast(changed.schema)
            _check_order(pa.concat_tables([last, rows]), key, path)
            last = rows.slice(rows.num_rows - 1)
            at, here = places(rows, changed.slice(done), key)
            found.append(done + np.flatnonzero(here))
            done += _before_the_end(at, batch.num_rows)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def places(sorted_rows: pa.Table, changed: pa.Table, key: Sequence[str]) -> tuple[Numbers, Flags]:
    """For each changed key: before which row it belongs, and whether that row has this very key."""
    rows, keys = _comparable(sorted_rows, changed, key)
    left = pc.search_sorted(rows, keys, side="left").to_numpy(zero_copy_only=False).astype(np.int64)
    right = pc.search_sorted(rows, keys, side="right").to_numpy(zero_copy_only=False).astype(np.int64)
    return left, right > left


class UnsortedFile(Exception):  # noqa: N818
    """A file whose rows are not in the order of their keys: nothing of ours wrote it."""


def _check_order(rows: pa.Table, key: Sequence[str], path: str) -> None:
    keys, _ = _comparable(rows, rows.slice(0, 0), key)
    if len(keys) > 1 and not pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py():
        raise UnsortedFile(f"the keys of {path} are not in order")


def _comparable(rows: pa.Table, changed: pa.Table, key: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Return both keys as one column each that Arrow can search; what it cannot is replaced by its rank among both."""
    if len(key) == 1 and not pa.types.is_decimal(changed.schema.field(key[0]).type):
        wanted = changed.schema.field(key[0]).type
        return rows.column(key[0]).cast(wanted).combine_chunks(), changed.column(key[0]).combine_chunks()
    table = pa.concat_tables([_bare(rows, changed, key), _bare(changed, changed, key)]).combine_chunks()
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in key]).to_numpy()
    ordered = table.take(order)
    differs = np.zeros(max(0, len(order) - 1), dtype=bool)
    for name in key:
        column = ordered.column(name)
        differs |= pc.not_equal(column.slice(1), column.slice(0, len(differs))).to_numpy(zero_copy_only=False)
    ranks = np.zeros(len(order), np.int64)
    ranks[order[1:]] = np.cumsum(differs)
    return pa.array(ranks[: rows.num_rows]), pa.array(ranks[rows.num_rows :])


def _bare(table: pa.Table, like: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the key columns in the types of `like`, and nothing said about nulls."""
    return table.select(list(key)).cast(pa.schema([pa.field(name, like.schema.field(name).type) for name in key]))


def _before_the_end(at: Numbers, rows: int) -> int:
    """Return how many of the changes, by their places, belong before the last of the rows or replace it."""
    return int(np.searchsorted(at, rows, side="left"))


# ---- writing -----------------------------------------------------------------------------------------------------


def rewrite(task: Task, job: Job, *, prefix: str) -> list[str]:
    """Write the task's files anew and return the names of what was written."""
    changed = unpacked(task.changes)
    output = _Output(job=job, rows_per_file=task.rows_per_file, prefix=prefix)
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
    new = changed.filter(pa.array(upserts)).select(job.schema.names).cast(job.schema)  # a tombstone has no values
    rows = pa.concat_tables([piece, new])
    return rows.take(pa.array(order)) if len(order) else job.schema.empty_table()


def _pieces(task: Task, job: Job) -> Iterator[pa.Table]:
    """Yield the inputs in key order: one file as it stands, several sorted together; at least one piece, maybe empty."""
    if len(task.inputs) == 1:
        with pq.ParquetFile(task.inputs[0]) as file:
            if not file.metadata.num_rows:
                yield job.schema.empty_table()
            for batch in file.iter_batches(_piece_rows(file), columns=job.schema.names, use_threads=False):
                yield _filled(pa.Table.from_batches([batch]), job)
        return
    parts = [pq.ParquetFile(path).read(columns=job.schema.names, use_threads=False) for path in task.inputs]
    whole = pa.concat_tables([job.schema.empty_table(), *[_filled(part, job) for part in parts]])
    if whole.num_rows:
        whole = whole.sort_by([(name, "ascending") for name in job.key])
    yield whole


def _filled(rows: pa.Table, job: Job) -> pa.Table:
    """Return rows of an older file in today's columns."""
    columns = [
        rows.column(f.name).cast(f.type)
        if f.name in rows.column_names
        else pa.repeat(job.defaults[f.name], rows.num_rows)
        for f in job.schema
    ]
    return pa.Table.from_arrays(columns, schema=job.schema)


def _piece_rows(file: pq.ParquetFile) -> int:
    """Return how many rows of this file make a piece: wide rows, by a look at the first ones, come in smaller ones."""
    sample = next(file.iter_batches(WIDTH_ROWS, use_threads=False), None)
    width = sample.nbytes // sample.num_rows if sample is not None and sample.num_rows else 1
    return int(max(1, min(PIECE_ROWS, PIECE_BYTES // max(1, width))))


def _with_last(pieces: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, bool]]:
    """Say of each piece whether it is the last one."""
    before = next(pieces)
    for piece in pieces:
        yield before, False
        before = piece
    yield before, True


@dataclass(kw_only=True)
class _Output:
    """Files of about so many rows each, in whole row groups; a name is given only once its file is complete."""

    job: Job
    rows_per_file: int
    prefix: str
    names: list[str] = field(default_factory=list)
    _writer: pq.ParquetWriter | None = None
    _waiting: list[pa.Table] = field(default_factory=list)
    _written: int = 0

    def add(self, rows: pa.Table) -> None:
        """Take rows; whole row groups are written at once."""
        self._waiting.append(rows)
        while self._waiting_rows >= min(self.job.row_group_rows, self.rows_per_file) or self._is_wide():
            waiting = pa.concat_tables(self._waiting)
            room = min(self.rows_per_file - self._written, waiting.num_rows)
            ends = room + self._written == self.rows_per_file or self._is_wide()
            whole = room if ends else room - room % self.job.row_group_rows
            if not whole:
                break
            self._write(waiting.slice(0, whole))
            self._waiting = [waiting.slice(whole)]
            if self._written >= self.rows_per_file:
                self._finish()

    def _is_wide(self) -> bool:
        """True if fewer rows than a row group take as much memory as a piece may."""
        return bool(sum(table.nbytes for table in self._waiting) > PIECE_BYTES)

    @property
    def _waiting_rows(self) -> int:
        return sum(table.num_rows for table in self._waiting)

    def close(self) -> None:
        """Write what is left."""
        if self._waiting_rows:
            self._write(pa.concat_tables(self._waiting))
        self._waiting = []
        self._finish()

    def _write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._path = Path(self.job.folder) / f"{self.prefix}-{len(self.names)}.parquet"
            options = dict(self.job.options) | {"use_dictionary": _with_dictionary(rows)}
            self._writer = pq.ParquetWriter(self._path, self.job.schema, **options)
            self._written = 0
        self._writer.write_table(rows, row_group_size=self.job.row_group_rows)
        self._written += rows.num_rows

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self._written = 0
        if self.job.durable:
            handle = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        self.names.append(self._path.name)


def _with_dictionary(rows: pa.Table) -> list[str]:
    """Return the columns whose values repeat: a dictionary of distinct values costs time and space for nothing."""
    sample = rows.slice(0, SAMPLE_ROWS)
    flat = [name for name in sample.column_names if not pa.types.is_nested(sample.schema.field(name).type)]
    return [name for name in flat if len(sample.column(name).unique()) * DICTIONARY_SHARE <= sample.num_rows]
