"""Types: Spark's rules for the type of an expression.

A type is the Arrow type that a dataset's schema has for it. `pa.null()` is the type of a bare NULL. The rules are those
of ANSI mode.
"""

from typing import Final

import pyarrow as pa

from siltstone.model.schema import MAX_DECIMAL_DIGITS
from siltstone.query.hot.duckdb_types import SIMPLE_TYPES
from siltstone.query.translate import Unsupported

BOOLEAN: Final = pa.bool_()
BYTE: Final = pa.int8()
SHORT: Final = pa.int16()
INT: Final = pa.int32()
LONG: Final = pa.int64()
FLOAT: Final = pa.float32()
DOUBLE: Final = pa.float64()
STRING: Final = pa.string()
BINARY: Final = pa.binary()
DATE: Final = pa.date32()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
NULL: Final = pa.null()

MIN_LOST_SCALE: Final = 6
"""Digits behind the point that Spark keeps if a result has too many digits."""
EXACT_DOUBLE_DIGITS: Final = 15
"""Most digits of a decimal that is exact as a double."""
LONG_DIGITS: Final = 18
"""Most digits of a decimal that fits into 64 bits."""
NEGATED_DIGITS: Final = 34
"""Most digits in which Spark changes the sign of a decimal. It rounds further digits away."""

INTEGERS: Final = (BYTE, SHORT, INT, LONG)
TEMPORAL: Final = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_DIGITS: Final = {BYTE: 3, SHORT: 5, INT: 10, LONG: 20}


def duck_type(kind: pa.DataType) -> str:
    """Return DuckDB's name of a type that can be cast to."""
    if is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if kind in SIMPLE_TYPES:
        return SIMPLE_TYPES[kind]
    raise Unsupported(f"a cast to {kind}")


def is_decimal(kind: pa.DataType) -> bool:
    """True for decimals."""
    return bool(pa.types.is_decimal(kind))


def is_integer(kind: pa.DataType) -> bool:
    """True for whole numbers."""
    return kind in INTEGERS


def is_float(kind: pa.DataType) -> bool:
    """True for binary fractions."""
    return kind in (FLOAT, DOUBLE)


def is_number(kind: pa.DataType) -> bool:
    """True for types that can be added."""
    return is_integer(kind) or is_float(kind) or is_decimal(kind)


def is_ordered(kind: pa.DataType) -> bool:
    """True for types that both engines compare in the same way."""
    return is_number(kind) or kind in (BOOLEAN, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, NULL)


def is_grouped(kind: pa.DataType) -> bool:
    """True for types that both engines group in the same way. A float has two zeros, of which Spark shows one."""
    return is_ordered(kind) and not is_float(kind)


def as_decimal(kind: pa.DataType, digits: int | None = None) -> pa.DataType:
    """Return the decimal type of a whole number. The type of a literal depends on its own digits."""
    return kind if is_decimal(kind) else pa.decimal128(digits or _DIGITS[kind], 0)


def bounded(precision: int, scale: int) -> pa.DataType:
    """Return a decimal type of that many digits, or the one that Spark uses instead.

    It must lose no digits behind the point, because the engines round at different steps.
    """
    if precision <= MAX_DECIMAL_DIGITS:
        return pa.decimal128(precision, scale)
    spark_scale = max(MAX_DECIMAL_DIGITS - (precision - scale), min(scale, MIN_LOST_SCALE))
    if spark_scale < scale:
        raise Unsupported("decimals with more digits than fit")
    return pa.decimal128(MAX_DECIMAL_DIGITS, scale)


def wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the decimal type that contains the values of both."""
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    if whole + scale > MAX_DECIMAL_DIGITS:
        raise Unsupported("decimals with more digits than fit")
    return pa.decimal128(whole + scale, scale)


def common(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the common type to which Spark converts two values.

    >>> common(pa.int32(), pa.float32()), common(pa.int32(), pa.decimal128(10, 2))
    (DataType(double), Decimal128Type(decimal128(12, 2)))
    """
    if right in (left, NULL):
        return left
    if left == NULL:
        return right
    if is_integer(left) and is_integer(right):
        return max(left, right, key=INTEGERS.index)
    if is_number(left) and is_number(right):
        return DOUBLE if is_float(left) or is_float(right) else wider_decimal(as_decimal(left), as_decimal(right))
    if {left, right} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    raise Unsupported(f"{left} and {right} in one place")
