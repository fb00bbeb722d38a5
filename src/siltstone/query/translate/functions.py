"""Translation of functions on one row."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from sqlglot import exp

from siltstone.model.schema import MAX_DECIMAL_DIGITS
from siltstone.query.translate import Unsupported, types
from siltstone.query.translate.expressions import ExpressionTranslator, check_negated, null_test, rule
from siltstone.query.translate.typed_sql import TypedSql, cast_sql, converted, guarded
from siltstone.query.translate.types import BOOLEAN, DATE, INT, LONG, STRING, TIMESTAMP, TIMESTAMP_NTZ

MAX_INT: Final = 2**31 - 1
LONGEST_BYTES: Final = 64 * 1024
"""Longest text that a function builds.

DuckDB builds it for thousands of rows at once, and counts its memory only afterwards.
"""


def _text(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    piece = to(node)
    if piece.kind != STRING:
        raise Unsupported(f"{piece.kind} where text is needed")
    return piece


def _operand(to: ExpressionTranslator, node: exp.Expr, allowed: Callable[[pa.DataType], bool]) -> TypedSql:
    """Translate the first argument of a function that takes some types only."""
    piece = to(node.this)
    if not allowed(piece.kind):
        raise Unsupported(f"{node.key.upper()} of {piece.kind}")
    return piece


def _count(node: exp.Expr | None, *, what: str) -> int:
    """Return a literal whole number that is not negative."""
    if isinstance(node, exp.Literal) and not node.args["is_string"] and str(node.this).isdigit():
        if int(node.this) <= MAX_INT:
            return int(node.this)
        raise Unsupported(f"{what} beyond 32 bits")
    raise Unsupported(f"{what} that is not a literal number")


@rule(exp.Upper, exp.Lower, args="this")
def _letters(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    """Translate UPPER and LOWER of ASCII letters only, because the engines have different tables for the others."""
    inner = _text(to, node.this)
    ascii_only = f"strlen({inner.sql}) = length({inner.sql})"
    why = f"{node.key.upper()} of letters beyond ASCII"
    return TypedSql(sql=guarded(ascii_only, f"{node.key}({inner.sql})", why), kind=STRING)


@rule(exp.Length, args="this")
def _length(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    return TypedSql(sql=cast_sql(f"length({_text(to, node.this).sql})", INT), kind=INT)


@rule(exp.Trim, args="this position")
def _trim(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    function = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
    return TypedSql(sql=f"{function}({_text(to, node.this).sql}, ' ')", kind=STRING)


@rule(exp.Substring, args="this start length")
def _substring(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    start = max(1, _count(node.args.get("start"), what="a start"))
    length = node.args.get("length")
    rest = f", {_count(length, what='a length')}" if length is not None else ""
    return TypedSql(sql=f"substring({_text(to, node.this).sql}, {start}{rest})", kind=STRING)


@rule(exp.Left, exp.Right, args="this expression")
def _ends(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    length = _count(node.expression, what="a length")
    return TypedSql(sql=f"{node.key}({_text(to, node.this).sql}, {length})", kind=STRING)


_TEXT_TESTS: Final[dict[type[exp.Expr], str]] = {
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
    exp.Contains: "contains",
}


@rule(*_TEXT_TESTS, args="this expression")
def _text_test(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    function = _TEXT_TESTS[type(node)]
    return TypedSql(sql=f"{function}({_text(to, node.this).sql}, {_text(to, node.expression).sql})", kind=BOOLEAN)


@rule(exp.Replace, args="this expression replacement")
def _replace(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    search = _text(to, node.expression)
    if not search.text:
        raise Unsupported("REPLACE of text that is not a literal")
    by = node.args.get("replacement")
    inner, replacement = _text(to, node.this), _text(to, by) if by is not None else _EMPTY_TEXT
    sql = f"replace({inner.sql}, {search.sql}, {replacement.sql})"
    if _replaces_by_less(node):
        return TypedSql(sql=sql, kind=STRING)
    _check_grows_once(node.this, *([by] if by is not None else []))
    return TypedSql(sql=_bounded(f"{_bytes(inner)} * greatest({_bytes(replacement)}, 1)", sql), kind=STRING)


@rule(exp.Concat, exp.DPipe, args="this expression expressions")
def _concat(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    parts = list(_operands(node))
    _check_grows_once(*parts)
    pieces = [_text(to, part) for part in parts]
    sql = f"({' || '.join(piece.sql for piece in pieces)})"
    return TypedSql(sql=_bounded(" + ".join(map(_bytes, pieces)), sql), kind=STRING)


_EMPTY_TEXT: Final = TypedSql(sql="''", kind=STRING, text="")
_CONCATENATIONS: Final = (exp.Concat, exp.DPipe)


def _operands(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the operands of a concatenation: `a || b || c` has three, however it is nested."""
    node = node.unnest()
    if not isinstance(node, _CONCATENATIONS):
        yield node
        return
    parts = node.expressions if isinstance(node, exp.Concat) else [node.this, node.expression]
    for part in parts:
        yield from _operands(part)


