"""Tiers of one dataset: changed on top of the lake's, stored with the dataset, and refused where they are invalid."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone import Lake, Settings
from siltstone.errors import InvalidRequest
from siltstone.model.tiers import Tier, tiers_from_text
from tests.support.clicks import clicks, create
from tests.support.internals import store_of
from tests.support.refusals import refused

NAME = "web.eu.clicks"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False, tiers="daily.min_files=8")) as opened:
        yield opened


def by_name(tiers: tuple[Tier, ...]) -> dict[str, Tier]:
    return {tier.name: tier for tier in tiers}


def test_tier_changes_of_a_dataset_are_stored_and_apply_to_it_alone(lake: Lake) -> None:
    log, other = create(lake), create(lake, name="web.eu.others")
    assert log.tiers() == tiers_from_text("daily.min_files=8")
    log.set_tiers("daily.min_files=6; weekly.enabled=yes")
    log.set_tiers({"daily": {"target_bytes": "256MB"}})
    with Lake.open(lake.path, settings=Settings(durable=False)) as again:
        found = by_name(again.dataset(NAME).tiers())
        assert (found["daily"].min_files, found["daily"].target_bytes) == (6, 256 * 1024 * 1024)
        assert found["weekly"].enabled
        assert found["hourly"] == by_name(tiers_from_text(""))["hourly"]
        assert by_name(again.dataset("web.eu.others").tiers())["daily"].min_files == 12
    assert by_name(other.tiers())["daily"].min_files == 8
    assert log.set_tiers(reset=True) == tiers_from_text("daily.min_files=8")
    assert log.tiers() == tiers_from_text("daily.min_files=8")


def test_the_planner_uses_the_tiers_of_the_dataset(lake: Lake) -> None:
    log = create(lake)
    log.append(clicks(4))
    create(lake, name="web.eu.others")
    mine = {"source": "month", "target": "month", "min_age_seconds": 0, "min_files": 2, "target_bytes": "1MB"}
    log.set_tiers({"monthly": {"enabled": False}, "yearly": mine | {"cron": "0 0 1 * *"}})
    assert lake.plan(only=["yearly"]).jobs == ()
    log.set_tiers(reset=True)
    with pytest.raises(InvalidRequest, match="'yearly'"):
        lake.plan(only=["yearly"])


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ("daily.min_files=40", ("max_files",)),
        ("daily.cron=every day", ("cron",)),
        ("daily.cron=0 0 31 2 *", ("cron",)),
        ("weekly.target=hour", ("'weekly'", "hour")),
        ("weekly.enabled=yes; weekly.target=month", ("'weekly'", "'monthly'")),
        ("daily.colour=red", ("colour",)),
        ("mine.min_files=3", ("'mine'",)),
        ("daily", ("'daily'",)),
    ],
)
def test_contradicting_tiers_are_rejected_and_change_nothing(lake: Lake, changes: str, facts: tuple[str, ...]) -> None:
    log = create(lake)
    log.set_tiers("daily.min_files=6")
    version = store_of(log).base.pin().version
    with refused(InvalidRequest, None, *facts):
        log.set_tiers(changes)
    assert store_of(log).base.pin().version == version
    assert by_name(log.tiers())["daily"].min_files == 6


def test_a_keyed_dataset_has_no_tiers(lake: Lake) -> None:
    keyed = lake.create("web.eu.people", "id STRING", key="id")
    assert keyed.tiers() == ()
    with pytest.raises(InvalidRequest, match="keyed"):
        keyed.set_tiers("daily.min_files=6")


def test_later_lake_settings_that_contradict_are_reported_with_the_dataset(lake: Lake) -> None:
    log = create(lake)
    log.set_tiers("daily.min_files=20")
    with Lake.open(lake.path, settings=Settings(durable=False, tiers="daily.max_files=15")) as again:
        assert "silt tiers" in again.plan().unreadable[NAME]  # the other tiers continue
        with refused(InvalidRequest, None, "web.eu.clicks", "silt tiers"):
            again.plan([NAME])
        again.dataset(NAME).set_tiers("daily.min_files=15")
        assert not again.plan().unreadable


def test_repeated_tier_changes_commit_nothing_and_keep_column_comments(lake: Lake) -> None:
    log = create(lake)
    log.alter(add="score BIGINT", defaults={"score": 7}, comments={"n": "a number"})
    log.append([{"at": datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)}])
    log.set_tiers("daily.min_files=6")
    version = store_of(log).base.pin().version
    log.set_tiers("daily.min_files=6")
    assert store_of(log).base.pin().version == version
    columns = {column["name"]: column for column in lake.dataset(NAME).info().columns}
    assert columns["n"]["comment"] == "a number"
    assert columns["score"]["default"] == 7 or columns["score"]["default"] == "7"
