import os
from pathlib import Path

import pytest

from siltstone.delta.fsync import sync_directory, sync_file, sync_files


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        found.append(Path(f"/proc/self/fd/{handle}").readlink())
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def test_a_file_and_a_directory_are_synced(tmp_path: Path, synced: list[Path]):
    make(tmp_path, "a")
    sync_file(tmp_path / "a")
    sync_directory(tmp_path)
    assert synced == [tmp_path / "a", tmp_path]


def test_a_missing_file_cannot_be_synced(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        sync_file(tmp_path / "nothing")
    make(tmp_path, "a")
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "a")


def test_files_are_synced_first_then_every_directory_up_to_the_root(tmp_path: Path, synced: list[Path]):
    make(tmp_path, "data/job/0/a", "data/job/0/b")
    sync_files(tmp_path, ["data/job/0/a", "data/job/0/b"], synced=set())
    files, folders = synced[:2], synced[2:]
    assert set(files) == {tmp_path / "data/job/0/a", tmp_path / "data/job/0/b"}
    assert folders == [tmp_path / "data/job/0", tmp_path / "data/job", tmp_path / "data", tmp_path]


def test_nothing_above_the_root_is_touched(tmp_path: Path, synced: list[Path]):
    make(tmp_path / "t", "a")
    sync_files(tmp_path / "t", ["a"], synced=set())
    assert set(synced) == {tmp_path / "t" / "a", tmp_path / "t"}


def test_a_known_directory_is_synced_only_for_the_names_in_it(tmp_path: Path, synced: list[Path]):
    known: set[str] = set()
    make(tmp_path, "data/a", "data/b")
    sync_files(tmp_path, ["data/a"], synced=known)
    synced.clear()
    sync_files(tmp_path, ["data/b"], synced=known)
    assert synced == [tmp_path / "data/b", tmp_path / "data"]


def test_a_directory_is_known_only_after_it_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another thread that finds the directory known continues with its commit."""
    make(tmp_path, "data/a")
    known: set[str] = set()
    early: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path == tmp_path:
            early.extend(known)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    sync_files(tmp_path, ["data/a"], synced=known)
    assert early == []
    assert known == {"data", ""}


def test_a_disk_that_refuses_does_not_count_as_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make(tmp_path, "data/a")
    known: set[str] = set()

    def refuse(_handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output"):
        sync_files(tmp_path, ["data/a"], synced=known)
    assert known == set()
