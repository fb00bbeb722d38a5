"""Translation of functions over many rows: aggregates and window functions."""

import math
from typing import Final

import pyarrow as pa
from sqlglot import exp

from siltstone.model.schema import MAX_DECIMAL_DIGITS
from siltstone.query.translate import Unsupported, types
from siltstone.query.translate.expressions import ExpressionTranslator, check_args, rule
from siltstone.query.translate.typed_sql import TypedSql, cast_sql, converted
from siltstone.query.translate.types import BOOLEAN, DOUBLE, INT, LONG

SUM_DIGITS: Final = 10
"""Additional digits of a sum of decimals."""
AVERAGE_DIGITS: Final = 4
"""Additional digits of an average of decimals, all behind the point."""
MAX_AVERAGE_DIGITS: Final = 18
"""Decimals with more digits are left to Spark: DuckDB's intermediate sum could overflow."""


def _argument(to: ExpressionTranslator, node: exp.Expr) -> tuple[str, TypedSql]:
    """Return the word before an aggregate's argument, and the argument."""
    if isinstance(node.this, exp.Distinct):
        check_args(node.this, ("expressions",))
        if len(node.this.expressions) != 1:
            raise Unsupported("DISTINCT of several values in an aggregate")
        inner = to(node.this.expressions[0])
        if not types.is_grouped(inner.kind):
            raise Unsupported(f"DISTINCT of {inner.kind}")
        return "DISTINCT ", inner
    return "", to(node.this)


def _named(node: exp.Expr, piece: TypedSql, inner: TypedSql, function: str) -> TypedSql:
    """Give an aggregate of a plain column the name that Spark gives it."""
    argument = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    if isinstance(argument, exp.Column) and inner.name and not inner.sql.startswith("struct_extract"):
        distinct = "DISTINCT " if isinstance(node.this, exp.Distinct) else ""
        return piece.named(f"{function}({distinct}{inner.name})")
    return piece


