"""Fragments of DuckDB's SQL with a type, and their conversion to other types by Spark's rules."""

import datetime
import decimal
import math
import re
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from siltstone.model.schema import MAX_DECIMAL_DIGITS
from siltstone.query.gate.parameters import decimal_size
from siltstone.query.translate import Unsupported, types
from siltstone.query.translate.types import DATE, DOUBLE, FLOAT, NULL, STRING, TEMPORAL, TIMESTAMP, TIMESTAMP_NTZ

GUARD: Final = "outside the subset: "
"""Prefix of error messages for rows that the engines may treat differently."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?")
_YEARS: Final = ("0001-01-01", "9999-12-31")


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedSql:
    """An expression in DuckDB's SQL, with its type in Spark."""

    sql: str
    kind: pa.DataType
    name: str | None = None
    """Spark's name of its column without an alias, if it is known."""
    digits: int | None = None
    """Number of digits of a literal whole number. Spark gives it the smallest decimal type that fits."""
    unsure: bool = False
    """True if Spark may or may not treat a whole number as a literal. Its result type with decimals is then unknown."""
    exact: decimal.Decimal | None = None
    """Value of a literal number with a point."""
    text: str | None = None
    """Characters of a literal string. Spark parses a date or a time from them if one is needed."""

    def named(self, name: str) -> "TypedSql":
        """Return the same expression under another name."""
        return replace(self, name=name)


def text_literal(text: str) -> str:
    """Return text as a literal. A zero character ends text elsewhere."""
    if "\0" in text:
        raise Unsupported("a zero character in text")
    return "'" + text.replace("'", "''") + "'"


def guarded(condition: str, sql: str, why: str) -> str:
    """Return SQL that stops the query if the condition does not hold. Then Spark answers."""
    return f"CASE WHEN ({condition}) IS NOT FALSE THEN {sql} ELSE error({text_literal(GUARD + why)}) END"


def cast_sql(sql: str, kind: pa.DataType) -> str:
    """Return SQL with exactly this type."""
    return f"CAST({sql} AS {types.duck_type(kind)})"


def implicit(piece: TypedSql, kind: pa.DataType) -> TypedSql:
    """Convert a value implicitly, as Spark does if it needs another type. Text that Spark would parse is unsupported."""
    if piece.kind == kind:
        return piece
    if piece.kind == NULL:
        return TypedSql(sql="NULL" if pa.types.is_nested(kind) else cast_sql("NULL", kind), kind=kind)
    if piece.text is not None and kind in TEMPORAL:
        return moment(piece.text, kind)
    numeric = types.is_number(piece.kind) and types.is_number(kind)
    if numeric or (piece.kind, kind) == (DATE, TIMESTAMP):
        return converted(piece, kind)
    raise Unsupported(f"{piece.kind} where {kind} is needed")


def converted(piece: TypedSql, kind: pa.DataType) -> TypedSql:
    """Return a cast by the rules of ANSI mode, unless the engines format or parse such values differently."""
    source, sql = piece.kind, piece.sql
    if source == kind:
        return TypedSql(sql=sql, kind=kind)
    if source == NULL:
        return implicit(piece, kind)
    if _is_cast_alike(source, kind):
        return TypedSql(sql=cast_sql(sql, kind), kind=kind)
    if (types.is_float(source) or types.is_decimal(source)) and types.is_integer(kind):
        return TypedSql(sql=cast_sql(f"trunc({sql})", kind), kind=kind)
    if types.is_decimal(source) and kind == STRING:
        text = cast_sql(sql, STRING)  # DuckDB writes no zero before the point if the type has no digits there
        return TypedSql(sql=f"replace({text}, '.', '0.')" if source.scale == source.precision else text, kind=kind)
    if types.is_decimal(source) and kind == DOUBLE:
        exact = source.precision <= types.EXACT_DOUBLE_DIGITS
        return TypedSql(sql=cast_sql(sql if exact else cast_sql(sql, STRING), DOUBLE), kind=kind)
    if types.is_decimal(source) and kind == FLOAT:
        raise Unsupported("a cast of decimals to float")
    if source == DATE and kind == STRING:
        first, last = _YEARS
        inside = f"{sql} BETWEEN DATE '{first}' AND DATE '{last}'"
        return TypedSql(sql=guarded(inside, cast_sql(sql, kind), "a year of more than four digits as text"), kind=kind)
    if piece.text is not None and kind in TEMPORAL:
        return moment(piece.text, kind)
    raise Unsupported(f"a cast of {source} to {kind}")


