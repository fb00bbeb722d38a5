"""Cycles of several processes at once: each job is done once or refused, and the journal has every one of them."""

from pathlib import Path

import pytest

from siltstone.eventlog.events import JobStatus
from tests.support.children import Child
from tests.support.cycles import NAMES, ROWS, build, forced, observe

PROCESSES = 3


@pytest.fixture(autouse=True)
def _own_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_processes_that_run_cycles_at_once_lose_nothing_and_record_every_job(tmp_path: Path) -> None:
    path = str(tmp_path / "lake")
    build(path)
    children = [Child("tests.support.cycles:cycle", {"path": path}) for _ in range(PROCESSES)]
    reports = [child.value() for child in children]
    assert [report["trouble"] for report in reports] == [None] * PROCESSES
    found = observe(path)
    assert found["rows"] == [sorted((f"p{number}", number) for number in range(ROWS))] * 2
    assert found["files"] == [1, 1]
    assert found["unfinished"] == 0
    done = {job["job"]: job["error"] for report in reports for job in report["jobs"]}
    with forced(path) as lake:
        recorded = {record.job: record.status for record in lake.jobs(100)}
        worked = [record for record in lake.jobs(100) if record.done.files_before]
    assert recorded == {job: JobStatus.COMPLETED if error is None else JobStatus.FAILED for job, error in done.items()}
    assert sorted(record.dataset for record in worked) == sorted(NAMES)
