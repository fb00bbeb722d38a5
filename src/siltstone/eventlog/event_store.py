"""Appends events to the tables of a log: numbers them, checks state transitions, and updates the state tables.

Flow of an append, inside one transaction of the caller, who is the only writer meanwhile:

1. look up, for all events at once, which of their ids, builds, partitions and job runs are known;
2. for each event, in memory: compare an event whose id is known, check the state transition, and apply it;
3. write all rows at once: the events, and the final states.

A crash or an error rolls the transaction back. The same code maintains a Delta log's projection. Its events were
checked before they were committed, and are only applied (`EventStore.project`).
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Table, func, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from siltstone.errors import Conflict
from siltstone.eventlog.events import (
    BuildRequestEvent,
    BuildStatus,
    DelegationEvent,
    Event,
    EventStatus,
    EventType,
    Indexed,
    JobEvent,
    JobStatus,
    PartitionEvent,
    PartitionInvalidationEvent,
    PartitionStatus,
    as_json,
    event_json,
    payload_values,
)
from siltstone.eventlog.tables import (
    BUILD_PARTITIONS,
    BUILDS,
    CHECK_METADATA,
    COUNTS,
    EVENT_CHECKS,
    EVENT_PARTITIONS,
    EVENTS,
    HEAD,
    PARTITIONS,
    RUNS,
    damaged,
)
from siltstone.eventlog.transitions import JobRunState, check

LOOKUP_KEYS: Final = 400
"""Most keys in one query, because databases limit the number of parameters."""

ROWS_AT_ONCE: Final = 200
"""Rows in one statement of SQLite."""
STATES: Final = (BUILDS, BUILD_PARTITIONS, PARTITIONS, RUNS)
"""State tables: builds, partitions of builds, partitions, and job runs."""

Row = dict[str, Any]
_HAS_CHECKS: Final = f"SELECT 1 FROM sqlite_master WHERE name = '{EVENT_CHECKS.name}'"  # noqa: S608
_COMPILED: Final[dict[str, dict[str, Any]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The index of an event, and whether it was appended now or had been before."""

    index: int
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendPlan:
    """The result of checking several appends: the new events, and for each append its answer or its refusal."""

    new: list[Indexed] = field(default_factory=list)
    answers: list[list[Appended] | Conflict] = field(default_factory=list)
    states: "StateChanges" = field(default_factory=lambda: StateChanges())  # noqa: PLW0108  # it is defined below

    def extend(self, later: "AppendPlan") -> None:
        """Add the plan of later appends."""
        self.new.extend(later.new)
        self.states.follow(later.new, later.states)


def next_index(connection: Connection) -> int:
    """Return the index of the next event. Refuse a log whose stored next index does not follow its last event."""
    stored = connection.execute(select(HEAD.c.next_index)).scalar()
    last = connection.execute(select(func.max(EVENTS.c.idx))).scalar() or 0
    if stored != last + 1:
        raise damaged(f"its last event has the index {last}, its next one would get {stored}")
    return int(stored)


