"""silt history, silt status and silt compact --cycle show the results of cycles; without Spark."""

import os
import re
from pathlib import Path

import pytest

from siltstone.lake import Lake
from tests.e2e.conftest import PEOPLE
from tests.e2e.silt import silt
from tests.support.flips import live_files
from tests.support.refusals import figures

OTHERS = "crm.sales.others"


@pytest.fixture(autouse=True)
def lake(lake_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two datasets with small files to squash."""
    monkeypatch.setenv("SILT_LAKE", str(lake_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Lake.open(lake_path) as made:
        for name in (PEOPLE, OTHERS):
            dataset = made.create(name, "id STRING NOT NULL, n BIGINT", key="id")
            for number in range(3):
                dataset.upsert([{"id": str(number), "n": number}])
    return lake_path


def cycle() -> None:
    assert silt("compact", "--cycle", "--only", "squash", "--force").code == 0


def test_a_lake_without_a_cycle_has_nothing_to_show() -> None:
    assert silt("history").code == 0
    assert silt("history", "--jobs", "--json").data == []
    assert silt("history", "--totals", "--json").data["cycles"] == 0
    assert silt("status", PEOPLE, "--json").data["last_job"] is None


def test_cycles_and_jobs_are_shown_as_tables_and_as_json() -> None:
    cycle()
    (found,) = silt("history", "--json").data
    assert (found["cycle"], found["status"], found["message"]) == (1, "completed", "2 jobs")
    assert silt("history", "--cycles", "--json").data == [found]
    jobs = silt("history", "--jobs", "--json").data
    assert {job["dataset"] for job in jobs} == {PEOPLE, OTHERS}
    (job,) = silt("history", PEOPLE, "--jobs", "--json").data
    assert (job["lane"], job["status"], job["files_before"], job["files_after"]) == ("squash", "completed", 3, 1)
    shown = silt("history", "--jobs", "--limit", "1").out
    assert "3 → 1" in shown
    assert "completed" in silt("history").out
    totals = silt("history", "--totals", "--json").data
    assert (totals["cycles"], totals["jobs"], totals["lanes"]["squash"]["jobs"]) == (1, 2, 2)
    assert totals["datasets"][PEOPLE]["files_before"] == 3
    assert silt("history", PEOPLE, "--totals", "--json").data["jobs"] == 1
    assert "squash" in silt("history", "--totals").out


def test_requested_jobs_are_listed_and_counted() -> None:
    assert silt("compact", PEOPLE, "--squash").code == 0
    assert silt("vacuum", "--all").code == 0
    assert silt("vacuum", PEOPLE, "--retention-hours", "0").code == 2
    jobs = silt("history", "--jobs", "--json").data
    assert [(job["cycle"], job["lane"], job["dataset"], job["status"]) for job in jobs] == [
        (2, "vacuum", PEOPLE, "completed"),
        (2, "vacuum", OTHERS, "completed"),
        (1, "squash", PEOPLE, "completed"),
    ]
    assert all(str(os.getpid()) in job["trigger"] for job in jobs)
    totals = silt("history", "--totals", "--json").data
    assert (totals["cycles"], totals["jobs"]) == (2, 3)
    assert (totals["lanes"]["squash"]["files_before"], totals["lanes"]["vacuum"]["jobs"]) == (3, 2)
    assert [found["message"] for found in silt("history", "--json").data] == ["2 jobs", "1 job"]


def test_status_shows_the_last_job_and_the_last_cycle() -> None:
    cycle()
    found = silt("status", PEOPLE, "--json").data
    assert (found["last_job_status"], figures(found["last_job_message"])) == ("completed", "3 1")
    assert found["last_job_kind"] == "squash"
    assert (found["jobs"], found["failures"], found["last_cycle_status"]) == (1, 0, "completed")
    shown = silt("status")
    assert re.search(r"squash .*\d{4}-\S+Z.*\b3\b.*\b1\b", shown.out)
    assert "+00:00" not in shown.out
    for reported in (found, silt("history", "--json").data, silt("history", "--jobs", "--json").data):
        assert "Z'" in str(reported)
        assert "+00:00" not in str(reported)
    assert re.search(r"completed .*\d{4}-\S+Z", shown.err)
    assert "squash" in silt("status", PEOPLE).out


def test_an_unreadable_dataset_is_named_and_the_others_are_compacted(lake: Path) -> None:
    with Lake.open(lake) as opened:
        broken = opened.dataset(OTHERS).path
    max((broken / "base" / "_delta_log").glob("*.json")).write_bytes(b"{")
    plan = silt("compact", "--plan", "--json").data
    assert list(plan["unreadable"]) == [OTHERS]
    done = silt("compact", "--cycle", "--only", "squash", "--force", "--json")
    assert done.code != 0
    assert [job["dataset"] for job in done.data] == [PEOPLE]
    assert OTHERS in done.error["message"]


def test_a_failed_job_of_a_cycle_decides_the_exit_code_by_its_kind(lake: Path) -> None:
    with Lake.open(lake) as opened:
        damaged = live_files(opened.dataset(OTHERS))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    done = silt("compact", "--cycle", "--only", "squash", "--force", "--json")
    assert (done.code, done.error["kind"]) == (9, "corruption")
    assert {job["dataset"]: job["error"] is None for job in done.data} == {PEOPLE: True, OTHERS: False}
    assert damaged.name in done.error["message"]


def test_an_unreadable_journal_is_reported_by_status_and_no_cycle_starts(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycle()
    sorted((lake / "_system" / "events" / "_delta_log").glob("*.json"))[1].write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    shown = silt("status", "--json")
    assert (shown.code, len(shown.data), shown.error["kind"]) == (9, 2, "corruption")
    assert silt("compact", "--cycle", "--only", "squash", "--force").code == 9
    done = silt("compact", PEOPLE, "--squash")
    assert (done.code, bool(done.err)) == (5, True), "a single job runs, and the error is reported"
    assert PEOPLE in done.out


def test_a_journal_that_cannot_be_written_is_reported_after_the_jobs(lake: Path) -> None:
    (lake / "_system" / "events").write_text("in the way")
    done = silt("compact", "--cycle", "--only", "squash", "--force", "--json")
    assert (done.code, done.error["kind"], len(done.data)) == (5, "unavailable", 2)
    assert [job["error"] for job in done.data] == [None, None]


def test_the_journal_is_compacted_by_cycles_and_as_any_event_log(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cycle()
    plan = silt("compact", "--plan", "--json").data
    assert [found["dataset"] for found in plan["left_out"] if found["kind"] == "events"] == ["_system/events"]
    monkeypatch.setenv("SILT_EVENT_LOG_FILES", "4")
    (job,) = silt("compact", "--cycle", "--only", "events", "--json").data
    assert (job["dataset"], job["report"]["files_added"]) == ("_system/events", 1)
    assert len(silt("history", "--jobs", "_system/events", "--json").data) == 1
    log = f"delta://{lake}/_system/events"
    before = silt("events", "builds", "--log", log, "--json").data["builds"]
    assert len(before) == 2
    assert len(silt("history", "--json").data) == 2


def test_wrong_options_of_history_are_refused() -> None:
    for bad, fact in (
        (("--jobs", "--totals"), "--totals"),
        ((PEOPLE, "--cycles"), "--jobs"),
        (("--limit", "0"), "1"),
        (("--totals", "--limit", "3"), "--limit"),
    ):
        refused = silt("history", *bad)
        assert (refused.code, fact in refused.err) == (2, True), refused
    assert silt("history", "--jobs", "crm.sales.nobody").code == 3
