"""Jobs in the session of this process: they can be cancelled and limited, and Spark really stops."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from siltstone import Dataset, Lake
from siltstone.compaction import roll_up
from siltstone.compaction.attempts import WorkerLost
from siltstone.compaction.cycle import run_cycle
from siltstone.compaction.jobs import Job, Runner
from siltstone.config import JobPlace
from siltstone.failpoints import arm
from siltstone.model.columns import APP_EPOCH, JOB
from siltstone.model.results import JobResult
from siltstone.storage.log import read_entry
from tests.support.faulty_worker import spark_is_writing
from tests.support.rolled import AT, SETTINGS, base_files, leftovers, make_log, numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.compaction.jobs import Report


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=replace(SETTINGS, jobs=JobPlace.INLINE)) as opened:
        yield opened


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roll-ups go by Spark's shuffle, which takes long enough to be met in the middle."""
    monkeypatch.setattr(roll_up, "pressed", lambda *_, **__: None)


@pytest.mark.usefixtures("slow")
def test_a_cancelled_job_is_interrupted_in_spark_and_can_be_done_later(lake: Lake) -> None:
    log = make_log(lake, files=4, rows=200_000)
    before = set(base_files(log))
    plan = lake.plan(only=["daily"], force=True)
    (done,) = run_cycle(plan, lake.runner(), stopping=lambda: spark_is_writing(lake.path))
    assert (done.outcome, done.failure, done.attempts) == ("cancelled", "cancelled", 1), done
    assert set(base_files(log)) == before
    log.compact()  # recovery takes what is left
    assert leftovers(log) == 0
    (done,) = lake.run_cycle(only=["daily"], force=True)
    assert (done.outcome, done.error) == ("done", None)
    assert numbers(log) == dict.fromkeys(range(800_000), 1)


@pytest.mark.usefixtures("slow")
def test_a_time_limit_ends_a_job_and_its_halves(lake: Lake) -> None:
    log = make_log(lake, files=4, rows=200_000)
    runner = lake.runner()
    runner.limit_seconds = 0.15
    (done,) = run_cycle(lake.plan(only=["daily"], force=True), runner)
    assert (done.outcome, done.failure, done.attempts) == ("failed", "time_limit", 3), done
    assert len(base_files(log)) == 4


def test_an_inline_fold_carries_the_epoch_and_the_name_of_its_job(lake: Lake) -> None:
    log = make_log(lake, files=0)
    log.append([{"at": AT, "visitor": "V-1", "n": 1}])
    (done,) = run_cycle(lake.plan(only=["fold"], force=True), lake.runner(), epoch=8)
    assert done.outcome == "done"
    pinned = log._store.base.pin(APP_EPOCH)
    assert pinned.transactions[APP_EPOCH] == 8
    assert read_entry(log._store.base.path, pinned.version).info[JOB] == done.job
    assert [output.rows for output in done.outputs] == [1]


def test_one_job_that_meets_a_full_disk_does_not_stop_the_next(lake: Lake) -> None:
    names = ["web.eu.one", "web.eu.two"]
    logs = [make_log(lake, files=2, name=name) for name in names]
    once = threading.Event()

    def full(_: str) -> None:
        if not once.is_set():
            once.set()
            raise OSError(28, "No space left on device")

    with arm("roll_up.after_write", full):
        first, second = lake.run_cycle(only=["daily"], force=True)
    assert (first.failure, second.outcome) == ("disk_full", "done")
    assert [len(base_files(log)) for log in logs] == [2, 1]
    assert leftovers(logs[0]) == 0


# ---- folds in parts --------------------------------------------------------------------------------------------------


class Small:
    """Does jobs of at most so many files; a larger one is killed, as by a system that is short of memory."""

    def __init__(self, runner: Runner, most: int) -> None:
        self._runner = runner
        self._most = most
        self.after: list[Any] = []
        """What `look` says after each part."""
        self.look: Callable[[], Any] = lambda: None

    def run(self, job: Job) -> "Report":
        """Do one job, or die."""
        if len(job.planned.files) > self._most:
            raise WorkerLost("killed", ended_with=-9, said="")
        report = self._runner.run(job)
        self.after.append(self.look())
        return report


def folded_in_parts(lake: Lake, dataset: Dataset, most: int) -> JobResult:
    """Fold a dataset, of which no part may have more files; every part leaves what was there, folded a bit further."""
    small = Small(lake.runner(), most)
    before = sorted(map(str, dataset.to_arrow().to_pylist()))
    small.look = lambda: (sorted(map(str, dataset.to_arrow().to_pylist())), dataset.status().watermark)
    files, sequence = dataset.status().backlog_files, dataset.status().sequence
    (done,) = run_cycle(lake.plan(only=["fold"], force=True), small)
    assert (done.outcome, done.error) == ("done", None)
    assert all(rows == before for rows, _ in small.after)
    marks = [mark for _, mark in small.after]
    assert marks == sorted(marks)
    assert marks[-1] == sequence
    assert done.report is not None
    assert (done.report["change_files"], done.report["watermark"]) == (files, sequence)
    assert done.report["final_rows"] == len(before) == dataset.status().rows_in_base
    return done


def test_a_fold_of_a_log_that_is_too_large_is_done_in_parts(lake: Lake) -> None:
    log = make_log(lake, files=1)
    for n in range(12):
        log.append([{"at": AT, "visitor": f"V-{n % 3}", "n": 1000 + n}])
        if n in (3, 8):
            log.tombstone(["V-1"])
    done = folded_in_parts(lake, log, 4)
    assert [one.files for one in done.failed_attempts] == [14, 7, 7]
    assert done.attempts == 7


def test_a_fold_of_a_keyed_dataset_that_is_too_large_is_done_in_parts(lake: Lake) -> None:
    people = lake.create("crm.sales.people", "id STRING NOT NULL, n BIGINT", key="id")
    people.upsert([{"id": f"P-{n}", "n": n} for n in range(20)])
    people.compact()
    for n in range(10):
        people.upsert([{"id": f"P-{n}", "n": 100 + n}, {"id": "P-3", "n": 200 + n}, {"id": f"N-{n}", "n": n}])
        if n % 4 == 1:
            people.tombstone(["P-3", f"N-{n - 1}"])
    done = folded_in_parts(lake, people, 4)
    assert [one.files for one in done.failed_attempts] == [13, 7, 6]


def test_a_part_of_a_fold_that_ends_inside_a_squashed_file_folds_what_comes_before_it(lake: Lake) -> None:
    log = make_log(lake, files=0)
    for n in range(6):
        log.append([{"at": AT, "visitor": "V-1", "n": n}])
    plan = lake.plan(only=["fold"], force=True)
    small = Small(lake.runner(), 3)
    small.look = lambda: log.status().watermark
    log.squash()
    (done,) = run_cycle(plan, small)
    assert (done.outcome, small.after) == ("done", [0, 6])
    assert numbers(log) == dict.fromkeys(range(6), 1)
