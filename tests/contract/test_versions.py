"""The version of a log is checked when it is opened: a newer version is refused, and nothing is changed."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.delta.checkpoints import Retention
from siltstone.delta.table import Table
from siltstone.errors import Corruption, InvalidRequest, Reason, Unavailable
from siltstone.eventlog.event_table import PROPERTY_VERSION
from siltstone.eventlog.log import EventLog
from tests.support.histories import received
from tests.support.refusals import refused


def test_a_newer_log_in_sqlite_is_refused(address: Callable[[str], str]) -> None:
    uri = address("sqlite")
    EventLog.open(uri).close()
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE event_log SET schema_version = 99")
    database.close()
    with refused(InvalidRequest, None, "version 99 "):
        EventLog.open(uri)


def test_a_newer_log_on_delta_is_refused(address: Callable[[str], str]) -> None:
    uri = address("delta")
    EventLog.open(uri).close()
    path = Path(uri.removeprefix("delta://"))
    retention = Retention(hours=1)
    Table(path, settings=Settings(), clock=SystemClock(), retention=retention, label="log").set_properties(
        {PROPERTY_VERSION: "99"}
    )
    with refused(InvalidRequest, None, "version 99 "):
        EventLog.open(uri)


def test_a_delta_table_that_is_not_an_event_log_is_refused(address: Callable[[str], str]) -> None:
    import pyarrow as pa

    uri = address("delta")
    path = Path(uri.removeprefix("delta://"))
    Table.create(path, pa.schema([("a", pa.int64())]), partition_by=[], properties={}, durable=False)
    with pytest.raises(InvalidRequest):
        EventLog.open(uri)


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"not a database " * 100)
    with pytest.raises((Corruption, Unavailable)):
        EventLog.open(f"sqlite:///{tmp_path}/log.db")
    assert (tmp_path / "log.db").read_bytes().startswith(b"not a database")


def test_the_error_for_wrong_credentials_hides_the_password(address: Callable[[str], str]) -> None:
    uri = address("postgresql")
    with EventLog.open(uri) as log:
        log.append(received())
        assert "s3cret" not in log.uri
    wrong = uri.replace("loader:", "loader:wrong", 1)
    with pytest.raises(Unavailable) as refusal:
        EventLog.open(wrong)
    assert "s3cret" not in str(refusal.value)


def test_a_missing_file_of_a_log_is_corruption(
    address: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = address("delta")
    with EventLog.open(uri) as log:
        for number in range(3):
            log.append(received(f"b{number}"))
    files = sorted((tmp_path / "log1" / "data").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    files[1].unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    with EventLog.open(uri) as log, refused(Corruption, Reason.MISSING_FILE):
        log.summary()
