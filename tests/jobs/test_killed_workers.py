"""Workers and parents that die: nothing is lost or doubled, jobs are retried or reported, and no JVM stays.

The order minimizes starts of a JVM: tests that keep the warm worker alive are first.
"""

import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from siltstone import Lake
from siltstone.compaction.execution.cycle_runner import run_cycle
from siltstone.compaction.execution.retry import FLOOR_FILES, MAX_DEPTH
from siltstone.compaction.execution.worker_main import session_members
from siltstone.compaction.operations.cluster import whole_base
from siltstone.compaction.planning.model import Plan
from siltstone.model.columns import PERIOD
from siltstone.model.commit import Commit, CommitKind
from tests.jobs.conftest import OpenLake
from tests.support.children import Child, children_of
from tests.support.faulty_worker import arrange, spark_is_writing
from tests.support.folds import stage
from tests.support.internals import busy_workers, pool_of, store_of
from tests.support.roll_ups import AT, HOUR, NAME, SETTINGS, base_files, leftovers, make_log, numbers

pytestmark = pytest.mark.spark
PLACES = {"job.began", "job.done"}
GONE_SECONDS = 60.0
"""Longest wait for the end of a killed JVM.

The kill is immediate, but a busy machine delays the killer and the kernel.
"""


def wait_for(what: Callable[[], bool], seconds: float = 180.0) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.02)
    return what()


def run_one_cycle(path: str) -> None:
    """Runs in a child: a lake whose jobs run in its own workers."""
    with Lake.open(path, settings=SETTINGS) as lake:
        lake.run_cycle(only=["daily"], force=True)


def test_a_worker_that_is_killed_over_seven_files_finishes_thirty_by_halving(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=30)
    arrange(lake.path, kill_over=7)
    (done,) = lake.run_cycle(only=["daily"], force=True)
    assert (done.outcome, done.error, done.failure) == ("done", None, None)
    failed = [(one.depth, one.files, one.failure, one.split) for one in done.failed_attempts]
    assert failed == [
        (0, 30, "killed", True),
        (1, 15, "killed", True),
        (2, 8, "killed", True),
        (1, 15, "killed", True),
        (2, 8, "killed", True),
    ]
    assert done.attempts == 11  # and six that succeeded: 4, 4 and 7 files, twice
    assert max(depth for depth, *_ in failed) < MAX_DEPTH
    assert min(files for _, files, *_ in failed) >= FLOOR_FILES
    assert done.report is not None
    assert (done.report["files_removed"], done.report["rows"]) == (30, 300)
    assert len(base_files(log)) == 6
    assert numbers(log) == dict.fromkeys(range(300), 1)


@pytest.mark.parametrize(
    ("files", "failed", "attempts"),
    [(14, [14], 3), pytest.param(30, [30, 15, 8, 15, 8], 11, marks=pytest.mark.deep)],
)
def test_a_worker_that_is_killed_over_seven_files_finishes_a_fold_by_halving(
    open_lake: OpenLake, files: int, failed: list[int], attempts: int
) -> None:
    lake = open_lake(squash_files=0)
    log = make_log(lake, files=1)
    for n in range(files - 1):
        log.append([{"at": AT, "visitor": f"V-{n}", "n": 1000 + n}])
    log.tombstone(["V-0"])
    arrange(lake.path, kill_over=7)
    (done,) = lake.run_cycle(only=["fold"], force=True)
    assert (done.outcome, done.error, done.attempts) == ("done", None, attempts)
    assert [(one.files, one.failure, one.split) for one in done.failed_attempts] == [
        (n, "killed", True) for n in failed
    ]
    assert max(one.depth for one in done.failed_attempts) < MAX_DEPTH
    assert done.report is not None
    assert (done.report["change_files"], done.report["watermark"], done.report["batches_folded"]) == (files,) * 3
    assert (log.status().backlog_files, log.status().watermark) == (0, files)
    assert numbers(log) == dict.fromkeys([*range(10), *range(1001, 999 + files)], 1)


def test_a_worker_killed_in_the_middle_of_spark_loses_and_doubles_nothing(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=3, rows=50_000)  # too few to be split: the job is retried unchanged
    arrange(lake.path, kill_in_spark=True, once=True)
    (done,) = lake.run_cycle(only=["daily"], force=True)
    assert (done.outcome, done.attempts) == ("done", 2)
    (failed,) = done.failed_attempts
    assert (failed.failure, failed.split) == ("killed", False)
    assert "SIGKILL" in failed.error
    assert numbers(log) == dict.fromkeys(range(150_000), 1)
    assert len(base_files(log)) == 1
    assert leftovers(log) == 3, "only the three that were removed"


def test_a_jvm_that_is_killed_inside_a_living_worker_is_answered_by_halving(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=6, rows=20_000)
    arrange(lake.path, kill_jvm_over=4)
    (done,) = lake.run_cycle(only=["daily"], force=True)
    assert done.outcome == "done", done
    assert [(one.failure, one.files, one.split) for one in done.failed_attempts] == [("killed", 6, True)]
    assert "SIGKILL" in done.failed_attempts[0].error
    assert numbers(log) == dict.fromkeys(range(120_000), 1)


