"""Conversion of cycles, jobs and periods to events of the lake's journal, and back. Pure.

| of a compaction | in the event log |
|---|---|
| a cycle | a build request ``cycle-<number>-<owner>`` |
| a job | a job run under the job's own id, with the label ``<dataset>:<lane>`` |
| a period of a dataset, or a dataset | a partition ``<dataset>/<period>`` or ``<dataset>`` |
| the plan of a job | its `config`: files taken as inputs, numbers and the owner in `env` |
| the result of a job | one manifest for each commit: files taken and written, with rows, bytes and checksums |
| settings and tiers | the cycle's job graph |

Rule: no value of a user enters an event. Events contain names of datasets, periods, paths of files and numbers. They
contain no values of partition columns, and no error text that may quote a row (`safe_error`).
"""

import datetime
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from siltstone.clock import NS_PER_SECOND, utc_text
from siltstone.compaction.execution.job import Job
from siltstone.compaction.failures import Failure
from siltstone.compaction.planning.model import JobKind, JobSpec, UnfinishedJob
from siltstone.config import Settings
from siltstone.delta.log_reader import LogEntry
from siltstone.eventlog.events import (
    Event,
    InputKind,
    JobConfig,
    JobEvent,
    JobInput,
    JobStatus,
    PartitionManifest,
    as_json,
)
from siltstone.model.columns import APP_FOLD, FOLDED_BYTES, FOLDED_FILES, JOB, ROWS_REMOVED
from siltstone.model.reports import JobResult
from siltstone.model.tiers import tiers_from_text
from siltstone.model.units import counted

CYCLE: Final = "cycle-"
NUMBER_DIGITS: Final = 12
"""Digits of a cycle's number in its id, so that ids sort by number."""
OWNER_DIGITS: Final = 8
MOST_FILES: Final = 1_000
"""Highest number of files that one event names; of more, only the number. A roll-up has at most 501 files."""
SAFE_FAILURES: Final = frozenset({Failure.CONFLICT, Failure.FENCED, Failure.GONE, Failure.CANCELLED})
"""Failures whose text is ours alone. Other texts come from Spark, Arrow or the system, and may quote a row."""
LONGEST_ERROR: Final = 300
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_ERROR_CLASS: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\]")
_CYCLE_ID: Final = re.compile(rf"{CYCLE}([0-9]{{{NUMBER_DIGITS}}})-[0-9a-f]+")
_SETTINGS: Final = (
    "fold_batches",
    "fold_share",
    "fold_minutes",
    "squash_files",
    "squash_bytes",
    "event_log_files",
    "cluster_bytes",
    "cluster_share",
    "vacuum_interval_hours",
    "vacuum_retention_hours",
    "target_file_bytes",
    "cycle_bytes",
)


def cycle_id(number: int, owner: str) -> str:
    """Return the id of a cycle's build request. It contains the owner, so concurrent cycles have different ids.

    >>> cycle_id(41, "ab12cd34ef56")
    'cycle-000000000041-ab12cd34'
    """
    return f"{CYCLE}{number:0{NUMBER_DIGITS}d}-{owner[:OWNER_DIGITS]}"


def cycle_number(build_request_id: str) -> int | None:
    """Return the number of a cycle; None for any other build request.

    >>> cycle_number("cycle-000000000041-ab12cd34"), cycle_number("nightly")
    (41, None)
    """
    match = _CYCLE_ID.fullmatch(build_request_id)
    return int(match[1]) if match else None


def partition_ref(dataset: str, period: str) -> str:
    """Return the name of a period of a dataset in the journal.

    >>> partition_ref("crm.sales.calls", "2026-11-15"), partition_ref("crm.sales.people", "")
    ('crm.sales.calls/2026-11-15', 'crm.sales.people')
    """
    return f"{dataset}/{period}" if period else dataset


def job_label(dataset: str, lane: str) -> str:
    """Return the label of all jobs of one lane of a dataset."""
    return f"{dataset}:{lane}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Owner of a cycle: a liveness lock on a machine."""

    id: str
    machine: str
    host: str
    pid: int
    installation: str = ""
    """Id of the owner's machine that survives a restart; empty if the system has none."""


def graph_of(settings: Settings, jobs: Sequence[Job], *, epoch: int | None) -> str:
    """Return the inputs of a cycle as JSON: deciding settings, tiers, and the number of jobs of each lane."""
    graph = {
        "epoch": epoch,
        "jobs": Counter(job.spec.lane for job in jobs),
        "settings": {name: getattr(settings, name) for name in _SETTINGS},
        "tiers": {tier.name: asdict(tier) for tier in tiers_from_text(settings.tiers)},
    }
    return json.dumps(graph, default=str, sort_keys=True)


