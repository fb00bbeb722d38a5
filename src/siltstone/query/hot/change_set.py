"""What the changes above a sequence do to rows that hold everything up to it: the same for a fill and for a refresh.

1. rows that are *gone*: of these keys, these subjects, or (in a log that keeps the last of duplicates) equal to a new one;
2. rows that are *put*; of a log that keeps the first of duplicates, only those that no row is equal to.

A fill lays it over base, above the watermark; a refresh over what is resident, above its sequence. Many changes are taken in
several groups, each of whole sequences, so that memory holds one of them: the rows after each are those of its last sequence.
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
"""About how many change rows are held at once."""


@dataclass(frozen=True, slots=True)
class Deletes:
    """Rows that are equal to one of these in its columns go; null equals null."""

    columns: tuple[str, ...]
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSet:
    """What is to be applied, in this order."""

    gone: tuple[Deletes, ...]
    put: pa.Table
    unless_equal: tuple[str, ...] = ()
    """A row is put only if none is there that is equal to it in these columns."""
    sequence: int = 0
    """The last one that it holds."""


def deltas_above(store: Store, snapshot: Snapshot, sequence: int) -> Iterator[ChangeSet]:
    """Yield what the changes of a snapshot above a sequence do, to be applied one after the other.

    Raises:
        FileNotFoundError: a file was removed since the snapshot; take a new one.
        UnsupportedType: a row holds a value that DuckDB does not take.
    """
    for group in _groups(replace(snapshot, watermark=sequence)):
        delta = _log_delta(store, group) if store.spec.is_log else _keyed_delta(store, group)
        check_values(delta.put)
        last = max(sequence_of(file) for file in group.changes.files)
        yield replace(delta, sequence=last)


def _groups(above: Snapshot) -> Iterator[Snapshot]:
    """Yield snapshots with some of the change files each; the files of a sequence, and a squashed range, stay together."""
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
