"""Databases that keep a log's tables: SQLite in a file or in memory, and PostgreSQL.

An append holds the log for itself: in SQLite by an immediate transaction, in PostgreSQL by an advisory lock. A question sees one
state of the log: a snapshot in both. SQLite runs with a write-ahead log and syncs every commit (synchronous=FULL), so what was
acknowledged survives a power cut. Errors of the database become ours here: nobody above knows SQLAlchemy's.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, inspect, make_url, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from siltstone.errors import Conflict, Corruption, InvalidRequest, NotFound, Reason, Unavailable
from siltstone.eventlog.address import Address, BackendKind
from siltstone.eventlog.events import SCHEMA_VERSION
from siltstone.eventlog.tables import ADDED, HEAD, METADATA, VERSION
from siltstone.failpoints import reach

BUSY_SECONDS: Final = 30
"""How long a writer waits for another one."""
WAL_POLL_SECONDS: Final = 0.01
CONNECT_SECONDS: Final = 10
POOL_CONNECTIONS: Final = 8
CACHE_KB: Final = 32 * 1024
"""What one connection to SQLite may keep in memory; ids come in no order, so their index is touched everywhere."""
CHECKPOINT_PAGES: Final = 8000
"""Pages in the write-ahead log of a projection before they are moved: pages that change often are moved once."""
LOCK: Final = 0x53494C54
"""The number of the lock that whoever appends in PostgreSQL holds until the transaction ends."""


class Database:
    """The tables of one log, and the transactions to use them in. Safe to share between threads."""

    def __init__(self, engine: Engine, shown: str, *, alone: bool = False) -> None:
        """Use `open_database`; with `alone`, all threads share one connection, one at a time."""
        self.version = SCHEMA_VERSION
        """The version of its tables."""
        self._engine = engine
        self._shown = shown
        self._turn: AbstractContextManager[object] = threading.RLock() if alone else nullcontext()

    @property
    def _is_postgresql(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Ask within one state of the log."""
        snapshot = " ISOLATION LEVEL REPEATABLE READ READ ONLY" if self._is_postgresql else ""
        with self._turn, self._told(), self._engine.connect() as connection:
            connection.info[VERSION] = self.version
            _say(connection, f"BEGIN{snapshot}")
            try:
                yield connection
            finally:
                _roll_back(connection)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Change the log while nobody else does: all of what is done inside, or nothing."""
        with self._turn, self._told(), self._engine.connect() as connection:
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
    def _told(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise Conflict(f"Event log {self._shown}: somebody else was first ({_first_line(error)}).") from error
        except OperationalError as error:
            if _is_broken(error):
                raise Corruption(
                    f"Event log {self._shown} is broken: {_first_line(error)}", reason=Reason.DAMAGED_FILE
                ) from error
            raise Unavailable(f"Event log {self._shown} cannot be reached: {_first_line(error)}") from error
        except DBAPIError as error:
            raise Corruption(f"Event log {self._shown} cannot be used: {_first_line(error)}") from error
        except sqlite3.Error as error:  # of what was asked by the driver itself
            kind = (
                Corruption if _is_broken_code(error) or not isinstance(error, sqlite3.OperationalError) else Unavailable
            )
            raise kind(f"Event log {self._shown} cannot be used: {error}") from error

    def look_again(self) -> int:
        """Look which version the tables have now."""
        with self.reading() as connection:
            self.version = _stored_version(connection)
        return self.version

    def migrate(self) -> None:
        """Bring the tables to the newest version: all steps or, after a crash, none."""
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


def _roll_back(connection: Connection) -> None:
    """End a transaction; where that fails, as after an interrupt, the connection is thrown away, and what went wrong is told."""
    try:
        _say(connection, "ROLLBACK")
    except (SQLAlchemyError, sqlite3.Error):
        connection.invalidate()


def _say(connection: Connection, statement: str) -> None:
    """Run a statement that answers nothing: in SQLite by the driver itself, since every question needs two of them."""
    driver = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        driver.execute(statement)
    else:
        connection.exec_driver_sql(statement)


def open_database(address: Address, *, create: bool) -> Database:
    """Open a log's database, and make its tables if there are none.

    Raises:
        NotFound: there is no log, and none is to be made.
        InvalidRequest: a newer version of Siltstone has written it.
        Unavailable: the database cannot be reached, or does not let us in.
    """
    if address.backend is BackendKind.SQLITE and not create and not Path(address.path).is_file():
        raise NotFound(f"There is no event log at {address.shown}.")
    database = Database(_engine(address), address.shown, alone=address.backend is BackendKind.MEMORY)
    try:
        _prepare(database, address, create=create)
    except BaseException:
        database.close()
        raise
    return database


def open_projection(path: Path) -> Database:
    """Open a database that can be made anew from elsewhere: a power cut may take its last commits back, but does not break it.

    The connection that was used last is used next: a write empties the caches of all others.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        isolation_level="AUTOCOMMIT",
        pool_use_lifo=True,
        connect_args={"timeout": BUSY_SECONDS},
    )
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "connect", _set_up_projection)
    return Database(engine, f"projection {path}")


