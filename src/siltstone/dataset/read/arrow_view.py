"""The merged view without Spark: Arrow reads base and changes in this process.

Keyed, with Δ = rows of changes whose own sequence is above the watermark:
latest = the last row of Δ per key by (sequence, position); view = base without latest's keys, and latest's upserts.
A row's own sequence is ``coalesce(_row_seq, _seq)``, because a squashed file holds rows of several sequences.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.snapshot import Snapshot, sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.parquet import key_ranges
from siltstone.delta.row_group_reader import readable
from siltstone.errors import Unavailable
from siltstone.model.columns import OP, POS, ROW_SEQ, SEQ, Op
from siltstone.model.files import DataFile, may_contain
from siltstone.model.schema import filled
from siltstone.spark_tasks.parquet_checksums import batches, check_rows

READ_THREADS: Final = 4
"""Threads that read change files. Opening dominates the cost of small files, and a few threads hide it."""
ARRAY_BYTES: Final = 1 << 30
"""Size of one array of text in bytes: half of what 32-bit offsets can address."""
HEAD_BATCH_ROWS: Final = 1024
"""Rows that `head` reads at a time, so that a few rows of a large dataset cost a few pages."""
FILE: Final = "_file"
ROW: Final = "_row"


def unfolded_rows(
    store: Store, snapshot: Snapshot, *, columns: Sequence[str] | None = None, places: bool = False
) -> pa.Table:
    """Return Δ: every change row above the watermark, with its own sequence as ``_seq``, in the order of application.

    With `places`, each row also has its location: its file's number among the unfolded ones, and its row there.
    FileNotFoundError means that a file was removed since the snapshot: take a new one.
    """
    rows = change_rows_in(store, snapshot.unfolded, columns=columns, places=places)
    return rows.filter(pc.greater(rows.column(SEQ), snapshot.watermark)) if rows.num_rows else rows


def change_rows_in(
    store: Store, files: Sequence[DataFile], *, columns: Sequence[str] | None = None, places: bool = False
) -> pa.Table:
    """Return all rows of some change files, as `unfolded_rows` does."""
    schema = store.change_schema
    requested = {*(schema.names if columns is None else columns), OP, POS, ROW_SEQ}
    needed = [name for name in schema.names if name in requested]

    def read(number: int, file: DataFile) -> pa.Table:
        rows = read_file(store, store.changes.path / file.path, schema, needed)
        sequences = pc.coalesce(rows.column(ROW_SEQ), pa.scalar(sequence_of(file), pa.int64()))
        rows = rows.drop_columns([ROW_SEQ]).append_column(SEQ, sequences)
        if places:
            rows = rows.append_column(FILE, pa.array(np.full(rows.num_rows, number, np.int64)))
            rows = rows.append_column(ROW, pa.array(np.arange(rows.num_rows, dtype=np.int64)))
        return rows

    if len(files) > 1:
        with ThreadPoolExecutor(READ_THREADS) as pool:
            tables = list(pool.map(read, range(len(files)), files))
    else:
        tables = list(map(read, range(len(files)), files))
    if not tables:
        fields = [schema.field(n) for n in needed if n != ROW_SEQ]
        return pa.schema([*fields, pa.field(SEQ, pa.int64())]).empty_table()
    rows = pa.concat_tables(tables)
    sequences, positions = (rows.column(name).to_numpy() for name in (SEQ, POS))
    rising = np.diff(sequences)
    if np.all((rising > 0) | ((rising == 0) & (np.diff(positions) >= 0))):
        return rows  # most are in the order of application already, and are not copied
    return sorted_rows(rows, [SEQ, POS])


def sorted_rows(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return rows in the order of some columns. A column may hold more text than the 2 GiB of one Arrow array.

    Unavailable means that text inside of structs, lists or maps is larger than that.
    """
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])
    try:
        return rows.take(order)
    except pa.ArrowInvalid:  # the chunks of a column are concatenated first, and do not fit
        large = pa.schema([field.with_type(_LARGE.get(field.type, field.type)) for field in rows.schema])
        try:
            table = rows.cast(large)
            return pa.concat_tables(_narrowed(table.take(order), rows.schema))
        except pa.ArrowInvalid as error:
            raise Unavailable(
                f"{rows.num_rows:,} unfolded rows hold more than 2 GB of nested values ({error}). "
                "Fold them first: silt compact runs on Spark."
            ) from error


