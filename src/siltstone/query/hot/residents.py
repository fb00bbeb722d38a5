"""The slots of all datasets, the database that holds their rows, and the background thread.

A slot is the entry of one dataset: its resident, if any, its lock and its counters.

Locks are acquired in this order:

1. `filling`: one fill at a time. Two fills cannot claim the same memory, and two threads that request one dataset fill
   it once.
2. The lock of a slot. Several slots are locked in the order of their names.
3. Short locks inside components.

A reader holds the locks of its datasets while it checks that they are fresh, not while it reads.
"""

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from siltstone.host.deferred_interrupts import Uninterrupted
from siltstone.query.hot.admission import Held
from siltstone.query.hot.duckdb_engine import DuckDbEngine, release_memory
from siltstone.query.hot.read_transactions import Readers
from siltstone.query.hot.resident import NotResident, Resident
from siltstone.query.hot.stats import CacheEntry, CacheStats

WAIT_CHECK_SECONDS: Final = 0.05
"""Interval at which a waiting thread checks whether it may wait longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPolicy:
    """How long a thread waits for the fills of other datasets, and when it stops its own."""

    seconds: float = math.inf
    """Longest wait for the fills of other datasets."""
    check: Callable[[], object] = lambda: None
    """Raises if the query is cancelled or its time is up."""


@dataclass(slots=True, eq=False)
class Slot:
    """Entry of one dataset. It is never removed after the first query, because counters outlive residents."""

    name: str
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held to check, refresh or replace the resident."""
    resident: Resident | None = None
    entry: CacheEntry = field(init=False)
    used_seconds: float = 0.0
    missed_seconds: float | None = None
    """Time of the last miss."""
    missed_before_seconds: float | None = None
    """Time of the miss before that."""
    estimate: tuple[int, int] | None = None
    """Version of base that was estimated, and the estimate in bytes."""
    least_bytes: int = 0
    """Memory that a stopped fill had reached: a lower bound for the next estimate."""
    unsupported: tuple[str, str, float] | None = None
    """Incarnation of a dataset with a value that DuckDB does not support, the reason, and the time of that fill."""
    fill_scheduled: bool = False
    """True while a fill waits or runs in the background."""
    deleted_rows: int = 0
    """Rows deleted since the last packing. They still take memory."""
    inserted_rows: int = 0
    """Rows inserted since the last packing. They are not compressed."""
    packing: bool = False
    """True while the rows are packed in the background."""
    folder: Path | None = None
    """Folder of the files that the last fill has read."""
    generation: int = 0
    """Number of purges and drops. A fill that started before the last one is invalid."""

    def __post_init__(self) -> None:
        self.entry = CacheEntry(name=self.name)

    def note(self, **changed: Any) -> CacheEntry:  # noqa: ANN401
        """Change some counters. A caller that computes the new value from the old one holds the lock."""
        with self.lock:
            self.entry = replace(self.entry, **changed)
            return self.entry

    def is_resident(self, incarnation: str) -> bool:
        """True if the rows of this incarnation are resident."""
        resident = self.resident
        return resident is not None and resident.state.incarnation == incarnation


class Residents:
    """The slots, by name. Thread-safe."""

    def __init__(self, *, budget_bytes: int, query_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.engine = DuckDbEngine(memory_bytes=budget_bytes + query_bytes)
        self.readers = Readers(self.engine)
        self.filling = threading.RLock()
        self.is_closing = False
        self._slots: dict[str, Slot] = {}
        self._mutex = threading.Lock()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="silt-hot")

    def slot(self, name: str) -> Slot:
        """Return the slot of a dataset."""
        with self._mutex:
            return self._slots.setdefault(name, Slot(name))

    def all(self) -> list[Slot]:
        """Return every slot, by name."""
        with self._mutex:
            return [slot for _, slot in sorted(self._slots.items())]

    def held(self) -> list[Held]:
        """Return the residents as the admission policy sees them."""
        resident = [(slot.entry, slot.used_seconds) for slot in self.all() if slot.resident is not None]
        return [
            Held(name=entry.name, size_bytes=entry.size_bytes, pinned=entry.pinned, used_seconds=used)
            for entry, used in resident
        ]

    def stats(self) -> CacheStats:
        """Return the statistics of every slot."""
        return CacheStats(budget_bytes=self.budget_bytes, entries=tuple(slot.entry for slot in self.all()))

    @property
    def size_bytes(self) -> int:
        """Memory of all residents."""
        return sum(held.size_bytes for held in self.held())

    def evict(self, slot: Slot, reason: str) -> bool:
        """Evict a resident, and return whether there was one.

        The caller holds the lock of the slot. Running readers can finish.
        """
        resident, slot.resident = slot.resident, None
        if resident is None:
            return False
        self.readers.end_idle(resident.database)
        resident.close()
        evictions = slot.entry.evictions + 1
        slot.note(resident=False, rows=0, size_bytes=0, evictions=evictions, reason=reason, sequence=None)
        self.run_later(release_memory)
        return True

    @contextmanager
    def exclusive_fill(self, slot: Slot, wait: WaitPolicy) -> Iterator[None]:
        """Hold `filling` for a slot during a block, or raise NotResident when the wait for other fills ends."""
        waited = 0.0
        while not self.filling.acquire(timeout=WAIT_CHECK_SECONDS):
            wait.check()
            waited += WAIT_CHECK_SECONDS
            if waited >= wait.seconds:
                raise NotResident(f"Dataset {slot.name}: Not resident yet: other datasets are filled before it.")
        try:
            yield
        finally:
            self.filling.release()

    def run_later(self, work: Callable[[], None]) -> None:
        """Run a function on the background thread, after all earlier ones."""
        with Uninterrupted(), self._mutex:  # Ctrl-C inside `submit` could leave a lock of the pool acquired
            if not self.is_closing:
                self._background.submit(work)

    def close(self) -> None:
        """Stop the background thread, and release all residents."""
        with self._mutex:
            self.is_closing = True
        self._background.shutdown(wait=True, cancel_futures=True)
        self.readers.end_idle()
        self.engine.close()
