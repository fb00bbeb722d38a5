"""Former faults: events built in Python, copies of logs, damaged projections, interrupted and cancelled appends."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.delta.background import Background
from siltstone.delta.group_commit import WriterQueue
from siltstone.errors import InvalidRequest, NotFound, Unavailable
from siltstone.eventlog.event_json import parse_event
from siltstone.eventlog.events import (
    BuildRequestEvent,
    BuildStatus,
    JobGraphEvent,
    PartitionEvent,
    PartitionStatus,
    event_json,
)
from siltstone.eventlog.local_table import LocalEventTable
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.queries import Filter
from tests.support.appends import append_all
from tests.support.histories import event, history, received

BAD = {
    "no UUID": replace(received("a"), event_id="x"),
    "a negative time": replace(received("a"), timestamp=-1),
    "a broken time": replace(received("a"), timestamp=1.5),  # type: ignore[arg-type]
    "a time beyond 64 bits": replace(received("a"), timestamp=2**63),
    "no build request": replace(received("a"), build_request_id=""),
    "a name that is too long": replace(received("a"), build_request_id="x" * 2000),
    "NUL": event(BuildRequestEvent(status=BuildStatus.RECEIVED, message="a\x00b")),
    "a graph that is no JSON": event(JobGraphEvent(job_graph="not json", message="")),
    "a deep graph": event(JobGraphEvent(job_graph="[" * 500 + "]" * 500, message="")),
    "an empty partition": event(PartitionEvent(partition_ref="", status=PartitionStatus.REQUESTED)),
    "a number as status": event(BuildRequestEvent(status=1)),  # type: ignore[arg-type]
    "a surrogate": event(BuildRequestEvent(status=BuildStatus.RECEIVED, message="\ud800")),
}


@pytest.mark.parametrize("what", BAD)
def test_an_event_built_in_python_obeys_the_rules_of_json(what: str, log: EventLog) -> None:
    with pytest.raises(InvalidRequest):
        log.append(BAD[what])
    with pytest.raises(InvalidRequest):
        log.append_soon(BAD[what])
    log.append(received("good"))
    assert [one.event.build_request_id for one in log.events()] == ["good"]


def test_an_id_in_capitals_is_the_same_id(log: EventLog) -> None:
    known = received("a")
    log.append(known)
    shouted = replace(known, event_id=known.event_id.upper())
    assert [one.is_new for one in log.append(shouted)] == [False]
    assert log.event(known.event_id.upper()).index == 1


def test_queries_beyond_the_limits_are_refused_on_every_backend(log: EventLog) -> None:
    for ask in (
        lambda: log.page(2**63),
        lambda: log.page(10**6000),
        lambda: log.page("1"),  # type: ignore[arg-type]
        lambda: log.builds(limit="5"),  # type: ignore[arg-type]
        lambda: log.events_of_run("r", limit=True),
        lambda: log.events_between(0.5, 1),  # type: ignore[arg-type]
        lambda: log.events_between(-(2**70), 1),
        lambda: log.page(1, event_filter=Filter(build_request_ids=("x",) * 1001)),
        lambda: log.page(1, event_filter=Filter(partition_globs=("x*",) * 101)),
        lambda: log.page(1, event_filter=Filter(partition_refs=("a\x00",))),
        lambda: log.partitions(glob="\ud800*"),
        lambda: log.builds(after="not a position"),
        lambda: log.builds(after="9" * 5000 + ":b"),
        lambda: log.build("a\x00"),
        lambda: log.events_of_partition("\ud800"),
    ):
        with pytest.raises(InvalidRequest):
            ask()
    with pytest.raises(NotFound):
        log.build("unknown")


# ---- the projection ----------------------------------------------------------------------------------------------


def texts(uri: str) -> list[str]:
    with EventLog.open(uri, create=False) as log:
        return [event_json(one.event) for one in log.events()]


def test_an_older_copy_that_replaces_a_log_is_detected(address: Callable[[str], str], tmp_path: Path) -> None:
    uri = address("delta")
    path = Path(uri.removeprefix("delta://"))
    append_all(uri, first=0, last=5, at_once=1)
    shutil.copytree(path, tmp_path / "copy")
    append_all(uri, first=5, last=9, at_once=1)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    assert len(texts(uri)) == 5
    with EventLog.open(uri) as log:
        assert [one.index for one in log.append(received("new"))] == [6]
        log.rebuild()
        assert log.summary().events == 6


def test_a_diverged_copy_that_replaces_a_log_is_detected(
    address: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = address("delta")
    path = Path(uri.removeprefix("delta://"))
    append_all(uri, first=0, last=5, at_once=1)
    shutil.copytree(path, tmp_path / "copy")
    append_all(uri, first=5, last=7, at_once=1)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    with EventLog.open(uri) as log:
        for number in range(4):
            log.append(received(f"other {number}"))
        expected = [one.event for one in log.events()]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with EventLog.open(uri) as log:
        assert [one.event for one in log.events()] == expected


def test_copies_of_a_log_do_not_share_a_projection(address: Callable[[str], str], tmp_path: Path) -> None:
    uri = address("delta")
    append_all(uri, first=0, last=5, at_once=5)
    shutil.copytree(uri.removeprefix("delta://"), tmp_path / "copy")
    with EventLog.open(uri) as log, EventLog.open(f"delta://{tmp_path}/copy") as copy:
        log.append(received("only here"))
        assert (log.summary().events, copy.summary().events) == (6, 5)
        assert [one.index for one in copy.append(received("only there"))] == [6]


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_damaged_projection_is_rebuilt(part: float, address: Callable[[str], str], tmp_path: Path) -> None:
    uri = address("delta")
    append_all(uri, first=0, last=400, at_once=100)
    events = list(history(400, seed=9))
    (found,) = (tmp_path / "cache" / "siltstone" / "eventlog").glob("*.db")
    content = bytearray(found.read_bytes())
    start = int(len(content) * part)
    content[start : start + len(content) // 10] = b"rubbish!" * (len(content) // 80)
    found.write_bytes(content)
    assert texts(uri) == [event_json(one) for one in events]
    with EventLog.open(uri) as log:
        assert not any(one.is_new for one in log.append(*events))


def test_queries_and_appends_on_a_long_log_without_a_projection_do_not_block_each_other(
    address: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = address("delta")
    append_all(uri, first=0, last=260, at_once=1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    failures: list[BaseException] = []
    with EventLog.open(uri) as log:

        def attempt(action: Callable[[], object]) -> None:
            try:
                action()
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        actions = [log.summary, log.next_index, lambda: log.append(received("new")), log.summary]
        threads = [threading.Thread(target=attempt, args=(action,)) for action in actions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(25)
        assert not failures
        assert not any(thread.is_alive() for thread in threads)
        assert log.summary().events == 261


# ---- appends under way -------------------------------------------------------------------------------------------


def test_a_cancelled_append_is_not_written_and_blocks_no_caller(address: Callable[[str], str]) -> None:
    with EventLog.open(address("delta")) as log:
        under_way = [log.append_soon(received(f"b{number}")) for number in range(40)]
        cancelled = under_way[30].cancel()
        log.append(received("after"))
        names = {one.event.build_request_id for one in log.events()}
        assert cancelled == ("b30" not in names)
        if cancelled:
            with pytest.raises(CancelledError):
                under_way[30].result(1)
        assert all(done.result(30) for done in under_way if done is not under_way[30])


def test_a_callback_that_ends_its_thread_blocks_no_caller(address: Callable[[str], str]) -> None:
    def leave(_: object) -> None:
        raise SystemExit

    with EventLog.open(address("delta")) as log:
        under_way = [log.append_soon(received(f"b{number}")) for number in range(10)]
        under_way[3].add_done_callback(leave)
        log.append(received("after"))
        assert all(done.result(30) for done in under_way)


def test_a_failed_append_leaves_none_of_its_files(
    address: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalEventTable.stage

    def fail_second(table: LocalEventTable, path: str, rows: pa.Table) -> int:
        if path.endswith(".1.parquet"):
            raise Unavailable("the disk is full")
        return stage(table, path, rows)

    with EventLog.open(address("delta")) as log:
        log.append(received("a"))
        monkeypatch.setattr(LocalEventTable, "stage", fail_second)
        with pytest.raises(Unavailable):
            log.append(received("b"), replace(received("c"), timestamp=2**62))  # two days are two files
        assert len(list((tmp_path / "log1" / "data").glob("*.parquet"))) == 1


def test_an_interrupt_after_a_commit_lets_the_next_round_begin() -> None:
    interrupts = iter([KeyboardInterrupt(), None])

    def after() -> None:
        if (error := next(interrupts, None)) is not None:
            raise error

    queue: WriterQueue[int, int] = WriterQueue(list, label="Table t", bound=5, wait_seconds=1, after=after)
    with pytest.raises(KeyboardInterrupt):
        queue.submit(1)
    assert queue.submit(2) == 2


def test_a_callback_may_submit_although_the_queue_is_full() -> None:
    gate = threading.Event()

    def commit(batches: object) -> list[int]:
        gate.wait(10)
        return list(batches)  # type: ignore[call-overload, no-any-return]

    queue: WriterQueue[int, int] = WriterQueue(commit, label="Table t", bound=2, wait_seconds=20)
    answered = threading.Event()
    first = queue.submit_soon(1)
    first.add_done_callback(
        lambda _: [queue.submit_soon(number) for number in range(5)][-1].add_done_callback(lambda _: answered.set())
    )
    gate.set()
    assert answered.wait(10)
    queue.close()


def test_nothing_is_started_when_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def refuses(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuses)
    assert Background().start("checkpoint", Path(), lambda: None) is False
    queue: WriterQueue[int, int] = WriterQueue(list, label="Table t", bound=5, wait_seconds=1)
    assert queue.submit_soon(7).result(5) == 7


def test_passwords_are_hidden_in_every_part_of_an_address() -> None:
    from siltstone.eventlog.address import parse_address

    assert "secret" not in parse_address("postgresql://127.0.0.1:1/db?password=secret&x=1").shown
    with pytest.raises(InvalidRequest, match="host:abc"):
        parse_address("postgresql://host:abc/db")
    with pytest.raises(InvalidRequest, match="memory:"):
        parse_address("sqlite:///:memory:")


def test_a_checked_event_is_the_one_that_was_read() -> None:
    known = received("a")
    assert parse_event(event_json(known)) == known
    assert parse_event(event_json(known)).is_checked
