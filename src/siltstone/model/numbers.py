"""Whole numbers from callers."""

import operator
from typing import Final, SupportsIndex

from siltstone.errors import InvalidRequest

MAX_LONG: Final = 2**63 - 1
MAX_RESULT_ROWS: Final = 100_000
"""Most rows of the result of a query. A stream of rows has no limit."""
_MAX_SHOWN: Final = 80


def whole_number(what: str, value: object, *, least: int = 0, most: int = MAX_LONG) -> int:
    """Return an integer of any type, also of NumPy, as an int.

    >>> whole_number("limit", 7)
    7

    Raises:
        InvalidRequest: it is a bool, has another type, or is out of range.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
        if least <= number <= most:
            return number
    raise InvalidRequest(f"{what} must be a whole number from {least:,} to {most:,}, not {_shown(value)}.")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes at most 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
