"""A checked tree as text, each kind of node by one function of its own. What has no function here cannot be in a query.

This is the allow list of syntax and the writer in one: a node is refused if it is of another kind, or has a part that its
function does not write. So nothing is in the text for Spark that was not looked at, and nothing is left out in silence.
Every name is written in backticks, every string with one kind of quote and no character that an engine replaces, every
function from the list: the text can be read in one way only.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
from siltstone.query.gate.tokenizer import Place

_BINARY: Final[dict[type[exp.Expr], str]] = {
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
_LIKES: Final[dict[type[exp.Expr], str]] = {exp.Like: "LIKE", exp.ILike: "ILIKE", exp.RegexpLike: "RLIKE"}
_SET_OPERATIONS: Final[dict[type[exp.Expr], str]] = {
    exp.Union: "UNION",
    exp.Intersect: "INTERSECT",
    exp.Except: "EXCEPT",
}
_JOINS: Final = frozenset(
    {
        "JOIN",
        "INNER JOIN",
        "CROSS JOIN",
        "LEFT JOIN",
        "LEFT OUTER JOIN",
        "RIGHT JOIN",
        "RIGHT OUTER JOIN",
        "FULL JOIN",
        "FULL OUTER JOIN",
        "SEMI JOIN",
        "LEFT SEMI JOIN",
        "ANTI JOIN",
        "LEFT ANTI JOIN",
        "NATURAL JOIN",
        "NATURAL INNER JOIN",
        "NATURAL LEFT JOIN",
        "NATURAL LEFT OUTER JOIN",
        "NATURAL RIGHT JOIN",
        "NATURAL RIGHT OUTER JOIN",
        "NATURAL FULL JOIN",
        "NATURAL FULL OUTER JOIN",
        COMMA_JOIN,
    }
)
_CLAUSES: Final = ("where", "group", "having", "qualify", "windows", "order", "limit", "offset")
_QUERY_PARTS: Final = ("with_", *_CLAUSES)
MAX_TERMS: Final = 500
"""The most operators in a row, and set operations in a row: each is a level for an engine that reads them by recursion."""


@dataclass(slots=True)
class Writer:
    """Writes one tree.

    `table` says by which name a table is read, `common_table` how a common table expression is called, `parameter` how a
    parameter is written. What was met on the way is kept.
    """

    table: Callable[[exp.Table], str]
    common_table: Callable[[exp.CTE], str]
    parameter: Callable[[str], str] = ":{}".format
    comma: str = COMMA_JOIN
    """How the comma between two tables is written. Spark has a setting that lets it bind weaker than the word JOIN."""
    datasets: frozenset[tuple[str, str, str]] = frozenset()
    columns: frozenset[str] = frozenset()
    """Names, in lower case, that are known to be columns, so that the engine answers none of them itself."""
    functions: set[str] = field(default_factory=set)
    volatile: set[str] = field(default_factory=set)
    parameters: dict[str, Place] = field(default_factory=dict)

    def write(self, node: exp.Expr | None) -> str:
        """Return the text of a node.

        Raises:
            InvalidRequest: something in it is not allowed.
        """
        if node is None:
            raise InvalidRequest("The query cannot be read: a part of it is missing.")
        writes = WRITERS.get(type(node))
        if writes is None:
            raise _refused(node)
        return writes(self, node)

    def all(self, nodes: Iterable[exp.Expr], between: str = ", ") -> str:
        """Return the text of several nodes."""
        return between.join(self.write(node) for node in nodes)


def place_of(node: exp.Expr) -> Place | None:
    """Return where a node stands: at its own first word, or the first one inside it that is known."""
    found = [
        (one.meta["line"], one.meta["col"]) for one in node.walk() if one.meta and one.meta.get("line") is not None
    ]
    return Place(*min(found)) if found else None


def located(node: exp.Expr) -> str:
    """Return ` at line 1, column 8`, or nothing if the place is not known."""
    place = place_of(node)
    return f" at {place}" if place else ""


def quoted(name: str) -> str:
    """Return a name in backticks.

    >>> quoted("a`b")
    '`a``b`'
    """
    return f"`{name.replace('`', '``')}`"


_STRING_CODES: Final = {
    **{code: f"\\u{code:04x}" for code in (*range(32), 0x7F, 0x2028, 0x2029)},
    ord("$"): "\\u0024",
    ord("'"): "\\'",
    ord("\\"): "\\\\",
}


def string(value: str) -> str:
    r"""Return a string in the one form that every reader understands alike.

    >>> string("it's ${x}")
    "'it\\'s \\u0024{x}'"
    """
    return f"'{value.translate(_STRING_CODES)}'"


def _refused(node: exp.Expr) -> InvalidRequest:
    name = _shown(node)
    return InvalidRequest(f"{name}{located(node)} is not allowed in a query. docs/sql.md lists what is.")


def _shown(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return f"Function {node.name}"
    if isinstance(node, exp.Array):
        return "An array in brackets (write array(...))"
    return str(node.key.upper())


def _parts(node: exp.Expr, *known: str) -> None:
    """Refuse a node that has a part which is not written."""
    for name, value in node.args.items():
        if value and name not in known:
            raise InvalidRequest(
                f"{_shown(node)}{located(node)} has a part that is not allowed in a query ({name.strip('_').upper()}). "
                "docs/sql.md lists what is."
            )


def _identifier(writer: Writer, node: exp.Expr) -> str:  # noqa: ARG001
    _parts(node, "this", "quoted")
    name = node.this
    if not isinstance(name, str) or not name:
        raise _refused(node)
    return quoted(name)


def _query(writer: Writer, node: exp.Expr, body: str) -> str:
    """Write what stands around the body of a query: WITH before it, clauses after it."""
    text = f"{writer.write(node.args['with_'])} {body}" if node.args.get("with_") else body
    for name in _CLAUSES:
        part = node.args.get(name)
        if name == "windows" and part:
            text += f" WINDOW {', '.join(_named_window(writer, one) for one in part)}"
        elif part:
            text += f" {writer.write(part)}"
    return text


def _select(writer: Writer, node: exp.Expr) -> str:
    _parts(node, *_QUERY_PARTS, "distinct", "expressions", "from_", "joins", "laterals")
    if not node.expressions:
        raise InvalidRequest(f"A SELECT{located(node)} selects nothing. Name columns, or *.")
    distinct = node.args.get("distinct")
    if distinct:
        _parts(distinct)
    body = f"SELECT {'DISTINCT ' if distinct else ''}{writer.all(node.expressions)}"
    if node.args.get("from_"):
        body += f" {writer.write(node.args['from_'])}{_joined(writer, node)}"
        body += "".join(f" {writer.write(lateral)}" for lateral in node.args.get("laterals") or [])
    elif node.args.get("joins") or node.args.get("laterals"):
        raise InvalidRequest("A join or a LATERAL VIEW needs a FROM before it.")
    return _query(writer, node, body)


def _joined(writer: Writer, node: exp.Expr) -> str:
    return "".join(writer.write(join) for join in node.args.get("joins") or [])


def _set_operation(writer: Writer, node: exp.Expr) -> str:
    """Write a chain of set operations from its left end, without a level for each."""
    chain: list[str] = []
    left: exp.Expr = node
    while type(left) in _SET_OPERATIONS and (left is node or not any(left.args.get(name) for name in _QUERY_PARTS)):
        _parts(left, *_QUERY_PARTS, "this", "expression", "distinct")
        every = "" if left.args.get("distinct") else " ALL"
        chain.append(f" {_SET_OPERATIONS[type(left)]}{every} {_operand(writer, left.expression)}")
        left = left.this
    if len(chain) > MAX_TERMS:
        raise InvalidRequest(f"A query has at most {MAX_TERMS:,} set operations in a row.")
    return _query(writer, node, _operand(writer, left) + "".join(reversed(chain)))


def _operand(writer: Writer, node: exp.Expr) -> str:
    if isinstance(node, exp.Subquery):
        return writer.write(node)
    if not isinstance(node, exp.Query):
        raise _refused(node)
    clauses = any(node.args.get(name) for name in ("with_", "order", "limit", "offset"))
    return f"({writer.write(node)})" if clauses or type(node) in _SET_OPERATIONS else writer.write(node)


def _with(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "expressions", "recursive")
    return f"WITH {'RECURSIVE ' if node.args.get('recursive') else ''}{writer.all(node.expressions)}"


def _common_table(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "alias")
    if not isinstance(node.this, exp.Query):
        raise InvalidRequest(f"A query only selects; {node.this.key.upper()}{located(node)} is not allowed in it.")
    alias = node.args.get("alias")
    if not isinstance(node, exp.CTE) or not isinstance(alias, exp.TableAlias) or not alias.this:
        raise _refused(node)
    _parts(alias, "this", "columns")
    columns = f"({writer.all(alias.args['columns'])})" if alias.args.get("columns") else ""
    return f"{quoted(writer.common_table(node))}{columns} AS ({writer.write(node.this)})"


def _table_alias(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "columns")
    columns = node.args.get("columns")
    for column in columns or []:
        if not isinstance(column, exp.Identifier):
            raise _refused(column)
    name = writer.write(node.this) if node.this else ""
    return f"{name}({writer.all(columns)})" if columns else name


def _alias_of(writer: Writer, node: exp.Expr) -> str:
    alias = node.args.get("alias")
    return f" AS {writer.write(alias)}" if alias else ""


def _subquery(writer: Writer, node: exp.Expr) -> str:
    _parts(node, *_QUERY_PARTS, "this", "alias", "joins", "pivots")
    if not isinstance(node.this, exp.Query | exp.Table | exp.Values):
        raise _refused(node.this)
    body = f"({writer.write(node.this)}){_alias_of(writer, node)}{_pivots(writer, node)}{_joined(writer, node)}"
    return _query(writer, node, body)


def _from(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this")
    return f"FROM {_relation(writer, node)}"


def _relation(writer: Writer, node: exp.Expr) -> str:
    """Write what a FROM or a JOIN reads."""
    if not isinstance(node.this, exp.Table | exp.Subquery | exp.Values | exp.Lateral):
        raise _refused(node.this or node)
    return writer.write(node.this)


def _table(writer: Writer, node: exp.Expr) -> str:
    if range_of(node) is not None:
        _parts(node, "this", "alias", "joins")
        numbers = writer.all(node.this.expressions)
        return f"range({numbers}){_alias_of(writer, node)}{_joined(writer, node)}"
    if not isinstance(node, exp.Table) or not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise InvalidRequest(
            f"A table function{located(node)} is not allowed in a query. Name a dataset: catalog.schema.table."
        )
    _parts(node, "this", "db", "catalog", "alias", "joins", "pivots")
    name = writer.table(node)
    alias = _alias_of(writer, node)
    bare = alias and not node.args["alias"].this
    shown = f"{name}{f' AS {quoted(node.name)}' if not alias or bare else ''}{alias[4:] if bare else alias}"
    return f"{shown}{_pivots(writer, node)}{_joined(writer, node)}"


MAX_RANGE_ROWS: Final = 10_000_000
"""Most rows that ``range(...)`` makes."""
_LONGEST: Final = 2**63


def range_of(node: exp.Expr) -> range | None:
    """Return the numbers that ``range(...)`` in a FROM makes; None for any other table.

    Raises:
        InvalidRequest: it has other arguments than whole numbers, or too many rows.
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
    """Return a whole number that is written as one."""
    if isinstance(node, exp.Neg):
        inner = whole(node.this)
        return None if inner is None else -inner
    text = node.name.rstrip("lLsSyY") if isinstance(node, exp.Literal) and not node.is_string else ""
    return int(text) if text.isdecimal() else None


