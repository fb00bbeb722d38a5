"""Rows by key, without Spark: the last change of each key, then base row groups that can hold the rest.

Flow of a lookup at one snapshot:

1. keys: convert the requested keys to the dataset's types, each once, in the order of the request;
2. changes: find the last unfolded change of each key. The keys of a small file become a cached dict. Of a large file
   only row groups that may hold a key are searched;
3. base: search keys without a change in the row groups whose key columns have them in range;
4. rows: of each row group that has a key, read the requested columns up to the last such row. Cached columns are
   reused.

Files never change, so their content is cached by path (`delta/read_cache.py`). The order of rows in a file is used only
for speed: keys that a binary search does not find are compared row by row.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.retry import with_snapshot
from siltstone.dataset.snapshot import Snapshot, sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.layout import BASE, CHANGES
from siltstone.delta.read_cache import CacheReader
from siltstone.delta.row_group_reader import FileReader, GroupedFile
from siltstone.errors import InvalidRequest
from siltstone.model.arrays import Numbers
from siltstone.model.columns import OP, POS, ROW_SEQ, Op
from siltstone.model.files import DataFile, KeyRange

READ_THREADS: Final = 4
"""Files and row groups that are read at once. Arrow works outside Python's lock."""
MAX_LOOKUP_KEYS: Final = 100_000
"""Largest number of keys of a lookup. More keys touch most of a dataset, so a join is the right tool."""
FEW_FOOTERS: Final = 8
"""Number of footers up to which sequential reads are faster than starting threads."""
LISTED_ROWS: Final = 20_000
"""Rows of a change file up to which its keys are cached as a dict. Hundreds of such files then cost a lookup little."""
LISTED_ROW_BYTES: Final = 300
"""Approximate size of a key in such a dict, in bytes."""
_LISTED: Final = "listed"

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K", bound=Hashable)


class KeyChange(NamedTuple):
    """One change of a key; changes compare by the order of application."""

    sequence: int
    position: int
    is_upsert: bool
    place: "RowLocation"


@dataclass(frozen=True, slots=True)
class RowLocation:
    """Location of a change row; with `keep`, its row group may stay in the cache."""

    path: str
    group: int
    row: int
    keep: bool


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of one row group, and the numbers of their keys."""

    numbers: list[int]
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Index of a small change file: the last change of each key, and the last upsert for raw reads."""

    last: Mapping[Hashable, KeyChange]
    upserts: Mapping[Hashable, KeyChange]


class KeySet:
    """The requested keys, each once. A key's number is its place in the request."""

    def __init__(self, keys: pa.Table, key: Sequence[str]) -> None:
        """Index the keys. Of a repeated key the first is used."""
        self.key = list(key)
        first: dict[Hashable, int] = {}
        for at, value in enumerate(plain_keys(keys, self.key)):
            first.setdefault(value, at)
        self.number: Mapping[Hashable, int] = {value: number for number, value in enumerate(first)}
        rows = keys.select(self.key)
        rows = rows if len(first) == rows.num_rows else rows.take(pa.array(list(first.values())))
        self.table = rows.combine_chunks()

    @cached_property
    def _sorted(self) -> tuple[list[Any], list[int], list[list[Any]]] | None:
        """The first key column sorted, the keys' numbers in that order, and all columns; None if a value overflows."""
        try:
            columns = [column.to_pylist() for column in self.table.columns]
        except OverflowError:  # a date past the year 9999
            return None
        order = sorted(range(len(columns[0])), key=columns[0].__getitem__)
        return [columns[0][number] for number in order], order, columns

    def in_range(self, ranges: Sequence[KeyRange]) -> list[int]:
        """Return the keys in the ranges of all key columns, or of the first few of them."""
        if self._sorted is None:
            return list(self.number.values())
        firsts, order, columns = self._sorted
        first = ranges[0]
        inside = order[bisect_left(firsts, first.low) : bisect_right(firsts, first.high)] if first.known else order
        for column, bounds in zip(columns[1:], ranges[1:], strict=False):
            if bounds.known:
                inside = [number for number in inside if bounds.low <= column[number] <= bounds.high]
        return inside

    def groups(self, footer: GroupedFile, among: Set[int]) -> list[tuple[int, list[int]]]:
        """Return the row groups of a file that may hold keys of `among`, each with these keys."""
        if among.isdisjoint(self.in_range([footer.whole])):
            return []
        candidates = [
            (group, [number for number in self.in_range(ranges) if number in among])
            for group, ranges in enumerate(footer.groups)
        ]
        return [(group, numbers) for group, numbers in candidates if numbers]


