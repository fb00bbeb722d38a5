"""Recovery: what crashed cycles, jobs and writers left, put in order on start and before each cycle.

1. Cycles that the journal has not seen ending. One whose owner lives is left alone, and the planner is told which files its jobs
   have; not if the owner has lost the lease to us, because it may hang for ever, and the commit decides between it and us. Of a
   dead owner's jobs each is either

   * *rolled forward*: the log of its table has a commit of this job, so it is done, and the journal is told;
   * *partly done*: it was halved, and the log has commits of some parts only. The journal is told what these did; what is left
     is free again; or
   * *abandoned*: there is no such commit, so nothing was changed, and its files are free again.

   Which of these is read from the commit log alone. Where that cannot be read the job is neither: it is *quarantined*, reported
   each time, and its dataset is left alone.
2. Datasets: an alteration is finished, what base holds is pruned from `changes`, files of dead owners are swept. One that cannot
   be read is quarantined, and the others go on.
3. The lake: folders of crashed creates and drops, presences of dead processes.

Records that nobody could settle for 7 days are reported once more and ended as failed, so that they block nothing for ever. A
cycle whose owner lives is none of these, however old it is.

Recovery can be run at any time, by any number of processes, and can itself crash anywhere: every step is one that the next
recovery finds done or does. Who is dead, `owner_liveness` says.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from siltstone.clock import Clock
from siltstone.compaction.journal.job_commits import commits_of
from siltstone.compaction.journal.journal import Journal, OpenCycle
from siltstone.compaction.journal.owner_liveness import Holder, Life, Owners
from siltstone.compaction.journal.records import (
    RECOVERED,
    JobRecord,
    done_of,
    is_whole,
    iso,
    job_label,
    manifests_of,
    safe_error,
    told,
)
from siltstone.compaction.planning.model import JobKind, UnfinishedJob
from siltstone.coordination.liveness import sweep_dead
from siltstone.dataset.orphan_folders import sweep
from siltstone.dataset.registry import Registration, Registry
from siltstone.dataset.store import Store
from siltstone.delta.layout import Layout
from siltstone.delta.log_reader import LogEntry
from siltstone.delta.table_reader import LogMoved
from siltstone.errors import Conflict, Gone, NotFound, SiltstoneError
from siltstone.eventlog.events import (
    BuildRequestEvent,
    BuildStatus,
    JobEvent,
    JobStatus,
    PartitionEvent,
    PartitionManifest,
    PartitionStatus,
    Payload,
)
from siltstone.eventlog.local_table import PRESENCE
from siltstone.eventlog.transitions import ENDED_JOBS
from siltstone.failpoints import reach
from siltstone.model.names import DatasetName
from siltstone.model.units import counted

if TYPE_CHECKING:
    from siltstone.compaction.operations.dataset_maintenance import Compactor

STALE_HOURS: Final = 7 * 24.0
"""Records that nobody could settle for so long are reported and ended."""
SWEEP_HOURS: Final = 1.0
"""How often a process lists all files of a dataset to find orphans, besides once when it starts."""

_NOTHING: Final = "and it has committed nothing"
_PARTLY: Final = "its process died before the other parts, which are planned anew"
_NOTHING_OF: Final = {
    JobKind.VACUUM: "and a vacuum can be repeated",
    JobKind.PURGE: "and nothing tells how far it came; ask for the purge again",
}
"""What is said of jobs that do more than they commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """Something that cannot be read: what, why, and since when. It is never taken for absent."""

    what: str
    why: str
    since: str | None = None
    dataset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery found and did."""

    rolled_forward: tuple[str, ...] = ()
    """Jobs of dead owners that had committed."""
    partly: tuple[str, ...] = ()
    """Jobs of dead owners that had committed some of their parts."""
    abandoned: tuple[str, ...] = ()
    """Jobs of dead owners that had not committed."""
    unfinished: tuple[UnfinishedJob, ...] = ()
    """Jobs that are under way, or of which nobody can tell: nobody else takes their files."""
    quarantined: tuple[Quarantined, ...] = ()
    expired: tuple[str, ...] = ()
    """Jobs and cycles that nobody could settle for 7 days, ended now."""
    files_swept: int = 0
    folders_swept: int = 0

    @property
    def did_something(self) -> bool:
        """True if there is something to tell."""
        jobs = self.rolled_forward or self.partly or self.abandoned or self.expired
        return bool(jobs or self.quarantined or self.folders_swept)

    def told(self) -> str:
        """Say in a line what was done; empty if nothing was."""
        parts = (
            (len(self.rolled_forward), "jobs rolled forward"),
            (len(self.partly), "jobs partly done"),
            (len(self.abandoned), "jobs abandoned"),
            (len(self.expired), "records older than 7 days ended"),
            (self.files_swept, "files swept"),
            (self.folders_swept, "folders swept"),
        )
        return ", ".join(f"{count:,} {what}" for count, what in parts if count)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data; of unfinished jobs without the paths of their files."""
        found = asdict(self)
        found["unfinished"] = [
            {"job": one.job, "dataset": one.dataset, "kind": str(one.kind)} for one in self.unfinished
        ]
        return found


