"""Runs a job with retries: attempts, splits, limits, and the result.

1. An attempt runs under a *guard*, which ends it when the cycle stops or the time limit is over.
2. A failure that fewer files may avoid splits the attempt into two halves. Each half is an attempt of its own. A job is
   split at most `MAX_DEPTH` times, and never below `FLOOR_FILES` files. If a part cannot be split and its worker was
   killed, it is retried once unchanged. The job may not be the cause. A fold is split between two sequences, and its
   second half runs after the first.
3. Unreadable inputs are left in place, and the job is retried without them. A fold is retried with the changes before
   them.
4. Every other failure is reported. A failed part does not stop the other parts, except the later parts of a fold.

Each part commits by itself. An interruption leaves parts that are done and parts that are not.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.compaction.execution.job import DIVISIBLE, Job, JobReport, Runner, StoppableRunner
from siltstone.compaction.failures import REASONS, Failure, UnreadableFiles, classify, evidence_of
from siltstone.compaction.planning.model import JobKind
from siltstone.errors import Reason, SiltstoneError, Unavailable, error_text, reason_of
from siltstone.model.reports import FailedAttempt, JobResult

MAX_DEPTH: Final = 4
"""Highest number of times that a batch is split into halves. If a sixteenth of a batch fails, size is not the cause."""
FLOOR_FILES: Final = 2
"""Lowest number of files in a part. A job over one file would only copy it."""
MAX_REREADS: Final = 8
"""Highest number of retries without unreadable inputs. In each retry Spark may find another unreadable file."""
POLL_SECONDS: Final = 0.1

_HINTS: Final = {
    Failure.CANCELLED: "Cancelled.",
    Failure.TIME_LIMIT: "The time limit of one attempt (setting job_minutes) was over.",
    Failure.OUT_OF_MEMORY: "Out of memory (settings worker_memory_mb, spark_memory_mb).",
}
StopCheck = Callable[[], bool]
SUMMED: Final = frozenset({"files_removed", "files_added", "rows", "bytes_before", "bytes_after", "seconds"})
OF_BASE: Final = frozenset({"base_rows", "bytes_before"})
"""Fields of a fold's report about base before the fold: the first part's value counts, for all others the last."""
SUMMED_OF_FOLDS: Final = frozenset(
    {
        "change_rows",
        "change_files",
        "change_bytes",
        "batches_folded",
        "upserts_applied",
        "tombstones_applied",
        "rows_dropped_by_tombstones",
        "files_removed",
        "files_added",
        "seconds",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """Input of one attempt: all or some of a job's files."""

    job: Job
    depth: int = 0
    again: bool = False
    """True for the one retry without changes."""
    rereads: int = 0

    @property
    def files(self) -> int:
        """Number of files of the part."""
        return len(self.job.spec.files)


def split(part: JobPart) -> tuple[JobPart, ...]:
    """Return two parts of half the files each; an empty tuple if the part cannot be split further."""
    spec = part.job.spec
    if spec.kind not in DIVISIBLE or part.depth >= MAX_DEPTH:
        return ()
    half = middle = (part.files + 1) // 2
    if spec.kind is JobKind.FOLD:  # it is cut only between two sequences
        cuts = [at for at, (file, following) in enumerate(pairwise(spec.files), 1) if file.order < following.order]
        middle = min(cuts, key=lambda at: abs(at - half), default=0)
    if min(middle, part.files - middle) < FLOOR_FILES:
        return ()
    halves = (spec.files[:middle], spec.files[middle:])
    return tuple(JobPart(job=part.job.part(n, files), depth=part.depth + 1) for n, files in enumerate(halves, 1))


def run_with_retries(job: Job, runner: Runner, *, clock: Clock, stopping: StopCheck) -> JobResult:
    """Run a job with as many attempts as needed, and return its result."""
    return _JobExecution(job=job, runner=runner, clock=clock, stopping=stopping).result()


@dataclass(frozen=True, slots=True)
class _FinalFailure:
    """Failure that is not retried: its class, its text, and the kind and reason of the error."""

    failure: Failure
    text: str
    kind: str
    reason: Reason | None