def check_key_count(store: Store, keys: int) -> None:
    """Raise InvalidRequest if there are too many keys for one lookup."""
    if keys > MAX_LOOKUP_KEYS:
        raise InvalidRequest(
            f"Dataset {store.name}: {keys} keys are too many for one lookup ({MAX_LOOKUP_KEYS}). "
            "Join read() or to_arrow() with them."
        )


def current_rows(
    store: Store, current: Callable[[], Store], keys: pa.Table, *, columns: Sequence[str], raw: bool = False
) -> tuple[int, pa.Table]:
    """Look keys up in a new snapshot (see `lookup`), and return its sequence and the rows.

    `current` returns the store with the current columns, of which the snapshot is taken (see `with_snapshot`).
    """
    since = store.reads.generation

    def find(snapshot: Snapshot) -> tuple[int, pa.Table]:
        return snapshot.sequence, lookup(store, snapshot, keys, columns=columns, raw=raw, since=since)

    return with_snapshot(current, find)


def lookup(
    store: Store, snapshot: Snapshot, keys: pa.Table, *, columns: Sequence[str], raw: bool, since: int
) -> pa.Table:
    """Return the rows of these keys in the merged view, in the order of the keys, each once.

    With `raw`, tombstones are not applied. `since` is `store.reads.generation` before the snapshot was taken.
    FileNotFoundError means that a file was removed since the snapshot: take a new one.
    """
    visit = store.reads.visit(
        store.path,
        state=(snapshot.changes.version, snapshot.base.version),
        live=[*map(_base_path, snapshot.base.files), *map(_change_path, snapshot.unfolded)],
        since=since,
    )
    requested = KeySet(keys, store.spec.key)
    files = _Files(store, snapshot, visit)
    changed = _last_changes(files, requested, raw=raw)
    parts = _change_rows(files, {n: change.place for n, change in changed.items() if change.is_upsert}, columns)
    if len(changed) < len(requested.number):
        parts += _base_rows(files, requested, set(requested.number.values()) - set(changed), columns)
    schema = pa.schema([store.schema.field(name) for name in columns])
    table = pa.concat_tables([schema.empty_table(), *(part.rows.cast(schema) for part in parts)])
    order = np.argsort([number for part in parts for number in part.numbers], kind="stable").astype(np.int64)
    return table.take(pa.array(order)).combine_chunks()


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a snapshot, read through the cache."""

    store: Store
    snapshot: Snapshot
    visit: CacheReader

    def reader(self, path: str) -> FileReader:
        schema = self.store.schema if path.startswith(f"{BASE}/") else self.store.change_schema
        return FileReader(
            root=self.visit.folder,
            path=path,
            schema=schema,
            key=self.store.spec.key,
            visit=self.visit,
            verify=self.store.settings.verify_checksums,
        )


def _base_path(file: DataFile) -> str:
    return f"{BASE}/{file.path}"


def _change_path(file: DataFile) -> str:
    return f"{CHANGES}/{file.path}"


def _last_changes(files: _Files, requested: KeySet, *, raw: bool) -> dict[int, KeyChange]:
    """Return the last change above the watermark of each requested key; with `raw`, tombstones are ignored."""
    last: dict[int, KeyChange] = {}

    def note(number: int, change: KeyChange) -> None:
        if change.sequence > files.snapshot.watermark:
            _note_last(last, number, change)

    unfolded = files.snapshot.unfolded
    small = [file for file in unfolded if file.rows <= LISTED_ROWS]
    for listed in _each(lambda f: _key_index(files, f), small, lambda f: files.visit.has(_change_path(f), _LISTED)):
        changes = listed.upserts if raw else listed.last
        for value in requested.number.keys() & changes.keys():
            note(requested.number[value], changes[value])
    for file in unfolded:
        if file.rows > LISTED_ROWS:
            for number, change in _changes_of_keys(files, file, requested):
                if change.is_upsert or not raw:
                    note(number, change)
    return last


def _key_index(files: _Files, file: DataFile) -> KeyIndex:
    """Return the keys of a small change file, and cache them."""
    path = _change_path(file)
    cached: KeyIndex | None = files.visit.find(path, _LISTED)
    if cached is not None:
        return cached
    reader = files.reader(path)
    last: dict[Hashable, KeyChange] = {}
    upserts: dict[Hashable, KeyChange] = {}
    for group in range(reader.footer().metadata.num_row_groups):
        rows = reader.columns(group, [*reader.key, OP, POS, ROW_SEQ], keep=False)
        changes = _changes(rows, file, group, range(rows.num_rows), keep=True)
        for value, change in zip(plain_keys(rows, reader.key), changes, strict=True):
            _note_last(last, value, change)
            if change.is_upsert:
                _note_last(upserts, value, change)
    listed = KeyIndex(last, upserts if upserts != last else last)
    files.visit.put(path, _LISTED, listed, LISTED_ROW_BYTES * (len(last) + len(upserts)))
    return listed


def _note_last(changes: dict[K, KeyChange], value: K, change: KeyChange) -> None:
    last = changes.get(value)
    if last is None or last < change:
        changes[value] = change


def _changes_of_keys(files: _Files, file: DataFile, requested: KeySet) -> list[tuple[int, KeyChange]]:
    """Find the requested keys in a large change file."""
    reader = files.reader(_change_path(file))
    names = [*reader.key, OP, POS, ROW_SEQ]

    def search(part: tuple[int, list[int]]) -> list[tuple[int, KeyChange]]:
        group, numbers = part
        rows = reader.columns(group, names)
        hits = matches(rows, requested, numbers, unique=False)
        table = rows.take(pa.array([row for _, row in hits], pa.int64()))
        changes = _changes(table, file, group, [row for _, row in hits], keep=False)
        return [(number, change) for (number, _), change in zip(hits, changes, strict=True)]

    parts = requested.groups(reader.footer(), set(requested.number.values()))
    return [hit for hits in _each(search, parts, lambda part: reader.has_columns(part[0], names)) for hit in hits]


def _changes(table: pa.Table, file: DataFile, group: int, rows: Iterable[int], *, keep: bool) -> list[KeyChange]:
    """Return rows of a change file as changes; `rows` are their numbers in the row group."""
    ops, positions, row_sequences = (table.column(name).to_pylist() for name in (OP, POS, ROW_SEQ))
    sequence, path = sequence_of(file), _change_path(file)
    return [
        KeyChange(
            sequence if row_sequences[at] is None else row_sequences[at],
            positions[at],
            ops[at] == Op.UPSERT.value,
            RowLocation(path, group, row, keep),
        )
        for at, row in enumerate(rows)
    ]


def _change_rows(files: _Files, places: Mapping[int, RowLocation], columns: Sequence[str]) -> list[FoundRows]:
    """Read the change rows at these locations."""
    groups: dict[tuple[str, int, bool], list[tuple[int, int]]] = {}
    for number, place in places.items():
        groups.setdefault((place.path, place.group, place.keep), []).append((place.row, number))

    def read(part: tuple[str, int, bool]) -> FoundRows:
        path, group, keep = part
        located = sorted(groups[part])
        rows: Numbers = np.array([row for row, _ in located], np.int64)
        return FoundRows([number for _, number in located], files.reader(path).rows(group, rows, columns, keep=keep))

    return _each(read, list(groups), lambda part: files.reader(part[0]).has_columns(part[1], columns))


def _base_rows(files: _Files, requested: KeySet, missing: Set[int], columns: Sequence[str]) -> list[FoundRows]:
    """Find keys in base, and read their rows."""
    readers = [files.reader(_base_path(file)) for file in files.snapshot.base.files]
    few = len(readers) <= FEW_FOOTERS
    footers = _each(lambda reader: reader.footer(), readers, lambda reader: few or reader.has_footer())
    fits = sum(footer.size_bytes for footer in footers) <= files.visit.reads.limit_bytes
    parts = [
        (reader, group, numbers)
        for reader, footer in zip(readers, footers, strict=True)
        for group, numbers in requested.groups(footer, missing)
    ]

    def read(part: tuple[FileReader, int, list[int]]) -> FoundRows | None:
        reader, group, numbers = part
        again = reader.has_columns(group, requested.key)  # then the row group is worth more than this one lookup
        keys = reader.columns(group, requested.key)
        hits = sorted((row, number) for number, row in matches(keys, requested, numbers, unique=True))
        if not hits:
            return None
        rows: Numbers = np.array([row for row, _ in hits], np.int64)
        table = reader.rows(group, rows, columns, keep=fits and again, cached=keys)
        return FoundRows([number for _, number in hits], table)

    rows_of_parts = _each(read, parts, lambda part: part[0].has_columns(part[1], columns))
    return [part for part in rows_of_parts if part is not None]


def matches(table: pa.Table, requested: KeySet, numbers: Sequence[int], *, unique: bool) -> list[tuple[int, int]]:
    """Return which of the requested keys the rows have, each with its row, or its rows unless `unique`."""
    keys = requested.table.take(pa.array(numbers, pa.int64()))
    table = table.select(requested.key)
    is_searchable = not pa.types.is_decimal(table.column(0).type)  # Arrow cannot search decimals
    if unique and len(requested.key) == 1 and is_searchable:
        at = _searched_places(table.column(0).combine_chunks(), keys.column(0).combine_chunks())
        if at is not None:
            return list(zip(numbers, at, strict=True))
    mask: Any = None
    for name in requested.key:
        values = keys.column(name).combine_chunks()
        here = pc.equal(table.column(name), values[0]) if len(values) == 1 else pc.is_in(table.column(name), values)
        mask = here if mask is None else pc.and_(mask, here)
    positions = np.flatnonzero(np.asarray(mask))
    values = plain_keys(table.take(pa.array(positions)), requested.key) if len(positions) else []
    hits = zip((requested.number.get(value, -1) for value in values), positions.tolist(), strict=True)
    searched = set(numbers)  # the columns of two keys can make up a third one that was requested, too
    return [(number, row) for number, row in hits if number in searched]


def _searched_places(rows: pa.Array, values: pa.Array) -> list[int] | None:
    """Return the row of each value, by binary search; None if a value is absent or rows are not sorted."""
    at = pc.search_sorted(rows, values, side="left")
    if not len(rows) or pc.max(at).as_py() >= len(rows) or not pc.all(pc.equal(rows.take(at), values)).as_py():
        return None
    places: list[int] = at.to_pylist()
    return places


def _each(work: Callable[[T], U], parts: Sequence[T], is_cached: Callable[[T], bool]) -> list[U]:
    """Apply `work` to all parts. Use a few threads if more than one part has to be read from disk."""
    if len(parts) > 1 and sum(not is_cached(part) for part in parts) > 1:
        with ThreadPoolExecutor(min(READ_THREADS, len(parts))) as pool:
            return list(pool.map(work, parts))
    return [work(part) for part in parts]


def plain_keys(table: pa.Table, key: Iterable[str]) -> list[Hashable]:
    """Return keys as values that compare and hash. Times and dates become numbers: Python cannot hold all of them."""
    columns = [_plain(table.column(name)) for name in key]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _plain(column: pa.ChunkedArray) -> list[Hashable]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    values: list[Hashable] = column.to_pylist()
    return values
