"""The turn orders tries and never stands in the way for long."""

import threading
import time
from pathlib import Path

import pytest

from siltstone.clock import SystemClock
from siltstone.delta.commit_lock import TURN, CommitLock


def take(table: Path) -> CommitLock:
    return CommitLock(table, clock=SystemClock())


def test_the_second_waits_for_the_first(tmp_path: Path):
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


def test_who_waits_too_long_goes_on_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("siltstone.delta.commit_lock.TURN_SECONDS", 0.01)
    with take(tmp_path), take(tmp_path):
        assert (tmp_path / TURN).exists()


def test_a_table_that_is_not_there_has_no_turn(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        take(tmp_path / "nothing")
