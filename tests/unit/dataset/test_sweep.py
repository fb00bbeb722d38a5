"""The sweep of a lake deletes only files that no process can need. Folders are in `test_registry`."""

import datetime
from dataclasses import dataclass
from pathlib import Path

from siltstone.clock import SystemClock
from siltstone.coordination.liveness import LivenessLock
from siltstone.delta.checkpoints import write_checkpoint
from siltstone.delta.layout import Layout
from siltstone.lake import Lake
from tests.support.tables import FAST

SCHEMA = "id BIGINT NOT NULL"


@dataclass(frozen=True, slots=True)
class EarlierClock(SystemClock):
    """A clock that is a few hours behind."""

    hours: float = 3.0

    def now(self) -> datetime.datetime:
        return SystemClock.now(self) - datetime.timedelta(hours=self.hours)


def files(root: Path) -> set[Path]:
    return set((Layout.at(root).registry / "data").glob("*.parquet"))


def create_and_drop(root: Path, clock: SystemClock) -> None:
    with Lake.open(root, settings=FAST, clock=clock) as lake:
        lake.create("a.b.c", SCHEMA, key="id")
        lake.drop("a.b.c")
        lake.create("a.b.kept", SCHEMA, key="id")


def test_a_row_of_the_registry_that_was_replaced_long_ago_is_deleted(tmp_path: Path):
    create_and_drop(tmp_path, EarlierClock())
    assert len(files(tmp_path)) == 3
    with Lake.open(tmp_path, settings=FAST) as lake:
        assert lake.sweep() == []
        assert len(files(tmp_path)) == 2
        assert [info.name for info in lake.datasets()] == ["a.b.kept"]
        lake.create("a.b.c", SCHEMA, key="id")
        assert lake.sweep() == []
        assert [info.name for info in Lake.open(tmp_path, settings=FAST).datasets()] == ["a.b.c", "a.b.kept"]


def test_a_row_of_the_registry_that_a_reader_may_need_is_kept(tmp_path: Path):
    create_and_drop(tmp_path, SystemClock())
    before = files(tmp_path)
    with Lake.open(tmp_path, settings=FAST) as lake:
        lake.sweep()
    assert files(tmp_path) == before


def test_a_staged_row_of_the_registry_is_kept_while_its_owner_lives(tmp_path: Path):
    create_and_drop(tmp_path, SystemClock())
    before = files(tmp_path)
    layout, owner = Layout.at(tmp_path), SystemClock().new_id()
    staged = layout.registry / "data" / f"{owner}.parquet"
    with Lake.open(tmp_path, settings=FAST) as lake:
        with LivenessLock(layout.liveness, owner):
            staged.write_bytes(b"half a file")
            lake.sweep()
            assert staged.exists()
        lake.sweep()
    assert files(tmp_path) == before


def test_a_clock_that_was_set_back_makes_no_file_an_orphan(tmp_path: Path):
    create_and_drop(tmp_path, EarlierClock(hours=-3))  # its removal times are three hours ahead
    before = files(tmp_path)
    with Lake.open(tmp_path, settings=FAST) as lake:
        lake.sweep()
        assert files(tmp_path) == before
        write_checkpoint(Layout.at(tmp_path).registry, durable=False)
        lake.sweep()
    assert files(tmp_path) == before
