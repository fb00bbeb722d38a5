"""A killed backup leaves the earlier ones restorable, and a killed restore leaves nothing at its target."""

from pathlib import Path

import pytest

from tests.support.backups import backup, expected, fill, held, restore
from tests.support.children import Child

TAKEN = ("backup.after_manifest", "backup.after_removal")
"""Places after which the new backup is valid."""
BACKUP = ("backup.after_logs", "backup.after_file", "backup.after_draft", *TAKEN)
RESTORE = ("restore.after_files", "restore.after_fence", "restore.after_rename")
PLACES = {*BACKUP, *RESTORE}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    fill(tmp_path / "lake", rows=5)
    return tmp_path / "lake"


@pytest.mark.parametrize("place", BACKUP)
def test_a_killed_backup_leaves_the_one_before_or_the_new_one(lake: Path, tmp_path: Path, place: str):
    to = str(tmp_path / "backups")
    backup(str(lake), to)
    fill(lake, rows=4, start=6)
    child = Child("tests.support.backups:backup", {"path": str(lake), "to": to, "keep": 1}, failpoint=f"{place}:kill")
    assert child.wait().killed

    restore(to, str(tmp_path / "restored"))
    sequence = 9 if place in TAKEN else 5
    assert held(tmp_path / "restored") == (sequence, expected(sequence))

    backup(str(lake), to, keep=1)
    restore(to, str(tmp_path / "again"))
    assert held(tmp_path / "again") == (9, expected(9))
    assert len(list((tmp_path / "backups" / "backups").iterdir())) == 1
    assert list((tmp_path / "backups" / "drafts").iterdir()) == []


@pytest.mark.parametrize("place", RESTORE)
def test_a_killed_restore_leaves_nothing_or_the_whole_lake(lake: Path, tmp_path: Path, place: str):
    to, target = str(tmp_path / "backups"), tmp_path / "restored"
    backup(str(lake), to)
    child = Child("tests.support.backups:restore", {"path": to, "target": str(target)}, failpoint=f"{place}:kill")
    assert child.wait().killed
    if place == "restore.after_rename":
        assert held(target) == (5, expected(5))
        return
    assert not target.exists()
    restore(to, str(target))
    assert held(target) == (5, expected(5))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