@dataclass(slots=True)
class _Found:
    rolled_forward: list[str] = field(default_factory=list)
    partly: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    unfinished: list[UnfinishedJob] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    files_swept: int = 0
    folders_swept: int = 0

    def report(self) -> RecoveryReport:
        return RecoveryReport(
            rolled_forward=tuple(self.rolled_forward),
            partly=tuple(self.partly),
            abandoned=tuple(self.abandoned),
            unfinished=tuple(self.unfinished),
            quarantined=tuple(self.quarantined),
            expired=tuple(self.expired),
            files_swept=self.files_swept,
            folders_swept=self.folders_swept,
        )


class Recovery:
    """Recovers one lake. Keep one for as long as a process runs cycles: it remembers when it has swept."""

    def __init__(
        self,
        journal: Journal,
        *,
        registry: Registry,
        layout: Layout,
        compactor: "Compactor",
        clock: Clock,
        holder: Holder,
    ) -> None:
        """Take what it looks at; `holder` says who holds the lease of the lake."""
        self._journal = journal
        self._registry = registry
        self._layout = layout
        self._compactor = compactor
        self._clock = clock
        self._owners = Owners(layout.work, clock=clock, holder=holder)
        self._swept: dict[Path, float] = {}

    def look(self) -> RecoveryReport:
        """Say what is unfinished, and what cannot be read; nothing is changed.

        Raises:
            Corruption, Unavailable: the journal cannot be read.
        """
        found = _Found()
        for cycle in self._journal.open_cycles():
            self._leave(cycle, found)
        return found.report()

    def run(self, *, epoch: int | None = None, sweep_all: bool = False) -> RecoveryReport:
        """Recover.

        Args:
            epoch: that of our lease, if we hold one: who has a lower one is dead.
            sweep_all: list the files of every dataset now, also if that was done a moment ago.

        Raises:
            Corruption, Unavailable: the journal, or the registry, cannot be read. What is unfinished is not known then, so no
                cycle should begin.
        """
        found = _Found()
        for cycle in self._journal.open_cycles():
            self._recover_cycle(cycle, found, epoch)
        reach("recovery.after_cycles")
        for registration in self._registry.all():
            self._recover_dataset(registration, found, sweep_all=sweep_all)
        reach("recovery.after_datasets")
        if self._is_due(self._layout.root, always=sweep_all):
            found.folders_swept = len(sweep(self._registry, self._layout))
            for folder in (self._layout.work, self._layout.events / PRESENCE):
                sweep_dead(folder)
        return found.report()

    # ---- cycles ----------------------------------------------------------------------------------------------------

    def _recover_cycle(self, cycle: OpenCycle, found: _Found, epoch: int | None) -> None:
        is_old = self._owners.age_hours(cycle.build.created_at) > STALE_HOURS
        life = self._owners.life(cycle, epoch)
        if life is Life.LIVES or (life is Life.UNKNOWN and not is_old):
            self._leave(cycle, found)
            return
        if life is Life.OVERTAKEN and not is_old:
            return  # it may still say itself how it ended; its files are free
        judged = _Found()
        payloads: list[Payload] = []
        for record in cycle.jobs:
            if record.status not in ENDED_JOBS:
                payloads += self._judge(record, judged, is_old=is_old)
        for run, why in cycle.unreadable.items():
            payloads += self._judge_unreadable(cycle, run, why, judged, is_old=is_old)
        if not judged.unfinished and not judged.quarantined:
            payloads += _endings(cycle, judged)
        if not payloads:
            _add(found, judged)
            return
        reach("recovery.before_events")
        try:
            self._journal.append(cycle.build.build_request_id, payloads)
        except (
            Conflict
        ):  # another process recovers the same cycle, or its owner lives after all: what they wrote counts
            self._leave(cycle, found)
            return
        reach("recovery.after_events")
        _add(found, judged)

    def _leave(self, cycle: OpenCycle, found: _Found) -> None:
        found.unfinished += [record.unfinished() for record in cycle.jobs if record.status not in ENDED_JOBS]
        found.quarantined += [_unreadable(cycle, run, why) for run, why in cycle.unreadable.items()]

    def _judge(self, record: JobRecord, judged: _Found, *, is_old: bool) -> list[Payload]:
        """Settle a dead job; where nobody can tell what became of it, whatever the reason, it is left alone until it is old."""
        settled = _Found()
        try:
            payloads = self._settle(record, settled, is_old=is_old)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one job keeps no other from its recovery
            if is_old:
                judged.expired.append(record.job)
                return _ending(record, JobStatus.FAILED, f"not settled for 7 days: {_safe(error)}")
            judged.unfinished.append(record.unfinished())
            judged.quarantined.append(
                Quarantined(
                    what=f"job {record.job}", why=_why(error), since=iso(record.scheduled_at), dataset=record.dataset
                )
            )
            return []
        _add(judged, settled)
        return payloads

    def _settle(self, record: JobRecord, judged: _Found, *, is_old: bool) -> list[Payload]:
        """Roll a job forward, or abandon it, by its commits."""
        commits = self._commits(record)
        if is_whole(record, commits):
            judged.rolled_forward.append(record.job)
            return self._made(record, commits, JobStatus.COMPLETED, "rolled forward")
        if commits and record.kind.ends_with_commit:
            judged.partly.append(record.job)
            return self._made(record, commits, JobStatus.FAILED, f"partly done: {_PARTLY}")
        (judged.expired if is_old else judged.abandoned).append(record.job)
        if commits:  # of a purge, which may have deleted nothing
            return self._made(record, commits, JobStatus.FAILED, "abandoned; ask for the purge again")
        return _ending(
            record, JobStatus.FAILED, f"abandoned: its process died, {_NOTHING_OF.get(record.kind, _NOTHING)}"
        )

    def _commits(self, record: JobRecord) -> Sequence[LogEntry]:
        store = self._store(record.dataset)
        return commits_of(store, record.kind, record.job, above=record.above) if store is not None else ()

    def _store(self, dataset: str) -> Store | None:
        """Return a dataset's store; None if there is no such dataset any more, or it is a table of the system."""
        if dataset.startswith("_"):
            return None
        try:
            return self._registry.store(self._registry.find(DatasetName.parse(dataset)))
        except (NotFound, Gone):
            return None

    def _made(self, record: JobRecord, commits: Sequence[LogEntry], status: JobStatus, text: str) -> list[Payload]:
        """Return the events that end a job with what it has committed."""
        began = record.began_at or record.scheduled_at
        at = max((entry.at_ms for entry in commits), default=0) * 1_000_000
        done = done_of(record, None, commits, began=began, now=at)
        made = manifests_of(record, done, commits, began=began, now=at, sha256={})
        marked = PartitionManifest(
            outputs=made[0].outputs,
            inputs=made[0].inputs,
            start_time=made[0].start_time,
            end_time=made[0].end_time,
            task=made[0].task,
            metadata={**made[0].metadata, RECOVERED: text},
        )
        return _ending(record, status, f"{told(done)}; {text}", (marked, *made[1:]))

    def _judge_unreadable(self, cycle: OpenCycle, run: str, why: str, judged: _Found, *, is_old: bool) -> list[Payload]:
        """Report a record that cannot be read; when it is old, end it."""
        if not is_old:
            judged.quarantined.append(_unreadable(cycle, run, why))
            return []
        judged.expired.append(run)
        label = self._label(run)
        if label is None:
            return []
        return [JobEvent(job_run_id=run, job_label=label, status=JobStatus.FAILED, message="its record cannot be read")]

    def _label(self, run: str) -> str | None:
        """Return the label of a run that is unfinished; None if it has ended."""
        log = self._journal.log()
        events = log.events_of_run(run, limit=10) if log is not None else []
        found = [one.event.payload for one in events if isinstance(one.event.payload, JobEvent)]
        ended = any(payload.status in ENDED_JOBS for payload in found)
        return found[0].job_label if found and not ended else None

    # ---- datasets --------------------------------------------------------------------------------------------------

    def _recover_dataset(self, registration: Registration, found: _Found, *, sweep_all: bool) -> None:
        store = self._registry.store(registration)
        try:
            if self._is_due(store.path, always=sweep_all):
                found.files_swept += self._compactor.recover(store)
            else:
                self._compactor.catch_up(store)
        except Gone:
            name = str(registration.name)
            if error := self._registry.broken(registration):  # else it was dropped since it was listed
                found.quarantined.append(Quarantined(what=f"dataset {name}", why=str(error), dataset=name))
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one dataset keeps no other from its recovery
            name = str(registration.name)
            found.quarantined.append(Quarantined(what=f"dataset {name}", why=_why(error), dataset=name))

    def _is_due(self, place: Path, *, always: bool) -> bool:
        """Tell whether it is time to list all files of a place: when this process first looks, and then every hour."""
        now = self._clock.monotonic_seconds()
        last = self._swept.get(place)
        if not always and last is not None and now - last < SWEEP_HOURS * 3600:
            return False
        self._swept[place] = now
        return True


