"""What a process has appended and not folded yet: which of it lies over a projection, and when it is of no use."""

from siltstone.eventlog.event_store import Checked
from siltstone.eventlog.events import Indexed
from siltstone.eventlog.pending_commits import Backlog, Remembered
from tests.support.histories import received


def found(index: int) -> Checked:
    checked = Checked.nothing()
    checked.new.append(Indexed(index=index, event=received(f"b{index}")))
    return checked


def indexes(over: list[Checked] | None) -> list[list[int]] | None:
    return None if over is None else [[one.index for one in checked.new] for checked in over]


def test_commits_in_a_row_are_one_run_until_it_is_being_folded() -> None:
    remembered = Remembered()
    remembered.add(5, found(1), "a")
    remembered.add(6, found(2), "b")
    run = remembered.oldest(until=6)
    assert run is not None
    assert (run.start, run.end, run.commit_id, remembered.backlog) == (5, 6, "b", Backlog(commits=2, events=2))
    remembered.add(7, Checked.nothing(), "moves rows only")
    remembered.add(8, found(3), "c")
    assert (run.end, remembered.backlog, remembered.until) == (6, Backlog(commits=4, events=3), 8)
    assert indexes(remembered.over(4, until=8)) == [[1, 2], [3]]
    assert indexes(remembered.over(6, until=8)) == [[3]]
    remembered.drop(run)
    assert indexes(remembered.over(6, until=8)) == [[3]]
    assert remembered.oldest(until=6) is None, "who folds what was there does not go on with what has come since"


def test_a_projection_below_between_or_a_table_above_them_is_not_answered_from_memory() -> None:
    remembered = Remembered()
    assert remembered.over(3, until=3) == []
    assert remembered.over(3, until=4) is None
    remembered.add(5, found(1), "a")
    remembered.add(6, found(2), "b")
    assert remembered.over(3, until=6) is None, "version 4 is missing"
    assert remembered.over(4, until=7) is None, "version 7 is missing"
    assert remembered.over(5, until=6) is None, "the projection has a part of the run"
    assert remembered.over(6, until=6) == []


def test_a_gap_makes_what_lies_before_it_useless() -> None:
    remembered = Remembered()
    remembered.add(5, found(1), "a")
    remembered.add(8, found(4), "d")
    assert indexes(remembered.over(7, until=8)) == [[4]]
    assert remembered.over(4, until=8) is None
    remembered.clear()
    assert not remembered
    assert remembered.until is None


def test_many_commits_are_a_backlog_and_so_are_many_events() -> None:
    bound = Backlog(commits=2, events=10)
    assert [Backlog(commits=c, events=e).reaches(bound) for c, e in ((1, 9), (2, 2), (1, 10))] == [False, True, True]
    assert bound.times(4) == Backlog(commits=8, events=40)
