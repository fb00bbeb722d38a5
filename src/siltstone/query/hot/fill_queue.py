"""Fills datasets: checks admission, evicts other residents, and remembers why a fill failed."""

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.dataset.read.retry import SNAPSHOT_TRIES
from siltstone.dataset.snapshot import Snapshot, files_vanished
from siltstone.dataset.store import Store
from siltstone.errors import SiltstoneError
from siltstone.model.units import size_text
from siltstone.query.hot.admission import AdmissionDecision, Candidate, admit
from siltstone.query.hot.duckdb_engine import release_memory
from siltstone.query.hot.duckdb_types import UnsupportedType, columns_sql
from siltstone.query.hot.fill import FillLimits, FillProgress, FillTooLarge, estimate_bytes, fill
from siltstone.query.hot.resident import NotResident, Resident, has_columns_of
from siltstone.query.hot.residents import Residents, Slot, WaitPolicy
from siltstone.query.hot.stats import CacheEntry

UNSUPPORTED_SECONDS: Final = 600.0
"""Seconds after a fill found a value that DuckDB does not support, during which no query starts another fill."""
NO_LIMIT: Final = WaitPolicy()


class DatasetChanged(Exception):  # noqa: N818
    """A dataset changed during its fill, so that the fill has to start again."""


class Filler:
    """Fills slots, one at a time."""

    def __init__(self, residents: Residents, *, store: Callable[[str], Store], clock: Clock) -> None:
        self._residents = residents
        self._store = store
        self._clock = clock

    def admission(
        self, slot: Slot, store: Store, *, by_name: bool, snapshot: Snapshot | None = None
    ) -> AdmissionDecision:
        """Decide whether a dataset may be filled. Only footers are read."""
        reason = _unsupported_reason(slot, store, self._clock.monotonic_seconds(), by_name=by_name)
        if reason is not None:
            return AdmissionDecision(resident=False, reason=f"Not resident: {reason}")
        candidate = Candidate(
            name=slot.name,
            estimate_bytes=_estimate(slot, store, snapshot),
            missed_seconds=slot.missed_before_seconds,
            by_name=by_name,
        )
        return admit(candidate, self._residents.held(), budget_bytes=self._residents.budget_bytes)

    def fill_in_background(self, slot: Slot, *, by_name: bool = False) -> None:
        """Fill a slot in the background. An error becomes the reason why the dataset is not resident."""
        import duckdb

        try:
            self.fill(slot, by_name=by_name)
        except NotResident:
            pass  # the reason is noted already
        except (SiltstoneError, OSError, duckdb.Error, pa.ArrowException) as error:
            slot.note(reason=f"Not resident: it could not be filled ({error}).")
        finally:
            slot.fill_scheduled = False

    def fill(
        self, slot: Slot, *, by_name: bool, progress: FillProgress | None = None, wait: WaitPolicy = NO_LIMIT
    ) -> CacheEntry:
        """Fill a slot if it is not resident. Errors are those of `HotCache.fill`."""
        with self._residents.exclusive_fill(slot, wait):
            for _ in range(SNAPSHOT_TRIES):
                store = self._store(slot.name)
                if slot.is_resident(store.incarnation):
                    return slot.entry
                try:
                    return self._fill_once(slot, store.current(), by_name=by_name, progress=progress, wait=wait)
                except (FileNotFoundError, DatasetChanged):
                    continue
        raise files_vanished(self._store(slot.name))

    def _fill_once(
        self, slot: Slot, store: Store, *, by_name: bool, progress: FillProgress | None, wait: WaitPolicy
    ) -> CacheEntry:
        generation, slot.folder = slot.generation, store.path
        snapshot = store.snapshot()
        if not has_columns_of(store, snapshot):
            raise DatasetChanged(f"{slot.name} was altered meanwhile")
        decision = self.admission(slot, store, by_name=by_name, snapshot=snapshot)
        if not decision.admitted:
            slot.note(reason=decision.reason)
            raise NotResident(f"Dataset {slot.name}: {decision.reason}")
        with slot.lock:  # a resident of an earlier incarnation
            self._residents.evict(slot, "Not resident: it was dropped and created again.")
        for name in decision.evict:
            other = self._residents.slot(name)
            with other.lock:
                self._residents.evict(other, f"Not resident: it was evicted for {slot.name}.")
        started = self._clock.monotonic_seconds()
        slot.note(filling=True)
        try:
            resident, size_bytes = self._fill_table(slot, store, snapshot, progress, wait)
        finally:
            slot.note(filling=False)
        with slot.lock:
            if slot.generation != generation:  # a purge deleted data that this fill has read
                resident.close()
                raise DatasetChanged(f"{slot.name} was purged while it was filled")
            return self._publish(slot, resident, size_bytes, started)

    def _fill_table(
        self, slot: Slot, store: Store, snapshot: Snapshot, progress: FillProgress | None, wait: WaitPolicy
    ) -> tuple[Resident, int]:
        """Fill a table, and return it with its memory in bytes."""

        def stopping() -> bool:
            wait.check()
            return self._residents.is_closing

        engine = self._residents.engine
        room_bytes = self._residents.budget_bytes - self._residents.size_bytes
        before = engine.table_bytes()
        database = engine.attach()
        try:
            limits = FillLimits(size_bytes=room_bytes, progress=progress, stopping=stopping)
            rows = fill(engine, database, store, snapshot, limits)
        except BaseException as error:
            engine.detach(database)
            release_memory()
            _note_failure(slot, store, error, room_bytes)
            raise
        return Resident(engine, database, store, snapshot, rows=rows), max(engine.table_bytes() - before, 0)

    def _publish(self, slot: Slot, resident: Resident, size_bytes: int, started: float) -> CacheEntry:
        """Publish a resident. The caller holds the lock of its slot."""
        now = self._clock.monotonic_seconds()
        slot.resident = resident
        slot.used_seconds = now
        slot.deleted_rows = slot.inserted_rows = slot.least_bytes = 0
        self._residents.run_later(release_memory)
        return slot.note(
            resident=True,
            rows=resident.rows,
            size_bytes=size_bytes,
            fills=slot.entry.fills + 1,
            fill_seconds=now - started,
            sequence=resident.state.sequence,
            checked_at=self._clock.now(),
            reason="",
        )


