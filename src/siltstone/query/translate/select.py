"""Translation of queries: SELECT with all its clauses, set operations, common table expressions, subqueries.

In the translation, every source has a generated alias (``s1``) and every column of a subquery a generated name
(``c1``). So DuckDB never resolves a user's name. Names are resolved here, by Spark's rules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from sqlglot import exp

import siltstone.query.translate.functions  # noqa: F401  # its rules
from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import expanded_tables
from siltstone.query.gate.syntax import range_of
from siltstone.query.translate import types
from siltstone.query.translate.aggregates import direction, is_aggregated, order_key
from siltstone.query.translate.expressions import ExpressionTranslator, check_args, unified
from siltstone.query.translate.outside import Unsupported
from siltstone.query.translate.scopes import Scope, ScopeColumn, ScopeSource, source_of
from siltstone.query.translate.typed_sql import TypedSql, cast_sql, parameter, quoted
from siltstone.query.translate.types import BOOLEAN

MAX_LIMIT: Final = 2**31 - 1
MAX_COLUMNS: Final = 4_096
"""Most columns of one SELECT. With ``*`` of a self join they double with every common table expression."""
MAX_SOURCES: Final = 100
"""Most tables, subqueries and common table expressions in a query. DuckDB plans joins in more than quadratic time."""
MAX_INLINED: Final = 16
"""Most tables of a query after inlining. Above it, common table expressions are computed once instead of inlined."""
MAX_SQL_CHARS: Final = 2_000_000
"""Longest translation of a query."""
_SELECT_ARGS: Final = frozenset(
    {
        "expressions",
        "distinct",
        "from_",
        "joins",
        "where",
        "group",
        "having",
        "order",
        "limit",
        "offset",
        "with_",
        "windows",
    }
)
_SET_ARGS: Final = frozenset({"this", "expression", "distinct", "order", "limit", "offset", "with_"})
_TABLE_ARGS: Final = frozenset({"this", "db", "catalog", "alias"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A dataset as DuckDB stores it."""

    sql: str
    """Its text in FROM."""
    schema: pa.Schema
    """Its columns; each has the same name in DuckDB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """A query in DuckDB's SQL."""

    sql: str
    schema: pa.Schema
    """The columns of the result, with Spark's names and types. A name may occur twice."""
    parameters: tuple[str, ...]
    """Placeholders in the SQL."""
    ordered: bool
    """True if the query defines the order of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A translated query, with its result columns c1, c2, ..."""

    sql: str
    pieces: tuple[TypedSql, ...]
    correlated: bool = False

    def source(self, alias: str, parts: tuple[str, ...], names: Sequence[str] = ()) -> ScopeSource:
        """Return the query as a source under an alias."""
        shown: list[str | None] = list(names) or [piece.name for piece in self.pieces]
        if len(shown) != len(self.pieces):
            raise Unsupported("an alias with another number of columns")
        rows = [(shown[i], f"c{i + 1}", piece.kind) for i, piece in enumerate(self.pieces)]
        return source_of(alias, parts, rows)


Tables = Callable[[exp.Table], Relation]
Ctes = Mapping[str, tuple[str, Columns]]


def translate(
    tree: exp.Query, *, tables: Tables, parameters: Mapping[str, object] | None = None, limit: int | None = None
) -> Translated:
    """Translate a whole query.

    Args:
        tree: the tree that the gate has admitted.
        tables: returns the dataset that a table of three parts names.
        parameters: the values of the placeholders.
        limit: most rows to return.

    Raises:
        Unsupported: it is not in the subset.
    """
    queries = SelectTranslator(tables, dict(parameters or {}), materialized=expanded_tables(tree) > MAX_INLINED)
    done = queries.query(tree, {}, None, top=True, limit=limit)
    for piece in done.pieces:
        if piece.name is None:
            raise Unsupported("a column without a name (give it one with AS)")
        if piece.kind == types.NULL:
            raise Unsupported("a column of nothing but NULL")
    schema = pa.schema([pa.field(str(piece.name), piece.kind) for piece in done.pieces])
    return Translated(
        sql=done.sql,
        schema=schema,
        parameters=tuple(sorted(queries.used)),
        ordered=bool(tree.args.get("order")),
    )


