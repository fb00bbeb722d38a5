"""Damaged lakes: a named error with a remedy, and nothing is changed."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from siltstone.errors import SiltstoneError
from tests.e2e.conftest import PEOPLE, PRICES
from tests.e2e.silt import TIMEOUT_SECONDS, Result, contents, silt
from tests.support.tables import open_table

NOBODY = 65534
EXIT_CODES = {error.kind: error.exit_code for error in SiltstoneError.__subclasses__()}
AS_NOBODY = """
import contextlib, io, os, sys, tempfile
from siltstone.cli.app import main
with tempfile.TemporaryDirectory() as warm, contextlib.redirect_stdout(io.StringIO()):
    main(["--lake", warm, "create", "a.b.c", "--key", "id", "--schema", "id STRING"])
    main(["--lake", warm, "upsert", "a.b.c", "--row", '{"id": "a"}'])
    main(["--lake", warm, "--json", "head", "a.b.c"])
    assert main(["--lake", warm, "--json", "list"]) == 0
if os.getuid() == 0:
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
sys.exit(main(sys.argv[1:]))
"""
CREATE = ("create", "a.b.c", "--key", "id", "--schema", "id STRING")
DENIED = """
import contextlib, io, json, os, sys
from pathlib import Path
from siltstone import Lake
from siltstone.cli.app import main
from tests.support.folds import fold_by_arrow
from tests.support.internals import store_of
from tests.support.tables import FAST

root = Path(sys.argv[1])

def called(command):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["--lake", str(root), "--json", command])
    return [code, json.loads(out.getvalue()), [json.loads(line)["error"] for line in err.getvalue().splitlines() if line]]

with Lake.open(root, settings=FAST) as lake:
    folded = lake.create("a.b.folded", "id STRING NOT NULL", key="id")
    fresh = lake.create("a.c.fresh", "id STRING NOT NULL", key="id")
    for dataset in (folded, fresh):
        dataset.upsert([{"id": "a"}])
    fold_by_arrow(folded)
    folded.upsert([{"id": "b"}])
    looked = store_of(folded).snapshot(), store_of(fresh).snapshot()
assert called("list")[0] == called("status")[0] == 0  # all that is imported is imported now
cases = {
    "change file": fresh.path / "changes" / looked[1].unfolded[0].path,
    "change file beside base": folded.path / "changes" / looked[0].unfolded[0].path,
    "base file": folded.path / "base" / looked[0].base.files[0].path,
    "entry": folded.path / "base" / "_delta_log" / ("0" * 20 + ".json"),
    "log": folded.path / "base" / "_delta_log",
    "data": folded.path / "changes" / "data",
    "dataset": folded.path,
    "schema": folded.path.parent.parent,
}
if os.getuid() == 0:
    for path in [root, *root.rglob("*")]:
        os.chown(path, {nobody}, {nobody})
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
found = {}
for case, path in cases.items():
    mode = path.stat().st_mode
    path.chmod(0)
    found[case] = [called("list"), called("status")]
    path.chmod(mode)
print(json.dumps(found))
"""


def failed(lake: Path, kind: str, reason: str | None, fact: str, *call: object) -> None:
    """Call `silt`; check that it fails for this reason, names this fact, and changes nothing."""
    before = of_users(lake)
    result = silt("--lake", lake, "--json", *call)
    assert (result.code, result.error["kind"], result.error["reason"]) == (EXIT_CODES[kind], kind, reason), result
    assert fact in result.error["message"], result
    assert of_users(lake) == before


def of_users(lake: Path) -> dict[str, str]:
    """Return the lake's files and digests, without leases, state files and journal."""
    return {
        name: digest
        for name, digest in contents(lake).items()
        if not name.startswith(("_system/leases/", "_system/compactor/", "_system/events/"))
    }


def changes_of(lake: Path, name: str = PEOPLE) -> Path:
    return Path(silt("--lake", lake, "--json", "describe", name).data["path"]) / "changes"


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.name)


@pytest.fixture
def written(lake: Path) -> Path:
    assert silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "a"}').code == 0
    assert silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "b"}').code == 0
    return lake


# ---- paths -------------------------------------------------------------------------------------------------------


def test_a_lake_path_that_is_a_file_or_below_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "lake"):
        for call in (("list",), CREATE):
            result = silt("--lake", path, "--json", *call)
            assert (result.code, result.error["kind"]) == (2, "invalid_request")
            assert str(tmp_path / "file") in result.error["message"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_in_the_way_of_a_folder_inside_a_lake_is_named(lake: Path, tmp_path: Path):
    (lake / "a").write_text("mine")
    failed(lake, "invalid_request", None, str(lake / "a"), *CREATE)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "_system").write_text("mine")
    failed(tmp_path / "odd", "invalid_request", None, str(tmp_path / "odd"), *CREATE)
    failed(lake, "not_found", None, str(lake / "a" / "rows"), "upsert", PEOPLE, lake / "a" / "rows")