def config_of(job: Job, owner: Owner, *, above: int | None = None) -> JobConfig:
    """Return the config of a job. Its commits have versions higher than `above`."""
    spec = job.spec
    facts: dict[str, Any] = {
        "cycle": job.cycle,
        "kind": str(spec.kind),
        "lane": spec.lane,
        "dataset": spec.dataset,
        "period": spec.period,
        "batch": spec.batch,
        "batches": spec.batches,
        "trigger": spec.trigger,
        "files": len(spec.files),
        "files_after": spec.files_after,
        "rows": spec.rows,
        "bytes": sum(file.size_bytes for file in spec.files),
        "target_bytes": spec.target_bytes,
        "waiting_since_ms": spec.waiting_since_ms,
        "until": until_of(spec),
        "epoch": "" if job.epoch is None else job.epoch,
        "above": "" if above is None else above,
        "owner": owner.id,
        "machine": owner.machine,
        "host": owner.host,
        "pid": owner.pid,
        "installation": owner.installation,
    }
    taken = [JobInput(partition_ref=file.path, kind=InputKind.QUERY) for file in spec.files[:MOST_FILES]]
    return JobConfig(
        outputs=(partition_ref(spec.dataset, spec.period),),
        inputs=tuple(taken),
        args=(str(spec.kind), spec.lane),
        env={name: str(value) for name, value in facts.items()},
    )


def until_of(spec: JobSpec) -> int:
    """Return the sequence up to which a fold was planned to take changes; 0 for any other job."""
    return max((file.order for file in spec.files), default=0) if spec.kind is JobKind.FOLD else 0


