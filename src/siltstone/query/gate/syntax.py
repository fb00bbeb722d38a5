"""Checks every node of a tree against the allow list, and returns the names and functions that the tree uses.

A node of another kind, or with another argument, is rejected with its position. A function with `_rule` checks what
the lists of `allowlist` cannot express about some kinds of node.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.allowlist import (
    ARGUMENT_KINDS,
    ARGUMENTS,
    BINARY_OPERATORS,
    FIELDS_OF_TIME,
    FUNCTIONS,
    GENERATORS,
    HIDDEN_COLUMNS,
    JOINS,
    LIKES,
    PARENTS,
    SESSION_NAMES,
    SET_OPERATIONS,
    TEXT_ARGUMENTS,
    TYPES,
    UNITS_OF_TIME,
    VOLATILE,
    VOLATILE_NAMES,
    WITH_UNIT,
)
from siltstone.query.gate.parser import COMMA_JOIN, Quantified, Unpivoted
from siltstone.query.gate.tokenizer import TextPosition

MAX_TERMS: Final = 500
"""Most operators in a row, and set operations in a row. Each is a level for an engine that parses them by recursion."""
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
_ARGUMENTS: Final = {kind: frozenset(names.split()) for kind, names in ARGUMENTS.items()}
_REQUIRED: Final = {kind: [name for name, needed in kind.arg_types.items() if needed] for kind in ARGUMENTS}


def unit_of(function: exp.Expr) -> str:
    """Return the unit before two other arguments, as in ``dateadd(DAY, 1, d)``; empty without one."""
    first, *rest = function.expressions or [None]
    is_unit = isinstance(first, exp.Column) and len(first.parts) == 1 and first.name.upper() in UNITS_OF_TIME
    if function.name.lower() not in WITH_UNIT or len(rest) != 2 or not is_unit:  # noqa: PLR2004
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


_Rule = Callable[[Syntax, exp.Expr], None]
_RULES: Final[dict[type[exp.Expr], _Rule]] = {}
"""Rules beyond the list of arguments, by kind of node."""


def _rule(*kinds: type[exp.Expr]) -> Callable[[_Rule], _Rule]:
    """Register a function as the rule of some kinds of node. A kind has one rule: a second would hide the first."""
    if not _RULES.keys().isdisjoint(kinds):
        raise ValueError(f"A rule exists already for one of {kinds}.")

    def register(function: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def check_syntax(tree: exp.Expr, *, columns: frozenset[str] = frozenset()) -> Syntax:
    """Check every node of a tree, and return what it uses."""
    used = Syntax(columns=columns)
    for node in tree.dfs():
        _check_node(node)
        rule = _RULES.get(type(node))
        if rule is not None:
            rule(used, node)
    return used


def _check_node(node: exp.Expr) -> None:
    """Reject a node that is not listed, has an argument that is not listed, or lacks a required one."""
    kind = type(node)
    allowed = _ARGUMENTS.get(kind)
    if allowed is None or not isinstance(node.parent, PARENTS.get(kind, object)):
        raise _rejected(node)
    for name, value in node.args.items():
        if not value:
            continue
        if name not in allowed:
            raise InvalidRequest(
                f"{_shown(node)}{position_suffix(node)} has a part that is not allowed in a query ({name.strip('_').upper()}). "
                "docs/sql.md lists the allowed syntax."
            )
        for item in value if isinstance(value, list) else (value,):
            if item is None:
                raise _incomplete()
            if isinstance(item, str) and not isinstance(item, Enum) and (kind, name) not in TEXT_ARGUMENTS:
                raise _rejected(node)
            if not isinstance(item, ARGUMENT_KINDS.get((kind, name), object)):
                raise _rejected(item if isinstance(item, exp.Expr) else node)
    if None in map(node.args.get, _REQUIRED[kind]):
        raise _incomplete()


def position_of(node: exp.Expr) -> TextPosition | None:
    """Return the position of a node: of its first word, or of the first known one inside it."""
    parts = (part.meta for part in node.walk() if part.meta)
    positions = [(meta["line"], meta["col"]) for meta in parts if meta.get("line") is not None]
    return TextPosition(*min(positions)) if positions else None


def position_suffix(node: exp.Expr) -> str:
    """Return ` at line 1, column 8`, or an empty text if the position is not known."""
    position = position_of(node)
    return f" at {position}" if position else ""


def _incomplete() -> InvalidRequest:
    return InvalidRequest("The query cannot be read: a part of it is missing.")


def _rejected(node: exp.Expr) -> InvalidRequest:
    return InvalidRequest(
        f"{_shown(node)}{position_suffix(node)} is not allowed in a query. docs/sql.md lists the allowed syntax."
    )


def _shown(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return f"Function {node.name}"
    if isinstance(node, exp.Array):
        return "An array in brackets (write array(...))"
    return str(node.key.upper())


@_rule(exp.Identifier)
def _identifier(_used: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.this, str) or not node.this:
        raise _rejected(node)


@_rule(exp.Var)
def _word(_used: Syntax, node: exp.Expr) -> None:
    """Check a bare word: a unit, a field of time, or ORDER BY ALL."""
    if isinstance(node.parent, exp.Ordered) and node.name != "ALL":
        raise _rejected(node)


@_rule(exp.Select)
def _select(_used: Syntax, node: exp.Expr) -> None:
    if not node.expressions:
        raise InvalidRequest(f"A SELECT{position_suffix(node)} selects nothing. Name columns, or *.")
    if not node.args.get("from_") and (node.args.get("joins") or node.args.get("laterals")):
        raise InvalidRequest("A join or a LATERAL VIEW needs a FROM before it.")
    distinct = node.args.get("distinct")
    if distinct and distinct.expressions:
        raise _rejected(distinct)


@_rule(*SET_OPERATIONS)
def _set_operation(_used: Syntax, node: exp.Expr) -> None:
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


@_rule(exp.CTE)
def _common_table(_used: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.this, exp.Query):
        raise InvalidRequest(
            f"A query only selects; {node.this.key.upper()}{position_suffix(node)} is not allowed in it."
        )
    if not node.args["alias"].this:
        raise _rejected(node)


@_rule(exp.Table)
def _table(used: Syntax, node: exp.Expr) -> None:
    if range_of(node) is not None:
        if node.args.get("pivots"):
            raise _rejected(node)
    elif not isinstance(node, exp.Table) or not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise InvalidRequest(
            f"A table function{position_suffix(node)} is not allowed in a query. Name a dataset: catalog.schema.table."
        )
    _pivots(used, node)


MAX_RANGE_ROWS: Final = 10_000_000
"""Most rows that ``range(...)`` may generate."""
_LONGEST: Final = 2**63


def range_of(node: exp.Expr) -> range | None:
    """Return the numbers that ``range(...)`` in a FROM generates; None for any other table."""
    function = node.this
    if not isinstance(node, exp.Table) or not isinstance(function, exp.Anonymous) or function.name.lower() != "range":
        return None
    numbers = [_whole(argument) for argument in function.expressions]
    valid = [number for number in numbers if number is not None and -_LONGEST <= number < _LONGEST]
    if node.args.get("db") or not 1 <= len(valid) <= 3 or len(valid) != len(numbers) or valid[2:] == [0]:  # noqa: PLR2004
        raise InvalidRequest(
            f"range{position_suffix(node)} takes one to three whole numbers, which are written in the query: range(end), "
            "range(start, end) or range(start, end, step), where the step is not 0."
        )
    generated = range(*valid)
    if (rows := (generated[-1] - generated[0]) // generated.step + 1 if generated else 0) > MAX_RANGE_ROWS:
        raise InvalidRequest(f"range{position_suffix(node)} makes {rows:,} rows; allowed are {MAX_RANGE_ROWS:,}.")
    return generated


def _whole(node: exp.Expr | None) -> int | None:
    """Return the value of a literal whole number."""
    if isinstance(node, exp.Neg):
        inner = _whole(node.this)
        return None if inner is None else -inner
    text = node.name.rstrip("lLsSyY") if isinstance(node, exp.Literal) and not node.is_string else ""
    return int(text) if text.isdecimal() else None


@_rule(exp.Subquery)
def _pivots(_used: Syntax, node: exp.Expr) -> None:
    """Check PIVOT or UNPIVOT. It applies to everything before it in a FROM, so that must be one table."""
    if not node.args.get("pivots"):
        return
    select = node.parent.parent if isinstance(node.parent, exp.From) else None
    if select is None or any((select.args.get("joins"), select.args.get("laterals"), node.args.get("joins"))):
        raise InvalidRequest(
            f"PIVOT and UNPIVOT{position_suffix(node)} take one table or subquery. Put the joined tables into a subquery first."
        )


@_rule(Unpivoted)
def _unpivoted(_used: Syntax, node: exp.Expr) -> None:
    for item in node.expressions:
        inner = item.unalias()
        columns = inner.expressions if isinstance(inner, exp.Tuple) else [inner.unnest()]
        if not all(isinstance(column, exp.Column) and isinstance(column.this, exp.Identifier) for column in columns):
            raise InvalidRequest(
                f"UNPIVOT{position_suffix(item)} takes columns: UNPIVOT (value FOR name IN (a, b AS c))."
            )
    alias = node.args.get("alias")
    if alias and alias.args.get("columns"):
        raise _rejected(alias)


def join_name(node: exp.Expr) -> str:
    """Return the words of a join, as ``LEFT OUTER JOIN``, or the comma."""
    words = [str(node.args.get(name) or "") for name in ("method", "side", "kind")]
    return " ".join([*filter(None, words), "JOIN"]) if words[-1] != COMMA_JOIN else "".join(words)


@_rule(exp.Join)
def _join(_used: Syntax, node: exp.Expr) -> None:
    name = join_name(node)
    if name not in JOINS:
        raise InvalidRequest(
            f"{name}{position_suffix(node)} is not a join that a query can have. docs/sql.md lists them."
        )


@_rule(exp.Lateral)
def _lateral(_used: Syntax, node: exp.Expr) -> None:
    """Check LATERAL VIEW of a generator function, or LATERAL of such a function or of a subquery."""
    source, view = node.this, node.args.get("view")
    if isinstance(source, exp.Anonymous):
        if source.name.lower() not in GENERATORS:
            raise InvalidRequest(
                f"Function {source.name}{position_suffix(source)} is not allowed after LATERAL. Allowed: "
                f"{', '.join(sorted(GENERATORS))}."
            )
    elif not isinstance(source, exp.Subquery) or view:
        raise _rejected(source or node)
    if node.args.get("outer") and not view:
        raise _rejected(node)


@_rule(exp.Group)
def _group(_used: Syntax, node: exp.Expr) -> None:
    if not node.args.get("all") and not node.expressions:
        raise InvalidRequest("GROUP BY needs columns after it, or ALL.")
    after = [term for name in ("rollup", "cube", "grouping_sets") for term in node.args.get(name) or []]
    if after and any(isinstance(term, exp.Cube | exp.Rollup | exp.GroupingSets) for term in node.expressions):
        raise _rejected(after[0])


@_rule(exp.Window)
def _window(_used: Syntax, node: exp.Expr) -> None:
    defined = any(node.args.get(part) for part in ("partition_by", "order", "spec"))
    if node.arg_key == "windows":
        if not isinstance(node.this, exp.Identifier) or node.args.get("alias"):
            raise _rejected(node)
    elif node.args.get("alias") and defined:
        raise InvalidRequest(f"A window{position_suffix(node)} has a name or a definition, not both.")


@_rule(exp.WindowSpec)
def _frame(_used: Syntax, node: exp.Expr) -> None:
    if str(node.args["kind"]).upper() not in ("ROWS", "RANGE"):
        raise _rejected(node)
    for which in ("start", "end") if node.args.get("end") else ("start",):
        value, side = node.args.get(which), str(node.args.get(f"{which}_side") or "").upper()
        plain = value in ("CURRENT ROW", "UNBOUNDED") or isinstance(value, exp.Expr)
        if not plain or side not in (("",) if value == "CURRENT ROW" else ("PRECEDING", "FOLLOWING")):
            raise InvalidRequest("A window's frame must be bounded by n PRECEDING, CURRENT ROW or n FOLLOWING.")


@_rule(exp.Column)
def _column(used: Syntax, node: exp.Expr) -> None:
    parts = [node.args[part] for part in ("catalog", "db", "table", "this") if node.args.get(part)]
    names = [part.name.lower() for part in parts if isinstance(part, exp.Identifier)]
    if len(parts) == 1 and names and names[0] in SESSION_NAMES and names[0] not in used.columns:
        raise InvalidRequest(
            f"The name {parts[0].name}{position_suffix(node)} is about the engine itself, which is not allowed. If it is "
            f"a column, put the name of its table before it: t.{parts[0].name}."
        )
    if hidden := [name for name in names if name in HIDDEN_COLUMNS]:
        raise InvalidRequest(f"The column {hidden[0]}{position_suffix(node)} is not of the dataset and not allowed.")
    if len(parts) == 1 and names and names[0] in VOLATILE_NAMES:
        used.volatile.add(names[0])


@_rule(exp.Dot)
def _dot(_used: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.expression, exp.Identifier):
        raise InvalidRequest(
            f"{_shown(node.expression)}{position_suffix(node.expression)} follows a point, where only the name of a field "
            "is allowed. Functions are named without a schema."
        )
    if node.expression.name.lower() in HIDDEN_COLUMNS:
        raise InvalidRequest(
            f"The column {node.expression.name}{position_suffix(node)} is not of the dataset and not allowed."
        )


@_rule(exp.Bracket)
def _bracket(_used: Syntax, node: exp.Expr) -> None:
    if len(node.expressions) != 1:
        raise InvalidRequest(f"Brackets{position_suffix(node)} take one value, as in x[0] or x['key'].")


@_rule(exp.Tuple)
def _tuple(_used: Syntax, node: exp.Expr) -> None:
    if not node.expressions and not isinstance(node.parent, exp.GroupingSets):
        raise InvalidRequest("There is a pair of parentheses with nothing in it.")


@_rule(exp.Placeholder)
def _placeholder(used: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.this, str) or not node.this.isidentifier() or not node.this.isascii():
        raise InvalidRequest(f"A parameter{position_suffix(node)} is a colon and a name, as in :customer.")
    used.parameters.setdefault(node.this, position_of(node) or TextPosition(1, 1))


@_rule(exp.DataType)
def _type(_used: Syntax, node: exp.Expr) -> None:
    kind = getattr(node.this, "name", str(node.this))
    inner = node.expressions
    if kind in ("ARRAY", "MAP", "STRUCT") and node.args.get("nested") and inner:
        return
    if kind not in TYPES or (inner and kind != "DECIMAL"):
        raise InvalidRequest(
            f"The type {kind}{position_suffix(node)} is not one that a query can cast to: "
            f"{', '.join(sorted(set(TYPES.values())))}, ARRAY<...>, MAP<..., ...>, STRUCT<name: ...>."
        )


@_rule(exp.DataTypeParam)
def _type_number(_used: Syntax, node: exp.Expr) -> None:
    digits = str(node.this.this) if isinstance(node.this, exp.Literal) and not node.this.is_string else ""
    if not digits.isdecimal() or len(digits) > 2:  # noqa: PLR2004
        raise _rejected(node)


@_rule(exp.Is)
def _is(_used: Syntax, node: exp.Expr) -> None:
    if isinstance(node.this, _PREDICATES):
        raise _two_in_a_row(node)


@_rule(exp.In)
def _in(_used: Syntax, node: exp.Expr) -> None:
    _check_operands(node, node.this)
    query = node.args.get("query")
    if not query and not node.expressions:
        raise InvalidRequest(f"IN{position_suffix(node)} needs values: a IN (1, 2).")
    if query:
        _check_plain_query(query)


@_rule(exp.Exists)
def _exists(_used: Syntax, node: exp.Expr) -> None:
    _check_plain_query(node.this)


def _check_plain_query(query: exp.Expr) -> None:
    """Check a query in the parentheses of IN or EXISTS, which has nothing beside it."""
    if isinstance(query, exp.Subquery) and any(value for name, value in query.args.items() if name != "this"):
        raise _rejected(query)
    if not isinstance(query.this if isinstance(query, exp.Subquery) else query, exp.Query):
        raise _rejected(query)


@_rule(exp.Between, *LIKES)
def _predicate(_used: Syntax, node: exp.Expr) -> None:
    _check_operands(node, *map(node.args.get, ("this", "low", "high", "expression")))


@_rule(*BINARY_OPERATORS)
def _binary(_used: Syntax, node: exp.Expr) -> None:
    if isinstance(node, _COMPARISONS):
        # people and engines may group a comparison beside another one differently
        mixed = isinstance(node.this, _EQUALITIES) and not isinstance(node, _EQUALITIES)
        if mixed or isinstance(node.this, _PREDICATES) or isinstance(node.expression, (*_PREDICATES, *_COMPARISONS)):
            raise _two_in_a_row(node)
    elif not isinstance(node, exp.Connector) and isinstance(node.expression, exp.Not):
        raise _two_in_a_row(node)
    if _chain_length(node, BINARY_OPERATORS) > MAX_TERMS:
        raise InvalidRequest(f"An expression has at most {MAX_TERMS:,} operators in a row. Use IN for many values.")


def _check_operands(node: exp.Expr, *operands: exp.Expr | None) -> None:
    """Reject a predicate with a comparison or another predicate as operand: ``a = b IN (c)``."""
    if any(isinstance(operand, (*_PREDICATES, *_COMPARISONS)) for operand in operands):
        raise _two_in_a_row(node)


def _two_in_a_row(node: exp.Expr) -> InvalidRequest:
    return InvalidRequest(
        f"Two comparisons in a row{position_suffix(node)} can be read in two ways. Put one of them in parentheses: (a = b) = c."
    )


@_rule(Quantified)
def _quantified(_used: Syntax, node: exp.Expr) -> None:
    if not node.expressions:
        raise InvalidRequest(f"{node.name}{position_suffix(node)} needs patterns: a LIKE ANY ('x%', 'y%').")
    if any(isinstance(pattern, exp.Query) for pattern in node.expressions):
        raise InvalidRequest(f"{node.name}{position_suffix(node)} takes patterns and no SELECT.")


@_rule(exp.Interval)
def _interval(_used: Syntax, node: exp.Expr) -> None:
    if not isinstance(node.this.this if isinstance(node.this, exp.Neg) else node.this, exp.Literal):
        raise InvalidRequest(
            f"INTERVAL{position_suffix(node)} takes a number or a string. make_interval takes columns."
        )


@_rule(exp.Extract)
def _extract(used: Syntax, node: exp.Expr) -> None:
    if node.name.upper() not in FIELDS_OF_TIME:
        raise InvalidRequest(
            f"EXTRACT{position_suffix(node)} knows no field {node.name}. Known: {', '.join(sorted(FIELDS_OF_TIME))}."
        )
    used.functions.add("extract")


@_rule(exp.Trim)
def _trim(used: Syntax, node: exp.Expr) -> None:
    if node.args.get("position") not in (None, "BOTH", "LEADING", "TRAILING"):
        raise _rejected(node)
    used.functions.add("trim")


@_rule(exp.Anonymous)
def _function(used: Syntax, node: exp.Expr) -> None:
    if isinstance(node.parent, exp.Table) and node.arg_key == "this":  # the table function, which `range_of` checks
        return
    name = node.name.lower()
    if name not in FUNCTIONS:
        raise InvalidRequest(
            f"Function {node.name}{position_suffix(node)} is not allowed in a query. docs/sql.md lists the allowed functions."
        )
    if any(isinstance(argument, exp.Query) and not isinstance(argument, exp.Subquery) for argument in node.expressions):
        raise InvalidRequest(
            f"A SELECT inside function {node.name}{position_suffix(node)} needs parentheses of its own."
        )
    used.functions.add(name)
    if name in VOLATILE:
        used.volatile.add(name)
