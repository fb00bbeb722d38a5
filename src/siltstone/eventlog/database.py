"""Databases that store a log's tables: SQLite in a file or in memory, and PostgreSQL. `SqlBackend` is a log in one.

An append locks the log: in SQLite by an immediate transaction, in PostgreSQL by an advisory lock. A query sees one
state of the log: a snapshot in both. SQLite uses a write-ahead log and syncs every commit (synchronous=FULL), so
acknowledged appends survive a power cut. Database errors become Siltstone errors here, so callers see no errors of
SQLAlchemy.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, inspect, make_url, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from siltstone.clock import SystemClock, epoch_ns
from siltstone.errors import Conflict, Corruption, InvalidRequest, NotFound, Reason, Unavailable, first_line
from siltstone.eventlog.address import Address, BackendKind
from siltstone.eventlog.event_store import Appended, EventStore
from siltstone.eventlog.events import SCHEMA_VERSION, Event
from siltstone.eventlog.tables import ADDED, HEAD, METADATA, VERSION, damaged
from siltstone.failpoints import reach

BUSY_SECONDS: Final = 30
"""Longest wait of a writer for another writer, in seconds."""
WAL_POLL_SECONDS: Final = 0.01
CONNECT_SECONDS: Final = 10
POOL_CONNECTIONS: Final = 8
CACHE_KB: Final = 32 * 1024
"""Page cache of one SQLite connection, in KB. Ids arrive in no order, so appends touch their whole index."""
CHECKPOINT_PAGES: Final = 8000
"""Pages in the write-ahead log of a projection before a checkpoint. Frequently changed pages are moved once."""
LOCK: Final = 0x53494C54
"""Number of PostgreSQL's advisory lock. An append holds it until its transaction ends."""


class Database:
    """The tables of one log, and the transactions to use them in. Safe to share between threads."""

    def __init__(
        self,
        engine: Engine,
        shown: str,
        *,
        single_connection: bool = False,
        remedy: str = "Restore it from a copy.",
    ) -> None:
        """With `single_connection`, all threads share one connection, one at a time. `remedy` ends errors of damage."""
        self.version = SCHEMA_VERSION
        """The version of its tables."""
        self._engine = engine
        self._shown = shown
        self._remedy = remedy
        self._lock: AbstractContextManager[object] = threading.RLock() if single_connection else nullcontext()

    @property
    def _is_postgresql(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open one consistent state of the log for queries."""
        snapshot = " ISOLATION LEVEL REPEATABLE READ READ ONLY" if self._is_postgresql else ""
        with self._lock, self._errors_translated(), self._engine.connect() as connection:
            connection.info[VERSION] = self.version
            _execute(connection, f"BEGIN{snapshot}")
            try:
                yield connection
            finally:
                _roll_back(connection)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction as the only writer. The block is applied whole, or not at all."""
        with self._lock, self._errors_translated(), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN" if self._is_postgresql else "BEGIN IMMEDIATE")
            try:
                if self._is_postgresql:
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
                yield connection
                reach("eventlog.before_commit")
            except BaseException:
                _roll_back(connection)
                raise
            connection.exec_driver_sql("COMMIT")
        reach("eventlog.after_commit")

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            why = first_line(error.orig or error)
            raise Conflict(f"Event log {self._shown}: another process was first ({why}). Try again.") from error
        except DBAPIError as error:
            why = first_line(error.orig or error)
            if not isinstance(error, OperationalError):
                raise Corruption(f"Event log {self._shown} cannot be used ({why}). {self._remedy}") from error
            if _is_broken(error.orig):
                raise Corruption(
                    f"Event log {self._shown} is broken ({why}). {self._remedy}", reason=Reason.DAMAGED_FILE
                ) from error
            raise Unavailable(f"Event log {self._shown} cannot be reached ({why}). Try again.") from error
        except sqlite3.Error as error:  # of statements that bypass SQLAlchemy
            kind = Corruption if _is_broken(error) or not isinstance(error, sqlite3.OperationalError) else Unavailable
            step = self._remedy if kind is Corruption else "Try again."
            raise kind(f"Event log {self._shown} cannot be used ({error}). {step}") from error

    def refresh_version(self) -> int:
        """Read the version of the tables again."""
        with self.reading() as connection:
            self.version = _stored_version(connection)
        return self.version

    def migrate(self) -> None:
        """Migrate the tables to the newest version: all steps or, after a crash, none."""
        with self.writing() as connection:
            for version in range(_stored_version(connection) + 1, SCHEMA_VERSION + 1):
                for column in ADDED[version]:
                    kind = column.type.compile(connection.dialect)
                    connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {column.name} {kind}")
                reach("eventlog.during_migration")
                connection.execute(update(HEAD).values(schema_version=version))
        self.version = SCHEMA_VERSION

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


class SqlBackend(Database):
    """A log in the tables of a database: appends are transactions, and queries read the same tables."""

    def __init__(self, engine: Engine, shown: str, *, single_connection: bool) -> None:
        super().__init__(engine, shown, single_connection=single_connection)
        self._clock = SystemClock()
        self._pool_mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def append(self, events: Sequence[Event]) -> list[Appended]:
        """Append in one transaction."""
        with self.writing() as connection:
            return EventStore(connection, f"Event log {self._shown}").append(events, at=epoch_ns(self._clock.now()))

    def append_soon(self, events: Sequence[Event]) -> "Future[list[Appended]]":
        """Append on the backend's own thread, in order, because a database takes one writer at a time."""
        with self._pool_mutex:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="siltstone-eventlog")
            return self._pool.submit(self.append, events)

    def rebuild(self) -> None:
        """Raise InvalidRequest, because the tables are the log."""
        raise InvalidRequest("Only a log on Delta has a projection that can be rebuilt.")

    def heal(self) -> bool:
        """Do nothing: the tables are the log."""
        return False

    def close(self) -> None:
        """Wait for pending appends, and close all connections."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        super().close()


def _roll_back(connection: Connection) -> None:
    """Roll back a transaction. If that fails, as after an interrupt, discard the connection; the first error stays."""
    try:
        _execute(connection, "ROLLBACK")
    except (SQLAlchemyError, sqlite3.Error):
        connection.invalidate()


def _execute(connection: Connection, statement: str) -> None:
    """Run a statement without a result. SQLite runs it in the driver, because every query needs two of them."""
    driver = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        driver.execute(statement)
    else:
        connection.exec_driver_sql(statement)


def open_database(address: Address, *, create: bool) -> SqlBackend:
    """Open a log's database; create its tables if they do not exist. Raises as `EventLog.open` does."""
    if address.backend is BackendKind.SQLITE and not create and not Path(address.path).is_file():
        raise NotFound(f"There is no event log at {address.shown}.")
    database = SqlBackend(_engine(address), address.shown, single_connection=address.backend is BackendKind.MEMORY)
    try:
        _ensure_tables(database, address, create=create)
    except BaseException:
        database.close()
        raise
    return database


