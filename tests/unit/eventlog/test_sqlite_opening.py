"""Opening a SQLite log or projection while another process has it locked."""

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine

from siltstone.errors import Unavailable
from siltstone.eventlog import database
from siltstone.eventlog.database import open_projection
from tests.support.refusals import refused


def without_waiting(url: URL, *, connect_args: dict[str, object], **options: Any) -> Engine:  # noqa: ANN401
    return create_engine(url, connect_args=connect_args | {"timeout": 0}, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "projection.db"


@pytest.fixture
def holder(path: Path) -> sqlite3.Connection:
    """Another process that creates the database and holds its lock during the test."""
    held = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    held.execute("CREATE TABLE made (x)")
    held.execute("BEGIN EXCLUSIVE")
    return held


def test_opening_a_database_waits_for_the_process_that_creates_it(
    path: Path, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_waited = threading.Event()
    sleep = time.sleep

    def pause(seconds: float) -> None:
        has_waited.set()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", pause)

    def release() -> None:
        has_waited.wait(30)
        holder.close()

    threading.Thread(target=release).start()
    monkeypatch.setattr(database, "create_engine", without_waiting)  # as SQLite does not wait at this call
    opened = open_projection(path)
    with opened.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    opened.close()
    assert has_waited.is_set()


def test_a_database_that_stays_locked_is_unavailable(
    path: Path, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0)
    opened = open_projection(path)
    with refused(Unavailable, None, path), opened.reading():
        pass
    opened.close()
    holder.close()