def _pivots(writer: Writer, node: exp.Expr) -> str:
    """Write PIVOT or UNPIVOT, which belongs to all that stands before it in a FROM: so that is one table here."""
    pivots = node.args.get("pivots")
    if not pivots:
        return ""
    select = node.parent.parent if isinstance(node.parent, exp.From) else None
    if select is None or any((select.args.get("joins"), select.args.get("laterals"), node.args.get("joins"))):
        raise InvalidRequest(
            f"PIVOT and UNPIVOT{located(node)} take one table or subquery. Put what is joined into a subquery before it."
        )
    return "".join(f" {writer.write(pivot)}" for pivot in pivots)


def _pivoted(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "expressions", "columns", "values")
    columns = writer.all(node.args["columns"])
    shown = f"({columns})" if len(node.args["columns"]) > 1 else columns
    return f"PIVOT ({writer.all(node.expressions)} FOR {shown} IN ({writer.all(node.args['values'])}))"


def _unpivoted(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "values", "expressions", "nulls", "alias")
    for one in node.expressions:
        inner = one.unalias()
        found = inner.expressions if isinstance(inner, exp.Tuple) else [inner.unnest()]
        if not all(isinstance(column, exp.Column) and isinstance(column.this, exp.Identifier) for column in found):
            raise InvalidRequest(f"UNPIVOT{located(one)} takes columns: UNPIVOT (value FOR name IN (a, b AS c)).")
    alias = node.args.get("alias")
    if alias:
        _parts(alias, "this")
    nulls = f"{node.args['nulls']} NULLS " if node.args.get("nulls") else ""
    values = writer.all(node.args["values"])
    shown = f"({values})" if len(node.args["values"]) > 1 else values
    columns = writer.all(node.expressions)
    return f"UNPIVOT {nulls}({shown} FOR {writer.write(node.this)} IN ({columns})){_alias_of(writer, node)}"


