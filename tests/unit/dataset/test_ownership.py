"""Only files that are provably ours are deleted: by the sweep, the vacuum, the purge and the drop."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field
from deltalake import Schema as SchemaOfDelta
from deltalake.schema import PrimitiveType

from siltstone.coordination.liveness import sweep_dead
from siltstone.dataset.dataset_folder import (
    MARKER,
    Content,
    content_of,
    dataset_folders,
    read_marker,
    remove_folder,
)
from siltstone.delta.checkpoints import write_checkpoint
from siltstone.delta.layout import LOG, Layout, entry_name
from siltstone.errors import Conflict, Corruption, InvalidRequest, NotFound, Reason, Unavailable
from siltstone.failpoints import arm
from siltstone.lake import Lake
from siltstone.model.names import DatasetName
from tests.support.folds import fold_by_arrow
from tests.support.refusals import refused
from tests.support.tables import FAST

SCHEMA = "id BIGINT NOT NULL, name STRING"
NAME = "a.b.c"
HEX = "0123456789abcdef" * 2


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake.open(tmp_path / "lake", settings=FAST)
    found.create(NAME, SCHEMA, key="id").upsert([{"id": 1}])
    return found


def again(lake: Lake) -> Lake:
    return Lake.open(lake.path, settings=FAST)


def saved_registry(lake: Lake, to: Path) -> Path:
    return Path(shutil.copytree(Layout.at(lake.path).registry, to / "registry"))


def restore_registry(lake: Lake, copy: Path) -> Lake:
    registry = Layout.at(lake.path).registry
    shutil.rmtree(registry)
    shutil.copytree(copy, registry)
    return again(lake)


def as_older_siltstone(folder: Path) -> None:
    (folder / MARKER).unlink()


# ---- the sweep ---------------------------------------------------------------------------------------------------


def test_create_writes_a_marker_with_name_and_incarnation(lake: Lake):
    people = lake.dataset(NAME)
    marker = read_marker(people.path)
    assert marker is not None
    assert (marker.dataset, marker.incarnation) == (NAME, people.info().incarnation)


def test_a_sweep_leaves_a_folder_of_the_user_with_the_name_of_an_incarnation(lake: Lake):
    thesis = lake.path / "a" / "b" / "c" / HEX / "thesis.doc"
    thesis.parent.mkdir()
    thesis.write_text("mine")
    elsewhere = lake.path / "photos" / "2026" / "rome" / HEX
    elsewhere.mkdir(parents=True)
    assert lake.sweep() == []
    assert thesis.read_text() == "mine"
    assert elsewhere.is_dir()


def test_a_sweep_follows_no_link_at_any_level(lake: Lake, tmp_path: Path):
    empty = lake.create("x.y.z", SCHEMA, key="id").path
    for depth in range(4):
        target = tmp_path / f"outside{depth}"
        parts = ("cat", "sch", "tab", empty.name)
        shutil.copytree(empty, target.joinpath(*parts[depth + 1 :]))
        link = lake.path.joinpath(*(f"{part}{depth}" if part != empty.name else part for part in parts[: depth + 1]))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    before = sorted(tmp_path.rglob("outside*/**/*"))
    assert lake.sweep() == []
    assert sorted(tmp_path.rglob("outside*/**/*")) == before


def test_a_sweep_keeps_a_copy_of_a_dataset_that_is_stored_elsewhere(lake: Lake):
    people = lake.dataset(NAME)
    copy = Path(shutil.copytree(people.path, lake.path / "a" / "b" / "copy" / HEX))
    assert lake.sweep() == []
    assert copy.is_dir()
    [found] = lake.unregistered()
    assert found.obstacle


@pytest.mark.parametrize("point", ["create.after_marker", "create.after_changes", "create.after_base"])
def test_a_sweep_removes_the_folder_of_an_interrupted_create(tmp_path: Path, point: str):
    lake = Lake.open(tmp_path / "lake", settings=FAST)
    lake.create("k.e.pt", SCHEMA, key="id")

    def stop(_name: str) -> None:
        raise KeyboardInterrupt

    with arm(point, stop), pytest.raises(KeyboardInterrupt):
        lake.create(NAME, SCHEMA, key="id")
    [folder] = (lake.path / "a" / "b" / "c").iterdir()
    assert again(lake).unregistered() == []
    assert again(lake).sweep() == [folder]
    assert not (lake.path / "a").exists()


def _interrupted(lake: Lake, name: str) -> Path:
    """Return the folder of a create that stopped after it had created its tables."""

    def stop(_name: str) -> None:
        raise KeyboardInterrupt

    with arm("create.after_base", stop), pytest.raises(KeyboardInterrupt):
        lake.create(name, SCHEMA, key="id")
    [folder] = lake.path.joinpath(*name.split(".")).iterdir()
    return folder


@pytest.mark.parametrize(
    "left", [f"{entry_name(0)}#1", "_commit_0f-1.json.tmp", "_commit_0f-1.json.tmp#2", entry_name(0)]
)
def test_a_create_that_was_killed_inside_a_table_blocks_neither_its_name_nor_a_backup(
    lake: Lake, tmp_path: Path, left: str
):
    folder = _interrupted(lake, "a.b.new")
    log = folder / "base" / LOG
    (log / entry_name(0)).unlink()
    (log / left).write_text("" if left == entry_name(0) else "{")
    lake = again(lake)
    assert lake.unregistered() == []
    lake.backup(tmp_path / "backup")
    lake.create("a.b.new", SCHEMA, key="id")
    assert lake.sweep() == [folder]


@pytest.mark.parametrize("other", ["data/x.parquet", f"{LOG}/{0:020d}.checkpoint.parquet", f"{LOG}/{entry_name(2)}"])
def test_an_empty_first_entry_beside_other_files_is_not_an_interrupted_create(lake: Lake, other: str):
    folder = _interrupted(lake, "a.b.new")
    (folder / "base" / LOG / entry_name(0)).write_text("")
    (folder / "base" / other).parent.mkdir(exist_ok=True)
    (folder / "base" / other).write_text("")
    assert content_of(folder, DatasetName.parse("a.b.new")) is Content.DATASET
    assert again(lake).sweep() == []


def test_an_interrupted_create_of_an_older_siltstone_blocks_nothing(lake: Lake):
    empty = lake.create("x.y.z", SCHEMA, key="id").path
    left = Path(shutil.copytree(empty, lake.path / "a" / "b" / "new" / HEX))
    as_older_siltstone(left)
    assert (lake.sweep(), lake.unregistered()) == ([], [])
    assert left.is_dir(), "nothing proves that we made it"
    lake.create("a.b.new", SCHEMA, key="id")


def test_a_sweep_finishes_a_removal_that_was_interrupted(lake: Lake):
    def stop(_name: str) -> None:
        raise KeyboardInterrupt

    with arm("drop.after_rename", stop), pytest.raises(KeyboardInterrupt):
        lake.drop(NAME)
    [left] = (lake.path / "a" / "b" / "c").iterdir()
    assert left.name.endswith(".dropped")
    shutil.rmtree(left / "base")
    assert again(lake).sweep() == [left]
    assert not (lake.path / "a").exists()


@pytest.mark.parametrize("file", [False, True])
def test_a_folder_that_exists_again_after_an_interrupted_removal_stops_no_create_and_no_sweep(
    lake: Lake, *, file: bool
):
    def stop(_name: str) -> None:
        raise KeyboardInterrupt

    folder = lake.dataset(NAME).path
    with arm("drop.after_rename", stop), pytest.raises(KeyboardInterrupt):
        lake.drop(NAME)
    (folder / "base" / "data").mkdir(parents=True)
    if file:
        (folder / "base" / "data" / "part-0.parquet").touch()
    assert again(lake).create(NAME, SCHEMA, key="id").to_arrow().num_rows == 0
    lake.sweep()
    assert [path.name for path in folder.parent.iterdir()] == [again(lake).dataset(NAME).path.name]


def test_a_name_whose_folder_a_drop_removes_during_the_listing_has_no_folders(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
):
    layout, name = Layout.at(lake.path), DatasetName.parse(NAME)
    assert dataset_folders(layout, name) == [lake.dataset(NAME).path]

    def drop(_layout: Layout, above: Path) -> None:
        shutil.rmtree(above)

    monkeypatch.setattr(Layout, "link_in", drop)
    assert dataset_folders(layout, name) == []


def test_files_of_a_drop_that_cannot_be_removed_are_named_and_left_to_the_next_sweep(lake: Lake):
    folder, other = lake.dataset(NAME).path, lake.create("a.b.other", SCHEMA, key="id").path
    obstacle = folder.with_name(f"{folder.name}.dropped")
    obstacle.touch()
    with refused(Unavailable, None, str(folder)):
        lake.drop(NAME)
    with arm("drop.after_registry", "raise"), pytest.raises(OSError, match="drop"):
        lake.drop("a.b.other")
    assert again(lake).sweep() == [other]
    obstacle.unlink()
    assert again(lake).sweep() == [folder]
    assert not (lake.path / "a").exists()


def test_a_checkpoint_that_was_written_while_a_drop_removed_its_folder_is_swept(lake: Lake):
    folder = lake.create("a.b.late", "id STRING", key="id").path
    log = folder / "changes" / "_delta_log"
    write_checkpoint(folder / "changes", durable=False)
    [checkpoint] = log.glob("*.checkpoint.parquet")
    content = checkpoint.read_bytes()
    lake.drop("a.b.late")
    lake.create("a.b.late", "id STRING", key="id")  # from now on the registry has no record of the drop
    log.mkdir(parents=True)
    checkpoint.write_bytes(content)
    (log / "_last_checkpoint").write_text("{}")
    lake.sweep()
    assert not folder.exists()
    log.mkdir(parents=True)
    checkpoint.write_bytes(content)
    (folder / "theirs.txt").write_text("of the user")
    lake.sweep()
    assert (folder / "theirs.txt").exists()


def test_a_checkpoint_of_another_program_is_kept(lake: Lake, tmp_path: Path):
    DeltaTable.create(tmp_path / "theirs", SchemaOfDelta([Field("id", PrimitiveType("string"))])).create_checkpoint()
    [theirs] = (tmp_path / "theirs" / "_delta_log").glob("*.checkpoint.parquet")
    for number, content in enumerate((theirs.read_bytes(), b"no Parquet")):
        log = lake.path / "a" / "b" / "c" / f"{number:032d}" / "base" / "_delta_log"
        log.mkdir(parents=True)
        (log / theirs.name).write_bytes(content)
    assert lake.sweep() == []
    assert len(list(lake.path.glob(f"a/b/c/*/base/_delta_log/{theirs.name}"))) == 2


def test_a_link_that_replaces_a_folder_during_its_deletion_is_not_followed(tmp_path: Path):
    theirs = tmp_path / "theirs"
    (theirs / "inner").mkdir(parents=True)
    (theirs / "thesis.doc").write_text("mine")
    (tmp_path / "link").symlink_to(theirs)
    remove_folder(tmp_path / "link")
    assert sorted(path.name for path in theirs.iterdir()) == ["inner", "thesis.doc"]


def test_a_marker_that_is_nested_without_end_hides_no_dataset(lake: Lake):
    mine = lake.path / "a" / "b" / "c" / HEX
    mine.mkdir()
    (mine / MARKER).write_text("[" * 100_000)
    assert lake.sweep() == []
    assert lake.damages() == []
    assert mine.exists()


def test_a_folder_that_only_looks_like_an_interrupted_removal_is_kept(lake: Lake):
    mine = lake.path / "a" / "b" / "c" / f"{HEX}.dropped"
    mine.mkdir()
    (mine / "thesis.doc").write_text("mine")
    assert lake.sweep() == []
    assert (mine / "thesis.doc").read_text() == "mine"


def test_a_drop_of_a_dataset_without_a_marker_is_finished_by_the_sweep(lake: Lake):
    def stop(_name: str) -> None:
        raise KeyboardInterrupt

    folder = lake.dataset(NAME).path
    as_older_siltstone(folder)
    with arm("drop.after_registry", stop), pytest.raises(KeyboardInterrupt):
        lake.drop(NAME)
    assert again(lake).sweep() == [folder]
    assert not folder.exists()


# ---- a registry from an older copy -------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [True, False])
def test_a_dataset_that_a_restored_registry_does_not_name_is_kept_reported_and_adopted(
    lake: Lake, tmp_path: Path, *, marked: bool
):
    copy = saved_registry(lake, tmp_path)
    later = lake.create("a.b.later", "at TIMESTAMP, who STRING", time="at", subject="who")
    later.append([{"at": "2026-11-15T14:03:00Z", "who": "V-7"}])
    if not marked:
        as_older_siltstone(later.path)
    rows = later.to_arrow()
    lake = restore_registry(lake, copy)
    assert lake.sweep() == []
    assert [info.name for info in lake.datasets()] == [NAME]
    [found] = lake.unregistered()
    assert (found.dataset, found.path, found.sequence, found.obstacle) == ("a.b.later", str(later.path), 1, None)

    with pytest.raises(Corruption, match="--repair"):
        lake.create("a.b.later", "at TIMESTAMP, who STRING", time="at", subject="who")
    lake.adopt(found.dataset, found.incarnation)
    adopted = again(lake).dataset("a.b.later")
    assert adopted.to_arrow().equals(rows)
    assert adopted.info().time == "at"
    adopted.append([{"at": "2026-11-15T14:04:00Z", "who": "V-8"}])
    assert (lake.unregistered(), lake.sweep()) == ([], [])
    assert read_marker(later.path) is not None


def test_a_lost_registry_is_rebuilt_from_the_datasets_on_disk(lake: Lake):
    lake.create("a.b.later", SCHEMA, key="id").upsert([{"id": 7}])
    rows = {name: lake.dataset(name).to_arrow() for name in (NAME, "a.b.later")}
    shutil.rmtree(Layout.at(lake.path).registry)
    lake = again(lake)
    with pytest.raises(NotFound, match="--repair"):
        lake.dataset(NAME)
    assert lake.sweep() == []
    for damage in lake.damages():
        lake.repair(damage)
    lake = again(lake)
    assert {info.name: lake.dataset(info.name).to_arrow() for info in lake.datasets()} == rows
    assert (lake.damages(), lake.sweep()) == ([], [])


def test_a_dataset_that_was_dropped_is_swept_although_a_restored_registry_does_not_name_it(lake: Lake, tmp_path: Path):
    copy = saved_registry(lake, tmp_path)
    later = lake.create("a.b.later", SCHEMA, key="id")
    later.upsert([{"id": 1}])

    def stop(_name: str) -> None:
        raise KeyboardInterrupt

    with arm("drop.after_marks", stop), pytest.raises(KeyboardInterrupt):
        lake.drop("a.b.later")
    lake = restore_registry(lake, copy)
    assert content_of(later.path, DatasetName.parse("a.b.later")) is Content.DROPPED
    assert lake.sweep() == [later.path]
    assert lake.unregistered() == []


def test_a_folder_that_cannot_be_adopted_is_reported_and_kept(lake: Lake, tmp_path: Path):
    copy = saved_registry(lake, tmp_path)
    for name in ("a.b.twice", "a.b.torn"):
        lake.create(name, SCHEMA, key="id").upsert([{"id": 1}])
    twice, torn = lake.dataset("a.b.twice").path, lake.dataset("a.b.torn").path
    shutil.rmtree(torn / "base")
    lake = restore_registry(lake, copy)
    moved = twice.rename(tmp_path / "away")
    lake.create("a.b.twice", SCHEMA, key="id")
    moved.rename(twice)
    found = {one.dataset: str(one.obstacle) for one in lake.unregistered()}
    assert all(found[name] not in ("", "None") for name in ("a.b.twice", "a.b.torn"))
    with pytest.raises(Conflict):
        lake.adopt("a.b.twice", twice.name)
    with pytest.raises(NotFound):
        lake.adopt(NAME, HEX)
    assert lake.sweep() == []
    assert torn.is_dir()
    assert twice.is_dir()


# ---- links in front of tables ------------------------------------------------------------------------------------


def behind_link(lake: Lake, tmp_path: Path, part: str) -> Path:
    """Move a part of the dataset out of the lake, and link to it.

    Return a file of the user beside the moved part.
    """
    folder = lake.dataset(NAME).path / part
    outside = tmp_path / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)
    mine = outside / "mine.parquet"
    mine.write_text("mine")
    return mine


@pytest.mark.parametrize("part", ["changes", "changes/data"])
def test_a_vacuum_and_a_purge_behind_a_link_are_rejected(lake: Lake, tmp_path: Path, part: str):
    mine = behind_link(lake, tmp_path, part)
    people = again(lake).dataset(NAME)
    for delete in (
        lambda: people.vacuum(retention_hours=24),
        lambda: people.compact(purge=True),
    ):
        with pytest.raises((InvalidRequest, Corruption)):
            delete()
    assert mine.read_text() == "mine"


def test_a_file_of_the_user_in_a_table_is_deleted_by_a_purge_alone(lake: Lake):
    people = lake.dataset(NAME)
    mine = [people.path / "base" / "notes.txt", people.path / "changes" / "data" / "copy.parquet"]
    for path in mine:
        path.write_text("mine")
    orphan = people.path / "changes" / "data" / f"{HEX}.parquet"
    orphan.write_text("left by a crash")
    assert people.vacuum(retention_hours=24).files == (f"changes/data/{HEX}.parquet",)
    orphan.write_text("left by a crash")
    assert lake.recover().files_swept == 1
    assert [path.read_text() for path in mine] == ["mine", "mine"]
    assert people.status().unreferenced_files == 2
    fold_by_arrow(people)
    people.compact(purge=True)
    assert not any(path.exists() for path in mine)


def test_a_link_among_data_files_is_never_deleted(lake: Lake, tmp_path: Path):
    (tmp_path / "mine.parquet").write_text("mine")
    link = lake.dataset(NAME).path / "changes" / "data" / f"{HEX}.parquet"
    link.symlink_to(tmp_path / "mine.parquet")
    assert lake.dataset(NAME).vacuum(retention_hours=24, dry_run=True).files == ()
    lake.recover()
    assert link.is_symlink()


def test_a_drop_of_a_dataset_behind_a_link_is_refused_and_changes_nothing(lake: Lake, tmp_path: Path):
    (lake.path / "a").rename(tmp_path / "elsewhere")
    (lake.path / "a").symlink_to(tmp_path / "elsewhere")
    lake = again(lake)
    with pytest.raises(InvalidRequest):
        lake.drop(NAME)
    assert lake.dataset(NAME).to_arrow().num_rows == 1


@pytest.mark.parametrize("part", ["base", "changes/data"])
def test_a_drop_of_a_dataset_with_a_table_behind_a_link_is_refused(lake: Lake, tmp_path: Path, part: str):
    mine = behind_link(lake, tmp_path, part)
    with pytest.raises(InvalidRequest):
        again(lake).drop(NAME)
    assert mine.exists()
    assert [info.name for info in again(lake).datasets()] == [NAME]


def test_liveness_locks_behind_a_link_are_not_removed(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "letter").write_text("mine")
    (tmp_path / "liveness").symlink_to(outside)
    assert sweep_dead(tmp_path / "liveness") == 0
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside / "letter")
    (inside / "folder").mkdir()
    (inside / "dead").touch()
    assert sweep_dead(inside) == 1
    assert sorted(path.name for path in inside.iterdir()) == ["folder", "link"]
    assert (outside / "letter").read_text() == "mine"


# ---- a folder that is missing ------------------------------------------------------------------------------------


def test_a_repair_drops_the_name_of_a_dataset_that_is_out_of_reach_only_on_request(lake: Lake, tmp_path: Path):
    folder = lake.dataset(NAME).path
    folder.rename(tmp_path / "unmounted")
    lake = again(lake)
    [damage] = lake.damages()
    with pytest.raises(InvalidRequest, match="drop_missing"):
        lake.repair(damage)
    (tmp_path / "unmounted").rename(folder)
    assert again(lake).dataset(NAME).to_arrow().num_rows == 1
    folder.rename(tmp_path / "unmounted")
    lake.repair(damage, drop_missing=True)
    assert (again(lake).datasets(), again(lake).damages()) == ([], [])


@pytest.mark.parametrize("part", ["", "base", "changes"])
def test_a_dataset_whose_folder_is_missing_hides_no_other_and_can_be_dropped(lake: Lake, part: str):
    lake.create("a.b.well", SCHEMA, key="id").upsert([{"id": 1}])
    shutil.rmtree(lake.dataset(NAME).path / part)
    lake = again(lake)
    assert [(info.name, info.broken is not None) for info in lake.datasets()] == [(NAME, True), ("a.b.well", False)]
    with refused(Corruption, Reason.MISSING_FILE, "silt drop a.b.c"):
        lake.dataset(NAME)
    plan = lake.plan()
    assert list(plan.unreadable) == [NAME]
    assert [one.dataset for one in lake.recover().problems] == [NAME]
    with pytest.raises(Corruption):
        lake.create(NAME, SCHEMA, key="id")
    lake.drop(NAME)
    assert [info.name for info in again(lake).datasets()] == ["a.b.well"]
    assert not (lake.path / "a" / "b" / "c").exists()
    lake.create(NAME, SCHEMA, key="id")
