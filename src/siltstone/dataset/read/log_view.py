"""The merged view of a log: base and newer appends, without rows that a later tombstone hides. With and without Spark.

With Δ = rows of changes whose own sequence is above the watermark:
view = (base without the subjects of Δ's tombstones), and the appends of Δ that no tombstone of a higher sequence names.

A `TombstoneFilter` holds the tombstones of one combination of subject columns: each value with the highest
sequence that hides it. A tombstone may name only some of the subject columns; the others are null in its row. Every row
of base is older than every tombstone of Δ, so for base the sequence does not matter. No clock decides anything here.

Tombstones are read only from change files whose footer shows that there may be one. Duplicates among visible rows are
left out afterwards, if the log has columns that define duplicates (`dedup`). A raw view shows them.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.arrow_view import (
    READ_THREADS,
    ROW,
    base_batches,
    base_tables,
    change_rows_in,
    unfolded_rows,
)
from siltstone.dataset.read.dedup import (
    equal_to_any,
    near_files,
    near_keys,
    surviving,
    survivors,
    with_equal,
    without_equal,
)
from siltstone.dataset.read.spark_frames import arrow_frame, base_frame, by_hash, changes_frame, files_frame, join_side
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.delta.parquet import key_ranges
from siltstone.model.arrays import Numbers
from siltstone.model.columns import OP, SEQ, Op
from siltstone.model.files import DataFile
from siltstone.model.spec import Survivor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HIDES: Final = "_hides"
"""Column: highest sequence of a tombstone that names these subject values. Rows appended before it are hidden."""


@dataclass(frozen=True, slots=True)
class TombstoneFilter:
    """Tombstones that name the same subject columns."""

    columns: tuple[str, ...]
    rows: pa.Table
    """These columns, each combination of values once, and ``_hides``."""


def tombstone_rows(store: Store, snapshot: Snapshot, *, columns: Sequence[str] = ()) -> pa.Table:
    """Return Δ's tombstones in the order of application: the subject columns, the given ones and ``_seq``."""

    def may_hold(file: DataFile) -> bool:
        ranges = key_ranges(store.footer(store.changes.path / file.path), OP)
        return any(not ops.known or ops.high >= Op.TOMBSTONE.value for ops in ranges)

    files: list[DataFile] = []
    if store.spec.subject:
        with ThreadPoolExecutor(READ_THREADS) as pool:
            matches = pool.map(may_hold, snapshot.unfolded)
            files = [file for file, holds in zip(snapshot.unfolded, matches, strict=True) if holds]
    names = [*store.spec.subject, *columns]
    rows = change_rows_in(store, files, columns=[*names, OP])
    is_unfolded = pc.and_(
        pc.equal(rows.column(OP), Op.TOMBSTONE.value), pc.greater(rows.column(SEQ), snapshot.watermark)
    )
    return rows.filter(is_unfolded).select([*names, SEQ])


def tombstone_filters(store: Store, snapshot: Snapshot) -> tuple[TombstoneFilter, ...]:
    """Return the filters of Δ's tombstones, one for each combination of subject columns that they name."""
    rows = tombstone_rows(store, snapshot)
    return _grouped(rows, store) if rows.num_rows else ()


def _grouped(rows: pa.Table, store: Store) -> tuple[TombstoneFilter, ...]:
    """Group tombstones, which have the subject columns and ``_seq``, by the columns that they name."""
    named = np.zeros(rows.num_rows, np.int64)
    for bit, name in enumerate(store.spec.subject):
        named |= rows.column(name).is_valid().to_numpy().astype(np.int64) << bit
    filters = []
    for pattern in np.unique(named):
        columns = tuple(name for bit, name in enumerate(store.spec.subject) if pattern >> bit & 1)
        if columns:
            matching = rows.filter(pa.array(named == pattern)).select([*columns, SEQ])
            highest = matching.group_by(list(columns)).aggregate([(SEQ, "max")])
            filters.append(TombstoneFilter(columns, highest.rename_columns([*columns, HIDES])))
    return tuple(filters)


def count_named(store: Store, snapshot: Snapshot, named: pa.Table) -> int | None:
    """Count the rows that a tombstone of these subject values would hide; None for a log of many rows.

    `named` has the subject columns, null where a column is not named.
    """
    if snapshot.base.rows + snapshot.unfolded_rows > store.settings.arrow_changes_rows:
        return None
    filters = _grouped(named.append_column(SEQ, pa.repeat(snapshot.sequence + 1, named.num_rows)), store)
    rows = log_table(store, snapshot, columns=store.spec.subject)
    return int(np.count_nonzero(hidden_until(rows, filters)))


