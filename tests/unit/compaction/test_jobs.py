"""Jobs without Spark: failure classes, splits of batches, conflicts between jobs, and whole cycles."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone import Lake
from siltstone.clock import SystemClock
from siltstone.compaction.execution.cycle_runner import run_cycle
from siltstone.compaction.execution.events import CompactionEvent, CycleBegan, JobBegan, JobEnded, JobsEnded
from siltstone.compaction.execution.job import ON_SPARK, InlineRunner, Job, exclude_each_other
from siltstone.compaction.execution.retry import FLOOR_FILES, MAX_DEPTH, JobPart, combined, run_with_retries, split
from siltstone.compaction.failures import (
    BY_TEXT,
    Failure,
    FailureEvidence,
    UnreadableFiles,
    WorkerLost,
    classify,
    evidence_of,
    names_file,
)
from siltstone.compaction.operations.rewrite_errors import disk_failures, spark_failures
from siltstone.compaction.planning.model import FileEntry, JobKind, JobSpec, Plan
from siltstone.delta.log_reader import read_entry
from siltstone.errors import (
    CommitUnknown,
    Conflict,
    Corruption,
    Fenced,
    Gone,
    NotFound,
    Reason,
    SiltstoneError,
    Unavailable,
)
from siltstone.failpoints import arm
from siltstone.host.system_errors import read_failure
from siltstone.model.columns import APP_EPOCH, JOB
from siltstone.model.reports import JobResult, OutputFile, RollUpReport
from tests.support.internals import compactor_of, idle_workers, replace_own_jvms, stores_of, taken_worker
from tests.support.tables import FAST

NAME = "web.eu.clicks"


def files(count: int, *, size: int = 100) -> tuple[FileEntry, ...]:
    return tuple(
        FileEntry(f"data/{n}.parquet", size, 10, "2026-11-15T14", (("region", None), ("shop", "a")), "", 5, n)
        for n in range(count)
    )


def work(count: int = 4, *, kind: JobKind = JobKind.ROLL_UP, dataset: str = NAME) -> JobSpec:
    return JobSpec(
        kind=kind,
        lane="daily",
        dataset=dataset,
        period="2026-11-15",
        partition=(("region", None),),
        files=files(count),
        files_after=1,
        target_bytes=1000,
        trigger="10 files",
    )


def job(count: int = 4, *, kind: JobKind = JobKind.ROLL_UP, dataset: str = NAME) -> Job:
    return Job.of(work(count, kind=kind, dataset=dataset), cycle=7, epoch=3)


def report(done: Job) -> RollUpReport:
    return RollUpReport(
        dataset=done.spec.dataset,
        tier="daily",
        period=done.spec.period,
        files_removed=len(done.spec.files),
        files_added=1,
        rows=done.spec.rows,
        bytes_before=done.spec.cost_bytes,
        bytes_after=10,
        seconds=1.0,
    )


# ---- classes of failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (
            FailureEvidence(stderr="Terminating due to java.lang.OutOfMemoryError: Java heap space"),
            Failure.OUT_OF_MEMORY,
        ),
        (FailureEvidence(text="[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes"), Failure.OUT_OF_MEMORY),
        (FailureEvidence(text="pyarrow.lib.ArrowMemoryError: malloc of size 9 failed"), Failure.OUT_OF_MEMORY),
        (FailureEvidence(text="OSError: [Errno 12] Cannot allocate memory"), Failure.OUT_OF_MEMORY),
        (FailureEvidence(exit_code=-9), Failure.KILLED),
        (FailureEvidence(text="SparkException: Python worker exited unexpectedly (crashed)"), Failure.KILLED),
        (FailureEvidence(exit_code=-15), Failure.KILLED),
        (FailureEvidence(exit_code=-9, stopped_for=Failure.TIME_LIMIT), Failure.TIME_LIMIT),
        (FailureEvidence(exit_code=-9, stopped_for=Failure.CANCELLED), Failure.CANCELLED),
        (
            FailureEvidence(kind="unavailable", text="[SPARK_JOB_CANCELLED]", stopped_for=Failure.CANCELLED),
            Failure.CANCELLED,
        ),
        (FailureEvidence(text="java.io.IOException: No space left on device"), Failure.DISK_FULL),
        (FailureEvidence(text="[Errno 27] File too large"), Failure.DISK_FULL),
        (FailureEvidence(text="[Errno 122] Disk quota exceeded"), Failure.DISK_FULL),
        (FailureEvidence(text="java.io.FileNotFoundException: /lake/x (Permission denied)"), Failure.PERMISSION_DENIED),
        (FailureEvidence(text="[Errno 30] Read-only file system"), Failure.PERMISSION_DENIED),
        (
            FailureEvidence(text="[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Could not read footer"),
            Failure.CORRUPT_INPUT,
        ),
        (FailureEvidence(kind="corruption", reason=Reason.DAMAGED_FILE), Failure.CORRUPT_INPUT),
        (FailureEvidence(kind="corruption", reason=Reason.MISSING_FILE), Failure.MISSING_FILE),
        (FailureEvidence(kind="corruption", reason=Reason.FOREIGN_COMMIT, exit_code=-9), Failure.FOREIGN_COMMIT),
        (FailureEvidence(kind="corruption", reason=Reason.MISSING_FILE, text="Java heap space"), Failure.OUT_OF_MEMORY),
        (FailureEvidence(kind="corruption"), Failure.UNKNOWN),
        (FailureEvidence(kind="conflict", reason=Reason.SCHEMA_CHANGED), Failure.SCHEMA_CHANGED),
        (FailureEvidence(kind="unavailable", reason=Reason.MEMORY), Failure.OUT_OF_MEMORY),
        (FailureEvidence(kind="unavailable", reason=Reason.DISK_FULL), Failure.DISK_FULL),
        (FailureEvidence(kind="unavailable", reason=Reason.PERMISSION_DENIED), Failure.PERMISSION_DENIED),
        (
            FailureEvidence(stderr="terminate called after throwing an instance of 'std::bad_alloc'"),
            Failure.OUT_OF_MEMORY,
        ),
        (FailureEvidence(text="Generic LocalFileSystem error: (os error 12)"), Failure.OUT_OF_MEMORY),
        (
            FailureEvidence(stderr="# There is insufficient memory for the Java Runtime Environment to continue."),
            Failure.OUT_OF_MEMORY,
        ),
        (
            FailureEvidence(kind="corruption", reason=Reason.DAMAGED_FILE, text="OutOfMemoryError: Java heap space"),
            Failure.OUT_OF_MEMORY,
        ),
        (FailureEvidence(text="[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH]"), Failure.SCHEMA_CHANGED),
        (FailureEvidence(kind="conflict"), Failure.CONFLICT),
        (FailureEvidence(kind="conflict", text="No space left on device"), Failure.CONFLICT),
        (FailureEvidence(kind="fenced"), Failure.FENCED),
        (FailureEvidence(kind="gone"), Failure.GONE),
        (FailureEvidence(kind="not_found"), Failure.GONE),
        (FailureEvidence(kind="commit_unknown", text="No space left on device"), Failure.COMMIT_UNKNOWN),
        (FailureEvidence(exit_code=1, stderr="Permission denied, says something else"), Failure.UNKNOWN),
        (FailureEvidence(), Failure.UNKNOWN),
    ],
)
def test_each_failure_has_its_class(evidence: FailureEvidence, expected: Failure) -> None:
    assert classify(evidence) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Conflict("x"), Failure.CONFLICT),
        (Fenced("x"), Failure.FENCED),
        (Gone("x"), Failure.GONE),
        (NotFound("x"), Failure.GONE),
        (CommitUnknown("x"), Failure.COMMIT_UNKNOWN),
        (Conflict("x", reason=Reason.SCHEMA_CHANGED), Failure.SCHEMA_CHANGED),
        (Corruption("x"), Failure.UNKNOWN),
        (Corruption("x", reason=Reason.DAMAGED_FILE), Failure.CORRUPT_INPUT),
        (Corruption("x", reason=Reason.MISSING_FILE), Failure.MISSING_FILE),
        (Corruption("x", reason=Reason.FOREIGN_COMMIT), Failure.FOREIGN_COMMIT),
        (UnreadableFiles("x", {"a": "b"}), Failure.CORRUPT_INPUT),
        (PermissionError(13, "Permission denied"), Failure.PERMISSION_DENIED),
        (OSError(28, "No space left on device"), Failure.DISK_FULL),
        (WorkerLost("x", ended_with=-9, stderr=""), Failure.KILLED),
        (WorkerLost("x", ended_with=None, stderr="java.lang.OutOfMemoryError"), Failure.OUT_OF_MEMORY),
    ],
)
def test_each_error_has_its_class(error: Exception, expected: Failure) -> None:
    assert classify(evidence_of(error)) is expected


@pytest.mark.parametrize("mark", [mark for _, marks in BY_TEXT for mark in marks])
def test_texts_of_our_own_errors_never_decide_the_class(mark: str) -> None:
    for error in (
        Unavailable(mark),
        Corruption(f"Dataset a.b.c: {mark}"),
        WorkerLost(mark, ended_with=None, stderr=""),
    ):
        assert classify(evidence_of(error)) is Failure.UNKNOWN
    error = Unavailable("reworded")
    error.__cause__ = RuntimeError(mark)
    assert classify(evidence_of(error)) is not Failure.UNKNOWN, "the words of another program do"


def test_an_error_of_the_system_gives_its_reason_to_the_error_that_is_raised_from_it() -> None:
    refused = Unavailable("The table cannot be written.")
    refused.__cause__ = OSError(30, "Lesend gemountet")
    failed = Unavailable("The fold failed.")
    failed.__cause__ = refused
    assert (failed.reason, classify(evidence_of(failed))) == (Reason.PERMISSION_DENIED, Failure.PERMISSION_DENIED)


def test_our_errors_name_files_as_data_and_foreign_errors_in_their_text() -> None:
    assert names_file(read_failure("/lake/changes/data/1.parquet", ValueError("bad")), "data/1.parquet")
    assert not names_file(Corruption("File data/1.parquet is damaged."), "data/1.parquet"), "our words never count"
    failed = Unavailable("The work failed.")
    failed.__cause__ = RuntimeError("[FAILED_READ_FILE] Encountered error while reading file:///lake/data/1.parquet.")
    assert names_file(failed, "data/1.parquet")
    assert not names_file(failed, "data/2.parquet")


def test_the_cause_of_an_error_counts_too() -> None:
    error = Unavailable("the work failed in Spark.")
    error.__cause__ = RuntimeError(
        "org.apache.spark.SparkException: java.lang.OutOfMemoryError: GC overhead limit exceeded"
    )
    assert classify(evidence_of(error)) is Failure.OUT_OF_MEMORY


def test_only_failures_that_fewer_files_may_avoid_are_split() -> None:
    assert {found for found in Failure if found.splittable} == {
        Failure.OUT_OF_MEMORY,
        Failure.KILLED,
        Failure.TIME_LIMIT,
    }
    assert not any(found.discard_worker for found in (Failure.CONFLICT, Failure.FENCED, Failure.CORRUPT_INPUT))
    assert not any(found.discard_worker for found in (Failure.MISSING_FILE, Failure.FOREIGN_COMMIT))


# ---- jobs as data --------------------------------------------------------------------------------------------------


def test_a_job_becomes_json_and_is_read_back_the_same() -> None:
    for made in (job(), job(0, kind=JobKind.FOLD), replace(job(), epoch=None)):
        assert Job.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_jobs_of_one_dataset_run_side_by_side_only_over_other_files() -> None:
    one, other = work(2), replace(work(), files=files(4)[2:])
    assert not exclude_each_other(one, other)
    assert exclude_each_other(one, work(3))
    for kind in (JobKind.FOLD, JobKind.SQUASH, JobKind.VACUUM):
        assert exclude_each_other(one, work(0, kind=kind))
        assert exclude_each_other(work(0, kind=kind), one)
        assert not exclude_each_other(one, work(0, kind=kind, dataset="a.b.c"))


@given(st.integers(0, 200), st.integers(0, MAX_DEPTH))
def test_halves_have_all_files_once_and_never_less_than_the_floor(count: int, depth: int) -> None:
    whole = JobPart(job=job(count), depth=depth)
    parts = split(whole)
    if depth == MAX_DEPTH or count < 2 * FLOOR_FILES:
        assert parts == ()
        return
    first, second = parts
    assert first.job.spec.files + second.job.spec.files == whole.job.spec.files
    assert 0 <= first.files - second.files <= 1
    assert second.files >= FLOOR_FILES
    assert {first.depth, second.depth} == {depth + 1}
    assert len({whole.job.id, first.job.id, second.job.id}) == 3
    assert first.job.spec.cost_bytes == 100 * first.files
    assert first.job.spec.files_after == max(1, -(-100 * first.files // 1000))


@given(st.lists(st.integers(1, 4), max_size=40))
def test_a_fold_is_split_between_two_batches(sizes: list[int]) -> None:
    """Batches with these numbers of files; a part takes the changes up to its last sequence."""
    orders = [order for order, size in enumerate(sizes, 1) for _ in range(size)]
    planned = replace(
        work(0, kind=JobKind.FOLD), files=tuple(FileEntry(f"{n}", 1, order=o) for n, o in enumerate(orders))
    )
    whole = JobPart(job=Job.of(planned, cycle=1, epoch=None))
    parts = split(whole)
    assert whole.job.until is None
    if not parts:
        assert len(orders) < 4 + 2 * max(sizes, default=0)
        return
    first, second = parts
    assert first.job.spec.files + second.job.spec.files == planned.files
    assert min(first.files, second.files) >= FLOOR_FILES
    assert first.job.until is not None
    assert first.job.until + 1 == second.job.spec.files[0].order
    assert second.job.until == orders[-1]


def test_squashes_and_vacuums_cannot_be_split() -> None:
    for kind in (JobKind.SQUASH, JobKind.VACUUM, JobKind.EVENTS):
        assert split(JobPart(job=job(8, kind=kind))) == ()


# ---- execution -----------------------------------------------------------------------------------------------------


class Fake:
    """A runner with a given action for each job."""

    width = 1
    limit_seconds = 0.0

    def __init__(self, run: Callable[[Job], RollUpReport]) -> None:
        self._run = run
        self.seen: list[int] = []
        self.done: list[Job] = []
        self.stopped = threading.Event()

    def run(self, job: Job) -> RollUpReport:
        self.seen.append(len(job.spec.files))
        made = self._run(job)
        self.done.append(job)
        return made

    def stop(self, job: Job) -> None:  # noqa: ARG002
        self.stopped.set()


def carried(runner: Fake, given: Job, *, stopping: Callable[[], bool] = lambda: False) -> JobResult:
    return run_with_retries(given, runner, clock=SystemClock(), stopping=stopping)


def killed_over(limit: int) -> Fake:
    def run(given: Job) -> RollUpReport:
        if len(given.spec.files) > limit:
            raise WorkerLost("killed", ended_with=-9, stderr="")
        return report(given)

    return Fake(run)


def test_thirty_files_with_a_limit_of_seven_are_done_by_halving() -> None:
    runner = killed_over(7)
    done = carried(runner, job(30))
    assert runner.seen == [30, 15, 8, 4, 4, 7, 15, 8, 4, 4, 7]
    assert (done.outcome, done.error, done.attempts) == ("done", None, 11)
    assert done.report is not None
    assert (done.report["files_removed"], done.report["files_added"], done.report["seconds"]) == (30, 6, 6.0)
    assert [one.depth for one in done.failed_attempts] == [0, 1, 2, 1, 2]
    assert all(one.split for one in done.failed_attempts)


def test_splitting_ends_at_its_depth_and_its_floor_and_the_other_parts_continue() -> None:
    def run(given: Job) -> RollUpReport:
        if given.spec.files[0].path.endswith("/0.parquet"):
            raise Unavailable("too little memory", reason=Reason.MEMORY)
        return report(given)

    deep = carried(Fake(run), job(100))
    assert [(one.depth, one.files) for one in deep.failed_attempts] == [(0, 100), (1, 50), (2, 25), (3, 13), (4, 7)]
    assert (deep.outcome, deep.failure) == ("partly", "out_of_memory")
    assert deep.report is not None
    assert deep.report["files_removed"] == 93
    few = carried(Fake(run), job(5))
    assert [(one.depth, one.files, one.split) for one in few.failed_attempts] == [(0, 5, True), (1, 3, False)]
    assert (few.outcome, few.attempts) == ("partly", 3)


def test_a_fold_of_thirty_files_is_done_by_halving_one_part_after_the_other() -> None:
    runner = killed_over(7)
    done = carried(runner, job(30, kind=JobKind.FOLD))
    assert runner.seen == [30, 15, 8, 4, 4, 7, 15, 8, 4, 4, 7]
    assert [one.until for one in runner.done] == [3, 7, 14, 18, 22, 29], "each up to the end of its own files"
    assert (done.outcome, done.attempts) == ("done", 11)


def test_parts_after_a_failed_part_of_a_fold_are_not_attempted() -> None:
    def run(given: Job) -> RollUpReport:
        if len(given.spec.files) > 4 or given.until == 11:
            raise Unavailable("too little memory", reason=Reason.MEMORY)
        return report(given)

    runner = Fake(run)
    done = carried(runner, job(16, kind=JobKind.FOLD))
    assert runner.seen == [16, 8, 4, 4, 8, 4, 2, 2]
    assert (done.outcome, done.failure) == ("partly", "out_of_memory")
    assert done.report is not None
    assert done.report["files_removed"] == 10


def test_a_fold_is_done_up_to_a_change_file_that_cannot_be_read() -> None:
    def run(given: Job) -> RollUpReport:
        if any(file.order >= 3 for file in given.spec.files):
            raise UnreadableFiles("cannot be read", {"data/3.parquet": "no magic", "data/5.parquet": "no magic"})
        return report(given)

    runner = Fake(run)
    done = carried(runner, job(8, kind=JobKind.FOLD))
    assert runner.seen == [8, 3]
    assert (done.outcome, done.failure) == ("partly", "corrupt_input")
    assert done.corrupt == ("data/3.parquet", "data/5.parquet")

    def base_is_broken(_: Job) -> RollUpReport:
        raise UnreadableFiles("cannot be read", {"data/base.parquet": "no magic"})

    failed = carried(Fake(base_is_broken), job(8, kind=JobKind.FOLD))
    assert (failed.outcome, failed.attempts, failed.corrupt) == ("failed", 1, ("data/base.parquet",))


def test_counts_of_changes_in_the_reports_of_a_folds_parts_are_added_up() -> None:
    parts = [
        {"base_rows": 5, "change_files": 2, "files_added": 1, "final_rows": 7, "bytes_before": 50, "bytes_after": 70}
        | {"watermark": 2, "dataset": NAME},
        {"base_rows": 7, "change_files": 3, "files_added": 2, "final_rows": 9, "bytes_before": 70, "bytes_after": 90}
        | {"watermark": 5, "dataset": NAME},
    ]
    assert combined(parts) == {
        "base_rows": 5,
        "change_files": 5,
        "files_added": 3,
        "final_rows": 9,
        "bytes_before": 50,
        "bytes_after": 90,
        "watermark": 5,
        "dataset": NAME,
    }


@pytest.mark.parametrize(
    "error", [Conflict("x"), Fenced("x"), CommitUnknown("x"), OSError(28, "No space left on device")]
)
def test_failures_that_fewer_files_cannot_avoid_are_reported_at_once(error: Exception) -> None:
    def run(_: Job) -> RollUpReport:
        raise error

    done = carried(Fake(run), job(30))
    assert (done.outcome, done.attempts, done.report) == ("failed", 1, None)
    assert done.failure == classify(evidence_of(error))


def test_corrupt_files_are_left_out_one_after_the_other() -> None:
    bad = {"data/1.parquet", "data/3.parquet"}

    def run(given: Job) -> RollUpReport:
        found = [file.path for file in given.spec.files if file.path in bad]
        if found:
            raise UnreadableFiles(f"{found[0]} cannot be read", {found[0]: "no magic"})
        return report(given)

    runner = Fake(run)
    done = carried(runner, job(6))
    assert runner.seen == [6, 5, 4]
    assert (done.outcome, done.failure, set(done.corrupt)) == ("partly", "corrupt_input", bad)
    few = carried(Fake(run), job(2))
    assert (few.outcome, few.corrupt) == ("failed", ("data/1.parquet",))


def test_an_unexpected_error_ends_only_its_own_job() -> None:
    def run(given: Job) -> RollUpReport:
        if given.spec.dataset == "a.b.bad":
            raise KeyError("rows")
        return report(given)

    jobs = tuple(work(3, dataset=name) for name in ("a.b.bad", "a.b.good"))
    plan = Plan(cycle=1, budget_bytes=1, jobs=jobs, left_out=())
    for width in (1, 2):
        runner = Fake(run)
        runner.width = width
        bad, good = run_cycle(plan, runner)
        assert (bad.outcome, bad.failure, bad.error) == ("failed", "unknown", "KeyError: 'rows'")
        assert (good.outcome, good.error) == ("done", None)


def test_a_time_limit_ends_the_attempt_and_the_halves_are_tried() -> None:
    def run(given: Job) -> RollUpReport:
        if len(given.spec.files) > 2:
            assert runner.stopped.wait(10)
            raise WorkerLost("ended", ended_with=-9, stderr="")
        return report(given)

    runner = Fake(run)
    runner.limit_seconds = 0.05
    done = carried(runner, job(4))
    assert (done.outcome, done.attempts) == ("done", 3)
    assert [one.failure for one in done.failed_attempts] == ["time_limit"]


def test_a_cancelled_job_is_ended_and_not_tried_again() -> None:
    stop_requested = threading.Event()

    def run(_: Job) -> RollUpReport:
        stop_requested.set()
        assert runner.stopped.wait(10)
        raise WorkerLost("ended", ended_with=-9, stderr="")

    runner = Fake(run)
    done = carried(runner, job(30), stopping=stop_requested.is_set)
    assert (done.outcome, done.failure, done.attempts) == ("cancelled", "cancelled", 1)


def test_a_runner_that_can_only_run_is_used_as_it_is() -> None:
    class Plain:
        def run(self, job: Job) -> RollUpReport:
            return report(job)

    plan = Plan(cycle=1, budget_bytes=0, jobs=(work(2), work(2, dataset="a.b.c")), left_out=())
    assert [one.outcome for one in run_cycle(plan, Plain())] == ["done", "done"]


# ---- the cycle -----------------------------------------------------------------------------------------------------


class Wide:
    """A runner for several jobs at once that records which jobs ran concurrently."""

    limit_seconds = 0.0

    def __init__(self, width: int) -> None:
        self.width = width
        self.running: dict[str, Job] = {}
        self.together: list[list[Job]] = []
        self.stopped: set[str] = set()
        self._mutex = threading.Lock()

    def run(self, job: Job) -> RollUpReport:
        with self._mutex:
            self.running[job.id] = job
            self.together.append(list(self.running.values()))
        end = time.monotonic() + (20 if job.spec.dataset == "slow.a.b" else 0.05)
        while time.monotonic() < end and job.id not in self.stopped:
            time.sleep(0.005)
        with self._mutex:
            del self.running[job.id]
        if job.id in self.stopped:
            raise WorkerLost("ended", ended_with=-9, stderr="")
        return report(job)

    def stop(self, job: Job) -> None:
        self.stopped.add(job.id)


class Heard:
    """A subscriber that records its events and the threads that delivered them."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.threads: set[int] = set()

    def on_event(self, event: CompactionEvent) -> None:
        self.threads.add(threading.get_ident())
        match event:
            case CycleBegan(plan=plan, jobs=jobs):
                assert len(plan.jobs) == len(jobs)
                self.heard.append("cycle began")
            case JobBegan(job=job):
                self.heard.append(f"began {job.id}")
            case JobEnded(job=job, result=result):
                assert job.id == result.job
                self.heard.append(f"ended {job.id}")
            case JobsEnded(plan=plan, results=results):
                self.heard.append(f"cycle ended {len(plan.jobs)} {len(results)}")
            case _:
                pytest.fail(f"{event} is no event of jobs")


