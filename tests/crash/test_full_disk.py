"""A full disk: an upsert reports it, changes nothing, leaves no file, and works again once there is room."""

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone import Lake
from siltstone.errors import SiltstoneError
from tests.crash.conftest import StartLake
from tests.support.children import Child
from tests.support.operations import NAME, SCHEMA, open_lake, row, state

PAGE_BYTES = 4096
NEW_ROWS = [row(number, number, "x" * 50) for number in range(200)]


def upsert_with_file_limit(path: str, limit_bytes: int) -> dict[str, Any]:
    """Runs in a child: no file may grow beyond the limit, as on a disk that is nearly full."""
    with open_lake(path) as lake:
        dataset = lake.dataset(NAME)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, unlimited[1]))
        raised = message = ""
        try:
            dataset.upsert(NEW_ROWS)
        except (SiltstoneError, OSError) as error:
            raised, message = type(error).__name__, str(error)
        staged = dataset.status().unreferenced_files
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        ack = dataset.upsert(NEW_ROWS)
    return {"raised": raised, "message": message, "left_behind": staged, "sequence": ack.sequence}


@pytest.mark.spark
@pytest.mark.parametrize("limit_bytes", [0, 700, 3000])
def test_an_upsert_that_cannot_write_its_file_changes_nothing_and_works_afterwards(
    limit_bytes: int, start_lake: StartLake
):
    path = start_lake("empty")
    outcome = Child(f"{__name__}:upsert_with_file_limit", {"path": str(path), "limit_bytes": limit_bytes}).value()
    assert outcome["raised"] in {"OSError", "Unavailable"}, outcome
    assert "too large" in outcome["message"] or "os error 27" in outcome["message"]
    assert outcome["left_behind"] == 0
    assert outcome["sequence"] == 1
    seen = state(str(path))
    assert seen is not None
    assert len(seen["rows"]) == len(NEW_ROWS)


@contextlib.contextmanager
def small_disk(folder: Path, *, size_bytes: int) -> Iterator[Path]:
    """A file system of a given size; skips the test where mounting is not permitted."""
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting needs root")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"mounting is not permitted: {done.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run([shutil.which("umount") or "umount", str(folder)], check=True)


def free_pages(folder: Path) -> int:
    return os.statvfs(folder).f_bavail


def leave_free(folder: Path, pages: int) -> Path:
    """Fill the disk except for N pages."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        file.write(b"\0" * PAGE_BYTES * max(0, free_pages(folder) - pages))
    return filler


def test_a_full_disk_at_any_point_of_an_upsert_leaves_the_state_before_or_after(tmp_path: Path):
    with small_disk(tmp_path / "disk", size_bytes=4 * 1024 * 1024) as disk:
        with Lake.open(disk / "lake") as lake:
            people = lake.create(NAME, SCHEMA, key="id")
            people.upsert([row(0, 0)])
            acknowledged, refused = 1, 0
            for pages in range(12):
                before = people.to_arrow().num_rows
                filler = leave_free(disk, pages)
                try:
                    ack = people.upsert([row(100 + pages, n) for n in range(100)])
                except (SiltstoneError, OSError):
                    refused += 1
                    assert people.to_arrow().num_rows == before
                else:
                    acknowledged += 1
                    assert ack.sequence == acknowledged
                    assert people.to_arrow().num_rows == before + 1
                finally:
                    filler.unlink()
            assert refused > 0
            assert people.upsert([row(1, 1)]).sequence == acknowledged + 1
        seen = state(str(disk / "lake"))
        assert seen is not None
        assert len(seen["rows"]) == acknowledged + 1