def _bytes(piece: TypedSql) -> str:
    """Return SQL for the length of a text in bytes; a number for a literal."""
    return f"strlen({piece.sql})" if piece.text is None else str(len(piece.text.encode()))


def _bounded(size: str, sql: str) -> str:
    return guarded(f"{size} <= {LONGEST_BYTES}", sql, "text that grows very long")


def _replaces_by_less(node: exp.Expr) -> bool:
    """True if the replacement of a REPLACE is not longer than the search text. Then the result does not grow."""
    search, by = node.expression, node.args.get("replacement")
    literals = all(isinstance(part, exp.Literal) for part in (search, by) if part is not None)
    return literals and len(by.name.encode() if by is not None else b"") <= len(search.name.encode())


def _check_grows_once(*nodes: exp.Expr) -> None:
    """Reject text that is built from built text, because its size would be known only after it was built."""
    for node in nodes:
        for inner in node.find_all(*_CONCATENATIONS, exp.Replace):
            if not isinstance(inner, exp.Replace) or not _replaces_by_less(inner):
                raise Unsupported("text that is put together from text that was")


@rule(exp.Abs, args="this")
def _abs(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    inner = _operand(to, node, types.is_number)
    check_negated(inner.kind)
    return TypedSql(sql=cast_sql(f"abs({inner.sql})", inner.kind), kind=inner.kind)


@rule(exp.Round, args="this decimals")
def _round(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    inner = _operand(to, node, types.is_decimal)
    digits = _count(node.args["decimals"], what="a number of digits") if node.args.get("decimals") is not None else 0
    scale = min(inner.kind.scale, digits)
    kind = types.bounded(inner.kind.precision - inner.kind.scale + scale + 1, scale)
    return TypedSql(sql=cast_sql(inner.sql, kind), kind=kind)


@rule(exp.Ceil, exp.Floor, args="this")
def _ceil(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    inner = _operand(to, node, lambda kind: types.is_float(kind) or types.is_decimal(kind))
    if types.is_float(inner.kind):
        return TypedSql(sql=cast_sql(f"{node.key}({inner.sql})", LONG), kind=LONG)
    if inner.kind.scale == 0:
        return TypedSql(sql=inner.sql, kind=inner.kind)
    kind = pa.decimal128(min(MAX_DECIMAL_DIGITS, inner.kind.precision - inner.kind.scale + 1), 0)
    wide = pa.decimal128(min(MAX_DECIMAL_DIGITS, inner.kind.precision + 1), inner.kind.scale)
    return TypedSql(sql=cast_sql(f"{node.key}({cast_sql(inner.sql, wide)})", kind), kind=kind)


@rule(exp.Sqrt, args="this")
def _sqrt(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    inner = _operand(to, node, types.is_number)
    return TypedSql(sql=f"sqrt({converted(inner, types.DOUBLE).sql})", kind=types.DOUBLE)


@rule(exp.IsNan, args="this")
def _isnan(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    inner = _operand(to, node, types.is_float)
    return TypedSql(sql=f"coalesce(isnan({inner.sql}), FALSE)", kind=BOOLEAN)


def _day(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    """Translate a date operand. sqlglot wraps it in a conversion of its own."""
    piece = to(node.this if isinstance(node, exp.TsOrDsToDate) else node)
    if piece.kind in (TIMESTAMP, TIMESTAMP_NTZ):
        return converted(piece, DATE)
    if piece.kind != DATE:
        raise Unsupported(f"{piece.kind} where a date is needed")
    return piece


_PARTS: Final[dict[type[exp.Expr], str]] = {
    exp.Year: "year({})",
    exp.Quarter: "quarter({})",
    exp.Month: "month({})",
    exp.Day: "day({})",
    exp.DayOfMonth: "day({})",
    exp.DayOfWeek: "(dayofweek({}) + 1)",
    exp.DayOfYear: "dayofyear({})",
}
_EXTRACTED: Final = {"YEAR": exp.Year, "QUARTER": exp.Quarter, "MONTH": exp.Month, "DAY": exp.Day}


@rule(*_PARTS, args="this")
def _part(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    return TypedSql(sql=cast_sql(_PARTS[type(node)].format(_day(to, node.this).sql), INT), kind=INT)


@rule(exp.Extract, args="this expression")
def _extract(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    part = _EXTRACTED.get(node.this.name.upper())
    if part is None:
        raise Unsupported(f"EXTRACT of {node.this.name}")
    return TypedSql(sql=cast_sql(_PARTS[part].format(_day(to, node.expression).sql), INT), kind=INT)


@rule(exp.Hour, exp.Minute, exp.Second, args="this")
def _hour(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    inner = _operand(to, node, (TIMESTAMP, TIMESTAMP_NTZ).__contains__)
    return TypedSql(sql=cast_sql(f"{node.key}({inner.sql})", INT), kind=INT)


@rule(exp.TsOrDsToDate, args="this")
def _to_date(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    return _day(to, node)


@rule(exp.TsOrDsAdd, exp.DateAdd, args="this expression unit")
def _date_add(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if str(node.args.get("unit") or "DAY").upper() != "DAY":
        raise Unsupported("DATE_ADD of another unit")
    days = to(node.expression)
    if days.kind not in (INT, types.SHORT, types.BYTE):
        raise Unsupported(f"DATE_ADD of {days.kind}")
    return TypedSql(sql=cast_sql(f"({_day(to, node.this).sql} + {cast_sql(days.sql, INT)})", DATE), kind=DATE)


@rule(exp.DateDiff, args="this expression")
def _date_diff(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    end, start = _day(to, node.this), _day(to, node.expression)
    return TypedSql(sql=cast_sql(f"({end.sql} - {start.sql})", INT), kind=INT)


@rule(exp.AddMonths, args="this expression")
def _add_months(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    negative = isinstance(node.expression, exp.Neg)
    count = _count(node.expression.this if negative else node.expression, what="a number of months")
    sign = "-" if negative else "+"
    return TypedSql(sql=cast_sql(f"({_day(to, node.this).sql} {sign} INTERVAL '{count}' MONTH)", DATE), kind=DATE)


@rule(exp.LastDay, args="this")
def _last_day(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    return TypedSql(sql=cast_sql(f"last_day({_day(to, node.this).sql})", DATE), kind=DATE)


_DATE_UNITS: Final = ("YEAR", "QUARTER", "MONTH", "WEEK")
_TIMESTAMP_UNITS: Final = (*_DATE_UNITS, "DAY", "HOUR")


def _unit(node: exp.Expr, units: Sequence[str], function: str) -> str:
    """Return the unit that a literal names. Other words for a unit are left to Spark."""
    if not isinstance(node, exp.Literal) or not node.args["is_string"]:
        raise Unsupported("a unit that is not a literal text")
    if (name := node.name.upper()) not in units:
        raise Unsupported(f"{function} to {name}")
    return name.lower()


def _date_trunc(to: ExpressionTranslator, unit: exp.Expr, value: exp.Expr) -> TypedSql:
    name = _unit(unit, _TIMESTAMP_UNITS, "DATE_TRUNC")
    inner = to(value)
    if inner.kind == DATE:
        inner = converted(inner, TIMESTAMP)
    if inner.kind != TIMESTAMP:
        raise Unsupported(f"DATE_TRUNC of {inner.kind}")
    return TypedSql(sql=cast_sql(f"date_trunc('{name}', {inner.sql})", TIMESTAMP), kind=TIMESTAMP)


def _trunc(to: ExpressionTranslator, value: exp.Expr, unit: exp.Expr) -> TypedSql:
    name = _unit(unit, _DATE_UNITS, "TRUNC")
    return TypedSql(sql=cast_sql(f"date_trunc('{name}', {_day(to, value).sql})", DATE), kind=DATE)


BY_NAME: Final[dict[str, tuple[int, Callable[..., TypedSql]]]] = {
    "isnull": (1, null_test),
    "isnotnull": (1, lambda to, node: TypedSql(sql=f"(NOT {null_test(to, node).sql})", kind=BOOLEAN)),
    "date_trunc": (2, _date_trunc),
    "trunc": (2, _trunc),
}
"""For each function name, the number of arguments and the translation."""


@rule(exp.Anonymous, args="this expressions")
def _by_name(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    count, translated = BY_NAME.get(node.name.lower(), (-1, None))
    if translated is None or len(node.expressions) != count:
        raise Unsupported(node.name.upper())
    return translated(to, *node.expressions)
