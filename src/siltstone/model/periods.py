"""Periods: hours, days, ISO weeks and months of UTC, as the text that names a partition of a log dataset.

The length of the text is its granularity: ``2026-11-15T14`` (hour), ``2026-11-15`` (day), ``2026-W46`` (ISO week),
``2026-11`` (month). Years run from 0001 to 9999, always with four digits. A period starts with its first moment and
ends before `end`.

Two rules that are easy to get wrong:

- The year of a week is the ISO year, that of its Thursday: 2024-12-30 belongs to ``2025-W01``.
- A week belongs to the month of its Thursday, as it belongs to that year. A month that was rolled up from weeks
  therefore has up to three days of its neighbours, and lacks as many of its own. A period locates rows; it does not
  bound their times.
"""

import datetime
import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

from siltstone.errors import InvalidRequest

_KNOWN: Final = 65_536
"""Most parsed periods in the cache: seven years of hours."""
_LAST: Final = datetime.datetime.max.replace(tzinfo=datetime.UTC)
_DAY: Final = datetime.timedelta(days=1)
_WEEK: Final = datetime.timedelta(days=7)
_TO_THURSDAY: Final = datetime.timedelta(days=3)
_DECEMBER: Final = 12


class Granularity(StrEnum):
    """The length of a period."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def rank(self) -> int:
        """The rank among the granularities, from the finest."""
        return _RANKS[self]


_RANKS: Final = {granularity: rank for rank, granularity in enumerate(Granularity)}
_SHAPES: Final = {
    13: (Granularity.HOUR, re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2})")),
    10: (Granularity.DAY, re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")),
    8: (Granularity.WEEK, re.compile(r"([0-9]{4})-W([0-9]{2})")),
    7: (Granularity.MONTH, re.compile(r"([0-9]{4})-([0-9]{2})")),
}


def granularity_of(period: str) -> Granularity:
    """Return the granularity of a period.

    >>> [str(granularity_of(period)) for period in ("2026-11-15T14", "2026-11-15", "2026-W46", "2026-11")]
    ['hour', 'day', 'week', 'month']

    Raises:
        InvalidRequest: the text is not a valid period.
    """
    return _read(period)[0]


def start(period: str) -> datetime.datetime:
    """Return the first moment of a period.

    >>> start("2026-W46").isoformat()
    '2026-11-09T00:00:00+00:00'

    Raises:
        InvalidRequest: the text is not a valid period.
    """
    return _read(period)[1]


def end(period: str) -> datetime.datetime:
    """Return the first moment after a period. For periods that end with the year 9999, return the last possible moment.

    >>> end("2026-12").isoformat()
    '2027-01-01T00:00:00+00:00'

    Raises:
        InvalidRequest: the text is not a valid period.
    """
    return _read(period)[2]


@lru_cache(maxsize=_KNOWN)
def coarser(period: str, granularity: Granularity) -> str:
    """Return the period of a granularity that contains a period. A week belongs to the month of its Thursday.

    >>> coarser("2026-11-30T14", Granularity.DAY), coarser("2026-11-30", Granularity.MONTH)
    ('2026-11-30', '2026-11')
    >>> coarser("2026-11-30", Granularity.WEEK), coarser("2026-W49", Granularity.MONTH)
    ('2026-W49', '2026-12')

    Raises:
        InvalidRequest: the text is not a valid period, or the granularity is finer than the period's own.
    """
    own, first, _ = _read(period)
    if granularity.rank < own.rank:
        raise InvalidRequest(f"Period {period} is a {own} and does not fit into one {granularity}; name a coarser one.")
    if own is Granularity.WEEK and granularity is Granularity.MONTH:
        first += _TO_THURSDAY
    return _text(first, granularity)


def order(period: str) -> tuple[datetime.datetime, datetime.datetime]:
    """Return the sort key of a period: its start, then its end, so that the shorter of two periods is first.

    >>> sorted(["2026-11", "2026-11-01", "2026-10-31T23", "2026-11-01T00"], key=order)
    ['2026-10-31T23', '2026-11-01T00', '2026-11-01', '2026-11']
    """
    _, first, after = _read(period)
    return first, after


@lru_cache(maxsize=_KNOWN)
def _read(period: str) -> tuple[Granularity, datetime.datetime, datetime.datetime]:
    granularity, shape = _SHAPES.get(len(period), (None, None))
    match = shape.fullmatch(period) if shape else None
    if granularity is None or match is None:
        raise InvalidRequest(_refusal(period))
    try:
        first = _first(granularity, [int(part) for part in match.groups()])
    except ValueError as error:
        raise InvalidRequest(_refusal(period)) from error
    return granularity, first, _after(granularity, first)


def _first(granularity: Granularity, parts: list[int]) -> datetime.datetime:
    match granularity:
        case Granularity.WEEK:
            monday = datetime.date.fromisocalendar(parts[0], parts[1], 1)
            return datetime.datetime(monday.year, monday.month, monday.day, tzinfo=datetime.UTC)
        case Granularity.MONTH:
            return datetime.datetime(parts[0], parts[1], 1, tzinfo=datetime.UTC)
        case Granularity.DAY | Granularity.HOUR:
            year, month, day, hour = (*parts, 0)[:4]
            return datetime.datetime(year, month, day, hour, tzinfo=datetime.UTC)


def _after(granularity: Granularity, first: datetime.datetime) -> datetime.datetime:
    try:
        match granularity:
            case Granularity.HOUR:
                return first + datetime.timedelta(hours=1)
            case Granularity.DAY:
                return first + _DAY
            case Granularity.WEEK:
                return first + _WEEK
            case Granularity.MONTH if first.month == _DECEMBER:
                return first.replace(year=first.year + 1, month=1)
            case Granularity.MONTH:
                return first.replace(month=first.month + 1)
    except (OverflowError, ValueError):  # the year 10000
        return _LAST


def _text(moment: datetime.datetime, granularity: Granularity) -> str:
    day = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"
    match granularity:
        case Granularity.HOUR:
            return f"{day}T{moment.hour:02d}"
        case Granularity.DAY:
            return day
        case Granularity.WEEK:
            year, week, _ = moment.isocalendar()
            return f"{year:04d}-W{week:02d}"
        case Granularity.MONTH:
            return day[:7]


def _refusal(period: str) -> str:
    return (
        f"{period[:40]!r} is no period. Write an hour as 2026-11-15T14, a day as 2026-11-15, "
        "an ISO week as 2026-W46, a month as 2026-11."
    )
