"""The journal: records cycles while they run, in the lake's own event log (``_system/events``).

`records` defines the events. This module defines when they are written, and what happens if they cannot be written.

1. A cycle begins: one append with its number, settings and tiers, and every job with its input files. From then on
   `recovery` knows the unfinished jobs.
2. A job begins, and later ends with its result. These are two appends.
3. The cycle ends.

A cycle without a job is not written, so the journal of an idle lake does not grow. Its number is not used again
(`coordination.state_files`), so numbers in the journal may have gaps.

The journal decides nothing about data: the log of the table shows whether a job has committed. So an event that cannot
be written does not stop the work. It is stored and retried with the next event, and `trouble` reports it. Recovery
finds out what is missing in the end. But a journal that cannot be *read* prevents a cycle, because unfinished jobs
would be taken for absent.

While a cycle runs, its owner holds a liveness lock. The death of the process releases the lock, and the cycle is
recovered.
"""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from urllib.parse import quote

from siltstone.clock import Clock, epoch_ns
from siltstone.compaction.execution.events import CompactionEvent, CycleBegan, JobBegan, JobEnded, JobsEnded
from siltstone.compaction.execution.job import Job
from siltstone.compaction.failures import Failure
from siltstone.compaction.journal.job_commits import commits_of, version_of
from siltstone.compaction.journal.records import (
    CYCLE,
    JobRecord,
    Owner,
    Unreadable,
    config_of,
    cycle_id,
    cycle_number,
    done_of,
    graph_of,
    is_whole,
    job_event,
    job_label,
    job_summary,
    manifests_of,
    partition_ref,
    read_job,
    safe_error,
    until_of,
)
from siltstone.compaction.planning.model import JobKind, Plan
from siltstone.config import Role, Settings
from siltstone.coordination.host_identity import installation, machine
from siltstone.coordination.liveness import LivenessLock
from siltstone.dataset.store import Store
from siltstone.delta.layout import Layout, has_versions
from siltstone.delta.log_reader import LogEntry
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import Conflict, SiltstoneError, error_text
from siltstone.eventlog.events import (
    BuildRequestEvent,
    BuildStatus,
    Event,
    JobConfig,
    JobEvent,
    JobGraphEvent,
    JobStatus,
    PartitionEvent,
    PartitionStatus,
    Payload,
)
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.queries import MAX_FILTERS, Build, Filter
from siltstone.eventlog.transitions import ENDED_JOBS
from siltstone.failpoints import reach
from siltstone.host.system_errors import log_errors
from siltstone.model.reports import JobResult
from siltstone.model.roles import may_compact
from siltstone.model.units import counted

MOST_OPEN: Final = 1_000
"""Highest number of unfinished cycles that are read together. More exist only after failures for a long time."""
EVENTS_AT_ONCE: Final = 10_000
SETTLED: Final = (PartitionStatus.AVAILABLE, PartitionStatus.FAILED, PartitionStatus.DELEGATED)
OPEN: Final = (BuildStatus.RECEIVED, BuildStatus.PLANNING, BuildStatus.EXECUTING)
T = TypeVar("T")


@dataclass(slots=True)
class _Running:
    """A cycle of this process that has begun and not ended."""

    build_request_id: str
    owner: Owner
    jobs: dict[str, Job]
    liveness_lock: LivenessLock | None = None
    began: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    above: dict[tuple[str, JobKind], int | None] = field(default_factory=dict)
    """Versions of the tables that jobs commit to, from before the jobs began."""
    building: set[str] = field(default_factory=set)

    def of_ref(self, ref: str) -> set[str]:
        """Return the ids of the jobs that work on a partition."""
        return {job.id for job in self.jobs.values() if _ref(job) == ref}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableJob:
    """An open job whose record cannot be read, and the reason."""

    job: str
    label: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCycle:
    """A cycle that has not ended, as the journal records it."""

    build: Build
    jobs: tuple[JobRecord, ...]
    unreadable: tuple[UnreadableJob, ...]
    open_refs: frozenset[str]
    """Partitions without an event about their end."""

    @property
    def unfinished(self) -> list[JobRecord]:
        """Its jobs that have not ended."""
        return [record for record in self.jobs if record.status not in ENDED_JOBS]

    @property
    def owner(self) -> Owner | None:
        """Its owner; None if no record can be read."""
        return self.jobs[0].owner if self.jobs else None

    @property
    def epoch(self) -> int | None:
        """The epoch of its lease; None without a lease, and if no record can be read."""
        return self.jobs[0].epoch if self.jobs else None


