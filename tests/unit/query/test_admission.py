"""Admission to the hot cache: which datasets are admitted, which are evicted in return, and the reason."""

import dataclasses
import doctest
import threading
import time

import pytest

from siltstone.query.hot import admission, duckdb_types, residents
from siltstone.query.hot.admission import Candidate, Held, admit
from siltstone.query.hot.stats import CacheEntry
from tests.support.refusals import figures

MB = 1024 * 1024


def held(name: str, size_mb: int, *, used: float, pinned: bool = False) -> Held:
    return Held(name=name, size_bytes=size_mb * MB, used_seconds=used, pinned=pinned)


def wanted(size_mb: int, *, missed: float | None = None, by_name: bool = False) -> Candidate:
    return Candidate(name="new", estimate_bytes=size_mb * MB, missed_seconds=missed, by_name=by_name)


def test_a_dataset_that_fits_beside_the_residents_is_admitted_at_once() -> None:
    decision = admit(wanted(40), [held("a", 60, used=1)], budget_bytes=100 * MB)
    assert decision.admitted
    assert decision.evict == ()
    assert figures(decision.reason) == "40 40 100"


def test_a_dataset_that_is_larger_than_the_budget_is_refused() -> None:
    decision = admit(wanted(101, by_name=True), [], budget_bytes=100 * MB)
    assert not decision.admitted
    assert figures(decision.reason) == "101 100"


def test_pinned_datasets_are_never_evicted() -> None:
    decision = admit(wanted(50, by_name=True), [held("a", 60, used=1, pinned=True)], budget_bytes=100 * MB)
    assert not decision.admitted
    assert figures(decision.reason) == "50 60 100"


def test_the_least_recently_used_are_evicted_and_no_more_than_needed() -> None:
    there = [held("b", 30, used=2), held("c", 30, used=3), held("a", 30, used=1)]
    decision = admit(wanted(35, by_name=True), there, budget_bytes=100 * MB)
    assert decision.evict == ("a",)
    assert figures(decision.reason) == "35"
    assert admit(wanted(60, by_name=True), there, budget_bytes=100 * MB).evict == ("a", "b")


@pytest.mark.parametrize(
    ("missed", "admitted"), [(None, False), (1.0, False), (3.0, True)], ids=["first miss", "before its use", "since"]
)
def test_a_query_evicts_only_datasets_that_are_queried_less(missed: float | None, admitted: bool) -> None:  # noqa: FBT001
    decision = admit(wanted(80, missed=missed), [held("a", 80, used=2)], budget_bytes=100 * MB)
    assert decision.admitted is admitted
    if not admitted:
        assert figures(decision.reason) == "80"


def test_datasets_that_are_queried_in_turn_do_not_evict_each_other() -> None:
    misses: dict[str, list[float]] = {"b": [], "c": []}
    used, fills = 0.0, 0
    for now in range(30):
        name = "abc"[now % 3]
        if name == "a":
            used = now
            continue
        before = misses[name][-1] if misses[name] else None
        misses[name].append(now)
        one = Candidate(name=name, estimate_bytes=80 * MB, missed_seconds=before)
        fills += admit(one, [held("a", 80, used=used)], budget_bytes=100 * MB).admitted
    assert fills == 0


def test_counters_that_two_threads_change_at_once_are_both_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slot, is_counting = residents.Slot("crm.sales.calls"), threading.Event()

    def slow(entry: CacheEntry, **changed: int) -> CacheEntry:
        if "misses" in changed:
            is_counting.set()
            time.sleep(0.1)
        return dataclasses.replace(entry, **changed)  # type: ignore[arg-type]

    monkeypatch.setattr(residents, "replace", slow)
    counting = threading.Thread(target=slot.note, kwargs={"misses": 1})
    counting.start()
    assert is_counting.wait(timeout=10)
    slot.note(filling=True)  # as a fill does
    counting.join(timeout=10)
    assert (slot.entry.misses, slot.entry.filling) == (1, True)


def test_the_examples_of_the_docstrings_hold() -> None:
    assert doctest.testmod(admission).failed == 0
    assert doctest.testmod(duckdb_types).failed == 0
