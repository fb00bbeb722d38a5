"""Points in a dataset's past: a sequence, or a time of day."""

import datetime
import operator
from typing import Final

from siltstone.errors import InvalidRequest

Point = int | datetime.datetime
MAX_SEQUENCE: Final = 2**63 - 1


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
            return as_sequence(point, what="at")
        if point.tzinfo is None or point.utcoffset() is None:
            raise InvalidRequest(f"at is a time without a zone: {str(at)!r}. Say which, for example with a Z for UTC.")
        return point.astimezone(datetime.UTC)
    except (ValueError, OverflowError) as error:  # also thousands of digits, or a time before the year 1 of UTC
        raise InvalidRequest(
            f"at must be a sequence or a time such as 2026-11-16T08:00:00Z, not {str(at)[:80]!r}."
        ) from error


def as_sequence(value: object, *, what: str) -> int:
    """Return a sequence from an integer. Refuse any other value with InvalidRequest."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number <= MAX_SEQUENCE:
        expected = f"a whole number from 0 to {MAX_SEQUENCE}" + (" or a time" if what == "at" else "")
        shown = f", not {value!r}" if abs(number) <= MAX_SEQUENCE else ""  # Python writes at most 4,300 digits
        raise InvalidRequest(f"{what} must be {expected}{shown}.")
    return number