@rule(exp.Count, args="this expressions")
def _count(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if node.expressions:
        raise Unsupported("COUNT of several values")
    if isinstance(node.this, exp.Star):
        check_args(node.this)
        return TypedSql(sql="count(*)", kind=LONG, name="count(1)")
    distinct, inner = _argument(to, node)
    return _named(node, TypedSql(sql=f"count({distinct}{inner.sql})", kind=LONG), inner, "count")


@rule(exp.CountIf, args="this")
def _count_if(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    """Count rows. DuckDB's own function returns NULL if the condition is unknown for every row."""
    return TypedSql(sql=f"count(CASE WHEN {to.boolean(node.this).sql} THEN 1 END)", kind=LONG)


@rule(exp.Sum, args="this")
def _sum(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    distinct, inner = _argument(to, node)
    if types.is_integer(inner.kind):
        kind, value = LONG, inner.sql
    elif types.is_float(inner.kind):
        kind, value = DOUBLE, converted(inner, DOUBLE).sql
    elif types.is_decimal(inner.kind):
        precision = min(MAX_DECIMAL_DIGITS, inner.kind.precision + SUM_DIGITS)
        kind, value = pa.decimal128(precision, inner.kind.scale), inner.sql
    else:
        raise Unsupported(f"SUM of {inner.kind}")
    return _named(node, TypedSql(sql=cast_sql(f"sum({distinct}{value})", kind), kind=kind), inner, "sum")


@rule(exp.Avg, args="this")
def _average(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    distinct, inner = _argument(to, node)
    if types.is_decimal(inner.kind):
        if distinct or isinstance(node.parent, exp.Window | exp.Filter):
            raise Unsupported("this AVG of decimals")
        return _named(node, _decimal_average(inner), inner, "avg")
    if not types.is_number(inner.kind):
        raise Unsupported(f"AVG of {inner.kind}")
    value = converted(inner, DOUBLE).sql
    return _named(node, TypedSql(sql=f"avg({distinct}{value})", kind=DOUBLE), inner, "avg")


def _decimal_average(inner: TypedSql) -> TypedSql:
    """Divide whole numbers, rounding half away from zero, because DuckDB itself would use doubles."""
    if inner.kind.precision > MAX_AVERAGE_DIGITS:
        raise Unsupported("AVG of decimals with many digits")
    scale = inner.kind.scale
    kind = pa.decimal128(inner.kind.precision + AVERAGE_DIGITS, scale + AVERAGE_DIGITS)
    unscaled = f"CAST(sum({inner.sql}) * CAST('1{'0' * scale}' AS DECIMAL({scale + 1},0)) AS HUGEINT)"
    count = f"CAST(count({inner.sql}) AS HUGEINT)"
    doubled = 2 * 10**AVERAGE_DIGITS
    rounded = f"((abs({unscaled}) * {doubled} + {count}) // ({count} * 2)) * sign({unscaled})"
    step = (
        f"CAST('0.{'0' * (scale + AVERAGE_DIGITS - 1)}1' AS DECIMAL({scale + AVERAGE_DIGITS},{scale + AVERAGE_DIGITS}))"
    )
    whole = MAX_DECIMAL_DIGITS - scale - AVERAGE_DIGITS
    divided = cast_sql(f"(CAST({rounded} AS DECIMAL({whole},0)) * {step})", kind)
    return TypedSql(sql=f"CASE WHEN count({inner.sql}) > 0 THEN {divided} END", kind=kind)


@rule(exp.Min, exp.Max, args="this")
def _least(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    inner = to(node.this)
    if not types.is_ordered(inner.kind) or inner.kind == types.NULL:
        raise Unsupported(f"{node.key.upper()} of {inner.kind}")
    return _named(node, TypedSql(sql=f"{node.key}({inner.sql})", kind=inner.kind), inner, node.key)


@rule(exp.LogicalAnd, exp.LogicalOr, args="this")
def _all(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    function = "bool_and" if isinstance(node, exp.LogicalAnd) else "bool_or"
    return TypedSql(sql=f"{function}({to.boolean(node.this).sql})", kind=BOOLEAN)


_FILTERED: Final = (exp.Count, exp.Sum, exp.Min, exp.Max)


@rule(exp.Filter, args="this expression")
def _filter(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if not isinstance(node.this, _FILTERED):
        raise Unsupported(f"FILTER of {node.this.key.upper()}")
    inner, where = to(node.this), to.boolean(node.expression.this)
    return TypedSql(sql=_inserted(inner.sql, f" FILTER (WHERE {where.sql})"), kind=inner.kind)


def _inserted(sql: str, addition: str) -> str:
    """Insert text after a call, also inside a cast: ``CAST(sum(x) AS T)`` becomes ``CAST(sum(x) + addition AS T)``."""
    if not sql.startswith("CAST("):
        return f"{sql}{addition}"
    inner, _, kind = sql.removeprefix("CAST(").rpartition(" AS ")
    return f"CAST({inner}{addition} AS {kind}"


_RANKS: Final[dict[type[exp.Expr], str]] = {
    exp.RowNumber: "row_number",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
}
_OVER: Final = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)


@rule(exp.Window, args="this partition_by order spec alias over")
def _window(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if node.args.get("alias"):
        named = to.windows.get(node.args["alias"].name.lower())
        if named is None or node.args.get("partition_by") or node.args.get("order"):
            raise Unsupported("this WINDOW")
        window: exp.Expr = named
    else:
        window = node
    over = _over(to, window)
    ordered = window.args.get("order") and not window.args.get("spec")
    function = node.this
    if type(function) in (*_RANKS, exp.Lag, exp.Lead) and not ordered:
        raise Unsupported(f"{function.key.upper()} without an order, or with a frame")
    if type(function) in _RANKS:
        check_args(function)
        return TypedSql(sql=cast_sql(f"{_RANKS[type(function)]}() OVER {over}", INT), kind=INT)
    if isinstance(function, exp.Lag | exp.Lead):
        return _neighbour(to, function, over)
    if isinstance(function, _OVER) and not isinstance(function.this, exp.Distinct):
        inner = to(function)
        return TypedSql(sql=_inserted(inner.sql, f" OVER {over}"), kind=inner.kind)
    raise Unsupported(f"{function.key.upper()} over a window")


def _neighbour(to: ExpressionTranslator, node: exp.Expr, over: str) -> TypedSql:
    check_args(node, ("this", "offset"))
    offset = node.args.get("offset")
    count = str(offset.this) if isinstance(offset, exp.Literal) else "1" if offset is None else ""
    if not count.isdigit():
        raise Unsupported(f"{node.key.upper()} by an offset that is not a literal number")
    inner = to(node.this)
    return TypedSql(sql=f"{node.key}({inner.sql}, {count}) OVER {over}", kind=inner.kind)


def _over(to: ExpressionTranslator, node: exp.Expr) -> str:
    check_args(node, ("this", "partition_by", "order", "spec", "over", "alias"))
    parts = []
    if node.args.get("partition_by"):
        pieces = to.each(node.args["partition_by"])
        if not all(types.is_grouped(piece.kind) for piece in pieces):
            raise Unsupported("PARTITION BY of such values")
        parts.append(f"PARTITION BY {', '.join(piece.sql for piece in pieces)}")
    if node.args.get("order"):
        terms = []
        for term in node.args["order"].expressions:
            check_args(term, ("this", "desc", "nulls_first"))
            terms.append(f"{order_key(to(term.this))} {direction(term)}")
        parts.append(f"ORDER BY {', '.join(terms)}")
    if node.args.get("spec"):
        if not node.args.get("order"):
            raise Unsupported("a frame without an order")
        parts.append(_frame(node.args["spec"]))
    return f"({' '.join(parts)})"


def order_key(piece: TypedSql) -> str:
    """Return the SQL of the value that rows are ordered by, unless the engines order such values differently."""
    if not types.is_ordered(piece.kind) or piece.kind == types.NULL:
        raise Unsupported(f"an order by {piece.kind}")
    return piece.sql


def direction(node: exp.Expr) -> str:
    """Return the sort direction of a term and the position of nulls. sqlglot has filled in Spark's default."""
    down = bool(node.args.get("desc"))
    first = node.args.get("nulls_first")
    nulls_first = (not down) if first is None else bool(first)
    return f"{'DESC' if down else 'ASC'} NULLS {'FIRST' if nulls_first else 'LAST'}"


def _frame(spec: exp.Expr) -> str:
    check_args(spec, ("kind", "start", "start_side", "end", "end_side"))
    kind = str(spec.args.get("kind") or "").upper()
    if kind not in ("ROWS", "RANGE"):
        raise Unsupported(f"a frame of {kind}")
    start = _bound(spec.args.get("start"), spec.args.get("start_side"), kind)
    end = _bound(spec.args.get("end"), spec.args.get("end_side"), kind) if spec.args.get("end") else ("CURRENT ROW", 0)
    if start[1] > end[1]:
        raise Unsupported("a frame that ends before it starts")
    return f"{kind} BETWEEN {start[0]} AND {end[0]}"


def _bound(value: object, side: object, kind: str) -> tuple[str, float]:
    """Return a bound of a frame, and its distance after the current row (negative: before it)."""
    where = str(side or "").upper()
    sign = -1 if where == "PRECEDING" else 1
    if isinstance(value, str) and value.upper() == "CURRENT ROW":
        return "CURRENT ROW", 0
    if isinstance(value, str) and value.upper() == "UNBOUNDED":
        return f"UNBOUNDED {where}", sign * math.inf
    if isinstance(value, exp.Literal) and kind == "ROWS" and str(value.this).isdigit():
        return f"{value.this} {where}", sign * int(value.this)
    raise Unsupported("such a bound of a frame")
