"""Functions that work on one row."""

from typing import Final

import pyarrow as pa
from sqlglot import exp

from siltstone.query.translate import types
from siltstone.query.translate.expressions import Expressions, check_negated, rule
from siltstone.query.translate.fragments import Piece, cast_sql, converted, guarded
from siltstone.query.translate.outside import Outside
from siltstone.query.translate.types import BOOLEAN, DATE, INT, LONG, STRING, TIMESTAMP, TIMESTAMP_NTZ

MAX_TEXT_CHARS: Final = 2**31 - 1


def _text(to: Expressions, node: exp.Expr) -> Piece:
    piece = to(node)
    if piece.kind != STRING:
        raise Outside(f"{piece.kind} where text is needed")
    return piece


def _count(node: exp.Expr | None, *, what: str) -> int:
    """Return a literal whole number that is not negative.

    Raises:
        Outside: it is something else.
    """
    if isinstance(node, exp.Literal) and not node.args["is_string"] and str(node.this).isdigit():
        return min(int(node.this), MAX_TEXT_CHARS)
    raise Outside(f"{what} that is no plain number")


@rule(exp.Upper, exp.Lower, args="this")
def _letters(to: Expressions, node: exp.Expr) -> Piece:
    """Only plain letters: the two engines have other tables for the rest."""
    inner = _text(to, node.this)
    ascii_only = f"strlen({inner.sql}) = length({inner.sql})"
    why = f"{node.key.upper()} of letters beyond ASCII"
    return Piece(sql=guarded(ascii_only, f"{node.key}({inner.sql})", why), kind=STRING)


@rule(exp.Length, args="this")
def _length(to: Expressions, node: exp.Expr) -> Piece:
    return Piece(sql=cast_sql(f"length({_text(to, node.this).sql})", INT), kind=INT)


@rule(exp.Trim, args="this position")
def _trim(to: Expressions, node: exp.Expr) -> Piece:
    called = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
    return Piece(sql=f"{called}({_text(to, node.this).sql}, ' ')", kind=STRING)


@rule(exp.Substring, args="this start length")
def _substring(to: Expressions, node: exp.Expr) -> Piece:
    start = max(1, _count(node.args.get("start"), what="a start"))
    length = node.args.get("length")
    rest = f", {_count(length, what='a length')}" if length is not None else ""
    return Piece(sql=f"substring({_text(to, node.this).sql}, {start}{rest})", kind=STRING)


@rule(exp.Left, exp.Right, args="this expression")
def _ends(to: Expressions, node: exp.Expr) -> Piece:
    return Piece(sql=f"{node.key}({_text(to, node.this).sql}, {_count(node.expression, what='a length')})", kind=STRING)


_HOLDS: Final[dict[type[exp.Expr], str]] = {
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
    exp.Contains: "contains",
}


@rule(exp.StartsWith, exp.EndsWith, exp.Contains, args="this expression")
def _holds(to: Expressions, node: exp.Expr) -> Piece:
    called = _HOLDS[type(node)]
    return Piece(sql=f"{called}({_text(to, node.this).sql}, {_text(to, node.expression).sql})", kind=BOOLEAN)


@rule(exp.Replace, args="this expression replacement")
def _replace(to: Expressions, node: exp.Expr) -> Piece:
    search = _text(to, node.expression)
    if not search.text:
        raise Outside("REPLACE of what is no plain text")
    by = node.args.get("replacement")
    inner, put = _text(to, node.this).sql, _text(to, by).sql if by is not None else "''"
    return Piece(sql=f"replace({inner}, {search.sql}, {put})", kind=STRING)


@rule(exp.Concat, args="expressions")
def _concat(to: Expressions, node: exp.Expr) -> Piece:
    return Piece(sql=f"({' || '.join(_text(to, part).sql for part in node.expressions)})", kind=STRING)


@rule(exp.DPipe, args="this expression")
def _pipe(to: Expressions, node: exp.Expr) -> Piece:
    return Piece(sql=f"({_text(to, node.this).sql} || {_text(to, node.expression).sql})", kind=STRING)


