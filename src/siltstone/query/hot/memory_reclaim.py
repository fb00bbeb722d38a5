"""Reclaims memory after an answer: frees deleted rows, compresses new rows, and evicts residents above the budget."""

from contextlib import ExitStack, closing
from typing import Final

from siltstone.errors import first_line
from siltstone.query.hot.duckdb_types import names_sql
from siltstone.query.hot.resident import Refreshed, Resident
from siltstone.query.hot.residents import Residents, Slot

PACK_ROWS: Final = 50_000
"""Number of new rows above which they are compressed."""
DELETED_SHARE: Final = 4
"""Divisor: when more than a quarter of the rows are deleted, the others are copied to free that memory."""


class MemoryReclaimer:
    """Keeps the memory of residents small."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents

    def after_refresh(self, slot: Slot, resident: Resident, refreshed: Refreshed | None, *, purged: bool) -> None:
        """Count the effect of a refresh, and schedule background work.

        The caller holds the lock of the slot. After a purge no deleted row may stay in memory.
        """
        if refreshed is not None:
            self._residents.readers.end_idle(resident.database)
            entry = slot.entry
            slot.deleted_rows += refreshed.deleted_rows
            slot.inserted_rows += refreshed.inserted_rows
            slot.note(
                rows=resident.rows,
                size_bytes=entry.size_bytes + refreshed.size_bytes,
                refreshes=entry.refreshes + 1,
                applied_rows=entry.applied_rows + refreshed.deleted_rows + refreshed.inserted_rows,
            )
        many = slot.deleted_rows > max(PACK_ROWS, resident.rows // DELETED_SHARE)
        copy = slot.deleted_rows > 0 and (purged or many)
        if (copy or slot.inserted_rows > PACK_ROWS) and not slot.packing:
            slot.packing = True
            self._residents.run_later(lambda: self._pack(slot, resident, copy=copy))
        if refreshed is not None and self._residents.size_bytes > self._residents.budget_bytes:
            self._residents.run_later(self._shrink)

    def _pack(self, slot: Slot, resident: Resident, *, copy: bool) -> None:
        import duckdb

        try:
            (self._copy if copy else self._compress)(slot, resident)
        except duckdb.Error as error:
            if slot.resident is resident:  # no memory for a copy; after an eviction the error does not matter
                slot.note(reason=f"Its rows could not be packed ({first_line(error)}).")
        finally:
            slot.packing = False

    def _compress(self, slot: Slot, resident: Resident) -> None:
        engine = self._residents.engine
        inserted_rows, before = slot.inserted_rows, engine.table_bytes()
        with closing(engine.cursor()) as cursor:
            cursor.execute(f"CHECKPOINT {resident.database}")
        with slot.lock:
            if slot.resident is resident:
                slot.inserted_rows -= inserted_rows
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
                deleted_rows, other = slot.deleted_rows, resident.moved(database)
                reader = self._residents.readers.begin([resident])
            undo.callback(reader.end)
            undo.callback(other.writer.close)
            names = names_sql(list(resident.store.schema.names))
            cursor = reader.cursor
            cursor.execute(f"CREATE TABLE {other.table} AS SELECT {names} FROM {resident.table}")  # noqa: S608
            cursor.execute("COMMIT")
            cursor.execute(f"CHECKPOINT {database}")
            size_bytes = max(engine.table_bytes() - before, 0)
            with slot.lock:
                if slot.resident is not resident:
                    return
                undo.pop_all()
                reader.end()
                slot.resident = other
                slot.inserted_rows = 0
                self._residents.readers.end_idle(resident.database)
                resident.close()
                slot.deleted_rows -= deleted_rows
                slot.note(size_bytes=size_bytes)

    def _shrink(self) -> None:
        """Evict the least recently used residents until the others fit, because residents grow with each refresh."""
        with self._residents.filling:
            while self._residents.size_bytes > self._residents.budget_bytes:
                evictable = [held for held in self._residents.held() if not held.pinned]
                if not evictable:
                    return
                least = min(evictable, key=lambda held: (held.used_seconds, held.name))
                slot = self._residents.slot(least.name)
                with slot.lock:
                    self._residents.evict(slot, "Not resident: other datasets grew, and it was used least recently.")
