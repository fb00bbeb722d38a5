"""Backup and restore from a shell."""

from pathlib import Path

from tests.e2e.conftest import PEOPLE
from tests.e2e.silt import contents, silt
from tests.support.refusals import figures


def test_a_lake_is_backed_up_listed_and_restored(lake: Path, tmp_path: Path):
    assert silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "a"}').code == 0
    to, new = tmp_path / "backups", tmp_path / "new"
    assert silt("--lake", lake, "backup", to, "--dry-run").code == 0
    assert not to.exists()
    before = contents(lake)
    first = silt("--lake", lake, "--json", "backup", to, "--verify", "full").data
    assert (first["datasets"], first["files_copied"], first["verified"]) == (2, first["files"], "full")
    assert contents(lake) == before, "a backup writes nothing into the lake"
    assert silt("--lake", lake, "--json", "backup", to).data["files_copied"] == 0
    listed = silt("--json", "backup", to, "--list").data
    assert [one["datasets"][PEOPLE] for one in listed] == [1, 1]
    assert listed[0]["id"] in silt("backup", to, "--list").out

    assert silt("--lake", new, "restore", to, "--dry-run").code == 0
    assert not new.exists()
    shown = silt("--lake", new, "restore", to, "--backup", first["id"][:6])
    assert (shown.code, figures(shown.out).split()[0]) == (0, "2")
    assert silt("--lake", new, "--json", "get", PEOPLE, "a").data[0]["id"] == "a"
    doctor = silt("--lake", new, "--json", "doctor", "--repair")
    assert (doctor.code, doctor.data["damages"]) == (0, [])


def test_a_wrong_backup_or_restore_is_refused_by_its_path_or_option(lake: Path, tmp_path: Path):
    to = tmp_path / "backups"
    assert silt("--lake", lake, "backup", to, "--keep", 2).code == 0
    for call, code, fact in (
        (("--lake", lake, "restore", to), 2, str(lake)),
        (("--lake", tmp_path / "new", "restore", tmp_path), 3, str(tmp_path)),
        (("--lake", tmp_path / "new", "restore", to, "--backup", "zz"), 3, "zz"),
        (("restore", to), 2, "--lake"),
        (("--lake", tmp_path / "none", "backup", to), 3, str(tmp_path / "none")),
        (("--lake", lake, "backup", to, "--keep", 0), 2, "keep"),
        (("--lake", lake, "backup", lake / "x"), 2, str(lake / "x")),
    ):
        result = silt("--json", *call)
        assert (result.code, fact in result.error["message"]) == (code, True), result
