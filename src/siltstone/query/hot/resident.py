"""One dataset in memory, and its refresh.

A refresh reads the heads of `changes`, then of `base`, in the same order as a snapshot. If neither has moved, no write
was acknowledged since the last refresh. Otherwise sequence and content version decide:

* Another content version, other columns, or a sequence below ours: the rows are invalid and are filled again.
* A change above our sequence was pruned: it is read from files that the log still names. Without them, the rows are
  filled again.
* A higher sequence: only the changes above ours are read, and applied in one transaction.
* Otherwise rows only moved (a fold, a squash, a roll-up, a clustering), and only the new heads are recorded.
"""

import copy
import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.dataset.read.change_feed import changes_since
from siltstone.dataset.snapshot import Snapshot, sequence_of
from siltstone.dataset.store import Store
from siltstone.errors import NotFound, Unavailable
from siltstone.model.columns import APP_PRUNE, APP_SEQ
from siltstone.model.schema import own_columns, to_struct_json
from siltstone.query.hot.change_set import apply, change_sets_above
from siltstone.query.hot.duckdb_engine import TABLE, DuckDbEngine

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

COLUMNS_HEX_DIGITS: Final = 16


class NotResident(Unavailable):
    """The hot engine cannot read a dataset now; the message has the reason. Spark can answer."""


@dataclass(frozen=True, slots=True, order=True)
class State:
    """The version of a dataset that its rows in memory show. Equal states have equal rows and columns."""

    incarnation: str
    sequence: int
    content: int
    columns: str
    """Digest of the columns, their types and defaults."""


def columns_digest(schema: pa.Schema) -> str:
    """Return a digest that is equal for two schemas exactly if their columns are equal."""
    text = json.dumps(to_struct_json(schema), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:COLUMNS_HEX_DIGITS]


def has_columns_of(store: Store, snapshot: Snapshot) -> bool:
    """True if a snapshot has the columns of the store, so that its rows can be read in them."""
    return columns_digest(own_columns(snapshot.base.schema)) == columns_digest(store.schema)


def state_of(store: Store, snapshot: Snapshot) -> State:
    """Return the state of rows that were filled from a snapshot."""
    return State(store.incarnation, snapshot.sequence, snapshot.content, columns_digest(store.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The effect of a refresh."""

    deleted_rows: int = 0
    inserted_rows: int = 0
    size_bytes: int = 0
    """Approximate memory of the new rows."""


class Resident:
    """The rows of one dataset. A refresh needs the lock of the slot. Readers use transactions."""

    def __init__(self, engine: DuckDbEngine, database: str, store: Store, snapshot: Snapshot, *, rows: int) -> None:
        """Adopt a table that was filled from a snapshot and is not published yet."""
        self.engine = engine
        self.database = database
        self.store = store
        self.rows = rows
        self.state = state_of(store, snapshot)
        self.epoch = snapshot.epoch
        """Highest epoch that has committed to base. A purge raises it."""
        self._heads = (snapshot.changes.version, snapshot.base.version)
        self._columns = snapshot.base.schema
        self.writer: DuckDBPyConnection = engine.cursor()

    @property
    def table(self) -> str:
        """Qualified table name in SQL."""
        return f"{self.database}.main.{TABLE}"

    def refresh(self) -> Refreshed | None:
        """Apply the changes since the last refresh; return None if there are none.

        Raises:
            NotResident: the rows have to be filled again, or the dataset was altered.
            FileNotFoundError: a file was removed meanwhile. Refresh again.
            Gone: the dataset was dropped.
        """
        changes = self.store.changes.version()
        if (changes, self.store.base.version()) == self._heads:
            return None
        snapshot = self.store.snapshot()
        self._check(snapshot)
        refreshed = self._apply(*self._above(snapshot))
        self._heads = (snapshot.changes.version, snapshot.base.version)
        self.epoch = snapshot.epoch
        return refreshed

    def _above(self, snapshot: Snapshot) -> tuple[Snapshot, int]:
        """Return a snapshot that has the changes above our sequence, and its last complete sequence."""
        current = self.state.sequence
        if snapshot.changes.transactions.get(APP_PRUNE, 0) <= current:
            return snapshot, max(snapshot.changes.transactions.get(APP_SEQ, 0), current)
        try:
            above = changes_since(self.store, current)
        except NotFound as error:
            raise NotResident(
                "Changes were folded and deleted before it saw them, so it has to be filled again."
            ) from error
        self._check(self.store.snapshot())  # these files may be newer than the snapshot; its content must not be
        return above, max((sequence_of(file) for file in above.changes.files), default=current)

    def _check(self, snapshot: Snapshot) -> None:
        columns = snapshot.base.schema
        if columns is not self._columns:
            if columns_digest(own_columns(columns)) != self.state.columns:
                raise NotResident("Its columns were altered, so it has to be filled again.")
            self._columns = columns
        if snapshot.content != self.state.content:
            raise NotResident("Its content was replaced, so it has to be filled again.")
        if snapshot.sequence < self.state.sequence:
            raise NotResident("It was set back to an earlier state, so it has to be filled again.")

    def _apply(self, above: Snapshot, sequence: int) -> Refreshed | None:
        current = self.state.sequence
        if sequence == current:
            return None
        total = Refreshed()
        for changes in change_sets_above(self.store, above, current):
            deleted_rows, inserted_rows = apply(self.writer, self.table, changes)
            self.rows += inserted_rows - deleted_rows
            self.state = replace(self.state, sequence=changes.sequence)
            total = Refreshed(
                deleted_rows=total.deleted_rows + deleted_rows,
                inserted_rows=total.inserted_rows + inserted_rows,
                size_bytes=total.size_bytes + changes.inserts.nbytes,
            )
        self.state = replace(self.state, sequence=sequence)
        return total

    def moved(self, database: str) -> "Resident":
        """Return a resident for another database with a copy of the current rows.

        The caller holds the lock of the slot.
        """
        other = copy.copy(self)
        other.database = database
        other.writer = self.engine.cursor()
        return other

    def close(self) -> None:
        """Release the rows. Running readers can finish."""
        self.writer.close()
        self.engine.detach(self.database)
