"""The effect of the changes above a sequence on rows that contain everything up to it, for fills and refreshes.

1. Rows that are *gone*: rows with these keys or subjects. In a log that keeps the last duplicate, also rows that are
   equal to a new row.
2. Rows that are *put*. In a log that keeps the first duplicate, only rows without an equal row in the table.

A fill applies the changes above the watermark to base. A refresh applies the changes above its sequence to the resident
rows. Many changes are split into groups of whole sequences, so that memory holds one group at a time. The rows after a
group are the rows of its last sequence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.arrow_view import latest_per_key, unfolded_rows
from siltstone.dataset.snapshot import Snapshot, sequence_of
from siltstone.dataset.store import Store
from siltstone.model.columns import OP, Op
from siltstone.model.files import DataFile
from siltstone.model.spec import Survivor
from siltstone.query.hot.duckdb_types import check_values

GROUP_ROWS: Final = 500_000
"""Approximate number of change rows in memory at once."""


@dataclass(frozen=True, slots=True)
class Deletes:
    """Deletes rows that are equal to one of `rows` in `columns`. Null equals null."""

    columns: tuple[str, ...]
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSet:
    """Deletes and inserts, to be applied in this order."""

    gone: tuple[Deletes, ...]
    put: pa.Table
    unless_equal: tuple[str, ...] = ()
    """A row is inserted only if no row in the table is equal to it in these columns."""
    sequence: int = 0
    """Last sequence that it contains."""


def deltas_above(store: Store, snapshot: Snapshot, sequence: int) -> Iterator[ChangeSet]:
    """Yield the effect of the changes above a sequence, to be applied one after the other.

    Raises:
        FileNotFoundError: a file was removed since the snapshot. Take a new snapshot.
        UnsupportedType: a row has a value that DuckDB does not support.
    """
    for group in _groups(replace(snapshot, watermark=sequence)):
        delta = _log_delta(store, group) if store.spec.is_log else _keyed_delta(store, group)
        check_values(delta.put)
        last = max(sequence_of(file) for file in group.changes.files)
        yield replace(delta, sequence=last)


def _groups(above: Snapshot) -> Iterator[Snapshot]:
    """Yield snapshots with a part of the change files each.

    Files of one sequence stay together, and so does a squashed range.
    """
    files: list[DataFile] = []
    for _, batch in groupby(above.unfolded, key=sequence_of):
        if sum(file.rows for file in files) >= GROUP_ROWS:
            yield replace(above, changes=replace(above.changes, files=tuple(files)))
            files = []
        files += batch
    if files:
        yield replace(above, changes=replace(above.changes, files=tuple(files)))


def _keyed_delta(store: Store, above: Snapshot) -> ChangeSet:
    key = store.spec.key
    latest = latest_per_key(unfolded_rows(store, above), key)
    upserts = latest.filter(pc.equal(latest.column(OP), Op.UPSERT.value)).select(store.schema.names)
    gone = (Deletes(key, latest.select(list(key))),) if latest.num_rows else ()
    return ChangeSet(gone=gone, put=upserts.cast(store.schema))


def _log_delta(store: Store, above: Snapshot) -> ChangeSet:
    from siltstone.dataset.read.log_view import append_rows, tombstone_filters

    stones = tombstone_filters(store, above)
    appended = append_rows(store, above, stones, columns=store.schema.names).cast(store.schema)
    gone = [Deletes(stone.columns, stone.rows.select(list(stone.columns))) for stone in stones]
    dedup = store.spec.dedup_by
    if dedup and store.spec.survivor is Survivor.LAST and appended.num_rows:
        gone.append(Deletes(dedup, appended.select(list(dedup))))
    first = dedup if store.spec.survivor is Survivor.FIRST else ()
    return ChangeSet(gone=tuple(gone), put=appended, unless_equal=first)
