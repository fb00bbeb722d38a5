import datetime

import pytest

from siltstone.errors import InvalidRequest
from siltstone.model.cron import check_cron, next_after


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("cron", "moment", "expected"),
    [
        ("5 * * * *", "2026-11-15T14:04:59", "2026-11-15T14:05:00"),
        ("5 * * * *", "2026-11-15T14:05:00", "2026-11-15T15:05:00"),
        ("0 3 * * *", "2026-11-15T03:00:00.000001", "2026-11-16T03:00:00"),
        ("*/15 * * * *", "2026-12-31T23:50:00", "2027-01-01T00:00:00"),
        ("0 4 * * MON", "2026-11-15T00:00:00", "2026-11-16T04:00:00"),
        ("0 5 1 * *", "2026-11-15T00:00:00", "2026-12-01T05:00:00"),
        ("0 0 29 2 *", "2026-11-15T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 1 * 1", "2026-11-15T00:00:00", "2026-11-16T00:00:00"),
        ("@daily", "2026-11-15T14:00:00", "2026-11-16T00:00:00"),
        ("  @HOURLY ", "2026-11-15T14:00:00", "2026-11-15T15:00:00"),
    ],
)
def test_the_next_time_is_strictly_after_the_moment(cron: str, moment: str, expected: str):
    assert next_after(cron, at(moment)) == at(expected)


def test_the_answer_is_in_utc_whatever_zone_was_given():
    berlin = datetime.timezone(datetime.timedelta(hours=1))
    found = next_after("0 3 * * *", datetime.datetime(2026, 11, 15, 3, 30, tzinfo=berlin))
    assert found == at("2026-11-15T03:00:00")
    assert found.utcoffset() == datetime.timedelta(0)


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "hourly",
        "@reboot",
        "@midnight please",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "*/0 * * * *",
        "H * * * *",
        "R * * * *",
        "R(1-5) * * * *",
        "1-R * * * *",
        "5; 3 * * *",
        "a b c d e",
        "5,,6 * * * *",
        "- * * * *",
        "*" * 500,
        "0 0 30 2 *",
        "0 0 31 4,6 *",
    ],
)
def test_text_that_is_no_cron_is_refused_and_named(cron: str):
    with pytest.raises(InvalidRequest, match=r"[cC]ron"):
        check_cron(cron)


def test_a_cron_is_returned_as_it_was():
    assert check_cron("0 3 * * *") == "0 3 * * *"
