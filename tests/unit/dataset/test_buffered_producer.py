"""The buffered producer: acknowledged rows are durable, bad rows are refused alone, errors reach the caller."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from siltstone import Dataset, Gone, InvalidRequest, Lake
from siltstone.clock import SystemClock
from siltstone.dataset.write.buffered_producer import Limits, Producer
from siltstone.errors import Unavailable
from siltstone.model.reports import AppendAck
from tests.support.clicks import NAME, as_counter, click, clicks, create

SOON_SECONDS = 30.0


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.open(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture
def log(lake: Lake) -> Dataset:
    return create(lake)


def test_rows_wait_until_a_flush_and_are_one_batch(log: Dataset):
    with log.producer() as producer:
        futures = [producer.insert(row) for row in clicks(3)]
        assert not any(future.done() for future in futures)
        assert log.to_arrow().num_rows == 0
        producer.flush()
        assert [future.result().sequence for future in futures] == [1, 1, 1]
        assert [future.result().rows for future in futures] == [1, 1, 1]
        producer.flush()
    assert as_counter(log.to_arrow()) == as_counter(clicks(3))
    assert log.status().sequence == 1


def test_a_full_buffer_is_written_at_once(log: Dataset):
    with log.producer(rows=4) as producer:
        early = [producer.insert(row) for row in clicks(3)]
        last = producer.insert(click(3))
        assert all(future.done() for future in [*early, last])
        assert not producer.insert(click(4)).done()
    assert log.status().sequence == 2


def test_many_bytes_are_written_at_once(log: Dataset):
    with log.producer(bytes=1000) as producer:
        assert not producer.insert(click(0)).done()
        assert producer.insert(click(1, visitor="V" * 1000)).done()


def test_rows_that_wait_too_long_are_flushed_in_the_background(log: Dataset):
    with log.producer(seconds=0.01) as producer:
        for turn in range(2):
            assert producer.insert(click(turn)).result(SOON_SECONDS).sequence == turn + 1
    assert log.to_arrow().num_rows == 2


def test_a_bad_row_is_rejected_alone_and_named_in_its_own_future(log: Dataset):
    with log.producer() as producer:
        good = producer.insert(click(0))
        mixed = producer.insert([click(1), click(2, n="x"), click(3)])
        bad = producer.insert(click(4, at=None))
        last = producer.insert(click(5))
    assert (good.result().rows, good.result().refused) == (1, ())
    assert (mixed.result().rows, [found.row for found in mixed.result().refused]) == (2, [1])
    assert (bad.result().applied, bad.result().sequence, bad.result().refused[0].row) == (False, None, 0)
    assert last.result().applied
    assert as_counter(log.to_arrow()) == as_counter([click(0), click(1), click(3), click(5)])


def test_any_number_of_bad_rows_is_rejected_and_the_others_are_written(log: Dataset):
    with log.producer() as producer:
        futures = [producer.insert(click(n, n=n if n == 700 else "x")) for n in range(1200)]
    assert [number for number, future in enumerate(futures) if future.result().applied] == [700]
    assert log.to_arrow().num_rows == 1


def test_if_every_row_is_bad_nothing_is_written(log: Dataset):
    with log.producer() as producer:
        bad = producer.insert(click(0, at=None))
    assert not bad.result().applied
    assert log.status().sequence == 0


def test_close_writes_waiting_rows_and_rejects_further_inserts(log: Dataset):
    producer = log.producer()
    future = producer.insert(clicks(5))
    producer.close()
    producer.close()
    assert future.result().rows == 5
    with pytest.raises(InvalidRequest):
        producer.insert(click(1))


def test_a_write_error_is_raised_by_the_future_and_by_close(lake: Lake, log: Dataset):
    producer = log.producer()
    future = producer.insert(click(0))
    lake.drop(NAME)
    with pytest.raises(Gone):
        producer.close()
    with pytest.raises(Gone):
        future.result()


def test_an_error_of_a_full_buffer_is_raised_by_the_next_flush_once(lake: Lake, log: Dataset):
    producer = log.producer(rows=1)
    lake.drop(NAME)
    failed = producer.insert(click(0))
    assert isinstance(failed.exception(), Gone)
    with pytest.raises(Gone):
        producer.flush()
    producer.flush()
    producer.close()


def test_many_threads_lose_and_duplicate_no_row(log: Dataset):
    start = threading.Barrier(4)

    def insert(writer: int) -> int:
        start.wait()
        futures = [producer.insert(click(writer * 100 + n)) for n in range(100)]
        producer.flush()
        return sum(future.result(SOON_SECONDS).rows for future in futures)

    with log.producer(rows=37, seconds=0.02) as producer, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(insert, range(4))) == [100] * 4
    assert as_counter(log.to_arrow()) == as_counter(clicks(400))


@pytest.mark.parametrize("given", [{"rows": 0}, {"seconds": -1}, {"bytes": 0}, {"rows": "many"}, {"seconds": True}])
def test_limits_must_be_positive(log: Dataset, given: dict[str, Any]):
    with pytest.raises(InvalidRequest):
        log.producer(**given)


def test_a_producer_needs_a_log_and_an_insert_needs_a_row(lake: Lake, log: Dataset):
    with pytest.raises(InvalidRequest, match="producer"):
        lake.create("a.b.keyed", "id STRING", key="id").producer()
    with log.producer() as producer, pytest.raises(InvalidRequest):
        producer.insert([])


def test_close_loses_no_row_and_an_open_producer_does_not_block_exit(log: Dataset):
    script = (
        "import sys; from siltstone import Lake; from tests.support.clicks import NAME, click\n"
        "log = Lake.open(sys.argv[1]).dataset(NAME)\n"
        "first, second = log.producer(), log.producer()\n"
        "first.insert(click(1)); second.insert(click(2)); first.close()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(log.path.parents[3])], check=True, timeout=60)
    assert log.to_arrow().column("n").to_pylist() == [1]


def ack_of(rows: list[Any]) -> AppendAck:
    return AppendAck(sequence=1, rows=len(rows), applied=True, refused=())


def test_a_cancelled_future_does_not_stop_other_acknowledgements() -> None:
    """A time limit of asyncio cancels the future that it waited for."""
    with Producer(ack_of, Limits(rows=2, seconds=600, size_bytes=1000), clock=SystemClock()) as producer:
        first = producer.insert({"a": 1})
        assert not first.cancel(), "its row is written whatever becomes of the future"
        second = producer.insert({"a": 2})
        assert (first.result(timeout=5).rows, second.result(timeout=5).rows) == (1, 1)


def test_a_callback_of_a_failed_future_may_insert_the_rows_again() -> None:
    calls: list[int] = []

    def fails_once(rows: list[Any]) -> AppendAck:
        calls.append(len(rows))
        if len(calls) == 1:
            raise Unavailable("The disk is full.")
        return ack_of(rows)

    producer = Producer(fails_once, Limits(rows=2, seconds=600, size_bytes=1000), clock=SystemClock())
    again: list[Future[AppendAck]] = []
    producer.insert({"a": 1}).add_done_callback(lambda _: again.append(producer.insert([{"a": 1}, {"a": 2}])))
    filling = threading.Thread(target=producer.insert, args=({"a": 2},), daemon=True)
    filling.start()
    filling.join(SOON_SECONDS / 10)
    assert not filling.is_alive(), "it waits for itself"
    assert (again[0].result(timeout=1).rows, calls) == (2, [2, 2])
    with pytest.raises(Unavailable):
        producer.close()