def _prepare(database: Database, address: Address, *, create: bool) -> None:
    with database.reading() as connection:
        exists = inspect(connection).has_table(HEAD.name)
    if not exists and not create:
        raise NotFound(f"There is no event log at {address.shown}.")
    if not exists:
        with database.writing() as connection:
            METADATA.create_all(connection)
            if connection.execute(select(HEAD.c.id)).scalar() is None:  # nobody was quicker
                connection.execute(insert(HEAD).values(id=1, schema_version=SCHEMA_VERSION, next_index=1))
    with database.reading() as connection:
        database.version = version = _stored_version(connection)
    if version > SCHEMA_VERSION:
        raise InvalidRequest(
            f"Event log {address.shown} has version {version} of its tables; this Siltstone knows {SCHEMA_VERSION}. "
            "Use a newer Siltstone."
        )


def _stored_version(connection: Connection) -> int:
    found = connection.execute(select(HEAD.c.schema_version)).scalar()
    if not isinstance(found, int):
        raise Corruption(
            "The event log is damaged: it has no version. Restore it from a copy.", reason=Reason.DAMAGED_FILE
        )
    return found


def _engine(address: Address) -> Engine:
    match address.backend:
        case BackendKind.MEMORY:
            engine = create_engine(
                "sqlite://",
                isolation_level="AUTOCOMMIT",
                poolclass=StaticPool,
                connect_args={"check_same_thread": False},
            )
        case BackendKind.SQLITE:
            Path(address.path).parent.mkdir(parents=True, exist_ok=True)
            engine = create_engine(
                URL.create("sqlite", database=address.path),
                isolation_level="AUTOCOMMIT",
                connect_args={"timeout": BUSY_SECONDS},
            )
        case BackendKind.POSTGRESQL:
            return create_engine(
                make_url(address.uri).set(drivername="postgresql+psycopg"),
                isolation_level="AUTOCOMMIT",
                pool_size=POOL_CONNECTIONS,
                pool_pre_ping=True,
                connect_args={"connect_timeout": CONNECT_SECONDS},
            )
        case _:
            raise InvalidRequest(f"{address.shown} is no database.")
    event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401
    _use_wal(connection)
    for statement in (
        "synchronous = FULL",
        "case_sensitive_like = ON",
        "cell_size_check = ON",
        f"cache_size = -{CACHE_KB}",
    ):
        connection.execute(f"PRAGMA {statement}")


def _use_wal(connection: Any) -> None:  # noqa: ANN401
    """Switch a database to its write-ahead log. SQLite does not wait here for somebody who is doing the same, so this does."""
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


def _set_up_projection(connection: Any, _record: object) -> None:  # noqa: ANN401
    for statement in ("synchronous = NORMAL", f"wal_autocheckpoint = {CHECKPOINT_PAGES}"):
        connection.execute(f"PRAGMA {statement}")


def _is_broken(error: DBAPIError) -> bool:
    return _is_broken_code(error.orig)


def _is_broken_code(error: BaseException | None) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # text that is not UTF-8, which the driver finds
        return isinstance(error, sqlite3.OperationalError)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "no such table" in str(error)


def _first_line(error: DBAPIError) -> str:
    return next(iter(str(error.orig).splitlines()), type(error).__name__)