@dataclass(slots=True)
class SelectTranslator:
    """Translates queries. A query and its subqueries share one counter for aliases."""

    tables: Tables
    parameters: Mapping[str, object]
    materialized: bool = False
    """True if common table expressions are computed once instead of inlined."""
    used: set[str] = field(default_factory=set)
    count: int = 0
    sources: int = 0

    def alias(self, letter: str) -> str:
        """Return an unused alias."""
        self.count += 1
        return f"{letter}{self.count}"

    def parameter(self, name: str) -> TypedSql:
        """Return a placeholder with the type of its value."""
        if name not in self.parameters:
            raise Unsupported(f"the parameter {name}")
        piece = parameter(name, self.parameters[name])
        if "$" in piece.sql:
            self.used.add(name)
        return piece

    # ---- queries --------------------------------------------------------------------------------------------------

    def query(
        self, node: exp.Expr, ctes: Ctes, outer: Scope | None, *, top: bool = False, limit: int | None = None
    ) -> Columns:
        """Translate a query of any shape."""
        if isinstance(node, exp.Subquery):
            check_args(node, frozenset({"this"}))
            return self.query(node.this, ctes, outer, top=top, limit=limit)
        with_sql, known = self._with(node.args.get("with_"), ctes)
        if isinstance(node, exp.Select):
            done = self._select(node, known, outer, top=top, limit=limit)
        elif isinstance(node, exp.SetOperation):
            done = self._set_operation(node, known, outer, top=top, limit=limit)
        else:
            raise Unsupported(node.key.upper())
        if len(with_sql) + len(done.sql) > MAX_SQL_CHARS:
            raise Unsupported(f"a question of more than {MAX_SQL_CHARS:,} characters once it is translated")
        return Columns(sql=f"{with_sql}{done.sql}", pieces=done.pieces, correlated=done.correlated)

    def _with(self, node: exp.Expr | None, ctes: Ctes) -> tuple[str, Ctes]:
        if node is None:
            return "", ctes
        check_args(node, frozenset({"expressions"}))
        known, parts = dict(ctes), []
        for cte in node.expressions:
            check_args(cte, frozenset({"this", "alias"}))
            check_args(cte.args["alias"], frozenset({"this", "columns"}))
            done = self.query(cte.this, known, None)
            alias = self.alias("w")
            names = [column.name for column in cte.args["alias"].args.get("columns") or ()]
            if names:
                if len(names) != len(done.pieces):
                    raise Unsupported("an alias with another number of columns")
                pieces = tuple(piece.named(name) for piece, name in zip(done.pieces, names, strict=True))
                done = Columns(sql=done.sql, pieces=pieces)
            known[cte.alias.lower()] = (alias, done)
            parts.append(f"{alias} AS {'MATERIALIZED ' if self.materialized else ''}({done.sql})")
        return f"WITH {', '.join(parts)} ", known

    def _set_operation(
        self, node: exp.SetOperation, ctes: Ctes, outer: Scope | None, *, top: bool, limit: int | None
    ) -> Columns:
        check_args(node, _SET_ARGS)
        del outer
        left, right = self.query(node.this, ctes, None), self.query(node.expression, ctes, None)
        if len(left.pieces) != len(right.pieces):
            raise Unsupported("a set operation of other numbers of columns")
        kinds: list[pa.DataType] = []
        for one, other in zip(left.pieces, right.pieces, strict=True):
            kinds.append(unified([TypedSql(sql="", kind=one.kind), TypedSql(sql="", kind=other.kind)])[1])
        word = node.key.upper()
        if not node.args.get("distinct"):
            word += " ALL"
        elif not all(types.is_grouped(kind) for kind in kinds):
            raise Unsupported(f"{word} of such values")
        if not isinstance(node, exp.Union) and not all(types.is_grouped(kind) for kind in kinds):
            raise Unsupported(f"{word} of such values")
        sql = f"{self._with_types(left, kinds)} {word} {self._with_types(right, kinds)}"
        pieces = tuple(TypedSql(sql=f"c{i + 1}", kind=kind, name=left.pieces[i].name) for i, kind in enumerate(kinds))
        wrapped = self._wrapped(sql, len(kinds))
        tail = self._order(node, ExpressionTranslator(_Within(self, {}), Scope()), pieces, plain=True)
        tail += self._limit(node, top=top, limit=limit)
        return Columns(sql=f"{wrapped}{tail}", pieces=pieces, correlated=left.correlated or right.correlated)

    def _wrapped(self, sql: str, columns: int) -> str:
        alias = self.alias("s")
        return f"SELECT {', '.join(f'{alias}.c{i + 1} AS c{i + 1}' for i in range(columns))} FROM ({sql}) AS {alias}"  # noqa: S608

    def _with_types(self, side: Columns, kinds: Sequence[pa.DataType]) -> str:
        alias = self.alias("s")
        shown = [
            f"{f'{alias}.c{i + 1}' if piece.kind == kind else cast_sql(f'{alias}.c{i + 1}', kind)} AS c{i + 1}"
            for i, (piece, kind) in enumerate(zip(side.pieces, kinds, strict=True))
        ]
        for piece, kind in zip(side.pieces, kinds, strict=True):
            if piece.kind not in (kind, types.NULL) and types.is_decimal(piece.kind) and types.is_float(kind):
                raise Unsupported("decimals and doubles in a set operation")
        return f"(SELECT {', '.join(shown)} FROM ({side.sql}) AS {alias})"  # noqa: S608

    def _select(self, node: exp.Select, ctes: Ctes, outer: Scope | None, *, top: bool, limit: int | None) -> Columns:
        check_args(node, _SELECT_ARGS)
        scope = Scope(outer=outer)
        source = self._from(node, scope, ctes)
        windows = {window.this.name.lower(): window for window in node.args.get("windows") or ()}
        to = ExpressionTranslator(_Within(self, ctes), scope, windows)
        pieces, nodes = self._projections(node, to)
        parts = [f"SELECT {self._distinct(node, pieces)}", self._shown(pieces), source]
        if node.args.get("where"):
            if is_aggregated(node.args["where"].this):
                raise Unsupported("an aggregate in WHERE")
            scope.open = True
            parts.append(f"WHERE {to.condition(node.args['where'].this).sql}")
            scope.open = False
        parts += self._group(node, to, pieces, nodes)
        parts += self._having(node, to, pieces, nodes)
        tail = self._order(node, to, pieces, plain=bool(node.args.get("distinct")))
        tail += self._limit(node, top=top, limit=limit)
        sql = " ".join(part for part in parts if part) + tail
        return Columns(sql=sql, pieces=tuple(pieces), correlated=scope.used_outer)

    def _projections(self, node: exp.Select, to: ExpressionTranslator) -> tuple[list[TypedSql], list[exp.Expr | None]]:
        pieces: list[TypedSql] = []
        nodes: list[exp.Expr | None] = []
        for one in node.expressions:
            if isinstance(one, exp.Star):
                check_args(one, frozenset())
                found = to.scope.stars(())
            elif isinstance(one, exp.Column) and isinstance(one.this, exp.Star):
                check_args(one.this, frozenset())
                found = to.scope.stars([part.name for part in one.parts[:-1]])
            elif isinstance(one, exp.Alias):
                check_args(one, frozenset({"this", "alias"}))
                pieces.append(to(one.this).named(one.alias))
                nodes.append(one.this)
                continue
            else:
                pieces.append(_auto_named(one, to(one)))
                nodes.append(one)
                continue
            pieces += found
            nodes += [None] * len(found)
            if len(pieces) > MAX_COLUMNS:
                break
        if len(pieces) > MAX_COLUMNS:
            if not any(map(_multiplies, node.root().find_all(exp.Select))):
                raise Unsupported(f"more than {MAX_COLUMNS:,} columns")  # the columns of one dataset: Spark answers
            raise InvalidRequest(
                f"A SELECT has at most {MAX_COLUMNS:,} columns; a * of this query stands for more. Name the columns."
            )
        return pieces, nodes

    def _distinct(self, node: exp.Select, pieces: Sequence[TypedSql]) -> str:
        if not node.args.get("distinct"):
            return ""
        check_args(node.args["distinct"], frozenset())
        if not all(types.is_grouped(piece.kind) for piece in pieces):
            raise Unsupported("DISTINCT of such values")
        return "DISTINCT"

    def _shown(self, pieces: Sequence[TypedSql]) -> str:
        return ", ".join(f"{piece.sql} AS c{i + 1}" for i, piece in enumerate(pieces))

    # ---- FROM -----------------------------------------------------------------------------------------------------

    def _from(self, node: exp.Select, scope: Scope, ctes: Ctes) -> str:
        if not node.args.get("from_"):
            if node.args.get("joins"):
                raise Unsupported("a join of nothing")
            return ""
        check_args(node.args["from_"], frozenset({"this"}))
        sql, source = self._source(node.args["from_"].this, ctes)
        scope.sources.append(source)
        for join in node.args.get("joins") or ():
            sql = self._join(sql, join, scope, ctes)
        return f"FROM {sql}"

    def _source(self, node: exp.Expr, ctes: Ctes) -> tuple[str, ScopeSource]:
        alias = self.alias("s")
        self.sources += 1
        if self.sources > MAX_SOURCES:
            raise Unsupported(f"more than {MAX_SOURCES} tables and subqueries")
        if isinstance(node, exp.Table) and (numbers := range_of(node)) is not None:
            check_args(node, frozenset({"this", "alias"}))
            parts, names = _alias_of(node)
            if len(names) > 1:
                raise Unsupported("an alias with another number of columns")
            sql = f"(SELECT range AS c1 FROM range({numbers.start}, {numbers.stop}, {numbers.step}))"  # noqa: S608
            return f"{sql} AS {alias}", source_of(alias, parts, [((names or ["id"])[0], "c1", types.LONG)])
        if isinstance(node, exp.Table):
            check_args(node, _TABLE_ARGS)
            return self._table(node, alias, ctes)
        if isinstance(node, exp.Subquery):
            check_args(node, frozenset({"this", "alias"}))
            done = self.query(node.this, ctes, None)
            parts, names = _alias_of(node)
            return f"({done.sql}) AS {alias}", done.source(alias, parts, names)
        raise Unsupported(f"{node.key.upper()} in FROM")

    def _table(self, node: exp.Table, alias: str, ctes: Ctes) -> tuple[str, ScopeSource]:
        parts, names = _alias_of(node)
        own = tuple(part.name for part in node.parts)
        if len(own) == 1:
            found = ctes.get(own[0].lower())
            if found is None:
                raise Unsupported(f"the table {own[0]}")
            return f"{found[0]} AS {alias}", found[1].source(alias, parts or own, names)
        relation = self.tables(node)
        shown = names or relation.schema.names
        if len(shown) != len(relation.schema):
            raise Unsupported("an alias with another number of columns")
        rows = [(shown[i], one.name, one.type) for i, one in enumerate(relation.schema)]
        return f"{relation.sql} AS {alias}", source_of(alias, parts or own, rows)

    def _join(self, left: str, node: exp.Join, scope: Scope, ctes: Ctes) -> str:
        check_args(node, frozenset({"this", "side", "kind", "on", "using"}))
        right, source = self._source(node.this, ctes)
        side, kind = str(node.args.get("side") or "").upper(), str(node.args.get("kind") or "").upper()
        if (side, kind) not in _JOINS:
            raise Unsupported(f"a {side} {kind} join")
        word = _JOINS[side, kind]
        on, using = node.args.get("on"), node.args.get("using")
        before = list(scope.sources)
        scope.sources.append(source)
        if using:
            condition = self._using([one.name for one in using], before, source, scope, word)
        elif on is not None:
            condition = ExpressionTranslator(_Within(self, ctes), scope).condition(on).sql
        elif word in ("JOIN", "CROSS JOIN"):
            return f"{left} CROSS JOIN {right}"
        else:
            raise Unsupported(f"a {word} without a condition")
        if word == "CROSS JOIN":
            word = "JOIN"
        if word in ("SEMI JOIN", "ANTI JOIN"):
            scope.sources[:] = before
        return f"{left} {word} {right} ON {condition}"

    def _using(
        self, names: Sequence[str], before: Sequence[ScopeSource], right: ScopeSource, scope: Scope, word: str
    ) -> str:
        """Join by columns of the same name, which appear once and first.

        Supported only if the left column is the visible one.
        """
        if word not in ("JOIN", "LEFT JOIN") or len(before) != 1:
            raise Unsupported(f"USING in such a {word}")
        lowered = {name.lower() for name in names}
        conditions, shared = [], []
        for name in names:
            one, other = Scope([before[0]]).find([name]), Scope([right]).find([name])
            if one.kind != other.kind or not types.is_ordered(one.kind):
                raise Unsupported("USING of columns of different types")
            conditions.append(f"{one.sql} = {other.sql}")
            shared.append(ScopeColumn(name=_column_name(before[0], name), sql=one.sql, kind=one.kind))
        rest = [
            ScopeSource(parts=s.parts, columns=tuple(c for c in s.columns if (c.name or "").lower() not in lowered))
            for s in (before[0], right)
        ]
        scope.sources[:] = [ScopeSource(parts=(), columns=tuple(shared)), *rest]
        scope.merged = True
        return " AND ".join(conditions)

    # ---- GROUP BY, HAVING, ORDER BY, LIMIT ------------------------------------------------------------------------

    def _group(
        self, node: exp.Select, to: ExpressionTranslator, pieces: Sequence[TypedSql], nodes: Sequence[exp.Expr | None]
    ) -> list[str]:
        group = node.args.get("group")
        if group is None:
            return []
        check_args(group, frozenset({"expressions"}))
        names = _by_name(pieces)
        keys = [self._grouped(one, to, pieces, nodes, names) for one in group.expressions]
        if not keys or not all(types.is_grouped(key.kind) and key.kind != types.NULL for key in keys):
            raise Unsupported("GROUP BY of such values")
        return [f"GROUP BY {', '.join(key.sql for key in keys)}"]

    def _grouped(
        self,
        node: exp.Expr,
        to: ExpressionTranslator,
        pieces: Sequence[TypedSql],
        nodes: Sequence[exp.Expr | None],
        names: Mapping[str, Sequence[int]],
    ) -> TypedSql:
        """Resolve a term of GROUP BY: a position, a column of the sources, an alias, or an expression."""
        if isinstance(node, exp.Literal):
            at = _place(node, pieces)
            found = nodes[at]
            if found is not None and is_aggregated(found):
                raise Unsupported("GROUP BY of an aggregate")
            return pieces[at]
        if isinstance(node, exp.Placeholder):
            raise Unsupported("GROUP BY of a parameter")
        if isinstance(node, exp.Column) and len(node.parts) == 1:
            try:
                return Scope(to.scope.sources).find([node.name])
            except Unsupported:
                named = names.get(node.name.lower(), ())
                if len(named) != 1 or to.scope.outer is not None:
                    raise
                return pieces[named[0]]
        return to(node)

    def _having(
        self, node: exp.Select, to: ExpressionTranslator, pieces: Sequence[TypedSql], nodes: Sequence[exp.Expr | None]
    ) -> list[str]:
        having = node.args.get("having")
        if having is None:
            return []
        if not node.args.get("group") and not any(n is not None and is_aggregated(n) for n in nodes):
            raise Unsupported("HAVING without groups")
        inner = self._aliased(to, pieces)
        return [f"HAVING {inner.condition(having.this).sql}"]

    def _aliased(self, to: ExpressionTranslator, pieces: Sequence[TypedSql]) -> ExpressionTranslator:
        """Let names refer to columns of the SELECT, unless a source has a different column of that name."""
        aliases: dict[str, TypedSql] = {}
        unclear: set[str] = set()
        for piece in pieces:
            name = (piece.name or "").lower()
            if not name:
                continue
            try:
                own = Scope(to.scope.sources).find([name])
            except Unsupported:
                own = None
            if (own is not None and own.sql != piece.sql) or (name in aliases and aliases[name].sql != piece.sql):
                unclear.add(name)
            aliases[name] = piece
        scope = Scope(to.scope.sources, outer=to.scope.outer, aliases=aliases, unclear=frozenset(unclear))
        return ExpressionTranslator(to.queries, scope, to.windows)

    def _order(self, node: exp.Expr, to: ExpressionTranslator, pieces: Sequence[TypedSql], *, plain: bool) -> str:
        order = node.args.get("order")
        if order is None:
            return ""
        check_args(order, frozenset({"expressions"}))
        terms = []
        names, aliased = _by_name(pieces), None
        for one in order.expressions:
            check_args(one, frozenset({"this", "desc", "nulls_first"}))
            if isinstance(one.this, exp.Placeholder) or one.this.find(exp.Query):
                raise Unsupported("an order by a subquery or a parameter")
            at = _output(one.this, pieces, names)
            if at is not None:
                order_key(pieces[at])
                terms.append(f"{at + 1} {direction(one)}")
            elif plain:
                raise Unsupported("an order by something that is not selected")
            else:
                aliased = aliased or self._aliased(to, pieces)
                key = order_key(aliased(one.this))
                if key.isdigit():
                    raise Unsupported("an order by a constant")
                terms.append(f"{key} {direction(one)}")
        return f" ORDER BY {', '.join(terms)}"

    def _limit(self, node: exp.Expr, *, top: bool, limit: int | None) -> str:
        own, offset = node.args.get("limit"), node.args.get("offset")
        if (own is not None or offset is not None) and not top and not node.args.get("order"):
            raise Unsupported("a LIMIT in a subquery without ORDER BY")
        if offset is not None and not node.args.get("order"):
            raise Unsupported("an OFFSET without ORDER BY")
        least = [_rows(own)] if own is not None else []
        least += [limit] if limit is not None else []
        sql = f" LIMIT {min(least)}" if least else ""
        return f"{sql} OFFSET {_rows(offset)}" if offset is not None else sql

    # ---- subqueries in expressions --------------------------------------------------------------------------------

    def membership(self, value: TypedSql, node: exp.Expr, scope: Scope, ctes: Ctes) -> TypedSql:
        """Translate ``value IN (SELECT ...)``."""
        done = self.query(node, ctes, scope)
        if len(done.pieces) != 1 or done.pieces[0].kind != value.kind or not types.is_ordered(value.kind):
            raise Unsupported("IN with a subquery of another type")
        return TypedSql(sql=f"({value.sql} IN ({done.sql}))", kind=BOOLEAN)

    def exists(self, node: exp.Expr, scope: Scope, ctes: Ctes) -> TypedSql:
        """Translate ``EXISTS (SELECT ...)``."""
        return TypedSql(sql=f"EXISTS ({self.query(node, ctes, scope).sql})", kind=BOOLEAN)

    def scalar(self, node: exp.Expr, scope: Scope, ctes: Ctes) -> TypedSql:
        """Translate a scalar subquery. Its form must guarantee one row."""
        shape = isinstance(node, exp.Select) and not node.args.get("group") and not node.args.get("limit")
        if not shape or not any(is_aggregated(one) for one in node.expressions):
            raise Unsupported("a subquery as a value that may have several rows")
        done = self.query(node, ctes, scope)
        if len(done.pieces) != 1:
            raise Unsupported("a subquery as a value with several columns")
        return TypedSql(sql=f"({done.sql})", kind=done.pieces[0].kind)


