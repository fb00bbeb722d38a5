"""The projection of a Delta log: its events in SQLite tables, so that it answers like any other log.

It is built from the Delta table and can be deleted at any time. It stores the version of the table that it has reached.
Before every query and every append it catches up, from the entries of the Delta log one by one. Where those were
cleaned, it reads the live files that can hold events it has not seen.

All processes of a user on one machine share it. It is a file in the cache folder, named by the table's id and location.
So copies of a log do not share one. It stores the commit id of its version: it is rebuilt if an older or diverged copy
replaces the log. A process catches up in transactions. Its own appends stay in memory (`pending_commits`). They are
applied before the next query, or in the background after many commits. Until then appends are checked against both.

A projection that is broken, or of another layout, is deleted and rebuilt.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from sqlalchemy import Connection, insert, inspect, select, update

from siltstone.delta.log_replay import LogChanged
from siltstone.errors import Corruption, Reason, Unavailable
from siltstone.eventlog.arrow_rows import FIRST_INDEX, from_rows
from siltstone.eventlog.database import Database, open_projection
from siltstone.eventlog.event_store import AppendPlan, EventStore, next_index
from siltstone.eventlog.event_table import EventTable
from siltstone.eventlog.events import SCHEMA_VERSION, Event, Indexed
from siltstone.eventlog.pending_commits import CommitRange, PendingCommits, ProjectionBacklog
from siltstone.eventlog.tables import CHECK_METADATA, HEAD, METADATA, PROJECTED, PROJECTION_METADATA
from siltstone.failpoints import reach
from siltstone.model.files import DataFile

LAYOUT: Final = 4
"""Version of the tables of a projection. A projection of another version is rebuilt."""
FILES_AT_ONCE: Final = 200
"""Most files per transaction. Bounds memory, and the work that a crash loses."""
REBUILDS: Final = 2


class _FileMerged(Exception):  # noqa: N818
    """A file no longer exists, because a merge has moved its events to another file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Projection:
    """The projection of one log on Delta."""

    def __init__(self, table: EventTable, path: Path) -> None:
        """Open the projection; create it if there is no usable one."""
        self._table = table
        self._path = path
        self._projecting = threading.RLock()
        self._pending = PendingCommits()
        self._database = self._open()

    def _open(self) -> Database:
        for _ in range(REBUILDS):
            database = open_projection(self._path)
            try:
                _ensure_tables(database)
            except Corruption:
                database.close()
                self._delete()
            else:
                return database
        raise Unavailable(f"The projection {self._path} cannot be created. Delete it and check the disk.")

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def rebuild(self) -> None:
        """Delete the projection and build it from the whole log."""
        self.heal()
        self.catch_up(self._table.version())

    def heal(self) -> None:
        """Delete the projection. The next query builds it from the whole log."""
        with self._projecting:
            self._pending.clear()
            self._database.close()
            self._delete()
            self._database = self._open()

    def close(self) -> None:
        """Apply pending commits, and close the database."""
        with suppress(Corruption, Unavailable):
            self.flush()
        self._database.close()

    @contextmanager
    def reading(self, version: int | None = None) -> Iterator[Connection]:
        """Open one consistent state that has all events of a version of the table; default: the newest version."""
        until = self._table.version() if version is None else version
        if self._pending:  # after the version was read: commits of this process come from memory, not files
            with suppress(Corruption):  # `catch_up` repairs it
                self.flush()
        while True:
            with self._reading_at(until) as connection:
                if connection is not None:
                    yield connection
                    return
            self.catch_up(until)

    @contextmanager
    def _reading_at(self, until: int) -> Iterator[Connection | None]:
        """Read the projection as it is; None if it is behind, of another log, or broken."""
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(self._database.reading())
                at = _version(opened)
                connection = opened if at == until or (at > until and not self._is_ahead(at)) else None
            except Corruption:  # `catch_up` repairs it
                connection = None
            if connection is None:
                stack.close()
            yield connection

    def _is_ahead(self, at: int) -> bool:
        """True if the table has no such version, because an older copy has replaced it."""
        return at > self._table.version()

    def catch_up(self, until: int) -> None:
        """Apply all commits up to a version of the table."""
        try:
            self._catch_up(until)
        except Corruption:  # of the projection, or of the table: the second attempt shows which
            self.heal()
            self._catch_up(until)

    def _catch_up(self, until: int) -> None:
        """Apply commits in steps. Files are listed before the database is locked, because an append holds the table."""
        live = False
        while True:
            with self._database.reading() as connection:
                at = _version(connection)
                commit_id: str | None = connection.execute(select(PROJECTED.c.commit_id)).scalar()
            if at >= until:
                if at > until and self._is_ahead(at):
                    raise Corruption(f"The projection {self._path} is ahead of its log. Run silt events rebuild.")
                return
            if at >= 0 and commit_id is not None:
                with suppress(FileNotFoundError):  # the entry was cleaned: its commit id is not known
                    if self._table.added(at).commit_id != commit_id:  # another table has replaced ours
                        raise Corruption(f"The projection {self._path} is of another log. Run silt events rebuild.")
            step = self._live_step() if live else self._next_step(at, until)
            try:
                self._apply_step(at, step)
            except _FileMerged as error:
                if (
                    live
                    and not self._table.exists(error.path)
                    and error.path in {file.path for file in self._table.live().files}
                ):
                    raise Corruption(
                        f"{self._table.label}: {error.path} cannot be read: it does not exist. Restore it from a copy.",
                        reason=Reason.MISSING_FILE,
                    ) from error
                live = True
            reach("eventlog.during_catch_up")

    def _next_step(self, at: int, until: int) -> "_Step":
        """Return the next files to apply: those of some versions or, if their entries were cleaned, the live files."""
        files: list[DataFile] = []
        commit_id: str | None = None
        while at < until and len(files) < FILES_AT_ONCE:
            try:
                added = self._table.added(at + 1)
            except FileNotFoundError:
                return self._live_step()
            files += added.files
            commit_id = added.commit_id
            at += 1
        return _Step(version=at, files=tuple(files), commit_id=commit_id)

    def _live_step(self) -> "_Step":
        live = self._table.live()
        commit_id: str | None = None
        with suppress(FileNotFoundError):
            commit_id = self._table.added(live.version).commit_id
        return _Step(version=live.version, files=live.files, commit_id=commit_id)

    def _apply_step(self, at: int, step: "_Step") -> None:
        """Apply the events of one step that the projection lacks in one transaction, unless another process was faster."""
        with self._database.writing() as connection:
            if _version(connection) != at:
                return
            store = EventStore(connection)
            start = next_index(connection)
            events: list[Indexed] = []
            for file in step.files:
                text = file.partition.get(FIRST_INDEX)
                first = None if text is None else int(text)
                if first is None or first + file.rows > start or first >= start:
                    events += self._read(file, first, start)
            events.sort(key=lambda indexed: indexed.index)
            if events and [indexed.index for indexed in events] != list(range(start, start + len(events))):
                raise Corruption(
                    f"{self._table.label}: events {start} to {events[-1].index} are not all there. "
                    "Restore the log from a copy."
                )
            store.project(events)
            _set_version(connection, step.version, step.commit_id)

    def _read(self, file: DataFile, first: int | None, start: int) -> Iterator[Indexed]:
        try:
            rows = self._table.read(file.path)
        except FileNotFoundError as error:
            raise _FileMerged(file.path) from error
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise Unavailable(
                    f"{self._table.label}: {file.path} cannot be read now ({error}). Try again."
                ) from error
            raise Corruption(
                f"{self._table.label}: {file.path} cannot be read ({error}). Restore it from a copy.",
                reason=Reason.DAMAGED_FILE,
            ) from error
        return from_rows(rows, first_index=first, where=f"{self._table.label}: {file.path}", start=start)

    def check(self, batches: Sequence[Sequence[Event]], *, version: int, at: int) -> AppendPlan:
        """Check appends against a version of the table.

        Raises:
            LogChanged: the projection is already at a newer version, so no commit can land on this one.
        """
        try:
            return self._check(batches, version=version, at=at)
        except Corruption:
            self.heal()
            return self._check(batches, version=version, at=at)

    def _check(self, batches: Sequence[Sequence[Event]], *, version: int, at: int) -> AppendPlan:
        until = self._pending.until
        with suppress(FileNotFoundError):  # the entry was cleaned: the events are read from the files
            # Commits since ours that only moved rows are added, so that our own commits can stay pending.
            while until is not None and until < version and not (added := self._table.added(until + 1)).files:
                until += 1
                self._pending.add(until, AppendPlan(), added.commit_id or "")
        with self._database.reading() as connection:
            over = self._pending.over(_version(connection), until=version)
            if over is not None:
                return EventStore(connection, self._table.label).check(batches, at=at, over=over)
        with self.reading(version) as connection:
            if _version(connection) > version:
                raise LogChanged(f"another process was first: version {version} is not the newest any more")
            return EventStore(connection, self._table.label).check(batches, at=at)

    def add_commit(self, version: int, plan: AppendPlan, *, commit_id: str) -> ProjectionBacklog:
        """Add a commit of this process, to be applied later; return the backlog."""
        self._pending.add(version, plan, commit_id)
        return self.backlog

    @property
    def backlog(self) -> ProjectionBacklog:
        """Commits of this process that are not applied yet."""
        return self._pending.backlog

    def flush(self) -> None:
        """Apply pending commits, unless another process was faster. The next query then catches up from the files."""
        until = self._pending.until
        with self._projecting:
            while until is not None and (pending := self._pending.oldest(until=until)) is not None:
                try:
                    self._apply(pending)
                finally:
                    self._pending.drop(pending)

    def _apply(self, pending: CommitRange) -> None:
        with self._database.writing() as connection:
            if _version(connection) == pending.start - 1:
                EventStore(connection).apply(pending.plan)
                _set_version(connection, pending.end, pending.commit_id)


