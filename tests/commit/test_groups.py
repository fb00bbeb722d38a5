"""The writer queue on a real dataset: threads that write at once share commits, and each gets its own sequence."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.dataset.dataset import Dataset
from siltstone.errors import Unavailable
from siltstone.lake import Lake
from siltstone.model.reports import Ack
from tests.support.faults import FaultyEntry, Write, lands_then_raises, raises
from tests.support.internals import parts_of, queue_of, store_of, waiting_in, without_leader
from tests.support.tables import FAST

THREADS = 64


def opened(root: Path, **settings: object) -> Dataset:
    lake = Lake.open(root, settings=replace(FAST, **settings))  # type: ignore[arg-type]
    return lake.create("a.b.c", "id BIGINT NOT NULL", key="id")


def ids(people: Dataset) -> list[int]:
    return sorted(people.to_arrow().column("id").to_pylist())


def version(people: Dataset) -> int:
    return store_of(people).changes.version()


def test_64_threads_share_commits_and_get_gapless_sequences(tmp_path: Path):
    people = opened(tmp_path / "lake")
    barrier = threading.Barrier(THREADS)

    def write(number: int) -> Ack:
        barrier.wait()
        return people.upsert([{"id": number}])

    with ThreadPoolExecutor(THREADS) as pool:
        acks = list(pool.map(write, range(THREADS)))
    assert sorted(ack.sequence or 0 for ack in acks) == list(range(1, THREADS + 1))
    assert all(ack.applied and ack.rows == 1 for ack in acks)
    assert version(people) < THREADS
    assert ids(people) == list(range(THREADS))


@contextlib.contextmanager
def held_back(people: Dataset) -> Iterator[Callable[[int], None]]:
    """Block commits until the block ends. The yielded function waits for N batches in the queue."""
    queue = queue_of(parts_of(people).writer)
    store_of(people).changes.version()

    def until_waiting(count: int) -> None:
        for _ in range(4000):
            if len(waiting_in(queue)) >= count:
                return
            time.sleep(0.005)
        raise AssertionError(f"{len(waiting_in(queue))} of {count} batches are waiting")

    with without_leader(queue):
        yield until_waiting


def upserts(people: Dataset, pool: ThreadPoolExecutor, numbers: range) -> list[Future[Ack]]:
    return [pool.submit(people.upsert, [{"id": number}]) for number in numbers]


def test_everything_that_waits_goes_into_one_commit(tmp_path: Path):
    people = opened(tmp_path / "lake")
    with ThreadPoolExecutor(50) as pool:
        with held_back(people) as until_waiting:
            running = upserts(people, pool, range(50))
            until_waiting(50)
        acks = [task.result(30) for task in running]
    assert version(people) == 1
    assert sorted(ack.sequence or 0 for ack in acks) == list(range(1, 51))
    assert ids(people) == list(range(50))


def test_an_error_reaches_the_whole_group_and_nothing_of_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    people = opened(tmp_path / "lake")
    FaultyEntry(raises(OSError(28, "No space left on device"))).install(monkeypatch)
    with ThreadPoolExecutor(10) as pool:
        with held_back(people) as until_waiting:
            running = upserts(people, pool, range(10))
            until_waiting(10)
        outcomes = [task.exception(30) for task in running]
    assert all(isinstance(error, Unavailable) for error in outcomes)
    assert version(people) == 0
    assert people.to_arrow().num_rows == 0
    assert list((people.path / "changes" / "data").glob("*.parquet")) == []
    assert people.upsert([{"id": 1}]).sequence == 1


def test_a_group_whose_commit_lands_and_then_raises_is_acknowledged_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    people = opened(tmp_path / "lake")
    FaultyEntry(lands_then_raises(OSError(5, "Input/output error"))).install(monkeypatch)
    with ThreadPoolExecutor(10) as pool:
        with held_back(people) as until_waiting:
            running = upserts(people, pool, range(10))
            until_waiting(10)
        acks = [task.result(30) for task in running]
    assert sorted(ack.sequence or 0 for ack in acks) == list(range(1, 11))
    assert ids(people) == list(range(10))


def test_a_batch_beyond_the_bound_waits_and_gives_up_after_its_time(tmp_path: Path):
    people = opened(tmp_path / "lake", writer_queue_batches=3, commit_timeout_seconds=0.2)
    with ThreadPoolExecutor(3) as pool:
        with held_back(people) as until_waiting:
            running = upserts(people, pool, range(3))
            until_waiting(3)
            with pytest.raises(Unavailable):
                people.upsert([{"id": 9}])
        assert all(task.result(30).applied for task in running)
    assert ids(people) == [0, 1, 2]
    assert len(list((people.path / "changes" / "data").glob("*.parquet"))) == 3


def test_repeats_of_a_producer_in_one_group_are_applied_once(tmp_path: Path):
    people = opened(tmp_path / "lake")
    with ThreadPoolExecutor(4) as pool:
        with held_back(people) as until_waiting:
            same = [pool.submit(people.upsert, [{"id": 1}], producer="p", sequence=1) for _ in range(4)]
            until_waiting(4)
        acks = [task.result(30) for task in same]
    assert sorted(ack.applied for ack in acks) == [False, False, False, True]
    assert {ack.sequence for ack in acks} == {1}
    assert ids(people) == [1]


def test_batches_that_arrive_during_a_commit_wait_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They are staged during the commit; if they waited for it first, a busy table would not group."""
    people = opened(tmp_path / "lake")
    queue = queue_of(parts_of(people).writer)
    committing, go_on = threading.Event(), threading.Event()

    def hold(real: Write) -> None:
        committing.set()
        assert go_on.wait(30)
        real()

    FaultyEntry(hold).install(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(people.upsert, [{"id": 9}])
        assert committing.wait(30)
        others = upserts(people, pool, range(3))
        for _ in range(4000):
            if len(waiting_in(queue)) == 3:
                break
            time.sleep(0.005)
        staged = len(waiting_in(queue))
        go_on.set()
        assert all(task.result(30).applied for task in [first, *others])
    assert staged == 3
    assert version(people) == 2
