"""Events as rows of a Delta table. Each payload type has one struct column, and exactly one of them is not null.

A file that an append writes has its events in order (`pos`). Its partition value is the index of the first event, and
is set by the commit: an event's index is ``first_index + pos``. Files with events of several appends store each
event's own index in `idx`.
"""

import datetime
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.clock import NS_PER_SECOND
from siltstone.errors import Corruption, InvalidRequest, Reason
from siltstone.eventlog.event_json import read_event
from siltstone.eventlog.events import Event, EventType, Indexed, payload_values

DAY: Final = "day"
FIRST_INDEX: Final = "first_index"
IDX: Final = "idx"
POS: Final = "pos"
APPENDED_AT: Final = "appended_at"
"""Column with the time of the append. Added in version 2."""
NS_PER_DAY: Final = 24 * 3600 * NS_PER_SECOND
_EPOCH: Final = datetime.date(1970, 1, 1)

_STATUS: Final = [pa.field("status_code", pa.int32()), pa.field("status_name", pa.string())]
_MESSAGE: Final = pa.field("message", pa.string())
_REASON: Final = pa.field("reason", pa.string())


def _texts(name: str) -> pa.Field:
    return pa.field(name, pa.list_(pa.string()))


def _text(name: str) -> pa.Field:
    return pa.field(name, pa.string())


PAYLOAD_FIELDS: Final[dict[EventType, list[pa.Field]]] = {
    EventType.BUILD_REQUEST: [*_STATUS, _texts("requested_partitions"), _MESSAGE],
    EventType.PARTITION: [_text("partition_ref"), *_STATUS, _MESSAGE, _text("job_run_id")],
    EventType.JOB: [
        *(_text("job_run_id"), _text("job_label"), _texts("target_partitions")),
        *_STATUS,
        *(_MESSAGE, _text("config"), _text("manifests")),
    ],
    EventType.DELEGATION: [_text("partition_ref"), _text("delegated_to_build_request_id"), _MESSAGE],
    EventType.JOB_GRAPH: [_text("job_graph"), _MESSAGE],
    EventType.PARTITION_INVALIDATION: [_text("partition_ref"), _REASON],
    EventType.TASK_CANCEL: [_text("job_run_id"), _REASON],
    EventType.BUILD_CANCEL: [_REASON],
}
FILE_SCHEMA: Final = pa.schema(
    [
        pa.field(IDX, pa.int64()),
        pa.field(POS, pa.int64(), nullable=False),
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("build_request_id", pa.string(), nullable=False),
        pa.field("event_type", pa.string(), nullable=False),
        *[pa.field(kind.column, pa.struct(fields)) for kind, fields in PAYLOAD_FIELDS.items()],
        pa.field(APPENDED_AT, pa.int64()),
    ]
)
"""Columns that a file may have. The table has the partition columns before them."""
TABLE_SCHEMA: Final = pa.schema([pa.field(DAY, pa.date32()), pa.field(FIRST_INDEX, pa.int64()), *FILE_SCHEMA])


def day_of(event: Event) -> str:
    """Return the day of an event in UTC, as a partition value."""
    return _day(event.timestamp // NS_PER_DAY)


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    return (_EPOCH + datetime.timedelta(days=number)).isoformat()


def to_rows(events: Sequence[Indexed], *, first_index: int) -> pa.Table:
    """Return events as rows of a file, each with its position in the append. Unused payload columns are left out."""
    plain = [indexed.event for indexed in events]
    columns: dict[str, list[Any]] = {
        POS: [indexed.index - first_index for indexed in events],
        "event_id": [event.event_id for event in plain],
        "timestamp": [event.timestamp for event in plain],
        "build_request_id": [event.build_request_id for event in plain],
        "event_type": [event.payload.type._value_ for event in plain],
        APPENDED_AT: [indexed.appended_at for indexed in events],
    }
    for kind in dict.fromkeys(columns["event_type"]):
        columns[EventType(kind).column] = [
            payload_values(event.payload) if event.payload.type._value_ == kind else None for event in plain
        ]
    schema = _schema_of(frozenset(columns))
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


@lru_cache(maxsize=256)
def _schema_of(names: frozenset[str]) -> pa.Schema:
    return pa.schema([field for field in FILE_SCHEMA if field.name in names])


def with_indexes(rows: pa.Table, *, first_index: int | None) -> pa.Table:
    """Return the rows of a file with each event's own index in `idx`."""
    indexes = rows.column(IDX) if IDX in rows.column_names else pa.nulls(rows.num_rows, pa.int64())
    if first_index is not None:
        indexes = pc.coalesce(indexes, pc.add(rows.column(POS), first_index))
    others = rows.drop_columns([IDX]) if IDX in rows.column_names else rows
    return others.append_column(pa.field(IDX, pa.int64()), indexes)


def from_rows(table: pa.Table, *, first_index: int | None, where: str, start: int = 1) -> Iterator[Indexed]:
    """Yield the indexed events of a file from index `start` on. A row that is not a valid event is Corruption."""
    table = with_indexes(table, first_index=first_index)
    for row in table.filter(pc.fill_null(pc.greater_equal(table.column(IDX), start), True)).to_pylist():  # noqa: FBT003
        index, appended_at = row.pop(IDX), row.pop(APPENDED_AT, None)
        del row[POS]
        if index is None:
            raise Corruption(
                f"{where} holds an event without an index. Restore the log from a copy.", reason=Reason.DAMAGED_FILE
            )
        try:
            values = {name: value for name, value in row.items() if value is not None}
            yield Indexed(index=index, event=read_event(values, where=f"Event {index}"), appended_at=appended_at)
        except (ValueError, KeyError, InvalidRequest) as error:
            raise Corruption(f"{where}: {error} Restore the log from a copy.", reason=Reason.DAMAGED_FILE) from error


def stats_of(count: int) -> str:
    """Return a file's statistics for the log: the number of events, and no values."""
    return json.dumps({"numRecords": count})
