"""Transactions of readers. Each sees one state of its datasets, independent of later refreshes.

Starting a transaction costs about as much as a small answer. So a transaction that ended without an error stays open
for the next reader of the same states. When one of its datasets changes or is evicted, it is rolled back at once. It
would keep old rows in memory. Each transaction also caches its last queries as prepared by DuckDB.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from siltstone.query.hot.duckdb_engine import DuckDbEngine
from siltstone.query.hot.resident import Resident

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

MOST_IDLE: Final = 16
"""Most idle transactions. Further threads start new ones."""

MOST_PREPARED: Final = 32
"""Most prepared queries in the cache of one transaction."""

ReaderState = tuple[tuple[str, int], ...]
"""The databases of a transaction, each with the sequence that it sees."""


def reader_state_of(residents: Sequence[Resident]) -> ReaderState:
    """Return the databases and sequences that a new transaction would see. The caller holds the locks of the slots."""
    return tuple((resident.database, resident.state.sequence) for resident in residents)


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """One transaction, used by one thread at a time."""

    cursor: "DuckDBPyConnection"
    _prepared: "OrderedDict[str, DuckDBPyRelation]" = field(default_factory=OrderedDict)

    def prepared(self, sql: str) -> "DuckDBPyRelation":
        """Return a prepared query, from the cache if it was prepared before."""
        query = self._prepared.pop(sql, None)
        if query is None:
            query = self.cursor.sql(sql)
        self._prepared[sql] = query
        while len(self._prepared) > MOST_PREPARED:
            self._prepared.popitem(last=False)
        return query

    def end(self) -> None:
        """Roll back the transaction, if it is still open, and close its cursor."""
        import duckdb

        self._prepared.clear()
        with contextlib.suppress(duckdb.Error):
            self.cursor.execute("ROLLBACK")
        self.cursor.close()


class Readers:
    """Open transactions. Thread-safe."""

    def __init__(self, engine: DuckDbEngine) -> None:
        self._engine = engine
        self._idle: dict[ReaderState, list[Reader]] = {}
        self._mutex = threading.Lock()

    def begin(self, residents: Sequence[Resident]) -> Reader:
        """Return a transaction that sees the current rows of these residents.

        The caller holds the locks of their slots.
        """
        state = reader_state_of(residents)
        with self._mutex:
            waiting = self._idle.get(state)
            if waiting:
                return waiting.pop()
        cursor = self._engine.cursor()
        cursor.execute("BEGIN")
        for resident in residents:
            cursor.execute(f"SELECT 1 FROM {resident.table} LIMIT 0")  # noqa: S608  # a transaction sees a database from its first use on
        return Reader(cursor)

    def release(self, reader: Reader, state: ReaderState, *, current: Callable[[], bool]) -> None:
        """Return a transaction to the pool if it sees `current` rows, else end it.

        `current` is called under the lock of `end_idle`, which runs after a dataset has changed. So no outdated transaction
        stays.
        """
        import duckdb

        with contextlib.suppress(duckdb.Error):
            reader.cursor.abort()  # DuckDB cannot start the next query beside a partly fetched result
        with self._mutex:
            reusable = sum(map(len, self._idle.values())) < MOST_IDLE and current()
            if reusable:
                self._idle.setdefault(state, []).append(reader)
        if not reusable:
            reader.end()

    def end_idle(self, database: str | None = None) -> None:
        """End the idle transactions that see a database, because it has changed or is being evicted; default: all."""
        with self._mutex:
            states = [state for state in self._idle if database is None or database in dict(state)]
            readers = [reader for state in states for reader in self._idle.pop(state)]
        for reader in readers:
            reader.end()
