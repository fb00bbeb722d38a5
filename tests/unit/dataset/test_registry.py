from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.dataset.dataset_folder import Marker, write_marker
from siltstone.dataset.registry import make_folder, remove_empty_parents
from siltstone.delta.layout import Layout
from siltstone.errors import Conflict, Corruption, InvalidRequest, NotFound, Reason, Unavailable
from siltstone.lake import Lake
from siltstone.model.spec import PROPERTY_DROPPED
from tests.support.internals import registry_of, store_of
from tests.support.refusals import refused
from tests.support.tables import FAST

SCHEMA = "id BIGINT NOT NULL, name STRING, score DOUBLE"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", settings=FAST)


def test_opening_a_lake_writes_nothing(lake: Lake):
    assert lake.datasets() == []
    assert not lake.path.exists()
    with pytest.raises(NotFound):
        lake.dataset("a.b.c")
    assert lake.sweep() == []
    assert not lake.path.exists()


def test_a_dataset_that_was_created_is_found_and_listed(lake: Lake):
    made = lake.create("a.b.c", SCHEMA, key="id", subject="name")
    other = Lake.open(lake.path, settings=FAST)
    assert other.dataset("a.b.c").info() == made.info()
    lake.create("a.a.z", SCHEMA, key="id")
    assert [info.name for info in other.datasets()] == ["a.a.z", "a.b.c"]
    assert (made.info().key, made.info().subject, made.info().kind) == (("id",), ("name",), "keyed")


def test_a_missing_dataset_is_compared_with_the_live_names(lake: Lake):
    lake.create("crm.sales.people", SCHEMA, key="id")
    lake.create("crm.sales.peoples", SCHEMA, key="id")
    lake.drop("crm.sales.peoples")
    with pytest.raises(NotFound, match=r"\bcrm\.sales\.people\b"):
        lake.dataset("crm.sales.poeples")
    with pytest.raises(NotFound) as error:
        lake.dataset("web.eu.clicks")
    assert "crm.sales" not in str(error.value)


def test_a_live_name_is_suggested_beside_many_dropped_ones(lake: Lake):
    for end in "abcd":
        lake.create(f"crm.sales.people_a{end}", SCHEMA, key="id")
    for end in "bcd":
        lake.drop(f"crm.sales.people_a{end}")
    with pytest.raises(NotFound, match=r"\bcrm\.sales\.people_aa\b"):
        lake.dataset("crm.sales.people_az")


def test_creating_the_same_dataset_again_returns_it(lake: Lake):
    first = lake.create("a.b.c", SCHEMA, key="id")
    assert lake.create("a.b.c", SCHEMA, key="id").info().incarnation == first.info().incarnation
    reordered = "score DOUBLE, name STRING, id BIGINT"
    assert lake.create("a.b.c", reordered, key=["id"]).info().incarnation == first.info().incarnation


@pytest.mark.parametrize(
    ("schema", "key", "subject"),
    [
        ("id BIGINT, name STRING", "id", None),
        ("id BIGINT, name STRING, score FLOAT", "id", None),
        ("id BIGINT, name STRING NOT NULL, score DOUBLE", "id", None),
        (SCHEMA, ["id", "name"], None),
        (SCHEMA, "id", "id"),
    ],
)
def test_creating_a_different_dataset_of_that_name_conflicts(
    lake: Lake, schema: str, key: str | list[str], subject: str | None
):
    first = lake.create("a.b.c", SCHEMA, key="id")
    with refused(Conflict, None, "a.b.c"):
        lake.create("a.b.c", schema, key=key, subject=subject)
    assert lake.dataset("a.b.c").info() == first.info()


@pytest.mark.parametrize(
    ("schema", "key", "subject"),
    [
        (SCHEMA, None, None),
        (SCHEMA, "nothing", None),
        (SCHEMA, "score", None),
        (SCHEMA, "id", "nothing"),
        ("_id BIGINT", "_id", None),
        ("id BIGINT, ID STRING", "id", None),
        (5, "id", None),
    ],
)
def test_an_invalid_dataset_is_rejected_and_nothing_is_written(
    lake: Lake, schema: object, key: str | None, subject: str | None
):
    with pytest.raises(InvalidRequest):
        lake.create("a.b.c", schema, key=key, subject=subject)
    assert not lake.path.exists()


