"""Tiers: defaults, changes and refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.compaction.planning.model import JobKind
from siltstone.compactor.tasks import RECOVERY
from siltstone.config import Settings
from siltstone.errors import InvalidRequest
from siltstone.model.periods import Granularity
from siltstone.model.tiers import (
    DEFAULT_TIERS,
    changed,
    changes_from_text,
    check_tiers,
    tiers_from_text,
)
from tests.support.refusals import refused

HOURLY, DAILY, WEEKLY, MONTHLY = DEFAULT_TIERS
MB = 1024 * 1024


def test_the_default_tiers_have_their_documented_values():
    assert (HOURLY.min_age_seconds, HOURLY.min_files, HOURLY.target_bytes) == (3600, 10, 512 * MB)
    assert (HOURLY.source, HOURLY.target, HOURLY.cron) == (Granularity.HOUR, Granularity.HOUR, "5 * * * *")
    assert (DAILY.min_age_seconds, DAILY.min_files, DAILY.target_bytes) == (24 * 3600, 12, 2048 * MB)
    assert (DAILY.source, DAILY.target, DAILY.cron) == (Granularity.HOUR, Granularity.DAY, "0 3 * * *")
    assert DAILY.quiet_seconds > 0
    assert DAILY.quiet_until_seconds == 7 * 24 * 3600
    assert {tier.name: tier.enabled for tier in DEFAULT_TIERS} == {
        "hourly": True,
        "daily": True,
        "weekly": False,
        "monthly": True,
    }
    assert {tier.max_files for tier in DEFAULT_TIERS} == {30}


@pytest.mark.parametrize(
    ("field", "value", "facts"),
    [
        ("name", "Daily", ("'Daily'",)),
        ("name", "", ()),
        ("name", "fold", ("'fold'",)),
        ("source", Granularity.MONTH, ("'daily'",)),
        ("min_age_seconds", -1, ("min_age_seconds", "0")),
        ("min_age_seconds", 10**12, ("min_age_seconds", "0")),
        ("quiet_seconds", -1, ("quiet_seconds", "0")),
        ("quiet_until_seconds", -1, ("quiet_until_seconds", "0")),
        ("max_files", 1, ("max_files", "2", "500")),
        ("max_files", 501, ("max_files", "2", "500")),
        ("min_files", 1, ("min_files", "2")),
        ("min_files", 31, ("min_files", "31", "max_files", "30")),
        ("target_bytes", MB - 1, ("target_bytes",)),
        ("target_bytes", 1024**5 + 1, ("target_bytes",)),
        ("cron", "61 * * * *", ("cron",)),
    ],
)
def test_a_tier_that_contradicts_itself_is_refused_by_name(field: str, value: object, facts: tuple[str, ...]):
    with refused(InvalidRequest, None, *facts):
        replace(DAILY, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_files", 500),
        ("min_age_seconds", 0),
        ("min_files", 30),
        ("min_files", 2),
        ("target_bytes", MB),
        ("target_bytes", 1024**5),
        ("source", Granularity.DAY),
        ("name", "d"),
    ],
)
def test_the_bounds_themselves_are_allowed(field: str, value: object):
    assert getattr(replace(DAILY, **{field: value}), field) == value  # type: ignore[arg-type]


def test_half_of_the_target_is_not_small():
    assert replace(DAILY, target_bytes=2 * MB).small_bytes == MB
    assert replace(DAILY, target_bytes=2 * MB + 1).small_bytes == MB + 1


def test_tiers_are_changed_by_name_and_the_others_stay():
    found = changed(DEFAULT_TIERS, {"daily": {"min_files": 6}, "weekly": {"enabled": True}})
    assert found == (HOURLY, replace(DAILY, min_files=6), replace(WEEKLY, enabled=True), MONTHLY)
    assert changed(found, {"daily": {"max_files": 40}})[1] == replace(DAILY, min_files=6, max_files=40)
    assert changed(DEFAULT_TIERS, {}) == DEFAULT_TIERS


def test_a_new_name_is_a_new_tier_and_needs_its_fields():
    fields = {"source": "month", "target": "month", "min_age_seconds": "30d", "min_files": 2, "target_bytes": "4GB"}
    found = changed(DEFAULT_TIERS[:3], {"late": {**fields, "cron": "0 6 1 * *"}})[-1]
    assert (found.name, found.min_age_seconds, found.target_bytes, found.max_files) == (
        "late",
        30 * 86400,
        4096 * MB,
        30,
    )
    with refused(InvalidRequest, None, "'dayly'", "'daily'"):
        changed(DEFAULT_TIERS, {"dayly": {"min_files": 3}})
    with pytest.raises(InvalidRequest, match="'late'"):
        changed(DEFAULT_TIERS[:3], {"late": fields})


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("min_age_seconds", "90m", 5400),
        ("min_age_seconds", "1.5h", 5400),
        ("min_age_seconds", "45s", 45),
        ("min_age_seconds", "7d", 7 * 86400),
        ("min_age_seconds", "60", 60),
        ("min_age_seconds", 60.0, 60),
        ("target_bytes", "512MB", 512 * MB),
        ("target_bytes", "2 GiB", 2048 * MB),
        ("target_bytes", "2048kb", 2 * MB),
        ("target_bytes", "1TB", 1024 * 1024 * MB),
        ("min_files", "7", 7),
        ("enabled", "no", False),
        ("enabled", "ON", True),
        ("enabled", False, False),
        ("source", "day", Granularity.DAY),
    ],
)
def test_values_are_read_as_people_write_them(field: str, value: object, expected: object):
    assert getattr(changed([DAILY], {"daily": {field: value}})[0], field) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_files", "many"),
        ("min_files", 7.5),
        ("min_files", True),
        ("min_files", None),
        ("min_files", float("inf")),
        ("min_age_seconds", "1 fortnight"),
        ("target_bytes", "512"[:0]),
        ("target_bytes", [1]),
        ("source", "year"),
        ("source", []),
        ("cron", 5),
        ("enabled", "perhaps"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_tier_and_the_field(field: str, value: object):
    with pytest.raises(InvalidRequest, match=rf"'daily'.*\b{field}\b"):
        changed([DAILY], {"daily": {field: value}})


def test_unknown_fields_and_renames_are_refused():
    with refused(InvalidRequest, None, "'daily'", "'minfiles'"):
        changed(DEFAULT_TIERS, {"daily": {"minfiles": 3}})
    with pytest.raises(InvalidRequest, match="'nightly'"):
        changed(DEFAULT_TIERS, {"daily": {"name": "nightly"}})
    with pytest.raises(InvalidRequest, match="'daily'"):
        changed(DEFAULT_TIERS, {"daily": 6})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["all", RECOVERY, *map(str, JobKind)])
def test_a_tier_cannot_have_the_name_of_a_task_or_of_a_kind_of_job(name: str):
    with refused(InvalidRequest, None, f"'{name}'"):
        check_tiers([replace(HOURLY, name=name)])


def test_two_tiers_of_one_name_are_refused():
    with pytest.raises(InvalidRequest, match="'daily'"):
        check_tiers([DAILY, replace(DAILY, enabled=False)])


def test_two_enabled_tiers_that_write_the_same_periods_are_refused():
    other = replace(DAILY, name="nightly")
    with refused(InvalidRequest, None, "'daily'", "'nightly'"):
        check_tiers([DAILY, other])
    assert check_tiers([DAILY, replace(other, enabled=False)])[1].name == "nightly"


def test_the_text_of_a_setting_changes_tiers():
    expected = (HOURLY, replace(DAILY, min_files=6, cron="0 2 * * 1,2"), replace(WEEKLY, enabled=True), MONTHLY)
    assert tiers_from_text("daily.min_files=6; weekly.enabled = yes;daily.cron=0 2 * * 1,2;") == expected
    as_json = json.dumps({"daily": {"min_files": 6, "cron": "0 2 * * 1,2"}, "weekly": {"enabled": True}})
    assert tiers_from_text(as_json) == expected
    assert tiers_from_text(" ") == DEFAULT_TIERS


@pytest.mark.parametrize("text", ["daily", "daily.min_files", "=6", "min_files=6", ".x=1", "daily.=1", "{", '{"a": 1}'])
def test_text_that_changes_no_tier_is_refused(text: str):
    with pytest.raises(InvalidRequest):
        tiers_from_text(text)


def test_a_repeated_field_is_refused():
    with pytest.raises(InvalidRequest, match="min_files"):
        changes_from_text("daily.min_files=6; daily.min_files=7")


def test_tables_of_the_settings_file_and_the_environment_reach_the_tiers(tmp_path: Path):
    (tmp_path / "silt.toml").write_text("[tiers.daily]\nmin_files = 6\ntarget_bytes = '1GB'\n")
    assert tiers_from_text(Settings.load(lake=tmp_path, environment={}).tiers)[1] == replace(
        DAILY, min_files=6, target_bytes=1024 * MB
    )
    given_settings = Settings.load(environment={"SILT_TIERS": "daily.min_files=5"})
    assert tiers_from_text(given_settings.tiers)[1].min_files == 5


@pytest.mark.parametrize("value", ["9" * 5000, '{"a":' * 100_000, "?"])
def test_json_that_python_cannot_parse_is_refused(value: str):
    with pytest.raises(InvalidRequest):
        tiers_from_text(f'{{"daily": {value}')