def test_an_address_is_not_a_folder():
    assert silt("--lake", "s3://bucket/lake", "--json", "list").code == 2


def test_a_delta_table_in_the_way_of_a_lake_is_refused(tmp_path: Path):
    write_deltalake(tmp_path / "table", pa.table({"id": ["a"]}))
    failed(tmp_path / "table", "invalid_request", None, str(tmp_path / "table"), *CREATE)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    failed(tmp_path, "invalid_request", None, str(tmp_path), *CREATE)


# ---- permissions -------------------------------------------------------------------------------------------------


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own folders are private."""
    with tempfile.TemporaryDirectory(prefix="silt-e2e-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_other_user(*call: object) -> Result:
    """Run a few commands as the current user, so that all modules are imported. Then run the call without rights."""
    code = AS_NOBODY.replace("{nobody}", str(NOBODY))
    measured = {"COVERAGE_PROCESS_CONFIG"}  # the other user may not write coverage data; coverage reports it on stderr
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, call)],
        env={name: value for name, value in os.environ.items() if name not in measured},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_a_lake_that_cannot_be_written_can_be_read(open_folder: Path):
    lake = open_folder / "lake"
    silt("--lake", lake, *CREATE)
    silt("--lake", lake, "upsert", "a.b.c", "--row", '{"id": "a"}')
    for path in sorted(lake.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    lake.chmod(0o555)
    before = contents(lake)
    try:
        assert as_other_user("--lake", lake, "--json", "head", "a.b.c").data == [{"id": "a"}]
        for call in (
            ("upsert", "a.b.c", "--row", '{"id": "b"}'),
            ("create", "a.b.d", "--key", "id", "--schema", "id STRING"),
        ):
            result = as_other_user("--lake", lake, "--json", *call)
            assert (result.code, result.error["kind"]) == (5, "unavailable"), result
            assert result.error["reason"] == "permission_denied"
        assert contents(lake) == before
    finally:
        for path in [lake, *lake.rglob("*")]:
            path.chmod(0o755)


def test_a_lake_cannot_be_created_in_a_read_only_folder(open_folder: Path):
    open_folder.chmod(0o555)
    try:
        result = as_other_user("--lake", open_folder / "lake", "--json", *CREATE)
        assert (result.code, result.error["kind"]) == (5, "unavailable"), result
        assert result.error["reason"] == "permission_denied"
        assert not (open_folder / "lake").exists()
    finally:
        open_folder.chmod(0o755)


def test_a_lake_that_cannot_be_read_is_unavailable(open_folder: Path):
    lake = open_folder / "lake"
    silt("--lake", lake, *CREATE)
    lake.chmod(0o000 if os.getuid() else 0o700)
    try:
        result = as_other_user("--lake", lake, "--json", "list")
        assert (result.code, result.error["kind"]) == (5, "unavailable"), result
        assert result.error["reason"] == "permission_denied"
    finally:
        lake.chmod(0o755)


def test_a_denied_file_or_folder_is_unavailable_and_not_damaged(open_folder: Path):
    code = DENIED.replace("{nobody}", str(NOBODY))
    done = subprocess.run(
        [sys.executable, "-c", code, str(open_folder / "lake")],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    found = json.loads(done.stdout)
    assert len(found) == 8
    for case, (listed, status) in found.items():
        assert [one["name"] for one in listed[1]] == ["a.b.folded", "a.c.fresh"], case
        assert sorted(one["dataset"] for one in status[1]) == ["a.b.folded", "a.c.fresh"], case
        is_listed_well = case in {"change file", "change file beside base", "base file", "data"}
        assert listed[0] == (0 if is_listed_well else 5), (case, listed)
        assert {one["broken_kind"] for one in listed[1]} == ({None} if is_listed_well else {None, "unavailable"}), case
        (error,) = status[2]
        assert (status[0], error["kind"], error["reason"]) == (5, "unavailable", "permission_denied"), (case, status)
        assert "copy" not in error["message"], case
        kinds = [one["broken_kind"] for one in status[1]]
        kinds += [kind for one in status[1] for kind in one.get("unreadable_kinds", {}).values()]
        assert sorted(filter(None, kinds)) == ["unavailable"], (case, status)
        assert ("file" in case) == (kinds[:2] == [None, None]), "a file hides no figures of its dataset"


# ---- files and logs ----------------------------------------------------------------------------------------------


def test_a_truncated_change_file_is_named(written: Path):
    file = newest(changes_of(written), "data/*.parquet")
    file.write_bytes(file.read_bytes()[:-40])
    failed(written, "corruption", "damaged_file", file.name, "head", PEOPLE)


def test_a_missing_change_file_is_named(written: Path):
    file = newest(changes_of(written), "data/*.parquet")
    file.unlink()
    failed(written, "corruption", "missing_file", file.name, "status", PEOPLE)
    failed(written, "corruption", "missing_file", file.name, "head", PEOPLE)
    doctor = silt("--lake", written, "--json", "doctor")
    assert (doctor.code, file.name in str(doctor.data)) == (1, True)
    left = silt("--lake", written, "--json", "doctor", "--repair", "--yes")
    assert (left.code, [(one["subject"], one["kind"], one["state"]) for one in left.data["damages"]]) == (
        1,
        [(PEOPLE, "files", "needs manual repair")],
    )


def test_a_truncated_registry_file_is_named(lake: Path):
    for file in (lake / "_system" / "datasets" / "data").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-40])
    failed(lake, "corruption", "damaged_file", "_system/datasets", "list")


@pytest.mark.parametrize("text", ["", "{nope\n", '{"add": 7}\n'])
def test_an_unreadable_log_entry_is_named(written: Path, text: str):
    entry = newest(changes_of(written), "_delta_log/*.json")
    entry.write_text(text)
    for call in (("status", PEOPLE), ("head", PEOPLE), ("upsert", PEOPLE, "--row", '{"id": "c"}'), ("compact", PEOPLE)):
        failed(written, "corruption", "damaged_file", entry.name, *call)


def test_a_missing_log_entry_is_named(written: Path):
    entry = changes_of(written) / "_delta_log" / f"{1:020d}.json"
    entry.unlink()
    failed(written, "corruption", "missing_file", entry.name, "status", PEOPLE)


def test_a_broken_dataset_does_not_hide_the_others(written: Path):
    newest(changes_of(written), "_delta_log/*.json").write_text("")
    result = silt("--lake", written, "--json", "status")
    assert (result.code, result.error["kind"]) == (9, "corruption")
    assert {one["dataset"]: one["broken"] is not None for one in result.data} == {PEOPLE: True, PRICES: False}


def test_a_missing_dataset_folder_is_named_and_hides_nothing(written: Path):
    folder = Path(silt("--lake", written, "--json", "describe", PEOPLE).data["path"])
    shutil.rmtree(folder)
    for call in (("list",), ("status",), ("compact", "--all", "--dry-run"), ("vacuum", "--all", "--dry-run")):
        result = silt("--lake", written, "--json", *call)
        assert (result.code, result.error["kind"], result.error["reason"]) == (9, "corruption", "missing_file"), call
        assert f"silt drop {PEOPLE}" in result.error["message"]
        found = {one.get("name") or one["dataset"]: bool(one.get("broken")) for one in result.data}
        assert found == ({PEOPLE: True, PRICES: False} if call[0] in ("list", "status") else {PRICES: False})
    plan = silt("--lake", written, "--json", "compact", "--plan")
    assert (plan.code, list(plan.data["unreadable"])) == (0, [PEOPLE])
    doctor = silt("--lake", written, "--json", "doctor")
    assert (doctor.code, f"silt drop {PEOPLE}" in str(doctor.data)) == (1, True)
    assert silt("--lake", written, "--json", "head", PEOPLE).error["kind"] == "corruption"
    assert silt("--lake", written, "--json", "drop", PEOPLE, "--yes").data["dropped"]
    assert [one["name"] for one in silt("--lake", written, "--json", "list").data] == [PRICES]


def test_a_dataset_that_the_registry_does_not_name_is_reported(written: Path, tmp_path: Path):
    registry = written / "_system" / "datasets"
    shutil.copytree(registry, tmp_path / "copy")
    assert silt("--lake", written, "create", "a.b.later", "--key", "id", "--schema", "id STRING").code == 0
    assert silt("--lake", written, "upsert", "a.b.later", "--row", '{"id": "a"}').code == 0
    shutil.rmtree(registry)
    shutil.copytree(tmp_path / "copy", registry)
    result = silt("--lake", written, "--json", "status")
    assert (result.code, "doctor --repair" in result.error["message"]) == (9, True)
    [found] = [one for one in result.data if "unregistered" in one]
    assert (found["dataset"], found["unregistered"]["sequence"]) == ("a.b.later", 1)
    assert "a.b.later" in silt("--lake", written, "status").err
    doctor = silt("--lake", written, "--json", "doctor")
    assert (doctor.code, "a.b.later" in str(doctor.data)) == (1, True)

    before = of_users(written)
    listed = silt("--lake", written, "--json", "doctor", "--repair")
    assert (listed.code, listed.data["dry_run"], of_users(written)) == (1, True, before)
    assert [(one["subject"], one["state"]) for one in listed.data["damages"]] == [("a.b.later", "would be repaired")]
    assert "--yes" in silt("--lake", written, "doctor", "--repair").err
    repaired = silt("--lake", written, "--json", "doctor", "--repair", "--yes")
    assert (repaired.code, repaired.data["damages"][0]["state"]) == (0, "repaired")
    assert silt("--lake", written, "--json", "get", "a.b.later", "a").data == [{"id": "a"}]
    assert silt("--lake", written, "--json", "doctor", "--repair").data["damages"] == []


def test_repair_drops_a_missing_dataset_only_on_request(written: Path):
    shutil.rmtree(Path(silt("--lake", written, "--json", "describe", PEOPLE).data["path"]))
    refused = silt("--lake", written, "--json", "doctor", "--repair", "--yes")
    assert (refused.code, refused.data["damages"][0]["state"]) == (1, "only with --drop-missing")
    assert len(silt("--lake", written, "--json", "list").data) == 2
    dropped = silt("--lake", written, "--json", "doctor", "--repair", "--yes", "--drop-missing")
    assert (dropped.code, dropped.data["damages"][0]["state"]) == (0, "repaired")
    assert [one["name"] for one in silt("--lake", written, "--json", "list").data] == [PRICES]


def test_repair_deletes_a_damaged_state_file(written: Path):
    note = written / "_system" / "compactor" / "cycles.json"
    note.parent.mkdir()
    note.write_text("{")
    assert silt("--lake", written, "--json", "doctor", "--repair").data["damages"][0]["subject"] == "cycles.json"
    assert silt("--lake", written, "doctor", "--repair", "--yes").code == 0
    assert not note.exists()


def test_a_broken_change_file_is_named_by_status_and_the_rest_is_shown(written: Path):
    path = newest(changes_of(written), "data/*.parquet")
    path.write_bytes(b"no parquet")
    result = silt("--lake", written, "--json", "status")
    assert (result.code, result.error["kind"]) == (9, "corruption")
    assert f"changes/data/{path.name}" in result.error["message"]
    found = {one["dataset"]: list(one["unreadable"]) for one in result.data}
    assert found == {PEOPLE: [f"changes/data/{path.name}"], PRICES: []}
    shown = silt("--lake", written, "status", PEOPLE)
    assert (shown.code, "backlog" in shown.out, path.name in shown.err) == (9, True, True)
    failed(written, "corruption", "damaged_file", path.name, "head", PEOPLE)


def test_a_dataset_of_a_newer_siltstone_is_refused(written: Path):
    open_table(changes_of(written)).set_properties({"siltstone.format": "99"})
    failed(written, "invalid_request", None, "99", "status", PEOPLE)
    failed(written, "invalid_request", None, "99", "upsert", PEOPLE, "--row", '{"id": "c"}')


def test_unreadable_settings_of_a_lake_are_refused(lake: Path):
    (lake / "silt.toml").write_text("max_rows = \n")
    failed(lake, "invalid_request", None, "silt.toml", "list")


def test_the_shape_of_an_error_is_one_json_object(lake: Path):
    found = json.loads(silt("--json", "--lake", lake, "describe", "a.b.c").err)
    assert found == {"error": {"kind": "not_found", "reason": None, "message": found["error"]["message"]}}


# ---- other programs ----------------------------------------------------------------------------------------------


def test_a_commit_of_another_program_is_reported_and_repaired(written: Path):
    changes = DeltaTable(changes_of(written))
    changes.delete()
    failed(written, "corruption", "foreign_commit", "DELETE", "head", PEOPLE)
    failed(written, "corruption", "foreign_commit", "DELETE", "status", PEOPLE)
    failed(written, "corruption", "foreign_commit", "DELETE", "upsert", PEOPLE, "--row", '{"id": "c"}')
    doctor = silt("--lake", written, "--json", "doctor")
    assert doctor.code == 1
    [check] = [one for one in doctor.data["checks"] if one["name"] == "lake"]
    assert "DELETE" in check["finding"]
    history = silt("--lake", written, "--json", "history", PEOPLE)
    assert [entry["operation"] for entry in history.data if entry["foreign"]] == ["DELETE"]
    before = of_users(written)
    listed = silt("--lake", written, "--json", "doctor", "--repair")
    assert (listed.code, of_users(written)) == (1, before), "without --yes nothing is changed"
    assert silt("--lake", written, "doctor", "--repair", "--yes").code == 0
    assert [row["id"] for row in silt("--lake", written, "--json", "head", PEOPLE).data] == ["a", "b"]
    assert silt("--lake", written, "--json", "status", PEOPLE).code == 0