def test_a_key_is_not_null_in_any_schema(lake: Lake):
    assert not lake.create("a.b.c", "id BIGINT, name STRING", key="id").schema.field("id").nullable


def test_a_lake_is_not_created_over_other_files(tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").touch()
    with refused(InvalidRequest, None, "thesis.doc"):
        Lake.open(tmp_path / "full", settings=FAST).create("a.b.c", SCHEMA, key="id")
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    with pytest.raises(InvalidRequest):
        Lake.open(tmp_path / "table", settings=FAST).create("a.b.c", SCHEMA, key="id")


@pytest.mark.parametrize("path", ["", "s3://bucket/lake", "hdfs://x"])
def test_a_lake_is_a_local_folder(path: str):
    with pytest.raises(InvalidRequest):
        Layout.at(path)


def test_a_path_that_the_file_system_refuses_is_an_error_of_ours(tmp_path: Path):
    with pytest.raises(Unavailable):
        Layout.at(tmp_path / ("x" * 300))


def test_a_lake_is_not_a_file(tmp_path: Path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "lake"):
        with pytest.raises(InvalidRequest):
            Layout.at(path)


# ---- sweep -----------------------------------------------------------------------------------------------------------


def test_a_sweep_removes_folders_of_crashed_creates_and_nothing_else(lake: Lake):
    people = lake.create("a.b.c", SCHEMA, key="id")
    people.upsert([{"id": 1}])
    orphan = people.path.parent / ("0" * 32)
    (orphan / "base").mkdir(parents=True)
    write_marker(orphan, Marker(dataset="a.b.c", incarnation=orphan.name), durable=False)
    stranger = people.path.parent / "notes"
    stranger.mkdir()
    assert lake.sweep() == [orphan]
    assert not orphan.exists()
    assert stranger.exists()
    assert people.to_arrow().num_rows == 1


def test_a_sweep_removes_folders_that_a_job_left_empty_and_nothing_with_a_file(lake: Lake):
    above = lake.create("a.b.c", SCHEMA, key="id").path.parent
    empty, filled, other = (above / (digit * 32) for digit in "012")
    for folder in (empty, filled):
        (folder / "base" / "data" / ("f" * 32)).mkdir(parents=True)
    (filled / "base" / "data" / "part-0.parquet").write_bytes(b"rows of another program")
    (other / "photos").mkdir(parents=True)
    assert lake.sweep() == [empty]
    assert not empty.exists()
    assert (filled / "base" / "data" / "part-0.parquet").exists()
    assert (other / "photos").is_dir()


def test_a_sweep_keeps_the_folder_of_a_running_create(lake: Lake):
    people = lake.create("a.b.c", SCHEMA, key="id")
    with store_of(people).liveness_lock() as owner:
        folder = people.path.parent / owner.owner
        folder.mkdir()
        write_marker(folder, Marker(dataset="a.b.c", incarnation=owner.owner), durable=False)
        assert lake.sweep() == []
    assert lake.sweep() == [folder]


def test_a_sweep_finishes_a_drop_that_crashed_after_the_registry(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    people = lake.create("a.b.c", SCHEMA, key="id")
    with monkeypatch.context() as crash:
        crash.setattr(registry_of(lake), "remove_dropped", lambda _dropped: None)
        lake.drop("a.b.c")
    assert people.path.exists()
    assert lake.sweep() == [people.path]
    assert not people.path.exists()


def test_a_name_is_reused_only_after_its_old_tables_are_marked(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    people = lake.create("a.b.c", SCHEMA, key="id")
    with monkeypatch.context() as crash:
        crash.setattr(registry_of(lake), "remove_dropped", lambda _dropped: None)
        lake.drop("a.b.c")
    assert PROPERTY_DROPPED not in store_of(people).changes.properties()
    lake.create("a.b.c", SCHEMA, key="id")
    assert not people.path.exists()


# ---- damage ----------------------------------------------------------------------------------------------------------


def registry_files(lake: Lake) -> list[Path]:
    return sorted((lake.path / "_system" / "datasets" / "data").glob("*.parquet"))


@pytest.mark.parametrize("content", [b"", b"PAR1"])
def test_a_registry_file_that_cannot_be_read_is_corruption(lake: Lake, content: bytes):
    lake.create("a.b.c", SCHEMA, key="id")
    registry_files(lake)[0].write_bytes(content)
    with refused(Corruption, Reason.DAMAGED_FILE, registry_files(lake)[0].name):
        Lake.open(lake.path, settings=FAST).dataset("a.b.c")


@pytest.mark.parametrize(
    "change",
    [
        {"incarnation": None},
        {"schema": None},
        {"schema": b"no schema"},
        {"spec": None},
        {"spec": "null"},
        {"spec": "[]"},
        {"spec": "no JSON"},
        {"n": None, "spec": "{}"},
    ],
    ids=str,
)
def test_a_registry_row_that_is_not_valid_is_corruption_and_not_suggested(lake: Lake, change: dict[str, Any]):
    lake.create("crm.sales.people", SCHEMA, key="id")
    file = registry_files(lake)[0]
    rows = pq.ParquetFile(file).read()
    schema = pa.schema([field.with_nullable(nullable=True) for field in rows.schema])
    pq.write_table(pa.Table.from_pylist([rows.to_pylist()[0] | change], schema=schema), file)
    other = Lake.open(lake.path, settings=FAST)
    with pytest.raises(Corruption, match=file.name):
        other.dataset("crm.sales.people")
    with pytest.raises(Corruption, match=file.name):
        other.names()
    with pytest.raises(NotFound, match=r"\bcrm\.sales\.poeple\b"):
        other.dataset("crm.sales.poeple")


def test_a_missing_name_is_not_found_beside_a_damaged_similar_one(lake: Lake):
    lake.create("crm.sales.people", SCHEMA, key="id")
    registry_files(lake)[0].write_bytes(b"PAR1")
    with pytest.raises(NotFound, match=r"\bcrm\.sales\.poeples\b"):
        Lake.open(lake.path, settings=FAST).dataset("crm.sales.poeples")


def test_a_sound_name_is_suggested_beside_a_damaged_more_similar_one(lake: Lake):
    lake.create("crm.sales.people", SCHEMA, key="id")
    registry_files(lake)[0].write_bytes(b"PAR1")
    other = Lake.open(lake.path, settings=FAST)
    other.create("crm.sales.peopls", SCHEMA, key="id")
    with pytest.raises(NotFound, match=r"\bcrm\.sales\.peopls\b"):
        other.dataset("crm.sales.people_")


def test_a_registry_file_that_is_missing_is_corruption_and_not_a_free_name(lake: Lake):
    lake.create("a.b.c", SCHEMA, key="id")
    file = registry_files(lake)[0]
    file.unlink()
    with refused(Corruption, Reason.MISSING_FILE, file.name):
        lake.create("a.b.c", SCHEMA, key="id")


def test_a_drop_removes_the_folders_above_it_that_are_empty(lake: Lake):
    for name in ("a.b.c", "a.b.d", "a.x.y"):
        lake.create(name, SCHEMA, key="id")
    lake.drop("a.b.c")
    assert {path.name for path in (lake.path / "a" / "b").iterdir()} == {"d"}
    lake.drop("a.b.d")
    assert {path.name for path in (lake.path / "a").iterdir()} == {"x"}
    lake.drop("a.x.y")
    assert not (lake.path / "a").exists()
    assert lake.create("a.b.c", SCHEMA, key="id").info().name == "a.b.c"


def test_a_folder_is_made_while_others_remove_the_empty_ones_above_it(tmp_path: Path):
    layout = Layout.at(tmp_path)

    def make_and_remove(name: str) -> None:
        for _ in range(1000):
            folder = tmp_path / "a" / "b" / "c" / name
            make_folder(folder)
            folder.rmdir()
            remove_empty_parents(folder, layout)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make_and_remove, "wxyz"))
    assert list(tmp_path.iterdir()) == []


def test_creates_drops_and_sweeps_at_once_leave_nothing(tmp_path: Path):
    def create_and_drop(table: int) -> None:
        with Lake.open(tmp_path / "lake", settings=FAST) as own:
            for _ in range(3):
                own.create(f"a.b.t{table}", SCHEMA, key="id")
                own.sweep()
                own.drop(f"a.b.t{table}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create_and_drop, range(4)))
    assert not (tmp_path / "lake" / "a").exists()
