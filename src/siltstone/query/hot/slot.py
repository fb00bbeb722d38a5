"""Entry of one dataset in the cache: its resident, if any, its lock and its counters.

Counters change under the lock.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from siltstone.query.hot.admission import Held
from siltstone.query.hot.resident import Resident
from siltstone.query.hot.stats import Entry, noted


@dataclass(slots=True, eq=False)
class Slot:
    """Entry of one dataset. It is never removed after the first query, because counters outlive residents."""

    name: str
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held to check, refresh or replace the resident."""
    resident: Resident | None = None
    entry: Entry = field(init=False)
    used_seconds: float = 0.0
    missed_seconds: float | None = None
    """Time of the last miss."""
    missed_before_seconds: float | None = None
    """Time of the miss before that."""
    estimate: tuple[int, int] | None = None
    """Version of base that was estimated, and the estimate in bytes."""
    least_bytes: int = 0
    """Memory that a stopped fill had reached: a lower bound for the next estimate."""
    unfit: tuple[str, str, float] | None = None
    """Incarnation of a dataset with a value that cannot be hot, the reason, and the time of that fill."""
    wanted: bool = False
    """True while a fill waits or runs in the background."""
    went: int = 0
    """Rows deleted since the last packing. They still take memory."""
    came: int = 0
    """Rows inserted since the last packing. They are not compressed."""
    packing: bool = False
    """True while the rows are packed in the background."""
    folder: Path | None = None
    """Folder of the files that the last fill has read."""
    forgets: int = 0
    """Number of purges and drops. A fill that started before the last one is invalid."""

    def __post_init__(self) -> None:
        self.entry = Entry(name=self.name)

    def note(self, **changed: object) -> Entry:
        """Change some counters."""
        self.entry = noted(self.entry, **changed)
        return self.entry

    def is_resident(self, incarnation: str) -> bool:
        """True if the rows of this incarnation are resident."""
        resident = self.resident
        return resident is not None and resident.state.incarnation == incarnation

    def held(self) -> Held | None:
        """Return the resident as the admission policy sees it; None if there is no resident."""
        if self.resident is None:
            return None
        return Held(
            name=self.name,
            size_bytes=self.entry.size_bytes,
            pinned=self.entry.pinned,
            used_seconds=self.used_seconds,
        )