_LARGE: Final = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def _narrowed(rows: pa.Table, schema: pa.Schema) -> list[pa.Table]:
    """Convert rows with 64-bit offsets to as many tables with 32-bit offsets as are needed."""
    if rows.nbytes > ARRAY_BYTES and rows.num_rows > 1:
        half = rows.num_rows // 2
        return [*_narrowed(rows.slice(0, half), schema), *_narrowed(rows.slice(half), schema)]
    copied = rows.take(pa.array(np.arange(rows.num_rows)))  # with offsets from 0: a slice has those of the whole array
    return [copied.cast(schema)]


def read_file(store: Store, path: Path, schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    """Read some columns of a Parquet file in the schema's types. Columns that it lacks show their defaults.

    FileNotFoundError means that it was removed since the snapshot, Corruption that it cannot be read.
    """
    with readable(path), store.opened(path) as file:
        table = file.read(columns=list(names))
        check_rows(table.num_rows, file.metadata.num_rows)
    return filled(table, pa.schema([schema.field(n) for n in names]))


def latest_per_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key. The rows must be in the order of application."""
    if not rows.num_rows:
        return rows
    numbered = rows.select(list(key)).append_column(ROW, pa.array(np.arange(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(ROW, "max")]).column(f"{ROW}_max")
    if len(last) == rows.num_rows:
        return rows
    is_last = np.zeros(rows.num_rows, dtype=bool)
    is_last[last.to_numpy()] = True
    return rows.filter(pa.array(is_last))  # chunk by chunk: `take` fails on more than 2 GiB of text


def latest_changes(
    store: Store, snapshot: Snapshot, *, raw: bool = False, columns: Sequence[str] = (), places: bool = False
) -> pa.Table:
    """Return the last change of each key, with the key and some columns; with `raw`, tombstones are left out."""
    rows = unfolded_rows(store, snapshot, columns=[*store.spec.key, *columns], places=places)
    if raw:
        rows = rows.filter(pc.not_equal(rows.column(OP), Op.TOMBSTONE.value))
    return latest_per_key(rows, store.spec.key)


def merged_table(
    store: Store, snapshot: Snapshot, *, raw: bool = False, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return the merged view as one Arrow table, with some columns; with `raw`, tombstones are not applied.

    The key is always read, because the latest row of each key is chosen before any row is left out.
    """
    requested = store.schema.names if columns is None else list(columns)
    names = list(dict.fromkeys([*requested, *store.spec.key]))
    latest = latest_changes(store, snapshot, raw=raw, columns=names)
    upserts = latest.filter(pc.equal(latest.column(OP), Op.UPSERT.value)).select(requested)
    parts = [_without(rows, latest, store.spec.key).select(requested) for rows in base_tables(store, snapshot, names)]
    schema = pa.schema([store.schema.field(name) for name in requested])
    return pa.concat_tables([*parts, upserts.cast(schema)]).combine_chunks()


def head_table(store: Store, snapshot: Snapshot, rows: int, *, raw: bool = False) -> pa.Table:
    """Return the first rows of `merged_table`, reading little more: all changed keys, no other column."""
    latest = latest_changes(store, snapshot, raw=raw)
    parts = [store.schema.empty_table()]
    missing = rows
    for batch in base_batches(store, snapshot):
        if missing <= 0:
            break
        parts.append(_without(pa.Table.from_batches([batch]), latest, store.spec.key).slice(0, missing))
        missing -= parts[-1].num_rows
    upserts = latest.filter(pc.equal(latest.column(OP), Op.UPSERT.value)).slice(0, max(0, missing))
    return pa.concat_tables([*parts, _whole_rows(store, snapshot, upserts)])


def base_batches(store: Store, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
    """Yield the rows of base with the user's columns, in small batches."""
    names = store.schema.names
    for file in sorted(snapshot.base.files, key=lambda f: f.path):
        path = store.base.path / file.path
        with readable(path), store.opened(path) as parquet:
            for batch in batches(parquet, HEAD_BATCH_ROWS, columns=names):
                yield from filled(pa.Table.from_batches([batch]), store.schema).to_batches()


def _whole_rows(store: Store, snapshot: Snapshot, chosen: pa.Table) -> pa.Table:
    """Return the user columns of a few change rows, in their order. Only the files with these rows are read."""
    schema = store.change_schema
    remaining = {place: row for row, place in enumerate(_places(chosen))}
    parts: list[tuple[int, pa.Table]] = []
    for file in snapshot.unfolded:
        path = store.changes.path / file.path
        if not remaining:
            break
        with readable(path), store.opened(path) as parquet:
            for batch in batches(parquet, HEAD_BATCH_ROWS, columns=schema.names):
                rows = filled(pa.Table.from_batches([batch]), schema)
                sequences = pc.coalesce(rows.column(ROW_SEQ), pa.scalar(sequence_of(file), pa.int64()))
                places = _places(rows.append_column(SEQ, sequences))
                parts += [(remaining.pop(p), rows.slice(at, 1)) for at, p in enumerate(places) if p in remaining]
    ordered = [
        rows.select(store.schema.names).cast(store.schema) for _, rows in sorted(parts, key=lambda part: part[0])
    ]
    return pa.concat_tables([store.schema.empty_table(), *ordered])


def _places(rows: pa.Table) -> list[tuple[int, int]]:
    """Return (sequence, position) of each change row: unique within a snapshot."""
    return list(zip(rows.column(SEQ).to_pylist(), rows.column(POS).to_pylist(), strict=True))


def base_tables(store: Store, snapshot: Snapshot, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield some of the user's columns of base, a file at a time."""
    for file in sorted(snapshot.base.files, key=lambda f: f.path):
        yield read_file(store, store.base.path / file.path, store.schema, columns)


def _without(rows: pa.Table, latest: pa.Table, key: Sequence[str]) -> pa.Table:
    if not latest.num_rows or not rows.num_rows:
        return rows
    return rows.filter(pc.invert(has_key_of(rows, latest, key)))


def has_key_of(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> pa.Array:
    """Return for each row whether its key is among the keys of `others`; other columns may have any type."""
    if len(key) == 1:
        return pc.is_in(rows.column(key[0]), value_set=others.column(key[0]).combine_chunks())
    numbered = rows.select(list(key)).append_column(ROW, pa.array(np.arange(rows.num_rows), pa.int64()))
    joined = numbered.join(others.select(list(key)), keys=list(key), join_type="left semi")
    has_key = np.zeros(rows.num_rows, dtype=bool)
    has_key[joined.column(ROW).to_numpy()] = True
    return pa.array(has_key)


def base_places(store: Store, file: DataFile, keys: pa.Table) -> "np.ndarray[Any, Any]":
    """Return the row numbers in a base file that have one of a few keys. Only row groups that may hold one are read."""
    key = list(store.spec.key)
    try:
        first = keys.column(key[0]).combine_chunks().sort().to_pylist()
    except OverflowError:  # a date past the year 9999: every row group may hold it
        first = None
    matching = [np.empty(0, np.int64)]
    start = 0
    path = store.base.path / file.path
    with readable(path), store.opened(path) as parquet:
        for number, keys_here in enumerate(key_ranges(parquet.metadata, key[0])):
            if first is None or may_contain(keys_here, first):
                rows = parquet.read_row_group(number, columns=key).select(key)
                check_rows(rows.num_rows, parquet.metadata.row_group(number).num_rows)
                here = rows.cast(pa.schema([store.schema.field(name) for name in key]))
                matching.append(start + np.flatnonzero(np.asarray(has_key_of(here, keys, key))))
            start += parquet.metadata.row_group(number).num_rows
    return np.concatenate(matching)