def _note_failure(slot: Slot, store: Store, error: BaseException, room_bytes: int) -> None:
    """Record why a fill failed. Raise NotResident if that is a reason for a dataset not to be resident."""
    match error:
        case UnsupportedType():
            slot.unsupported = (store.incarnation, str(error), store.clock.monotonic_seconds())
            reason = f"Not resident: {error}"
        case FillTooLarge():
            slot.least_bytes = max(slot.least_bytes, error.size_bytes)
            reason = f"Not resident: it outgrew the {size_text(room_bytes)} that were free when it was filled."
        case _:
            return
    slot.note(reason=reason)
    raise NotResident(f"Dataset {slot.name}: {reason}") from error


def _unsupported_reason(slot: Slot, store: Store, now: float, *, by_name: bool) -> str | None:
    """Return why a dataset cannot be resident; None if it may be. A value that prevented an earlier fill may be gone."""
    if slot.unsupported is not None and not by_name:
        incarnation, reason, seen = slot.unsupported
        if incarnation == store.incarnation and now - seen < UNSUPPORTED_SECONDS:
            return reason
    try:
        columns_sql(store.schema)
    except UnsupportedType as error:
        return str(error)
    return None


def _estimate(slot: Slot, store: Store, snapshot: Snapshot | None) -> int:
    snapshot = snapshot or store.snapshot()
    for _ in range(SNAPSHOT_TRIES):
        version = snapshot.base.version
        if slot.estimate is not None and slot.estimate[0] == version:
            break
        try:
            slot.estimate = (version, estimate_bytes(store, snapshot))
        except FileNotFoundError:
            snapshot = store.snapshot()
    return max(slot.estimate[1] if slot.estimate else 0, slot.least_bytes)