def _values(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "expressions", "alias")
    return f"VALUES {writer.all(node.expressions)}{_alias_of(writer, node)}"


def _join(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "side", "kind", "method", "on", "using")
    words = [str(node.args.get(name) or "") for name in ("method", "side", "kind")]
    name = " ".join([*filter(None, words), "JOIN"]) if words[-1] != COMMA_JOIN else "".join(words)
    if name not in _JOINS:
        raise InvalidRequest(f"{name}{located(node)} is not a join that a query can have. docs/sql.md lists them.")
    word = writer.comma if name == COMMA_JOIN else f" {name}"
    text = f"{word} {_relation(writer, node)}"
    if node.args.get("on"):
        text += f" ON {writer.write(node.args['on'])}"
    if node.args.get("using"):
        text += f" USING ({writer.all(node.args['using'])})"
    return text


def _lateral(writer: Writer, node: exp.Expr) -> str:
    """Write LATERAL VIEW of a function that makes rows, or LATERAL of such a function or of a subquery."""
    _parts(node, "this", "view", "outer", "alias")
    made = node.this
    if isinstance(made, exp.Anonymous):
        if made.name.lower() not in GENERATORS:
            raise InvalidRequest(
                f"Function {made.name}{located(made)} cannot stand after LATERAL. Those that can: "
                f"{', '.join(sorted(GENERATORS))}."
            )
    elif not isinstance(made, exp.Subquery) or node.args.get("view"):
        raise _refused(made or node)
    if not node.args.get("view"):
        if node.args.get("outer"):
            raise _refused(node)
        return f"LATERAL {writer.write(made)}{_alias_of(writer, node)}"
    alias = node.args.get("alias")
    name = f" {writer.write(alias.this)}" if alias and alias.this else ""
    columns = f" AS {writer.all(alias.args['columns'])}" if alias and alias.args.get("columns") else ""
    return f"LATERAL VIEW {'OUTER ' if node.args.get('outer') else ''}{writer.write(made)}{name}{columns}"


