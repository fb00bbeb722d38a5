"""Who is resident: the slots of all datasets, the database that holds their rows, and the thread for what can wait.

Locks, in this order and never the other way round: `filling` (one fill at a time, so that two do not take the same room, and two
threads that ask for one dataset fill it once), then the lock of a slot, several only in the order of their names, then short ones
inside parts. A reader holds the locks of its datasets while it looks whether they are fresh, not while it reads.
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
"""How often one who waits for its turn looks whether it is to wait on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPolicy:
    """How long somebody waits for the fills of others, and for its own."""

    seconds: float = math.inf
    """So long for those of others."""
    check: Callable[[], object] = lambda: None
    """Raises when there is nothing to wait for any more: its time is up, or it was cancelled."""


class Residents:
    """The slots, by name. Safe to share between threads."""

    def __init__(self, *, budget_bytes: int, query_bytes: int) -> None:
        """Start with none."""
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
        """Return the residents as the policy sees them."""
        return [held for slot in self.all() if (held := slot.held()) is not None]

    @property
    def size_bytes(self) -> int:
        """What all residents take."""
        return sum(held.size_bytes for held in self.held())

    def drop(self, slot: Slot, reason: str) -> bool:
        """Let a resident go, and return whether there was one; the lock of its slot is held. Who reads it finishes reading."""
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
            NotResident: others are still filled when the patience is at its end.
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
        """Have something done in the background, one after the other."""
        with self._mutex:
            if not self.closing.is_set():
                self._behind.submit(work)

    def close(self) -> None:
        """Stop what is done in the background, and let go of everything."""
        with self._mutex:
            self.closing.set()
        self._behind.shutdown(wait=True, cancel_futures=True)
        self.readers.close()
        self.engine.close()
