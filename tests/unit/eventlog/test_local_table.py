from pathlib import Path

import pytest

from siltstone.config import Settings
from siltstone.errors import Unavailable
from siltstone.eventlog.compaction import LIVENESS_FOLDER, squash_files
from siltstone.eventlog.local_table import open_table
from siltstone.eventlog.log import EventLog
from tests.support.clocks import FakeClock
from tests.support.histories import received

SETTINGS = Settings(durable=False, event_log_files=0)


def test_locks_that_cannot_be_made_refuse_appends_and_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with EventLog.open(f"delta://{tmp_path}/log", settings=SETTINGS) as log:
        log.append(received("b1"))
        log.append(received("b2"))
    table = open_table(tmp_path / "log", settings=SETTINGS, clock=FakeClock())
    pinned = table.pin()
    (tmp_path / "log" / LIVENESS_FOLDER).rmdir()
    (tmp_path / "log" / LIVENESS_FOLDER).touch()
    with pytest.raises(Unavailable):
        squash_files(table, pinned.version, pinned.files, clock=FakeClock())
    with EventLog.open(f"delta://{tmp_path}/log", settings=SETTINGS) as log, pytest.raises(Unavailable):
        log.append(received("b3"))
