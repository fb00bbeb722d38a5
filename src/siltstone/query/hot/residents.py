"""The slots of all datasets, the database that holds their rows, and the background thread.

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
from dataclasses import dataclass
from typing import Final

from siltstone.query.hot.admission import Held
from siltstone.query.hot.duckdb_engine import Engine, give_back
from siltstone.query.hot.read_transactions import Readers
from siltstone.query.hot.resident import NotResident
from siltstone.query.hot.slot import Slot

LOOK_SECONDS: Final = 0.05
"""Interval in seconds at which a waiting thread checks whether it may wait longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPolicy:
    """How long a thread waits for the fills of other datasets, and when it stops its own."""

    seconds: float = math.inf
    """Longest wait for the fills of other datasets."""
    check: Callable[[], object] = lambda: None
    """Raises if the query is cancelled or its time is up."""


class Residents:
    """The slots, by name. Thread-safe."""

    def __init__(self, *, budget_bytes: int, query_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.engine = Engine(memory_bytes=budget_bytes + query_bytes)
        self.readers = Readers(self.engine)
        self.filling = threading.RLock()
        self.closing = threading.Event()
        self._slots: dict[str, Slot] = {}
        self._mutex = threading.Lock()
        self._behind = ThreadPoolExecutor(1, thread_name_prefix="silt-hot")

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
        return [held for slot in self.all() if (held := slot.held()) is not None]

    @property
    def size_bytes(self) -> int:
        """Memory of all residents."""
        return sum(held.size_bytes for held in self.held())

    def drop(self, slot: Slot, reason: str) -> bool:
        """Evict a resident, and return whether there was one.

        The caller holds the lock of the slot. Running readers can finish.
        """
        resident, slot.resident = slot.resident, None
        if resident is None:
            return False
        self.readers.drop(resident.database)
        resident.close()
        gone = slot.entry.evictions + 1
        slot.note(resident=False, rows=0, size_bytes=0, evictions=gone, reason=reason, sequence=None)
        self.later(give_back)
        return True

    @contextmanager
    def turn(self, slot: Slot, patience: WaitPolicy) -> Iterator[None]:
        """Hold `filling` for a slot during a block.

        Raises:
            NotResident: other datasets were still being filled when the wait ended.
        """
        waited = 0.0
        while not self.filling.acquire(timeout=LOOK_SECONDS):
            patience.check()
            waited += LOOK_SECONDS
            if waited >= patience.seconds:
                raise NotResident(f"Dataset {slot.name}: Not resident yet: others are filled before it.")
        try:
            yield
        finally:
            self.filling.release()

    def later(self, work: Callable[[], None]) -> None:
        """Run a function on the background thread, after all earlier ones."""
        with self._mutex:
            if not self.closing.is_set():
                self._behind.submit(work)

    def close(self) -> None:
        """Stop the background thread, and release all residents."""
        with self._mutex:
            self.closing.set()
        self._behind.shutdown(wait=True, cancel_futures=True)
        self.readers.close()
        self.engine.close()
