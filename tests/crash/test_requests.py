"""Whoever dies while it asks or does what was asked leaves nothing undone that somebody waits for, and nothing done twice."""

from pathlib import Path

import pytest

from siltstone.coordination.state_files import CYCLES, STATUS
from siltstone.errors import Unavailable
from siltstone.failpoints import arm
from siltstone.model.compaction_request import Ask, Wish
from tests.support.caretaking import NAME, Asked, filled, ids, lake_of, until
from tests.support.children import Child

ASKER = ("request.after_draft", "request.after_ask")
HOLDER = ("request.after_take", "request.before_answer", "request.after_answer")
NOTES = ("notes.after_draft", "notes.after_write")
PLACES = {*ASKER, *HOLDER, *NOTES}
PURGE = Wish(ask=Ask.COMPACT, names=(NAME,), purge=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    filled(lake_of(tmp_path / "lake"))
    return tmp_path / "lake"


def compactor(root: Path, told: Path, failpoint: str = "") -> Child:
    """Start a compactor in a process of its own and wait until it works."""
    child = Child(
        "tests.support.caretaking:compactor_in_process", {"root": str(root), "told": str(told)}, failpoint=failpoint
    )
    until(lambda: not child.running or lake_of(root).compactor_overview()["kind"] == "compactor")
    return child


def left(root: Path) -> set[str]:
    return {path.suffix for path in (root / "_system" / "compactor" / "requests").iterdir()}


def holding(root: Path) -> tuple[str, int]:
    """Return who holds the lease; its epoch rises with each purge, and one that was asked may or may not be done."""
    overview = lake_of(root).compactor_overview()["holder"]
    return overview["holder"], overview["pid"]


def purges(root: Path) -> int:
    """Return how often the dataset was purged: each time raises its epoch by one at least."""
    return lake_of(root).dataset(NAME)._store.snapshot().epoch


@pytest.mark.parametrize("place", ASKER)
def test_what_a_dead_requester_asked_is_not_done(root: Path, tmp_path: Path, place: str):
    holder = compactor(root, tmp_path / "told")
    before = purges(root)
    holder_stays = holding(root)
    asker = Child(
        "tests.support.caretaking:ask_in_process", {"root": str(root), "purge": True}, failpoint=f"{place}:kill"
    )
    assert asker.wait().killed
    until(lambda: ".asked" not in left(root) and ".taken" not in left(root))
    if place == "request.after_draft":
        assert purges(root) == before
    assert holding(root) == holder_stays
    assert Asked(root, PURGE).value().results[0]["error"] is None, "the next one is served"
    holder.kill()
    holder.wait()


@pytest.mark.parametrize("place", HOLDER)
def test_what_a_dead_holder_had_begun_is_done_by_the_next_one_and_answered_once(root: Path, tmp_path: Path, place: str):
    first = compactor(root, tmp_path / "told", failpoint=f"{place}:kill")
    asked = Asked(root, PURGE)
    assert first.wait().killed
    second = compactor(root, tmp_path / "told again")
    answer = asked.value()
    assert answer.results[0]["error"] is None
    assert answer.results[0]["report"]["purged"]
    if place == "request.after_answer":
        assert (answer.cycle, asked.events().count("begun")) == (1, 1), "the result was durable: nobody does it again"
    second.kill()
    second.wait()
    assert left(root) <= {".draft"}, "a draft of the dead one is swept when it is old"
    assert lake_of(root).ask(PURGE).results[0]["error"] is None


@pytest.mark.parametrize("place", HOLDER)
def test_what_a_holders_disk_refuses_is_tried_again(root: Path, place: str):
    lake = lake_of(root)
    with arm(place, "raise"), lake.compactor() as holder:
        until(lambda: lake.compactor_overview()["kind"] == "compactor")
        assert Asked(root, PURGE).value().results[0]["error"] is None
    assert len(holder.history()) == 1, "and not done again"


@pytest.mark.parametrize("place", ASKER)
def test_a_requester_whose_disk_fails_says_so(root: Path, place: str):
    lake = lake_of(root)
    with lake.compactor():
        until(lambda: lake.compactor_overview()["kind"] == "compactor")
        with arm(place, "raise"), pytest.raises(Unavailable, match="cannot be asked"):
            lake_of(root).ask(PURGE)
        until(lambda: ".asked" not in left(root))


@pytest.mark.parametrize("place", NOTES)
@pytest.mark.parametrize("count", [1, 2])
def test_a_note_is_as_before_or_as_after(root: Path, place: str, count: int):
    notes = lake_of(root)._office().notes
    notes.write(CYCLES, {"last": 6})
    child = Child("tests.support.caretaking:note_in_process", {"root": str(root)}, failpoint=f"{place}:kill:{count}")
    assert child.wait().killed
    numbered = count == 2 or place == "notes.after_write"
    assert notes.read(CYCLES) == {"last": 7 if numbered else 6}
    said = count == 2 and place == "notes.after_write"
    assert notes.read(STATUS) == ({"holder": "me"} if said else None)
    assert notes.next_cycle() == (8 if numbered else 7)


@pytest.mark.parametrize("place", NOTES)
def test_a_compactor_whose_notes_cannot_be_written_goes_on_when_they_can(root: Path, place: str):
    lake = lake_of(root)
    filled(lake, batches=4)
    with arm(place, "raise"), lake.compactor(only=["squash"]) as holder:
        until(lambda: holder.status().holder)
        until(lambda: lake.compactor_overview()["kind"] == "compactor")
        number = holder.trigger(["squash"])
        assert [one.error for one in holder.wait(number, seconds=60).results] == [None]
    assert ids(lake) == [0, 1, 2, 3]
