"""silt compact --plan: what a cycle would do now, and why the rest is left out; without Spark."""

from pathlib import Path

import pytest

from siltstone.lake import Lake
from tests.e2e.conftest import PEOPLE
from tests.e2e.silt import silt


@pytest.fixture
def people(lake_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset with three batches that are not folded."""
    monkeypatch.setenv("SILT_LAKE", str(lake_path))
    with Lake.open(lake_path) as lake:
        dataset = lake.create(PEOPLE, "id STRING NOT NULL, n BIGINT", key="id")
        for number in range(3):
            dataset.upsert([{"id": str(number), "n": number}])
    return PEOPLE


def test_what_is_below_its_thresholds_is_left_out_with_its_numbers(people: str) -> None:
    shown = silt("compact", "--plan")
    assert "3 of 64 batches" in shown.out
    assert "3 of 32 small files" in shown.out
    assert "0 jobs" in shown.err
    plan = silt("compact", "--plan", people, "--json").data
    assert plan["jobs"] == []
    assert {found["kind"] for found in plan["left_out"]} == {"fold", "squash"}
    assert all(found["reason"] for found in plan["left_out"])


def test_it_can_be_forced_and_narrowed(people: str) -> None:
    plan = silt("compact", "--plan", "--force", "--only", "fold", "--json").data
    (job,) = plan["jobs"]
    assert (job["kind"], job["dataset"], job["files"], job["rows"]) == ("fold", people, 3, 3)
    assert plan["left_out"] == []


def test_thresholds_are_settings(people: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILT_FOLD_BATCHES", "3")
    (job,) = silt("compact", "--plan", people, "--json").data["jobs"]
    assert job["trigger"].startswith("3 of 3 batches")


@pytest.mark.usefixtures("people")
def test_bad_input_is_told() -> None:
    assert "There is no tier or work 'nothing'" in silt("compact", "--plan", "--only", "nothing").err
    assert "go with --plan" in silt("compact", "--all", "--force").err
    assert "goes with a name" in silt("compact", "--plan", "--purge").err
    assert silt("compact", "--plan", "crm.sales.nobody").code == 3


def test_removed_files_wait_for_a_vacuum(lake_path: Path, people: str) -> None:
    with Lake.open(lake_path) as lake:
        lake.dataset(people).squash()
    waiting = [found for found in silt("compact", "--plan", "--json").data["left_out"] if found["kind"] == "vacuum"]
    assert len(waiting) == 1
    assert waiting[0]["dataset"] == people
