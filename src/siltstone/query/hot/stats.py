"""What the cache counts of each dataset, for people and for the policy."""

import datetime
from dataclasses import dataclass, field, replace
from typing import Any

from siltstone.model.units import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The statistics of one dataset that was asked for."""

    name: str
    resident: bool = False
    pinned: bool = False
    filling: bool = False
    rows: int = 0
    size_bytes: int = 0
    """What its rows take in memory."""
    hits: int = 0
    misses: int = 0
    fills: int = 0
    fill_seconds: float = 0.0
    """How long the last fill took."""
    refreshes: int = 0
    """How often changes were applied before an answer."""
    applied_rows: int = 0
    """How many rows came or went by that."""
    evictions: int = 0
    sequence: int | None = None
    """Up to which one all changes are in its rows."""
    checked_at: datetime.datetime | None = None
    """When that was last seen to be all there is."""
    last_use: datetime.datetime | None = None
    reason: str = ""
    """Why it is resident, or not."""

    @property
    def row_bytes(self) -> float:
        """Bytes of memory for each row."""
        return self.size_bytes / self.rows if self.rows else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "dataset": self.name,
            "resident": self.resident,
            "pinned": self.pinned,
            "filling": self.filling,
            "rows": self.rows,
            "bytes": self.size_bytes,
            "bytes_per_row": round(self.row_bytes, 1),
            "hits": self.hits,
            "misses": self.misses,
            "fills": self.fills,
            "fill_seconds": round(self.fill_seconds, 3),
            "refreshes": self.refreshes,
            "applied_rows": self.applied_rows,
            "evictions": self.evictions,
            "sequence": self.sequence,
            "checked_at": _text(self.checked_at),
            "last_use": _text(self.last_use),
            "reason": self.reason,
        }


def _text(moment: datetime.datetime | None) -> str | None:
    return moment.isoformat(timespec="milliseconds") if moment else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """The whole cache."""

    budget_bytes: int
    entries: tuple[Entry, ...] = field(default_factory=tuple)

    @property
    def size_bytes(self) -> int:
        """What all resident rows take."""
        return sum(entry.size_bytes for entry in self.entries)

    def summary(self) -> str:
        """Say how full it is."""
        resident = sum(entry.resident for entry in self.entries)
        return f"{resident} resident, {size_text(self.size_bytes)} of {size_text(self.budget_bytes)}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "budget_bytes": self.budget_bytes,
            "bytes": self.size_bytes,
            "datasets": [entry.to_dict() for entry in self.entries],
        }


def noted(entry: Entry, **changed: Any) -> Entry:  # noqa: ANN401
    """Return an entry with some figures changed."""
    return replace(entry, **changed)