def _add(found: _Found, judged: _Found) -> None:
    for name in ("rolled_forward", "partly", "abandoned", "unfinished", "quarantined", "expired"):
        getattr(found, name).extend(getattr(judged, name))


def _unreadable(cycle: OpenCycle, run: str, why: str) -> Quarantined:
    return Quarantined(what=f"record of job {run}", why=why, since=iso(cycle.build.created_at))


def _why(error: Exception) -> str:
    """Say what an error says; of one that nobody expected its class, too, because its words alone may say nothing."""
    expected = isinstance(error, SiltstoneError | OSError | LogMoved)
    return str(error) if expected else f"{type(error).__name__}: {error}"


def _safe(error: BaseException) -> str:
    return safe_error(getattr(error, "kind", None), str(error))


def _ending(
    record: JobRecord, status: JobStatus, message: str, manifests: tuple[PartitionManifest, ...] = ()
) -> list[Payload]:
    """Return the events that end a job: one that had not begun begins first."""
    begins = status is JobStatus.COMPLETED and record.status is JobStatus.SCHEDULED
    if not manifests:
        at = record.began_at or record.scheduled_at
        metadata = {RECOVERED: "abandoned"}
        manifests = (PartitionManifest(start_time=at, end_time=at, task=record.job, metadata=metadata),)
    return [
        *([_job(record, JobStatus.RUNNING, "")] if begins else []),
        _job(record, status, message, manifests),
    ]


