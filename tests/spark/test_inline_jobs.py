"""Jobs in the session of this process: they can be cancelled and have time limits, and Spark really stops."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, Lake
from siltstone.compaction.execution.cycle_runner import run_cycle
from siltstone.compaction.execution.job import Job, Runner
from siltstone.compaction.failures import WorkerLost
from siltstone.compaction.operations import roll_up
from siltstone.config import JobPlace
from siltstone.delta.log_reader import read_entry
from siltstone.failpoints import arm
from siltstone.model.columns import APP_EPOCH, JOB
from siltstone.model.reports import JobResult
from tests.support.faulty_worker import spark_is_writing
from tests.support.internals import store_of
from tests.support.roll_ups import AT, SETTINGS, base_files, leftovers, make_log, numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.compaction.execution.job import JobReport


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=replace(SETTINGS, jobs=JobPlace.INLINE)) as opened:
        yield opened


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roll-ups use Spark's shuffle, which is slow enough to be interrupted."""
    monkeypatch.setattr(roll_up, "merge_small_files", lambda *_, **__: None)


@pytest.mark.usefixtures("slow")
def test_a_cancelled_job_is_interrupted_in_spark_and_can_be_done_later(lake: Lake) -> None:
    log = make_log(lake, files=4, rows=200_000)
    before = set(base_files(log))
    plan = lake.plan(only=["daily"], force=True)
    (done,) = run_cycle(plan, lake.maintenance.runner(), stopping=lambda: spark_is_writing(lake.path))
    assert (done.outcome, done.failure, done.attempts) == ("cancelled", "cancelled", 1), done
    assert set(base_files(log)) == before
    log.compact()  # recovery handles the rest
    assert leftovers(log) == 0
    (done,) = lake.run_cycle(only=["daily"], force=True)
    assert (done.outcome, done.error) == ("done", None)
    assert numbers(log) == dict.fromkeys(range(800_000), 1)


@pytest.mark.usefixtures("slow")
def test_a_time_limit_ends_a_job_and_its_halves(lake: Lake) -> None:
    log = make_log(lake, files=4, rows=200_000)
    runner = lake.maintenance.runner()
    runner.limit_seconds = 0.15
    (done,) = run_cycle(lake.plan(only=["daily"], force=True), runner)
    assert (done.outcome, done.failure, done.attempts) == ("failed", "time_limit", 3), done
    assert len(base_files(log)) == 4


def test_an_inline_fold_carries_the_epoch_and_the_name_of_its_job(lake: Lake) -> None:
    log = make_log(lake, files=0)
    log.append([{"at": AT, "visitor": "V-1", "n": 1}])
    (done,) = run_cycle(lake.plan(only=["fold"], force=True), lake.maintenance.runner(), epoch=8)
    assert done.outcome == "done"
    pinned = store_of(log).base.pin(APP_EPOCH)
    assert pinned.transactions[APP_EPOCH] == 8
    assert read_entry(store_of(log).base.path, pinned.version).info[JOB] == done.job
    assert [output.rows for output in done.outputs] == [1]


def test_a_full_disk_in_one_job_does_not_stop_the_next(lake: Lake) -> None:
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
    """Runs jobs up to a number of files; a larger job is killed, as when memory is short."""

    def __init__(self, runner: Runner, most: int) -> None:
        self._runner = runner
        self._most = most
        self.after: list[Any] = []
        """Results of `look` after each part."""
        self.look: Callable[[], Any] = lambda: None

    def run(self, job: Job) -> "JobReport":
        """Run one job, or raise the error of a killed process."""
        if len(job.spec.files) > self._most:
            raise WorkerLost("killed", ended_with=-9, stderr="")
        report = self._runner.run(job)
        self.after.append(self.look())
        return report


def folded_in_parts(lake: Lake, dataset: Dataset, most: int) -> JobResult:
    """Fold a dataset with a limit of files per part.

    After every part the rows are the same and the backlog is smaller.
    """
    small = Small(lake.maintenance.runner(), most)
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
    small = Small(lake.maintenance.runner(), 3)
    small.look = lambda: log.status().watermark
    log.squash()
    (done,) = run_cycle(plan, small)
    assert (done.outcome, small.after) == ("done", [0, 6])
    assert numbers(log) == dict.fromkeys(range(6), 1)


# ---- inputs that cannot be used ----------------------------------------------------------------------------------------


