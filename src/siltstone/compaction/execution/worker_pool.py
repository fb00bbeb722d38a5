"""The worker pool: jobs that need Spark run in workers, at most `max_jobs` at once. Other jobs run in this process.

1. A job gets an idle worker, or starts a new one.
2. An answer becomes a report or the worker's error. The worker stays for the next job. It is ended after an error that
   leaves its state in doubt. It is also ended after `worker_jobs` jobs, or if its memory has grown too much.
3. A worker that has ended sends no answer, so the pool checks the log for the job's commit. With a commit the job is
   done. Without one nothing was changed. In both cases recovery removes the files that the worker left.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.compaction.execution.job import ON_SPARK, InlineRunner, Job, JobReport
from siltstone.compaction.execution.worker_process import COMMAND, WorkerProcess
from siltstone.compaction.failures import Failure, UnreadableFiles, WorkerLost, classify, evidence_of, exit_text
from siltstone.compaction.journal.job_commits import commits_of
from siltstone.compaction.operations.dataset_maintenance import DatasetMaintenance
from siltstone.compaction.planning.model import JobKind
from siltstone.config import Settings
from siltstone.dataset.store import Store
from siltstone.delta.log_reader import LogEntry
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import SiltstoneError, Unavailable, named_error
from siltstone.model.reports import CompactReport, LandedReport, RollUpReport
from siltstone.spark.output_files import manifest

REPORTS: Final[Mapping[JobKind, type[CompactReport] | type[RollUpReport]]] = {
    JobKind.FOLD: CompactReport,
    JobKind.PURGE: CompactReport,
    JobKind.ROLL_UP: RollUpReport,
    JobKind.CLUSTER: RollUpReport,
}
SECONDS_PER_MINUTE: Final = 60.0


class WorkerPool:
    """Runs jobs in workers, and keeps the workers warm until it is closed."""

    def __init__(
        self,
        lake: Path,
        *,
        settings: Settings,
        clock: Clock,
        operations: DatasetMaintenance,
        store: Callable[[str], Store],
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.width = settings.max_jobs
        self.limit_seconds = settings.job_minutes * SECONDS_PER_MINUTE
        self.started = 0
        """Number of workers that were started."""
        self._lake = lake
        self._settings = settings
        self._clock = clock
        self._operations = operations
        self._store = store
        self._command = command
        self._environment = environment
        self._inline = InlineRunner(operations, store)
        self._inline_turn = threading.Lock()
        self._mutex = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._at_work: dict[str, WorkerProcess] = {}

    def run(self, job: Job) -> JobReport:
        """Run one job, in a worker if it needs Spark. Raise `WorkerLost` if it ended without a commit of the job."""
        if job.spec.kind not in ON_SPARK:
            with self._inline_turn:
                return self._inline.run(job)
        store = self._store(job.spec.dataset)
        before = store.base.pin().version
        worker = self._take(job)
        try:
            answer = worker.run(self._lake, job)
        except WorkerLost as lost:
            self._put_back(job, worker, sound=False)
            return self._settle(store, job, before, lost)
        except BaseException:
            self._put_back(job, worker, sound=False)
            raise
        if "done" in answer:
            self._put_back(job, worker, sound=True)
            return report_from(job.spec.kind, answer["done"])
        error = error_from(answer, stderr=worker.stderr_tail())
        if classify(evidence_of(error)) is Failure.UNKNOWN:
            worker.close()  # its JVM may still print: its output is complete when it has ended
            error = WorkerLost(str(error), ended_with=None, stderr=worker.stderr_tail(), reason=error.reason)
        self._put_back(job, worker, sound=not classify(evidence_of(error)).discard_worker)
        raise error

    def stop(self, job: Job) -> None:
        """Kill the worker of a job, and all processes that it has started."""
        with self._mutex:
            worker = self._at_work.get(job.id)
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        """End the idle workers, and kill the busy ones."""
        with self._mutex:
            idle, self._idle = self._idle, []
            busy = list(self._at_work.values())
        for worker in busy:
            worker.kill()
        for worker in idle:
            worker.close()

    def close_idle(self) -> None:
        """End the workers that were idle for `spark_idle_minutes`, because each has a JVM."""
        before = self._clock.monotonic_seconds() - self._settings.spark_idle_minutes * SECONDS_PER_MINUTE
        with self._mutex:
            long = [worker for worker in self._idle if worker.idle_since_seconds < before]
            self._idle = [worker for worker in self._idle if worker not in long]
        for worker in long:
            worker.close()

    def _take(self, job: Job) -> WorkerProcess:
        with self._mutex:
            dead = [worker for worker in self._idle if not worker.alive()]
            self._idle = [worker for worker in self._idle if worker not in dead]
            worker = self._idle.pop() if self._idle else None
            if worker is not None:
                self._at_work[job.id] = worker
        for ended in dead:
            ended.close()
        if worker is None:
            worker = WorkerProcess(
                self._settings, clock=self._clock, command=self._command, environment=self._environment
            )
            with self._mutex:
                self.started += 1
                self._at_work[job.id] = worker
        return worker

    def _put_back(self, job: Job, worker: WorkerProcess, *, sound: bool) -> None:
        is_reusable = (
            sound and worker.alive() and worker.jobs_done < self._settings.worker_jobs and not worker.has_grown()
        )
        with self._mutex:
            self._at_work.pop(job.id, None)
            if is_reusable:
                worker.idle_since_seconds = self._clock.monotonic_seconds()
                self._idle.append(worker)
        if not is_reusable:
            if not sound:
                worker.kill()
            worker.close()

    def _settle(self, store: Store, job: Job, before: int, lost: WorkerLost) -> JobReport:
        """Check whether a lost worker has committed its job, and recover the dataset.

        The log does not show whether a purge is complete. A purge is repeated, and the repetition has less to do.
        """
        try:
            is_provable = job.spec.kind.ends_with_commit
            commits = commits_of(store, job.spec.kind, job.id, above=before) if is_provable else []
            report = landed_report(store, commits[0]) if commits else None
        except (SiltstoneError, OSError, LogChanged):
            report = None  # then the files of the plan are gone, and a retry is refused
        with contextlib.suppress(SiltstoneError, OSError, LogChanged):
            self._operations.recover(store)
        if report is None:
            raise lost
        return report


def landed_report(store: Store, entry: LogEntry) -> LandedReport:
    """Return the report of a job whose worker has committed to base and was lost."""
    return LandedReport(
        dataset=str(store.name),
        files_removed=len(entry.removes),
        files_added=len(entry.files),
        rows=sum(file.rows for file in entry.files),
        bytes_before=entry.removed_bytes,
        bytes_after=sum(file.size_bytes for file in entry.files),
        outputs=manifest(store.base.path, entry.files),
    )


def report_from(kind: JobKind, data: Mapping[str, Any]) -> JobReport:
    """Return the report that a worker sent."""
    from pydantic import TypeAdapter  # takes time to import, and only answers of workers need it

    return TypeAdapter(REPORTS[kind]).validate_python(data)


def error_from(answer: Mapping[str, Any], *, stderr: str = "") -> SiltstoneError:
    """Return the error that a worker sent, with its reason and cause; `WorkerLost` if its JVM was killed."""
    ended = answer["jvm_ended_with"]
    if ended is not None and ended < 0 and answer["kind"] in ("", Unavailable.kind):
        return WorkerLost(
            f"The worker's JVM {exit_text(ended)} before the job was done; nothing was changed. Error: {answer['failed']}",
            ended_with=ended,
            stderr=stderr,
        )
    error = (
        UnreadableFiles(answer["failed"], answer["unreadable"])
        if answer["unreadable"]
        else named_error(answer["kind"] or Unavailable.kind, answer["failed"], reason=answer["reason"])
    )
    error.__cause__ = RuntimeError(answer["cause"])
    return error