def _clause(word: str) -> "Write":
    def write(writer: Writer, node: exp.Expr) -> str:
        _parts(node, "this")
        return f"{word} {writer.write(node.this)}"

    return write


def _group(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "expressions", "all", "rollup", "cube", "grouping_sets")
    if node.args.get("all"):
        return "GROUP BY ALL"
    if not node.expressions:
        raise InvalidRequest("GROUP BY needs columns after it, or ALL.")
    after = ""
    for name, word in (("rollup", " WITH ROLLUP"), ("cube", " WITH CUBE"), ("grouping_sets", "")):
        for one in node.args.get(name) or []:
            if any(isinstance(term, exp.Cube | exp.Rollup | exp.GroupingSets) for term in node.expressions):
                raise _refused(one)
            after += word or f" {writer.write(one)}"
    return f"GROUP BY {writer.all(node.expressions)}{after}"


def _grouping(word: str) -> "Write":
    def write(writer: Writer, node: exp.Expr) -> str:
        _parts(node, "expressions")
        return f"{word} ({writer.all(node.expressions)})"

    return write


def _order(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "expressions")
    return f"ORDER BY {writer.all(node.expressions)}"


def _ordered(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "desc", "nulls_first")
    this = "ALL" if isinstance(node.this, exp.Var) and node.this.name == "ALL" else writer.write(node.this)
    return f"{this} {'DESC' if node.args.get('desc') else 'ASC'} NULLS {'FIRST' if node.args.get('nulls_first') else 'LAST'}"


def _limit(word: str) -> "Write":
    def write(writer: Writer, node: exp.Expr) -> str:
        _parts(node, "expression")
        return f"{word} {writer.write(node.expression)}"

    return write


def _window(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "partition_by", "order", "spec", "alias", "over")
    name = node.args.get("alias")
    rest = [node.args.get(part) for part in ("partition_by", "order", "spec")]
    if name and not any(rest):
        return f"{writer.write(node.this)} OVER {writer.write(name)}"
    if name:
        raise InvalidRequest(f"A window{located(node)} has a name or a definition, not both.")
    return f"{writer.write(node.this)} OVER ({_frame(writer, node)})"


def _named_window(writer: Writer, node: exp.Expr) -> str:
    if not isinstance(node, exp.Window) or not isinstance(node.this, exp.Identifier):
        raise _refused(node)
    _parts(node, "this", "partition_by", "order", "spec")
    return f"{writer.write(node.this)} AS ({_frame(writer, node)})"


