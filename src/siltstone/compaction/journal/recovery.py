"""Recovery: settles what crashed cycles, jobs and writers left, before each cycle and at recovery_cron.

1. Cycles that the journal shows as open. Each of their jobs has one of three outcomes:

   * *still running*: the owner of the cycle is alive. The planner leaves the files of the job alone. An owner that
     lost its lease to us may hang for ever, so its files are free. The commit check decides between it and us.
   * *completed*: the owner is dead, and commits in the log of the table cover the whole job.
   * *failed*: the owner is dead, and its commits do not cover the job. The journal gets the numbers of the committed
     parts. The files are free, and the next plan takes the rest.

   The log of the table decides, never the journal. While that log cannot be read, the job counts as still running, and
   each recovery reports the problem. After 7 days the job counts as failed, so that its files are not blocked for
   ever.
2. Datasets: finish an interrupted alteration, prune changes that base holds, sweep files of dead owners. A dataset
   that cannot be read is reported, and the other datasets are recovered.
3. The lake: sweep folders of crashed creates and drops, and liveness locks of dead processes.

Recovery is idempotent. It can run at any time and in several processes at once. After a crash of recovery the next one
does the rest. `owner_liveness` decides whether an owner is dead.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from siltstone.clock import NS_PER_MS, Clock
from siltstone.compaction.journal.job_commits import commits_of
from siltstone.compaction.journal.journal import Journal, OpenCycle
from siltstone.compaction.journal.owner_liveness import Holder, OwnerLiveness, OwnerState
from siltstone.compaction.journal.records import (
    RECOVERED,
    Done,
    JobRecord,
    done_of,
    is_whole,
    job_label,
    job_summary,
    manifests_of,
)
from siltstone.compaction.planning.model import JobKind, UnfinishedJob
from siltstone.coordination.liveness import sweep_dead
from siltstone.dataset.orphan_folders import sweep
from siltstone.dataset.registry import Registration, Registry
from siltstone.dataset.store import Store
from siltstone.delta.layout import Layout
from siltstone.delta.log_reader import LogEntry
from siltstone.errors import Conflict, Gone, NotFound, error_text
from siltstone.eventlog.compaction import LIVENESS_FOLDER
from siltstone.eventlog.events import (
    BuildRequestEvent,
    BuildStatus,
    JobEvent,
    JobStatus,
    PartitionEvent,
    PartitionStatus,
    Payload,
)
from siltstone.failpoints import reach
from siltstone.model.names import DatasetName
from siltstone.model.units import counted

if TYPE_CHECKING:
    from siltstone.compaction.operations.dataset_maintenance import DatasetMaintenance

STALE_HOURS: Final = 7 * 24.0
"""Hours after which a dead owner's job counts as failed although the log of its table cannot be read."""
SWEEP_HOURS: Final = 1.0
"""Hours between two listings of all files of a dataset to find orphans. A process lists in its first recovery."""

_REPEAT: Final = {JobKind.VACUUM: "; a vacuum can be repeated", JobKind.PURGE: "; request the purge again"}
"""Next step for jobs that do more than commit. Their commits do not prove that they are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryProblem:
    """A dataset or a record of a job that cannot be read. It is never taken for absent."""

    subject: str
    error: str
    dataset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """Outcome of a recovery. The sum of two reports is the report of both."""

    completed: tuple[str, ...] = ()
    """Jobs of dead owners whose commits cover the whole job."""
    failed: tuple[str, ...] = ()
    """All other jobs of dead owners."""
    running: tuple[UnfinishedJob, ...] = ()
    """Jobs that are not settled. The planner leaves their files alone."""
    problems: tuple[RecoveryProblem, ...] = ()
    files_swept: int = 0
    folders_swept: int = 0

    def __add__(self, other: "RecoveryReport") -> "RecoveryReport":
        return RecoveryReport(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def summary(self) -> str:
        """Return the changes in one line; empty if nothing was changed.

        >>> RecoveryReport(completed=("j1",), files_swept=2).summary()
        '1 job completed, 2 files swept'
        """
        parts = (
            (len(self.completed), "job", "completed"),
            (len(self.failed), "job", "failed"),
            (self.files_swept, "file", "swept"),
            (self.folders_swept, "folder", "swept"),
        )
        return ", ".join(f"{counted(count, noun)} {verb}" for count, noun, verb in parts if count)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, without the paths of files."""
        running = [{"job": job.job, "dataset": job.dataset, "kind": str(job.kind)} for job in self.running]
        return {**asdict(self), "running": running}


