"""Translation of expressions: one rule for each kind of node, by its class. A node without a rule is unsupported.

Each rule lists the arguments that it handles. A node with any other argument is unsupported, too. Otherwise an unknown
option would be dropped silently.
"""

import decimal
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from sqlglot import exp

from siltstone.model.numbers import MAX_LONG
from siltstone.model.schema import MAX_DECIMAL_DIGITS
from siltstone.query.gate.allowlist import BINARY_OPERATORS
from siltstone.query.gate.parser import Quantified
from siltstone.query.translate import Unsupported, types
from siltstone.query.translate.typed_sql import (
    TypedSql,
    cast_sql,
    converted,
    guarded,
    implicit,
    moment,
    number,
    text_literal,
)
from siltstone.query.translate.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    NULL,
    STRING,
    TEMPORAL,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    common,
)

if TYPE_CHECKING:
    from siltstone.query.translate.scopes import Scope
    from siltstone.query.translate.select import Columns, Ctes, SelectTranslator

Rule = Callable[["ExpressionTranslator", exp.Expr], TypedSql]
RULES: Final[dict[type[exp.Expr], tuple[Rule, frozenset[str]]]] = {}
NO_EFFECT: Final = frozenset({"big_int", "safe", "typed", "coalesce", "ignore_nulls", "_type"})
"""Arguments that describe differences of sqlglot's dialects, not the query."""
MAX_PIECE_CHARS: Final = 100_000
"""Longest translation of one expression. Some rules write an operand twice, so a nested one doubles at every level."""


