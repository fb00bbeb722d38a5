"""Queries of an event log, written once for all databases. Each is an index seek, bounded by a limit.

Results have the same content on every backend. Events are in the order of their indexes. `LimitedList.has_more` is set on
a list that its limit has cut. Without a limit a list is complete, or the query is refused.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, or_, select

from siltstone.errors import InvalidRequest
from siltstone.eventlog.event_json import parse_event
from siltstone.eventlog.event_store import checksum, next_index, stored_json
from siltstone.eventlog.events import BuildStatus, Indexed, JobStatus, PartitionStatus
from siltstone.eventlog.tables import (
    BUILD_PARTITIONS,
    BUILDS,
    COUNTS,
    EVENT_CHECKS,
    EVENT_PARTITIONS,
    EVENTS,
    PARTITIONS,
    RUNS,
    damaged,
    event_columns,
    version_of,
)
from siltstone.eventlog.transitions import ACTIVE_PARTITIONS, ENDED_BUILDS, ENDED_JOBS
from siltstone.model.numbers import MAX_LONG, whole_number

CHECKS_AT_ONCE: Final = 500
"""Most checksums that one statement looks up."""
MAX_LIMIT: Final = 100_000
LIMIT: Final = "The limit of a list"
MAX_FILTERS: Final = 1_000
"""Most values in one filter."""
MAX_GLOBS: Final = 100
MAX_DIGITS: Final = 19
"""Digits of `MAX_LONG`. Python refuses to parse thousands of digits, which would look like a damaged log."""
LAST_CHARACTER: Final = "\U0010ffff"

T = TypeVar("T")


class LimitedList(list[T]):
    """A list, and whether its limit has cut it."""

    def __init__(self, entries: Iterable[T], *, has_more: bool = False, following: str | None = None) -> None:
        """Build a list. `following` is the `after=` of the next list; None at the end, and for lists of events."""
        super().__init__(entries)
        self.has_more = has_more
        self.following = following


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Events in order. `next_index` is the start of the next page, `has_more` whether that page has events."""

    events: tuple[Indexed, ...]
    next_index: int
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects events that match at least one value of every given field."""

    partition_refs: tuple[str, ...] = ()
    partition_globs: tuple[str, ...] = ()
    job_labels: tuple[str, ...] = ()
    job_run_ids: tuple[str, ...] = ()
    build_request_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse more values than one query can take (`MAX_FILTERS`, `MAX_GLOBS`), and text that a log cannot store."""
        if len(self.partition_globs) > MAX_GLOBS:
            raise InvalidRequest(f"A filter takes at most {MAX_GLOBS:,} globs, not {len(self.partition_globs):,}.")
        for values in astuple(self):
            if len(values) > MAX_FILTERS:
                raise InvalidRequest(f"A filter takes at most {MAX_FILTERS:,} values, not {len(values):,}.")
            for value in values:
                check_text(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A build request and its status."""

    build_request_id: str
    status: BuildStatus
    message: str
    requested_partitions: tuple[str, ...]
    created_at: int
    updated_at: int
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition and its latest status, from any build."""

    partition_ref: str
    status: PartitionStatus
    message: str
    updated_at: int
    build_request_id: str
    job_run_id: str | None
    is_invalidated: bool
    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A job run and its status."""

    job_run_id: str
    build_request_id: str
    job_label: str
    status: JobStatus
    message: str
    created_at: int
    updated_at: int
    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts of the log's content."""

    events: int
    events_by_type: dict[str, int]
    builds: dict[str, int]
    partitions: dict[str, int]
    jobs: dict[str, int]
    active_builds: int
    active_jobs: int


def page(connection: Connection, *, start: int, limit: int, event_filter: Filter) -> Page:
    """Return events from an index on."""
    start = whole_number("The index of an event", start, least=1)
    limit = whole_number(LIMIT, limit, least=1, most=MAX_LIMIT)
    query = _select(connection).where(EVENTS.c.idx >= start, *_conditions(event_filter, start)).order_by(EVENTS.c.idx)
    events = _events(connection, query.limit(limit + 1))
    shown, has_more = events[:limit], len(events) > limit
    following = events[limit].index if has_more else max(start, next_index(connection))
    if event_filter == Filter():  # indexes have no gaps
        missing = next((at for at, indexed in enumerate(shown, start) if at != indexed.index), start + len(shown))
        if missing != following:
            raise damaged(f"event {missing} is missing")
    return Page(events=tuple(shown), next_index=following, has_more=has_more)


def _conditions(event_filter: Filter, start: int) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if event_filter.partition_refs or event_filter.partition_globs:
        ref = EVENT_PARTITIONS.c.partition_ref
        alternatives = [matches(ref, glob) for glob in event_filter.partition_globs]
        if event_filter.partition_refs:
            alternatives.append(ref.in_(event_filter.partition_refs))
        indexes = select(EVENT_PARTITIONS.c.idx).where(or_(*alternatives), EVENT_PARTITIONS.c.idx >= start)
        conditions.append(EVENTS.c.idx.in_(indexes))
    for column, values in (
        (EVENTS.c.job_label, event_filter.job_labels),
        (EVENTS.c.job_run_id, event_filter.job_run_ids),
        (EVENTS.c.build_request_id, event_filter.build_request_ids),
    ):
        if values:
            conditions.append(column.in_(values))
    return conditions


def matches(column: ColumnElement[str], glob: str) -> ColumnElement[bool]:
    """Return the condition that text matches a glob: ``*`` is any text, ``?`` one character, all else is literal.

    The text before the first wildcard bounds the search in the index.
    """
    prefix = glob.split("*", 1)[0].split("?", 1)[0]
    escaped = "".join(f"\\{letter}" if letter in "\\%_" else letter for letter in glob)
    like = column.like(escaped.replace("*", "%").replace("?", "_"), escape="\\")
    return and_(column >= prefix, column <= prefix + LAST_CHARACTER, like) if prefix else like


def check_text(text: str) -> str:
    """Return the text. Refuse text that a log cannot store with InvalidRequest, so that all databases behave alike."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text!r} is not UTF-8.") from error
    if "\x00" in text:
        raise InvalidRequest(f"{text!r} has a NUL character.")
    return text


def events_of_build(connection: Connection, build_request_id: str, *, limit: int | None) -> LimitedList[Indexed]:
    """Return the events of a build request."""
    return _listed(connection, EVENTS.c.build_request_id == check_text(build_request_id), limit)


def events_of_run(connection: Connection, job_run_id: str, *, limit: int | None) -> LimitedList[Indexed]:
    """Return the events of a job run."""
    return _listed(connection, EVENTS.c.job_run_id == check_text(job_run_id), limit)


def events_of_partition(connection: Connection, partition_ref: str, *, limit: int | None) -> LimitedList[Indexed]:
    """Return the events about a partition."""
    indexes = select(EVENT_PARTITIONS.c.idx).where(EVENT_PARTITIONS.c.partition_ref == check_text(partition_ref))
    first = indexes.order_by(EVENT_PARTITIONS.c.idx).limit(_fetch_limit(limit))
    return _listed(connection, EVENTS.c.idx.in_(first), limit)


def events_between(connection: Connection, start: int, end: int, *, limit: int | None) -> LimitedList[Indexed]:
    """Return the events with a timestamp from `start` up to, not including, `end`, in the order of their indexes.

    With a limit, return the events with the lowest indexes.
    """
    start, end = (whole_number("A time in nanoseconds", time, least=-MAX_LONG) for time in (start, end))
    within = and_(EVENTS.c.timestamp >= start, EVENTS.c.timestamp < end)
    first = select(EVENTS.c.idx).where(within).order_by(EVENTS.c.timestamp, EVENTS.c.idx).limit(_fetch_limit(limit))
    events = _events(connection, _select(connection).where(EVENTS.c.idx.in_(first)))
    shown = _cut(sorted(events, key=lambda indexed: (indexed.event.timestamp, indexed.index)), limit)
    return LimitedList(sorted(shown, key=lambda indexed: indexed.index), has_more=shown.has_more)


def event_by_id(connection: Connection, event_id: str) -> Indexed | None:
    """Return one event."""
    return next(iter(_listed(connection, EVENTS.c.event_id == check_text(event_id).lower(), 1)), None)


def _listed(connection: Connection, condition: ColumnElement[bool], limit: int | None) -> LimitedList[Indexed]:
    query = _select(connection).where(condition).order_by(EVENTS.c.idx).limit(_fetch_limit(limit))
    return _cut(_events(connection, query), limit)


def _select(connection: Connection) -> Select[Any]:
    return select(*event_columns(version_of(connection)))


def _events(connection: Connection, query: Select[Any]) -> list[Indexed]:
    rows = [dict(row) for row in connection.execute(query).mappings()]
    checksums = _checksums(connection, [row["idx"] for row in rows])
    return [_event(row, checksums.get(row["idx"])) for row in rows]


def _event(row: dict[str, Any], crc: int | None) -> Indexed:
    """Return the event of a row; `crc` is its checksum, if it has one."""
    try:
        text = stored_json(row)
        if crc is None or crc == checksum(row, text):
            return Indexed(index=row["idx"], event=parse_event(text), appended_at=row.get("appended_at"))
        reason = "its checksum does not match"
    except (InvalidRequest, TypeError, ValueError) as error:
        reason = str(error)
    raise damaged(f"event {row['idx']} cannot be read: {reason}")


def _checksums(connection: Connection, indexes: Sequence[int]) -> dict[int, int]:
    """Return the checksums of the events that have one, by index."""
    driver = connection.connection.driver_connection
    if not indexes or not isinstance(driver, sqlite3.Connection):
        return {}
    checksums: dict[int, int] = {}
    try:
        for start in range(0, len(indexes), CHECKS_AT_ONCE):
            batch = indexes[start : start + CHECKS_AT_ONCE]
            marks = ", ".join("?" * len(batch))
            checksums |= dict(
                driver.execute(f"SELECT idx, crc FROM {EVENT_CHECKS.name} WHERE idx IN ({marks})", batch)  # noqa: S608
            )
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
    return checksums


def _fetch_limit(limit: int | None) -> int:
    """Return the number of entries to fetch: one more than the limit, which shows whether there are more."""
    if limit is None:
        return MAX_LIMIT + 1
    return whole_number(LIMIT, limit, least=1, most=MAX_LIMIT) + 1


def _cut(entries: Sequence[T], limit: int | None, position: Callable[[T], str] | None = None) -> LimitedList[T]:
    """Return the entries up to the limit; `position` returns the `after=` position of an entry.

    Without a limit, more entries than a list may have are refused.
    """
    most = MAX_LIMIT if limit is None else limit
    has_more = len(entries) > most
    if has_more and limit is None:
        raise InvalidRequest(
            f"There are more than {MAX_LIMIT:,} entries. Pass limit=, then after= for the next ones. "
            "For events use events() or page()."
        )
    shown = entries[:most]
    following = position(shown[-1]) if has_more and position is not None else None
    return LimitedList(shown, has_more=has_more, following=following)


def _newest_first(table: Table, name: ColumnElement[str], *, limit: int | None, after: str | None) -> Select[Any]:
    """Select entries by last event, newest first, then by name, because one event can change several partitions.

    With `after`, select the entries that follow this position.
    """
    index: ColumnElement[int] = table.c.last_index
    query = select(table).order_by(index.desc(), name).limit(_fetch_limit(limit))
    if after is None:
        return query
    number, _, last = check_text(after).partition(":")
    if not number.isdecimal() or len(number) > MAX_DIGITS or not 1 <= int(number) <= MAX_LONG:
        raise InvalidRequest(
            f"{after[:80]!r} is not a position in a list. Take it from the list before: `following`, in JSON `next`."
        )
    at = int(number)
    return query.where(index <= at, or_(index < at, name > last))


def builds(
    connection: Connection, *, limit: int | None, statuses: Iterable[BuildStatus] = (), after: str | None = None
) -> LimitedList[Build]:
    """Return build requests, latest change first."""
    query = _newest_first(BUILDS, BUILDS.c.build_request_id, limit=limit, after=after)
    if values := sorted({status.value for status in statuses}):
        query = query.where(BUILDS.c.status.in_(values))
    entries = list(_builds(connection, query))
    return _cut(entries, limit, lambda entry: f"{entry.last_index}:{entry.build_request_id}")


def build(connection: Connection, build_request_id: str) -> Build | None:
    """Return one build request."""
    query = select(BUILDS).where(BUILDS.c.build_request_id == check_text(build_request_id))
    return next(_builds(connection, query), None)


def last_build(connection: Connection, prefix: str) -> Build | None:
    """Return the build request with the greatest id, by its bytes, that starts with `prefix`."""
    query = select(BUILDS).where(matches(BUILDS.c.build_request_id, f"{check_text(prefix)}*"))
    return next(_builds(connection, query.order_by(BUILDS.c.build_request_id.desc()).limit(1)), None)


def active_builds(connection: Connection, partition_ref: str) -> list[Build]:
    """Return the build requests that have not ended and will build a partition, in the order of their first events."""
    building = select(BUILD_PARTITIONS.c.build_request_id).where(
        BUILD_PARTITIONS.c.partition_ref == check_text(partition_ref),
        BUILD_PARTITIONS.c.status.in_([status.value for status in ACTIVE_PARTITIONS]),
    )
    query = select(BUILDS).where(
        BUILDS.c.build_request_id.in_(building), BUILDS.c.status.not_in([status.value for status in ENDED_BUILDS])
    )
    return list(_builds(connection, query.order_by(BUILDS.c.first_index)))


def _builds(connection: Connection, query: Select[Any]) -> Iterator[Build]:
    for row in connection.execute(query).mappings().all():
        requested = tuple(json.loads(row["requested_partitions"]))
        yield Build(**{**row, "status": BuildStatus(row["status"]), "requested_partitions": requested})


def partitions(
    connection: Connection, *, limit: int | None, glob: str | None = None, after: str | None = None
) -> LimitedList[Partition]:
    """Return partitions, latest change first."""
    query = _newest_first(PARTITIONS, PARTITIONS.c.partition_ref, limit=limit, after=after)
    if glob is not None:
        query = query.where(matches(PARTITIONS.c.partition_ref, check_text(glob)))
    entries = list(_partitions(connection, query))
    return _cut(entries, limit, lambda entry: f"{entry.last_index}:{entry.partition_ref}")


def partition(connection: Connection, partition_ref: str) -> Partition | None:
    """Return one partition."""
    query = select(PARTITIONS).where(PARTITIONS.c.partition_ref == check_text(partition_ref))
    return next(_partitions(connection, query), None)


def _partitions(connection: Connection, query: Select[Any]) -> Iterator[Partition]:
    for row in connection.execute(query).mappings().all():
        values = {name: value for name, value in row.items() if name not in ("status", "invalidated")}
        yield Partition(**values, status=PartitionStatus(row["status"]), is_invalidated=bool(row["invalidated"]))


def runs(
    connection: Connection,
    *,
    limit: int | None,
    build_request_id: str | None = None,
    label_glob: str | None = None,
    after: str | None = None,
) -> LimitedList[JobRun]:
    """Return job runs, latest change first."""
    query = _newest_first(RUNS, RUNS.c.job_run_id, limit=limit, after=after)
    if build_request_id is not None:
        query = query.where(RUNS.c.build_request_id == check_text(build_request_id))
    if label_glob is not None:
        query = query.where(matches(RUNS.c.job_label, check_text(label_glob)))
    all_runs = [JobRun(**{**row, "status": JobStatus(row["status"])}) for row in connection.execute(query).mappings()]
    return _cut(all_runs, limit, lambda entry: f"{entry.last_index}:{entry.job_run_id}")


def summary(connection: Connection) -> Summary:
    """Return the counts of the log's content. Events were counted when they were appended."""
    counts: dict[str, dict[str, int]] = {"event": {}, "build": {}, "partition": {}, "job": {}}
    for what, number in connection.execute(select(COUNTS.c.what, COUNTS.c.number).order_by(COUNTS.c.what)):
        kind, name = what.split(" ")
        if number:
            counts[kind][name] = number
    events = sum(counts["event"].values())
    if events != next_index(connection) - 1:
        raise damaged("its counts are not those of its events")
    return Summary(
        events=events,
        events_by_type=counts["event"],
        builds=counts["build"],
        partitions=counts["partition"],
        jobs=counts["job"],
        active_builds=_count_active(counts["build"], ENDED_BUILDS),
        active_jobs=_count_active(counts["job"], ENDED_JOBS),
    )


def _count_active(counts: dict[str, int], ended: Iterable[BuildStatus] | Iterable[JobStatus]) -> int:
    return sum(counts.values()) - sum(counts.get(status.name, 0) for status in ended)