class Recovery:
    """Recovers one lake. Use one object per process: it remembers the time of its last sweep."""

    def __init__(
        self,
        journal: Journal,
        *,
        registry: Registry,
        layout: Layout,
        operations: "DatasetMaintenance",
        clock: Clock,
        holder: Holder,
    ) -> None:
        """Set up for one lake; `holder` returns the holder of the lake's lease."""
        self._journal = journal
        self._registry = registry
        self._layout = layout
        self._operations = operations
        self._clock = clock
        self.owners = OwnerLiveness(layout.liveness, clock=clock, holder=holder)
        self._swept: dict[Path, float] = {}

    def unsettled(self) -> RecoveryReport:
        """Return the jobs that are not settled, and records that cannot be read. Nothing is changed."""
        return sum(map(_still_running, self._journal.open_cycles()), RecoveryReport())

    def run(self, *, epoch: int | None = None, sweep_all: bool = False) -> RecoveryReport:
        """Recover the lake.

        Args:
            epoch: epoch of our lease, if we hold it. An owner with a lower epoch has lost the lease.
            sweep_all: list the files of every dataset now, even if that was done within the last hour.

        Raises:
            Corruption, Unavailable: the journal or the registry cannot be read. Then no cycle may begin, because
                unfinished jobs are not known.
        """
        report = sum((self._recover_cycle(cycle, epoch) for cycle in self._journal.open_cycles()), RecoveryReport())
        reach("recovery.after_cycles")
        for registration in self._registry.all():
            report += self._recover_dataset(registration, sweep_all=sweep_all)
        reach("recovery.after_datasets")
        if self._is_due(self._layout.root, always=sweep_all):
            report += RecoveryReport(folders_swept=len(sweep(self._registry, self._layout)))
            for folder in (self._layout.liveness, self._layout.events / LIVENESS_FOLDER):
                sweep_dead(folder)
        return report

    def _recover_cycle(self, cycle: OpenCycle, epoch: int | None) -> RecoveryReport:
        state = self.owners.state(cycle, epoch)
        if state is OwnerState.SUPERSEDED:
            return RecoveryReport()  # the owner may still report its end; its files are free
        if state is OwnerState.ALIVE:
            return _still_running(cycle)
        report = RecoveryReport(problems=_record_problems(cycle), failed=tuple(job.job for job in cycle.unreadable))
        message = "its record cannot be read"
        events: list[Payload] = [
            JobEvent(job_run_id=job.job, job_label=job.label, status=JobStatus.FAILED, message=message)
            for job in cycle.unreadable
        ]
        for record in cycle.unfinished:
            outcome, ending = self._settle(record)
            report += outcome
            events += ending
        if not report.running:
            events += _cycle_ending(cycle, report)
        if not events:
            return report
        reach("recovery.before_events")
        try:
            self._journal.append(cycle.build.build_request_id, events)
        except Conflict:  # another process recovers this cycle, or its owner is alive: their events count
            return _still_running(cycle)
        reach("recovery.after_events")
        return report

    def _settle(self, record: JobRecord) -> tuple[RecoveryReport, list[Payload]]:
        """Settle one job of a dead owner. Return the outcome and the events that record it."""
        try:
            store = self._store(record.dataset)
            commits = commits_of(store, record.kind, record.job, above=record.above) if store is not None else []
            if is_whole(record, commits):
                events = _job_ending(record, commits, JobStatus.COMPLETED, "its process died after the commit")
                return RecoveryReport(completed=(record.job,)), events
            when = "before the rest was done" if commits else "before the commit"
            text = f"its process died{_REPEAT.get(record.kind, f' {when}')}"
            return RecoveryReport(failed=(record.job,)), _job_ending(record, commits, JobStatus.FAILED, text)
        except Exception as error:  # noqa: BLE001  # an error of any kind with one job does not stop the others' recovery
            if self.owners.age_hours(record.scheduled_at) > STALE_HOURS:
                text = "its process died, and the log of its table cannot be read"
                return RecoveryReport(failed=(record.job,)), _job_ending(record, (), JobStatus.FAILED, text)
            problem = RecoveryProblem(subject=f"job {record.job}", error=error_text(error), dataset=record.dataset)
            return RecoveryReport(running=(record.unfinished(),), problems=(problem,)), []

    def _store(self, dataset: str) -> Store | None:
        """Return the store of a dataset; None for a dropped dataset and for a system table."""
        if dataset.startswith("_"):
            return None
        try:
            return self._registry.store(self._registry.find(DatasetName.parse(dataset)))
        except (NotFound, Gone):
            return None

    def _recover_dataset(self, registration: Registration, *, sweep_all: bool) -> RecoveryReport:
        store = self._registry.store(registration)
        problem: Exception | None = None
        try:
            if self._is_due(store.path, always=sweep_all):
                return RecoveryReport(files_swept=self._operations.recover(store))
            self._operations.catch_up(store)
        except Gone:
            problem = self._registry.broken(registration)  # None: the dataset was dropped after it was listed
        except Exception as error:  # noqa: BLE001  # an error of any kind with one dataset does not stop the others' recovery
            problem = error
        if problem is None:
            return RecoveryReport()
        name = str(registration.name)
        unread = RecoveryProblem(subject=f"dataset {name}", error=error_text(problem), dataset=name)
        return RecoveryReport(problems=(unread,))

    def _is_due(self, folder: Path, *, always: bool) -> bool:
        """True if all files of a folder are to be listed now: on the first call, then every `SWEEP_HOURS`."""
        now = self._clock.monotonic_seconds()
        is_due = always or now - self._swept.get(folder, -math.inf) >= SWEEP_HOURS * 3600
        if is_due:
            self._swept[folder] = now
        return is_due


