"""Writes a checked tree as SQL text that can be parsed in one way only.

sqlglot's generator writes the tree. It is overridden if its text depends on a dialect, is ambiguous, or differs from
the syntax of `parser`. `syntax` has checked the tree before.

* Names are written in backticks.
* Strings have one kind of quote, and no character that an engine replaces.
* NULLS FIRST or LAST is always written.
* Each table has an alias.
"""

# ruff: noqa: RUF012, ARG005, D102, FBT001, FBT002 - the table and the methods are those of the generator
from collections.abc import Callable
from typing import Final

from sqlglot import exp
from sqlglot.errors import ErrorLevel
from sqlglot.generator import Generator

from siltstone.query.gate.allowlist import BINARY_OPERATORS, LIKES, TYPES
from siltstone.query.gate.parser import COMMA_JOIN, DIALECT, Pivoted, Positive, Quantified, Unpivoted
from siltstone.query.gate.syntax import join_name, unit_of


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
    r"""Return a string literal in the form that every engine parses in the same way.

    >>> string("it's ${x}")
    "'it\\'s \\u0024{x}'"
    """
    return f"'{value.translate(_STRING_CODES)}'"


class SqlWriter(Generator):
    """Writes one tree."""

    TRANSFORMS = {
        **Generator.TRANSFORMS,
        **dict.fromkeys(BINARY_OPERATORS, lambda self, node: self.operators(node)),
        **dict.fromkeys((*LIKES, exp.Between, exp.In, exp.Is), lambda self, node: self.predicate(node)),
        exp.BitwiseNot: lambda self, node: f"~ {self.sql(node.this)}",
        exp.Bracket: lambda self, node: f"{self.sql(node.this)}[{self.all(node)}]",
        **dict.fromkeys((exp.Cast, exp.TryCast), lambda self, node: self.cast(node)),
        exp.ColumnDef: lambda self, node: f"{self.sql(node.this)}: {self.sql(node.kind)}",
        **dict.fromkeys((exp.Cube, exp.Rollup), lambda self, node: f"{node.key.upper()} ({self.all(node)})"),
        exp.Exists: lambda self, node: f"EXISTS ({self.inner(node.this)})",
        exp.Extract: lambda self, node: f"EXTRACT({node.name.upper()} FROM {self.sql(node.expression)})",
        exp.Filter: lambda self, node: f"{self.sql(node.this)} FILTER ({self.sql(node.expression).strip()})",
        exp.HexString: lambda self, node: f"X'{node.this}'",
        exp.Identifier: lambda self, node: quoted(node.this),
        exp.Literal: lambda self, node: string(str(node.this)) if node.is_string else str(node.this),
        exp.Neg: lambda self, node: f"- {self.sql(node.this)}",
        exp.Placeholder: lambda self, node: self.parameter(node.this),
        Pivoted: lambda self, node: self.pivoted(node),
        Positive: lambda self, node: f"+ {self.sql(node.this)}",
        Quantified: lambda self, node: f"{node.this} ({self.all(node)})",
        Unpivoted: lambda self, node: self.unpivoted(node),
    }
    AFTER_HAVING_MODIFIER_TRANSFORMS = {
        "qualify": lambda self, node: self.sql(node, "qualify"),
        "windows": lambda self, node: f" WINDOW {self.all(node, 'windows')}" if node.args.get("windows") else "",
    }
    WRAP_DERIVED_VALUES = False

    def __init__(
        self,
        *,
        table: Callable[[exp.Table], str],
        common_table: Callable[[exp.CTE], str],
        parameter: Callable[[str], str] = ":{}".format,
        comma: str = COMMA_JOIN,
        datasets: frozenset[tuple[str, str, str]] = frozenset(),
    ) -> None:
        """Prepare to write one text.

        Args:
            table: returns the name under which a table is read.
            common_table: returns the name of a common table expression.
            parameter: returns the text of a parameter.
            comma: the text of the comma between two tables. With one Spark setting the comma binds weaker than JOIN.
            datasets: names that are left out before a column, except for their last part.
        """
        super().__init__(dialect=DIALECT, comments=False, unsupported_level=ErrorLevel.IGNORE)
        self.table, self.common_table, self.parameter = table, common_table, parameter
        self.comma, self.datasets = comma, datasets

    def write(self, node: exp.Expr) -> str:
        """Return the text of a tree."""
        return self.generate(node, copy=False)

    def all(self, node: exp.Expr, part: str = "expressions") -> str:
        """Return the text of several nodes, with commas."""
        return ", ".join(self.sql(item) for item in node.args.get(part) or [])

    def inner(self, query: exp.Expr) -> str:
        """Return the text of a query without its own parentheses."""
        return self.sql(query.this if isinstance(query, exp.Subquery) else query)

    def alias(self, node: exp.Expr) -> str:
        """Return `` AS name(columns)``, or an empty text."""
        return f" AS {self.sql(node, 'alias')}" if node.args.get("alias") else ""

    def operators(self, node: exp.Expr) -> str:
        """Write a chain of operators from its left end, without recursion."""
        chain: list[str] = []
        while type(node) in BINARY_OPERATORS:
            chain.append(f" {BINARY_OPERATORS[type(node)]} {self.sql(node.expression)}")
            node = node.this
        return self.sql(node) + "".join(reversed(chain))

    def predicate(self, node: exp.Expr, negation: str = "") -> str:
        negation = "NOT " if node.args.get("negate") else negation
        match node:
            case exp.Is():
                return f"{self.sql(node.this)} IS {negation}{self.sql(node.expression)}"
            case exp.In():
                query = node.args.get("query")
                return f"{self.sql(node.this)} {negation}IN ({self.inner(query) if query else self.all(node)})"
            case exp.Between():
                bounds = f"{self.sql(node, 'low')} AND {self.sql(node, 'high')}"
                return f"{self.sql(node.this)} {negation}BETWEEN {bounds}"
            case _:
                return f"{self.sql(node.this)} {negation}{LIKES[type(node)]} {self.sql(node.expression)}"

    def cast(self, node: exp.Expr) -> str:
        return f"{'TRY_CAST' if node.args.get('safe') else 'CAST'}({self.sql(node.this)} AS {self.sql(node, 'to')})"

    def not_sql(self, expression: exp.Not) -> str:
        """Write NOT: inside a predicate if both positions mean the same, otherwise before it.

        ``NOT a LIKE ANY (b, c)`` holds if no pattern matches, ``a NOT LIKE ANY (b, c)`` if one of them does not match.
        """
        inside = isinstance(expression.this, exp.Is | exp.In | exp.Between | exp.RegexpLike)
        return self.predicate(expression.this, "NOT ") if inside else f"NOT {self.sql(expression.this)}"

    def anonymous_sql(self, expression: exp.Anonymous) -> str:
        """Write a function. A unit before its other arguments is not quoted as a name."""
        unit = unit_of(expression)
        arguments = [self.sql(argument) for argument in expression.expressions[1 if unit else 0 :]]
        return f"{expression.name.lower()}({', '.join([unit, *arguments] if unit else arguments)})"

    def ordered_sql(self, expression: exp.Ordered) -> str:
        direction = "DESC" if expression.args.get("desc") else "ASC"
        return (
            f"{self.sql(expression.this)} {direction} NULLS {'FIRST' if expression.args.get('nulls_first') else 'LAST'}"
        )

    def datatype_sql(self, expression: exp.DataType) -> str:
        kind, inner = getattr(expression.this, "name", str(expression.this)), self.all(expression)
        if inner and kind not in TYPES:
            return f"{kind}<{inner}>"
        return f"{TYPES[kind]}({inner})" if inner else TYPES[kind]

    def interval_sql(self, expression: exp.Interval) -> str:
        return " ".join(filter(None, ["INTERVAL", self.sql(expression.this), self.sql(expression, "unit")]))

    def trim_sql(self, expression: exp.Trim) -> str:
        before = [expression.args.get("position"), self.sql(expression, "expression")]
        return f"TRIM({' '.join([*filter(None, before), 'FROM', self.sql(expression.this)])})"

    def lambda_sql(self, expression: exp.Lambda, arrow_sep: str = "->", wrap: bool = True) -> str:
        del wrap
        names = self.all(expression)
        return f"{names if len(expression.expressions) == 1 else f'({names})'} {arrow_sep} {self.sql(expression.this)}"

    def windowspec_sql(self, expression: exp.WindowSpec) -> str:
        bounds = [
            " ".join(
                filter(None, [self.sql(expression, which), str(expression.args.get(f"{which}_side") or "").upper()])
            )
            for which in ("start", "end")
        ]
        return f"{expression.args['kind'].upper()} {f'BETWEEN {bounds[0]} AND {bounds[1]}' if bounds[1] else bounds[0]}"

    def group_sql(self, expression: exp.Group) -> str:
        if expression.args.get("all"):
            return " GROUP BY ALL"
        words = [f"WITH {name.upper()}" for name in ("rollup", "cube") if expression.args.get(name)]
        after = [*words, *(self.sql(sets) for sets in expression.args.get("grouping_sets") or [])]
        return " ".join([" GROUP BY", self.all(expression), *after])

    def column_sql(self, expression: exp.Column) -> str:
        parts = [expression.args[part] for part in ("catalog", "db", "table", "this") if expression.args.get(part)]
        if tuple(part.name for part in parts[:-1]) in self.datasets:
            parts = parts[-2:]  # a dataset's columns are qualified with the name of its table
        return ".".join(self.sql(part) for part in parts)

    def cte_sql(self, expression: exp.CTE) -> str:
        columns = self.all(expression.args["alias"], "columns")
        name = quoted(self.common_table(expression))
        return f"{name}{f'({columns})' if columns else ''} AS ({self.sql(expression.this)})"

    def table_sql(self, expression: exp.Table, sep: str = " AS ") -> str:
        joins = "".join(self.sql(join) for join in expression.args.get("joins") or [])
        if isinstance(expression.this, exp.Anonymous):
            return f"{self.sql(expression.this)}{self.alias(expression)}{joins}"
        alias = expression.args.get("alias")
        name = "" if alias and alias.this else quoted(expression.name)
        return f"{self.table(expression)}{sep}{name}{self.sql(alias)}{self.all(expression, 'pivots')}{joins}"

    def join_sql(self, expression: exp.Join, join_op: str | None = None) -> str:
        del join_op
        name = join_name(expression)
        on = f" ON {self.sql(expression, 'on')}" if expression.args.get("on") else ""
        using = f" USING ({self.all(expression, 'using')})" if expression.args.get("using") else ""
        return f"{self.comma if name == COMMA_JOIN else f' {name}'} {self.sql(expression.this)}{on}{using}"

    def lateral_sql(self, expression: exp.Lateral) -> str:
        if not expression.args.get("view"):
            return f"LATERAL {self.sql(expression.this)}{self.alias(expression)}"
        alias = expression.args.get("alias")
        name = f" {self.sql(alias.this)}" if alias and alias.this else ""
        columns = f" AS {self.all(alias, 'columns')}" if alias and alias.args.get("columns") else ""
        return f" LATERAL VIEW {'OUTER ' if expression.args.get('outer') else ''}{self.sql(expression.this)}{name}{columns}"

    def pivoted(self, node: exp.Expr) -> str:
        return f" PIVOT ({self.all(node)} FOR {self.names(node, 'columns')} IN ({self.all(node, 'values')}))"

    def unpivoted(self, node: exp.Expr) -> str:
        nulls = f"{node.args['nulls']} NULLS " if node.args.get("nulls") else ""
        listed = f"({self.names(node, 'values')} FOR {self.sql(node.this)} IN ({self.all(node)}))"
        return f" UNPIVOT {nulls}{listed}{self.alias(node)}"

    def names(self, node: exp.Expr, part: str) -> str:
        """Return one name, or several in parentheses."""
        return f"({self.all(node, part)})" if len(node.args[part]) > 1 else self.all(node, part)
