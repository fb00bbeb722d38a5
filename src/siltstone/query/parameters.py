"""Values of a query's parameters: which Python values there are, and that each placeholder has one.

A value never becomes part of the text that is read: the text is read and checked first, and only in the tree does each
placeholder get its value, as a literal of the value's own type. Spark's own way (``sql(text, args=)``) does the same, but
Delta's parser loses the values on the way: on Connect sessions they do not arrive.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

from siltstone.errors import InvalidRequest
from siltstone.query.words import Place
from siltstone.query.written import string

MAX_DIGITS: Final = 38
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1
_SMALL: Final = 2**31
"""Below this a whole number is an INT, as it is where it is written in a query."""
_FLOATS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
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


def literal(value: object) -> str:
    r"""Return a value as Spark's literal of its type; it is made by type, and read in one way only.

    >>> literal(5), literal(2**40), literal("it's"), literal(None), literal([True, False])
    ('5', "CAST('1099511627776' AS BIGINT)", "'it\\'s'", 'NULL', 'array(TRUE, FALSE)')
    """
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case str():
            return string(value)
        case bytes():
            return f"X'{value.hex()}'"
        case datetime() | date():
            return _time(value)
        case list() | tuple():
            return f"array({', '.join(map(literal, value))})"
        case _:
            return _number(value)


def _number(value: object) -> str:
    match value:
        case int():
            return str(value) if 0 <= value < _SMALL else _cast(str(value), "INT" if abs(value) < _SMALL else "BIGINT")
        case float():
            return _cast(_FLOATS.get(str(value), repr(value)), "DOUBLE")
        case Decimal():
            precision, scale = decimal_size(value)
            return _cast(f"{value:f}", f"DECIMAL({precision}, {scale})")
        case _:
            raise InvalidRequest(f"A {type(value).__name__} cannot be bound.")


def _time(value: date) -> str:
    if not isinstance(value, datetime):
        return _cast(value.isoformat(), "DATE")
    at = value.astimezone(UTC) if value.tzinfo else value
    return _cast(at.isoformat(sep=" "), "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ")


def _cast(text: str, kind: str) -> str:
    return f"CAST({string(text)} AS {kind})"
