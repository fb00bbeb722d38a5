"""A sweep of dead owners beside a starting owner."""

from pathlib import Path

import pytest

from siltstone.coordination import liveness
from siltstone.coordination.liveness import LivenessLock, is_live, sweep_dead


def test_a_sweep_never_makes_an_owner_that_locks_meanwhile_look_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Order: the owner creates its file, the sweep checks it, the owner locks it, the sweep deletes it.

    After such a deletion the owner would look dead, and its staged files would be deleted.
    """
    (tmp_path / "owner").touch()
    owners: list[LivenessLock] = []

    def checked_just_before_the_lock(folder: Path, owner: str) -> bool:
        answer = is_live(folder, owner)
        owners.append(LivenessLock(folder, owner))
        return answer

    monkeypatch.setattr(liveness, "is_live", checked_just_before_the_lock)
    sweep_dead(tmp_path)
    if not owners:
        owners.append(LivenessLock(tmp_path, "owner"))
    assert is_live(tmp_path, "owner")
    owners[0].close()
