"""An event log in the tables of an SQL database: appends are transactions, queries read the same tables."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from siltstone.clock import SystemClock, epoch_ns
from siltstone.errors import InvalidRequest
from siltstone.eventlog.database import Database
from siltstone.eventlog.event_store import Appended, EventStore
from siltstone.eventlog.events import Event


class SqlBackend:
    """A log in the tables of an SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._clock = SystemClock()
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def append(self, events: Sequence[Event]) -> list[Appended]:
        """Append in one transaction."""
        with self._database.writing() as connection:
            return EventStore(connection).append(events, at=epoch_ns(self._clock.now()))

    def append_soon(self, events: Sequence[Event]) -> "Future[list[Appended]]":
        """Append on the backend's own thread, in order, because a database takes one writer at a time."""
        with self._mutex:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="siltstone-eventlog")
            return self._pool.submit(self.append, events)

    def reading(self) -> AbstractContextManager[Connection]:
        """Open the database for queries."""
        return self._database.reading()

    def rebuild(self) -> None:
        """Refuse, because the tables are the log.

        Raises:
            InvalidRequest: always.
        """
        raise InvalidRequest("Only a log on Delta has a projection that can be rebuilt.")

    def heal(self) -> bool:
        """Do nothing: the tables are the log."""
        return False

    @property
    def version(self) -> int:
        """The version of the tables."""
        return self._database.version

    def refresh_version(self) -> int:
        """Read the version of the tables again, because another process may have migrated them."""
        return self._database.refresh_version()

    def migrate(self) -> None:
        """Add missing columns to the tables."""
        self._database.migrate()

    def close(self) -> None:
        """Wait for pending appends, and close the database."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._database.close()
