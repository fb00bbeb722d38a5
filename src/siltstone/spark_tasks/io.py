"""Shared by all jobs inside Spark's Python workers: Arrow tables as bytes, searchable keys, output files of a given size."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.spark_tasks.parquet_checksums import add_checksums, check_rows, open_parquet

PIECE_BYTES: Final = 64 * 1024 * 1024
"""Approximate memory of one piece, in bytes. A few copies of a piece are in memory at a time."""
PIECE_ROWS: Final = 262_144
WIDTH_ROWS: Final = 1024
SAMPLE_ROWS: Final = 16_384
DICTIONARY_SHARE: Final = 4
"""A column gets a dictionary if at most one in this many sampled values is distinct."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


class UnsortedFile(Exception):  # noqa: N818
    """A file whose rows are not in key order, so Siltstone did not write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Folder and format of the files that the tasks of one job write."""

    schema: pa.Schema
    folder: str
    options: Mapping[str, Any]
    row_group_rows: int
    durable: bool
    verify: bool = True
    """Verify the checksums of the files that the tasks read."""


def piece_rows(file: pq.ParquetFile) -> int:
    """Return the number of rows in a piece of a file. Wide rows, judged by the first ones, make smaller pieces."""
    sample = next(file.iter_batches(WIDTH_ROWS, use_threads=False), None)
    width = sample.nbytes // sample.num_rows if sample is not None and sample.num_rows else 1
    return int(max(1, min(PIECE_ROWS, PIECE_BYTES // max(1, width))))


def in_columns(rows: Rows, schema: pa.Schema, defaults: Mapping[str, pa.Scalar]) -> Rows:
    """Return rows of an older file in today's columns: a missing column has its default, null without one."""
    have = set(rows.schema.names)
    columns = [
        rows.column(column.name).cast(column.type)
        if column.name in have
        else pa.repeat(defaults.get(column.name, pa.scalar(None, column.type)), rows.num_rows)
        for column in schema
    ]
    return type(rows).from_arrays(columns, schema=schema)


def read_file(path: str, target: Target, defaults: Mapping[str, pa.Scalar]) -> pa.Table:
    """Read a whole file in today's columns."""
    with open_parquet(path, verify=target.verify) as file:
        rows = file.read(columns=target.schema.names, use_threads=False)
        check_rows(rows.num_rows, file.metadata.num_rows)
    return in_columns(rows, target.schema, defaults)


def packed(table: pa.Table) -> bytes:
    """Return a table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> pa.Table:
    """Return the table from its packed bytes."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def in_tasks(work: Callable[[int], bytes]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` over numbers. It returns each number with the result of `work`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            yield pa.RecordBatch.from_pydict({"id": numbers, "answer": [work(number) for number in numbers]})

    return run


def comparable(rows: pa.Table, changed: pa.Table, key: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Return both keys as one column each that Arrow can search. Other keys are replaced by their rank among both."""
    if has_plain_key(changed.schema, key):
        kind = changed.schema.field(key[0]).type
        return rows.column(key[0]).cast(kind).combine_chunks(), changed.column(key[0]).combine_chunks()
    table = pa.concat_tables([_bare(rows, changed, key), _bare(changed, changed, key)]).combine_chunks()
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in key]).to_numpy()
    ordered = table.take(order)
    ranks = np.zeros(len(order), np.int64)
    ranks[order[1:]] = np.cumsum(differs_from_next(ordered, key))
    return pa.array(ranks[: rows.num_rows]), pa.array(ranks[rows.num_rows :])


def differs_from_next(rows: pa.Table, key: Sequence[str]) -> Flags:
    """Return for each row except the last whether the next one has another key."""
    count = max(0, rows.num_rows - 1)
    differs = np.zeros(count, dtype=bool)
    for name in key:
        column = rows.column(name)
        differs |= pc.not_equal(column.slice(1), column.slice(0, count)).to_numpy(zero_copy_only=False)
    return differs


def has_plain_key(schema: pa.Schema, key: Sequence[str]) -> bool:
    """True if the key is one column that Arrow can search and compare."""
    return len(key) == 1 and not pa.types.is_decimal(schema.field(key[0]).type)


def _bare(table: pa.Table, like: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the key columns with the types of `like`, without nullability."""
    return table.select(list(key)).cast(pa.schema([pa.field(name, like.schema.field(name).type) for name in key]))


@dataclass(kw_only=True)
class Output:
    """Output files of about `rows_per_file` rows, in whole row groups. A name is listed only once its file is complete."""

    target: Target
    rows_per_file: int
    prefix: str
    names: list[str] = field(default_factory=list)
    _writer: pq.ParquetWriter | None = None
    _waiting: list[pa.Table] = field(default_factory=list)
    _written: int = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows. Whole row groups are written at once."""
        self._waiting.append(rows)
        while self._waiting_rows >= min(self.target.row_group_rows, self.rows_per_file) or self._is_wide():
            waiting = pa.concat_tables(self._waiting)
            room = min(self.rows_per_file - self._written, waiting.num_rows)
            ends = room + self._written == self.rows_per_file or self._is_wide()
            whole = room if ends else room - room % self.target.row_group_rows
            if not whole:
                break
            self._write(waiting.slice(0, whole))
            self._waiting = [waiting.slice(whole)]
            if self._written >= self.rows_per_file:
                self._finish()

    def _is_wide(self) -> bool:
        """True if the waiting rows are fewer than a row group but exceed the memory of a piece."""
        return bool(sum(table.nbytes for table in self._waiting) > PIECE_BYTES)

    @property
    def _waiting_rows(self) -> int:
        return sum(table.num_rows for table in self._waiting)

    def close(self) -> None:
        """Write the remaining rows."""
        if self._waiting_rows:
            self._write(pa.concat_tables(self._waiting))
        self._waiting = []
        self._finish()

    def _write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._path = Path(self.target.folder) / f"{self.prefix}-{len(self.names)}.parquet"
            options = dict(self.target.options) | {"use_dictionary": with_dictionary(rows)}
            self._writer = pq.ParquetWriter(self._path, self.target.schema, **options)
        self._writer.write_table(rows, row_group_size=self.target.row_group_rows)
        self._written += rows.num_rows

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        add_checksums(self._path)
        self._written = 0
        if self.target.durable:
            handle = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        self.names.append(self._path.name)


def with_dictionary(rows: pa.Table) -> list[str]:
    """Return the columns with repeating values. For distinct values a dictionary only costs time and space."""
    sample = rows.slice(0, SAMPLE_ROWS)
    flat = [name for name in sample.column_names if not pa.types.is_nested(sample.schema.field(name).type)]
    return [name for name in flat if len(sample.column(name).unique()) * DICTIONARY_SHARE <= sample.num_rows]
