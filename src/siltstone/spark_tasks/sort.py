"""Sorted loads inside Spark's Python workers: sample keys, spread rows over key ranges, gather each range.

Rows come from Spark, or a task reads its parts of Parquet files itself. A spreading task writes one *run*: an Arrow
file with a batch for each key range. The batches are repeated each time the rows fill its memory. A gathering task
reads its ranges, one after the other, from all runs, and sorts each in memory. `dataset.load.sorted_write` plans these
tasks.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.spark_tasks.io import (
    PIECE_BYTES,
    Numbers,
    Output,
    Target,
    comparable,
    differs_from_next,
    has_plain_key,
    in_columns,
    packed,
    piece_rows,
    unpacked,
)
from siltstone.spark_tasks.parquet_checksums import batches, open_parquet
from siltstone.spark_tasks.values import outside_years

SAMPLE_KEYS: Final = 8192
"""Largest number of sampled keys per task."""
SPREAD_ROWS: Final = 1_048_576
SAMPLED: Final = "rows long, keys binary"
SPREAD: Final = "name string, counts binary, bytes long, clean boolean"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """One of several equal parts of a Parquet file, by its row groups."""

    path: str
    number: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How files are read: the requested columns, all of them nullable, and the conditions of a good row."""

    schema: pa.Schema
    required: tuple[str, ...]
    key: tuple[str, ...]
    max_key_bytes: int
    bad: str | None
    """Column that marks bad rows; None if rows are not checked."""