def _job(record: JobRecord, status: JobStatus, message: str, manifests: tuple[PartitionManifest, ...] = ()) -> JobEvent:
    return JobEvent(
        job_run_id=record.job,
        job_label=job_label(record.dataset, record.lane),
        target_partitions=(record.ref,),
        status=status,
        message=message,
        manifests=manifests,
    )


def _endings(cycle: OpenCycle, judged: _Found) -> list[Payload]:
    """Return the events that end a cycle of a dead owner: its partitions, and the cycle itself."""
    done = {record.job for record in cycle.jobs if record.status is JobStatus.COMPLETED} | set(judged.rolled_forward)
    refs: dict[str, bool] = {}
    for record in cycle.jobs:
        refs[record.ref] = refs.get(record.ref, True) and record.job in done
    payloads: list[Payload] = [
        PartitionEvent(
            partition_ref=ref,
            status=PartitionStatus.AVAILABLE if is_done else PartitionStatus.FAILED,
            message="recovered",
        )
        for ref, is_done in refs.items()
        if ref in cycle.open_refs
    ]
    whole = all(refs.values()) and not cycle.unreadable and cycle.build.status is BuildStatus.EXECUTING
    partly = f"{len(judged.partly)} partly done, " if judged.partly else ""
    forward = f"{counted(len(judged.rolled_forward), 'job')} rolled forward"
    text = f"its process died; {forward}, {partly}{len(judged.abandoned)} abandoned"
    payloads.append(BuildRequestEvent(status=BuildStatus.COMPLETED if whole else BuildStatus.FAILED, message=text))
    return payloads