def open_projection(path: Path) -> Database:
    """Open a database that can be rebuilt. A power cut may undo its last commits, but does not break it.

    The connection that was used last is used next, because a write empties the caches of all other connections.
    """
    pragmas = ("synchronous = NORMAL", f"wal_autocheckpoint = {CHECKPOINT_PAGES}")
    engine = _sqlite_engine(path, *pragmas, pool_use_lifo=True)
    return Database(engine, f"projection {path}", remedy="Run silt events rebuild.")


def _ensure_tables(database: Database, address: Address, *, create: bool) -> None:
    with database.reading() as connection:
        exists = inspect(connection).has_table(HEAD.name)
    if not exists and not create:
        raise NotFound(f"There is no event log at {address.shown}.")
    if not exists:
        with database.writing() as connection:
            METADATA.create_all(connection)
            if connection.execute(select(HEAD.c.id)).scalar() is None:  # no other process was faster
                connection.execute(insert(HEAD).values(id=1, schema_version=SCHEMA_VERSION, next_index=1))
    version = database.refresh_version()
    if version > SCHEMA_VERSION:
        raise InvalidRequest(
            f"Event log {address.shown} has version {version} of its tables; this Siltstone knows {SCHEMA_VERSION}. "
            "Use a newer Siltstone."
        )


def _stored_version(connection: Connection) -> int:
    version = connection.execute(select(HEAD.c.schema_version)).scalar()
    if not isinstance(version, int):
        raise damaged("it has no version")
    return version


def _engine(address: Address) -> Engine:
    match address.backend:
        case BackendKind.MEMORY:
            return _sqlite_engine(None, "synchronous = FULL", poolclass=StaticPool)
        case BackendKind.SQLITE:
            return _sqlite_engine(Path(address.path), "synchronous = FULL")
        case BackendKind.POSTGRESQL:
            return create_engine(
                make_url(address.uri).set(drivername="postgresql+psycopg"),
                isolation_level="AUTOCOMMIT",
                pool_size=POOL_CONNECTIONS,
                pool_pre_ping=True,
                connect_args={"connect_timeout": CONNECT_SECONDS},
            )
        case _:
            raise InvalidRequest(f"{address.shown} is not a database.")


def _sqlite_engine(path: Path | None, *pragmas: str, **options: Any) -> Engine:  # noqa: ANN401
    """Return the engine of a database in a file; without a path, in memory."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        URL.create("sqlite", database=None if path is None else str(path)),
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        **options,
    )

    def set_up(connection: Any, _record: object) -> None:  # noqa: ANN401
        _use_wal(connection)
        for pragma in ("case_sensitive_like = ON", "cell_size_check = ON", f"cache_size = -{CACHE_KB}", *pragmas):
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", set_up)
    return engine


def _use_wal(connection: Any) -> None:  # noqa: ANN401
    """Switch a database to its write-ahead log. Wait for a process that does the same, because SQLite does not."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(WAL_POLL_SECONDS)
        else:
            return


def _is_broken(error: BaseException | None) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # text that is not UTF-8, an error of the driver
        return isinstance(error, sqlite3.OperationalError)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "no such table" in str(error)