def over_files(
    work: Callable[[Batches], Batches], tasks: Sequence[Sequence[FilePart]], reading: Reading
) -> Callable[[Batches], Batches]:
    """Return the function that reads the parts of the tasks with the given numbers, and applies `work` to their rows."""

    def run(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from work(rows for part in tasks[number] for rows in _read(part, reading))

    return run


def _read(part: FilePart, reading: Reading) -> Batches:
    with open_parquet(part.path) as file:
        groups = range(file.num_row_groups * part.number // part.of, file.num_row_groups * (part.number + 1) // part.of)
        stored = file.schema_arrow.names
        requested = [name for name in reading.schema.names if name in stored]
        columns = None if len(requested) == len(stored) else requested
        if groups:
            rows = piece_rows(file) // 2
            for batch in batches(file, max(1, rows), columns=columns, groups=groups, use_threads=False):
                yield _fitted(batch, reading)


def _fitted(batch: pa.RecordBatch, reading: Reading) -> pa.RecordBatch:
    """Return rows with the requested columns, and whether some are bad. Spark then finds out which."""
    try:
        rows = in_columns(batch, reading.schema, {})
        bad = reading.bad is not None and not _all_good(rows, reading)
    except pa.ArrowInvalid:
        rows, bad = pa.RecordBatch.from_pylist([{}], schema=reading.schema), True
    if reading.bad is None:
        return rows
    return rows.append_column(reading.bad, pa.repeat(pa.scalar(bad), rows.num_rows))


def _all_good(rows: pa.RecordBatch, reading: Reading) -> bool:
    if any(rows.column(name).null_count for name in reading.required):
        return False
    for column in rows.columns:
        column.validate(full=True)  # raises for text that is not UTF-8, also inside structs and lists
        if outside_years(column):
            return False
    keys = [rows.column(name) for name in reading.key if pa.types.is_string(reading.schema.field(name).type)]
    return all((pc.max(pc.binary_length(column)).as_py() or 0) <= reading.max_key_bytes for column in keys)


def sampler() -> Callable[[Batches], Batches]:
    """Return the function that counts a task's rows, of key columns only, and samples some of them at random."""

    def run(batches: Batches) -> Batches:
        sampled: list[pa.Table] = []
        rows, share = 0, 1.0
        random = np.random.default_rng(0)
        for batch in batches:
            rows += batch.num_rows
            sampled.append(_thinned(pa.Table.from_batches([batch]), share, random))
            while sum(part.num_rows for part in sampled) > SAMPLE_KEYS:
                share /= 2
                sampled = [_thinned(pa.concat_tables(sampled), 0.5, random)]
        if sampled:
            keys = pa.concat_tables(sampled).combine_chunks()
            yield pa.RecordBatch.from_pydict({"rows": [rows], "keys": [packed(keys)]})

    return run


def _thinned(keys: pa.Table, share: float, random: np.random.Generator) -> pa.Table:
    return keys if share == 1.0 else keys.filter(pa.array(random.random(keys.num_rows) < share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreading:
    """How rows are spread: the sorted first keys of all ranges but the lowest, and the column of bad rows."""

    folder: str
    key: tuple[str, ...]
    bounds: bytes
    bad: str


def spreader(job: Spreading) -> Callable[[Batches], Batches]:
    """Return the function that writes a task's rows as one run, and returns the number of rows in each range.

    A bad row ends it. Nothing of the run counts then.
    """

    def run(batches: Batches) -> Batches:
        bounds = unpacked(job.bounds)
        name = f"{os.urandom(16).hex()}.arrow"
        counts = np.zeros(bounds.num_rows + 1, np.int64)
        size, clean = 0, True
        with ExitStack() as stack:
            writer: pa.RecordBatchFileWriter | None = None
            for part in _parts(batches):
                if pc.any(part.column(job.bad)).as_py():
                    clean = False
                    for _ in batches:  # Spark requires that all input is consumed
                        pass
                    break
                size += part.nbytes
                rows = part.drop_columns([job.bad])
                if writer is None:
                    writer = stack.enter_context(pa.ipc.new_file(Path(job.folder) / name, rows.schema))
                counts += _write_part(rows, bounds, job.key, writer)
        if counts.any() or not clean:
            total = counts.astype("<i8").tobytes()
            yield pa.RecordBatch.from_pydict({"name": [name], "counts": [total], "bytes": [size], "clean": [clean]})

    return run


def _parts(batches: Batches) -> Iterator[pa.Table]:
    """Yield as many rows at a time as should be in memory."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= SPREAD_ROWS or size >= PIECE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting)


def _write_part(rows: pa.Table, bounds: pa.Table, key: Sequence[str], run: pa.RecordBatchFileWriter) -> Numbers:
    """Write a batch for each range and return the number of rows in each."""
    low, keys = comparable(bounds, rows, key)
    at = pc.search_sorted(low, keys, side="right").to_numpy(zero_copy_only=False).astype(np.int64)
    if (at[1:] < at[:-1]).any():
        # small integers are sorted by counting, not by comparing
        small = at.astype(np.uint16) if bounds.num_rows < np.iinfo(np.uint16).max else at
        rows = rows.take(pa.array(np.argsort(small, kind="stable")))
    [batch] = rows.combine_chunks().to_batches()
    counts = np.bincount(at, minlength=bounds.num_rows + 1)
    for end, count in zip(np.cumsum(counts).tolist(), counts.tolist(), strict=True):
        run.write_batch(batch.slice(end - count, count))
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """Common parameters of all gathering tasks: the runs, and the number of ranges in each."""

    target: Target
    key: tuple[str, ...]
    runs: tuple[str, ...]
    ranges: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One gathering task: these ranges become one file of `rows` rows."""

    low: int
    high: int
    rows: int


def gatherer(shares: Sequence[Share], job: Gathering) -> Callable[[int], bytes]:
    """Return the function that writes the ranges of a share as one sorted file.

    It returns the file's name, empty if a key is repeated.
    """

    def gather(number: int) -> bytes:
        share = shares[number]
        prefix = f"{number:05d}-{os.urandom(8).hex()}"
        output = Output(target=job.target, rows_per_file=share.rows, prefix=prefix)
        for part in range(share.low, share.high):
            batches: list[pa.RecordBatch] = []
            for path in job.runs:  # at most one run is open at a time
                with pa.memory_map(path) as source, pa.ipc.open_file(source) as run:
                    batches += [run.get_batch(at) for at in range(part, run.num_record_batches, job.ranges)]
            rows = _sorted(pa.Table.from_batches(batches), job.key)
            if rows is None:
                output.close()
                return b""
            output.add(rows.select(job.target.schema.names).cast(job.target.schema))
        output.close()
        return "\n".join(output.names).encode()

    return gather


def _sorted(rows: pa.Table, key: Sequence[str]) -> pa.Table | None:
    """Sort rows by their key; None if a key is repeated."""
    rows = rows.combine_chunks()
    if has_plain_key(rows.schema, key):
        column = rows.column(key[0])
        if pc.all(pc.less(column.slice(0, max(0, len(column) - 1)), column.slice(1))).as_py():
            return rows
    ordered = rows.sort_by([(name, "ascending") for name in key])
    return ordered if differs_from_next(ordered, key).all() else None