def test_a_killed_parent_leaves_no_worker_and_no_jvm(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=4, rows=200_000)
    child = Child(f"{__name__}:run_one_cycle", {"path": str(lake.path)})
    assert wait_for(lambda: spark_is_writing(lake.path)), child.wait(1).stderr
    (worker,) = children_of(child.pid)
    members = session_members(worker)
    assert len(members) >= 2, "the worker and its JVM"
    child.kill()
    assert wait_for(lambda: not session_members(worker), GONE_SECONDS)
    child.wait()
    assert len(base_files(log)) == 4
    assert [one.outcome for one in lake.run_cycle([NAME], only=["daily"], force=True)] == ["done"]
    assert numbers(log) == dict.fromkeys(range(800_000), 1)


@pytest.mark.deep
def test_two_datasets_are_done_side_by_side_by_two_workers(open_lake: OpenLake) -> None:
    lake = open_lake()
    names = ["web.eu.one", "web.eu.two"]
    for name in names:
        make_log(lake, files=3, rows=50_000, name=name)
    at_once: set[int] = set()

    def look() -> bool:
        at_once.add(len(busy_workers(pool_of(lake))))
        return False

    done = run_cycle(lake.plan(only=["daily"], force=True), lake.maintenance.runner(), stopping=look)
    assert [(one.dataset, one.outcome) for one in done] == [(name, "done") for name in names]
    assert max(at_once) == 2


@pytest.mark.parametrize("kind", ["daily", pytest.param("fold", marks=pytest.mark.deep)])
def test_a_job_whose_worker_dies_after_the_commit_is_found_in_the_log_and_not_done_again(
    kind: str, open_lake: OpenLake
) -> None:
    lake = open_lake()
    log = make_log(lake, files=6)
    log.append([{"at": AT, "visitor": "V-9", "n": 9999}])
    arrange(lake.path, kill="job.done")
    (done,) = lake.run_cycle(only=[kind], force=True)
    assert (done.outcome, done.attempts, done.failed_attempts) == ("done", 1, ())
    assert done.report is not None
    assert done.report["recovered"]
    assert len(done.outputs) == done.report["files_added"] == 1
    assert numbers(log) == dict.fromkeys([*range(60), 9999], 1)
    assert log.status().backlog_batches == (0 if kind == "fold" else 1)


def test_a_cancelled_job_really_ends_in_spark_and_leaves_only_what_the_sweep_takes(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=4, rows=200_000)
    before = set(base_files(log))
    workers: set[int] = set()

    def stopping() -> bool:
        workers.update(worker.pid for worker in busy_workers(pool_of(lake)).values())
        return spark_is_writing(lake.path)

    (done,) = run_cycle(lake.plan(only=["daily"], force=True), lake.maintenance.runner(), stopping=stopping)
    assert (done.outcome, done.failure, done.attempts) == ("cancelled", "cancelled", 1)
    (worker,) = workers
    assert session_members(worker) == set()
    assert set(base_files(log)) == before
    assert leftovers(log) == 0, "recovery came after the worker"
    assert not list(store_of(log).base.path.rglob("_temporary"))


@pytest.mark.deep
@pytest.mark.parametrize("place", ["roll_up.after_write", "commit.before_entry", "roll_up.after_commit"])
def test_a_worker_that_dies_at_any_step_of_a_job_leaves_it_done_once(place: str, open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=6)
    arrange(lake.path, kill=place, once=True)
    (done,) = lake.run_cycle(only=["daily"], force=True)
    assert done.outcome == "done"
    assert done.attempts == (1 if place.endswith("commit") else 3)
    assert numbers(log) == dict.fromkeys(range(60), 1)
    assert len(base_files(log)) == (1 if place.endswith("commit") else 2)


def test_a_time_limit_ends_the_attempt_and_its_halves_and_nothing_changes(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True, job_minutes=0.02)  # less than a JVM takes to start
    log = make_log(lake, files=5)
    (done,) = lake.run_cycle(only=["daily"], force=True)
    assert (done.outcome, done.failure, done.attempts) == ("failed", "time_limit", 3)
    assert [(one.depth, one.files, one.split) for one in done.failed_attempts] == [
        (0, 5, True),
        (1, 3, False),
        (1, 2, False),
    ]
    assert "job_minutes" in (done.error or "")
    assert len(base_files(log)) == 5


def test_a_real_out_of_memory_error_of_the_jvm_is_classified(open_lake: OpenLake) -> None:
    lake = open_lake(fresh=True, worker_memory_mb=512)
    log = make_log(lake, files=1)
    store = store_of(log)
    big = pa.table(
        [
            pa.array([AT], pa.timestamp("us", tz="UTC")),
            pa.array(["x" * 250_000_000]),
            pa.array([10], pa.int32()),
            pa.array([AT], pa.timestamp("us", tz="UTC")),
            pa.array(["batch"]),
        ],
        schema=store.base_schema,
    )
    staged = stage(store, store.base, big, {PERIOD: HOUR})
    version = store.base.pin().version
    store.base.commit(lambda _: Commit(kind=CommitKind.FOLD, plan_version=version, adds=(staged,)))
    plan = Plan(cycle=1, budget_bytes=0, jobs=tuple(whole_base(store)), left_out=())  # done in the JVM, not in Python
    (done,) = run_cycle(plan, lake.maintenance.runner())
    assert (done.outcome, done.failure) == ("failed", "out_of_memory"), done
    assert done.attempts == 1
    assert {one.failure for one in done.failed_attempts} == {"out_of_memory"}
    assert "worker_memory_mb" in (done.error or "")
    assert len(base_files(log)) == 2