def _frame(writer: Writer, node: exp.Expr) -> str:
    partition = node.args.get("partition_by")
    written = [f"PARTITION BY {writer.all(partition)}"] if partition else []
    written += [writer.write(node.args[part]) for part in ("order", "spec") if node.args.get(part)]
    return " ".join(written)


def _frame_bounds(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "kind", "start", "start_side", "end", "end_side")
    kind = str(node.args["kind"]).upper()
    if kind not in ("ROWS", "RANGE"):
        raise _refused(node)
    start = _bound(writer, node, "start")
    return f"{kind} BETWEEN {start} AND {_bound(writer, node, 'end')}" if node.args.get("end") else f"{kind} {start}"


def _bound(writer: Writer, node: exp.Expr, which: str) -> str:
    value, side = node.args.get(which), str(node.args.get(f"{which}_side") or "").upper()
    if value == "CURRENT ROW" and not side:
        return "CURRENT ROW"
    if side not in ("PRECEDING", "FOLLOWING"):
        raise InvalidRequest("A window's frame goes from n PRECEDING, CURRENT ROW or n FOLLOWING to another of them.")
    return f"UNBOUNDED {side}" if value == "UNBOUNDED" else f"{writer.write(value)} {side}"


def _column(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "table", "db", "catalog")
    parts = [node.args[part] for part in ("catalog", "db", "table", "this") if node.args.get(part)]
    if not all(isinstance(part, exp.Identifier) for part in parts[:-1]) or not isinstance(
        parts[-1], exp.Identifier | exp.Star
    ):
        raise _refused(node)
    names = [part.name.lower() for part in parts if isinstance(part, exp.Identifier)]
    if len(parts) == 1 and names and names[0] in SESSION_NAMES - writer.columns:
        raise InvalidRequest(
            f"The name {parts[0].name}{located(node)} asks the engine about itself, which is not allowed. If it is a column, "
            f"put the name of its table before it: t.{parts[0].name}."
        )
    if hidden := [name for name in names if name in HIDDEN_COLUMNS]:
        raise InvalidRequest(f"The column {hidden[0]}{located(node)} is not of the dataset and not allowed.")
    if len(parts) == 1 and names and names[0] in VOLATILE_NAMES:
        writer.volatile.add(names[0])
    if tuple(part.name for part in parts[:-1]) in writer.datasets:
        parts = parts[-2:]  # a dataset's columns go by the name of its table
    return writer.all(parts, ".")


def _star(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "except_")
    left_out = node.args.get("except_")
    return f"* EXCEPT ({writer.all(left_out)})" if left_out else "*"


