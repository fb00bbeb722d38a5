"""A process that dies while it acquires, renews or releases a lease leaves the old or the new state.

The next process gets the lease.
"""

import contextlib
from pathlib import Path

import pytest

from siltstone.coordination.leases import COMPACTOR
from siltstone.errors import Unavailable
from siltstone.failpoints import arm
from siltstone.model.lease import LeaseRow
from tests.support.children import Child
from tests.support.leasing import lake_at, leases_of, operate, taken

BEFORE = ("lease.after_stage", "commit.before_entry", "commit.after_draft")
AFTER = ("commit.after_entry", "lease.after_commit")
PLACES = {"lease.after_stage", "lease.after_commit"}
STEPS = {"take": 1, "renew": 2, "release": 2}
"""Hit of a fail point that belongs to the operation: each operation begins with an acquisition."""


def seen(root: Path) -> LeaseRow | None:
    return leases_of(root).row(COMPACTOR)


@pytest.mark.parametrize("place", [*BEFORE, *AFTER])
@pytest.mark.parametrize("operation", STEPS)
def test_a_lease_whose_holder_is_killed_goes_to_the_next_one(operation: str, place: str, tmp_path: Path) -> None:
    root = lake_at(tmp_path / "lake")
    taken(leases_of(root)).release()
    child = Child(
        "tests.support.leasing:operate",
        {"root": str(root), "operation": operation},
        failpoint=f"{place}:kill:{STEPS[operation]}",
    )
    outcome = child.wait()
    assert outcome.killed, outcome.stderr

    found, done = seen(root), place in AFTER
    assert found is not None
    assert found.epoch == (1 if operation == "take" and not done else 2)
    assert found.released == (not done if operation == "take" else done and operation == "release")
    if operation == "renew":
        assert (found.renewed_at > found.since) == done
    assert leases_of(root).holder(COMPACTOR) is None, "a dead holder holds nothing"

    lease = taken(leases_of(root))
    assert lease.epoch == found.epoch + 1
    assert (lease.previous_holder is None) == found.released
    lease.renew()
    lease.release()
    assert [owner for owner in (root / "_system" / "liveness").iterdir() if owner.name == lease.row.holder] == []


@pytest.mark.parametrize("place", ["lease.after_stage", "commit.after_draft", "commit.after_entry"])
def test_a_lease_table_whose_first_acquisition_was_killed_is_usable(place: str, tmp_path: Path) -> None:
    root = lake_at(tmp_path / "lake")
    child = Child("tests.support.leasing:operate", {"root": str(root), "operation": "take"}, failpoint=f"{place}:kill")
    assert child.wait().killed
    assert taken(leases_of(root)).epoch == (2 if place == "commit.after_entry" else 1)


@pytest.mark.parametrize("place", [*BEFORE, *AFTER])
@pytest.mark.parametrize("operation", STEPS)
def test_a_lease_whose_disk_fails_is_as_before_or_as_after_and_the_next_one_gets_it(
    operation: str, place: str, tmp_path: Path
) -> None:
    root = lake_at(tmp_path / "lake")
    with arm(place, "raise", count=STEPS[operation]), contextlib.suppress(Unavailable):
        operate(str(root), operation)
    found, done = seen(root), place in AFTER
    if operation == "take" and not done:
        assert found is None
        assert taken(leases_of(root)).epoch == 1
        return
    assert found is not None
    assert (found.epoch, found.released) == (1, done and operation == "release")
    survived = operation == "renew" or (operation == "take" and place == "commit.after_entry")
    if survived:  # this process lives on and holds the lease
        assert leases_of(root).holder(COMPACTOR) == found
    else:
        assert taken(leases_of(root)).epoch == 2
