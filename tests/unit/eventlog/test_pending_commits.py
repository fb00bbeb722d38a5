"""Pending commits of a process: which of them are overlaid on a projection, and when they are dropped."""

from siltstone.eventlog.event_store import AppendPlan
from siltstone.eventlog.events import Indexed
from siltstone.eventlog.pending_commits import PendingCommits, ProjectionBacklog
from tests.support.histories import received


def plan_of(index: int) -> AppendPlan:
    plan = AppendPlan()
    plan.new.append(Indexed(index=index, event=received(f"b{index}")))
    return plan


def indexes(over: list[AppendPlan] | None) -> list[list[int]] | None:
    return None if over is None else [[one.index for one in plan.new] for plan in over]


def test_commits_in_a_row_are_one_range_until_it_is_projected() -> None:
    pending = PendingCommits()
    pending.add(5, plan_of(1), "a")
    pending.add(6, plan_of(2), "b")
    first = pending.oldest(until=6)
    assert first is not None
    assert (first.start, first.end, first.commit_id, pending.backlog) == (
        5,
        6,
        "b",
        ProjectionBacklog(commits=2, events=2),
    )
    pending.add(7, AppendPlan(), "moves rows only")
    pending.add(8, plan_of(3), "c")
    assert (first.end, pending.backlog, pending.until) == (6, ProjectionBacklog(commits=4, events=3), 8)
    assert indexes(pending.over(4, until=8)) == [[1, 2], [3]]
    assert indexes(pending.over(6, until=8)) == [[3]]
    pending.drop(first)
    assert indexes(pending.over(6, until=8)) == [[3]]
    assert pending.oldest(until=6) is None, "a flush of what was there does not go on with what has come since"


def test_plans_are_returned_only_if_they_cover_every_version() -> None:
    pending = PendingCommits()
    assert pending.over(3, until=3) == []
    assert pending.over(3, until=4) is None
    pending.add(5, plan_of(1), "a")
    pending.add(6, plan_of(2), "b")
    assert pending.over(3, until=6) is None, "version 4 is missing"
    assert pending.over(4, until=7) is None, "version 7 is missing"
    assert pending.over(5, until=6) is None, "the projection has a part of the first"
    assert pending.over(6, until=6) == []


def test_a_gap_drops_all_older_ranges() -> None:
    pending = PendingCommits()
    pending.add(5, plan_of(1), "a")
    pending.add(8, plan_of(4), "d")
    assert indexes(pending.over(7, until=8)) == [[4]]
    assert pending.over(4, until=8) is None
    pending.clear()
    assert not pending
    assert pending.until is None


def test_a_backlog_is_reached_by_commits_or_by_events() -> None:
    bound = ProjectionBacklog(commits=2, events=10)
    assert [ProjectionBacklog(commits=c, events=e).reaches(bound) for c, e in ((1, 9), (2, 2), (1, 10))] == [
        False,
        True,
        True,
    ]
    assert bound.times(4) == ProjectionBacklog(commits=8, events=40)
