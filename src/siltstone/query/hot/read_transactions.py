"""Transactions for readers: each sees one state of its datasets, whatever is applied meanwhile.

Beginning one costs about as much as a small answer. So one that has ended well is kept, still open, for the next reader of the
same states; as soon as one of its datasets moves on or goes, it is rolled back, because an open transaction keeps what is old.
With it are kept the last questions that were asked in it, as DuckDB has read them.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from siltstone.query.hot.duckdb_engine import Engine
from siltstone.query.hot.resident import Resident

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

MOST_IDLE: Final = 16
"""Transactions that wait for a reader; more threads than this begin their own."""

MOST_PREPARED: Final = 32
"""Questions that one transaction remembers."""

Moment = tuple[tuple[str, int], ...]
"""The databases of a transaction, each with the sequence that it sees."""


def moment_of(residents: Sequence[Resident]) -> Moment:
    """Return what a transaction over these sees now; their locks are held."""
    return tuple((one.database, one.state.sequence) for one in residents)


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """One transaction; one thread at a time has it."""

    cursor: "DuckDBPyConnection"
    _prepared: "OrderedDict[str, DuckDBPyRelation]" = field(default_factory=OrderedDict)

    def prepared(self, sql: str) -> "DuckDBPyRelation":
        """Return a question that can be asked; one that was asked before is not read again.

        Raises:
            duckdb.Error: DuckDB cannot read it.
        """
        found = self._prepared.pop(sql, None)
        if found is None:
            found = self.cursor.sql(sql)
        self._prepared[sql] = found
        while len(self._prepared) > MOST_PREPARED:
            self._prepared.popitem(last=False)
        return found

    def let_go(self) -> None:
        """Give up an answer that was not read to its end: the next question could not be asked beside it."""
        import duckdb

        with contextlib.suppress(duckdb.Error):
            self.cursor.abort()

    def end(self) -> None:
        """Roll the transaction back, if it still is one, and close its cursor."""
        import duckdb

        self._prepared.clear()
        with contextlib.suppress(duckdb.Error):
            self.cursor.execute("ROLLBACK")
        self.cursor.close()


class Readers:
    """Open transactions. Safe to share between threads."""

    def __init__(self, engine: Engine) -> None:
        """Start with none."""
        self._engine = engine
        self._idle: dict[Moment, list[Reader]] = {}
        self._mutex = threading.Lock()

    def begin(self, residents: Sequence[Resident]) -> Reader:
        """Return a transaction that sees these as they are now; their locks are held."""
        moment = moment_of(residents)
        with self._mutex:
            waiting = self._idle.get(moment)
            if waiting:
                return waiting.pop()
        cursor = self._engine.cursor()
        cursor.execute("BEGIN")
        for one in residents:
            cursor.execute(f"SELECT 1 FROM {one.table} LIMIT 0")  # noqa: S608  # a transaction sees a database from its first use on
        return Reader(cursor)

    def give(self, reader: Reader, moment: Moment, *, current: Callable[[], bool]) -> None:
        """Take one back: for the next reader if what it sees is `current`, else to end it.

        That is asked under the lock of `drop`, which comes after a dataset has moved on: none that is outdated can stay.
        """
        reader.let_go()
        with self._mutex:
            kept = sum(map(len, self._idle.values())) < MOST_IDLE and current()
            if kept:
                self._idle.setdefault(moment, []).append(reader)
        if not kept:
            reader.end()

    def drop(self, database: str) -> None:
        """End the transactions that wait and see a database: it has moved on, or goes."""
        with self._mutex:
            moments = [moment for moment in self._idle if any(name == database for name, _ in moment)]
            readers = [reader for moment in moments for reader in self._idle.pop(moment)]
        for reader in readers:
            reader.end()

    def close(self) -> None:
        """End all that wait."""
        with self._mutex:
            readers = [reader for waiting in self._idle.values() for reader in waiting]
            self._idle.clear()
        for reader in readers:
            reader.end()