class Journal:
    """The journal of one lake, and a subscriber of its cycles: one at a time. Safe to share between threads.

    Methods that read it raise Corruption or Unavailable if it cannot be read.
    """

    def __init__(
        self, layout: Layout, *, settings: Settings, clock: Clock, store: Callable[[str], Store] | None = None
    ) -> None:
        """Set up the journal. Nothing is read or written yet. `store` returns a dataset's store, to find commits."""
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._store = store
        self._opened: EventLog | None = None
        self._mutex = threading.RLock()
        self._running: _Running | None = None
        self._pending: list[Event] = []
        self.trouble: str | None = None
        """Error of the writes since the last cycle began; None if everything was written."""

    @property
    def uri(self) -> str:
        """The address of the journal."""
        return f"delta://{quote(str(self._layout.events))}"

    def log(self) -> EventLog | None:
        """Return the event log; None if nothing was ever written."""
        with self._mutex, log_errors(self._layout.events):
            exists = self._opened is not None or has_versions(self._layout.events)
        return self._open(create=False) if exists else None

    def _open(self, *, create: bool) -> EventLog:
        """Open the log once. A role that may compact may also write the journal."""
        with self._mutex:
            if self._opened is None:
                writes = may_compact(self._settings.role)
                settings = replace(self._settings, role=Role.ALL) if writes else self._settings
                self._opened = EventLog.open(self.uri, create=create, settings=settings, clock=self._clock)
            return self._opened

    def close(self) -> None:
        """Close the event log."""
        with self._mutex:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    def next_cycle(self) -> int:
        """Return the number of the next cycle: one more than the highest number in the journal."""
        log = self.log()
        last = log.last_build(CYCLE) if log is not None else None
        return (cycle_number(last.build_request_id) or 0) + 1 if last is not None else 1

    def open_cycles(self) -> list[OpenCycle]:
        """Return the cycles that have not ended, oldest first."""
        log = self.log()
        if log is None:
            return []
        builds = [b for b in log.builds(limit=MOST_OPEN, statuses=OPEN) if cycle_number(b.build_request_id) is not None]
        return [self._open_cycle(log, build) for build in sorted(builds, key=lambda build: build.first_index)]

    def _open_cycle(self, log: EventLog, build: Build) -> OpenCycle:
        runs: dict[str, list[Event]] = {}
        states: dict[str, PartitionStatus] = {}
        of_build = Filter(build_request_ids=(build.build_request_id,))
        for indexed in log.events(build.first_index, event_filter=of_build, at_once=EVENTS_AT_ONCE):
            match indexed.event.payload:
                case JobEvent(job_run_id=run):
                    runs.setdefault(run, []).append(indexed.event)
                case PartitionEvent(partition_ref=ref, status=status):
                    states[ref] = status
                case _:
                    pass
        jobs, unreadable = _read(runs)
        open_refs = frozenset(ref for ref, status in states.items() if status not in SETTLED)
        return OpenCycle(build=build, jobs=tuple(jobs), unreadable=tuple(unreadable), open_refs=open_refs)

    def cycles(self, limit: int) -> list[Build]:
        """Return the last cycles, newest first."""
        log = self.log()
        if log is None:
            return []
        builds = [build for build in log.builds(limit=limit) if cycle_number(build.build_request_id) is not None]
        return sorted(builds, key=lambda build: build.first_index, reverse=True)

    def jobs(self, limit: int, *, dataset: str | None = None) -> list[JobRecord]:
        """Return the jobs with the latest events, newest first; of one dataset, or of all."""
        log = self.log()
        if log is None:
            return []
        runs = log.runs(limit=limit, label_glob=None if dataset is None else job_label(dataset, "*"))
        order = {run.job_run_id: at for at, run in enumerate(runs) if cycle_number(run.build_request_id) is not None}
        events: dict[str, list[Event]] = {run: [] for run in order}
        for ids in _chunks(list(order), MAX_FILTERS):
            for indexed in log.events(event_filter=Filter(job_run_ids=tuple(ids)), at_once=EVENTS_AT_ONCE):
                events[indexed.event.job_run_id or ""].append(indexed.event)
        records, _ = _read(events)
        return sorted(records, key=lambda record: order[record.job])

    def on_event(self, event: CompactionEvent) -> None:
        """Write an event of a cycle."""
        match event:
            case CycleBegan(plan=plan, jobs=jobs):
                self.cycle_began(plan, jobs)
            case JobBegan(job=job):
                self.job_began(job)
            case JobEnded(job=job, result=result):
                self.job_ended(job, result)
            case JobsEnded(results=results):
                self.cycle_ended(results)
            case _:
                pass

    def cycle_began(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """Record the start of a cycle with its planned jobs."""
        with self._mutex:
            self.trouble = None
            self._pending.clear()
            if self._running is not None and self._running.liveness_lock is not None:
                self._running.liveness_lock.close()  # an error ended that cycle: recovery may settle it now
            self._running = None
            if not jobs:
                return
            self._running = running = self._start(plan.cycle, jobs)
            refs = tuple(dict.fromkeys(_ref(job) for job in jobs))
            graph = graph_of(self._settings, jobs, epoch=jobs[0].epoch)
            text = counted(len(jobs), "job")
            scheduled = [
                job_event(job, JobStatus.SCHEDULED, config=self._config(running, job), message=job.spec.trigger)
                for job in jobs
            ]
            payloads: list[Payload] = [
                BuildRequestEvent(status=BuildStatus.RECEIVED, requested_partitions=refs, message=text),
                BuildRequestEvent(status=BuildStatus.PLANNING, message=text),
                JobGraphEvent(job_graph=graph, message=text),
                *(event for ref in refs for event in _requested(ref)),
                *scheduled,
                BuildRequestEvent(status=BuildStatus.EXECUTING, message=text),
            ]
            reach("journal.before_cycle_began")
            self._send(payloads)
            reach("journal.after_cycle_began")

    def _start(self, number: int, jobs: Sequence[Job]) -> _Running:
        owner = this_process(self._clock.new_id())
        running = _Running(cycle_id(number, owner.id), owner, {job.id: job for job in jobs})
        try:
            running.liveness_lock = LivenessLock(self._layout.liveness, owner.id)
        except OSError as error:
            self.trouble = f"The owner of cycle {number} cannot write its lock file: {error}"
        return running

    def _config(self, running: _Running, job: Job) -> JobConfig:
        key = job.spec.dataset, job.spec.kind
        if key not in running.above:
            running.above[key] = None
            if self._store is not None:
                with suppress(SiltstoneError, OSError, LogChanged):
                    running.above[key] = version_of(self._store(job.spec.dataset), job.spec.kind)
        return config_of(job, running.owner, above=running.above[key])

    def job_began(self, job: Job) -> None:
        """Record the start of a job."""
        with self._mutex:
            running = self._running
            if running is None:
                return
            payloads: list[Payload] = []
            if job.id not in running.jobs:  # a part of another job
                payloads += [] if running.of_ref(_ref(job)) else _requested(_ref(job))
                running.jobs[job.id] = job
                payloads.append(job_event(job, JobStatus.SCHEDULED, config=self._config(running, job)))
            running.began[job.id] = self._now()
            payloads.append(job_event(job, JobStatus.RUNNING))
            if _ref(job) not in running.building:
                running.building.add(_ref(job))
                payloads.append(_partition(_ref(job), PartitionStatus.BUILDING, job.id))
            reach("journal.before_job_began")
            self._send(payloads)
            reach("journal.after_job_began")

    def job_ended(self, job: Job, result: JobResult) -> None:
        """Record the result or the failure of a job."""
        with self._mutex:
            running = self._running
            if running is None:
                return
            running.ended.add(job.id)
            ending = self._ending(running, job, result)
            if ending.status is not JobStatus.COMPLETED:
                (running.cancelled if ending.status is JobStatus.CANCELLED else running.failed).add(job.id)
            payloads: list[Payload] = [ending]
            ref = _ref(job)
            if running.of_ref(ref) <= running.ended:
                failed = bool(running.of_ref(ref) & (running.failed | running.cancelled))
                payloads.append(_settled(ref, job.id, failed=failed))
            reach("journal.before_job_ended")
            self._send(payloads)
            reach("journal.after_job_ended")

    def _ending(self, running: _Running, job: Job, result: JobResult) -> JobEvent:
        """Return the event that ends a job. A failed job may have committed parts, or all with its result lost."""
        commits: list[LogEntry] = []
        if self._store is not None:
            with suppress(SiltstoneError, OSError, LogChanged):  # then the job's report is used
                above = running.above.get((job.spec.dataset, job.spec.kind))
                commits = commits_of(self._store(job.spec.dataset), job.spec.kind, job.id, above=above)
        record = record_of(job, running.build_request_id, running.owner)
        began, now = running.began.get(job.id, self._now()), self._now()
        done = done_of(record, result, commits, began=began, now=now)
        sha256 = {output.path: output.sha256 for output in result.outputs}
        made = manifests_of(record, done, commits, began=began, now=now, sha256=sha256)
        landed = result.failure == Failure.COMMIT_UNKNOWN and is_whole(record, commits)
        if result.error is None or landed:
            return job_event(job, JobStatus.COMPLETED, message=job_summary(done), manifests=made)
        status = JobStatus.CANCELLED if result.failure == Failure.CANCELLED else JobStatus.FAILED
        text = safe_error(result.failure, result.error)
        if not commits:
            return job_event(job, status, message=text)
        return job_event(job, status, message=f"{text}; done before: {job_summary(done)}", manifests=made)

    def cycle_ended(self, results: Sequence[JobResult]) -> None:
        """Record the end of a cycle, and the jobs that were left."""
        with self._mutex:
            running = self._running
            if running is None:
                return
            try:
                not_run = [job for job in running.jobs.values() if job.id not in running.ended]
                refs = dict.fromkeys(map(_ref, not_run))
                failed, cancelled = len(running.failed), len(not_run) + len(running.cancelled)
                text = counted(len(results), "job")
                text += (f", {failed:,} failed" if failed else "") + (f", {cancelled:,} left" if cancelled else "")
                # a cycle is cancelled if jobs were left or cancelled, else failed if a job failed
                status = BuildStatus.FAILED if failed else BuildStatus.COMPLETED
                payloads: list[Payload] = [
                    *(job_event(job, JobStatus.CANCELLED, message="left") for job in not_run),
                    *(_settled(ref, None, failed=True, message="left") for ref in refs),
                    BuildRequestEvent(status=BuildStatus.CANCELLED if cancelled else status, message=text),
                ]
                reach("journal.before_cycle_ended")
                self._send(payloads)
                reach("journal.after_cycle_ended")
            finally:
                self._running = None
                if running.liveness_lock is not None:
                    running.liveness_lock.close()

    def _now(self) -> int:
        return epoch_ns(self._clock.now())

    def _send(self, payloads: Iterable[Payload]) -> None:
        """Append events of the running cycle, and pending events that could not be appended before."""
        running = self._running
        assert running is not None  # noqa: S101  # every caller has checked
        self._pending += [self._event(running.build_request_id, payload) for payload in payloads]
        try:
            while self._pending:
                self._open(create=True).append(*self._pending[:EVENTS_AT_ONCE])
                del self._pending[:EVENTS_AT_ONCE]
        except Conflict as error:  # recovery has ended this cycle: its events stay refused
            self._pending.clear()
            self.trouble = f"The journal refused events of cycle {running.build_request_id}: {error}"
        except Exception as error:  # noqa: BLE001  # an event that cannot be written stops no work, for any reason
            self.trouble = f"The journal cannot be written: {error_text(error)}"

    def append(self, build_request_id: str, payloads: Iterable[Payload]) -> None:
        """Append events of any cycle together, for recovery. Raise Conflict if another process was first."""
        events = [self._event(build_request_id, payload) for payload in payloads]
        for chunk in _chunks(events, EVENTS_AT_ONCE):
            self._open(create=True).append(*chunk)

    def _event(self, build_request_id: str, payload: Payload) -> Event:
        return Event(
            event_id=str(uuid.UUID(self._clock.new_id())),
            timestamp=self._now(),
            build_request_id=build_request_id,
            payload=payload,
        )


def this_process(owner: str) -> Owner:
    """Return this process as the owner of a cycle."""
    host = socket.gethostname()
    return Owner(id=owner, machine=machine(), host=host, pid=os.getpid(), installation=installation())


def _read(events: Mapping[str, Sequence[Event]]) -> tuple[list[JobRecord], list[UnreadableJob]]:
    """Read jobs from their events. Also return the open jobs that cannot be read."""
    records: list[JobRecord] = []
    unreadable: list[UnreadableJob] = []
    for run, job_events in events.items():
        try:
            records.append(read_job(job_events))
        except Unreadable as error:
            payloads = [event.payload for event in job_events if isinstance(event.payload, JobEvent)]
            if not any(payload.status in ENDED_JOBS for payload in payloads):
                unreadable.append(UnreadableJob(job=run, label=payloads[0].job_label, error=str(error)))
    return records, unreadable


def record_of(job: Job, build_request_id: str, owner: Owner) -> JobRecord:
    """Return the record of a job that this process runs."""
    spec = job.spec
    return JobRecord(
        job=job.id,
        build_request_id=build_request_id,
        cycle=job.cycle,
        kind=spec.kind,
        lane=spec.lane,
        dataset=spec.dataset,
        period=spec.period,
        owner=owner,
        epoch=job.epoch,
        trigger=spec.trigger,
        bytes=sum(file.size_bytes for file in spec.files),
        waiting_since_ms=spec.waiting_since_ms,
        files=tuple(file.path for file in spec.files),
        planned_files=len(spec.files),
        until=until_of(spec),
    )


def _ref(job: Job) -> str:
    return partition_ref(job.spec.dataset, job.spec.period)


def _partition(ref: str, status: PartitionStatus, job: str | None = None, message: str = "") -> PartitionEvent:
    return PartitionEvent(partition_ref=ref, status=status, job_run_id=job, message=message)


def _requested(ref: str) -> list[PartitionEvent]:
    return [_partition(ref, PartitionStatus.REQUESTED), _partition(ref, PartitionStatus.SCHEDULED)]


def _settled(ref: str, job: str | None, *, failed: bool, message: str = "") -> PartitionEvent:
    return _partition(ref, PartitionStatus.FAILED if failed else PartitionStatus.AVAILABLE, job, message)


def _chunks(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