def test_a_cycle_runs_independent_jobs_side_by_side_and_publishes_events_in_one_thread() -> None:
    planned = [
        work(0, kind=JobKind.FOLD),
        work(2),
        replace(work(), files=files(4)[2:]),
        work(0, kind=JobKind.VACUUM),
        work(3, dataset="a.b.c"),
    ]
    runner, heard = Wide(2), Heard()
    plan = Plan(cycle=3, budget_bytes=0, jobs=tuple(planned), left_out=())
    results = run_cycle(plan, runner, subscribers=[heard.on_event])
    assert [(one.kind, one.dataset, one.outcome) for one in results] == [
        (str(one.kind), one.dataset, "done") for one in planned
    ]
    assert max(len(group) for group in runner.together) == 2
    for group in runner.together:
        for one in group:
            assert not any(exclude_each_other(one.spec, other.spec) for other in group if other is not one)
    assert heard.threads == {threading.get_ident()}
    assert heard.heard[0] == "cycle began"
    assert heard.heard[-1] == "cycle ended 5 5"
    for result in results:
        assert heard.heard.index(f"began {result.job}") < heard.heard.index(f"ended {result.job}")


def test_a_stopping_cycle_cancels_running_jobs_and_begins_no_other() -> None:
    runner, heard = Wide(2), Heard()
    plan = Plan(cycle=3, budget_bytes=0, jobs=(work(2, dataset="slow.a.b"),) * 4, left_out=())
    results = run_cycle(plan, runner, subscribers=[heard.on_event], stopping=lambda: bool(runner.together))
    assert [one.outcome for one in results] == ["cancelled"]
    assert heard.heard[-1] == "cycle ended 4 1"


