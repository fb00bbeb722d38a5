"""EventLog, the public API of event logs: append events, and query them.

`EventLog.open` takes an address (see `address`). The same calls give the same answers on every backend. An
`EventLogBackend` only defines how to append and which tables to query. The rules for events and the queries are the
same code.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

from sqlalchemy import Connection

from siltstone.clock import Clock
from siltstone.config import Role, Settings
from siltstone.errors import Corruption, InvalidRequest, NotFound, Reason
from siltstone.eventlog import queries
from siltstone.eventlog.address import Address, BackendKind, parse_address
from siltstone.eventlog.database import open_database
from siltstone.eventlog.delta_backend import open_delta
from siltstone.eventlog.event_json import check_event, is_plain
from siltstone.eventlog.event_store import Appended, next_index
from siltstone.eventlog.events import SCHEMA_VERSION, BuildStatus, Event, Indexed
from siltstone.eventlog.queries import Build, Filter, JobRun, LimitedList, Page, Partition, Summary
from siltstone.eventlog.spark_report import EventLogReport, read_events, report
from siltstone.model.roles import check_may_write, may_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE_EVENTS: Final = 100
"""Default number of events in a page. `Page.has_more` says whether there are more."""
MAX_APPENDED: Final = 100_000
"""Most events in one append."""

T = TypeVar("T")


class EventLogBackend(Protocol):
    """Storage of one log."""

    def append(self, events: Sequence[Event]) -> list[Appended]:
        """Append events, all of them or none. They are durable on return."""

    def append_soon(self, events: Sequence[Event]) -> "Future[list[Appended]]":
        """Append events without waiting; the future has the result."""

    def reading(self) -> AbstractContextManager[Connection]:
        """Open one consistent state of the log for queries. It has all appends acknowledged before."""

    def rebuild(self) -> None:
        """Rebuild the derived tables."""

    def heal(self) -> bool:
        """Delete the derived tables, so that they are rebuilt; return False if there are none."""

    @property
    def version(self) -> int:
        """The version of the log's columns."""

    def refresh_version(self) -> int:
        """Read the log's version again and return it, because another process may have migrated the log."""

    def migrate(self) -> None:
        """Migrate the log to the newest version. This only adds columns."""

    def close(self) -> None:
        """Wait for pending appends and release all resources."""