def _still_running(cycle: OpenCycle) -> RecoveryReport:
    running = tuple(record.unfinished() for record in cycle.unfinished)
    return RecoveryReport(running=running, problems=_record_problems(cycle))


def _record_problems(cycle: OpenCycle) -> tuple[RecoveryProblem, ...]:
    return tuple(RecoveryProblem(subject=f"record of job {job.job}", error=job.error) for job in cycle.unreadable)


def _job_ending(record: JobRecord, commits: Sequence[LogEntry], status: JobStatus, text: str) -> list[Payload]:
    """Return the events that end a job with its committed parts. A completed job without a start gets one."""
    began = record.began_at or record.scheduled_at
    ended = max((entry.at_ms for entry in commits), default=0) * NS_PER_MS
    done = done_of(record, None, commits, began=began, now=ended) if commits else Done()
    note = {RECOVERED: status.name.lower()}
    made = manifests_of(record, done, commits, began=began, now=ended, sha256={}, note=note)
    label = job_label(record.dataset, record.lane)
    event = partial(JobEvent, job_run_id=record.job, job_label=label, target_partitions=(record.ref,))
    begins = status is JobStatus.COMPLETED and record.status is JobStatus.SCHEDULED
    message = f"{job_summary(done)}; {text}" if commits else text
    return [
        *([event(status=JobStatus.RUNNING)] if begins else []),
        event(status=status, message=message, manifests=made),
    ]


def _cycle_ending(cycle: OpenCycle, report: RecoveryReport) -> list[Payload]:
    """Return the events that end the cycle of a dead owner: one per open partition, and one for the cycle."""
    done = {record.job for record in cycle.jobs if record.status is JobStatus.COMPLETED} | set(report.completed)
    refs: dict[str, bool] = {}
    for record in cycle.jobs:
        refs[record.ref] = refs.get(record.ref, True) and record.job in done
    events: list[Payload] = [
        PartitionEvent(
            partition_ref=ref,
            status=PartitionStatus.AVAILABLE if succeeded else PartitionStatus.FAILED,
            message="recovered",
        )
        for ref, succeeded in refs.items()
        if ref in cycle.open_refs
    ]
    whole = all(refs.values()) and not cycle.unreadable and cycle.build.status is BuildStatus.EXECUTING
    text = f"its process died; {counted(len(report.completed), 'job')} completed, {len(report.failed):,} failed"
    events.append(BuildRequestEvent(status=BuildStatus.COMPLETED if whole else BuildStatus.FAILED, message=text))
    return events