# ---- numbers --------------------------------------------------------------------------------------------------------


@rule(exp.Abs, args="this")
def _abs(to: Expressions, node: exp.Expr) -> Piece:
    inner = to(node.this)
    if not types.is_number(inner.kind):
        raise Outside(f"ABS of {inner.kind}")
    check_negated(inner.kind)
    return Piece(sql=cast_sql(f"abs({inner.sql})", inner.kind), kind=inner.kind)


@rule(exp.Round, args="this decimals")
def _round(to: Expressions, node: exp.Expr) -> Piece:
    inner = to(node.this)
    digits = _count(node.args["decimals"], what="a number of digits") if node.args.get("decimals") is not None else 0
    if not types.is_decimal(inner.kind):
        raise Outside(f"ROUND of {inner.kind}")
    scale = min(inner.kind.scale, digits)
    kind = types.bounded(inner.kind.precision - inner.kind.scale + scale + 1, scale)
    return Piece(sql=cast_sql(inner.sql, kind), kind=kind)


@rule(exp.Ceil, exp.Floor, args="this")
def _ceil(to: Expressions, node: exp.Expr) -> Piece:
    inner = to(node.this)
    if types.is_float(inner.kind):
        return Piece(sql=cast_sql(f"{node.key}({inner.sql})", LONG), kind=LONG)
    if not types.is_decimal(inner.kind):
        raise Outside(f"{node.key.upper()} of {inner.kind}")
    if inner.kind.scale == 0:
        return Piece(sql=inner.sql, kind=inner.kind)
    kind = pa.decimal128(min(types.MAX_DIGITS, inner.kind.precision - inner.kind.scale + 1), 0)
    wide = pa.decimal128(min(types.MAX_DIGITS, inner.kind.precision + 1), inner.kind.scale)
    return Piece(sql=cast_sql(f"{node.key}({cast_sql(inner.sql, wide)})", kind), kind=kind)


@rule(exp.Sqrt, args="this")
def _sqrt(to: Expressions, node: exp.Expr) -> Piece:
    inner = to(node.this)
    if not types.is_number(inner.kind):
        raise Outside(f"SQRT of {inner.kind}")
    return Piece(sql=f"sqrt({converted(inner, types.DOUBLE).sql})", kind=types.DOUBLE)


@rule(exp.IsNan, args="this")
def _isnan(to: Expressions, node: exp.Expr) -> Piece:
    inner = to(node.this)
    if not types.is_float(inner.kind):
        raise Outside(f"ISNAN of {inner.kind}")
    return Piece(sql=f"coalesce(isnan({inner.sql}), FALSE)", kind=BOOLEAN)


# ---- dates and times ------------------------------------------------------------------------------------------------


def _day(to: Expressions, node: exp.Expr) -> Piece:
    """Translate what has a date; the parser wraps it in a conversion of its own."""
    piece = to(node.this if isinstance(node, exp.TsOrDsToDate) else node)
    if piece.kind in (TIMESTAMP, TIMESTAMP_NTZ):
        return converted(piece, DATE)
    if piece.kind != DATE:
        raise Outside(f"{piece.kind} where a date is needed")
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
def _part(to: Expressions, node: exp.Expr) -> Piece:
    return Piece(sql=cast_sql(_PARTS[type(node)].format(_day(to, node.this).sql), INT), kind=INT)


@rule(exp.Extract, args="this expression")
def _extract(to: Expressions, node: exp.Expr) -> Piece:
    part = _EXTRACTED.get(node.this.name.upper())
    if part is None:
        raise Outside(f"EXTRACT of {node.this.name}")
    return Piece(sql=cast_sql(_PARTS[part].format(_day(to, node.expression).sql), INT), kind=INT)


@rule(exp.Hour, exp.Minute, exp.Second, args="this")
def _hour(to: Expressions, node: exp.Expr) -> Piece:
    inner = to(node.this)
    if inner.kind not in (TIMESTAMP, TIMESTAMP_NTZ):
        raise Outside(f"{node.key.upper()} of {inner.kind}")
    return Piece(sql=cast_sql(f"{node.key}({inner.sql})", INT), kind=INT)