class _Within:
    """`SelectTranslator` for expressions, with the common table expressions that are visible to them."""

    def __init__(self, queries: SelectTranslator, ctes: Ctes) -> None:
        self._queries = queries
        self._ctes = ctes

    def parameter(self, name: str) -> TypedSql:
        return self._queries.parameter(name)

    def membership(self, value: TypedSql, node: exp.Expr, scope: Scope) -> TypedSql:
        return self._queries.membership(value, node, scope, self._ctes)

    def exists(self, node: exp.Expr, scope: Scope) -> TypedSql:
        return self._queries.exists(node, scope, self._ctes)

    def scalar(self, node: exp.Expr, scope: Scope) -> TypedSql:
        return self._queries.scalar(node, scope, self._ctes)


_JOINS: Final = {
    ("", ""): "JOIN",
    ("", "INNER"): "JOIN",
    ("", "CROSS"): "CROSS JOIN",
    ("LEFT", ""): "LEFT JOIN",
    ("LEFT", "OUTER"): "LEFT JOIN",
    ("RIGHT", ""): "RIGHT JOIN",
    ("RIGHT", "OUTER"): "RIGHT JOIN",
    ("FULL", ""): "FULL JOIN",
    ("FULL", "OUTER"): "FULL JOIN",
    ("LEFT", "SEMI"): "SEMI JOIN",
    ("", "SEMI"): "SEMI JOIN",
    ("LEFT", "ANTI"): "ANTI JOIN",
    ("", "ANTI"): "ANTI JOIN",
}