def _dot(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expression")
    if not isinstance(node.expression, exp.Identifier):
        raise InvalidRequest(
            f"{_shown(node.expression)}{located(node.expression)} stands after a point, where only the name of a field can "
            "stand. Functions are named without a schema."
        )
    if node.expression.name.lower() in HIDDEN_COLUMNS:
        raise InvalidRequest(f"The column {node.expression.name}{located(node)} is not of the dataset and not allowed.")
    this = writer.write(node.this)
    return f"{this}.{writer.write(node.expression)}"


def _bracket(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expressions")
    if len(node.expressions) != 1:
        raise InvalidRequest(f"One value stands in brackets{located(node)}, as in x[0] or x['key'].")
    return f"{writer.write(node.this)}[{writer.write(node.expressions[0])}]"


def _alias(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "alias")
    return f"{writer.write(node.this)} AS {writer.write(node.args['alias'])}"


def _aliases(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expressions")
    return f"{writer.write(node.this)} AS ({writer.all(node.expressions)})"


def _paren(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this")
    return f"({writer.write(node.this)})"


def _tuple(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "expressions")
    if not node.expressions and not isinstance(node.parent, exp.GroupingSets):
        raise InvalidRequest("There is a pair of parentheses with nothing in it.")
    return f"({writer.all(node.expressions)})"


def _literal(writer: Writer, node: exp.Expr) -> str:  # noqa: ARG001
    _parts(node, "this", "is_string")
    return string(str(node.this)) if node.args.get("is_string") else str(node.this)


def _hex(writer: Writer, node: exp.Expr) -> str:  # noqa: ARG001
    _parts(node, "this")
    return f"X'{node.this}'"


def _boolean(writer: Writer, node: exp.Expr) -> str:  # noqa: ARG001
    return "TRUE" if node.this else "FALSE"


def _null(writer: Writer, node: exp.Expr) -> str:  # noqa: ARG001
    _parts(node)
    return "NULL"


def _placeholder(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this")
    if not isinstance(node.this, str) or not node.this.isidentifier() or not node.this.isascii():
        raise InvalidRequest(f"A parameter{located(node)} is a colon and a name, as in :customer.")
    writer.parameters.setdefault(node.this, place_of(node) or Place(1, 1))
    return writer.parameter(node.this)


def _cast(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "to", "safe")
    word = "TRY_CAST" if node.args.get("safe") else "CAST"
    return f"{word}({writer.write(node.this)} AS {writer.write(node.args['to'])})"


def _type(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expressions", "nested")
    kind = getattr(node.this, "name", str(node.this))
    inner = node.expressions
    if kind in ("ARRAY", "MAP", "STRUCT") and node.args.get("nested") and inner:
        return f"{kind}<{writer.all(inner)}>"
    if kind not in TYPES or (inner and kind != "DECIMAL"):
        raise InvalidRequest(
            f"The type {kind}{located(node)} is not one that a query can cast to: {', '.join(sorted(set(TYPES.values())))}, "
            "ARRAY<...>, MAP<..., ...>, STRUCT<name: ...>."
        )
    return f"{TYPES[kind]}({writer.all(inner)})" if inner else TYPES[kind]


def _field_type(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "kind")
    if not node.args.get("kind"):
        raise _refused(node)
    return f"{writer.write(node.this)}: {writer.write(node.args['kind'])}"


def _type_number(writer: Writer, node: exp.Expr) -> str:  # noqa: ARG001
    _parts(node, "this")
    digits = str(node.this.this) if isinstance(node.this, exp.Literal) and not node.this.is_string else ""
    if not digits.isdecimal() or len(digits) > 2:  # noqa: PLR2004
        raise _refused(node)
    return digits


def _case(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "ifs", "default")
    subject = f" {writer.write(node.this)}" if node.this else ""
    branches = ""
    for branch in node.args["ifs"]:
        _parts(branch, "this", "true")
        branches += f" WHEN {writer.write(branch.this)} THEN {writer.write(branch.args['true'])}"
    default = f" ELSE {writer.write(node.args['default'])}" if node.args.get("default") else ""
    return f"CASE{subject}{branches}{default} END"


def _not(writer: Writer, node: exp.Expr) -> str:
    """Write NOT: inside of a predicate where both places are read as one, before it where they are not.

    ``NOT a LIKE ANY (b, c)`` holds if no pattern fits, ``a NOT LIKE ANY (b, c)`` if one of them does not.
    """
    _parts(node, "this")
    inside = _NEGATED.get(type(node.this))
    return inside(writer, node.this, "NOT ") if inside else f"NOT {writer.write(node.this)}"


def _is(writer: Writer, node: exp.Expr, negation: str = "") -> str:
    _parts(node, "this", "expression")
    if isinstance(node.this, _PREDICATES):
        raise _two_in_a_row(node)
    if not isinstance(node.expression, exp.Null | exp.Boolean):
        raise _refused(node)
    return f"{writer.write(node.this)} IS {negation}{writer.write(node.expression)}"


def _in(writer: Writer, node: exp.Expr, negation: str = "") -> str:
    _parts(node, "this", "expressions", "query")
    _check_operands(node, node.this)
    query = node.args.get("query")
    if query:
        inner = query.this if isinstance(query, exp.Subquery) else query
        if isinstance(query, exp.Subquery):
            _parts(query, "this")
        if not isinstance(inner, exp.Query):
            raise _refused(inner)
        return f"{writer.write(node.this)} {negation}IN ({writer.write(inner)})"
    if not node.expressions:
        raise InvalidRequest(f"IN{located(node)} needs values: a IN (1, 2).")
    return f"{writer.write(node.this)} {negation}IN ({writer.all(node.expressions)})"


def _between(writer: Writer, node: exp.Expr, negation: str = "") -> str:
    _parts(node, "this", "low", "high")
    _check_operands(node, node.this, node.args["low"], node.args["high"])
    bounds = f"{writer.write(node.args['low'])} AND {writer.write(node.args['high'])}"
    return f"{writer.write(node.this)} {negation}BETWEEN {bounds}"


def _like(writer: Writer, node: exp.Expr, negation: str = "") -> str:
    _parts(node, "this", "expression", "negate")
    _check_operands(node, node.this, node.expression)
    negation = "NOT " if node.args.get("negate") else negation
    return f"{writer.write(node.this)} {negation}{_LIKES[type(node)]} {writer.write(node.expression)}"


def _escape(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expression")
    if type(node.this) not in _LIKES:
        raise _refused(node)
    return f"{_like(writer, node.this)} ESCAPE {writer.write(node.expression)}"


def _exists(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this")
    inner = node.this.this if isinstance(node.this, exp.Subquery) else node.this
    if not isinstance(inner, exp.Query):
        raise _refused(inner)
    return f"EXISTS ({writer.write(inner)})"


def _binary(writer: Writer, node: exp.Expr) -> str:
    """Write a chain of operators from its left end, without a level for each."""
    chain: list[str] = []
    left: exp.Expr = node
    while type(left) in _BINARY:
        _parts(left, "this", "expression", "safe", "typed")
        if isinstance(left, _COMPARISONS):
            _check_comparison(left)
        elif not isinstance(left, exp.Connector) and isinstance(left.expression, exp.Not):
            raise _two_in_a_row(left)
        chain.append(f" {_BINARY[type(left)]} {writer.write(left.expression)}")
        left = left.this
        if len(chain) > MAX_TERMS:
            raise InvalidRequest(f"An expression has at most {MAX_TERMS:,} operators in a row. Use IN for many values.")
    return writer.write(left) + "".join(reversed(chain))


def _check_comparison(node: exp.Expr) -> None:
    """Refuse a comparison beside another one where people and engines may differ about which comes first."""
    mixed = isinstance(node.this, _EQUALITIES) and not isinstance(node, _EQUALITIES)
    if mixed or isinstance(node.this, _PREDICATES) or isinstance(node.expression, (*_PREDICATES, *_COMPARISONS)):
        raise _two_in_a_row(node)


def _check_operands(node: exp.Expr, *operands: exp.Expr | None) -> None:
    """Refuse a predicate with a comparison or another predicate beside it: ``a = b IN (c)``."""
    if any(isinstance(one, (*_PREDICATES, *_COMPARISONS)) for one in operands):
        raise _two_in_a_row(node)


def _two_in_a_row(node: exp.Expr) -> InvalidRequest:
    return InvalidRequest(
        f"Two comparisons in a row{located(node)} can be read in two ways. Put one of them in parentheses: (a = b) = c."
    )


def _quantified(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expressions")
    if not isinstance(node.parent, exp.Like | exp.ILike):
        raise _refused(node)
    if not node.expressions:
        raise InvalidRequest(f"{node.name}{located(node)} needs patterns: a LIKE ANY ('x%', 'y%').")
    if any(isinstance(pattern, exp.Query) for pattern in node.expressions):
        raise InvalidRequest(f"{node.name}{located(node)} takes patterns and no SELECT.")
    return f"{node.this} ({writer.all(node.expressions)})"


def _unary(sign: str) -> "Write":
    def write(writer: Writer, node: exp.Expr) -> str:
        _parts(node, "this")
        return f"{sign} {writer.write(node.this)}"

    return write


def _interval(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "unit")
    unit = node.args.get("unit")
    if not isinstance(node.this.this if isinstance(node.this, exp.Neg) else node.this, exp.Literal):
        raise InvalidRequest(f"After INTERVAL{located(node)} stands a number or a string. make_interval takes columns.")
    if unit is None:
        return f"INTERVAL {writer.write(node.this)}"
    spans = [unit.this, unit.expression] if isinstance(unit, exp.IntervalSpan) else [unit]
    if not all(isinstance(one, exp.Var) for one in spans):
        raise _refused(node)
    return f"INTERVAL {writer.write(node.this)} {' TO '.join(one.name for one in spans)}"


def _extract(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expression")
    name = node.name.upper()
    if name not in FIELDS_OF_TIME:
        raise InvalidRequest(
            f"EXTRACT{located(node)} knows no field {node.name}. Known: {', '.join(sorted(FIELDS_OF_TIME))}."
        )
    writer.functions.add("extract")
    return f"EXTRACT({name} FROM {writer.write(node.expression)})"


def _trim(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expression", "position")
    writer.functions.add("trim")
    position = f"{node.args['position']} " if node.args.get("position") in ("BOTH", "LEADING", "TRAILING") else ""
    letters = f"{writer.write(node.expression)} " if node.args.get("expression") else ""
    return f"TRIM({position}{letters}FROM {writer.write(node.this)})"


WITH_UNIT: Final = frozenset({"date_add", "date_diff", "dateadd", "datediff"})
WITH_UNIT_ARGUMENTS: Final = 3
UNITS_OF_TIME: Final = frozenset(
    ["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFYEAR", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"]
)


def _function(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expressions")
    name = node.name.lower()
    if name not in FUNCTIONS:
        raise InvalidRequest(
            f"Function {node.name}{located(node)} is not allowed in a query. docs/sql.md lists those that are."
        )
    if any(isinstance(argument, exp.Query) and not isinstance(argument, exp.Subquery) for argument in node.expressions):
        raise InvalidRequest(f"A SELECT inside function {node.name}{located(node)} needs parentheses of its own.")
    writer.functions.add(name)
    if name in VOLATILE:
        writer.volatile.add(name)
    unit, rest = _unit_of(name, node.expressions)
    return f"{name}({unit}{writer.all(rest)})"


def _unit_of(name: str, arguments: list[exp.Expr]) -> tuple[str, list[exp.Expr]]:
    """Return the unit that stands before two other arguments, as in ``dateadd(DAY, 1, d)``, and the rest."""
    first = arguments[0] if arguments else None
    is_unit = isinstance(first, exp.Column) and len(first.parts) == 1 and first.name.upper() in UNITS_OF_TIME
    if name not in WITH_UNIT or len(arguments) != WITH_UNIT_ARGUMENTS or not is_unit:
        return "", arguments
    return f"{arguments[0].name.upper()}, ", arguments[1:]


def _distinct(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "expressions")
    return f"DISTINCT {writer.all(node.expressions)}"


def _lambda(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expressions")
    if not all(isinstance(one, exp.Identifier) for one in node.expressions):
        raise _refused(node)
    names = writer.all(node.expressions)
    return f"{names if len(node.expressions) == 1 else f'({names})'} -> {writer.write(node.this)}"


def _filter(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expression")
    return f"{writer.write(node.this)} FILTER ({writer.write(node.expression)})"


def _within(writer: Writer, node: exp.Expr) -> str:
    _parts(node, "this", "expression")
    return f"{writer.write(node.this)} WITHIN GROUP ({writer.write(node.expression)})"


def _nulls(word: str) -> "Write":
    def write(writer: Writer, node: exp.Expr) -> str:
        _parts(node, "this")
        return f"{writer.write(node.this)} {word} NULLS"

    return write


Write = Callable[[Writer, exp.Expr], str]
_NEGATED: Final[dict[type[exp.Expr], Callable[[Writer, exp.Expr, str], str]]] = {
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.RegexpLike: _like,
}
WRITERS: Final[dict[type[exp.Expr], Write]] = {
    exp.Alias: _alias,
    exp.Aliases: _aliases,
    exp.Anonymous: _function,
    exp.Between: _between,
    exp.BitwiseNot: _unary("~"),
    exp.Boolean: _boolean,
    exp.Bracket: _bracket,
    exp.CTE: _common_table,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.Column: _column,
    exp.ColumnDef: _field_type,
    exp.Cube: _grouping("CUBE"),
    exp.DataType: _type,
    exp.DataTypeParam: _type_number,
    exp.Distinct: _distinct,
    exp.Dot: _dot,
    exp.Escape: _escape,
    exp.Exists: _exists,
    exp.Extract: _extract,
    exp.Filter: _filter,
    exp.From: _from,
    exp.Group: _group,
    exp.GroupingSets: _grouping("GROUPING SETS"),
    exp.Having: _clause("HAVING"),
    exp.HexString: _hex,
    exp.Identifier: _identifier,
    exp.IgnoreNulls: _nulls("IGNORE"),
    exp.In: _in,
    exp.Interval: _interval,
    exp.Is: _is,
    exp.Join: _join,
    exp.Lambda: _lambda,
    exp.Lateral: _lateral,
    exp.Limit: _limit("LIMIT"),
    exp.Literal: _literal,
    exp.Neg: _unary("-"),
    exp.Not: _not,
    exp.Null: _null,
    exp.Offset: _limit("OFFSET"),
    exp.Order: _order,
    exp.Ordered: _ordered,
    exp.Paren: _paren,
    exp.Placeholder: _placeholder,
    exp.RespectNulls: _nulls("RESPECT"),
    exp.Qualify: _clause("QUALIFY"),
    exp.Rollup: _grouping("ROLLUP"),
    exp.Select: _select,
    exp.Star: _star,
    exp.Subquery: _subquery,
    exp.Table: _table,
    exp.TableAlias: _table_alias,
    exp.Trim: _trim,
    exp.TryCast: _cast,
    exp.Tuple: _tuple,
    exp.Values: _values,
    exp.Where: _clause("WHERE"),
    exp.Window: _window,
    exp.WithinGroup: _within,
    exp.WindowSpec: _frame_bounds,
    exp.With: _with,
    Pivoted: _pivoted,
    Positive: _unary("+"),
    Quantified: _quantified,
    Unpivoted: _unpivoted,
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_LIKES, _like),
    **dict.fromkeys(_SET_OPERATIONS, _set_operation),
}
"""Every kind of node that a query can have, and how it is written."""
