"""Counters of each dataset in the hot cache, for users and for the admission policy."""

import datetime
from dataclasses import dataclass
from typing import Any

from siltstone.clock import utc_text
from siltstone.model.units import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """Statistics of one dataset that was queried."""

    name: str
    resident: bool = False
    pinned: bool = False
    filling: bool = False
    rows: int = 0
    size_bytes: int = 0
    """Memory of its rows."""
    hits: int = 0
    misses: int = 0
    fills: int = 0
    fill_seconds: float = 0.0
    """Duration of the last fill."""
    refreshes: int = 0
    """Number of times that changes were applied before an answer."""
    applied_rows: int = 0
    """Rows that refreshes have inserted or deleted."""
    evictions: int = 0
    sequence: int | None = None
    """Sequence up to which its rows have all changes."""
    checked_at: datetime.datetime | None = None
    """Last time at which there were no changes above `sequence`."""
    last_use: datetime.datetime | None = None
    reason: str = ""
    """Why it is resident, or not."""

    @property
    def row_bytes(self) -> float:
        """Bytes of memory for each row."""
        return self.size_bytes / self.rows if self.rows else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain data."""
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
    return utc_text(moment, timespec="milliseconds") if moment else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Statistics of the whole cache."""

    budget_bytes: int
    entries: tuple[CacheEntry, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Memory of all resident rows."""
        return sum(entry.size_bytes for entry in self.entries)

    def summary(self) -> str:
        """Return a sentence about memory use."""
        resident = sum(entry.resident for entry in self.entries)
        return f"{resident} resident, {size_text(self.size_bytes)} of {size_text(self.budget_bytes)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as plain data."""
        return {
            "budget_bytes": self.budget_bytes,
            "bytes": self.size_bytes,
            "datasets": [entry.to_dict() for entry in self.entries],
        }
