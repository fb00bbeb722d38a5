"""Totals of a lake's compactions, by tier and by dataset, counted over the journal.

Counting is pure (`add_events`) and incremental. A cache file holds the totals, the index of the next event and the id of
the last one. So only new events are read. The file can be deleted at any time. A file that cannot be read or does not
match the journal is rebuilt.
"""

import datetime
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from siltstone.clock import NS_PER_SECOND
from siltstone.compaction.journal.records import (
    Done,
    JobRecord,
    Unreadable,
    cycle_number,
    iso,
    job_label,
    read_job,
)
from siltstone.eventlog.event_json import parse_event
from siltstone.eventlog.events import BuildRequestEvent, BuildStatus, Event, Indexed, JobEvent, JobStatus, event_json
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.transitions import ENDED_BUILDS, ENDED_JOBS
from siltstone.host.user_cache import private_cache

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LAYOUT: Final = 4
"""Version of the cache file's content."""
AT_ONCE: Final = 10_000
_SUMMED: Final = tuple(number.name for number in fields(Done) if number.name != "waited_seconds")
"""Numbers of a job that are added up. Only the waiting time is a maximum."""


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Totals of jobs."""

    jobs: int = 0
    """Number of completed jobs."""
    failures: int = 0
    cancelled: int = 0
    recovered: int = 0
    """Number of jobs, of any outcome, whose end recovery has recorded."""
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_folded: int = 0
    files_deleted: int = 0
    bytes_deleted: int = 0
    rows: int = 0
    seconds: float = 0.0
    longest_wait_seconds: float = 0.0
    """Longest time in seconds between a job's due time and its start: the highest age of the backlog."""
    last_job: str | None = None
    last_lane: str | None = None
    """Tier or kind of the last job."""
    last_status: str | None = None
    last_message: str | None = None
    last_ended_at: str | None = None

    @property
    def write_amplification(self) -> float | None:
        """Bytes written to disk per byte that users wrote: the original write and all rewrites. None without a fold."""
        return (self.bytes_folded + self.bytes_after) / self.bytes_folded if self.bytes_folded else None

    def add(self, record: JobRecord) -> None:
        """Count a job that has ended."""
        self.jobs += record.status is JobStatus.COMPLETED
        self.failures += record.status is JobStatus.FAILED
        self.cancelled += record.status is JobStatus.CANCELLED
        self.recovered += record.recovered
        done = record.done
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(done, name))
        self.longest_wait_seconds = max(self.longest_wait_seconds, done.waited_seconds)
        self.last_job, self.last_lane, self.last_status = record.job, record.lane, record.status.name.lower()
        self.last_message, self.last_ended_at = record.message, iso(record.ended_at)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as plain data."""
        amplification = self.write_amplification
        return asdict(self) | {
            "seconds": round(self.seconds, 3),
            "write_amplification": None if amplification is None else round(amplification, 3),
        }


@dataclass(slots=True, kw_only=True)
class Totals:
    """Totals of all cycles, and of each lane and each dataset."""

    cycles: int = 0
    cycles_failed: int = 0
    last_cycle: str | None = None
    last_cycle_status: str | None = None
    last_cycle_seconds: float | None = None
    last_cycle_at: str | None = None
    all: Statistics = field(default_factory=Statistics)
    lanes: dict[str, Statistics] = field(default_factory=dict)
    datasets: dict[str, Statistics] = field(default_factory=dict)
    done_at: dict[str, int] = field(default_factory=dict)
    """Time of the last completed job of each label, in nanoseconds."""
    next_index: int = 1
    last_event: str | None = None
    begun: dict[str, int] = field(default_factory=dict)
    """Start times of the cycles that have not ended, by cycle."""
    scheduled: dict[str, list[str]] = field(default_factory=dict)
    """Events as JSON of the jobs that have not ended, by job. They are few, and are removed when the job ends."""

    def add(self, record: JobRecord) -> None:
        """Count a job that has ended."""
        self.all.add(record)
        if record.status is JobStatus.COMPLETED:
            self.done_at[job_label(record.dataset, record.lane)] = record.ended_at or 0
        self.lanes.setdefault(record.lane, Statistics()).add(record)
        self.datasets.setdefault(record.dataset, Statistics()).add(record)

    def add_cycle(self, event: Event, status: BuildStatus) -> None:
        """Count an event about a cycle. Other build requests are skipped."""
        if cycle_number(event.build_request_id) is None:
            return
        if status is BuildStatus.RECEIVED:
            self.begun[event.build_request_id] = event.timestamp
        if status not in ENDED_BUILDS:
            return
        began = self.begun.pop(event.build_request_id, event.timestamp)
        self.cycles += 1
        self.cycles_failed += status is BuildStatus.FAILED
        self.last_cycle, self.last_cycle_status = event.build_request_id, status.name.lower()
        self.last_cycle_at = iso(event.timestamp)
        self.last_cycle_seconds = round((event.timestamp - began) / NS_PER_SECOND, 3)

    def last_done(self, dataset: str, lane: str) -> datetime.datetime | None:
        """Return the time of a dataset's last completed job of a lane; None before the first."""
        at = self.done_at.get(job_label(dataset, lane))
        return None if at is None else datetime.datetime.fromtimestamp(at / NS_PER_SECOND, datetime.UTC)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as plain data for people and machines."""
        last = ("last_cycle", "last_cycle_status", "last_cycle_seconds", "last_cycle_at")
        return {
            **{name: getattr(self, name) for name in ("cycles", "cycles_failed", *last)},
            **self.all.to_dict(),
            "lanes": {name: lane.to_dict() for name, lane in sorted(self.lanes.items())},
            "datasets": {name: dataset.to_dict() for name, dataset in sorted(self.datasets.items())},
        }


@cache
def _cached() -> "TypeAdapter[tuple[int, Totals]]":
    """Return the reader and writer of the cache file: its `LAYOUT`, then the totals."""
    from pydantic import TypeAdapter  # takes time to import, and most commands read no totals

    return TypeAdapter(tuple[int, Totals])


def add_events(totals: Totals, events: Iterable[Indexed]) -> Totals:
    """Add events to the totals, in their order. Events that are not of our cycles and jobs are skipped."""
    under_way = {run: [parse_event(text) for text in texts] for run, texts in totals.scheduled.items()}
    for indexed in events:
        totals.next_index, totals.last_event = indexed.index + 1, indexed.event.event_id
        match indexed.event.payload:
            case BuildRequestEvent(status=status):
                totals.add_cycle(indexed.event, status)
            case JobEvent(job_run_id=run, status=status):
                job_events = under_way.setdefault(run, [])
                job_events.append(indexed.event)
                if status in ENDED_JOBS:
                    del under_way[run]
                    with suppress(Unreadable):
                        totals.add(read_job(job_events))
            case _:
                pass
    totals.scheduled = {run: [event_json(event) for event in job_events] for run, job_events in under_way.items()}
    return totals


def cache_path(log: EventLog) -> Path:
    """Return the path of the cache file with the totals of a journal."""
    return private_cache("eventlog") / f"{hashlib.sha256(log.uri.encode()).hexdigest()[:24]}.totals.json"


def totals_of(log: EventLog, path: Path) -> Totals:
    """Return the totals of a journal. Read only events that are newer than the cache file, and update that file."""
    totals = _loaded(log, path)
    before = totals.next_index
    add_events(totals, log.events(before, at_once=AT_ONCE))
    if totals.next_index != before:
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(OSError):  # the totals can be counted again
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(_cached().dump_json((LAYOUT, totals)))
            draft.replace(path)
    return totals


def _loaded(log: EventLog, path: Path) -> Totals:
    """Read the cached totals; empty totals if there is no valid file of this log."""
    try:
        layout, totals = _cached().validate_json(path.read_bytes())
    except (OSError, ValueError):
        return Totals()
    if layout != LAYOUT or totals.next_index == 1:
        return Totals()
    last = log.page(totals.next_index - 1, limit=1).events
    is_same = bool(last) and last[0].index == totals.next_index - 1 and last[0].event.event_id == totals.last_event
    return totals if is_same else Totals()
