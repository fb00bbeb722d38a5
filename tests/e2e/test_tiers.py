"""silt tiers: roll-up rules of the lake and of one dataset; silt create for logs without duplicates."""

import re
from pathlib import Path

import pytest

from tests.e2e.silt import silt

CLICKS = "web.eu.clicks"


@pytest.fixture
def clicks(lake_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log."""
    monkeypatch.setenv("SILT_LAKE", str(lake_path))
    made = silt(
        "create", CLICKS, "--time", "at", "--schema", "at TIMESTAMP, id BIGINT, n INT", "--dedup-by", "at,id",
        "--survivor", "last", "--cluster-by", "id,at",
    )  # fmt: skip
    assert made.code == 0, made.err
    return CLICKS


def test_tiers_of_one_log_are_changed_shown_and_forgotten(clicks: str) -> None:
    shown = silt("tiers").out
    assert "hourly" in shown
    assert {"1h", "1d", "2d", "512MB", "2GB"} <= set(shown.split()), "as they may be typed with --set"
    changed = silt("tiers", clicks, "--set", "daily.min_files=6", "--set", "daily.cron=30 2 * * *", "--json").data
    assert {tier["name"]: tier["min_files"] for tier in changed}["daily"] == 6
    assert "30 2 * * *" in silt("tiers", clicks).out
    assert {tier["name"]: tier["min_files"] for tier in silt("tiers", "--json").data}["daily"] == 12
    assert silt("tiers", clicks, "--reset").code == 0
    assert "30 2 * * *" not in silt("tiers", clicks).out


def test_bad_tiers_are_refused_by_name(clicks: str) -> None:
    bad = silt("tiers", clicks, "--set", "daily.cron=every day")
    assert bad.code == 2
    assert "'daily'" in bad.err
    assert silt("tiers", clicks, "--set", "daily.min_files=400").code == 2
    assert silt("tiers", "--reset").code == 2
    assert silt("tiers", "web.eu.nobody").code == 3


def test_a_log_shows_how_it_is_clustered_and_which_duplicates_survive(clicks: str) -> None:
    shown = silt("describe", clicks)
    assert re.search(r"at, id\b.*\blast\b", shown.out)
    assert silt("describe", clicks, "--json").data["cluster_by"] == ["id", "at"]
    refused = silt("create", "web.eu.bad", "--time", "at", "--schema", "at TIMESTAMP, id BIGINT", "--dedup-by", "id")
    assert refused.code == 2
    assert "dedup_by=['id', 'at']" in refused.err


def test_a_keyed_dataset_has_no_tiers(lake_path: Path) -> None:
    silt("--lake", lake_path, "create", "a.b.keyed", "--key", "id", "--schema", "id STRING")
    assert "a.b.keyed" in silt("--lake", lake_path, "tiers", "a.b.keyed").out
    assert silt("--lake", lake_path, "--json", "tiers", "a.b.keyed").data == []
