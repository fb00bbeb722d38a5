"""Jobs in the session of this process: they can be cancelled and limited, and Spark really stops."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from siltstone import Lake
from siltstone.compaction import roll_up
from siltstone.compaction.cycle import run_cycle
from siltstone.config import JobPlace
from siltstone.failpoints import arm
from siltstone.model.columns import APP_EPOCH, JOB
from siltstone.storage.log import read_entry
from tests.support.faulty_worker import spark_is_writing
from tests.support.rolled import AT, SETTINGS, base_files, leftovers, make_log, numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
