"""Points in a dataset's past: a sequence, or a time of day."""

import datetime

from siltstone.errors import InvalidRequest
from siltstone.model.numbers import whole_number

Point = int | datetime.datetime


def as_point(at: object) -> Point:
    """Return a point in the past from a sequence, a time with its zone, or either as text.

    >>> as_point(7), as_point("7")
    (7, 7)
    >>> as_point("2026-11-16T08:00+01:00").isoformat()
    '2026-11-16T07:00:00+00:00'

    Raises:
        InvalidRequest: it has another type or form, or is a time without a zone.
    """
    try:
        point = at
        if isinstance(at, str):
            point = int(at) if at.isascii() and at.isdigit() else datetime.datetime.fromisoformat(at)
        if not isinstance(point, datetime.datetime):
            return whole_number("at, if it is not a time,", point)
        if point.tzinfo is None or point.utcoffset() is None:
            raise InvalidRequest(f"at is a time without a zone: {str(at)!r}. Say which, for example with a Z for UTC.")
        return point.astimezone(datetime.UTC)
    except (ValueError, OverflowError) as error:  # also thousands of digits, or a time before the year 1 of UTC
        raise InvalidRequest(
            f"at must be a sequence or a time such as 2026-11-16T08:00:00Z, not {str(at)[:80]!r}."
        ) from error