def _alias_of(node: exp.Expr) -> tuple[tuple[str, ...], list[str]]:
    alias = node.args.get("alias")
    if alias is None:
        return (), []
    check_args(alias, frozenset({"this", "columns"}))
    return ((alias.name,) if alias.this else ()), [column.name for column in alias.args.get("columns") or ()]


def _multiplies(node: exp.Select) -> bool:
    """True if the stars of a SELECT may expand to more columns than its widest source has."""
    bare = sum(isinstance(one, exp.Star) for one in node.expressions)
    qualified = sum(isinstance(one, exp.Column) and isinstance(one.this, exp.Star) for one in node.expressions)
    return bare + qualified > 1 or bool(bare and node.args.get("joins"))


def _auto_named(node: exp.Expr, piece: TypedSql) -> TypedSql:
    """Keep Spark's name of a column without an alias if it is known: for a column and for plain aggregates."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column | exp.Count | exp.Sum | exp.Avg | exp.Min | exp.Max):
        return piece
    return TypedSql(sql=piece.sql, kind=piece.kind, name=_literal_name(node))


def _literal_name(node: exp.Expr) -> str | None:
    """Return the name that Spark gives a column of a plain literal."""
    match node:
        case exp.Boolean():
            return "true" if node.this else "false"
        case exp.Literal() if (node.is_string and node.this) or str(node.this).isdecimal():
            return str(node.this) if node.is_string else str(int(node.this))
        case _:
            return None


def _column_name(source: ScopeSource, name: str) -> str:
    return next(c.name for c in source.columns if c.name is not None and c.name.lower() == name.lower())


def _place(node: exp.Expr, pieces: Sequence[TypedSql]) -> int:
    text = str(node.this)
    if node.args.get("is_string") or not text.isdigit() or not 1 <= int(text) <= len(pieces):
        raise Unsupported("a position outside of the select list")
    return int(text) - 1


def _output(node: exp.Expr, pieces: Sequence[TypedSql], names: Mapping[str, Sequence[int]]) -> int | None:
    """Return the column of the SELECT that a term of ORDER BY names, by its position or its name."""
    if isinstance(node, exp.Literal):
        return _place(node, pieces)
    if isinstance(node, exp.Column) and len(node.parts) == 1:
        found = names.get(node.name.lower(), ())
        if len(found) == 1:
            return found[0]
        if found:
            raise Unsupported(f"the name {node.name}, which is ambiguous")
    return None


def _by_name(pieces: Sequence[TypedSql]) -> dict[str, list[int]]:
    """Return the positions of columns by their names in lower case."""
    found: dict[str, list[int]] = {}
    for at, piece in enumerate(pieces):
        found.setdefault((piece.name or "").lower(), []).append(at)
    return found


def _rows(node: exp.Expr) -> int:
    value = node.expression
    if isinstance(value, exp.Literal) and not value.args["is_string"] and str(value.this).isdigit():
        return min(int(value.this), MAX_LIMIT)
    raise Unsupported("a LIMIT that is no plain number")


__all__ = ["Relation", "Translated", "quoted", "translate"]