def rule(*nodes: type[exp.Expr], args: str = "") -> Callable[[Rule], Rule]:
    """Register a function as the rule of some nodes, which may have these arguments and no others."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(nodes, (function, frozenset(args.split()))))
        return function

    return register


def check_args(node: exp.Expr, allowed: Collection[str] = ()) -> None:
    """Reject a node with an argument that its rule does not handle."""
    for name, value in node.args.items():
        if value and name not in allowed and name not in NO_EFFECT:
            raise Unsupported(f"{name.strip('_').upper()} in {node.key.upper()}")


@dataclass(frozen=True, slots=True)
class ExpressionTranslator:
    """Translates expressions of one SELECT."""

    queries: "SelectTranslator"
    """Has the parameter values, and translates subqueries."""
    scope: "Scope"
    """The names that the expressions see."""
    ctes: "Ctes"
    """The common table expressions that their subqueries see."""
    windows: Mapping[str, exp.Window] = field(default_factory=dict)
    """The named windows of the SELECT."""

    def __call__(self, node: exp.Expr) -> TypedSql:
        """Translate one expression."""
        registered = RULES.get(type(node))
        if registered is None:
            # the name in Spark's text, because sqlglot has names of its own for many of Spark's functions
            named = re.match(r"\w+(?=\()", node.sql(dialect="spark")) if isinstance(node, exp.Func) else None
            raise Unsupported(named[0].upper() if named else node.key.upper())
        translate_node, allowed = registered
        check_args(node, allowed)
        piece = translate_node(self, node)
        if len(piece.sql) > MAX_PIECE_CHARS:
            raise Unsupported(f"an expression of more than {MAX_PIECE_CHARS:,} characters once it is translated")
        return piece

    def each(self, nodes: Sequence[exp.Expr]) -> list[TypedSql]:
        """Translate several expressions."""
        return [self(node) for node in nodes]

    def boolean(self, node: exp.Expr) -> TypedSql:
        """Translate one operand of AND, OR or NOT."""
        return implicit(self(node), BOOLEAN)

    def condition(self, node: exp.Expr) -> TypedSql:
        """Translate a condition that selects rows. Spark rejects a bare NULL there."""
        piece = self(node)
        if piece.kind != BOOLEAN:
            raise Unsupported(f"{piece.kind} as a condition")
        return piece

    def subquery(self, node: exp.Expr) -> "Columns":
        """Translate a subquery, which sees the names of this SELECT."""
        return self.queries.query(node, self.ctes, self.scope)


def unified(pieces: Sequence[TypedSql]) -> tuple[list[TypedSql], pa.DataType]:
    """Convert values to one type, as CASE, COALESCE and IN do."""
    kind: pa.DataType = NULL
    for piece in pieces:
        if piece.text is None:
            kind = common(kind, piece.kind)
    if any(piece.text is not None for piece in pieces):
        kind = STRING if kind == NULL else kind
        if kind != STRING and kind not in TEMPORAL:
            raise Unsupported(f"text and {kind} in one place")
    return [implicit(piece, kind) for piece in pieces], kind


def compared(left: TypedSql, right: TypedSql) -> tuple[TypedSql, TypedSql]:
    """Convert two values to the type in which Spark compares or adds them. A literal counts by its own digits."""
    if left.text is not None and right.kind in TEMPORAL:
        return moment(left.text, right.kind), right
    if right.text is not None and left.kind in TEMPORAL:
        return left, moment(right.text, left.kind)
    if types.is_decimal(left.kind) and right.digits:
        right = implicit(right, types.as_decimal(right.kind, right.digits))
    elif types.is_decimal(right.kind) and left.digits:
        left = implicit(left, types.as_decimal(left.kind, left.digits))
    kind = common(left.kind, right.kind)
    return implicit(left, kind), implicit(right, kind)


@rule(exp.Literal, args="this is_string")
def _literal(_to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if node.args["is_string"]:
        return TypedSql(sql=text_literal(node.this), kind=STRING, text=node.this)
    return number(str(node.this))


@rule(exp.Null)
def _null(_to: ExpressionTranslator, _node: exp.Expr) -> TypedSql:
    return TypedSql(sql="NULL", kind=NULL)


@rule(exp.Boolean, args="this")
def _boolean(_to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    return TypedSql(sql="TRUE" if node.this else "FALSE", kind=BOOLEAN)


@rule(exp.Placeholder, args="this")
def _placeholder(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    return to.queries.parameter(str(node.this))


@rule(exp.Column, args="this table db catalog")
def _column(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if not isinstance(node.this, exp.Identifier):
        raise Unsupported("a star in an expression")
    assert isinstance(node, exp.Column)  # noqa: S101  # by the table of rules
    return to.scope.find([part.name for part in node.parts])


@rule(exp.Paren, args="this")
def _paren(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    inner = to(node.this)
    return replace(inner, sql=f"({inner.sql})")


@rule(exp.Add, exp.Sub, args="this expression")
def _add(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    sign = "+" if isinstance(node, exp.Add) else "-"
    if isinstance(node.expression, exp.Interval):
        return _date_plus_interval(to, node, sign)
    left, right = _numbers(to, node)
    if not types.is_decimal(left.kind):
        return TypedSql(sql=cast_sql(arithmetic(sign, left, right), left.kind), kind=left.kind)
    scale = max(left.kind.scale, right.kind.scale)
    whole = max(left.kind.precision - left.kind.scale, right.kind.precision - right.kind.scale)
    kind = types.bounded(whole + scale + 1, scale)
    return TypedSql(sql=cast_sql(f"({cast_sql(left.sql, kind)} {sign} {cast_sql(right.sql, kind)})", kind), kind=kind)


_ARITHMETIC: Final = {"+": "add", "-": "subtract", "*": "multiply"}


def arithmetic(sign: str, left: TypedSql, right: TypedSql) -> str:
    """Return a sum, a difference or a product of values of one type.

    For whole numbers it calls the function by name. DuckDB rewrites ``x + 1 > 0`` to ``x > -1``, which hides the
    overflow.
    """
    if types.is_integer(left.kind):
        return f"{_ARITHMETIC[sign]}({left.sql}, {right.sql})"
    return f"({left.sql} {sign} {right.sql})"


@rule(exp.Mul, args="this expression")
def _multiply(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    left, right = _numbers(to, node)
    if not types.is_decimal(left.kind):
        return TypedSql(sql=cast_sql(arithmetic("*", left, right), left.kind), kind=left.kind)
    digits = left.kind.precision + right.kind.precision
    kind = types.bounded(digits + 1, left.kind.scale + right.kind.scale)
    operand = left.sql
    if digits > types.LONG_DIGITS:  # DuckDB multiplies in 64 bits, except if one side is wider
        operand = cast_sql(
            operand, pa.decimal128(min(MAX_DECIMAL_DIGITS, max(digits, left.kind.precision)), left.kind.scale)
        )
    return TypedSql(sql=cast_sql(f"({operand} * {right.sql})", kind), kind=kind)


def _numbers(to: ExpressionTranslator, node: exp.Expr) -> tuple[TypedSql, TypedSql]:
    """Return the operands of a sum, a difference or a product: decimals unchanged, others in their common type."""
    left, right = to(node.this), to(node.expression)
    if not (types.is_number(left.kind) and types.is_number(right.kind)):
        raise Unsupported(f"{left.kind} {node.key} {right.kind}")
    if types.is_float(left.kind) or types.is_float(right.kind):
        kind = common(left.kind, right.kind)
        return implicit(left, kind), implicit(right, kind)
    if types.is_decimal(left.kind) or types.is_decimal(right.kind):
        if left.unsure or right.unsure:
            raise Unsupported("a parameter or a cast literal with decimals")
        left, right = (implicit(side, types.as_decimal(side.kind, side.digits)) for side in (left, right))
        return left, right
    return compared(left, right)


@rule(exp.Div, args="this expression")
def _divide(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    left, right = to(node.this), to(node.expression)
    if not (types.is_number(left.kind) and types.is_number(right.kind)):
        raise Unsupported(f"{left.kind} / {right.kind}")
    decimals = types.is_decimal(left.kind) or types.is_decimal(right.kind)
    if decimals and not (types.is_float(left.kind) or types.is_float(right.kind)):
        raise Unsupported("a division of decimals")
    top, bottom = implicit(left, DOUBLE).sql, implicit(right, DOUBLE).sql
    return TypedSql(sql=f"({top} / {guarded(f'{bottom} <> 0', bottom, 'a division by zero')})", kind=DOUBLE)


@rule(exp.IntDiv, exp.Mod, args="this expression")
def _whole_division(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    left, right = compared(to(node.this), to(node.expression))
    if not types.is_integer(left.kind):
        raise Unsupported(f"{node.key.upper()} of {left.kind}")
    if isinstance(node, exp.Mod):
        return TypedSql(sql=cast_sql(f"({left.sql} % {right.sql})", left.kind), kind=left.kind)
    return TypedSql(sql=cast_sql(f"({cast_sql(left.sql, LONG)} // {cast_sql(right.sql, LONG)})", LONG), kind=LONG)


@rule(exp.Neg, args="this")
def _negative(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if isinstance(node.this, exp.Literal) and not node.this.args["is_string"]:
        return number(f"-{node.this.this}")
    inner = to(node.this)
    if not types.is_number(inner.kind):
        raise Unsupported(f"minus of {inner.kind}")
    check_negated(inner.kind)
    if types.is_integer(inner.kind):
        zero = TypedSql(sql=cast_sql("0", inner.kind), kind=inner.kind)
        return TypedSql(sql=cast_sql(arithmetic("-", zero, inner), inner.kind), kind=inner.kind)
    return TypedSql(sql=cast_sql(f"(- {inner.sql})", inner.kind), kind=inner.kind)


def check_negated(kind: pa.DataType) -> None:
    """Reject types with decimals that Spark rounds when it changes their sign."""
    if types.is_decimal(kind) and kind.precision > types.NEGATED_DIGITS:
        raise Unsupported("a change of sign of decimals with many digits")


_INTERVAL_UNITS: Final = {f"{unit}{plural}": unit for unit in ("DAY", "WEEK", "MONTH", "YEAR") for plural in ("", "S")}


def _date_plus_interval(to: ExpressionTranslator, node: exp.Expr, sign: str) -> TypedSql:
    """Translate a date plus or minus days, weeks, months or years.

    A day beyond the end of the month becomes its last day.
    """
    day, interval = to(node.this), node.expression
    unit = _INTERVAL_UNITS.get(str(interval.args.get("unit") or "").upper())
    count = interval.this.this if isinstance(interval.this, exp.Literal) else None
    if day.kind != DATE or unit is None or not str(count).isdigit() or int(str(count)) > 100_000:  # noqa: PLR2004
        raise Unsupported("this INTERVAL")
    return TypedSql(sql=cast_sql(f"({day.sql} {sign} INTERVAL '{count}' {unit})", DATE), kind=DATE)


COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    **{node: BINARY_OPERATORS[node] for node in (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)},
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
}


_NEARER: Final = {
    ">": decimal.ROUND_FLOOR,
    "<=": decimal.ROUND_FLOOR,
    ">=": decimal.ROUND_CEILING,
    "<": decimal.ROUND_CEILING,
}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DIGITS: Final = decimal.Context(prec=2 * MAX_DECIMAL_DIGITS)


def nearer(value: TypedSql, sign: str, literal: TypedSql) -> TypedSql:
    """Return an equivalent literal with no more digits behind the point than the value has.

    ``n > 2.5`` is ``n > 2`` for whole numbers, and Spark reads it so, too. So the value is compared without a cast for
    each row. DuckDB skips data that its minimum and maximum rule out.

    A literal beyond all whole numbers is unsupported. Spark then does not look at the value, not even whether it is
    null.
    """
    whole = types.is_integer(value.kind)
    if literal.exact is None or value.exact is not None or sign not in _NEARER:
        return literal
    if not whole and not types.is_decimal(value.kind):
        return literal
    if whole and abs(literal.exact) > MAX_LONG:
        raise Unsupported("a comparison with a number beyond all whole ones")
    scale = 0 if whole else value.kind.scale
    if literal.kind.scale <= scale:
        return literal
    step = decimal.Decimal(1).scaleb(-scale)
    return number(f"{literal.exact.quantize(step, rounding=_NEARER[sign], context=_DIGITS):f}")


def comparison(left: TypedSql, right: TypedSql, sign: str) -> TypedSql:
    """Return a comparison of two values."""
    compared(left, right)  # raises if Spark would round or reject the values
    left, right = compared(nearer(right, _MIRRORED.get(sign, sign), left), nearer(left, sign, right))
    if not types.is_ordered(left.kind) or left.kind == NULL:
        raise Unsupported(f"a comparison of {left.kind}")
    return TypedSql(sql=f"({left.sql} {sign} {right.sql})", kind=BOOLEAN)


@rule(*COMPARISONS, args="this expression")
def _compare(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    return comparison(to(node.this), to(node.expression), COMPARISONS[type(node)])


@rule(exp.Between, args="this low high")
def _between(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    value = to(node.this)
    low, high = comparison(value, to(node.args["low"]), ">="), comparison(value, to(node.args["high"]), "<=")
    return TypedSql(sql=f"({low.sql} AND {high.sql})", kind=BOOLEAN)


@rule(exp.And, exp.Or, args="this expression")
def _and(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    sides = [to.boolean(side).sql for side in node.flatten()]  # type: ignore[no-untyped-call, unused-ignore]
    return TypedSql(sql=f"({f' {node.key.upper()} '.join(sides)})", kind=BOOLEAN)


@rule(exp.Not, args="this")
def _not(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    return TypedSql(sql=f"(NOT {to.boolean(node.this).sql})", kind=BOOLEAN)


def null_test(to: "ExpressionTranslator", node: exp.Expr) -> TypedSql:
    """Return a NULL test. DuckDB answers it for a constant without computing it, and so without its errors."""
    if not isinstance(node, exp.Literal | exp.Null) and node.find(exp.Column, exp.Placeholder, exp.Query) is None:
        raise Unsupported("IS NULL of a constant")
    return TypedSql(sql=f"({to(node).sql} IS NULL)", kind=BOOLEAN)


@rule(exp.Is, args="this expression")
def _is(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if isinstance(node.expression, exp.Null):
        return null_test(to, node.this)
    if isinstance(node.expression, exp.Boolean):
        word = "TRUE" if node.expression.this else "FALSE"
        return TypedSql(sql=f"({to.boolean(node.this).sql} IS {word})", kind=BOOLEAN)
    raise Unsupported(f"IS {node.expression.key.upper()}")


MOST_LISTED: Final = 1_000
"""Most values of one IN. DuckDB takes seconds to parse many more."""


@rule(exp.In, args="this expressions query")
def _in(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    value = to(node.this)
    if node.args.get("query"):
        if not _only_decides(node):
            raise Unsupported("IN with a subquery as a value")
        done = to.subquery(node.args["query"])
        if len(done.pieces) != 1 or done.pieces[0].kind != value.kind or not types.is_ordered(value.kind):
            raise Unsupported("IN with a subquery of another type")
        return TypedSql(sql=f"({value.sql} IN ({done.sql}))", kind=BOOLEAN)
    if len(node.expressions) > MOST_LISTED:
        raise Unsupported(f"IN with more than {MOST_LISTED:,} values")
    pieces, kind = unified([value, *to.each(node.expressions)])
    if not types.is_ordered(kind) or kind == NULL:
        raise Unsupported(f"IN of {kind}")
    return TypedSql(sql=f"({pieces[0].sql} IN ({', '.join(p.sql for p in pieces[1:])}))", kind=BOOLEAN)


def _only_decides(node: exp.Expr) -> bool:
    """True if NULL and false mean the same for a condition in this place.

    In other places, Spark converts NULL to false in IN with a subquery.
    """
    at = node
    while isinstance(at.parent, exp.Paren):
        at = at.parent
    at = at.parent if isinstance(at.parent, exp.Not) else at
    while isinstance(at.parent, exp.Paren | exp.And | exp.Or):
        at = at.parent
    around = at.parent
    if isinstance(around, exp.If):
        return at.arg_key == "this" and not (isinstance(around.parent, exp.Case) and around.parent.this)
    return isinstance(around, exp.Where | exp.Having | exp.Join | exp.CountIf)


@rule(exp.Like, args="this expression negate")
def _like(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    value = to(node.this)
    several = isinstance(node.expression, Quantified)
    patterns = to.each(node.expression.expressions if several else [node.expression])
    if value.kind != STRING or any(pattern.text is None or "\\" in pattern.text for pattern in patterns):
        raise Unsupported("LIKE with a pattern that is not a literal text")
    if len(patterns) > MOST_LISTED:
        raise Unsupported(f"LIKE with more than {MOST_LISTED:,} patterns")
    word = "NOT LIKE" if node.args.get("negate") else "LIKE"
    between = " AND " if several and node.expression.this == "ALL" else " OR "
    return TypedSql(sql=f"({between.join(f'{value.sql} {word} {pattern.sql}' for pattern in patterns)})", kind=BOOLEAN)


@rule(exp.Case, args="this ifs default")
def _case(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    subject = to(node.this) if node.this else None
    conditions = [
        comparison(subject, to(branch.this), "=").sql if subject is not None else to.condition(branch.this).sql
        for branch in node.args["ifs"]
    ]
    default = node.args.get("default")
    results = [to(branch.args["true"]) for branch in node.args["ifs"]]
    results.append(to(default) if default is not None else TypedSql(sql="NULL", kind=NULL))
    return chosen(conditions, results)


@rule(exp.If, args="this true false")
def _if(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    other = node.args.get("false")
    results = [to(node.args["true"]), to(other) if other is not None else TypedSql(sql="NULL", kind=NULL)]
    return chosen([to.boolean(node.this).sql], results)


def chosen(conditions: Sequence[str], results: Sequence[TypedSql]) -> TypedSql:
    """Return the first result whose condition holds, or the last one."""
    pieces, kind = unified(results)
    branches = " ".join(f"WHEN {c} THEN {p.sql}" for c, p in zip(conditions, pieces[:-1], strict=True))
    return TypedSql(sql=f"CASE {branches} ELSE {pieces[-1].sql} END", kind=kind)


@rule(exp.Coalesce, exp.Greatest, exp.Least, args="this expressions")
def _coalesce(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    pieces, kind = unified(to.each([node.this, *node.expressions]))
    if not isinstance(node, exp.Coalesce) and (not types.is_ordered(kind) or kind in (BOOLEAN, types.BINARY)):
        raise Unsupported(f"{node.key.upper()} of {kind}")
    return TypedSql(sql=f"{node.key.upper()}({', '.join(p.sql for p in pieces)})", kind=kind)


@rule(exp.Nullif, args="this expression")
def _nullif(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    value = to(node.this)
    same = comparison(value, to(node.expression), "=")
    return TypedSql(sql=f"CASE WHEN {same.sql} THEN NULL ELSE {value.sql} END", kind=value.kind)


@rule(exp.Nvl2, args="this true false")
def _nvl2(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    return chosen([f"({to(node.this).sql} IS NOT NULL)"], [to(node.args["true"]), to(node.args["false"])])


@rule(exp.Exists, args="this")
def _exists(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if isinstance(node.parent, exp.Binary | exp.Between | exp.In) and not isinstance(node.parent, exp.Connector):
        raise Unsupported("EXISTS inside of a comparison")  # Spark accepts it only in parentheses
    return TypedSql(sql=f"EXISTS ({to.subquery(node.this).sql})", kind=BOOLEAN)


@rule(exp.Subquery, args="this")
def _scalar(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    """Translate a scalar subquery. Its form must guarantee one row."""
    query = node.this
    plain = isinstance(query, exp.Select) and not query.args.get("group") and not query.args.get("limit")
    if not plain or not any(is_aggregated(selected) for selected in query.expressions):
        raise Unsupported("a subquery as a value that may have several rows")
    done = to.subquery(query)
    if len(done.pieces) != 1:
        raise Unsupported("a subquery as a value with several columns")
    return TypedSql(sql=f"({done.sql})", kind=done.pieces[0].kind)


AGGREGATES: Final = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.CountIf, exp.LogicalAnd, exp.LogicalOr)


def is_aggregated(node: exp.Expr) -> bool:
    """True if an expression contains an aggregate, outside of windows and subqueries."""
    if isinstance(node, exp.Query):
        return False
    if isinstance(node, AGGREGATES):
        filtered = node.parent if isinstance(node.parent, exp.Filter) else node
        if not isinstance(filtered.parent, exp.Window):
            return True
    return any(is_aggregated(child) for child in node.iter_expressions())


_CAST_TYPES: Final = {
    exp.DType.BOOLEAN: BOOLEAN,
    exp.DType.TINYINT: types.BYTE,
    exp.DType.SMALLINT: types.SHORT,
    exp.DType.INT: types.INT,
    exp.DType.BIGINT: LONG,
    exp.DType.FLOAT: types.FLOAT,
    exp.DType.DOUBLE: DOUBLE,
    exp.DType.TEXT: STRING,
    exp.DType.DATE: DATE,
    exp.DType.TIMESTAMPTZ: TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}


def cast_type(node: exp.Expr) -> pa.DataType:
    """Return the type that a CAST names."""
    if node.this is exp.DType.DECIMAL:
        sizes = [int(size.this.this) for size in node.expressions]
        precision, scale = (*sizes, *(10, 0)[len(sizes) :])
        return pa.decimal128(precision, scale)
    if node.this in _CAST_TYPES and not node.expressions:
        return _CAST_TYPES[node.this]
    raise Unsupported(f"the type {node.sql('spark')}")


@rule(exp.Cast, exp.TryCast, args="this to")
def _cast(to: ExpressionTranslator, node: exp.Expr) -> TypedSql:
    if node.args.get("safe"):
        raise Unsupported("TRY_CAST")
    kind = cast_type(node.args["to"])
    if isinstance(node.this, exp.Literal) and not node.this.args["is_string"] and kind == DOUBLE:
        return TypedSql(sql=cast_sql(text_literal(str(node.this.this)), DOUBLE), kind=DOUBLE)
    inner = to(node.this)
    if inner.text is not None and types.is_decimal(kind):  # a suffix (2.5BD) is parsed as a cast of text
        literal = number(inner.text)
        return literal if literal.kind == kind else converted(literal, kind)
    unsure = inner.digits is not None and types.is_integer(kind)  # a suffix (1L) is parsed as a cast, too
    return replace(converted(inner, kind), name=inner.name, unsure=unsure)