class EventStore:
    """The tables of one log, within a transaction."""

    def __init__(self, connection: Connection, label: str = "The event log") -> None:
        """Use a connection whose transaction is the only one that appends. `label` names the log in errors."""
        self._connection = connection
        self._label = label

    def append(self, events: Sequence[Event], *, at: int) -> list[Appended]:
        """Check and append events with the append time `at`: all of them or, on an error, none."""
        plan = self.check([events], at=at)
        answer = plan.answers[0]
        if isinstance(answer, Conflict):
            raise answer
        self.apply(plan)
        return answer

    def check(self, batches: Sequence[Sequence[Event]], *, at: int, over: "Sequence[AppendPlan]" = ()) -> "AppendPlan":
        """Check several appends in order and number their events. A refused append does not affect the next ones.

        The tables are overlaid with the plans in `over`, oldest first, which are committed but not applied yet.
        """
        states = self._load_states([event for batch in batches for event in batch])
        for committed in over:
            states.overlay(committed.states)
        new: list[Indexed] = []
        answers: list[list[Appended] | Conflict] = []
        last = next((committed.new[-1].index for committed in reversed(over) if committed.new), None)
        first = next_index(self._connection) if last is None else last + 1
        for batch in batches:
            trial = states.copy() if len(batches) > 1 and len(batch) > 1 else states  # one event moves all or nothing
            try:
                answer, added = _check_batch(batch, trial, first + len(new), at)
            except Conflict as error:
                answers.append(Conflict(f"{self._label}: {error} The append added no event."))
                continue
            states = trial
            new += added
            answers.append(answer)
        return AppendPlan(new=new, answers=answers, states=states)

    def apply(self, plan: AppendPlan) -> None:
        """Write a plan of `check`. The tables must not have changed since."""
        self._write(plan.new, plan.states)

    def project(self, events: Sequence[Indexed]) -> None:
        """Write events that were checked and numbered before."""
        states = self._load_states([indexed.event for indexed in events])
        for indexed in events:
            states.apply(indexed.index, indexed.event)
        self._write(events, states)

    def _load_states(self, events: Sequence[Event]) -> "StateChanges":
        keys: dict[str, set[Any]] = {table.name: set() for table in STATES}
        for event in events:
            build = event.build_request_id
            keys[BUILDS.name].add(build)
            match event.payload:
                case PartitionEvent(partition_ref=ref):
                    keys[BUILD_PARTITIONS.name].add((build, ref))
                    keys[PARTITIONS.name].add(ref)
                case PartitionInvalidationEvent(partition_ref=ref):
                    keys[PARTITIONS.name].add(ref)
                case DelegationEvent(delegated_to_build_request_id=other):
                    keys[BUILDS.name].add(other)
                case _:
                    pass
            if event.job_run_id is not None:
                keys[RUNS.name].add(event.job_run_id)
        states = StateChanges(ids=dict.fromkeys(event.event_id for event in events), keys=keys)
        for row in self._rows(EVENTS, ("event_id",), states.ids):
            states.ids[row["event_id"]] = (row["idx"], stored_json(row))
        for table in STATES:
            names = tuple(column.name for column in table.primary_key)
            key = itemgetter(*names)  # of one name the value, of two a tuple
            states.rows[table.name] = {key(row): row for row in self._rows(table, names, keys[table.name])}
        return states

    def _rows(self, table: Table, names: tuple[str, ...], values: Iterable[Any]) -> Iterable[Row]:
        """Look up rows by their keys. SQLite is queried through its driver, which takes a third of the time."""
        keys = list(values)
        for start in range(0, len(keys), LOOKUP_KEYS):
            batch = keys[start : start + LOOKUP_KEYS]
            rows: Sequence[Sequence[Any]] = []
            if self._connection.dialect.name != "sqlite":
                by = [table.c[name] for name in names]
                key = by[0] if len(by) == 1 else tuple_(*by)
                rows = self._connection.execute(select(table).where(key.in_(batch))).all()
            elif (driver := self._connection.connection.driver_connection) is not None:
                parameters = tuple(batch) if len(names) == 1 else tuple(chain.from_iterable(batch))
                rows = driver.execute(_lookup_sql(table, names, len(batch)), parameters).fetchall()
            columns = [column.name for column in table.c] if rows else []
            for row in rows:
                yield dict(zip(columns, row, strict=True))

    def _write(self, events: Sequence[Indexed], states: "StateChanges") -> None:
        if not events:
            return
        rows = [_event_row(indexed) for indexed in events]
        self._run_many("events", rows)
        if self._connection.dialect.name == "sqlite":
            checksums = [{"idx": row["idx"], "crc": checksum(row, stored_json(row))} for row in rows]
            driver = self._connection.connection.driver_connection
            if driver is None or driver.execute(_HAS_CHECKS).fetchone() is None:  # a log of an earlier version
                CHECK_METADATA.create_all(self._connection)
            self._run_many("event_checks", checksums)
        self._run_many(
            "event_partitions",
            [
                {"partition_ref": ref, "idx": indexed.index}
                for indexed in events
                for ref in indexed.event.partition_refs
            ],
        )
        for table in STATES:
            self._run_many(table.name, list(states.moved[table.name].values()))
        self._run_many(
            "counts", [{"what": what, "number": number} for what, number in sorted(states.counts.items()) if number]
        )
        self._connection.execute(update(HEAD).values(next_index=events[-1].index + 1))

    def _run_many(self, what: str, rows: list[Row]) -> None:
        """Run a statement for many rows through the driver, because SQLAlchemy costs more than the database."""
        if not rows:
            return
        statement = _write_statements(self._connection.dialect)[what]
        names: list[str] | None = statement.positiontup
        if names is None:
            self._connection.exec_driver_sql(statement.string, rows)
            return
        # SQLite gets one statement for many rows: it is one step, so the driver releases the GIL once.
        placeholders = f"({', '.join('?' * len(names))})"
        for start in range(0, len(rows), ROWS_AT_ONCE):
            batch = rows[start : start + ROWS_AT_ONCE]
            all_placeholders = ", ".join([placeholders] * len(batch))
            text = statement.string.replace(f"VALUES {placeholders}", f"VALUES {all_placeholders}", 1)
            values = map(itemgetter(*names), batch)  # every table of ours has more than one column
            self._connection.exec_driver_sql(text, tuple(chain.from_iterable(values)))


