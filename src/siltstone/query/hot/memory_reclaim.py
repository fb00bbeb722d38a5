"""Reclaims memory after an answer: frees deleted rows, compresses new rows, and evicts residents above the budget."""

from contextlib import ExitStack
from typing import Final

from siltstone.errors import first_line
from siltstone.query.hot.duckdb_types import names_sql
from siltstone.query.hot.resident import Refreshed, Resident
from siltstone.query.hot.residents import Residents
from siltstone.query.hot.slot import Slot

PACK_ROWS: Final = 50_000
"""Number of new rows above which they are compressed."""
GONE_SHARE: Final = 4
"""Divisor: when more than a quarter of the rows are deleted, the others are copied to free that memory."""


class MemoryReclaimer:
    """Keeps the memory of residents small."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents

    def refreshed(self, slot: Slot, resident: Resident, done: Refreshed | None, *, purged: bool) -> None:
        """Count the effect of a refresh, and schedule background work.

        The caller holds the lock of the slot. After a purge no deleted row may stay in memory.
        """
        if done is not None:
            self._residents.readers.drop(resident.database)
            _count(slot, resident, done)
        copy = bool(slot.went) and (purged or slot.went > max(PACK_ROWS, resident.rows // GONE_SHARE))
        if (copy or slot.came > PACK_ROWS) and not slot.packing:
            slot.packing = True
            self._residents.later(lambda: self._pack(slot, resident, copy=copy))
        if done is not None and self._residents.size_bytes > self._residents.budget_bytes:
            self._residents.later(self._shrink)

    def _pack(self, slot: Slot, resident: Resident, *, copy: bool) -> None:
        import duckdb

        try:
            if copy:
                self._copy(slot, resident)
            else:
                self._compress(slot, resident)
        except duckdb.Error as error:
            if slot.resident is resident:  # no memory for a copy; after an eviction the error does not matter
                slot.note(reason=f"Its rows could not be packed ({first_line(error)}).")
        finally:
            slot.packing = False

    def _compress(self, slot: Slot, resident: Resident) -> None:
        engine = self._residents.engine
        came, before = slot.came, engine.table_bytes()
        cursor = engine.cursor()
        try:
            cursor.execute(f"CHECKPOINT {resident.database}")
        finally:
            cursor.close()
        with slot.lock:
            if slot.resident is resident:
                slot.came -= came
                slot.note(size_bytes=max(slot.entry.size_bytes + engine.table_bytes() - before, 0))

    def _copy(self, slot: Slot, resident: Resident) -> None:
        """Copy the current rows into a new database and publish it.

        The next refresh adds the changes that arrived meanwhile.
        """
        engine = self._residents.engine
        with self._residents.filling, ExitStack() as undo:
            before = engine.table_bytes()
            database = engine.attach()
            undo.callback(engine.detach, database)
            with slot.lock:
                if slot.resident is not resident:
                    return
                went, other = slot.went, resident.moved(database)
                reader = self._residents.readers.begin([resident])
            undo.callback(reader.end)
            undo.callback(other.writer.close)
            names = names_sql(list(resident.store.schema.names))
            cursor = reader.cursor
            cursor.execute(f"CREATE TABLE {other.table} AS SELECT {names} FROM {resident.table}")  # noqa: S608
            cursor.execute("COMMIT")
            cursor.execute(f"CHECKPOINT {database}")
            size = max(engine.table_bytes() - before, 0)
            with slot.lock:
                if slot.resident is not resident:
                    return
                undo.pop_all()
                reader.end()
                self._taken(slot, resident, other)
                slot.went -= went
                slot.note(size_bytes=size)

    def _taken(self, slot: Slot, resident: Resident, other: Resident) -> None:
        slot.resident = other
        slot.came = 0
        self._residents.readers.drop(resident.database)
        resident.close()

    def _shrink(self) -> None:
        """Evict the least recently used residents until the others fit, because residents grow with each refresh."""
        with self._residents.filling:
            while self._residents.size_bytes > self._residents.budget_bytes:
                going = [one for one in self._residents.held() if not one.pinned]
                if not going:
                    return
                slot = self._residents.slot(min(going, key=lambda one: (one.used_seconds, one.name)).name)
                with slot.lock:
                    self._residents.drop(slot, "Not resident: others grew, and it was used least recently.")


def _count(slot: Slot, resident: Resident, done: Refreshed) -> None:
    entry = slot.entry
    slot.went += done.went
    slot.came += done.came
    slot.note(
        rows=resident.rows,
        size_bytes=entry.size_bytes + done.size_bytes,
        refreshes=entry.refreshes + 1,
        applied_rows=entry.applied_rows + done.went + done.came,
    )
