"""Meaning of rows: merged view, fold and squash, and the oracle.

The oracle is deliberately a second, simpler definition. It applies whole batches one after another to a list. It has no
files, sequences per row or watermarks. All results are sorted tuples with duplicates, so a row applied twice is
visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from tests.model.state import Batch, Dataset, File, Kind, Row, Version
from tests.model.variants import Variant

DAY = "day"
View = tuple[tuple[str, int], ...]


class Stamped(NamedTuple):
    """A change row with its effective sequence, coalesce(`_row_seq`, `_seq`)."""

    seq: int
    pos: int
    row: Row


def delta(files: Iterable[File], *, above: int) -> list[Stamped]:
    """Return the change rows above a watermark, ordered by (sequence, position)."""
    stamped = [
        Stamped(file.seq if row.row_seq is None else row.row_seq, row.pos, row) for file in files for row in file.rows
    ]
    return sorted(item for item in stamped if item.seq > above)


def latest_per_key(changes: Iterable[Stamped]) -> dict[str, Stamped]:
    """Return the last row of each key."""
    return {item.row.key: item for item in changes}


def hides(tombstone: Stamped, item: Stamped, broken: Variant | None) -> bool:
    """True if a tombstone of a log hides an append: only sequences are compared."""
    match broken:
        case Variant.VISIBILITY_BY_CLOCK:
            return item.row.clock < tombstone.row.clock
        case Variant.VISIBILITY_BY_EVENT_TIME:
            return item.row.hour < tombstone.row.hour
        case Variant.TOMBSTONE_HIDES_NEWER:
            return True
        case _:
            return item.seq < tombstone.seq


def surviving(kind: Kind, changes: list[Stamped], broken: Variant | None = None) -> list[Row]:
    """Return the rows that the changes add to the base rows."""
    if kind is Kind.KEYED:
        return [item.row for item in latest_per_key(changes).values() if item.row.op == "U"]
    tombstones = [item for item in changes if item.row.op == "D"]
    return [
        item.row
        for item in changes
        if item.row.op == "A" and not any(s.row.key == item.row.key and hides(s, item, broken) for s in tombstones)
    ]


def uncovered(kind: Kind, rows: Iterable[Row], changes: list[Stamped], broken: Variant | None = None) -> list[Row]:
    """Return the base rows that the changes do not hide.

    Every base row is older than every change, so no sequence is compared.
    """
    covering = [item for item in changes if kind is Kind.KEYED or item.row.op == "D"]
    match broken:
        case Variant.TOMBSTONE_SPARES_BASE:
            return list(rows)
        case Variant.VISIBILITY_BY_CLOCK | Variant.VISIBILITY_BY_EVENT_TIME:
            return [
                row
                for row in rows
                if not any(s.row.key == row.key and hides(s, Stamped(0, 0, row), broken) for s in covering)
            ]
        case _:
            hidden = {item.row.key for item in covering}
            return [row for row in rows if row.key not in hidden]


@lru_cache(maxsize=200_000)
def merged_view(
    kind: Kind, changes: frozenset[File], base: frozenset[File], watermark: int, broken: Variant | None = None
) -> View:
    """Return the merged view of a snapshot."""
    above = delta(changes, above=watermark)
    below = uncovered(kind, [row for file in base for row in file.rows], above, broken)
    return tuple(sorted((row.key, row.value) for row in (*below, *surviving(kind, above, broken))))


def snapshot_view(kind: Kind, changes: Version, base: Version, broken: Variant | None = None) -> View:
    """Return the merged view of two pinned versions."""
    return merged_view(kind, changes.files, base.files, base.value("siltstone.fold"), broken)


class Rewrite(NamedTuple):
    """The removed and added files of a rewrite."""

    removes: frozenset[File]
    adds: frozenset[File]


def rewritten(name: str, rows: Iterable[Row], *, period: str = "") -> frozenset[File]:
    """Return one new base file; no file without rows."""
    plain = sorted(row._replace(pos=0, row_seq=None) for row in rows)
    return frozenset({File(name, 0, tuple(plain), period)}) if plain else frozenset()


def hour_of(row: Row) -> str:
    """Return the period into which a fold puts an append."""
    return f"h{row.hour}"


def in_period(kind: Kind, file: File) -> bool:
    """True if a base file holds only rows of its period; a day has all hours."""
    return kind is Kind.KEYED or file.period == DAY or all(hour_of(row) == file.period for row in file.rows)


def fold(
    kind: Kind, base: frozenset[File], changes: list[Stamped], *, name: str, broken: Variant | None = None
) -> Rewrite:
    """Fold the changes into base; only files that hold a covered row are rewritten.

    In a log, appends are written to the file of their hour. Remaining rows of a rewritten file stay in the file's
    period.
    """
    left = {file: uncovered(kind, file.rows, changes, broken) for file in base}
    if broken is Variant.FOLD_SPARES_ROLLED_FILES:
        left = {file: rows for file, rows in left.items() if file.period != DAY}
    touched = {file: rows for file, rows in left.items() if len(rows) < len(file.rows)}
    added = surviving(kind, changes, broken)
    if kind is Kind.KEYED:
        remaining = [row for rows in touched.values() for row in rows]
        return Rewrite(frozenset(touched), rewritten(name, [*remaining, *added]))
    groups: dict[str, list[Row]] = {}
    for period, row in [
        *((hour_of(r), r) for r in added),
        *((f.period, r) for f, rows in touched.items() for r in rows),
    ]:
        groups.setdefault(period, []).append(row)
    adds = [rewritten(f"{name}/{period}", rows, period=period) for period, rows in groups.items()]
    return Rewrite(frozenset(touched), frozenset().union(*adds))


def squash(kind: Kind, files: frozenset[File], *, name: str, keep_sequences: bool) -> File:
    """Return one file with the highest number of the range; each row has its own sequence."""
    stamped = delta(files, above=0)
    if kind is Kind.KEYED:
        stamped = sorted(latest_per_key(stamped).values())
    rows = [i.row._replace(row_seq=i.seq if keep_sequences else None) for i in stamped]
    return File(name, max(file.seq for file in files), tuple(rows))


def apply(kind: Kind, view: View, changes: list[Stamped]) -> View:
    """Apply new changes to the rows of a follower."""
    remaining = uncovered(kind, [Row(key, "", value) for key, value in view], changes)
    return tuple(sorted((row.key, row.value) for row in (*remaining, *surviving(kind, changes))))


@lru_cache(maxsize=50_000)
def _expected_view(kind: Kind, batches: tuple[Batch, ...]) -> View:
    rows: list[tuple[str, int]] = []
    for batch in batches:
        for row in batch.rows:
            if kind is Kind.KEYED or row.op == "D":
                rows = [pair for pair in rows if pair[0] != row.key]
            if row.op != "D":
                rows.append((row.key, row.value))
    return tuple(sorted(rows))


def oracle(kind: Kind, dataset: Dataset, *, upto: int, loaded: bool) -> View:
    """Return the true rows after `upto` sequences, including the first load if `loaded`."""
    batches = [entry.batch for entry in dataset.history[:upto]]
    if loaded:
        for entry in dataset.load:
            batches.insert(entry.seq, entry.batch)
    return _expected_view(kind, tuple(batches))
