"""Allow list of SQL syntax: the nodes of a query and their arguments.

`ARGUMENTS`, `_VALUES`, `_TEXTS` and `_PARENTS` are data. A node of another kind, or with another argument, is rejected
with its position. `_CHECKS` has the rules that a list cannot express. `sql_writer` writes these nodes and arguments.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.allowlist import (
    FIELDS_OF_TIME,
    FUNCTIONS,
    GENERATORS,
    HIDDEN_COLUMNS,
    SESSION_NAMES,
    TYPES,
    VOLATILE,
    VOLATILE_NAMES,
)
from siltstone.query.gate.parser import COMMA_JOIN, Pivoted, Positive, Quantified, Unpivoted, UnsignedShift
from siltstone.query.gate.tokenizer import TextPosition

MAX_TERMS: Final = 500
"""Most operators in a row, and set operations in a row. Each is a level for an engine that parses them by recursion."""
OPERATORS: Final[dict[type[exp.Expr], str]] = {
    exp.Add: "+",
    exp.And: "AND",
    exp.BitwiseAnd: "&",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseOr: "|",
    exp.BitwiseRightShift: ">>",
    exp.BitwiseXor: "^",
    exp.DPipe: "||",
    exp.Div: "/",
    exp.EQ: "=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.IntDiv: "DIV",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.Mod: "%",
    exp.Mul: "*",
    exp.NEQ: "<>",
    exp.NullSafeEQ: "<=>",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.Or: "OR",
    exp.Sub: "-",
    UnsignedShift: ">>>",
}
"""Binary operators and their spelling."""
LIKES: Final[dict[type[exp.Expr], str]] = {exp.Like: "LIKE", exp.ILike: "ILIKE", exp.RegexpLike: "RLIKE"}
SET_OPERATIONS: Final = (exp.Union, exp.Intersect, exp.Except)
_COMPARISONS: Final = (exp.EQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NEQ, exp.NullSafeEQ)
_EQUALITIES: Final = (exp.EQ, exp.NEQ, exp.NullSafeEQ)
_PREDICATES: Final = (
    exp.Between,
    exp.Escape,
    exp.ILike,
    exp.In,
    exp.Is,
    exp.Like,
    exp.Not,
    exp.NullSafeNEQ,
    exp.RegexpLike,
)
_SIDED: Final = [f"{side}{outer}JOIN" for side in ("LEFT ", "RIGHT ", "FULL ") for outer in ("", "OUTER ")]
_INNER: Final = ["JOIN", "INNER JOIN"]
_JOINS: Final = frozenset(
    [
        *(*_INNER, *_SIDED),
        *(f"NATURAL {name}" for name in (*_INNER, *_SIDED)),
        *("CROSS JOIN", "SEMI JOIN", "LEFT SEMI JOIN", "ANTI JOIN", "LEFT ANTI JOIN", COMMA_JOIN),
    ]
)
_CLAUSES: Final = "with_ where group having qualify windows order limit offset"
ARGUMENTS: Final[dict[type[exp.Expr], str]] = {
    exp.Alias: "this alias",
    exp.Aliases: "this expressions",
    exp.Anonymous: "this expressions",
    exp.Between: "this low high",
    exp.BitwiseNot: "this",
    exp.Boolean: "this",
    exp.Bracket: "this expressions",
    exp.CTE: "this alias",
    exp.Case: "this ifs default",
    exp.Cast: "this to safe",
    exp.Column: "this table db catalog",
    exp.ColumnDef: "this kind",
    exp.Cube: "expressions",
    exp.DataType: "this expressions nested",
    exp.DataTypeParam: "this",
    exp.Distinct: "expressions",
    exp.Dot: "this expression",
    exp.Escape: "this expression",
    exp.Exists: "this",
    exp.Extract: "this expression",
    exp.Filter: "this expression",
    exp.From: "this",
    exp.Group: "expressions all rollup cube grouping_sets",
    exp.GroupingSets: "expressions",
    exp.Having: "this",
    exp.HexString: "this",
    exp.Identifier: "this quoted",
    exp.If: "this true",
    exp.IgnoreNulls: "this",
    exp.In: "this expressions query",
    exp.Interval: "this unit",
    exp.IntervalSpan: "this expression",
    exp.Is: "this expression",
    exp.Join: "this side kind method on using",
    exp.Lambda: "this expressions",
    exp.Lateral: "this view outer alias",
    exp.Limit: "expression",
    exp.Literal: "this is_string",
    exp.Neg: "this",
    exp.Not: "this",
    exp.Null: "",
    exp.Offset: "expression",
    exp.Order: "expressions",
    exp.Ordered: "this desc nulls_first",
    exp.Paren: "this",
    exp.Placeholder: "this",
    exp.Qualify: "this",
    exp.RespectNulls: "this",
    exp.Rollup: "expressions",
    exp.Select: f"{_CLAUSES} distinct expressions from_ joins laterals",
    exp.Star: "except_",
    exp.Subquery: f"{_CLAUSES} this alias joins pivots",
    exp.Table: "this db catalog alias joins pivots",
    exp.TableAlias: "this columns",
    exp.Trim: "this expression position",
    exp.TryCast: "this to safe",
    exp.Tuple: "expressions",
    exp.Values: "expressions alias",
    exp.Var: "this",
    exp.Where: "this",
    exp.Window: "this partition_by order spec alias over",
    exp.WindowSpec: "kind start start_side end end_side",
    exp.With: "expressions recursive",
    exp.WithinGroup: "this expression",
    Pivoted: "expressions columns values",
    Positive: "this",
    Quantified: "this expressions",
    Unpivoted: "this values expressions nulls alias",
    **dict.fromkeys(LIKES, "this expression negate"),
    **dict.fromkeys(OPERATORS, "this expression safe typed"),
    **dict.fromkeys(SET_OPERATIONS, f"{_CLAUSES} this expression distinct"),
}
"""The allowed arguments of each kind of node."""
_ARGUMENTS: Final = {kind: frozenset(names.split()) for kind, names in ARGUMENTS.items()}
_REQUIRED: Final = {kind: [name for name, needed in kind.arg_types.items() if needed] for kind in ARGUMENTS}
_RELATIONS: Final = (exp.Table, exp.Subquery, exp.Values, exp.Lateral)
_VALUES: Final[dict[tuple[type[exp.Expr], str], tuple[type[exp.Expr], ...]]] = {
    (exp.CTE, "alias"): (exp.TableAlias,),
    (exp.Escape, "this"): tuple(LIKES),
    (exp.From, "this"): _RELATIONS,
    (exp.Is, "expression"): (exp.Null, exp.Boolean),
    (exp.Join, "this"): _RELATIONS,
    (exp.Lambda, "expressions"): (exp.Identifier,),
    (exp.Select, "windows"): (exp.Window,),
    (exp.Subquery, "this"): (exp.Query, exp.Table, exp.Values),
    (exp.TableAlias, "columns"): (exp.Identifier,),
    **{(kind, side): (exp.Query,) for kind in SET_OPERATIONS for side in ("this", "expression")},
}
"""The kinds of node that an argument may be, if not every kind is allowed."""
_TEXTS: Final = frozenset(
    {
        *((exp.Anonymous, "this"), (exp.HexString, "this"), (exp.Identifier, "this"), (exp.Literal, "this")),
        *(
            (exp.Placeholder, "this"),
            (exp.Var, "this"),
            (Quantified, "this"),
            (Unpivoted, "nulls"),
            (exp.Trim, "position"),
        ),
        *((exp.Join, "side"), (exp.Join, "kind"), (exp.Join, "method"), (exp.Window, "over")),
        *((exp.WindowSpec, name) for name in ARGUMENTS[exp.WindowSpec].split()),
    }
)
"""Arguments that may be text.

