"""Duplicates in a log: of rows that are equal in the columns `dedup_by` one survives, the first or the last.

First and last are decided by sequence, and within a batch by position. Null equals null. Tombstones are applied first.
A hidden row is not a duplicate, so a row that is appended after the tombstone is visible. Duplicates have the same
time, partition and subject (`create` ensures it). So they are in one hour, whatever period their file was rolled up
into, and are hidden together.

Base holds no duplicates, because every fold removes the losing rows. So of Δ and base:

* ``first``: an append of Δ stays if no earlier append of Δ and no row of base equals it;
* ``last``: an append of Δ stays if no later append of Δ is equal to it. A row of base is left out if one equals it.

Rows of base that may equal a row of Δ are in files whose period can hold Δ's times. No other file is read for this.
"""

import datetime
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.arrow_view import read_file
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.delta.parquet import key_ranges
from siltstone.errors import InvalidRequest
from siltstone.model.arrays import Flags, Numbers
from siltstone.model.columns import OP, PERIOD, POS, SEQ, Op
from siltstone.model.files import DataFile
from siltstone.model.periods import Granularity, end, granularity_of, start
from siltstone.model.spec import Survivor

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Range = tuple[datetime.datetime, datetime.datetime]

RANK: Final = "_rank"
"""Column: rank of a row among its duplicates, from 1. The row with rank 1 survives."""
_PERIOD_MARGIN: Final = datetime.timedelta(days=6)
"""Twice the days of neighbours that a month may hold: up to three, if it was rolled up from weeks."""
_ALWAYS: Final = (datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), datetime.datetime.max.replace(tzinfo=datetime.UTC))


def survivors(rows: pa.Table, store: Store) -> pa.Table:
    """Return the rows without those that lose against a duplicate. The rows must be in the order of application."""
    if not store.spec.dedup_by or not rows.num_rows:
        return rows
    [numbers] = _numbered([rows], store.spec.dedup_by)
    if store.spec.survivor is Survivor.FIRST:
        _, surviving_rows = np.unique(numbers, return_index=True)
    else:
        _, surviving_rows = np.unique(numbers[::-1], return_index=True)
        surviving_rows = rows.num_rows - 1 - surviving_rows
    chosen = np.zeros(rows.num_rows, dtype=bool)
    chosen[surviving_rows] = True
    return rows.filter(pa.array(chosen))


def equal_to_any(rows: pa.Table, others: Sequence[pa.Table], columns: Sequence[str]) -> Flags:
    """Return for each row whether one of the others is equal to it in the columns; null equals null."""
    if not rows.num_rows or not any(other.num_rows for other in others):
        return np.zeros(rows.num_rows, dtype=bool)
    [numbers, *other_numbers] = _numbered([rows, *others], columns)
    return np.isin(numbers, np.concatenate(other_numbers))


def _numbered(tables: Sequence[pa.Table], columns: Sequence[str]) -> list[Numbers]:
    """Number the rows of all tables so that equal rows have the same number."""
    total = sum(table.num_rows for table in tables)
    numbers = np.zeros(total, np.int64)
    for name in columns:
        chunks = [chunk for table in tables for chunk in table.column(name).chunks]
        column = pa.chunked_array(chunks, type=tables[0].schema.field(name).type).combine_chunks()
        codes = pc.dictionary_encode(column, null_encoding="encode").indices.to_numpy(zero_copy_only=False)
        _, numbers = np.unique(numbers * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
    edges = np.cumsum([0, *[table.num_rows for table in tables]])
    return [numbers[low:high] for low, high in pairwise(edges.tolist())]


def near_keys(store: Store, snapshot: Snapshot) -> list[pa.Table]:
    """Return the columns that decide about duplicates, including the subject, of base files that can hold Δ's times."""
    names = [name for name in store.schema.names if name in store.spec.dedup_by]
    files = near_files(store, snapshot)
    return [read_file(store, store.base.path / file.path, store.schema, names) for file in files]


def near_files(store: Store, snapshot: Snapshot) -> list[DataFile]:
    """Return the base files that may hold a row equal to an append of Δ, by periods and Δ's footers."""
    if not store.spec.dedup_by or not snapshot.unfolded:
        return []
    times = list(chain.from_iterable(_time_ranges(store, file) for file in snapshot.unfolded))
    return [file for file in snapshot.base.files if _may_hold_times(file, times)]


def _time_ranges(store: Store, file: DataFile) -> list[Range]:
    """Return the ranges of time in a change file. Tombstones have no time."""
    assert store.spec.time is not None  # noqa: S101  # it is a log
    metadata = store.footer(store.changes.path / file.path)
    ranges = zip(key_ranges(metadata, store.spec.time), key_ranges(metadata, OP), strict=True)
    return [
        (_utc_time(times.low), _utc_time(times.high)) if times.known else _ALWAYS
        for times, op in ranges
        if op.low != Op.TOMBSTONE.value
    ]


def _utc_time(value: Any) -> datetime.datetime:  # noqa: ANN401
    if isinstance(value, datetime.datetime):
        return value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
    return datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC)


def _may_hold_times(file: DataFile, times: Sequence[Range]) -> bool:
    period = file.partition.get(PERIOD) or ""
    try:
        first, after = start(period), end(period)
        if granularity_of(period) is Granularity.MONTH:
            first, after = first - _PERIOD_MARGIN, after + _PERIOD_MARGIN
    except (InvalidRequest, OverflowError):
        return True
    return any(low < after and high >= first for low, high in times)


def surviving(changes: "DataFrame", store: Store) -> "DataFrame":
    """Return appends of Δ, with ``_seq`` and ``_pos``, without those that lose against a duplicate."""
    from pyspark.sql import functions as F

    if not store.spec.dedup_by:
        return changes
    return ranked(changes, store, by=(SEQ, POS)).where(F.col(RANK) == 1).drop(RANK)


def ranked(rows: "DataFrame", store: Store, *, by: Sequence[str], apart: "Sequence[Column]" = ()) -> "DataFrame":
    """Give each row its `RANK` among its duplicates by the columns `by`. Rows that differ in `apart` are not duplicates."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    first = store.spec.survivor is Survivor.FIRST
    order = [F.col(name).asc() if first else F.col(name).desc() for name in by]
    window = Window.partitionBy(*[F.col(f"`{name}`") for name in store.spec.dedup_by], *apart).orderBy(*order)
    return rows.withColumn(RANK, F.row_number().over(window))


def without_equal(rows: "DataFrame", others: "DataFrame", store: Store, *, few: bool) -> "DataFrame":
    """Return the rows without an equal row in `others`."""
    side, same = _join_side(others, store, few=few)
    return rows.join(side, same, "left_anti")


def with_equal(rows: "DataFrame", others: "DataFrame", store: Store, *, few: bool) -> "DataFrame":
    """Return the rows with an equal row in `others`."""
    side, same = _join_side(others, store, few=few)
    return rows.join(side, same, "left_semi")


def _join_side(others: "DataFrame", store: Store, *, few: bool) -> "tuple[DataFrame, Column]":
    """Return the deciding columns of `others` under other names, broadcast if few, and the join condition."""
    from pyspark.sql import functions as F

    names = store.spec.dedup_by
    side = others.select(*[F.col(f"`{name}`").alias(f"_dup{at}") for at, name in enumerate(names)])
    same = F.lit(True)  # noqa: FBT003
    for at, name in enumerate(names):
        same = same & F.col(f"`{name}`").eqNullSafe(F.col(f"_dup{at}"))
    return (F.broadcast(side) if few else side), same
