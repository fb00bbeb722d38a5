"""The events and queries that a log accepts and refuses, on every backend."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from siltstone.errors import Conflict, InvalidRequest, NotFound, Reason
from siltstone.eventlog import queries
from siltstone.eventlog.events import (
    MAX_EVENT_BYTES,
    BuildCancelEvent,
    BuildRequestEvent,
    BuildStatus,
    DelegationEvent,
    JobEvent,
    JobStatus,
    PartitionEvent,
    PartitionInvalidationEvent,
    PartitionStatus,
    TaskCancelEvent,
)
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.queries import Filter
from tests.support.histories import event, received
from tests.support.refusals import refused


def job(run: str, status: JobStatus, label: str = "//a") -> JobEvent:
    return JobEvent(job_run_id=run, job_label=label, status=status)


def partition(ref: str, status: PartitionStatus) -> PartitionEvent:
    return PartitionEvent(partition_ref=ref, status=status)


@pytest.mark.parametrize(
    ("payload", "facts"),
    [
        (
            BuildRequestEvent(status=BuildStatus.EXECUTING),
            ("b1", "RECEIVED", "CANCELLED", "FAILED", "PLANNING"),
        ),
        (BuildRequestEvent(status=BuildStatus.RECEIVED), ("RECEIVED",)),
        (partition("p", PartitionStatus.AVAILABLE), ("b1", "REQUESTED")),
        (job("r", JobStatus.RUNNING), ("SCHEDULED",)),
        (DelegationEvent(partition_ref="p", delegated_to_build_request_id="b9"), ("b9",)),
        (
            DelegationEvent(partition_ref="p", delegated_to_build_request_id="b1"),
            ("b1",),
        ),
        (TaskCancelEvent(job_run_id="r"), ("b1",)),
    ],
)
def test_an_illegal_transition_is_refused_and_changes_nothing(
    log: EventLog, payload: BuildRequestEvent, facts: tuple[str, ...]
) -> None:
    log.append(received("b1", "p"))
    with refused(Conflict, None, *facts):
        log.append(event(BuildCancelEvent(reason="goes with it")), event(payload))
    assert [one.event.type.value for one in log.page().events] == ["build_request"]
    assert log.summary().events == 1


def test_events_of_an_unknown_build_are_refused(log: EventLog) -> None:
    with pytest.raises(Conflict, match="b7"):
        log.append(event(partition("p", PartitionStatus.REQUESTED), "b7"))
    with refused(Conflict, None, "b7", "RECEIVED"):
        log.append(event(BuildRequestEvent(status=BuildStatus.PLANNING), "b7"))


def test_final_states_never_change(log: EventLog) -> None:
    log.append(received(), event(BuildRequestEvent(status=BuildStatus.CANCELLED)))
    with refused(Conflict, None, "CANCELLED", "PLANNING"):
        log.append(event(BuildRequestEvent(status=BuildStatus.PLANNING)))
    with pytest.raises(Conflict, match="CANCELLED"):
        log.append(event(BuildCancelEvent()))


def test_a_job_run_belongs_to_one_job_of_one_build(log: EventLog) -> None:
    log.append(received("b1"), received("b2"), event(job("r", JobStatus.SCHEDULED)))
    for wrong in (event(job("r", JobStatus.RUNNING, "//b")), event(job("r", JobStatus.RUNNING), "b2")):
        with refused(Conflict, None, "//a", "b1"):
            log.append(wrong)
    log.append(event(job("r", JobStatus.RUNNING)), event(TaskCancelEvent(job_run_id="r")))
    log.append(event(job("r", JobStatus.CANCELLED)))
    with pytest.raises(Conflict, match="CANCELLED"):
        log.append(event(TaskCancelEvent(job_run_id="r")))


def test_events_of_one_append_may_build_on_each_other(log: EventLog) -> None:
    log.append(
        received("b1", "p"),
        event(BuildRequestEvent(status=BuildStatus.PLANNING)),
        event(partition("p", PartitionStatus.REQUESTED)),
        event(partition("p", PartitionStatus.SCHEDULED)),
    )
    assert log.partition("p").status is PartitionStatus.SCHEDULED
    assert [build.build_request_id for build in log.active_builds("p")] == ["b1"]


def test_the_same_event_twice_is_one_event(log: EventLog) -> None:
    first = received("b1", "p")
    assert [(one.index, one.is_new) for one in log.append(first)] == [(1, True)]
    assert [(one.index, one.is_new) for one in log.append(first, first)] == [(1, False), (1, False)]
    fresh = event(partition("p", PartitionStatus.REQUESTED))
    assert [(one.index, one.is_new) for one in log.append(fresh, fresh)] == [(2, True), (2, False)]
    assert log.summary().events == 2


def test_an_id_that_belongs_to_another_event_is_refused(log: EventLog) -> None:
    first = received("b1", "p")
    log.append(first)
    with pytest.raises(Conflict):
        log.append(replace(first, timestamp=first.timestamp + 1))
    other = event(BuildCancelEvent())
    with pytest.raises(Conflict):
        log.append(other, replace(other, payload=BuildCancelEvent(reason="x")))
    assert log.summary().events == 1


def test_an_event_that_is_too_large_is_refused(log: EventLog) -> None:
    with refused(InvalidRequest, Reason.TOO_LARGE, "1,048,576"):
        log.append(received("b1", *[f"p{n}" * 10 for n in range(MAX_EVENT_BYTES // 20)]))
    assert log.page().events == ()


def test_a_partition_can_be_built_by_several_builds_in_turn(log: EventLog) -> None:
    for build in ("b1", "b2"):
        log.append(received(build, "p"))
        for status in (PartitionStatus.REQUESTED, PartitionStatus.SCHEDULED, PartitionStatus.BUILDING):
            log.append(event(partition("p", status), build))
        assert [found.build_request_id for found in log.active_builds("p")] == [build]
        log.append(event(partition("p", PartitionStatus.AVAILABLE), build))
    assert log.active_builds("p") == []
    found = log.partition("p")
    assert (found.status, found.build_request_id, found.is_invalidated) == (PartitionStatus.AVAILABLE, "b2", False)
    log.append(event(PartitionInvalidationEvent(partition_ref="p", reason="bad input"), "b1"))
    assert log.partition("p").is_invalidated


def test_missing_builds_partitions_and_events_are_not_found(log: EventLog) -> None:
    for find in (log.build, log.partition, log.event):
        with pytest.raises(NotFound, match="nothing"):
            find("nothing")
    assert log.events_of_build("nothing") == []
    assert log.append() == []


@pytest.mark.parametrize("limit", [0, -1, 100_001])
def test_lists_are_bounded(log: EventLog, limit: int) -> None:
    for list_page in (log.builds, log.partitions, log.runs, log.page):
        with pytest.raises(InvalidRequest):
            list_page(limit=limit)
    with pytest.raises(InvalidRequest, match="0"):
        log.page(0)
    with pytest.raises(InvalidRequest, match="1,000"):
        Filter(partition_refs=("x",) * 1001)


def test_a_list_without_a_limit_is_complete_or_refused(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(*[received(f"b{number:03}") for number in range(120)])
    log.append(*[event(partition("p", PartitionStatus.REQUESTED), f"b{number:03}") for number in range(120)])
    listings: list[Callable[..., queries.LimitedList[Any]]] = [
        log.builds,
        lambda **limit: log.events_of_partition("p", **limit),
        lambda **limit: log.events_between(0, 2**62, **limit),
    ]
    for list_page, count in zip(listings, (120, 120, 240), strict=True):
        whole, some = list_page(), list_page(limit=100)
        assert (len(whole), whole.has_more, whole.following) == (count, False, None)
        assert (some, some.has_more) == (whole[:100], True)
        assert not list_page(limit=count).has_more
    assert log.builds(after=log.builds(limit=100).following) == log.builds()[100:]
    monkeypatch.setattr(queries, "MAX_LIMIT", 110)
    for list_page in listings:
        with pytest.raises(InvalidRequest, match="110"):
            list_page()
        assert list_page(limit=110).has_more


def test_concurrent_writers_lose_no_event_and_share_no_index(log: EventLog) -> None:
    indexes: list[int] = []

    def write(name: str) -> None:
        for number in range(15):
            indexes.extend(one.index for one in log.append(received(f"{name}-{number}")))

    threads = [threading.Thread(target=write, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(indexes) == list(range(1, 61))
    assert [one.index for one in log.events()] == list(range(1, 61))


def test_a_contested_transition_has_one_winner(log: EventLog) -> None:
    log.append(received())
    won: list[str] = []

    def step(name: str) -> None:
        try:
            log.append(event(BuildRequestEvent(status=BuildStatus.PLANNING, message=name)))
            won.append(name)
        except Conflict:
            pass

    threads = [threading.Thread(target=step, args=(f"w{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert log.build("b1").message == won[0]
