"""Periods: hours, days, ISO weeks and months of UTC, as the text that names a partition of a log dataset.

The length of the text is its granularity: ``2026-11-15T14`` (hour), ``2026-11-15`` (day), ``2026-W46`` (ISO week),
``2026-11`` (month). Years run from 0001 to 9999, always with four digits. A period starts with its first moment and
ends before `end`.

Two rules that are easy to get wrong:

- The year of a week is the ISO year, that of its Thursday: 2024-12-30 belongs to ``2025-W01``.
- A week belongs to the month of its Thursday, as it belongs to that year. So a month that was rolled up from weeks has
  up to three days of its neighbours. It lacks as many of its own. A period locates rows; it does not bound their times.

Every function refuses text that is not a valid period with InvalidRequest.
"""

import datetime
import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

from siltstone.errors import InvalidRequest

_CACHED: Final = 65_536
"""Most parsed periods in the cache: seven years of hours."""
_LAST: Final = datetime.datetime.max.replace(tzinfo=datetime.UTC)
_TO_THURSDAY: Final = datetime.timedelta(days=3)


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
    Granularity.HOUR: re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3])"),
    Granularity.DAY: re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    Granularity.WEEK: re.compile("[0-9]{4}-W[0-9]{2}"),
    Granularity.MONTH: re.compile("[0-9]{4}-[0-9]{2}"),
}
_LENGTHS: Final = {
    Granularity.HOUR: datetime.timedelta(hours=1),
    Granularity.DAY: datetime.timedelta(days=1),
    Granularity.WEEK: datetime.timedelta(days=7),
    Granularity.MONTH: datetime.timedelta(days=31),
}
"""The length of a period. That of a month leads from its first day into the next month."""


def granularity_of(period: str) -> Granularity:
    """Return the granularity of a period.

    >>> [str(granularity_of(period)) for period in ("2026-11-15T14", "2026-11-15", "2026-W46", "2026-11")]
    ['hour', 'day', 'week', 'month']
    """
    return _read(period)[0]


def start(period: str) -> datetime.datetime:
    """Return the first moment of a period.

    >>> start("2026-W46").isoformat()
    '2026-11-09T00:00:00+00:00'
    """
    return _read(period)[1]


def end(period: str) -> datetime.datetime:
    """Return the first moment after a period. For periods that end with the year 9999, return the last possible moment.

    >>> end("2026-12").isoformat()
    '2027-01-01T00:00:00+00:00'
    """
    return _read(period)[2]


@lru_cache(maxsize=_CACHED)
def coarser(period: str, granularity: Granularity) -> str:
    """Return the period of a granularity, not a finer one, that contains a period. A week has the month of its Thursday.

    >>> coarser("2026-11-30T14", Granularity.DAY), coarser("2026-11-30", Granularity.MONTH)
    ('2026-11-30', '2026-11')
    >>> coarser("2026-11-30", Granularity.WEEK), coarser("2026-W49", Granularity.MONTH)
    ('2026-W49', '2026-12')
    """
    finer, first, _ = _read(period)
    if granularity.rank < finer.rank:
        raise InvalidRequest(
            f"Period {period} is a {finer} and does not fit into one {granularity}; name a coarser one."
        )
    if granularity is Granularity.WEEK:
        year, week, _ = first.isocalendar()
        return f"{year:04d}-W{week:02d}"
    if finer is Granularity.WEEK:
        first += _TO_THURSDAY
    return first.isoformat()[: {Granularity.HOUR: 13, Granularity.DAY: 10, Granularity.MONTH: 7}[granularity]]


def order(period: str) -> tuple[datetime.datetime, datetime.datetime]:
    """Return the sort key of a period: its start, then its end. The shorter of two periods is first.

    >>> sorted(["2026-11", "2026-11-01", "2026-10-31T23", "2026-11-01T00"], key=order)
    ['2026-10-31T23', '2026-11-01T00', '2026-11-01', '2026-11']
    """
    return _read(period)[1:]


@lru_cache(maxsize=_CACHED)
def _read(period: str) -> tuple[Granularity, datetime.datetime, datetime.datetime]:
    """Return the granularity of a period, its first moment, and the first moment after it."""
    try:
        granularity = next(kind for kind, shape in _SHAPES.items() if shape.fullmatch(period))
        day = f"{period}-01" if granularity is Granularity.MONTH else period
        first = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.UTC)
    except (StopIteration, ValueError) as error:
        raise InvalidRequest(
            f"{period[:40]!r} is not a valid period. Write an hour as 2026-11-15T14, a day as 2026-11-15, "
            "an ISO week as 2026-W46, a month as 2026-11."
        ) from error
    try:
        after = first + _LENGTHS[granularity]
    except OverflowError:  # the year 10000
        return granularity, first, _LAST
    return granularity, first, after.replace(day=1) if granularity is Granularity.MONTH else after
