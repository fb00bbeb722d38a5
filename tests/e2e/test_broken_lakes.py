"""Lakes that something happened to: a named error that says what to do, and nothing is changed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.e2e.conftest import PEOPLE, PRICES
from tests.e2e.silt import TIMEOUT_SECONDS, Result, contents, silt

NOBODY = 65534
AS_NOBODY = """
import contextlib, io, os, sys, tempfile
from siltstone.cli.main import main
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


def failed(lake: Path, kind: str, code: int, says: str, *call: object) -> None:
    before = of_users(lake)
    result = silt("--lake", lake, "--json", *call)
    assert (result.code, result.error["kind"]) == (code, kind), result
    assert says in result.error["message"], result
    assert of_users(lake) == before


def of_users(lake: Path) -> dict[str, str]:
    """Return what the lake holds, but for who was about to compact it, and what became of that."""
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


def test_a_path_that_is_a_file_or_below_one(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "lake"):
        for call in (("list",), CREATE):
            result = silt("--lake", path, "--json", *call)
            assert (result.code, result.error["kind"]) == (2, "invalid_request")
            assert "is a file, not a folder" in result.error["message"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_in_the_way_of_a_folder_inside_a_lake(lake: Path, tmp_path: Path):
    (lake / "a").write_text("mine")
    failed(lake, "invalid_request", 2, "a file is in the way", *CREATE)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "_system").write_text("mine")
    failed(tmp_path / "odd", "invalid_request", 2, "a file is in the way", *CREATE)
    failed(lake, "not_found", 3, "There is no file", "upsert", PEOPLE, lake / "a" / "rows")


def test_an_address_is_not_a_folder():
    assert silt("--lake", "s3://bucket/lake", "--json", "list").code == 2


def test_a_delta_table_in_the_way_of_a_lake(tmp_path: Path):
    write_deltalake(tmp_path / "table", pa.table({"id": ["a"]}))
    failed(tmp_path / "table", "invalid_request", 2, "is a Delta table, not a lake", *CREATE)


def test_a_folder_with_something_else_in_it(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    failed(tmp_path, "invalid_request", 2, "not a lake and not empty", *CREATE)


# ---- permissions -------------------------------------------------------------------------------------------------


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory(prefix="silt-e2e-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_nobody(*call: object) -> Result:
    """Do everything once as the user we are, so that all is imported, then go on as one with no rights."""
    code = AS_NOBODY.replace("{nobody}", str(NOBODY))
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, call)],
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
        assert as_nobody("--lake", lake, "--json", "head", "a.b.c").data == [{"id": "a"}]
        for call in (
            ("upsert", "a.b.c", "--row", '{"id": "b"}'),
            ("create", "a.b.d", "--key", "id", "--schema", "id STRING"),
        ):
            result = as_nobody("--lake", lake, "--json", *call)
            assert (result.code, result.error["kind"]) == (5, "unavailable"), result
            assert "ermission" in result.error["message"]
        assert contents(lake) == before
    finally:
        for path in [lake, *lake.rglob("*")]:
            path.chmod(0o755)


def test_a_lake_cannot_be_made_where_nobody_may_write(open_folder: Path):
    open_folder.chmod(0o555)
    try:
        result = as_nobody("--lake", open_folder / "lake", "--json", *CREATE)
        assert (result.code, result.error["kind"]) == (5, "unavailable"), result
        assert not (open_folder / "lake").exists()
    finally:
        open_folder.chmod(0o755)


def test_a_lake_that_cannot_be_read(open_folder: Path):
    lake = open_folder / "lake"
    silt("--lake", lake, *CREATE)
    lake.chmod(0o000 if os.getuid() else 0o700)
    try:
        result = as_nobody("--lake", lake, "--json", "list")
        assert (result.code, result.error["kind"]) == (5, "unavailable"), result
    finally:
        lake.chmod(0o755)


# ---- files and logs ----------------------------------------------------------------------------------------------


def test_a_change_file_that_was_cut_off(written: Path):
    file = newest(changes_of(written), "data/*.parquet")
    file.write_bytes(file.read_bytes()[:-40])
    failed(written, "corruption", 9, f"{file.name} cannot be read", "head", PEOPLE)


def test_a_change_file_that_is_gone(written: Path):
    newest(changes_of(written), "data/*.parquet").unlink()
    failed(written, "corruption", 9, "is missing", "status", PEOPLE)
    failed(written, "corruption", 9, "is missing", "head", PEOPLE)


def test_a_registry_file_that_was_cut_off(lake: Path):
    for file in (lake / "_system" / "datasets" / "data").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-40])
    failed(lake, "corruption", 9, "Restore it from a copy", "list")


@pytest.mark.parametrize(("text", "says"), [("", "is empty"), ("{nope\n", ""), ('{"add": 7}\n', "")])
def test_a_log_entry_that_cannot_be_read(written: Path, text: str, says: str):
    newest(changes_of(written), "_delta_log/*.json").write_text(text)
    for call in (("status", PEOPLE), ("head", PEOPLE), ("upsert", PEOPLE, "--row", '{"id": "c"}'), ("compact", PEOPLE)):
        failed(written, "corruption", 9, says, *call)


def test_a_log_entry_that_is_missing(written: Path):
    (changes_of(written) / "_delta_log" / f"{1:020d}.json").unlink()
    failed(written, "corruption", 9, "Restore it", "status", PEOPLE)


def test_a_broken_dataset_does_not_hide_the_others(written: Path):
    newest(changes_of(written), "_delta_log/*.json").write_text("")
    result = silt("--lake", written, "--json", "status")
    assert (result.code, result.error["kind"]) == (9, "corruption")
    assert [one["dataset"] for one in result.data] == [PRICES]


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
    failed(written, "corruption", 9, path.name, "head", PEOPLE)


def test_a_dataset_of_a_newer_siltstone(written: Path):
    entry = changes_of(written) / "_delta_log" / f"{0:020d}.json"
    entry.write_text(entry.read_text().replace('"siltstone.format":"1"', '"siltstone.format":"99"'))
    assert '"siltstone.format":"99"' in entry.read_text()
    failed(written, "invalid_request", 2, "Upgrade Siltstone", "status", PEOPLE)
    failed(written, "invalid_request", 2, "Upgrade Siltstone", "upsert", PEOPLE, "--row", '{"id": "c"}')


def test_a_lake_with_settings_that_cannot_be_read(lake: Path):
    (lake / "silt.toml").write_text("max_rows = \n")
    failed(lake, "invalid_request", 2, "silt.toml is not valid TOML", "list")


def test_the_shape_of_an_error_is_one_json_object(lake: Path):
    found = json.loads(silt("--json", "--lake", lake, "describe", "a.b.c").err)
    assert found == {"error": {"kind": "not_found", "message": found["error"]["message"]}}
