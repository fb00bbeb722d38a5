"""Scratch folders: private, each for one process, and removed after its end."""

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.cli.doctor import run_checks
from siltstone.config import Settings
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.host.user_cache import private_cache
from siltstone.lake import Lake
from siltstone.spark.connect_server import properties
from siltstone.spark.scratch import Scratch, dead_folders, scratch_root, sweep, sweep_all
from tests.support.refusals import refused
from tests.support.tables import FAST

KILLED = """
import os, sys
from siltstone.config import Settings
from siltstone.spark.scratch import Scratch
taken = Scratch(Settings(scratch_dir=sys.argv[1]))
(taken.folder / "blockmgr-1").mkdir()
(taken.folder / "blockmgr-1" / "shuffle").write_text("rows")
print(taken.folder, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(scratch_dir=str(tmp_path))


def killed(settings: Settings) -> Path:
    """Return the folder that a killed process left."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, settings.scratch_dir], capture_output=True, text=True, check=False
    )
    left = Path(done.stdout.strip())
    assert (left / "blockmgr-1" / "shuffle").exists()
    return left


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_scratch_folder_and_the_one_above_are_private(settings: Settings):
    with Scratch(settings) as taken:
        assert (mode(taken.folder), mode(taken.folder.parent)) == (0o700, 0o700)
        assert taken.folder.parent == Path(settings.scratch_dir) / f"siltstone-{os.getuid()}"
    assert not taken.folder.exists()


def test_a_relative_path_is_refused():
    with refused(InvalidRequest, None, "scratch_dir", "'here'"):
        Scratch(Settings(scratch_dir="here"))


def test_a_folder_that_was_open_to_others_is_closed(settings: Settings):
    root = scratch_root(settings)
    root.mkdir()
    root.chmod(0o755)
    with Scratch(settings):
        assert mode(root) == 0o700


def test_a_folder_that_another_user_put_in_the_way_is_refused(settings: Settings):
    scratch_root(settings).symlink_to("/")
    with pytest.raises(Unavailable, match="scratch_dir"):
        Scratch(settings)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_folder_of_another_user_is_refused(settings: Settings):
    scratch_root(settings).mkdir()
    os.chown(scratch_root(settings), 65534, 65534)
    with pytest.raises(Unavailable):
        Scratch(settings)
    assert sweep_all(settings) == 0


def test_folders_of_a_killed_process_are_removed_by_the_next_one(settings: Settings):
    left = killed(settings)
    with Scratch(settings) as other:
        assert not left.exists()
        assert other.folder.is_dir()
        assert [path.name for path in (other.folder.parent / "live").iterdir()] == [other.folder.name]


def test_a_sweep_leaves_the_folders_of_live_processes_and_what_is_not_ours(settings: Settings):
    left = killed(settings)
    foreign = left.parent / "notes"
    foreign.mkdir()
    with Scratch(settings) as mine:
        left.mkdir()
        assert dead_folders(left.parent) == [left]
        assert sweep(left.parent) == 1
        assert mine.folder.is_dir()
        assert foreign.is_dir()


def test_the_sweep_of_a_worker_reaches_the_folders_of_other_processes(settings: Settings):
    with Scratch(settings) as parent:
        left = killed(settings)
        inner = killed(Settings(scratch_dir=str(parent.folder)))
        assert sweep_all(Settings(scratch_dir=str(parent.folder))) == 2
        assert not left.exists()
        assert not inner.exists()
        assert parent.folder.is_dir()


def test_a_purge_removes_what_killed_processes_left(settings: Settings, tmp_path: Path):
    left = killed(settings)
    with Lake.open(tmp_path / "lake", settings=replace(FAST, scratch_dir=settings.scratch_dir)) as lake:
        assert lake.create("a.b.c", "id STRING NOT NULL", key="id").compact(purge=True).purged
    assert not left.exists()


def test_the_doctor_removes_what_killed_processes_left(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    left = killed(settings)
    monkeypatch.setenv("SILT_SCRATCH_DIR", settings.scratch_dir)
    (check,) = [one for one in run_checks(None, open_lake=lambda: pytest.fail("no lake")) if one.name == "scratch"]
    assert "removed 1 folder of" in check.finding
    assert not left.exists()


def test_a_cache_of_user_data_is_private_even_where_it_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "siltstone" / "eventlog").mkdir(parents=True)
    (tmp_path / "siltstone" / "eventlog").chmod(0o755)
    assert mode(private_cache("eventlog")) == 0o700


def test_options_are_written_as_java_reads_them():
    assert properties({"spark.a b": " one\\two", "spark.x": "a=b\nc"}) == "spark.a\\ b=\\ one\\\\two\nspark.x=a=b\\nc\n"