@rule(exp.TsOrDsToDate, args="this")
def _to_date(to: Expressions, node: exp.Expr) -> Piece:
    return _day(to, node)


@rule(exp.TsOrDsAdd, exp.DateAdd, args="this expression unit")
def _date_add(to: Expressions, node: exp.Expr) -> Piece:
    if str(node.args.get("unit") or "DAY").upper() != "DAY":
        raise Outside("DATE_ADD of another unit")
    days = to(node.expression)
    if days.kind not in (INT, types.SHORT, types.BYTE):
        raise Outside(f"DATE_ADD of {days.kind}")
    return Piece(sql=cast_sql(f"({_day(to, node.this).sql} + {cast_sql(days.sql, INT)})", DATE), kind=DATE)


@rule(exp.DateDiff, args="this expression")
def _date_diff(to: Expressions, node: exp.Expr) -> Piece:
    end, start = _day(to, node.this), _day(to, node.expression)
    return Piece(sql=cast_sql(f"({end.sql} - {start.sql})", INT), kind=INT)


@rule(exp.AddMonths, args="this expression")
def _add_months(to: Expressions, node: exp.Expr) -> Piece:
    negative = isinstance(node.expression, exp.Neg)
    count = _count(node.expression.this if negative else node.expression, what="a number of months")
    sign = "-" if negative else "+"
    return Piece(sql=cast_sql(f"({_day(to, node.this).sql} {sign} INTERVAL '{count}' MONTH)", DATE), kind=DATE)


@rule(exp.LastDay, args="this")
def _last_day(to: Expressions, node: exp.Expr) -> Piece:
    return Piece(sql=cast_sql(f"last_day({_day(to, node.this).sql})", DATE), kind=DATE)


_TRUNCATED: Final = {
    "YEAR": "year",
    "QUARTER": "quarter",
    "MONTH": "month",
    "WEEK": "week",
    "DAY": "day",
    "HOUR": "hour",
}
_OF_DATES: Final = ("YEAR", "QUARTER", "MONTH", "WEEK")


@rule(exp.TimestampTrunc, args="this unit")
def _timestamp_trunc(to: Expressions, node: exp.Expr) -> Piece:
    unit = str(node.args["unit"]).strip("'").upper()
    inner = to(node.this)
    if inner.kind == DATE:
        inner = converted(inner, TIMESTAMP)
    if inner.kind != TIMESTAMP or unit not in _TRUNCATED:
        raise Outside(f"DATE_TRUNC of {inner.kind} to {unit}")
    return Piece(sql=cast_sql(f"date_trunc('{_TRUNCATED[unit]}', {inner.sql})", TIMESTAMP), kind=TIMESTAMP)


@rule(exp.DateTrunc, args="this unit")
def _date_trunc(to: Expressions, node: exp.Expr) -> Piece:
    unit = node.args["unit"].name.upper()
    if unit not in _OF_DATES:
        raise Outside(f"TRUNC to {unit}")
    return Piece(sql=cast_sql(f"date_trunc('{_TRUNCATED[unit]}', {_day(to, node.this).sql})", DATE), kind=DATE)


# ---- by name --------------------------------------------------------------------------------------------------------


def _is_null(to: Expressions, node: exp.Expr) -> Piece:
    return Piece(sql=f"({to(node).sql} IS NULL)", kind=BOOLEAN)


def _is_not_null(to: Expressions, node: exp.Expr) -> Piece:
    return Piece(sql=f"({to(node).sql} IS NOT NULL)", kind=BOOLEAN)


BY_NAME: Final = {"isnull": _is_null, "isnotnull": _is_not_null}


@rule(exp.Anonymous, args="this expressions")
def _by_name(to: Expressions, node: exp.Expr) -> Piece:
    found = BY_NAME.get(node.name.lower())
    if found is None or len(node.expressions) != 1:
        raise Outside(node.name.upper())
    return found(to, node.expressions[0])
