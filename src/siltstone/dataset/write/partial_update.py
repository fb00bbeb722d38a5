"""Partial updates: given columns replace those of the current rows, columns that are left out keep their values.

A change row is a whole row, so an update reads the current rows, merges, and writes them back:

1. take a snapshot and look the keys up. If a column was added since the columns were read, start again;
2. merge the given columns into the rows that were found;
3. write the rows as one batch that is planned at the snapshot's sequence. The commit refuses it if one of its keys was
   changed above that sequence. Another process or a batch of the same commit may have done so;
4. if it was refused, start again, until the time limit of a commit is reached.

So two updates of different columns of one row never lose each other's values, whichever commits first. A crash leaves
the same as a crash of an upsert: the whole batch, or nothing of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from siltstone.dataset.read.point_lookup import check_key_count, current_rows
from siltstone.dataset.store import Store
from siltstone.dataset.write.change_writer import ChangedMeanwhile, ChangeWriter
from siltstone.dataset.write.row_conversion import check_keys, to_table
from siltstone.delta.commit_lock import CommitLock
from siltstone.errors import Conflict, InvalidRequest, NotFound, Unavailable
from siltstone.host.deferred_interrupts import Uninterrupted
from siltstone.model.arrays import Numbers
from siltstone.model.columns import Op
from siltstone.model.reports import Ack

PAUSE_SECONDS: Final = 0.05
"""Longest pause in seconds before an update restarts, because another writer changed its rows."""
_AT: Final = "_at"
_ROW: Final = "_row"


class Missing(StrEnum):
    """How an update handles a key without a row."""

    ERROR = "error"
    INSERT = "insert"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRows:
    """The rows of an update."""

    table: pa.Table
    """The columns that at least one row names."""
    named: Mapping[str, Numbers]
    """For each of these columns, whether each row names it."""
    keys: pa.Table
    """The key columns, each key once."""
    key_of: Numbers
    """For each row, the index of its key in `keys`."""


def update_rows(
    current: Callable[[], ChangeWriter],
    rows: Any,  # noqa: ANN401
    *,
    missing: str,
    producer: str | None,
    sequence: int | None,
) -> Ack:
    """Update rows; see the header and `Dataset.update`. `current` returns the writer for the current columns."""
    if missing not in tuple(Missing):
        raise InvalidRequest(f"missing is one of {', '.join(Missing)}, not {missing!r}.")
    writer = current()
    clock = writer.store.clock
    deadline = clock.monotonic_seconds() + writer.store.settings.commit_timeout_seconds
    while True:
        store, key, name = writer.store, writer.store.spec.key, str(writer.store.name)
        update = _checked_rows(rows, store.schema, key, dataset=name)
        check_key_count(store, update.keys.num_rows)
        with suppress(ChangedMeanwhile), _update_lock(store):
            planned_at, old = current_rows(store, lambda: current().store, update.keys, columns=store.schema.names)
            if current().store is not store:  # a column was added since: rows without it would erase its values
                raise ChangedMeanwhile
            if missing == Missing.ERROR:
                _check_all_exist(update, old, key, dataset=name)
            table = to_table(_merged(update, old, store.schema, key), store.schema, dataset=name)
            return writer.write_rows(table, Op.UPSERT, producer=producer, sequence=sequence, planned_at=planned_at)
        if clock.monotonic_seconds() > deadline:
            raise Conflict(f"Dataset {name}: other writers keep changing these rows. Nothing was written. Try again.")
        clock.sleep(PAUSE_SECONDS * clock.jitter())
        writer = current()


def _checked_rows(rows: Any, schema: pa.Schema, key: Sequence[str], *, dataset: str) -> UpdateRows:  # noqa: ANN401
    """Check the rows of an update, and return them."""
    if isinstance(rows, Mapping):
        rows = [rows]
    is_dicts = isinstance(rows, Sequence) and not isinstance(rows, str | bytes)
    names = _names(rows, is_dicts=is_dicts)
    if names is not None and not set(names) - set(key):
        raise InvalidRequest(f"Dataset {dataset}: the rows name no column to change besides the key.")
    fields = [field.with_nullable(True) for field in schema if names is None or field.name in names]  # noqa: FBT003
    if names is not None and len(fields) < len(names):
        to_table(rows, schema, dataset=dataset)  # names the unknown column
    table = to_table(rows, pa.schema(fields), dataset=dataset)
    if not table.num_rows:
        raise InvalidRequest(f"Dataset {dataset}: the batch is empty; nothing was written.")
    absent = [name for name in key if name not in set(table.column_names)]
    if absent:
        raise InvalidRequest(f"Dataset {dataset}: key column {absent[0]!r} is missing. Nothing was written.")
    check_keys(table, key, dataset=dataset)
    named = {
        name: np.fromiter((name in row for row in rows), bool, len(rows)) if is_dicts else np.ones(table.num_rows, bool)
        for name in table.column_names
    }
    keys = table.select(list(key)).group_by(list(key), use_threads=False).aggregate([]).select(list(key))
    return UpdateRows(table=table, named=named, keys=keys, key_of=_key_indexes(table, keys, key))


def _names(rows: Any, *, is_dicts: bool) -> set[str] | None:  # noqa: ANN401
    """Return the columns that the rows name; None if they cannot be determined, which `to_table` reports."""
    if is_dicts:
        return {name for row in rows if isinstance(row, Mapping) for name in row} or None
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return set(rows.schema.names)
    columns = getattr(rows, "columns", None)
    return {str(name) for name in columns} if columns is not None else None


def _merged(update: UpdateRows, current: pa.Table, schema: pa.Schema, key: Sequence[str]) -> pa.Table:
    """Return whole rows, one for each key: the last given value of each column, else the current one, else null."""
    at = _key_indexes(update.keys, current, key)
    return pa.table(
        {
            name: update.keys.column(name) if name in key else _merged_column(update, name, current.column(name), at)
            for name in schema.names
        }
    )


def _merged_column(update: UpdateRows, name: str, old: pa.ChunkedArray, at: Numbers) -> pa.ChunkedArray:
    """Choose for each key the value of the last row that names the column, else the current one, else null."""
    new = pa.chunked_array([], old.type)
    last = np.full(update.keys.num_rows, -1, np.int64)
    if name in update.named:
        new = update.table.column(name)
        numbers = np.flatnonzero(update.named[name])
        np.maximum.at(last, update.key_of[numbers], numbers)
    rows = pa.chunked_array([*new.chunks, *old.chunks, pa.nulls(1, old.type)], old.type)
    nothing = len(new) + len(old)
    chosen = np.where(last >= 0, last, np.where(at >= 0, len(new) + at, nothing))
    return rows.take(pa.array(chosen, pa.int64()))


def _check_all_exist(update: UpdateRows, current: pa.Table, key: Sequence[str], *, dataset: str) -> None:
    """Reject keys without a row; the message names the first."""
    if current.num_rows == update.keys.num_rows:
        return
    absent = np.flatnonzero(_key_indexes(update.keys, current, key) < 0)
    first = update.keys.slice(int(absent[0]), 1).to_pylist()[0]
    raise NotFound(
        f"Dataset {dataset}: {len(absent)} of {update.keys.num_rows} keys have no row, the first is "
        f"{', '.join(f'{name} = {value!r}' for name, value in first.items())}. Nothing was written. "
        "To insert such rows pass missing='insert' (--missing insert)."
    )


def _key_indexes(rows: pa.Table, among: pa.Table, key: Sequence[str]) -> Numbers:
    """Return the index of each row's key in a table that has each key once; -1 if it is missing."""
    names = list(key)
    indexes = np.full(rows.num_rows, -1, np.int64)
    left = rows.select(names).append_column(_ROW, pa.arange(0, rows.num_rows))
    right = among.select(names).append_column(_AT, pa.arange(0, among.num_rows))
    joined = left.join(right, keys=names, join_type="inner")
    indexes[joined.column(_ROW).to_numpy()] = joined.column(_AT).to_numpy()
    return indexes


@contextmanager
def _update_lock(store: Store) -> Iterator[None]:
    """Serialize updates of a dataset, for speed only: the commit decides correctness.

    It is the commit lock of base. Writers of `changes` do not acquire it, and a fold waits for it at most one second.
    """
    try:
        lock = CommitLock(store.base.path, clock=store.clock)
    except OSError as error:
        raise Unavailable(
            f"Dataset {store.name}: {store.base.path} cannot be written ({error}); nothing was changed. "
            "Check the disk and its permissions."
        ) from error
    with Uninterrupted(), lock:
        yield
