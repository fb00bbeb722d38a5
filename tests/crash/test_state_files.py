"""A process that dies while it writes a state file leaves the file as it was before or after the write."""

from pathlib import Path

import pytest

from siltstone.coordination.state_files import CYCLES, STATUS
from siltstone.failpoints import arm
from tests.support.children import Child
from tests.support.internals import state_files_of
from tests.support.maintenance import filled, ids, lake_of, until

PLACES = {"state_file.after_draft", "state_file.after_write"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    filled(lake_of(tmp_path / "lake"))
    return tmp_path / "lake"


@pytest.mark.parametrize("place", sorted(PLACES))
@pytest.mark.parametrize("count", [1, 2])
def test_a_state_file_is_as_before_or_as_after(root: Path, place: str, count: int):
    notes = state_files_of(lake_of(root))
    notes.write(CYCLES, {"last": 6})
    child = Child("tests.support.maintenance:note_in_process", {"root": str(root)}, failpoint=f"{place}:kill:{count}")
    assert child.wait().killed
    numbered = count == 2 or place == "state_file.after_write"
    assert notes.read(CYCLES) == {"last": 7 if numbered else 6}
    is_written = count == 2 and place == "state_file.after_write"
    assert notes.read(STATUS) == ({"holder": "me"} if is_written else None)
    assert notes.next_cycle() == (8 if numbered else 7)


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_compactor_whose_state_files_cannot_be_written_resumes_when_they_can(root: Path, place: str):
    lake = lake_of(root)
    filled(lake, batches=4)
    with arm(place, "raise"), lake.compactor(only=["squash"]) as holder:
        until(lambda: holder.status().holder)
        until(lambda: lake.compactor_status()["state"])
        number = holder.trigger(["squash"])
        assert [one.error for one in holder.wait(number, seconds=60).results] == [None]
    assert ids(lake) == [0, 1, 2, 3]
