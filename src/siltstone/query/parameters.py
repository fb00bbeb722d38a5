"""Values of a query's parameters: which Python values there are, and that each placeholder has one.

A value is bound, never pasted into the text. Times and decimals travel as text that the query casts, so that no engine
and no time zone of a process decides what they are.
"""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

from siltstone.errors import InvalidRequest
from siltstone.query.words import Place

MAX_DIGITS: Final = 38
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1
MAX_LIST: Final = 10_000
"""The longest list that is bound as one value."""


def check_parameters(named: Mapping[str, Place], given: Mapping[str, object]) -> None:
    """Refuse values that do not fit the placeholders of a query.

    Raises:
        InvalidRequest: a value is missing, is for no placeholder, or is of a type that cannot be bound.
    """
    missing = [f":{name} at {place}" for name, place in named.items() if name not in given]
    if missing:
        raise InvalidRequest(
            f"The query has no value for {', '.join(missing)}. Give each parameter a value by its name."
        )
    extra = sorted(str(name) for name in given if name not in named)
    if extra:
        known = ", ".join(f":{name}" for name in named) or "none"
        raise InvalidRequest(f"The query has no parameter {', '.join(extra)}; it has {known}.")
    for name, value in given.items():
        _check(name, value)


def _check(name: str, value: object) -> None:
    match value:
        case None | bool() | float() | bytes() | date():
            return
        case str():
            if not _is_unicode(value):
                raise InvalidRequest(f"Parameter :{name} has half a character in it; it cannot be sent.")
        case int():
            if not _SMALLEST <= value <= _LARGEST:
                raise InvalidRequest(f"Parameter :{name} is beyond 64 bits. Give it as a Decimal.")
        case Decimal():
            _check_decimal(name, value)
        case list() | tuple():
            _check_list(name, list(value))
        case _:
            raise InvalidRequest(
                f"Parameter :{name} is a {type(value).__name__}, which cannot be bound. Values are None, bool, int, float, "
                "str, bytes, Decimal, date, datetime and lists of one kind of these."
            )


def _is_unicode(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _check_decimal(name: str, value: Decimal) -> None:
    if not value.is_finite() or max(decimal_size(value)) > MAX_DIGITS:
        raise InvalidRequest(f"Parameter :{name} must be a number of at most {MAX_DIGITS} digits, not {value}.")


def _check_list(name: str, values: list[object]) -> None:
    if not 1 <= len(values) <= MAX_LIST:
        raise InvalidRequest(f"Parameter :{name} is a list of {len(values)} values; bound are 1 to {MAX_LIST:,}.")
    kinds = {type(value) for value in values}
    if len(kinds) > 1 or not kinds <= {bool, int, float, str}:
        raise InvalidRequest(
            f"Parameter :{name} is a list of {', '.join(sorted(kind.__name__ for kind in kinds))}; a list has values of one "
            "kind, which is bool, int, float or str."
        )
    for value in values:
        _check(name, value)


def decimal_size(value: Decimal) -> tuple[int, int]:
    """Return the digits of a decimal: all of them, and those after the point.

    >>> decimal_size(Decimal("12.50")), decimal_size(Decimal("1E+3")), decimal_size(Decimal("0.001"))
    ((4, 2), (4, 0), (3, 3))
    """
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    return max(len(digits) + max(0, int(exponent)), scale, 1), scale


def spark_value(value: object) -> object:
    """Return what is bound on Spark for a value."""
    match value:
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo else value).isoformat(sep=" ")
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case float() if not math.isfinite(value):
            return str(value)
        case bytes():
            return value.hex()
        case tuple():
            return list(value)
        case _:
            return value


def spark_placeholder(values: Mapping[str, object]) -> Callable[[str], str]:
    """Return how a parameter is written for Spark: with a cast where its value travels as text."""

    def written(name: str) -> str:
        match values[name]:
            case datetime() as at:
                return f"CAST(:{name} AS {'TIMESTAMP' if at.tzinfo else 'TIMESTAMP_NTZ'})"
            case date():
                return f"CAST(:{name} AS DATE)"
            case Decimal() as number:
                precision, scale = decimal_size(number)
                return f"CAST(:{name} AS DECIMAL({precision}, {scale}))"
            case float() as number if not math.isfinite(number):
                return f"CAST(:{name} AS DOUBLE)"
            case bytes():
                return f"unhex(:{name})"
            case _:
                return f":{name}"

    return written