@dataclass(kw_only=True)
class _JobExecution:
    """A running job."""

    job: Job
    runner: Runner
    clock: Clock
    stopping: StopCheck
    waiting: deque[JobPart] = field(default_factory=deque)
    attempts: int = 0
    reports: list[JobReport] = field(default_factory=list)
    failed: list[FailedAttempt] = field(default_factory=list)
    final_failures: list[_FinalFailure] = field(default_factory=list)
    corrupt: dict[str, str] = field(default_factory=dict)

    def result(self) -> JobResult:
        started = self.clock.monotonic_seconds()
        self.waiting.append(JobPart(job=self.job))
        while self.waiting:
            self.waiting.extendleft(reversed(self._attempt(self.waiting.popleft())))
        spec = self.job.spec
        final = self.final_failures[0] if self.final_failures else None
        if final is None:
            outcome = "done"
        elif self.reports:
            outcome = "partly"
        else:
            outcome = "cancelled" if final.failure is Failure.CANCELLED else "failed"
        reports = [report.to_dict() for report in self.reports]
        for report in reports:
            report.pop("outputs", None)  # the result has those of all parts
        return JobResult(
            job=self.job.id,
            kind=str(spec.kind),
            lane=spec.lane,
            dataset=spec.dataset,
            period=spec.period,
            trigger=spec.trigger,
            report=combined(reports),
            error=None if final is None else final.text,
            error_kind=None if final is None else final.kind,
            error_reason=None if final is None or final.reason is None else str(final.reason),
            outcome=outcome,
            failure=None if final is None else str(final.failure),
            attempts=self.attempts,
            seconds=self.clock.monotonic_seconds() - started,
            failed_attempts=tuple(self.failed),
            corrupt=tuple(sorted(self.corrupt)),
            outputs=tuple(output for report in self.reports for output in getattr(report, "outputs", ())),
        )

    def _attempt(self, part: JobPart) -> Sequence[JobPart]:
        """Make one attempt. Return the parts to run in its place."""
        if self.stopping():
            text = f"Dataset {part.job.spec.dataset}: the job was cancelled."
            self.final_failures.append(_FinalFailure(Failure.CANCELLED, text, Unavailable.kind, Reason.CANCELLED))
            return ()
        self.attempts += 1
        with _Guard(self.runner, part.job, self.clock, self.stopping) as guard:
            try:
                self.reports.append(self.runner.run(part.job))
            except Exception as error:  # noqa: BLE001  # any error of one attempt is its result and stops no other job
                raised = error
            else:
                return ()
        return self._on_failure(part, raised, classify(evidence_of(raised, stopped_for=guard.stopped_for)))

    def _on_failure(self, part: JobPart, error: Exception, failure: Failure) -> Sequence[JobPart]:
        """Decide what follows a failure."""
        instead: Sequence[JobPart] = ()
        is_split = False
        if failure.splittable:
            instead = split(part)
            is_split = bool(instead)
            if not instead and not part.again and failure is Failure.KILLED:
                instead = (JobPart(job=part.job, depth=part.depth, again=True, rereads=part.rereads),)
        elif isinstance(error, UnreadableFiles):
            instead = self._without_unreadable(part, error)
        text = f"{_HINTS[failure]} {error}" if failure in _HINTS else error_text(error)
        self.failed.append(
            FailedAttempt(depth=part.depth, files=part.files, failure=str(failure), error=text, split=is_split)
        )
        if not instead or isinstance(error, UnreadableFiles):
            kind = error.kind if isinstance(error, SiltstoneError) else Unavailable.kind
            self.final_failures.append(_FinalFailure(failure, text, kind, REASONS.get(failure) or reason_of(error)))
            if part.job.spec.kind is JobKind.FOLD:
                self.waiting.clear()  # later parts of a fold depend on this part
        return instead

    def _without_unreadable(self, part: JobPart, error: UnreadableFiles) -> Sequence[JobPart]:
        """Return the part without its unreadable files; empty if too few remain or the job needs all of them."""
        self.corrupt |= error.files
        spec = part.job.spec
        readable = [file for file in spec.files if file.path not in error.files]
        if spec.kind is JobKind.FOLD:
            bad = min((file.order for file in spec.files if file.path in error.files), default=0)
            readable = [file for file in readable if file.order < bad]
        floor = 1 if spec.kind is JobKind.FOLD else FLOOR_FILES
        if spec.kind not in DIVISIBLE or len(readable) < floor or part.rereads >= MAX_REREADS:
            return ()
        return (JobPart(job=part.job.part(0, readable), depth=part.depth, rereads=part.rereads + 1),)


def combined(reports: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Merge the reports of a job's parts into one: counts are added up.

    >>> combined([{"tier": "daily", "rows": 2}, {"tier": "daily", "rows": 3}])
    {'tier': 'daily', 'rows': 5}
    """
    if len(reports) <= 1:
        return dict(reports[0]) if reports else None
    is_fold = any("watermark" in report for report in reports)
    summed, first = (SUMMED_OF_FOLDS, OF_BASE) if is_fold else (SUMMED, frozenset[str]())
    whole: dict[str, Any] = {}
    for report in reports:
        for name, value in report.items():
            if name not in whole or name not in first:
                whole[name] = whole[name] + value if name in whole and name in summed else value
    return whole


class _Guard:
    """Ends an attempt that exceeds its time limit, or whose cycle stops. `stopped_for` is the reason."""

    def __init__(self, runner: Runner, job: Job, clock: Clock, stopping: StopCheck) -> None:
        self.stopped_for: Failure | None = None
        self._runner = runner
        self._job = job
        self._clock = clock
        self._stopping = stopping
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "_Guard":
        if isinstance(self._runner, StoppableRunner):
            thread = threading.Thread(target=self._watch, args=(self._runner,), name="siltstone-guard", daemon=True)
            thread.start()
            self._thread = thread
        return self

    def __exit__(self, *_failure: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, runner: StoppableRunner) -> None:
        """Interrupt repeatedly, because an interrupt between two Spark jobs has no effect."""
        started = self._clock.monotonic_seconds()
        while not self._ended.wait(POLL_SECONDS):
            late = 0 < runner.limit_seconds < self._clock.monotonic_seconds() - started
            if self.stopped_for is None and (late or self._stopping()):
                self.stopped_for = Failure.TIME_LIMIT if late else Failure.CANCELLED
            if self.stopped_for is not None:
                with suppress(Exception):  # a failed interrupt is repeated
                    runner.stop(self._job)