Each is escaped, compared with a list, or limited by the tokenizer: the writer copies it.
"""
_PARENTS: Final[dict[type[exp.Expr], tuple[type[exp.Expr], ...]]] = {
    exp.If: (exp.Case,),
    exp.IntervalSpan: (exp.Interval,),
    exp.Var: (exp.Interval, exp.IntervalSpan, exp.Extract, exp.Ordered),
    Quantified: (exp.Like, exp.ILike),
}
"""The kinds of node that a node may be an argument of, if not every kind is allowed."""
WITH_UNIT: Final = frozenset({"date_add", "date_diff", "dateadd", "datediff"})
WITH_UNIT_ARGUMENTS: Final = 3
UNITS_OF_TIME: Final = frozenset(
    ["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFYEAR", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"]
)


def unit_of(function: exp.Expr) -> str:
    """Return the unit before two other arguments, as in ``dateadd(DAY, 1, d)``; empty without one."""
    first, *rest = function.expressions or [None]
    is_unit = isinstance(first, exp.Column) and len(first.parts) == 1 and first.name.upper() in UNITS_OF_TIME
    if function.name.lower() not in WITH_UNIT or len(rest) != WITH_UNIT_ARGUMENTS - 1 or not is_unit:
        return ""
    return str(first.name.upper())


@dataclass(slots=True)
class Syntax:
    """The names and functions that a checked tree uses."""

    columns: frozenset[str] = frozenset()
    """Names, in lower case, that are known to be columns, so that the engine does not resolve them itself."""
    functions: set[str] = field(default_factory=set)
    volatile: set[str] = field(default_factory=set)
    """Functions and names with a different result each time."""
    parameters: dict[str, TextPosition] = field(default_factory=dict)


def check_syntax(tree: exp.Expr, *, columns: frozenset[str] = frozenset()) -> Syntax:
    """Check every node of a tree, and return what it uses.

    Raises:
        InvalidRequest: a node is not allowed; the message names it and its position.
    """
    found = Syntax(columns=columns)
    for node in tree.dfs():
        _check_node(node)
        check = _CHECKS.get(type(node))
        if check is not None:
            check(found, node)
    return found


def _check_node(node: exp.Expr) -> None:
    """Reject a node that is not on the list, has an argument that is not listed, or lacks a required one."""
    kind = type(node)
    allowed = _ARGUMENTS.get(kind)
    if allowed is None or not isinstance(node.parent, _PARENTS.get(kind, object)):
        raise _rejected(node)
    for name, value in node.args.items():
        if not value:
            continue
        if name not in allowed:
            raise InvalidRequest(
                f"{_shown(node)}{located(node)} has a part that is not allowed in a query ({name.strip('_').upper()}). "
                "docs/sql.md lists what is."
            )
        for one in value if isinstance(value, list) else (value,):
            if one is None:
                raise _incomplete()
            if isinstance(one, str) and not isinstance(one, Enum) and (kind, name) not in _TEXTS:
                raise _rejected(node)
            if not isinstance(one, _VALUES.get((kind, name), object)):
                raise _rejected(one if isinstance(one, exp.Expr) else node)
    if None in map(node.args.get, _REQUIRED[kind]):
        raise _incomplete()


def place_of(node: exp.Expr) -> TextPosition | None:
    """Return the position of a node: of its own first word, or of the first one inside it that is known."""
    found = [
        (one.meta["line"], one.meta["col"]) for one in node.walk() if one.meta and one.meta.get("line") is not None
    ]
    return TextPosition(*min(found)) if found else None


def located(node: exp.Expr) -> str:
    """Return ` at line 1, column 8`, or an empty text if the position is not known."""
    place = place_of(node)
    return f" at {place}" if place else ""


def _incomplete() -> InvalidRequest:
    return InvalidRequest("The query cannot be read: a part of it is missing.")


def _rejected(node: exp.Expr) -> InvalidRequest:
    return InvalidRequest(f"{_shown(node)}{located(node)} is not allowed in a query. docs/sql.md lists what is.")


def _shown(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return f"Function {node.name}"
    if isinstance(node, exp.Array):
        return "An array in brackets (write array(...))"
    return str(node.key.upper())


def _require(value: object, kinds: type | tuple[type, ...], *, within: exp.Expr) -> None:
    """Reject an argument of another kind."""
    if not isinstance(value, kinds):
        raise _rejected(value if isinstance(value, exp.Expr) else within)


def _identifier(_found: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.this, str) or not node.this:
        raise _rejected(node)


def _word(_found: Syntax, node: exp.Expr) -> None:
    """Check a bare word: a unit, a field of time, or ORDER BY ALL."""
    if isinstance(node.parent, exp.Ordered) and node.name != "ALL":
        raise _rejected(node)


def _select(_found: Syntax, node: exp.Expr) -> None:
    if not node.expressions:
        raise InvalidRequest(f"A SELECT{located(node)} selects nothing. Name columns, or *.")
    if not node.args.get("from_") and (node.args.get("joins") or node.args.get("laterals")):
        raise InvalidRequest("A join or a LATERAL VIEW needs a FROM before it.")
    distinct = node.args.get("distinct")
    if distinct and distinct.expressions:
        raise _rejected(distinct)


def _set_operation(_found: Syntax, node: exp.Expr) -> None:
    if _chain_length(node, SET_OPERATIONS) > MAX_TERMS:
        raise InvalidRequest(f"A query has at most {MAX_TERMS:,} set operations in a row.")


def _chain_length(node: exp.Expr, kinds: Collection[type[exp.Expr]]) -> int:
    """Return the length of a left-deep chain of operations, if this is its last one; 0 for the others."""
    if type(node.parent) in kinds and node.arg_key == "this":
        return 0
    length = 0
    while type(node) in kinds:
        node, length = node.this, length + 1
    return length


def _common_table(_found: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.this, exp.Query):
        raise InvalidRequest(f"A query only selects; {node.this.key.upper()}{located(node)} is not allowed in it.")
    if not node.args["alias"].this:
        raise _rejected(node)


def _table(found: Syntax, node: exp.Expr) -> None:
    if range_of(node) is not None:
        if node.args.get("pivots"):
            raise _rejected(node)
    elif not isinstance(node, exp.Table) or not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise InvalidRequest(
            f"A table function{located(node)} is not allowed in a query. Name a dataset: catalog.schema.table."
        )
    _pivots(found, node)


MAX_RANGE_ROWS: Final = 10_000_000
"""Most rows that ``range(...)`` may generate."""
_LONGEST: Final = 2**63


def range_of(node: exp.Expr) -> range | None:
    """Return the numbers that ``range(...)`` in a FROM generates; None for any other table.

    Raises:
        InvalidRequest: its arguments are not whole numbers, or it has too many rows.
    """
    made = node.this
    if not isinstance(node, exp.Table) or not isinstance(made, exp.Anonymous) or made.name.lower() != "range":
        return None
    numbers = [whole(one) for one in made.expressions]
    known = [one for one in numbers if one is not None and -_LONGEST <= one < _LONGEST]
    if node.args.get("db") or not 1 <= len(known) <= 3 or len(known) != len(numbers) or known[2:] == [0]:  # noqa: PLR2004
        raise InvalidRequest(
            f"range{located(node)} takes one to three whole numbers, which are written in the query: range(end), "
            "range(start, end) or range(start, end, step), where the step is not 0."
        )
    found = range(*known)
    if (rows := (found[-1] - found[0]) // found.step + 1 if found else 0) > MAX_RANGE_ROWS:
        raise InvalidRequest(f"range{located(node)} makes {rows:,} rows; allowed are {MAX_RANGE_ROWS:,}.")
    return found


def whole(node: exp.Expr | None) -> int | None:
    """Return the value of a literal whole number."""
    if isinstance(node, exp.Neg):
        inner = whole(node.this)
        return None if inner is None else -inner
    text = node.name.rstrip("lLsSyY") if isinstance(node, exp.Literal) and not node.is_string else ""
    return int(text) if text.isdecimal() else None


def _pivots(_found: Syntax, node: exp.Expr) -> None:
    """Check PIVOT or UNPIVOT. It applies to everything before it in a FROM, so that must be one table."""
    if not node.args.get("pivots"):
        return
    select = node.parent.parent if isinstance(node.parent, exp.From) else None
    if select is None or any((select.args.get("joins"), select.args.get("laterals"), node.args.get("joins"))):
        raise InvalidRequest(
            f"PIVOT and UNPIVOT{located(node)} take one table or subquery. Put what is joined into a subquery before it."
        )


def _unpivoted(_found: Syntax, node: exp.Expr) -> None:
    for one in node.expressions:
        inner = one.unalias()
        columns = inner.expressions if isinstance(inner, exp.Tuple) else [inner.unnest()]
        if not all(isinstance(column, exp.Column) and isinstance(column.this, exp.Identifier) for column in columns):
            raise InvalidRequest(f"UNPIVOT{located(one)} takes columns: UNPIVOT (value FOR name IN (a, b AS c)).")
    alias = node.args.get("alias")
    if alias and alias.args.get("columns"):
        raise _rejected(alias)


def join_name(node: exp.Expr) -> str:
    """Return the words of a join, as ``LEFT OUTER JOIN``, or the comma."""
    words = [str(node.args.get(name) or "") for name in ("method", "side", "kind")]
    return " ".join([*filter(None, words), "JOIN"]) if words[-1] != COMMA_JOIN else "".join(words)


def _join(_found: Syntax, node: exp.Expr) -> None:
    name = join_name(node)
    if name not in _JOINS:
        raise InvalidRequest(f"{name}{located(node)} is not a join that a query can have. docs/sql.md lists them.")


def _lateral(_found: Syntax, node: exp.Expr) -> None:
    """Check LATERAL VIEW of a generator function, or LATERAL of such a function or of a subquery."""
    made, view = node.this, node.args.get("view")
    if isinstance(made, exp.Anonymous):
        if made.name.lower() not in GENERATORS:
            raise InvalidRequest(
                f"Function {made.name}{located(made)} cannot stand after LATERAL. Those that can: "
                f"{', '.join(sorted(GENERATORS))}."
            )
    elif not isinstance(made, exp.Subquery) or view:
        raise _rejected(made or node)
    if node.args.get("outer") and not view:
        raise _rejected(node)


def _group(_found: Syntax, node: exp.Expr) -> None:
    if not node.args.get("all") and not node.expressions:
        raise InvalidRequest("GROUP BY needs columns after it, or ALL.")
    after = [one for name in ("rollup", "cube", "grouping_sets") for one in node.args.get(name) or []]
    if after and any(isinstance(term, exp.Cube | exp.Rollup | exp.GroupingSets) for term in node.expressions):
        raise _rejected(after[0])


def _window(_found: Syntax, node: exp.Expr) -> None:
    defined = any(node.args.get(part) for part in ("partition_by", "order", "spec"))
    if node.arg_key == "windows":
        _require(node.this, exp.Identifier, within=node)
        if node.args.get("alias"):
            raise _rejected(node)
    elif node.args.get("alias") and defined:
        raise InvalidRequest(f"A window{located(node)} has a name or a definition, not both.")


def _frame(_found: Syntax, node: exp.Expr) -> None:
    if str(node.args["kind"]).upper() not in ("ROWS", "RANGE"):
        raise _rejected(node)
    for which in ("start", "end") if node.args.get("end") else ("start",):
        value, side = node.args.get(which), str(node.args.get(f"{which}_side") or "").upper()
        plain = value in ("CURRENT ROW", "UNBOUNDED") or isinstance(value, exp.Expr)
        if not plain or side not in (("",) if value == "CURRENT ROW" else ("PRECEDING", "FOLLOWING")):
            raise InvalidRequest(
                "A window's frame goes from n PRECEDING, CURRENT ROW or n FOLLOWING to another of them."
            )


def _column(found: Syntax, node: exp.Expr) -> None:
    parts = [node.args[part] for part in ("catalog", "db", "table", "this") if node.args.get(part)]
    if not all(isinstance(part, exp.Identifier) for part in parts[:-1]):
        raise _rejected(node)
    _require(parts[-1], (exp.Identifier, exp.Star), within=node)
    names = [part.name.lower() for part in parts if isinstance(part, exp.Identifier)]
    if len(parts) == 1 and names and names[0] in SESSION_NAMES and names[0] not in found.columns:
        raise InvalidRequest(
            f"The name {parts[0].name}{located(node)} asks the engine about itself, which is not allowed. If it is a column, "
            f"put the name of its table before it: t.{parts[0].name}."
        )
    if hidden := [name for name in names if name in HIDDEN_COLUMNS]:
        raise InvalidRequest(f"The column {hidden[0]}{located(node)} is not of the dataset and not allowed.")
    if len(parts) == 1 and names and names[0] in VOLATILE_NAMES:
        found.volatile.add(names[0])


def _dot(_found: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.expression, exp.Identifier):
        raise InvalidRequest(
            f"{_shown(node.expression)}{located(node.expression)} stands after a point, where only the name of a field can "
            "stand. Functions are named without a schema."
        )
    if node.expression.name.lower() in HIDDEN_COLUMNS:
        raise InvalidRequest(f"The column {node.expression.name}{located(node)} is not of the dataset and not allowed.")


def _bracket(_found: Syntax, node: exp.Expr) -> None:
    if len(node.expressions) != 1:
        raise InvalidRequest(f"One value stands in brackets{located(node)}, as in x[0] or x['key'].")


def _tuple(_found: Syntax, node: exp.Expr) -> None:
    if not node.expressions and not isinstance(node.parent, exp.GroupingSets):
        raise InvalidRequest("There is a pair of parentheses with nothing in it.")


def _placeholder(found: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.this, str) or not node.this.isidentifier() or not node.this.isascii():
        raise InvalidRequest(f"A parameter{located(node)} is a colon and a name, as in :customer.")
    found.parameters.setdefault(node.this, place_of(node) or TextPosition(1, 1))


def _type(_found: Syntax, node: exp.Expr) -> None:
    kind = getattr(node.this, "name", str(node.this))
    inner = node.expressions
    if kind in ("ARRAY", "MAP", "STRUCT") and node.args.get("nested") and inner:
        return
    if kind not in TYPES or (inner and kind != "DECIMAL"):
        raise InvalidRequest(
            f"The type {kind}{located(node)} is not one that a query can cast to: {', '.join(sorted(set(TYPES.values())))}, "
            "ARRAY<...>, MAP<..., ...>, STRUCT<name: ...>."
        )


def _type_number(_found: Syntax, node: exp.Expr) -> None:
    digits = str(node.this.this) if isinstance(node.this, exp.Literal) and not node.this.is_string else ""
    if not digits.isdecimal() or len(digits) > 2:  # noqa: PLR2004
        raise _rejected(node)


def _is(_found: Syntax, node: exp.Expr) -> None:
    if isinstance(node.this, _PREDICATES):
        raise _two_in_a_row(node)


def _in(_found: Syntax, node: exp.Expr) -> None:
    _check_operands(node, node.this)
    query = node.args.get("query")
    if not query and not node.expressions:
        raise InvalidRequest(f"IN{located(node)} needs values: a IN (1, 2).")
    if query:
        _check_plain_query(query)


def _exists(_found: Syntax, node: exp.Expr) -> None:
    _check_plain_query(node.this)


def _check_plain_query(query: exp.Expr) -> None:
    """Check a query in the parentheses of IN or EXISTS, which has nothing beside it."""
    if isinstance(query, exp.Subquery) and any(value for name, value in query.args.items() if name != "this"):
        raise _rejected(query)
    _require(query.this if isinstance(query, exp.Subquery) else query, exp.Query, within=query)


def _between(_found: Syntax, node: exp.Expr) -> None:
    _check_operands(node, node.this, node.args["low"], node.args["high"])


def _like(_found: Syntax, node: exp.Expr) -> None:
    _check_operands(node, node.this, node.expression)


def _binary(_found: Syntax, node: exp.Expr) -> None:
    if isinstance(node, _COMPARISONS):
        _check_comparison(node)
    elif not isinstance(node, exp.Connector) and isinstance(node.expression, exp.Not):
        raise _two_in_a_row(node)
    if _chain_length(node, OPERATORS) > MAX_TERMS:
        raise InvalidRequest(f"An expression has at most {MAX_TERMS:,} operators in a row. Use IN for many values.")


def _check_comparison(node: exp.Expr) -> None:
    """Reject a comparison beside another one, because people and engines may group them differently."""
    mixed = isinstance(node.this, _EQUALITIES) and not isinstance(node, _EQUALITIES)
    if mixed or isinstance(node.this, _PREDICATES) or isinstance(node.expression, (*_PREDICATES, *_COMPARISONS)):
        raise _two_in_a_row(node)


def _check_operands(node: exp.Expr, *operands: exp.Expr | None) -> None:
    """Reject a predicate with a comparison or another predicate as operand: ``a = b IN (c)``."""
    if any(isinstance(one, (*_PREDICATES, *_COMPARISONS)) for one in operands):
        raise _two_in_a_row(node)


def _two_in_a_row(node: exp.Expr) -> InvalidRequest:
    return InvalidRequest(
        f"Two comparisons in a row{located(node)} can be read in two ways. Put one of them in parentheses: (a = b) = c."
    )


def _quantified(_found: Syntax, node: exp.Expr) -> None:
    if not node.expressions:
        raise InvalidRequest(f"{node.name}{located(node)} needs patterns: a LIKE ANY ('x%', 'y%').")
    if any(isinstance(pattern, exp.Query) for pattern in node.expressions):
        raise InvalidRequest(f"{node.name}{located(node)} takes patterns and no SELECT.")


def _interval(_found: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.this.this if isinstance(node.this, exp.Neg) else node.this, exp.Literal):
        raise InvalidRequest(f"After INTERVAL{located(node)} stands a number or a string. make_interval takes columns.")
    unit = node.args.get("unit")
    spans = [unit.this, unit.expression] if isinstance(unit, exp.IntervalSpan) else [unit] if unit else []
    if not all(isinstance(one, exp.Var) for one in spans):
        raise _rejected(node)


def _extract(found: Syntax, node: exp.Expr) -> None:
    if node.name.upper() not in FIELDS_OF_TIME:
        raise InvalidRequest(
            f"EXTRACT{located(node)} knows no field {node.name}. Known: {', '.join(sorted(FIELDS_OF_TIME))}."
        )
    found.functions.add("extract")


def _trim(found: Syntax, node: exp.Expr) -> None:
    if node.args.get("position") not in (None, "BOTH", "LEADING", "TRAILING"):
        raise _rejected(node)
    found.functions.add("trim")


def _function(found: Syntax, node: exp.Expr) -> None:
    if _is_range(node):
        return
    name = node.name.lower()
    if name not in FUNCTIONS:
        raise InvalidRequest(
            f"Function {node.name}{located(node)} is not allowed in a query. docs/sql.md lists those that are."
        )
    if any(isinstance(argument, exp.Query) and not isinstance(argument, exp.Subquery) for argument in node.expressions):
        raise InvalidRequest(f"A SELECT inside function {node.name}{located(node)} needs parentheses of its own.")
    found.functions.add(name)
    if name in VOLATILE:
        found.volatile.add(name)


def _is_range(node: exp.Expr) -> bool:
    """True for the table function ``range``, which `range_of` checks."""
    return isinstance(node.parent, exp.Table) and node.arg_key == "this"


_CHECKS: Final[dict[type[exp.Expr], Callable[[Syntax, exp.Expr], None]]] = {
    exp.Anonymous: _function,
    exp.Between: _between,
    exp.Bracket: _bracket,
    exp.CTE: _common_table,
    exp.Column: _column,
    exp.DataType: _type,
    exp.DataTypeParam: _type_number,
    exp.Dot: _dot,
    exp.Exists: _exists,
    exp.Extract: _extract,
    exp.Group: _group,
    exp.Identifier: _identifier,
    exp.In: _in,
    exp.Interval: _interval,
    exp.Is: _is,
    exp.Join: _join,
    exp.Lateral: _lateral,
    exp.Placeholder: _placeholder,
    exp.Select: _select,
    exp.Subquery: _pivots,
    exp.Table: _table,
    exp.Trim: _trim,
    exp.Tuple: _tuple,
    exp.Var: _word,
    exp.Window: _window,
    exp.WindowSpec: _frame,
    Quantified: _quantified,
    Unpivoted: _unpivoted,
    **dict.fromkeys(OPERATORS, _binary),
    **dict.fromkeys(LIKES, _like),
    **dict.fromkeys(SET_OPERATIONS, _set_operation),
}
"""Rules beyond the list of arguments, by kind of node."""
