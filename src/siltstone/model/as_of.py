"""Points in a dataset's past: a sequence, or a time of day."""

import datetime
import operator

from siltstone.errors import InvalidRequest

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
    if isinstance(at, str):
        return as_sequence(int(at), what="at") if at.isascii() and at.isdigit() else _as_time(_parsed(at), at)
    if isinstance(at, datetime.datetime):
        return _as_time(at, at)
    return as_sequence(at, what="at")


def as_sequence(given: object, *, what: str) -> int:
    """Return a sequence from an integer.

    Raises:
        InvalidRequest: it is not an integer, or is negative.
    """
    try:
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(given, bool) or number < 0:
        wanted = "a sequence (0, 1, 2, ...)" + (" or a time" if what == "at" else "")
        raise InvalidRequest(f"{what} must be {wanted}, not {given!r}.")
    return number


def _parsed(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"at must be a sequence or a time such as 2026-11-16T08:00:00Z, not {text!r}.") from error


def _as_time(moment: datetime.datetime, given: object) -> datetime.datetime:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidRequest(f"at is a time without a zone: {str(given)!r}. Say which, for example with a Z for UTC.")
    return moment.astimezone(datetime.UTC)