def test_an_interrupt_of_a_cycle_ends_its_jobs() -> None:
    def interrupt(event: CompactionEvent) -> None:
        if isinstance(event, JobEnded):
            raise KeyboardInterrupt

    runner = Wide(2)
    plan = Plan(cycle=3, budget_bytes=0, jobs=(work(2), work(2, dataset="slow.a.b")), left_out=())
    with pytest.raises(KeyboardInterrupt):
        run_cycle(plan, runner, subscribers=[interrupt])
    assert len(runner.stopped) == 1
    assert not runner.running


def test_a_second_interrupt_of_a_cycle_ends_its_jobs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(event: CompactionEvent) -> None:
        if isinstance(event, JobEnded):
            raise KeyboardInterrupt

    set_event, this_thread = threading.Event.set, threading.get_ident()

    def interrupted(event: threading.Event) -> None:
        if threading.get_ident() == this_thread:
            raise KeyboardInterrupt
        set_event(event)

    runner = Wide(2)
    plan = Plan(cycle=3, budget_bytes=0, jobs=(work(2), work(2, dataset="slow.a.b")), left_out=())
    monkeypatch.setattr(threading.Event, "set", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_cycle(plan, runner, subscribers=[interrupt])
    assert len(runner.stopped) == 1


# ---- jobs that need no Spark ---------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    opened = Lake.open(tmp_path / "lake", settings=FAST)
    log = opened.create(NAME, "at TIMESTAMP NOT NULL, n BIGINT", time="at")
    for n in range(3):
        log.append([{"at": "2026-11-15T14:00:00Z", "n": n}])
    return opened


def squash(lake: Lake, epoch: int | None) -> JobResult:
    plan = Plan(cycle=3, budget_bytes=0, jobs=(work(0, kind=JobKind.SQUASH),), left_out=())
    (done,) = run_cycle(plan, InlineRunner(compactor_of(lake), stores_of(lake)), epoch=epoch)
    return done


def test_a_squash_carries_the_epoch_and_the_name_of_its_job(lake: Lake) -> None:
    done = squash(lake, 4)
    assert done.outcome == "done"
    changes = stores_of(lake)(NAME).changes
    pinned = changes.pin(APP_EPOCH)
    assert pinned.transactions[APP_EPOCH] == 4
    assert read_entry(changes.path, pinned.version).info[JOB] == done.job
    (output,), (file,) = done.outputs, pinned.files
    assert (output.path, output.rows, output.bytes) == (file.path, file.rows, file.size_bytes)
    lake.dataset(NAME).append([{"at": "2026-11-15T14:00:00Z", "n": 9}])
    late = squash(lake, 3)
    assert (late.outcome, late.failure) == ("failed", "fenced")
    assert len(changes.pin().files) == 2
    assert lake.dataset(NAME).status().unreferenced_files == 3, (
        "what the first squash removed, and nothing of the second"
    )
    assert squash(lake, None).outcome == "done", "a writer's own squash knows no lease"


def test_an_error_of_the_disk_in_a_job_is_classified(lake: Lake) -> None:
    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    with arm("squash.after_write", full):
        done = squash(lake, None)
    assert (done.outcome, done.failure) == ("failed", "disk_full")
    assert (done.error_kind, done.error_reason) == ("unavailable", "disk_full")
    assert NAME in (done.error or "")


def met(lake: Lake, error: OSError) -> SiltstoneError:
    """Return the error that a fold raises for this error of a write."""
    store = stores_of(lake)(NAME)
    with (
        pytest.raises(SiltstoneError) as found,
        spark_failures(store, store.snapshot(), changes=store.snapshot().unfolded),
        disk_failures(store),
    ):
        raise error
    return found.value


def test_a_lost_connection_to_the_jvm_is_not_an_error_of_the_disk(lake: Lake) -> None:
    full = met(lake, OSError(28, "No space left on device"))
    assert (type(full), full.reason) == (Unavailable, Reason.DISK_FULL)
    found = met(lake, ConnectionRefusedError(111, "Connection refused"))
    assert (type(found), found.reason) == (Unavailable, Reason.SPARK_LOST)
    assert "[Errno 111] Connection refused." in str(found)
    assert classify(evidence_of(found)) is Failure.UNKNOWN


def test_a_fold_whose_jvm_ran_out_of_memory_is_split(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as jvm:
        replace_own_jvms(monkeypatch, [jvm.pid])
        found = met(lake, ConnectionRefusedError(111, "Connection refused"))
    assert (type(found), found.reason) == (Unavailable, Reason.MEMORY)
    failure = classify(evidence_of(found))
    assert (failure, failure.splittable) == (Failure.OUT_OF_MEMORY, True)


def test_a_job_and_its_report_pass_between_processes_unchanged() -> None:
    from siltstone.compaction.execution.worker_pool import report_from

    files = tuple(
        FileEntry(f"data/{n}", n, rows=n, partition=(("region", None), ("day", "1")), order=n) for n in (1, 2)
    )
    spec = replace(job(2).spec, files=files, partition=(("region", None),), by=("a", "b"), retention_hours=1.5)
    whole = replace(job(2), spec=spec, epoch=7)
    for sent in (whole, whole.part(1, files[:1]), job(1)):
        assert Job.from_dict(json.loads(json.dumps(sent.to_dict()))) == sent
    outputs = (OutputFile(path="data/1", rows=1, bytes=2, sha256="ab"),)
    rolled = replace(report(whole), outputs=outputs)
    assert report_from(JobKind.ROLL_UP, json.loads(json.dumps(rolled.to_dict()))) == rolled


def test_every_kind_of_job_on_spark_has_a_report_that_a_worker_can_send() -> None:
    from siltstone.compaction.execution.worker_pool import REPORTS

    assert set(REPORTS) == ON_SPARK


def test_a_worker_can_return_every_error_of_ours() -> None:
    from siltstone.compaction.execution.worker_main import failed
    from siltstone.compaction.execution.worker_pool import error_from

    for kind in SiltstoneError.__subclasses__():
        for reason in (None, *Reason):
            back = error_from(json.loads(json.dumps(failed(kind("what happened", reason=reason)))))
            assert (type(back), back.reason, str(back)) == (kind, reason, "what happened")
    broken = error_from(json.loads(json.dumps(failed(UnreadableFiles("x", {"a": "b"})))))
    assert isinstance(broken, UnreadableFiles)
    assert broken.files == {"a": "b"}
    full = error_from(json.loads(json.dumps(failed(OSError(28, "No space left on device")))))
    assert (type(full), full.reason) == (Unavailable, Reason.DISK_FULL)


def test_a_worker_returns_the_innermost_cause_of_a_long_stack_trace() -> None:
    from siltstone.compaction.execution.worker_main import failed
    from siltstone.compaction.execution.worker_pool import error_from

    error = Unavailable("The work failed in Spark.")
    error.__cause__ = RuntimeError(
        "\n\tat a.b.C.d(C.java:7)" * 2000 + "\nCaused by: java.io.IOException: File too large"
    )
    assert classify(evidence_of(error)) is Failure.DISK_FULL
    assert classify(evidence_of(error_from(json.loads(json.dumps(failed(error)))))) is Failure.DISK_FULL


def test_a_worker_whose_jvm_was_killed_reports_it_and_the_job_can_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    from siltstone.compaction.execution.worker_main import failed
    from siltstone.compaction.execution.worker_pool import error_from

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as jvm:
        replace_own_jvms(monkeypatch, [jvm.pid])
        alive = error_from(json.loads(json.dumps(failed(Unavailable("Spark refused")))))
        assert classify(evidence_of(alive)) is Failure.UNKNOWN
        jvm.kill()
        gone = ConnectionRefusedError(111, "Connection refused")
        answer = json.loads(json.dumps(failed(gone)))
        fenced = json.loads(json.dumps(failed(Fenced("another holder"))))
    error = error_from(answer)
    assert "SIGKILL" in str(error)
    assert classify(evidence_of(error)) is Failure.KILLED
    assert classify(evidence_of(error)).splittable
    assert classify(evidence_of(error_from(fenced))) is Failure.FENCED


def test_a_worker_that_dies_while_it_is_taken_is_not_closed_under_its_job(lake: Lake) -> None:
    from siltstone.compaction.execution.worker_pool import WorkerPool

    class Dying:
        """A worker whose process ends between the first and the second check."""

        checks = 0
        closed = False

        def alive(self) -> bool:
            self.checks += 1
            return self.checks == 1

        def close(self) -> None:
            self.closed = True

    pool = WorkerPool(
        lake.path, settings=lake.settings, clock=SystemClock(), operations=compactor_of(lake), store=stores_of(lake)
    )
    dying = Dying()
    worker: Any = dying
    idle_workers(pool).append(worker)
    assert taken_worker(pool, job(2)) is worker
    assert (dying.closed, idle_workers(pool)) == (False, []), "the job finds out that its worker has ended"