def test_a_fold_goes_up_to_a_change_file_that_cannot_be_read(lake: Lake) -> None:
    log = make_log(lake, files=1)
    people = lake.create("crm.sales.people", "id STRING NOT NULL, n BIGINT", key="id")
    broken = {}
    for n in range(5):
        log.append([{"at": AT, "visitor": "V-9", "n": 1000 + n}])
        people.upsert([{"id": "P-1", "n": n}])
    for dataset in (log, people):
        file = store_of(dataset).snapshot().unfolded[3]
        broken[str(dataset.name)] = file.path
        path = store_of(dataset).changes.path / file.path
        path.write_bytes(path.read_bytes()[:-50])
    done = lake.run_cycle(only=["fold"], force=True)
    assert {one.dataset for one in done} == broken.keys()
    for one in done:
        assert (one.outcome, one.failure, one.attempts) == ("partly", "corrupt_input", 2), one
        assert one.corrupt == (broken[one.dataset],)
        assert broken[one.dataset] in (one.error or "")
    for dataset in (log, people):
        found = store_of(dataset).snapshot()
        assert (found.watermark, found.sequence, len(found.unfolded)) == (3, 5, 2)
        assert found.base.rows == (13 if dataset is log else 1)
        assert (store_of(dataset).changes.path / broken[str(dataset.name)]).exists()
    again = lake.run_cycle(only=["fold"], force=True)
    assert [(one.outcome, one.failure) for one in again] == [("failed", "corrupt_input")] * 2


def test_a_fold_that_has_to_rewrite_a_broken_file_of_base_names_it_and_changes_nothing(lake: Lake) -> None:
    log = make_log(lake, files=1)
    (bad,) = base_files(log)
    data = bytearray(bad.read_bytes())
    data[40:140] = bytes(100)
    bad.write_bytes(data)
    log.tombstone(["V-1V-1V-1"])
    (done,) = lake.run_cycle(only=["fold"], force=True)
    assert (done.outcome, done.failure, done.attempts) == ("failed", "corrupt_input", 1), done
    assert done.corrupt == (bad.relative_to(store_of(log).base.path).as_posix(),)
    assert (log.status().watermark, log.status().backlog_batches) == (0, 1)
    assert leftovers(log) == 0


def test_a_file_with_other_columns_stays_and_the_others_are_rolled_up(lake: Lake) -> None:
    log = make_log(lake, files=4)
    foreign, _, _, _ = base_files(log)
    rows = pq.read_table(foreign, partitioning=None)
    pq.write_table(rows.set_column(2, "n", pa.array([f"{n}x" for n in range(10)])), foreign)
    (done,) = lake.run_cycle(only=["daily"], force=True)
    assert (done.outcome, done.failure) == ("partly", "corrupt_input"), done
    assert done.corrupt == (foreign.relative_to(store_of(log).base.path).as_posix(),)
    assert "n (string, not int32)" in (done.error or "")
    assert foreign.exists()
    assert len(base_files(log)) == 2


def test_change_files_from_before_and_after_a_change_of_columns_are_folded_in_one(lake: Lake) -> None:
    log = make_log(lake, files=1)
    log.append([{"at": AT, "visitor": "V-1", "n": 1000}])
    log.alter(add="region STRING", defaults={"region": "eu"}, widen={"n": "BIGINT"})
    log.append([{"at": AT, "visitor": "V-1", "n": 2**40, "region": "us"}])
    log.tombstone(["V-0V-0V-0"])
    expected = sorted(map(str, log.to_arrow().to_pylist()))
    (done,) = lake.run_cycle(only=["fold"], force=True)
    assert (done.outcome, done.error) == ("done", None)
    assert sorted(map(str, log.to_arrow().to_pylist())) == expected
    assert log.status().backlog_batches == 0


def test_a_fold_beside_a_change_of_columns_is_refused_and_done_by_the_next_cycle(lake: Lake) -> None:
    log = make_log(lake, files=0)
    log.append([{"at": AT, "visitor": "V-1", "n": 1}])
    other = lake.dataset(str(log.name))

    def alter(_: str) -> None:
        other.alter(add="region STRING")

    with arm("fold.before_commit", alter):
        (done,) = lake.run_cycle(only=["fold"], force=True)
    assert (done.outcome, done.failure) == ("failed", "schema_changed"), done
    assert (log.status().watermark, leftovers(log)) == (0, 0)
    assert [one.outcome for one in lake.run_cycle(only=["fold"], force=True)] == ["done"]
