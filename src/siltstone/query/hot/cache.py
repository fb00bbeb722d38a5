"""The hot cache of one process: its residents are refreshed before each answer and stay within a memory budget."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.dataset.read.retry import SNAPSHOT_TRIES
from siltstone.dataset.snapshot import files_vanished
from siltstone.dataset.store import Store
from siltstone.errors import Gone, Unavailable, first_line
from siltstone.model.units import BYTES_PER_MB
from siltstone.query.hot.admission import AdmissionDecision
from siltstone.query.hot.dataset_resolver import DatasetResolver
from siltstone.query.hot.directives import DirectiveFollower, DirectiveStore
from siltstone.query.hot.duckdb_engine import budget_bytes
from siltstone.query.hot.duckdb_types import UnsupportedType
from siltstone.query.hot.fill import FillProgress
from siltstone.query.hot.fill_queue import NO_LIMIT, Filler
from siltstone.query.hot.memory_reclaim import MemoryReclaimer
from siltstone.query.hot.read_transactions import Reader, ReaderState, reader_state_of
from siltstone.query.hot.resident import NotResident, Refreshed, Resident, State
from siltstone.query.hot.residents import Residents, Slot, WaitPolicy
from siltstone.query.hot.stats import CacheEntry, CacheStats

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

REFILL_ROWS: Final = 500_000
"""Most rows of a dataset that is filled again while the query waits. A larger one is filled in the background."""
REFILL_WAIT_SECONDS: Final = 10.0
"""Longest wait of a query for the fill of another dataset before such a fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotSnapshot:
    """The datasets of one reader, for the length of a block.

    `cursor` is inside a transaction that may have started earlier, so SQL's current time is wrong in it. The block has
    exclusive use of it, and must read all results before it ends.
    """

    reader: Reader
    tables: Mapping[str, str]
    """SQL table name of each dataset."""
    schemas: Mapping[str, pa.Schema]
    """Columns of each dataset, in the types of the lake. Results have these types."""
    states: Mapping[str, State]
    """State of each dataset (incarnation, sequence, content version, columns); part of the result-cache key."""
    purges: Mapping[str, tuple[str, int]]
    """Incarnation and epoch of each dataset.

    A different value means that the dataset may have been purged or dropped. So nothing older may stay in a cache.
    Every purge raises the epoch. The first fold or roll-up under a new lease raises it, too.
    """

    @property
    def cursor(self) -> "DuckDBPyConnection":
        """The reader's cursor."""
        return self.reader.cursor


