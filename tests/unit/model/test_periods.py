"""Periods against `datetime` as the oracle."""

import datetime as dt
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siltstone.errors import InvalidRequest
from siltstone.model.periods import Granularity, coarser, end, granularity_of, order, start

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LAST = dt.datetime.max.replace(tzinfo=dt.UTC)
moments = st.datetimes(timezones=st.just(dt.UTC))
granularities = st.sampled_from(Granularity)


def period_of(moment: dt.datetime, granularity: Granularity) -> str:
    return coarser(moment.isoformat()[:13], granularity)


def oracle(moment: dt.datetime, granularity: Granularity) -> str:
    year, week, _ = moment.isocalendar()
    texts = {
        Granularity.HOUR: moment.isoformat()[:13],
        Granularity.DAY: moment.date().isoformat(),
        Granularity.WEEK: f"{year:04d}-W{week:02d}",
        Granularity.MONTH: moment.date().isoformat()[:7],
    }
    return texts[granularity]


@given(moments, granularities)
@example(dt.datetime.min.replace(tzinfo=dt.UTC), Granularity.WEEK)
@example(LAST, Granularity.WEEK)
@example(LAST, Granularity.MONTH)
@example(EPOCH - dt.timedelta(microseconds=1), Granularity.HOUR)
@example(dt.datetime(2024, 12, 30, tzinfo=dt.UTC), Granularity.WEEK)
@example(dt.datetime(2021, 1, 3, 23, tzinfo=dt.UTC), Granularity.WEEK)
@settings(max_examples=400, deadline=None)
def test_the_period_of_a_moment_is_that_of_the_calendar_and_holds_it(moment: dt.datetime, granularity: Granularity):
    period = period_of(moment, granularity)
    assert period == oracle(moment, granularity)
    assert granularity_of(period) is granularity
    assert start(period) <= moment < end(period) or moment == end(period) == LAST


@given(moments, granularities)
@settings(max_examples=200, deadline=None)
def test_periods_of_one_granularity_stand_one_after_the_other(moment: dt.datetime, granularity: Granularity):
    period = period_of(moment, granularity)
    assert period_of(start(period), granularity) == period
    if end(period) < LAST:
        following = period_of(end(period), granularity)
        assert start(following) == end(period)
        assert order(period) < order(following)


@given(moments, granularities, granularities)
@settings(max_examples=300, deadline=None)
def test_a_coarser_period_holds_the_finer_one_and_a_week_goes_by_its_thursday(
    moment: dt.datetime, fine: Granularity, coarse: Granularity
):
    period = period_of(moment, fine)
    if coarse.rank < fine.rank:
        with pytest.raises(InvalidRequest):
            coarser(period, coarse)
        return
    found = coarser(period, coarse)
    assert granularity_of(found) is coarse
    if (fine, coarse) == (Granularity.WEEK, Granularity.MONTH):
        assert found == oracle(start(period) + dt.timedelta(days=3), coarse)
    else:
        assert found == oracle(moment, coarse)
        assert start(found) <= start(period)
        assert end(period) <= end(found)


def test_years_of_weeks_are_those_of_their_thursdays():
    assert coarser("2024-12-30", Granularity.WEEK) == "2025-W01"
    assert coarser("2021-01-03T05", Granularity.WEEK) == "2020-W53"
    assert coarser("2025-W01", Granularity.MONTH) == "2025-01"
    assert coarser("2020-W53", Granularity.MONTH) == "2020-12"
    assert start("2020-W53") == dt.datetime(2020, 12, 28, tzinfo=dt.UTC)


def test_the_last_periods_of_the_calendar_end_with_its_last_moment():
    for period in ("9999-12-31T23", "9999-12-31", "9999-W52", "9999-12"):
        assert end(period) == LAST
    assert end("9999-11") == dt.datetime(9999, 12, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2026", "2026-1", "2026-13", "2026-00", "0000-01", "2026-02-30", "2026-11-15T24", "2026-11-15 14"),
        *("2026-W00", "2026-W54", "2025-W53", "0000-W01", "2026-w46", "2026-W46\n", "2026-11-15T1", "2026-11-15T14:00"),
        *("+026-11", "2026-11-", "2026-11\n", " 2026-11", "\u0662026-11", "x" * 99),
    ],
)
@pytest.mark.parametrize("call", [granularity_of, start, end, order, lambda text: coarser(text, Granularity.MONTH)])
def test_an_invalid_period_is_refused_with_an_example(text: str, call: Callable[[str], object]):
    with pytest.raises(InvalidRequest, match="2026-11-15T14"):
        call(text)


def test_periods_are_sorted_by_their_start_and_then_the_shorter_one_first():
    expected = ["2026-10-31T23", "2026-11-01T00", "2026-11-01", "2026-11", "2026-11-01T01", "2026-W45"]
    assert sorted(sorted(expected), key=order) == expected