@lru_cache(maxsize=4 * LOOKUP_KEYS)
def _lookup_sql(table: Table, names: tuple[str, ...], count: int) -> str:
    """Return the SQL that looks up `count` rows of a table by their keys."""
    placeholders = ", ".join(["?" if len(names) == 1 else "(?, ?)"] * count)
    key = names[0] if len(names) == 1 else f"({', '.join(names)})"
    values = f"({placeholders})" if len(names) == 1 else f"(VALUES {placeholders})"
    columns = ", ".join(column.name for column in table.c)
    return f"SELECT {columns} FROM {table.name} WHERE {key} IN {values}"  # noqa: S608  # names of our own tables


def _write_statements(dialect: Dialect) -> dict[str, Any]:
    """Return the write statements by name, compiled once per dialect.

    Inserts into state tables replace existing rows, and inserts into counts add to them.
    """
    if dialect.name in _COMPILED:
        return _COMPILED[dialect.name]
    insert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
    count = insert(COUNTS)
    added = {"number": COUNTS.c.number + count.excluded.number}
    statements: dict[str, Any] = {
        "events": insert(EVENTS),
        "event_partitions": insert(EVENT_PARTITIONS),
        "event_checks": insert(EVENT_CHECKS),
        "counts": count.on_conflict_do_update(index_elements=["what"], set_=added),
    }
    for table in STATES:
        keys = [column.name for column in table.primary_key]
        statement = insert(table)
        changed = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
        statements[table.name] = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    compiled = {what: statement.compile(dialect=dialect) for what, statement in statements.items()}
    _COMPILED[dialect.name] = compiled
    return compiled


def _check_batch(
    events: Sequence[Event], states: "StateChanges", first: int, at: int
) -> tuple[list[Appended], list[Indexed]]:
    new: list[Indexed] = []
    answers: list[Appended] = []
    for event in events:
        stored = states.ids.get(event.event_id)
        if stored is not None:
            index, other = stored
            if (other if isinstance(other, str) else event_json(other)) != event_json(event):
                raise Conflict(
                    f"Event {event.event_id} is in the log already, with another content. Use a new event id."
                )
            answers.append(Appended(index=index, is_new=False))
            continue
        check(event, states)
        index = first + len(new)
        states.apply(index, event)
        new.append(Indexed(index=index, event=event, appended_at=at))
        answers.append(Appended(index=index, is_new=True))
    return answers, new


def _event_row(indexed: Indexed) -> Row:
    event = indexed.event
    return {
        "idx": indexed.index,
        "event_id": event.event_id,
        "timestamp": event.timestamp,
        "build_request_id": event.build_request_id,
        "event_type": event.type._value_,
        "job_run_id": event.job_run_id,
        "job_label": event.job_label,
        "payload": as_json(payload_values(event.payload)),
        "appended_at": indexed.appended_at,
    }


def checksum(row: Mapping[str, Any], text: str) -> int:
    """Return the CRC-32 of a stored event; `text` is the result of `stored_json`.

    The time of the append is left out. A handle that was opened before a migration does not see that column.
    """
    return zlib.crc32(f"{row['idx']} {text}".encode())


def stored_json(row: Row) -> str:
    """Return a stored event as the line of `event_json`, without parsing its payload."""
    parts = {name: row[name] for name in ("event_id", "timestamp", "build_request_id", "event_type")}
    head = as_json(parts)
    return f'{head[:-1]},"{EventType(row["event_type"]).column}":{row["payload"]}}}'


