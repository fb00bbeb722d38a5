"""The commit lock orders tries and never blocks a writer for long."""

import threading
import time
from pathlib import Path

import pytest

from siltstone.clock import SystemClock
from siltstone.delta.commit_lock import LOCK_FILE, CommitLock


def take(table: Path) -> CommitLock:
    return CommitLock(table, clock=SystemClock())


def test_the_second_writer_waits_for_the_first(tmp_path: Path):
    order: list[str] = []

    def second() -> None:
        with take(tmp_path):
            order.append("second")

    with take(tmp_path):
        other = threading.Thread(target=second)
        other.start()
        time.sleep(0.02)
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_a_writer_that_waits_too_long_commits_without_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("siltstone.delta.commit_lock.LOCK_SECONDS", 0.01)
    with take(tmp_path), take(tmp_path):
        assert (tmp_path / LOCK_FILE).exists()


def test_a_missing_table_has_no_commit_lock(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        take(tmp_path / "nothing")