def job_event(job: Job, status: JobStatus, *, message: str = "", **details: Any) -> JobEvent:  # noqa: ANN401
    """Return the payload of an event about a job."""
    spec = job.spec
    return JobEvent(
        job_run_id=job.id,
        job_label=job_label(spec.dataset, spec.lane),
        target_partitions=(partition_ref(spec.dataset, spec.period),),
        status=status,
        message=message,
        **details,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a job in numbers."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_folded: int = 0
    """For a fold: bytes of the changes that it folded into base."""
    files_deleted: int = 0
    bytes_deleted: int = 0
    rows: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return asdict(self)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "Done":
        """Read the numbers from a manifest. Unknown names are ignored. What is not a number becomes the default."""
        numbers: dict[str, Any] = {}
        for name, default in asdict(cls()).items():
            try:
                numbers[name] = type(default)(metadata.get(name, default))
            except ValueError:
                numbers[name] = default
        return cls(**numbers)


def done_of(
    record: "JobRecord", result: JobResult | None, commits: Sequence[LogEntry], *, began: int, now: int
) -> Done:
    """Return the result of a job in numbers: of its commits, otherwise of its report. Times are nanoseconds."""
    report = (result.report if result is not None else None) or {}
    waited = began / NS_PER_SECOND - record.waiting_since_ms / 1000 if record.waiting_since_ms else 0.0
    done = Done(
        files_before=int(report.get("files_removed") or 0),
        files_after=int(report.get("files_added") or 0),
        bytes_before=int(report.get("bytes_before") or 0),
        bytes_after=int(report.get("bytes_after") or 0),
        rows=int(report.get("rows") or report.get("rows_after") or 0),
        seconds=float(report.get("seconds") or max(0, now - began) / NS_PER_SECOND),
        waited_seconds=max(0.0, waited),
    )
    if commits:
        done = replace(
            done,
            files_before=sum(len(entry.removes) for entry in commits),
            files_after=sum(len(entry.files) for entry in commits),
            bytes_before=sum(entry.removed_bytes for entry in commits),
            bytes_after=sum(file.size_bytes for entry in commits for file in entry.files),
            rows=sum(file.rows for entry in commits for file in entry.files),
        )
    if record.kind in (JobKind.FOLD, JobKind.PURGE):
        if not commits:  # the report's bytes are those of all of base; a purge deletes its log entry at once
            written = sum(output.bytes for output in result.outputs) if result is not None else 0
            done = replace(done, bytes_before=0, bytes_after=written, rows=int(report.get("change_rows") or 0))
        done = _with_changes(record, done, report, commits)
    if record.kind is JobKind.PURGE:
        files, size = (int(report.get(name) or 0) for name in ("files_deleted", "bytes_deleted"))
        done = replace(done, files_deleted=files, bytes_deleted=size)
    if record.kind is JobKind.VACUUM:
        deleted = report.get("files") or ()
        done = replace(done, files_deleted=len(deleted), bytes_deleted=int(report.get("bytes") or 0))
    return done


def _with_changes(record: "JobRecord", done: Done, report: Mapping[str, Any], commits: Sequence[LogEntry]) -> Done:
    """Add the folded change files to the numbers of a fold, because its commits on base remove none of them."""
    if commits and all(FOLDED_FILES in entry.info for entry in commits):
        files, size = (sum(int(entry.info[name]) for entry in commits) for name in (FOLDED_FILES, FOLDED_BYTES))
    else:
        folded = not report or bool(report.get("batches_folded"))
        files, size = int(report.get("change_files") or 0), record.bytes if folded else 0
    return replace(
        done, files_before=done.files_before + files, bytes_before=done.bytes_before + size, bytes_folded=size
    )


def is_whole(record: "JobRecord", commits: Sequence[LogEntry]) -> bool:
    """True if commits cover a whole job. A split job commits each part under its own id."""
    if not record.kind.ends_with_commit:
        return False
    if any(entry.info.get(JOB) == record.job for entry in commits):
        return True
    if record.kind is JobKind.FOLD:
        reached = max((entry.transactions.get(APP_FOLD, 0) for entry in commits), default=0)
        return 0 < record.until <= reached
    taken = {path for entry in commits for path in entry.removes}
    return 0 < record.planned_files == len(record.files) and taken.issuperset(record.files)


def manifests_of(
    record: "JobRecord",
    done: Done,
    commits: Sequence[LogEntry],
    *,
    began: int,
    now: int,
    sha256: Mapping[str, str],
    note: Mapping[str, str] = MappingProxyType({}),
) -> tuple[PartitionManifest, ...]:
    """Return one manifest for each commit of a job. The first has the numbers of the whole job, and `note`."""
    numbers = {
        name: f"{value:.3f}" if isinstance(value, float) else str(value) for name, value in done.to_dict().items()
    } | dict(note)
    return tuple(
        PartitionManifest(
            outputs=() if entry is None else tuple(file.path for file in entry.files[:MOST_FILES]),
            inputs=() if entry is None else tuple(sorted(entry.removes)[:MOST_FILES]),
            start_time=began,
            end_time=max(began, now),
            task=record.job,
            metadata=(numbers if at == 0 else {}) | ({} if entry is None else _entry_metadata(entry, sha256)),
        )
        for at, entry in enumerate(commits or (None,))
    )


def _entry_metadata(entry: LogEntry, sha256: Mapping[str, str]) -> dict[str, str]:
    written = [
        {"path": file.path, "rows": file.rows, "bytes": file.size_bytes}
        | ({"sha256": sha256[file.path]} if file.path in sha256 else {})
        for file in entry.files[:MOST_FILES]
    ]
    return {
        "version": str(entry.version),
        "commit": entry.commit_id or "",
        "rows_taken": str(entry.info.get(ROWS_REMOVED, "")),
        "written": as_json(written),
    }


def job_summary(done: Done) -> str:
    """Describe the result of a job in one line.

    >>> job_summary(Done(files_before=32, files_after=1)), job_summary(Done(files_deleted=1)), job_summary(Done())
    ('32 files became 1', '1 file deleted', 'nothing to do')
    """
    if done.files_deleted:
        return f"{counted(done.files_deleted, 'file')} deleted"
    if done.files_before or done.files_after:
        return f"{counted(done.files_before, 'file')} became {done.files_after:,}"
    return "nothing to do"


def safe_error(kind: str | None, text: str) -> str:
    """Return the text of an error for the journal, without anything that may quote a row.

    >>> safe_error("conflict", "Dataset a.b.c: data/1.parquet is not live any more. Plan again.")
    'conflict: Dataset a.b.c: data/1.parquet is not live any more. Plan again.'
    >>> safe_error("unknown", "the fold failed in Spark: [CAST_INVALID_INPUT] The value 'CAND-7' of ...")
    'unknown [CAST_INVALID_INPUT]'
    """
    if kind in SAFE_FAILURES:
        return f"{kind}: {_QUOTED.sub('…', text)[:LONGEST_ERROR]}"
    classes = "".join(f" {name}" for name in dict.fromkeys(_ERROR_CLASS.findall(text)))
    return f"{kind or 'error'}{classes[:LONGEST_ERROR]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as the journal recorded it."""

    job: str
    build_request_id: str
    cycle: int
    kind: JobKind
    lane: str
    dataset: str
    period: str
    owner: Owner
    epoch: int | None = None
    above: int | None = None
    """Version of its table when the job was planned. Its commits have higher versions."""
    trigger: str = ""
    bytes: int = 0
    waiting_since_ms: int = 0
    files: tuple[str, ...] = field(default=(), repr=False)
    planned_files: int = 0
    """Number of files that the job was planned to take. `files` names at most `MOST_FILES` of them."""
    until: int = 0
    """For a fold: the last sequence that it was planned to fold; 0 if that was not recorded."""
    scheduled_at: int = 0
    """Time at which the plan was recorded, in nanoseconds."""
    status: JobStatus = JobStatus.SCHEDULED
    began_at: int | None = None
    ended_at: int | None = None
    message: str = ""
    done: Done = field(default_factory=Done)
    recovered: bool = False

    @property
    def ref(self) -> str:
        """Name of its partition in the journal."""
        return partition_ref(self.dataset, self.period)

    def unfinished(self) -> UnfinishedJob:
        """Return the job in the planner's form."""
        return UnfinishedJob(job=self.job, dataset=self.dataset, kind=self.kind, files=self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data, without the paths of its files."""
        return {
            "job": self.job,
            "cycle": self.cycle,
            "kind": str(self.kind),
            "lane": self.lane,
            "dataset": self.dataset,
            "period": self.period,
            "trigger": self.trigger,
            "status": self.status.name.lower(),
            "message": self.message,
            "recovered": self.recovered,
            "began_at": iso(self.began_at),
            "ended_at": iso(self.ended_at),
            **self.done.to_dict(),
        }


RECOVERED: Final = "recovered"
"""Metadata key of the first manifest of a job that recovery has ended. Its value is the outcome."""


class Unreadable(Exception):  # noqa: N818
    """A record of the journal is not a valid record of a job. The text has the reason."""


def read_job(events: Iterable[Event]) -> JobRecord:
    """Read a job from its events, in their order. Raise Unreadable if the first lacks the owner or the config."""
    record: JobRecord | None = None
    for event in events:
        payload = event.payload
        if not isinstance(payload, JobEvent):
            continue
        if record is None:
            record = _scheduled_record(event, payload)
        record = _updated(record, event, payload)
    if record is None:
        raise Unreadable("it has no event of its own")
    return record


def _scheduled_record(event: Event, payload: JobEvent) -> JobRecord:
    if payload.config is None:
        raise Unreadable(f"job {payload.job_run_id} has no config")
    facts = payload.config.env
    number = cycle_number(event.build_request_id)
    try:
        return JobRecord(
            job=payload.job_run_id,
            build_request_id=event.build_request_id,
            cycle=int(facts["cycle"]) if number is None else number,
            kind=JobKind(facts["kind"]),
            lane=facts["lane"],
            dataset=facts["dataset"],
            period=facts["period"],
            owner=Owner(
                id=facts["owner"],
                machine=facts["machine"],
                host=facts["host"],
                pid=int(facts["pid"]),
                installation=facts.get("installation", ""),
            ),
            epoch=int(facts["epoch"]) if facts.get("epoch") else None,
            above=int(facts["above"]) if facts.get("above") else None,
            trigger=facts.get("trigger", ""),
            bytes=int(facts.get("bytes", 0)),
            waiting_since_ms=int(facts.get("waiting_since_ms", 0)),
            files=tuple(item.partition_ref for item in payload.config.inputs),
            planned_files=int(facts.get("files", 0)),
            until=int(facts.get("until", 0)),
            scheduled_at=event.timestamp,
        )
    except (KeyError, ValueError) as error:
        raise Unreadable(f"job {payload.job_run_id}: its config cannot be read ({error!r})") from error


def _updated(record: JobRecord, event: Event, payload: JobEvent) -> JobRecord:
    match payload.status:
        case JobStatus.RUNNING:
            return replace(record, status=payload.status, began_at=event.timestamp)
        case JobStatus.COMPLETED | JobStatus.FAILED | JobStatus.CANCELLED:
            metadata = payload.manifests[0].metadata if payload.manifests else {}
            return replace(
                record,
                status=payload.status,
                ended_at=event.timestamp,
                message=payload.message,
                done=Done.from_metadata(metadata),
                recovered=RECOVERED in metadata,
            )
        case _:
            return record


def iso(at: int | None) -> str | None:
    """Return a time in nanoseconds as text for people and JSON."""
    if at is None:
        return None
    return utc_text(datetime.datetime.fromtimestamp(at / NS_PER_SECOND, datetime.UTC), timespec="milliseconds")