class EventLog:
    """One event log. Safe to share between threads."""

    def __init__(self, backend: EventLogBackend, address: Address, *, role: Role = Role.ALL) -> None:
        self._backend = backend
        self._address = address
        self._role = role

    @classmethod
    def open(
        cls, uri: str, *, create: bool = True, settings: Settings | None = None, clock: Clock | None = None
    ) -> "EventLog":
        """Open the log at an address; create it if it does not exist.

        Args:
            uri: the address of the log.
            create: create the log if it does not exist and the role may write.
            settings: the role. For a log on Delta also the durability, and when its files are merged. Default: the
                default settings, with the role of the environment.
            clock: the source of time of a log on Delta.

        Raises:
            InvalidRequest: the address is wrong, or a newer Siltstone has written the log.
            NotFound: there is no log, and `create` is false.
            Unavailable: it cannot be reached.
        """
        address = parse_address(uri)
        role = (Settings.load() if settings is None else settings).role
        create = create and may_write(role)
        match address.backend:
            case BackendKind.MEMORY | BackendKind.SQLITE | BackendKind.POSTGRESQL:
                return cls(open_database(address, create=create), address, role=role)
            case BackendKind.DELTA | BackendKind.DELTA_S3 | BackendKind.DELTA_AZURE:
                return cls(open_delta(address, create=create, settings=settings, clock=clock), address, role=role)

    @property
    def uri(self) -> str:
        """The log's address, without a password."""
        return self._address.shown

    def append(self, *events: Event) -> list[Appended]:
        """Append events in this order, all of them or, on an error, none. They are durable on return.

        An event that is in the log already is not appended again.

        Raises:
            InvalidRequest: an event breaks the rules, there are too many, or the role may not write.
            Conflict: an event is not a legal next state, or its id belongs to another event.
            Unavailable: the log cannot be reached.
        """
        return self._backend.append(self._checked(events)) if events else []

    def append_soon(self, *events: Event) -> "Future[list[Appended]]":
        """Append events like `append`, but return at once. The future has the durable result or the error.

        One thread can have many pending appends, which are committed together. Callbacks of the future should not
        block.

        Raises:
            InvalidRequest: an event breaks the rules, or there are too many, or none.
        """
        if not events:
            raise InvalidRequest("There is no event to append.")
        return self._backend.append_soon(self._checked(events))

    def _checked(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        check_may_write(self._role, doing="append events")
        if self._backend.version < SCHEMA_VERSION and self._backend.refresh_version() < SCHEMA_VERSION:
            raise InvalidRequest(
                f"Event log {self.uri} has version {self.version}; it can be read, but before anything is appended it needs "
                f"version {SCHEMA_VERSION}: run silt events migrate. Older versions of Siltstone cannot use it after that."
            )
        if len(events) > MAX_APPENDED:
            raise InvalidRequest(f"{len(events):,} events are too many for one append ({MAX_APPENDED:,}).")
        if all(map(is_plain, events)):
            return events
        return tuple(check_event(event, where=f"Event {event.event_id}") for event in events)

    # A list without `limit` has all entries, or the query is refused (InvalidRequest: more than 100,000).
    # A list with a limit has `has_more`, and `following` for `after=`.

    def page(self, start: int = 1, *, limit: int = PAGE_EVENTS, event_filter: Filter | None = None) -> Page:
        """Return the events from an index on that match the filter."""
        return self._query(lambda c: queries.page(c, start=start, limit=limit, event_filter=event_filter or Filter()))

    def events(self, start: int = 1, *, event_filter: Filter | None = None, at_once: int = 1000) -> Iterator[Indexed]:
        """Yield all events from an index on, page by page."""
        while True:
            page = self.page(start, limit=at_once, event_filter=event_filter)
            yield from page.events
            if not page.has_more:
                return
            start = page.next_index

    def event(self, event_id: str) -> Indexed:
        """Return one event.

        Raises:
            NotFound: no event has this id.
        """
        return self._require(lambda c: queries.event_by_id(c, event_id), f"event {event_id}")

    def events_of_build(self, build_request_id: str, *, limit: int | None = None) -> LimitedList[Indexed]:
        """Return the events of a build request."""
        return self._query(lambda c: queries.events_of_build(c, build_request_id, limit=limit))

    def events_of_partition(self, partition_ref: str, *, limit: int | None = None) -> LimitedList[Indexed]:
        """Return the events about a partition."""
        return self._query(lambda c: queries.events_of_partition(c, partition_ref, limit=limit))

    def events_of_run(self, job_run_id: str, *, limit: int | None = None) -> LimitedList[Indexed]:
        """Return the events of a job run."""
        return self._query(lambda c: queries.events_of_run(c, job_run_id, limit=limit))

    def events_between(self, start: int, end: int, *, limit: int | None = None) -> LimitedList[Indexed]:
        """Return the events with a timestamp from `start` up to, not including, `end` (nanoseconds)."""
        return self._query(lambda c: queries.events_between(c, start, end, limit=limit))

    def builds(
        self, *, limit: int | None = None, statuses: Iterable[BuildStatus] = (), after: str | None = None
    ) -> LimitedList[Build]:
        """Return build requests with their status, latest change first; `after` continues a list that was cut."""
        selected = tuple(statuses)
        return self._query(lambda c: queries.builds(c, limit=limit, statuses=selected, after=after))

    def build(self, build_request_id: str) -> Build:
        """Return one build request.

        Raises:
            NotFound: no build request in the log has this id.
        """
        return self._require(lambda c: queries.build(c, build_request_id), f"build request {build_request_id}")

    def partitions(
        self, *, limit: int | None = None, glob: str | None = None, after: str | None = None
    ) -> LimitedList[Partition]:
        """Return partitions with their status, latest change first; `after` continues a list that was cut."""
        return self._query(lambda c: queries.partitions(c, limit=limit, glob=glob, after=after))

    def partition(self, partition_ref: str) -> Partition:
        """Return the latest status of a partition.

        Raises:
            NotFound: no event has its status.
        """
        return self._require(lambda c: queries.partition(c, partition_ref), f"partition {partition_ref}")

    def active_builds(self, partition_ref: str) -> list[Build]:
        """Return the build requests that have not ended and will build a partition."""
        return self._query(lambda c: queries.active_builds(c, partition_ref))

    def last_build(self, prefix: str) -> Build | None:
        """Return the build request with the greatest id, by its bytes, that starts with `prefix`; None if none does."""
        return self._query(lambda c: queries.last_build(c, prefix))

    def runs(
        self,
        *,
        limit: int | None = None,
        build_request_id: str | None = None,
        label_glob: str | None = None,
        after: str | None = None,
    ) -> LimitedList[JobRun]:
        """Return job runs with their status, latest change first: all, or those of a build or of jobs by label.

        `after` continues a list that was cut.
        """
        return self._query(
            lambda c: queries.runs(
                c, limit=limit, build_request_id=build_request_id, label_glob=label_glob, after=after
            )
        )

    def next_index(self) -> int:
        """Return the index of the next event."""
        return self._query(next_index)

    @property
    def version(self) -> int:
        """The version of the log's columns. A log of an older version can be read, but not appended to."""
        return self._backend.version

    def migrate(self) -> int:
        """Migrate the log to the current version, which only adds columns; return the version it had.

        Raises:
            InvalidRequest: the role may not write.
        """
        check_may_write(self._role, doing="migrate an event log")
        before = self.version
        if before < SCHEMA_VERSION:
            self._backend.migrate()
        return before

    def rebuild(self) -> None:
        """Rebuild the projection of a log on Delta from all its events.

        Raises:
            InvalidRequest: the log has no projection.
        """
        self._backend.rebuild()

    def read(self, spark: "SparkSession") -> "DataFrame":
        """Return every event of a log on Delta as a Spark frame, with its index.

        Raises:
            InvalidRequest: the log is not on Delta.
        """
        if self._address.backend is not BackendKind.DELTA:
            raise InvalidRequest(
                f"Spark can only read event logs in a local Delta table, not {self.uri}. Export it and import it into such a log."
            )
        return read_events(spark, self._address.path)

    def report(self, spark: "SparkSession", *, limit: int = 20) -> EventLogReport:
        """Compute on Spark the outcomes of builds and jobs, the failure rates of jobs, and the slowest partitions.

        Raises:
            InvalidRequest: the log is not on Delta, or the limit is out of range.
        """
        return report(self.read(spark), limit=limit)

    def summary(self) -> Summary:
        """Return the counts of the log's content."""
        return self._query(queries.summary)

    def _query(self, query: Callable[[Connection], T]) -> T:
        """Run a query. If the derived tables are damaged, rebuild them and run it again."""
        try:
            return self._query_once(query)
        except Corruption:
            if not self._backend.heal():
                raise
        return self._query_once(query)

    def _query_once(self, query: Callable[[Connection], T]) -> T:
        with self._backend.reading() as connection:
            try:
                return query(connection)
            except (KeyError, TypeError, ValueError) as error:  # of a row that differs from what was written
                raise Corruption(
                    f"Event log {self.uri} is damaged: {type(error).__name__}: {error}. Restore it from a copy.",
                    reason=Reason.DAMAGED_FILE,
                ) from error

    def _require(self, query: Callable[[Connection], T | None], what: str) -> T:
        result = self._query(query)
        if result is None:
            raise NotFound(f"Event log {self.uri} has no {what}.")
        return result

    def close(self) -> None:
        """Wait for pending appends and close the log."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