@dataclass(frozen=True, slots=True)
class _Step:
    """The files that are applied in one transaction."""

    version: int
    files: tuple[DataFile, ...]
    commit_id: str | None


def _ensure_tables(database: Database) -> None:
    with database.reading() as connection:
        exists = inspect(connection).has_table(PROJECTED.name)
    if not exists:
        with database.writing() as connection:
            METADATA.create_all(connection)
            PROJECTION_METADATA.create_all(connection)
            CHECK_METADATA.create_all(connection)
            if connection.execute(select(PROJECTED.c.id)).scalar() is None:  # no other process was faster
                connection.execute(insert(HEAD).values(id=1, schema_version=SCHEMA_VERSION, next_index=1))
                connection.execute(insert(PROJECTED).values(id=1, layout=LAYOUT, version=-1))
    with database.reading() as connection:
        if connection.execute(select(PROJECTED.c.layout)).scalar() != LAYOUT:
            raise Corruption("another layout")


_VERSION: Final = f"SELECT version FROM {PROJECTED.name}"  # noqa: S608
"""SQL for the driver, without SQLAlchemy, because every append and every query runs it."""


def _version(connection: Connection) -> int:
    driver = connection.connection.driver_connection
    row = driver.execute(_VERSION).fetchone() if driver is not None else None
    if row is None or not isinstance(row[0], int):
        raise Corruption("A projection without a version.")
    return row[0]


def _set_version(connection: Connection, version: int, commit_id: str | None) -> None:
    connection.execute(update(PROJECTED).values(version=version, commit_id=commit_id))
