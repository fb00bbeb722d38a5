"""The place of one dataset in the cache: its resident, if it has one, and what is known of it. Figures go under its lock."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from siltstone.query.hot.admission import Held
from siltstone.query.hot.resident import Resident
from siltstone.query.hot.stats import Entry, noted


@dataclass(slots=True, eq=False)
class Slot:
    """Mutable, and never removed once its dataset was asked for: figures outlive residents."""

    name: str
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held to look whether the resident is fresh, to refresh it, and to replace it."""
    resident: Resident | None = None
    entry: Entry = field(init=False)
    used_seconds: float = 0.0
    missed_seconds: float | None = None
    """When it was last missed."""
    missed_before_seconds: float | None = None
    """And the time before that."""
    estimate: tuple[int, int] | None = None
    """The version of base that an estimate was made for, and its bytes."""
    least_bytes: int = 0
    """What a fill that was stopped had shown it to take."""
    unfit: tuple[str, str, float] | None = None
    """The incarnation of a dataset that held a value that cannot be hot, why, and when that was seen."""
    wanted: bool = False
    """True while a fill waits or runs in the background."""
    went: int = 0
    """Rows that went since the rows were packed: they still take memory."""
    came: int = 0
    """Rows that came since then: they are not compressed."""
    packing: bool = False
    """True while that is put right in the background."""
    folder: Path | None = None
    """Where the files lie that a fill has read last."""
    forgets: int = 0
    """How often its rows had to go; a fill that began before the last time is of no use."""

    def __post_init__(self) -> None:
        """Start with nothing counted."""
        self.entry = Entry(name=self.name)

    def note(self, **changed: object) -> Entry:
        """Change some figures."""
        self.entry = noted(self.entry, **changed)
        return self.entry

    def is_resident(self, incarnation: str) -> bool:
        """True if the rows of this incarnation are here."""
        resident = self.resident
        return resident is not None and resident.state.incarnation == incarnation

    def held(self) -> Held | None:
        """Return it as the policy sees it; None if nothing is resident."""
        if self.resident is None:
            return None
        return Held(
            name=self.name,
            size_bytes=self.entry.size_bytes,
            pinned=self.entry.pinned,
            used_seconds=self.used_seconds,
        )
