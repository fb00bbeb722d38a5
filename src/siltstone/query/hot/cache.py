"""The hot cache of one process: who is resident, fresh before each answer, within its budget.

Locks, in this order and never the other way round: `_filling` (one fill at a time, so that two do not take the same room, and two
threads that ask for one dataset fill it once), then the lock of a slot, several only in the order of their names, then short ones
inside parts. A reader holds the locks of its datasets while it looks whether they are fresh, not while it reads.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.dataset.store import Snapshot, Store
from siltstone.errors import Gone, SiltstoneError, Unavailable
from siltstone.query.hot.engine import BYTES_PER_MB, Engine, budget_bytes, give_back
from siltstone.query.hot.fill import Allowed, Outgrown, Progress, estimate_bytes, fill
from siltstone.query.hot.ledger import CacheStats, Entry
from siltstone.query.hot.policy import Candidate, Decision, Held, admit, size_text
from siltstone.query.hot.readers import Moment, Readers, end, moment_of
from siltstone.query.hot.resident import Cold, Refreshed, Resident, State
from siltstone.query.hot.slot import Slot
from siltstone.query.hot.sources import Sources
from siltstone.query.hot.types import Unfit, columns_sql

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LOOKS: Final = 5
"""A reader that meets a removed file looks again; five purges during one look mean that something else is wrong."""
REFILL_ROWS: Final = 500_000
"""Up to this many rows a dataset that has to be filled anew is filled while the question waits; more is done behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Some datasets as one reader sees them, for the length of a block.

    `cursor` is inside a transaction, which may have begun earlier: what SQL calls the current time is of no use in it.
    """

    cursor: "DuckDBPyConnection"
    tables: Mapping[str, str]
    """The name of each dataset's table in SQL."""
    schemas: Mapping[str, pa.Schema]
    """Its columns in the lake's own types, which results are to have."""
    states: Mapping[str, State]
    """What its rows are a view of: the key of whatever is kept of an answer."""