@dataclass(slots=True)
class StateChanges:
    """The states of all builds, partitions and job runs that a batch of events refers to, and their changes."""

    ids: dict[str, tuple[int, str | Event] | None] = field(default_factory=dict)
    """Index of each event by its id, with the event or its text; None if the log lacks the event."""
    keys: dict[str, set[Any]] = field(default_factory=dict)
    """Keys that the events refer to, by table."""
    rows: dict[str, dict[Any, Row]] = field(default_factory=lambda: {table.name: {} for table in STATES})
    """Current rows, by table and key."""
    moved: dict[str, dict[Any, Row]] = field(default_factory=lambda: {table.name: {} for table in STATES})
    """Rows that events have changed, by table and key."""
    counts: "Counter[str]" = field(default_factory=Counter)

    def copy(self) -> "StateChanges":
        """Return an independent copy. Rows are shared, because they are replaced and never modified."""
        return StateChanges(
            ids=dict(self.ids),
            keys=self.keys,
            rows={name: dict(rows) for name, rows in self.rows.items()},
            moved={name: dict(rows) for name, rows in self.moved.items()},
            counts=Counter(self.counts),
        )

    def overlay(self, over: "StateChanges") -> None:
        """Replace rows of these states by the changed rows of `over`."""
        self.ids |= {ident: stored for ident in self.ids if (stored := over.ids.get(ident)) is not None}
        for name, keys in self.keys.items():
            moved = over.moved[name]
            self.rows[name].update({key: moved[key] for key in keys if key in moved})

    def follow(self, new: Sequence[Indexed], after: "StateChanges") -> None:
        """Apply new events to these states, with the resulting rows taken from `after`."""
        self.ids.update((indexed.event.event_id, (indexed.index, indexed.event)) for indexed in new)
        for name, rows in after.moved.items():
            self.moved[name].update(rows)
        self.counts.update(after.counts)

    def build(self, build_request_id: str) -> BuildStatus | None:
        """Return the status of a build request, if it is known."""
        row = self.rows[BUILDS.name].get(build_request_id)
        return BuildStatus(row["status"]) if row is not None else None

    def partition(self, build_request_id: str, partition_ref: str) -> PartitionStatus | None:
        """Return the status of a partition in a build, if it is known."""
        row = self.rows[BUILD_PARTITIONS.name].get((build_request_id, partition_ref))
        return PartitionStatus(row["status"]) if row is not None else None

    def run(self, job_run_id: str) -> JobRunState | None:
        """Return a job run, if it is known."""
        row = self.rows[RUNS.name].get(job_run_id)
        if row is None:
            return None
        return JobRunState(
            build_request_id=row["build_request_id"], job_label=row["job_label"], status=JobStatus(row["status"])
        )

    def apply(self, index: int, event: Event) -> None:
        """Apply one event to the states."""
        self.ids[event.event_id] = (index, event)
        self.counts[f"event {event.type._value_}"] += 1
        match event.payload:
            case BuildRequestEvent() as payload:
                self._apply_build(index, event, payload)
            case PartitionEvent() as payload:
                self._apply_partition(index, event, payload)
            case JobEvent() as payload:
                self._apply_job(index, event, payload)
            case PartitionInvalidationEvent(partition_ref=ref) if ref in self.rows[PARTITIONS.name]:
                row = self.rows[PARTITIONS.name][ref] | {"invalidated": 1, "last_index": index}
                self._set_row(PARTITIONS, ref, row)
            case _:
                pass

    def _apply_build(self, index: int, event: Event, payload: BuildRequestEvent) -> None:
        before = self.rows[BUILDS.name].get(event.build_request_id)
        requested = as_json(payload.requested_partitions) if payload.requested_partitions else "[]"
        row = {
            "build_request_id": event.build_request_id,
            "status": payload.status._value_,
            "message": payload.message,
            "requested_partitions": before["requested_partitions"] if before and requested == "[]" else requested,
            "created_at": before["created_at"] if before else event.timestamp,
            "updated_at": event.timestamp,
            "first_index": before["first_index"] if before else index,
            "last_index": index,
        }
        self._count_status("build", BuildStatus, before, payload.status)
        self._set_row(BUILDS, event.build_request_id, row)

    def _apply_partition(self, index: int, event: Event, payload: PartitionEvent) -> None:
        ref = payload.partition_ref
        state = {"status": payload.status._value_, "last_index": index}
        inside = {"build_request_id": event.build_request_id, "partition_ref": ref} | state
        self._set_row(BUILD_PARTITIONS, (event.build_request_id, ref), inside)
        row = {
            "partition_ref": ref,
            "message": payload.message,
            "updated_at": event.timestamp,
            "build_request_id": event.build_request_id,
            "job_run_id": payload.job_run_id,
            "invalidated": 0,
        } | state
        self._count_status("partition", PartitionStatus, self.rows[PARTITIONS.name].get(ref), payload.status)
        self._set_row(PARTITIONS, ref, row)

    def _apply_job(self, index: int, event: Event, payload: JobEvent) -> None:
        before = self.rows[RUNS.name].get(payload.job_run_id)
        row = {
            "job_run_id": payload.job_run_id,
            "build_request_id": event.build_request_id,
            "job_label": payload.job_label,
            "status": payload.status._value_,
            "message": payload.message,
            "created_at": before["created_at"] if before else event.timestamp,
            "updated_at": event.timestamp,
            "last_index": index,
        }
        self._count_status("job", JobStatus, before, payload.status)
        self._set_row(RUNS, payload.job_run_id, row)

    def _count_status(self, what: str, kinds: type[EventStatus], before: Row | None, to: EventStatus) -> None:
        if before is not None:
            self.counts[f"{what} {kinds(before['status']).name}"] -= 1
        self.counts[f"{what} {to._name_}"] += 1

    def _set_row(self, table: Table, key: object, row: Row) -> None:
        self.rows[table.name][key] = self.moved[table.name][key] = row