def hidden_until(rows: pa.Table, filters: Iterable[TombstoneFilter]) -> Numbers:
    """Return for each row the highest sequence of a tombstone that names its subject; 0 without one."""
    highest = np.zeros(rows.num_rows, np.int64)
    for tombstone_filter in filters:
        highest = np.maximum(highest, _hidden_until(rows, tombstone_filter))
    return highest


def _hidden_until(rows: pa.Table, tombstone_filter: TombstoneFilter) -> Numbers:
    if len(tombstone_filter.columns) == 1:
        [name] = tombstone_filter.columns
        table = tombstone_filter.rows.combine_chunks()
        places = pc.index_in(rows.column(name), value_set=table.column(name).combine_chunks())
        return np.asarray(pc.fill_null(table.take(places).column(HIDES), 0).to_numpy())
    names = list(tombstone_filter.columns)
    numbered = rows.select(names).append_column(ROW, pa.array(np.arange(rows.num_rows), pa.int64()))
    joined = numbered.join(tombstone_filter.rows, keys=names, join_type="inner")
    highest = np.zeros(rows.num_rows, np.int64)
    highest[joined.column(ROW).to_numpy()] = joined.column(HIDES).to_numpy()
    return highest


def log_table(store: Store, snapshot: Snapshot, *, raw: bool = False, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the view as one Arrow table, with some columns; with `raw`, tombstones are not applied."""
    filters = () if raw else tombstone_filters(store, snapshot)
    requested = store.schema.names if columns is None else list(columns)
    names = list(dict.fromkeys([*requested, *store.spec.subject, *store.spec.dedup_by]))
    schema = pa.schema([store.schema.field(name) for name in names])
    parts = [_not_hidden(rows, filters) for rows in base_tables(store, snapshot, names)]
    appended = append_rows(store, snapshot, filters, columns=names, raw=raw).cast(schema)
    if store.spec.dedup_by and not raw:
        if store.spec.survivor is Survivor.FIRST:
            appended = _without_equal(appended, parts, store)
        else:
            parts = [_without_equal(rows, [appended], store) for rows in parts]
    return pa.concat_tables([part.select(requested) for part in (*parts, appended)]).combine_chunks()


def append_rows(
    store: Store, snapshot: Snapshot, filters: Sequence[TombstoneFilter], *, columns: Sequence[str], raw: bool = False
) -> pa.Table:
    """Return the given columns of Δ's visible appends without duplicates among them, in the order of application."""
    rows = unfolded_rows(store, snapshot, columns=[*columns, *store.spec.subject, OP])
    seen = _visible(rows, filters)
    return (seen if raw else survivors(seen, store)).select(list(columns))


def _without_equal(rows: pa.Table, others: Sequence[pa.Table], store: Store) -> pa.Table:
    return rows.filter(pa.array(~equal_to_any(rows, others, store.spec.dedup_by)))


def _visible(rows: pa.Table, filters: Sequence[TombstoneFilter]) -> pa.Table:
    """Return the visible appends among change rows, which have their own sequence as ``_seq``."""
    appended = rows.filter(pc.equal(rows.column(OP), Op.APPEND.value))
    if not filters or not appended.num_rows:
        return appended
    return appended.filter(pa.array(hidden_until(appended, filters) <= appended.column(SEQ).to_numpy()))


def _not_hidden(rows: pa.Table, filters: Sequence[TombstoneFilter]) -> pa.Table:
    """Return the rows of base that no tombstone names. All of them are older than any tombstone."""
    return rows.filter(pa.array(hidden_until(rows, filters) == 0)) if filters and rows.num_rows else rows


def log_head(store: Store, snapshot: Snapshot, rows: int, *, raw: bool = False) -> pa.Table:
    """Return the first rows of `log_table`, reading little more than these rows and the tombstones."""
    filters = () if raw else tombstone_filters(store, snapshot)
    parts = [store.schema.empty_table()]
    missing = rows
    dedup = bool(store.spec.dedup_by) and not raw
    for piece in (_deduplicated if dedup else _pieces)(store, snapshot, filters):
        if missing <= 0:
            break
        parts.append(piece.slice(0, missing))
        missing -= parts[-1].num_rows
    return pa.concat_tables(parts)


def _pieces(store: Store, snapshot: Snapshot, filters: Sequence[TombstoneFilter]) -> Iterator[pa.Table]:
    for batch in base_batches(store, snapshot):
        yield _not_hidden(pa.Table.from_batches([batch]), filters)
    for file in snapshot.unfolded:
        rows = change_rows_in(store, [file])
        rows = rows.filter(pc.greater(rows.column(SEQ), snapshot.watermark))
        yield _visible(rows, filters).select(store.schema.names).cast(store.schema)


def _deduplicated(store: Store, snapshot: Snapshot, filters: Sequence[TombstoneFilter]) -> Iterator[pa.Table]:
    """Yield the view of a log without duplicates. The visible rows of base are known before they are read."""
    first = store.spec.survivor is Survivor.FIRST
    appended = append_rows(store, snapshot, filters, columns=store.schema.names).cast(store.schema)
    for batch in base_batches(store, snapshot):
        rows = _not_hidden(pa.Table.from_batches([batch]), filters)
        yield rows if first else _without_equal(rows, [appended], store)
    if first:
        near = [_not_hidden(rows, filters) for rows in near_keys(store, snapshot)]
        appended = _without_equal(appended, near, store)
    yield appended


@dataclass(frozen=True, slots=True)
class LogOverlay:
    """Δ, ready to be merged over base: the tombstone filters, and the visible appends."""

    filters: "tuple[tuple[TombstoneFilter, DataFrame], ...]"
    appends: "DataFrame"


def log_frame(
    spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool = False, once: bool = False
) -> "DataFrame":
    """Return the view as a Spark frame; with `raw`, tombstones are not applied.

    A small Δ reaches Spark as Arrow tables. These are cached with the store until the dataset changes, unless it is
    read `once`. The executors read a large Δ, except for its tombstones.
    """
    base = base_frame(spark, store, snapshot).select(*store.schema.names)
    if not snapshot.unfolded:
        return base
    if once or snapshot.past or not is_small(store, snapshot):
        over = _overlay(spark, store, snapshot, raw=raw)
    else:
        state = ("log", snapshot.changes.version, snapshot.base.version, raw)
        over = store.frames.get(state, spark, lambda _: _overlay(spark, store, snapshot, raw=raw))
    for tombstone_filter, frame in over.filters:
        base = without_hidden(base, tombstone_filter, frame, store)
    if store.spec.dedup_by and store.spec.survivor is Survivor.LAST and not raw:
        base = without_equal(base, over.appends, store, few=is_small(store, snapshot))
    return base.unionByName(over.appends)


def is_small(store: Store, snapshot: Snapshot) -> bool:
    """True if Δ reaches Spark as Arrow tables."""
    return snapshot.unfolded_rows <= store.settings.arrow_changes_rows


def _overlay(spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool) -> LogOverlay:
    filters = () if raw else tombstone_filters(store, snapshot)
    frames = tombstone_frames(spark, filters)
    return LogOverlay(frames, append_frame(spark, store, snapshot, frames, columns=store.schema.names, raw=raw))


def tombstone_frames(
    spark: "SparkSession", filters: Sequence[TombstoneFilter]
) -> "tuple[tuple[TombstoneFilter, DataFrame], ...]":
    """Return tombstone filters, each with the frame to join rows with."""
    return tuple((tombstone_filter, arrow_frame(spark, tombstone_filter.rows)) for tombstone_filter in filters)


def append_frame(
    spark: "SparkSession",
    store: Store,
    snapshot: Snapshot,
    filters: "Sequence[tuple[TombstoneFilter, DataFrame]]",
    *,
    columns: Sequence[str],
    raw: bool = False,
) -> "DataFrame":
    """Return the given columns of Δ's visible appends, without duplicates."""
    from pyspark.sql import functions as F

    if is_small(store, snapshot):
        rows = append_rows(
            store, snapshot, [tombstone_filter for tombstone_filter, _ in filters], columns=columns, raw=raw
        )
        frame = arrow_frame(spark, rows)
    else:
        frame = changes_frame(spark, store, snapshot).where(F.col(OP) == Op.APPEND.value)
        for tombstone_filter, side in filters:
            frame = without_hidden(frame, tombstone_filter, side, store, later=True)
        frame = (frame if raw else surviving(frame, store)).select(*columns)
    if raw or not store.spec.dedup_by or store.spec.survivor is Survivor.LAST:
        return frame
    files, few = near_files(store, snapshot), is_small(store, snapshot)
    if not files:
        return frame
    # The first survives, so appends with an equal visible row in base are left out.
    near = files_frame(spark, store, files).select(*store.spec.dedup_by)
    for tombstone_filter, side in filters:
        near = without_hidden(near, tombstone_filter, side, store)
    return without_equal(frame, with_equal(near, frame, store, few=few), store, few=few)


def without_hidden(
    frame: "DataFrame", tombstone_filter: TombstoneFilter, side: "DataFrame", store: Store, *, later: bool = False
) -> "DataFrame":
    """Return the rows that no tombstone names. With `later`, only tombstones after a change row hide it."""
    from pyspark.sql import functions as F

    named, same = by_hash(side, tombstone_filter.columns)
    if later:
        same = same & (F.col(HIDES) > F.col(SEQ))
    few = tombstone_filter.rows.num_rows <= store.settings.arrow_changes_rows
    return frame.join(join_side(named, broadcast=few), same, "left_anti")
