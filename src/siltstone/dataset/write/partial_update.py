"""Partial updates: given columns replace those of the current rows, columns that are left out keep their values.

A change row is a whole row, so an update reads the current rows, merges, and writes them back:

1. take a snapshot and look the keys up;
2. merge the given columns into the rows that were found;
3. write the rows as one batch that is planned at the snapshot's sequence. The commit refuses it if one of its keys was
   changed above that sequence, by another process or by a batch of the same commit;
4. if it was refused, start again, until the time limit of a commit is reached.

So two updates of different columns of one row never lose each other's values, whichever commits first. A crash leaves
the same as a crash of an upsert: the whole batch, or nothing of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from siltstone.dataset.store import Store
from siltstone.dataset.write.row_conversion import check_keys, to_table
from siltstone.delta.commit_lock import CommitLock
from siltstone.errors import InvalidRequest, NotFound, Unavailable
from siltstone.host.deferred_interrupts import Uninterrupted
from siltstone.model.arrays import Numbers

_AT: Final = "_at"
_ROW: Final = "_row"


class Missing(StrEnum):
    """How an update handles a key without a row."""

    ERROR = "error"
    INSERT = "insert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The rows of an update."""

    table: pa.Table
    """The columns that at least one row names."""
    named: Mapping[str, Numbers]
    """For each of these columns, whether each row names it."""
    keys: pa.Table
    """The key columns, each key once."""
    key_of: Numbers
    """For each row, the index of its key in `keys`."""


def given_rows(rows: Any, schema: pa.Schema, key: Sequence[str], *, dataset: str) -> Given:  # noqa: ANN401
    """Check the rows of an update, and return them.

    Raises:
        InvalidRequest: a row has no key, names an unknown column or nothing to change, or a value does not fit.
    """
    if isinstance(rows, Mapping):
        rows = [rows]
    is_dicts = isinstance(rows, Sequence) and not isinstance(rows, str | bytes)
    names = _names(rows, is_dicts=is_dicts)
    if names is not None and not set(names) - set(key):
        raise InvalidRequest(f"Dataset {dataset}: the rows name no column to change besides the key.")
    wanted = [field.with_nullable(True) for field in schema if names is None or field.name in names]  # noqa: FBT003
    if names is not None and len(wanted) < len(names):
        to_table(rows, schema, dataset=dataset)  # names the unknown column
    table = to_table(rows, pa.schema(wanted), dataset=dataset)
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
    return Given(table=table, named=named, keys=keys, key_of=_places(table, keys, key))


def _names(rows: Any, *, is_dicts: bool) -> set[str] | None:  # noqa: ANN401
    """Return the columns that the rows name; None if they cannot be determined, which `to_table` reports."""
    if is_dicts:
        return {name for row in rows if isinstance(row, Mapping) for name in row} or None
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return set(rows.schema.names)
    columns = getattr(rows, "columns", None)
    return {str(name) for name in columns} if columns is not None else None


def merged(given: Given, current: pa.Table, schema: pa.Schema, key: Sequence[str]) -> pa.Table:
    """Return whole rows, one for each key: the last given value of each column, else the current one, else null."""
    at = _places(given.keys, current, key)
    columns = []
    for field in schema:
        if field.name in key:
            columns.append(given.keys.column(field.name))
            continue
        new = given.table.column(field.name) if field.name in given.named else None
        columns.append(_merged(new, _last(given, field.name), current.column(field.name), at))
    return pa.table(dict(zip(schema.names, columns, strict=True)))


def _last(given: Given, name: str) -> Numbers:
    """Return for each key the last row that names the column; -1 without one."""
    last = np.full(given.keys.num_rows, -1, np.int64)
    if name in given.named:
        rows = np.flatnonzero(given.named[name])
        np.maximum.at(last, given.key_of[rows], rows)
    return last


def _merged(new: pa.ChunkedArray | None, last: Numbers, old: pa.ChunkedArray, at: Numbers) -> pa.ChunkedArray:
    """Choose for each key from the given values, the current ones, and null."""
    given = [] if new is None else new.chunks
    count = 0 if new is None else len(new)
    rows = pa.chunked_array([*given, *old.chunks, pa.nulls(1, old.type)], old.type)
    nothing = count + len(old)
    places = np.where(last >= 0, last, np.where(at >= 0, count + at, nothing))
    return rows.take(pa.array(places, pa.int64()))


def check_missing(given: Given, current: pa.Table, key: Sequence[str], *, missing: Missing, dataset: str) -> None:
    """Reject keys without a row, unless they are to be inserted.

    Raises:
        NotFound: a key has no row; the message names the first.
    """
    if missing is Missing.INSERT or current.num_rows == given.keys.num_rows:
        return
    absent = np.flatnonzero(_places(given.keys, current, key) < 0)
    first = given.keys.slice(int(absent[0]), 1).to_pylist()[0]
    raise NotFound(
        f"Dataset {dataset}: {len(absent)} of {given.keys.num_rows} keys have no row, the first is "
        f"{', '.join(f'{name} = {value!r}' for name, value in first.items())}. Nothing was written. "
        "To insert such rows pass missing='insert' (--missing insert)."
    )


def missing_of(text: str) -> Missing:
    """Parse the option for missing keys.

    Raises:
        InvalidRequest: it is not a valid option.
    """
    if text not in tuple(Missing):
        raise InvalidRequest(f"missing is one of {', '.join(Missing)}, not {text!r}.")
    return Missing(text)


def _places(rows: pa.Table, among: pa.Table, key: Sequence[str]) -> Numbers:
    """Return for each row the index of its key in a table that has each key once; -1 if it is missing."""
    names = list(key)
    found = np.full(rows.num_rows, -1, np.int64)
    left = rows.select(names).append_column(_ROW, pa.arange(0, rows.num_rows))
    right = among.select(names).append_column(_AT, pa.arange(0, among.num_rows))
    joined = left.join(right, keys=names, join_type="inner")
    found[joined.column(_ROW).to_numpy()] = joined.column(_AT).to_numpy()
    return found


@contextmanager
def update_lock(store: Store) -> Iterator[None]:
    """Serialize updates of a dataset, for speed only: the commit decides correctness.

    It is the commit lock of base. Writers of `changes` do not acquire it, and a fold waits for it at most one second.

    Raises:
        Unavailable: the folder of base cannot be written.
    """
    try:
        turn = CommitLock(store.base.path, clock=store.clock)
    except OSError as error:
        raise Unavailable(
            f"Dataset {store.name}: {store.base.path} cannot be written ({error}); nothing was changed."
        ) from error
    with Uninterrupted(), turn:
        yield
