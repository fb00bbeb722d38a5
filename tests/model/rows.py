"""What rows mean: merged view, fold and squash as the design words them, and the oracle.

The oracle is deliberately a second, simpler telling: it applies whole batches one after another to
a list and knows nothing of files, sequences per row or watermarks. All results are sorted tuples
with duplicates kept, so a row applied twice shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from tests.model.state import Batch, Dataset, File, Kind, Row, Version

View = tuple[tuple[str, int], ...]


class Stamped(NamedTuple):
    """A change row with its effective sequence, coalesce(`_row_seq`, `_seq`)."""

    seq: int
    pos: int
    row: Row


def delta(files: Iterable[File], *, above: int) -> list[Stamped]:
    """The change rows above a watermark, in the order (sequence, position)."""
    stamped = [
        Stamped(file.seq if row.row_seq is None else row.row_seq, row.pos, row) for file in files for row in file.rows
    ]
    return sorted(item for item in stamped if item.seq > above)


def latest_per_key(changes: Iterable[Stamped]) -> dict[str, Stamped]:
    """The last row of each key."""
    return {item.row.key: item for item in changes}


def surviving(kind: Kind, changes: list[Stamped]) -> list[Row]:
    """The rows that the changes add to what lies beneath them."""
    if kind is Kind.KEYED:
        return [item.row for item in latest_per_key(changes).values() if item.row.op == "U"]
    hidden = {item.row.key: item.seq for item in changes if item.row.op == "D"}
    return [i.row for i in changes if i.row.op == "A" and hidden.get(i.row.key, 0) <= i.seq]


def covered(kind: Kind, changes: list[Stamped]) -> set[str]:
    """The keys (or subjects) whose base rows the changes hide."""
    return {item.row.key for item in changes if kind is Kind.KEYED or item.row.op == "D"}


@lru_cache(maxsize=200_000)
def merged_view(kind: Kind, changes: frozenset[File], base: frozenset[File], watermark: int) -> View:
    """The merged view of a snapshot."""
    above = delta(changes, above=watermark)
    hidden = covered(kind, above)
    below = [row for file in base for row in file.rows if row.key not in hidden]
    return tuple(sorted((row.key, row.value) for row in (*below, *surviving(kind, above))))


def snapshot_view(kind: Kind, changes: Version, base: Version) -> View:
    """The merged view of two pinned versions."""
    return merged_view(kind, changes.files, base.files, base.value("siltstone.fold"))


class Rewrite(NamedTuple):
    """Which files go and which come."""

    removes: frozenset[File]
    adds: frozenset[File]


def rewritten(name: str, rows: Iterable[Row]) -> frozenset[File]:
    """One new base file, or none if there are no rows."""
    plain = sorted(Row(row.key, row.op, row.value) for row in rows)
    return frozenset({File(name, 0, tuple(plain))}) if plain else frozenset()


def fold(kind: Kind, base: frozenset[File], changes: list[Stamped], *, name: str) -> Rewrite:
    """Presses the changes into base; only files that hold a covered key are touched."""
    hidden = covered(kind, changes)
    touched = frozenset(f for f in base if any(row.key in hidden for row in f.rows))
    kept = [row for file in touched for row in file.rows if row.key not in hidden]
    return Rewrite(touched, rewritten(name, [*kept, *surviving(kind, changes)]))


def squash(kind: Kind, files: frozenset[File], *, name: str, keep_sequences: bool) -> File:
    """One file with the highest number of the range, each row with its own sequence."""
    stamped = delta(files, above=0)
    if kind is Kind.KEYED:
        stamped = sorted(latest_per_key(stamped).values())
    rows = [i.row._replace(row_seq=i.seq if keep_sequences else None) for i in stamped]
    return File(name, max(file.seq for file in files), tuple(rows))


def apply(kind: Kind, view: View, changes: list[Stamped]) -> View:
    """Brings a follower's rows forward by new changes."""
    hidden = covered(kind, changes)
    added = [(row.key, row.value) for row in surviving(kind, changes)]
    return tuple(sorted([*(pair for pair in view if pair[0] not in hidden), *added]))


@lru_cache(maxsize=50_000)
def _told(kind: Kind, batches: tuple[Batch, ...]) -> View:
    rows: list[tuple[str, int]] = []
    for batch in batches:
        for row in batch.rows:
            if kind is Kind.KEYED or row.op == "D":
                rows = [pair for pair in rows if pair[0] != row.key]
            if row.op != "D":
                rows.append((row.key, row.value))
    return tuple(sorted(rows))


def oracle(kind: Kind, dataset: Dataset, *, upto: int, loaded: bool) -> View:
    """The true rows after `upto` sequences, with the first load at its place if `loaded`."""
    batches = [entry.batch for entry in dataset.history[:upto]]
    if loaded:
        for entry in dataset.load:
            batches.insert(entry.seq, entry.batch)
    return _told(kind, tuple(batches))
