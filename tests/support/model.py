"""The oracle: a dataset as a dict, with the rows of base and the unfolded changes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.kinds import Kind, Row, plain

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row of one batch: an upsert, or a tombstone if there is no row."""

    sequence: int
    key: Key
    row: Row | None
    reason: str | None = None


@dataclass(slots=True)
class Model:
    """The expected rows and counts of a keyed dataset."""

    kind: Kind
    base: dict[Key, Row] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    sequence: int = 0
    watermark: int = 0

    def key_of(self, row: Row) -> Key:
        """Return the key of a row."""
        return tuple(plain(row[name]) for name in self.kind.key)

    def upsert(self, rows: Sequence[Row]) -> None:
        """Apply one batch of upserts."""
        self.sequence += 1
        self.pending += [Change(sequence=self.sequence, key=self.key_of(row), row=row) for row in rows]

    def tombstone(self, keys: Sequence[Sequence[Any]], reason: str | None = None) -> None:
        """Apply one batch of tombstones."""
        self.sequence += 1
        self.pending += [
            Change(sequence=self.sequence, key=tuple(plain(part) for part in key), row=None, reason=reason)
            for key in keys
        ]

    @property
    def latest(self) -> dict[Key, Change]:
        """Return the last change of each key."""
        return {change.key: change for change in self.pending}

    @property
    def rows(self) -> dict[Key, Row]:
        """Return the merged view."""
        merged = dict(self.base)
        for change in self.pending:
            if change.row is None:
                merged.pop(change.key, None)
            else:
                merged[change.key] = change.row
        return merged

    @property
    def raw(self) -> dict[Key, Row]:
        """Return base and unfolded upserts, without applying tombstones."""
        return self.base | {change.key: change.row for change in self.pending if change.row is not None}

    @property
    def tombstones(self) -> list[tuple[Key, int, str | None]]:
        """The tombstones that are the last change of their key."""
        return sorted(
            (change.key, change.sequence, change.reason) for change in self.latest.values() if change.row is None
        )

    def report(self) -> dict[str, int]:
        """Return the exact counts of a fold now."""
        latest = self.latest.values()
        return {
            "base_rows": len(self.base),
            "change_rows": len(self.pending),
            "batches_folded": self.sequence - self.watermark,
            "upserts_applied": sum(change.row is not None for change in latest),
            "tombstones_applied": sum(change.row is None for change in latest),
            "rows_dropped_by_tombstones": sum(change.row is None and change.key in self.base for change in latest),
            "final_rows": len(self.rows),
        }

    def squash(self) -> None:
        """Remove the changes that no view shows: all but the last change and the last upsert of each key."""
        upserts = {change.key: change for change in self.pending if change.row is not None}
        shown = {id(change) for change in (*self.latest.values(), *upserts.values())}
        self.pending = [change for change in self.pending if id(change) in shown]

    def fold(self) -> None:
        """Move the changes into base."""
        self.base = self.rows
        self.pending = []
        self.watermark = self.sequence