class HotCache:
    """Merged rows in memory. Safe to share between threads."""

    def __init__(self, sources: Sources, *, settings: Settings, clock: Clock) -> None:
        """Use `HotCache.open`."""
        self.budget_bytes = budget_bytes(settings.hot_cache_mb)
        self._sources = sources
        self._clock = clock
        self._engine = Engine(memory_bytes=self.budget_bytes + settings.hot_query_mb * BYTES_PER_MB)
        self._readers = Readers(self._engine)
        self._slots: dict[str, Slot] = {}
        self._mutex = threading.Lock()
        self._filling = threading.RLock()
        self._closing = threading.Event()
        self._behind = ThreadPoolExecutor(1, thread_name_prefix="silt-hot")

    @classmethod
    def open(cls, sources: Sources, *, settings: Settings, clock: Clock) -> "HotCache":
        """Open an empty cache over the datasets of a lake."""
        return cls(sources, settings=settings, clock=clock)

    # ---- asking --------------------------------------------------------------------------------------------------

    def decide(self, name: str) -> Decision:
        """Say whether a dataset is resident, or whether it may become so, and why; nothing is changed.

        Raises:
            NotFound: there is no such dataset.
        """
        store = self._sources.store(name)
        slot = self._slot(name)
        if self._is_resident(slot, store):
            return Decision(resident=True, reason=f"Resident: {slot.entry.rows:,} rows, checked before each answer.")
        if slot.entry.filling or slot.wanted:
            return Decision(resident=False, reason="Not resident yet: it is being filled.")
        return self._admission(slot, store, by_name=False)

    @contextmanager
    def pinned(self, names: Sequence[str]) -> Iterator[Pinned]:
        """Give a cursor in a transaction that sees each of these datasets with every write that was acknowledged before.

        Raises:
            Cold: one is not resident; the message says which and why.
            NotFound: there is no such dataset.
        """
        cursor, moment, view = self._pin(sorted(set(names)))
        try:
            yield view
        except BaseException:
            end(cursor)
            raise
        self._readers.give(cursor, moment, current=self._is_current(moment))

    def want(self, name: str) -> Decision:
        """Take note that a dataset was missed, and have it filled in the background if it is admitted.

        Raises:
            NotFound: there is no such dataset.
        """
        store = self._sources.store(name)
        slot = self._slot(name)
        now = self._clock.monotonic_seconds()
        with slot.lock:
            slot.missed_before_seconds, slot.missed_seconds = slot.missed_seconds, now
            slot.note(misses=slot.entry.misses + 1)
            if self._is_resident(slot, store) or slot.wanted or slot.entry.filling:
                return self.decide(name)
            decision = self._admission(slot, store, by_name=False)
            slot.note(reason=decision.reason)
            if decision.admitted and not self._closing.is_set():
                slot.wanted = True
                self._behind.submit(self._fill_behind, slot)
        return decision

    # ---- filling and letting go ----------------------------------------------------------------------------------

    def fill(self, name: str, *, progress: Progress | None = None) -> Entry:
        """Fill a dataset now, unless it is resident, and return its figures; others go for it if they must.

        Raises:
            Cold: it does not fit, or cannot be hot; nothing was changed, or it was stopped when it had outgrown its room.
            NotFound: there is no such dataset.
        """
        return self._fill(self._slot(name), by_name=True, progress=progress)

    def pin(self, name: str, *, progress: Progress | None = None) -> Entry:
        """Fill a dataset if it is not resident, and never let it go for another one.

        Raises:
            Cold: see `fill`.
            NotFound: there is no such dataset.
        """
        slot = self._slot(name)
        self._fill(slot, by_name=True, progress=progress)
        with slot.lock:
            return slot.note(pinned=True)

    def unpin(self, name: str) -> Entry:
        """Let a dataset go when its turn comes."""
        slot = self._slot(name)
        with slot.lock:
            return slot.note(pinned=False)

    def evict(self, name: str) -> bool:
        """Let a dataset go now, also one that is pinned; return whether it was resident. Who reads it finishes reading."""
        slot = self._slot(name)
        with slot.lock:
            slot.note(pinned=False)
            return self._drop(slot, "Not resident: it was evicted.")

    def stats(self) -> CacheStats:
        """Return the figures of every dataset that was asked for."""
        with self._mutex:
            slots = sorted(self._slots.values(), key=lambda slot: slot.name)
        return CacheStats(budget_bytes=self.budget_bytes, entries=tuple(slot.entry for slot in slots))

    def close(self) -> None:
        """Stop what is filled in the background, and let go of everything."""
        self._closing.set()
        self._behind.shutdown(wait=True, cancel_futures=True)
        self._readers.close()
        self._engine.close()

    # ---- being fresh ---------------------------------------------------------------------------------------------

    def _pin(self, names: Sequence[str]) -> "tuple[DuckDBPyConnection, Moment, Pinned]":
        for _ in range(LOOKS):
            try:
                return self._pin_once(names)
            except _Stale as stale:
                self._refill(stale)
        raise Cold("It changed again and again while it was filled.")

    def _pin_once(self, names: Sequence[str]) -> "tuple[DuckDBPyConnection, Moment, Pinned]":
        with ExitStack() as locks:
            found = [self._fresh(name, locks) for name in names]
            cursor = self._readers.begin(found)
            view = Pinned(
                cursor=cursor,
                tables={name: one.table for name, one in zip(names, found, strict=True)},
                schemas={name: one.store.schema for name, one in zip(names, found, strict=True)},
                states={name: one.state for name, one in zip(names, found, strict=True)},
            )
            return cursor, moment_of(found), view

    def _fresh(self, name: str, locks: ExitStack) -> Resident:
        """Return a resident that is fresh, with its lock held by `locks`."""
        store = self._sources.store(name)
        slot = self._slot(name)
        locks.enter_context(slot.lock)
        resident = slot.resident
        if resident is None:
            raise Cold(slot.entry.reason or f"Dataset {name} is not resident.")
        if resident.state.incarnation != store.incarnation:
            self._drop(slot, "Not resident: it was dropped and created anew.")
            raise _Stale(slot, rows=0)
        self._refresh(slot, resident)
        slot.used_seconds = self._clock.monotonic_seconds()
        now = self._clock.now()
        slot.note(hits=slot.entry.hits + 1, last_use=now, checked_at=now, sequence=resident.state.sequence)
        return resident

    def _refresh(self, slot: Slot, resident: Resident) -> None:
        rows = resident.rows
        try:
            done = self._looked(resident)
        except Cold as cold:
            self._drop(slot, f"Not resident: {cold}")
            raise _Stale(slot, rows=rows) from cold
        except Gone:
            self._drop(slot, "Not resident: it was dropped.")
            raise
        if done is not None:
            self._readers.drop(resident.database)
            self._grown(slot, resident, done)

    def _looked(self, resident: Resident) -> Refreshed | None:
        import duckdb

        for _ in range(LOOKS):
            try:
                return resident.refresh()
            except FileNotFoundError:
                continue
            except duckdb.Error as error:
                raise Cold(f"What is new could not be applied ({str(error).splitlines()[0]}).") from error
        raise Unavailable(f"Dataset {resident.store.name}: files kept disappearing while it was read. Try again.")

    def _grown(self, slot: Slot, resident: Resident, done: Refreshed) -> None:
        entry = slot.entry
        slot.went += done.went
        slot.came += done.came
        slot.note(
            rows=resident.rows,
            size_bytes=entry.size_bytes + done.size_bytes,
            refreshes=entry.refreshes + 1,
            applied_rows=entry.applied_rows + done.went + done.came,
        )

    def _refill(self, stale: "_Stale") -> None:
        """Fill a dataset anew, here if that is quick, else behind the question, which then is not answered hot."""
        if stale.rows > REFILL_ROWS:
            self.want(stale.slot.name)
            raise Cold(stale.slot.entry.reason)
        self._fill(stale.slot, by_name=True)

    def _is_current(self, moment: Moment) -> bool:
        now = {slot.resident.database: slot.resident.state.sequence for slot in self._all() if slot.resident}
        return all(now.get(database) == sequence for database, sequence in moment)

    # ---- parts of filling ----------------------------------------------------------------------------------------

    def _fill_behind(self, slot: Slot) -> None:
        import duckdb

        try:
            if not self._closing.is_set():
                self._fill(slot, by_name=False)
        except (Cold, SiltstoneError, OSError, duckdb.Error, pa.ArrowException) as error:
            slot.note(reason=f"Not resident: {error}")
        finally:
            slot.wanted = False

    def _fill(self, slot: Slot, *, by_name: bool, progress: Progress | None = None) -> Entry:
        with self._filling:
            for _ in range(LOOKS):
                store = self._sources.store(slot.name)
                if self._is_resident(slot, store):
                    return slot.entry
                try:
                    return self._filled(slot, store.current(), by_name=by_name, progress=progress)
                except FileNotFoundError:
                    continue
        raise Unavailable(f"Dataset {slot.name}: files kept disappearing while it was read. Try again.")

    def _filled(self, slot: Slot, store: Store, *, by_name: bool, progress: Progress | None) -> Entry:
        snapshot = store.snapshot()
        decision = self._admission(slot, store, by_name=by_name, snapshot=snapshot)
        if not decision.admitted:
            slot.note(reason=decision.reason)
            raise Cold(decision.reason)
        for name in decision.evict:
            self._make_room(self._slot(name), by=slot.name)
        allowed = Allowed(
            size_bytes=self.budget_bytes - sum(one.size_bytes for one in self._held()),
            progress=progress,
            stopping=self._closing.is_set,
        )
        started = self._clock.monotonic_seconds()
        slot.note(filling=True)
        try:
            resident, size = self._filled_table(slot, store, snapshot, allowed)
        finally:
            slot.note(filling=False)
        return self._published(slot, resident, size, started)

    def _filled_table(self, slot: Slot, store: Store, snapshot: Snapshot, allowed: Allowed) -> tuple[Resident, int]:
        before = self._engine.table_bytes()
        database = self._engine.attach()
        try:
            rows = fill(self._engine, database, store, snapshot, allowed)
        except BaseException as error:
            self._engine.detach(database)
            give_back()
            self._blame(slot, store, error, allowed)
            raise
        size = max(self._engine.table_bytes() - before, 0)
        return Resident(self._engine, database, store, snapshot, rows=rows), size

    def _blame(self, slot: Slot, store: Store, error: BaseException, allowed: Allowed) -> None:
        """Remember why a fill failed, and raise it as Cold."""
        if isinstance(error, Unfit):
            slot.unfit = (store.incarnation, str(error))
        elif isinstance(error, Outgrown):
            slot.least_bytes = max(slot.least_bytes, error.size_bytes)
        else:
            return
        room = size_text(allowed.size_bytes)
        why = str(error) if isinstance(error, Unfit) else f"it outgrew the {room} that were free when it was filled."
        reason = f"Not resident: {why}"
        slot.note(reason=reason)
        raise Cold(reason) from error

    def _published(self, slot: Slot, resident: Resident, size: int, started: float) -> Entry:
        now = self._clock.monotonic_seconds()
        with slot.lock:
            slot.resident = resident
            slot.used_seconds = now
            slot.went = slot.came = 0
            give_back()
            return slot.note(
                resident=True,
                rows=resident.rows,
                size_bytes=size,
                fills=slot.entry.fills + 1,
                fill_seconds=now - started,
                sequence=resident.state.sequence,
                checked_at=self._clock.now(),
                reason="",
            )

    def _admission(self, slot: Slot, store: Store, *, by_name: bool, snapshot: Snapshot | None = None) -> Decision:
        unfit = self._unfit(slot, store)
        if unfit is not None:
            return Decision(resident=False, reason=f"Not resident: {unfit}")
        candidate = Candidate(
            name=slot.name,
            estimate_bytes=self._estimate(slot, store, snapshot),
            missed_seconds=slot.missed_before_seconds,
            by_name=by_name,
        )
        return admit(candidate, self._held(), budget_bytes=self.budget_bytes)

    @staticmethod
    def _unfit(slot: Slot, store: Store) -> str | None:
        """Say why a dataset cannot be hot; None if nothing is known against it."""
        if slot.unfit is not None and slot.unfit[0] == store.incarnation:
            return slot.unfit[1]
        try:
            columns_sql(store.schema)
        except Unfit as error:
            return str(error)
        return None

    def _estimate(self, slot: Slot, store: Store, snapshot: Snapshot | None) -> int:
        snapshot = snapshot or store.snapshot()
        if slot.estimate is None or slot.estimate[0] != snapshot.base.version:
            for _ in range(LOOKS):
                try:
                    slot.estimate = (snapshot.base.version, estimate_bytes(store, snapshot))
                    break
                except FileNotFoundError:
                    snapshot = store.snapshot()
        return max(slot.estimate[1] if slot.estimate else 0, slot.least_bytes)

    # ---- slots ---------------------------------------------------------------------------------------------------

    def _slot(self, name: str) -> Slot:
        with self._mutex:
            return self._slots.setdefault(name, Slot(name))

    def _all(self) -> list[Slot]:
        with self._mutex:
            return list(self._slots.values())

    def _held(self) -> list[Held]:
        return [held for slot in self._all() if (held := slot.held()) is not None]

    @staticmethod
    def _is_resident(slot: Slot, store: Store) -> bool:
        resident = slot.resident
        return resident is not None and resident.state.incarnation == store.incarnation

    def _make_room(self, slot: Slot, *, by: str) -> None:
        with slot.lock:
            self._drop(slot, f"Not resident: {by} was asked for more, and took its room.")

    def _drop(self, slot: Slot, reason: str) -> bool:
        """Let a resident go; the lock of its slot is held."""
        resident, slot.resident = slot.resident, None
        if resident is None:
            return False
        self._readers.drop(resident.database)
        resident.close()
        slot.note(
            resident=False, rows=0, size_bytes=0, evictions=slot.entry.evictions + 1, reason=reason, sequence=None
        )
        give_back()
        return True


class _Stale(Exception):  # noqa: N818
    """A resident had to go and is to be filled anew; it had so many rows."""

    def __init__(self, slot: Slot, *, rows: int) -> None:
        super().__init__(slot.name)
        self.slot = slot
        self.rows = rows
