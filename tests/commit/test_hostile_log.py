"""A log that another user wrote to make a reader open, or a compactor copy, files outside the table."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone.delta.layout import LOG, Layout, entry_name
from siltstone.delta.log_reader import removals
from siltstone.delta.path_checks import check_links, checked
from siltstone.errors import Corruption, Unavailable
from siltstone.lake import Lake
from tests.support.refusals import refused
from tests.support.tables import FAST, append, make_table, open_table

APPENDS = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_table(tmp_path / "lake" / "t", appends=APPENDS)
    make_table(tmp_path / "secret", appends=1)
    return tmp_path / "lake" / "t"


def secret(path: Path) -> Path:
    """Return a file outside the table that the reader may read."""
    (found,) = (path.parent.parent / "secret" / "data").iterdir()
    return found


def rename_in_log(path: Path, to: str, *, action: str = "add") -> None:
    """Let the last entry name another file."""
    entry = path / LOG / entry_name(APPENDS)
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = to
            if action == "remove":
                line["remove"] = {"path": to, "deletionTimestamp": 1, "dataChange": True}
                del line["add"]
    entry.write_text("\n".join(map(json.dumps, lines)))


OUTSIDE: dict[str, Callable[[Path], str]] = {
    "an absolute path": lambda path: str(secret(path)),
    "a path that goes up": lambda path: f"../../secret/data/{secret(path).name}",
    "a path that goes up later": lambda path: f"data/../../../secret/data/{secret(path).name}",
    "a path that goes up in disguise": lambda path: f"%2e%2e/%2E%2E/secret/data/{secret(path).name}",
    "a file URL": lambda path: secret(path).as_uri(),
    "a URL of a bucket": lambda _: "s3://bucket/data/x.parquet",
    "a path with a backslash": lambda _: "..\\secret.parquet",
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_file_outside_the_table_is_refused_by_a_new_reader(path: Path, kind: str):
    rename_in_log(path, OUTSIDE[kind](path))
    with pytest.raises(Corruption):
        open_table(path).pin()


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_file_outside_the_table_is_refused_by_a_reader_that_follows(path: Path, kind: str):
    last = path / LOG / entry_name(APPENDS)
    written = last.read_text()
    last.unlink()
    reader = open_table(path)
    assert len(reader.pin().files) == APPENDS - 1
    last.write_text(written)
    rename_in_log(path, OUTSIDE[kind](path))
    for _ in range(2):  # an error is not cached
        with pytest.raises(Corruption):
            reader.pin()


def test_a_file_outside_the_table_is_refused_in_a_checkpoint(path: Path):
    rename_in_log(path, str(secret(path)))
    DeltaTable(path).create_checkpoint()
    for version in range(APPENDS + 1):
        (path / LOG / entry_name(version)).unlink()
    with refused(Corruption, None, secret(path)):
        open_table(path).pin()


def test_a_removed_file_outside_the_table_is_never_one_to_delete(path: Path):
    rename_in_log(path, f"../../secret/data/{secret(path).name}", action="remove")
    with refused(Corruption, None, "../../secret"):
        removals(path)


@pytest.mark.parametrize("many", [False, True])
def test_a_data_file_that_is_a_link_is_refused(path: Path, *, many: bool):
    if many:  # a folder with many files is listed
        for number in range(20):
            append(open_table(path), 100 + number)
    victim = min((path / "data").iterdir())
    victim.unlink()
    victim.symlink_to(secret(path))
    reader = open_table(path)
    for _ in range(2):
        with refused(Corruption, None, path):
            reader.pin()


def test_a_data_folder_that_is_a_link_is_refused(path: Path):
    shutil.move(path / "data", path.parent.parent / "elsewhere")
    (path / "data").symlink_to(path.parent.parent / "elsewhere")
    with refused(Corruption, None, path / "data"):
        open_table(path).pin()


def test_a_lake_in_a_folder_that_is_a_link_is_read(path: Path):
    other = path.parent.parent / "other"
    other.symlink_to(path.parent)
    assert len(open_table(other / "t").pin().files) == APPENDS


def test_a_commit_lock_that_is_a_link_creates_no_file_elsewhere(path: Path):
    (path / "_commit_lock").unlink(missing_ok=True)
    (path / "_commit_lock").symlink_to(path.parent.parent / "made")
    with refused(Unavailable, None, "_commit_lock"):
        append(open_table(path), 9)
    assert not (path.parent.parent / "made").exists()


def test_missing_files_are_not_links(path: Path):
    check_links(path, ["data/none.parquet", "nowhere/none.parquet", *(f"nowhere/{n}.parquet" for n in range(20))])


@pytest.mark.parametrize(
    "name", ["data/x.parquet", "part-0.parquet", "a=b:c/x.parquet", "..data/x..parquet", "d/.x.parquet"]
)
def test_ordinary_names_are_taken(name: str):
    assert checked(name) == name


def test_a_registry_that_names_a_folder_outside_the_lake_is_refused(tmp_path: Path):
    lake = Lake.open(tmp_path / "lake", settings=FAST)
    lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
    (row,) = Layout.at(lake.path).registry.rglob("*.parquet")
    found = pq.ParquetFile(row).read()
    place = found.schema.get_field_index("incarnation")
    pq.write_table(found.set_column(place, found.schema.field(place), pa.array(["../../../../secret"])), row)
    with refused(Corruption, None, "../../../../secret"):
        Lake.open(lake.path, settings=FAST).dataset("a.b.c")


def test_columns_that_are_nested_too_deeply_are_refused(path: Path):
    deep = '{"type":"array","containsNull":true,"elementType":' * 5000 + '"long"' + "}" * 5000
    entry = path / LOG / entry_name(0)
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            fields = f'[{{"name":"a","type":{deep},"nullable":true,"metadata":{{}}}}]'
            line["metaData"]["schemaString"] = f'{{"type":"struct","fields":{fields}}}'
        if "commitInfo" in line:
            line["commitInfo"].pop("operationParameters", None)
    entry.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(Corruption):
        open_table(path).pin()