def _is_cast_alike(source: pa.DataType, kind: pa.DataType) -> bool:
    """True if both engines cast such values in the same way, or DuckDB raises where Spark has another value."""
    if types.is_integer(source):
        return types.is_number(kind) or kind == STRING
    if types.is_float(source):
        return types.is_float(kind)  # too large for a float: DuckDB raises, Spark has infinity
    if types.is_decimal(source):
        return types.is_decimal(kind)
    if source in TEMPORAL:
        return kind in TEMPORAL
    return bool(source == types.BOOLEAN and (types.is_integer(kind) or kind == STRING))


def moment(text: str, kind: pa.DataType) -> TypedSql:
    """Parse the date or time in a text, if it can be parsed in one way only."""
    try:
        if _DAY.fullmatch(text):
            day = datetime.date.fromisoformat(text)
            shown = day.isoformat() if kind == DATE else f"{day.isoformat()} 00:00:00"
        elif _MOMENT.fullmatch(text) and kind != DATE:
            shown = datetime.datetime.fromisoformat(text).isoformat(sep=" ")
        else:
            raise Unsupported(f"the text {text!r} as a {kind}")
    except ValueError as error:
        raise Unsupported(f"the text {text!r} as a {kind}") from error
    zone = "+00" if kind == TIMESTAMP else ""
    return TypedSql(sql=f"{types.duck_type(kind)} '{shown}{zone}'", kind=kind)


def number(text: str) -> TypedSql:
    """Return a literal number with its type in Spark."""
    if re.fullmatch(r"-?\d+", text):
        value = int(text)
        for kind in (types.INT, types.LONG):
            if -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1):
                sql = cast_sql(text, kind)
                return TypedSql(sql=sql, kind=kind, name=text, digits=len(str(abs(value))))
        raise Unsupported("a whole number with more digits than fit")
    if re.fullmatch(r"-?(\d+\.\d*|\.\d+)", text):
        exact = decimal.Decimal(text)
        _, digits, exponent = exact.as_tuple()
        scale = -int(exponent)
        kind = types.bounded(max(len(digits), scale), scale)
        return TypedSql(sql=cast_sql(text_literal(text), kind), kind=kind, name=text, exact=exact)
    if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", text):
        if math.isinf(float(text)):
            raise Unsupported("a number beyond those of double")
        return TypedSql(sql=cast_sql(text_literal(text), DOUBLE), kind=DOUBLE)
    raise Unsupported(f"the number {text}")


def parameter(name: str, value: object) -> TypedSql:  # noqa: C901  # one case for each class
    """Return a placeholder with the type that Spark gives its value."""
    if not _PLAIN_NAME.fullmatch(name):
        raise Unsupported(f"a parameter of the name {name}")
    match value:
        case None:
            return TypedSql(sql="NULL", kind=NULL)
        case bool():
            kind = types.BOOLEAN
        case int():
            kind = types.INT if -(2**31) <= value < 2**31 else types.LONG
        case float():
            kind = DOUBLE
        case str():
            kind = STRING
        case bytes():
            kind = types.BINARY
        case datetime.datetime():
            kind = TIMESTAMP if value.tzinfo is not None else TIMESTAMP_NTZ
        case datetime.date():
            kind = DATE
        case decimal.Decimal():
            kind = _decimal_kind(value)
        case _:
            raise Unsupported(f"a parameter of class {type(value).__name__}")
    return TypedSql(sql=f"CAST(${name} AS {types.duck_type(kind)})", kind=kind, unsure=types.is_integer(kind))


def _decimal_kind(value: decimal.Decimal) -> pa.DataType:
    if not value.is_finite():
        raise Unsupported("a parameter that is not a number")
    precision, scale = decimal_size(value)
    if (
        precision > MAX_DECIMAL_DIGITS or precision - scale > types.LONG_DIGITS
    ):  # see `nearer`: Spark looks at the value
        raise Unsupported("a parameter with more digits than fit")
    return pa.decimal128(precision, scale)
