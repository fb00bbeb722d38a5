"""The SQL tables of a log: the events in order, and derived states, so every query is an index seek.

`build_events` is the log, and the only source of events. The other tables are derived from it as events are appended
(`event_store`). They have the states of builds, partitions and job runs, and the events of each partition. They could
be rebuilt from the events at any time.

Text is compared by its bytes in all databases: in PostgreSQL by the collation "C".
"""

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, SmallInteger, String, Table, Text
from sqlalchemy.dialects import postgresql

from siltstone.errors import Corruption, Reason

METADATA: Final = MetaData()


def _text() -> Text:
    return Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


HEAD: Final = Table(
    "event_log",
    METADATA,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("schema_version", SmallInteger, nullable=False),
    Column("next_index", BigInteger, nullable=False),
)
"""One row: the log's version and the index of the next event. An append locks it."""

EVENTS: Final = Table(
    "build_events",
    METADATA,
    Column("idx", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", String(36).with_variant(postgresql.VARCHAR(36, collation="C"), "postgresql"), nullable=False),
    Column("timestamp", BigInteger, nullable=False),
    Column("build_request_id", _text(), nullable=False),
    Column("event_type", _text(), nullable=False),
    Column("job_run_id", _text()),
    Column("job_label", _text()),
    Column("payload", _text(), nullable=False),
    Column("appended_at", BigInteger),
    Index("build_events_by_id", "event_id", unique=True),
    Index("build_events_by_time", "timestamp", "idx"),
    Index("build_events_by_build", "build_request_id", "idx"),
    Index("build_events_by_run", "job_run_id", "idx"),
    Index("build_events_by_label", "job_label", "idx"),
)
EVENT_PARTITIONS: Final = Table(
    "event_partitions",
    METADATA,
    Column("partition_ref", _text(), primary_key=True),
    Column("idx", BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
BUILDS: Final = Table(
    "builds",
    METADATA,
    Column("build_request_id", _text(), primary_key=True),
    Column("status", SmallInteger, nullable=False),
    Column("message", _text(), nullable=False),
    Column("requested_partitions", _text(), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("first_index", BigInteger, nullable=False),
    Column("last_index", BigInteger, nullable=False),
    Index("builds_by_last", "last_index"),
    Index("builds_by_status", "status", "last_index"),
)
BUILD_PARTITIONS: Final = Table(
    "build_partitions",
    METADATA,
    Column("build_request_id", _text(), primary_key=True),
    Column("partition_ref", _text(), primary_key=True),
    Column("status", SmallInteger, nullable=False),
    Column("last_index", BigInteger, nullable=False),
    Index("build_partitions_by_ref", "partition_ref", "status"),
    sqlite_with_rowid=False,
)
PARTITIONS: Final = Table(
    "partitions",
    METADATA,
    Column("partition_ref", _text(), primary_key=True),
    Column("status", SmallInteger, nullable=False),
    Column("message", _text(), nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("last_index", BigInteger, nullable=False),
    Column("build_request_id", _text(), nullable=False),
    Column("job_run_id", _text()),
    Column("invalidated", SmallInteger, nullable=False),
    Index("partitions_by_last", "last_index"),
)
RUNS: Final = Table(
    "job_runs",
    METADATA,
    Column("job_run_id", _text(), primary_key=True),
    Column("build_request_id", _text(), nullable=False),
    Column("job_label", _text(), nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("message", _text(), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("last_index", BigInteger, nullable=False),
    Index("job_runs_by_last", "last_index"),
    Index("job_runs_by_build", "build_request_id", "last_index"),
    Index("job_runs_by_status", "status"),
)
COUNTS: Final = Table(
    "event_counts",
    METADATA,
    Column("what", _text(), primary_key=True),
    Column("number", BigInteger, nullable=False),
)
"""Number of events of each type, because counting all rows would read them."""

CHECK_METADATA: Final = MetaData()
EVENT_CHECKS: Final = Table(
    "event_checks",
    CHECK_METADATA,
    Column("idx", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=False),
    Column("crc", BigInteger, nullable=False),
)
"""CRC-32 of each event, in SQLite only, which has no checksums. Events of earlier versions of Siltstone have none."""

PROJECTION_METADATA: Final = MetaData()
PROJECTED: Final = Table(
    "projected",
    PROJECTION_METADATA,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("layout", SmallInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("commit_id", _text()),
)
"""State of a projection: its layout, the version of the table that it has reached, and that version's commit id."""


ADDED: Final[dict[int, tuple[Column[Any], ...]]] = {2: (EVENTS.c.appended_at,)}
"""Columns that each version has added. All of them are nullable."""
VERSION: Final = "siltstone.eventlog.version"
"""Key under which a connection stores the version of its tables."""


def damaged(finding: str) -> Corruption:
    """Return the error of a log whose tables contradict themselves."""
    return Corruption(f"The event log is damaged: {finding}. Restore it from a copy.", reason=Reason.DAMAGED_FILE)


def event_columns(version: int) -> list[Column[Any]]:
    """Return the columns of an event in tables of a version."""
    newer = {column.name for since, columns in ADDED.items() if since > version for column in columns}
    return [column for column in EVENTS.c if column.name not in newer]


def version_of(connection: Connection) -> int:
    """Return the version of a connection's tables."""
    return int(connection.info[VERSION])
