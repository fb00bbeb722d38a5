"""Checks the values of a query's parameters: their Python types, and that each placeholder has a value.

A value never becomes part of the text that is parsed. The text is parsed and checked first. Only in the tree does each
placeholder get its value, as a literal of the value's own type. Spark's own way (``sql(text, args=)``) does the same,
but Delta's parser loses the values on Connect sessions.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

from siltstone.errors import InvalidRequest
from siltstone.model.schema import MAX_DECIMAL_DIGITS
from siltstone.query.gate.sql_writer import string
from siltstone.query.gate.tokenizer import TextPosition

_LONG_RANGE: Final = range(-(2**63), 2**63)
_INT_BOUND: Final = 2**31
"""Bound below which a whole number is an INT, as for a literal in a query."""
_FLOATS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
MAX_LIST: Final = 10_000
"""Most items of a list that is bound as one value."""


def check_parameters(placeholders: Mapping[str, TextPosition], values: Mapping[str, object]) -> dict[str, object]:
    """Return the values of a query's placeholders, each in its plain class; reject values that do not fit.

    A subclass may have its own text form. Only the value counts, never that text.
    """
    missing = [f":{name} at {position}" for name, position in placeholders.items() if name not in values]
    if missing:
        raise InvalidRequest(
            f"The query has no value for {', '.join(missing)}. Give each parameter a value by its name."
        )
    extra = sorted(str(name) for name in values if name not in placeholders)
    if extra:
        expected = ", ".join(f":{name}" for name in placeholders) or "none"
        raise InvalidRequest(f"The query has no parameter {', '.join(extra)}; it has {expected}.")
    return {name: _plain(name, value) for name, value in values.items()}


def _plain(name: str, value: object) -> object:  # noqa: C901  # one for each class
    match value:
        case None | bool():
            return value
        case float():
            return float.__pos__(value)
        case bytes():
            return bytes.__getitem__(value, slice(None))
        case str():
            if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                raise InvalidRequest(f"Parameter :{name} has an unpaired surrogate, which cannot be sent.")
            return str.__str__(value)
        case int():
            whole = int.__pos__(value)
            if whole not in _LONG_RANGE:
                raise InvalidRequest(f"Parameter :{name} is beyond 64 bits. Give it as a Decimal.")
            return whole
        case Decimal():
            if not value.is_finite() or max(decimal_size(value)) > MAX_DECIMAL_DIGITS:
                raise InvalidRequest(
                    f"Parameter :{name} must be a number of at most {MAX_DECIMAL_DIGITS} digits, not {value}."
                )
            return Decimal(value)
        case date():
            return _plain_time(name, value)
        case list() | tuple():
            return _plain_list(name, list(value))
        case _:
            raise InvalidRequest(
                f"Parameter :{name} is a {type(value).__name__}, which cannot be bound. Values are None, bool, int, float, "
                "str, bytes, Decimal, date, datetime and lists of bool, int, float or str."
            )


def _plain_time(name: str, value: date) -> date:
    """Return a date or a time. A time with a zone is converted to UTC, because the zone is not part of its value."""
    try:
        if not isinstance(value, datetime):
            return date(value.year, value.month, value.day)
        clock = (value.hour, value.minute, value.second, value.microsecond, value.tzinfo)
        at = datetime(value.year, value.month, value.day, *clock, fold=value.fold)  # noqa: DTZ001  # it may have none
        moment = at.replace(tzinfo=None) if at.utcoffset() is None else at.astimezone(UTC)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"Parameter :{name} is not a time between the years 1 and 9999 in UTC.") from error
    if getattr(value, "nanosecond", 0):
        raise InvalidRequest(f"Parameter :{name} is finer than a microsecond, which no column is. Round it.")
    return moment


def _plain_list(name: str, values: list[object]) -> list[object]:
    if not 1 <= len(values) <= MAX_LIST:
        raise InvalidRequest(f"Parameter :{name} is a list of {len(values)} values. A list has 1 to {MAX_LIST:,}.")
    plain = [_plain(name, value) for value in values]
    kinds = {type(value) for value in plain}
    if len(kinds) > 1 or not kinds <= {bool, int, float, str}:
        raise InvalidRequest(
            f"Parameter :{name} is a list of {', '.join(sorted(kind.__name__ for kind in kinds))}; a list has values of one "
            "kind, which is bool, int, float or str."
        )
    return plain


def decimal_size(value: Decimal) -> tuple[int, int]:
    """Return the digits of a decimal: in total, and after the point.

    >>> decimal_size(Decimal("12.50")), decimal_size(Decimal("1E+3")), decimal_size(Decimal("0.001"))
    ((4, 2), (4, 0), (3, 3))
    """
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    return max(len(digits) + max(0, int(exponent)), scale, 1), scale


def literal(value: object) -> str:  # noqa: C901, PLR0911  # one case for each class
    r"""Return a value as Spark's literal of its type, which can be parsed in one way only.

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
        case datetime():
            at = value.astimezone(UTC) if value.tzinfo else value
            return _cast(at.isoformat(sep=" "), "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ")
        case date():
            return _cast(value.isoformat(), "DATE")
        case list() | tuple():
            return f"array({', '.join(map(literal, value))})"
        case int():
            kind = "INT" if -_INT_BOUND <= value < _INT_BOUND else "BIGINT"
            return str(value) if 0 <= value < _INT_BOUND else _cast(str(value), kind)
        case float():
            return _cast(_FLOATS.get(str(value), repr(value)), "DOUBLE")
        case Decimal():
            precision, scale = decimal_size(value)
            return _cast(f"{value:f}", f"DECIMAL({precision}, {scale})")
        case _:
            raise InvalidRequest(f"A {type(value).__name__} cannot be bound.")


def _cast(text: str, kind: str) -> str:
    return f"CAST({string(text)} AS {kind})"