class HotCache:
    """Merged rows in memory. Thread-safe."""

    def __init__(
        self, resolver: DatasetResolver, *, settings: Settings, clock: Clock, directives: DirectiveStore | None = None
    ) -> None:
        """Create an empty cache over the datasets of a lake.

        A long-running process passes `directives`. Then the cache follows them, fills missed datasets in the
        background, and reports what it holds. Without them it fills only on request, for a process that ends at once.
        """
        self._resolver = resolver
        self._clock = clock
        self._residents = Residents(
            budget_bytes=budget_bytes(settings.hot_cache_mb), query_bytes=settings.hot_query_mb * BYTES_PER_MB
        )
        self._filler = Filler(self._residents, store=resolver.store, clock=clock)
        self._reclaimer = MemoryReclaimer(self._residents)
        self._follower: DirectiveFollower | None = None
        if directives is not None:
            self._follower = DirectiveFollower(directives, self._residents, self._filler, clock=clock)

    def decide(self, name: str) -> AdmissionDecision:
        """Return whether a dataset is resident or may become so, and why, without changing anything.

        Raises:
            NotFound: there is no such dataset.
        """
        store = self._resolver.store(name)
        return self._decide(self._residents.slot(name), store)

    @contextmanager
    def snapshot(self, names: Sequence[str]) -> Iterator[HotSnapshot]:
        """Give a cursor in a transaction that sees every acknowledged write to these datasets.

        Raises:
            NotResident: a dataset is not resident; the message has its name and the reason.
            NotFound: there is no such dataset.
        """
        self._check_open()
        self._check_directives()
        state, view = self._snapshot(sorted(set(names)))
        try:
            yield view
        except BaseException:
            view.reader.end()
            raise
        self._residents.readers.release(view.reader, state, current=lambda: self._is_current(state))

    def want(self, name: str) -> AdmissionDecision:
        """Record a miss of a dataset. In a long-running process, fill it after the answer if it is admitted.

        Raises:
            NotFound: there is no such dataset.
        """
        self._check_directives()
        store = self._resolver.store(name)
        slot = self._residents.slot(name)
        with slot.lock:
            slot.missed_before_seconds, slot.missed_seconds = slot.missed_seconds, self._clock.monotonic_seconds()
            slot.note(misses=slot.entry.misses + 1)
            decision = self._decide(slot, store)
            if not decision.resident:
                slot.note(reason=decision.reason)
            if decision.admitted and self._follower is not None:
                slot.fill_scheduled = True
                self._residents.run_later(lambda: self._filler.fill_in_background(slot))
        return decision

    def stats(self) -> CacheStats:
        """Return the statistics of every dataset that was queried."""
        return self._residents.stats()

    def fill(
        self, name: str, *, by_name: bool = True, progress: FillProgress | None = None, wait: WaitPolicy = NO_LIMIT
    ) -> CacheEntry:
        """Fill a dataset now if it is not resident, evicting others if necessary, and return its statistics.

        With `by_name` false, only less used datasets are evicted. `wait` bounds the wait for other fills.

        Raises:
            NotResident: it does not fit or cannot be hot, and nothing was changed. Or the fill exceeded its memory
                limit and was stopped. Or other datasets were still being filled when the wait ended.
            NotFound: there is no such dataset.
            Unavailable: the lake was closed.
        """
        self._check_open()
        self._resolver.store(name)
        return self._filler.fill(self._residents.slot(name), by_name=by_name, progress=progress, wait=wait)

    def pin(self, name: str, *, progress: FillProgress | None = None) -> CacheEntry:
        """Fill a dataset if it is not resident, and never evict it for another one.

        Raises:
            NotResident: see `fill`.
            NotFound: there is no such dataset.
        """
        self.fill(name, progress=progress)
        slot = self._residents.slot(name)
        with slot.lock:
            return slot.note(pinned=True)

    def unpin(self, name: str) -> CacheEntry:
        """Allow the eviction of a dataset again."""
        slot = self._residents.slot(name)
        with slot.lock:
            return slot.note(pinned=False)

    def evict(self, name: str) -> bool:
        """Evict a dataset now, also a pinned one; return whether it was resident. Running readers can finish."""
        slot = self._residents.slot(name)
        with slot.lock:
            slot.note(pinned=False)
            return self._residents.evict(slot, "Not resident: it was evicted.")

    def forget(self, folder: Path) -> None:
        """Evict the dataset of this folder, because purged or dropped data must not stay in memory."""
        for slot in self._residents.all():
            if slot.folder == folder:
                with slot.lock:
                    slot.generation += 1
                    self._residents.evict(slot, "Not resident: it was purged or dropped.")

    def close(self) -> None:
        """Stop background fills, and release all residents."""
        self._residents.close()
        if self._follower is not None:
            self._follower.close()

    def _check_open(self) -> None:
        if self._residents.is_closing:
            raise Unavailable("The lake was closed, and its hot cache with it. Open it again.")

    def _check_directives(self) -> None:
        if self._follower is not None:
            self._follower.check()

    def _decide(self, slot: Slot, store: Store) -> AdmissionDecision:
        if slot.is_resident(store.incarnation):
            return AdmissionDecision(
                resident=True, reason=f"Resident: {slot.entry.rows:,} rows, checked before each answer."
            )
        if slot.entry.filling or slot.fill_scheduled:
            return AdmissionDecision(resident=False, filling=True, reason="Not resident yet: it is being filled.")
        return self._filler.admission(slot, store, by_name=False)

    def _snapshot(self, names: Sequence[str]) -> tuple[ReaderState, HotSnapshot]:
        for _ in range(SNAPSHOT_TRIES):
            try:
                return self._snapshot_once(names)
            except _Stale as stale:
                self._refill(stale)
        raise NotResident(f"Dataset {', '.join(names)}: Not resident: changed during each of {SNAPSHOT_TRIES} fills.")

    def _snapshot_once(self, names: Sequence[str]) -> tuple[ReaderState, HotSnapshot]:
        with ExitStack() as locks:
            residents = {name: self._refreshed(name, locks) for name in names}
            view = HotSnapshot(
                reader=self._residents.readers.begin(list(residents.values())),
                tables={name: resident.table for name, resident in residents.items()},
                schemas={name: resident.store.schema for name, resident in residents.items()},
                states={name: resident.state for name, resident in residents.items()},
                purges={name: (resident.state.incarnation, resident.epoch) for name, resident in residents.items()},
            )
            return reader_state_of(list(residents.values())), view

    def _refreshed(self, name: str, locks: ExitStack) -> Resident:
        """Return a refreshed resident. `locks` holds its lock."""
        store = self._resolver.store(name)
        slot = self._residents.slot(name)
        locks.enter_context(slot.lock)
        resident = slot.resident
        if resident is None:
            raise NotResident(f"Dataset {name}: {slot.entry.reason or 'Not resident.'}")
        if resident.state.incarnation != store.incarnation:
            self._residents.evict(slot, "Not resident: it was dropped and created again.")
            raise _Stale(slot, rows=0)
        rows, epoch = resident.rows, resident.epoch
        try:
            refreshed = _apply_changes(resident)
        except NotResident as error:
            self._residents.evict(slot, f"Not resident: {error}")
            raise _Stale(slot, rows=rows) from error
        except Gone:
            self._residents.evict(slot, "Not resident: it was dropped.")
            raise
        purged = resident.epoch != epoch
        if refreshed is not None or purged:
            self._reclaimer.after_refresh(slot, resident, refreshed, purged=purged)
        now = self._clock.now()
        slot.used_seconds = self._clock.monotonic_seconds()
        slot.note(hits=slot.entry.hits + 1, last_use=now, checked_at=now, sequence=resident.state.sequence)
        return resident

    def _refill(self, stale: "_Stale") -> None:
        """Fill a dataset again: here if it is small. Otherwise in the background, and the query is not answered hot."""
        filling = self._residents.filling
        if stale.rows <= REFILL_ROWS and filling.acquire(timeout=REFILL_WAIT_SECONDS):
            try:
                self._filler.fill(stale.slot, by_name=True)
            finally:
                filling.release()
            return
        reason = stale.slot.entry.reason
        self.want(stale.slot.name)
        raise NotResident(f"Dataset {stale.slot.name}: {reason}")

    def _is_current(self, state: ReaderState) -> bool:
        residents = [resident for slot in self._residents.all() if (resident := slot.resident) is not None]
        now = dict(reader_state_of(residents))
        return all(now.get(database) == sequence for database, sequence in state)


def _apply_changes(resident: Resident) -> Refreshed | None:
    """Apply the changes since the last refresh. Retry if a file was removed meanwhile."""
    import duckdb

    for _ in range(SNAPSHOT_TRIES):
        try:
            return resident.refresh()
        except FileNotFoundError:
            continue
        except (duckdb.Error, UnsupportedType) as error:
            raise NotResident(f"Its new changes could not be applied ({first_line(error)}).") from error
    raise files_vanished(resident.store)


class _Stale(Exception):  # noqa: N818
    """A resident was evicted and has to be filled again; `rows` is its former number of rows."""

    def __init__(self, slot: Slot, *, rows: int) -> None:
        super().__init__(slot.name)
        self.slot = slot
        self.rows = rows
