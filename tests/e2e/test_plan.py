"""silt compact --plan: the jobs of a cycle now, and the reason for each omitted candidate; without Spark."""

from pathlib import Path

import pytest

from siltstone.lake import Lake
from tests.e2e.conftest import PEOPLE
from tests.e2e.silt import contents, silt
from tests.support import roll_ups
from tests.support.refusals import figures


@pytest.fixture
def people(lake_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset with three batches that are not folded."""
    monkeypatch.setenv("SILT_LAKE", str(lake_path))
    with Lake.open(lake_path) as lake:
        dataset = lake.create(PEOPLE, "id STRING NOT NULL, n BIGINT", key="id")
        for number in range(3):
            dataset.upsert([{"id": str(number), "n": number}])
    return PEOPLE


def test_jobs_below_their_thresholds_are_left_out_with_their_numbers(people: str) -> None:
    shown = silt("compact", "--plan")
    assert [numbers for numbers in ("3 of 64", "3 of 32") if numbers not in shown.out] == []
    assert figures(shown.err).split()[0] == "0"
    plan = silt("compact", "--plan", people, "--json").data
    assert plan["jobs"] == []
    assert {found["kind"] for found in plan["left_out"]} == {"fold", "squash"}
    assert all(found["reason"] for found in plan["left_out"])


def test_a_plan_can_be_forced_and_limited_to_a_kind(people: str) -> None:
    plan = silt("compact", "--plan", "--force", "--only", "fold", "--json").data
    (job,) = plan["jobs"]
    assert (job["kind"], job["dataset"], job["files"], job["rows"]) == ("fold", people, 3, 3)
    assert plan["left_out"] == []


def test_thresholds_are_settings(people: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILT_FOLD_BATCHES", "3")
    (job,) = silt("compact", "--plan", people, "--json").data["jobs"]
    assert job["trigger"].startswith("3 of 3 ")


@pytest.mark.usefixtures("people")
def test_bad_input_is_refused() -> None:
    for bad, fact in (
        (("--plan", "--only", "nothing"), "'nothing'"),
        (("--all", "--force"), "--plan"),
        (("--plan", "--purge"), "--plan"),
        (("--plan", "--cycle"), "--cycle"),
    ):
        refused = silt("compact", *bad)
        assert (refused.code, fact in refused.err) == (2, True), refused
    assert silt("compact", "--plan", "crm.sales.nobody").code == 3


def test_removed_files_wait_for_a_vacuum(lake_path: Path, people: str) -> None:
    with Lake.open(lake_path) as lake:
        lake.dataset(people).squash()
    waiting = [found for found in silt("compact", "--plan", "--json").data["left_out"] if found["kind"] == "vacuum"]
    assert len(waiting) == 1
    assert waiting[0]["dataset"] == people


@pytest.fixture
def clicks(lake_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log whose base has six files of ten rows, all in one hour."""
    monkeypatch.setenv("SILT_LAKE", str(lake_path))
    with Lake.open(lake_path) as lake:
        roll_ups.make_log(lake, files=6)
    return roll_ups.NAME


def test_a_dry_run_of_a_clustering_changes_nothing(clicks: str, lake_path: Path) -> None:
    before = contents(lake_path)
    found = silt("cluster", clicks, "--dry-run", "--json").data
    (period,) = found["periods"]
    assert (found["dataset"], found["dry_run"], found["columns"]) == (clicks, True, ["at", "n"])
    assert (found["files"], found["base_files"], found["rows"]) == (6, 6, 60)
    assert found["bytes"] == found["base_bytes"] > 0
    assert (period["period"], period["files"], period["files_after_at_most"]) == (roll_ups.HOUR, 6, 1)
    shown = silt("cluster", clicks, "--dry-run", "--by", "visitor,at")
    assert [fact for fact in ("6 files", "visitor, at") if fact not in shown.out] == []
    assert roll_ups.HOUR in shown.out
    assert contents(lake_path) == before, "nothing is changed"


def test_a_dry_run_refuses_what_cannot_be_clustered(clicks: str, people: str) -> None:
    assert silt("cluster", people, "--dry-run", "--json").error["kind"] == "invalid_request"
    assert silt("cluster", clicks, "--by", "nothing", "--dry-run", "--json").error["kind"] == "invalid_request"
    assert silt("cluster", "a.b.none", "--dry-run", "--json").error["kind"] == "not_found"
    silt("create", "web.eu.empty", "--time", "at", "--schema", "at TIMESTAMP")
    assert silt("cluster", "web.eu.empty", "--dry-run", "--json").data["files"] == 0
