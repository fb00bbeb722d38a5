"""Cron expressions: when a task is due."""

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.cron import check_cron, next_after
from siltstone.errors import InvalidRequest
from tests.support.refusals import refused


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("cron", "moment", "expected"),
    [
        ("5 * * * *", "2026-11-16T10:04:59", "2026-11-16T10:05:00"),
        ("5 * * * *", "2026-11-16T10:05:00", "2026-11-16T11:05:00"),
        ("0 3 * * *", "2026-12-31T03:00:01", "2027-01-01T03:00:00"),
        ("0 4 * * 3", "2026-11-16T00:00:00", "2026-11-18T04:00:00"),
        ("0 5 8 * *", "2026-11-08T05:00:00", "2026-12-08T05:00:00"),
        ("0 0 29 2 *", "2026-11-16T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 L * *", "2026-02-01T00:00:00", "2026-02-28T00:00:00"),
    ],
)
def test_the_next_time_is_after_the_moment_and_never_the_moment_itself(cron: str, moment: str, expected: str):
    assert next_after(cron, at(moment)) == at(expected)


@given(st.integers(0, 59), st.integers(0, 23), st.integers(0, 4_000_000_000_000_000))
@settings(max_examples=100, deadline=None)
def test_a_daily_time_comes_once_a_day(minute: int, hour: int, moment_us: int):
    utc = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=moment_us)
    found = next_after(f"{minute} {hour} * * *", utc)
    assert (found.hour, found.minute, found.second, found.microsecond) == (hour, minute, 0, 0)
    assert dt.timedelta() < found - utc <= dt.timedelta(days=1)


def test_times_are_utc_whatever_the_zone_of_the_moment():
    tokyo = dt.timezone(dt.timedelta(hours=9))
    found = next_after("0 3 * * *", dt.datetime(2026, 11, 16, 11, 0, tzinfo=tokyo))
    assert (found, found.tzinfo) == (at("2026-11-16T03:00:00"), dt.UTC)


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "x * * * *",
        "*/0 * * * *",
        "5-1 * * * *",
        "0 0 30 2 *",
        "@daily",
        "1" * 999,
    ],
)
def test_an_invalid_cron_expression_is_refused_with_its_form(cron: str):
    with refused(InvalidRequest, None, "cron", "5"):
        check_cron(cron)


def test_an_expression_that_never_comes_is_refused():
    with pytest.raises(InvalidRequest):
        check_cron("0 0 */31 2 1#5")
    with pytest.raises(InvalidRequest):
        next_after("0 0 1 1 *", at("9999-12-31T23:59:59"))


def test_a_moment_without_a_zone_is_refused():
    with pytest.raises(InvalidRequest):
        next_after("5 * * * *", dt.datetime(2026, 11, 16))  # noqa: DTZ001
