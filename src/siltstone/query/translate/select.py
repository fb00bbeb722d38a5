"""Translation of queries: SELECT and FROM, set operations, common table expressions, subqueries.

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
from siltstone.query.translate import Unsupported, types
from siltstone.query.translate.expressions import ExpressionTranslator, check_args, is_aggregated
from siltstone.query.translate.result_clauses import group_by, having, limit_and_offset, order_by
from siltstone.query.translate.scopes import Scope, ScopeSource, source_of
from siltstone.query.translate.typed_sql import TypedSql, cast_sql, parameter

MAX_COLUMNS: Final = 4_096
"""Most columns of one SELECT. With ``*`` of a self join they double with every common table expression."""
MAX_SOURCES: Final = 100
"""Most tables, subqueries and common table expressions in a query. DuckDB plans joins in more than quadratic time."""
MAX_INLINED: Final = 16
"""Most tables of a query after inlining. Above it, common table expressions are computed once instead of inlined."""
MAX_SQL_CHARS: Final = 2_000_000
"""Longest translation of a query."""
_MODIFIERS: Final = ("distinct", "order", "limit", "offset", "with_")
_SELECT_ARGS: Final = ("expressions", "from_", "joins", "where", "group", "having", "windows", *_MODIFIERS)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A translated query, with its result columns c1, c2, ..."""

    sql: str
    pieces: tuple[TypedSql, ...]

    def source(self, alias: str, parts: tuple[str, ...], names: Sequence[str]) -> ScopeSource:
        """Return the query as a source under an alias, which may list names of columns."""
        columns = [(piece.name, f"c{i + 1}", piece.kind) for i, piece in enumerate(self.pieces)]
        return source_of(alias, parts, columns, names)


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
    return Translated(sql=done.sql, schema=schema, parameters=tuple(sorted(queries.used)))


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

    def query(
        self, node: exp.Expr, ctes: Ctes, outer: Scope | None, *, top: bool = False, limit: int | None = None
    ) -> Columns:
        """Translate a query of any shape."""
        if isinstance(node, exp.Subquery):
            check_args(node, ("this",))
            return self.query(node.this, ctes, outer, top=top, limit=limit)
        with_sql, visible = self._with(node.args.get("with_"), ctes)
        if isinstance(node, exp.Select):
            done = self._select(node, visible, outer, top=top, limit=limit)
        elif isinstance(node, exp.SetOperation):
            done = self._set_operation(node, visible, top=top, limit=limit)
        else:
            raise Unsupported(node.key.upper())
        if len(with_sql) + len(done.sql) > MAX_SQL_CHARS:
            raise Unsupported(f"a query of more than {MAX_SQL_CHARS:,} characters once it is translated")
        return Columns(sql=f"{with_sql}{done.sql}", pieces=done.pieces)

    def _with(self, node: exp.Expr | None, ctes: Ctes) -> tuple[str, Ctes]:
        if node is None:
            return "", ctes
        check_args(node, ("expressions",))
        visible, parts = dict(ctes), []
        for cte in node.expressions:
            check_args(cte, ("this", "alias"))
            check_args(cte.args["alias"], ("this", "columns"))
            done = self.query(cte.this, visible, None)
            alias = self.alias("w")
            names = [column.name for column in cte.args["alias"].args.get("columns") or ()]
            if names:
                if len(names) != len(done.pieces):
                    raise Unsupported("an alias with another number of columns")
                pieces = tuple(piece.named(name) for piece, name in zip(done.pieces, names, strict=True))
                done = Columns(sql=done.sql, pieces=pieces)
            visible[cte.alias.lower()] = (alias, done)
            parts.append(f"{alias} AS {'MATERIALIZED ' if self.materialized else ''}({done.sql})")
        return f"WITH {', '.join(parts)} ", visible

    def _set_operation(self, node: exp.SetOperation, ctes: Ctes, *, top: bool, limit: int | None) -> Columns:
        check_args(node, ("this", "expression", *_MODIFIERS))
        left, right = self.query(node.this, ctes, None), self.query(node.expression, ctes, None)
        if len(left.pieces) != len(right.pieces):
            raise Unsupported("a set operation of other numbers of columns")
        pairs = zip(left.pieces, right.pieces, strict=True)
        kinds = [types.common(above.kind, below.kind) for above, below in pairs]
        word = node.key.upper() if node.args.get("distinct") else f"{node.key.upper()} ALL"
        if word != "UNION ALL" and not all(types.is_grouped(kind) for kind in kinds):
            raise Unsupported(f"{word} of such values")
        sql = f"{self._with_types(left, kinds)} {word} {self._with_types(right, kinds)}"
        pieces = tuple(TypedSql(sql=f"c{i + 1}", kind=kind, name=left.pieces[i].name) for i, kind in enumerate(kinds))
        alias = self.alias("s")
        shown = ", ".join(f"{alias}.c{i + 1} AS c{i + 1}" for i in range(len(kinds)))
        tail = order_by(node, ExpressionTranslator(self, Scope(), {}), pieces, only_selected=True)
        tail += limit_and_offset(node, top=top, limit=limit)
        sql = f"SELECT {shown} FROM ({sql}) AS {alias}{tail}"  # noqa: S608
        return Columns(sql=sql, pieces=pieces)

    def _with_types(self, side: Columns, kinds: Sequence[pa.DataType]) -> str:
        alias = self.alias("s")
        shown = [
            f"{f'{alias}.c{i + 1}' if piece.kind == kind else cast_sql(f'{alias}.c{i + 1}', kind)} AS c{i + 1}"
            for i, (piece, kind) in enumerate(zip(side.pieces, kinds, strict=True))
        ]
        if any(types.is_decimal(p.kind) and types.is_float(kind) for p, kind in zip(side.pieces, kinds, strict=True)):
            raise Unsupported("decimals and doubles in a set operation")
        return f"(SELECT {', '.join(shown)} FROM ({side.sql}) AS {alias})"  # noqa: S608

    def _select(self, node: exp.Select, ctes: Ctes, outer: Scope | None, *, top: bool, limit: int | None) -> Columns:
        check_args(node, _SELECT_ARGS)
        scope = Scope(outer=outer)
        source = self._from(node, scope, ctes)
        windows = {window.this.name.lower(): window for window in node.args.get("windows") or ()}
        to = ExpressionTranslator(self, scope, ctes, windows)
        pieces, nodes = self._projections(node, to)
        distinct = node.args.get("distinct")
        if distinct:
            check_args(distinct)
            if not all(types.is_grouped(piece.kind) for piece in pieces):
                raise Unsupported("DISTINCT of such values")
        shown = ", ".join(f"{piece.sql} AS c{i + 1}" for i, piece in enumerate(pieces))
        parts = [f"SELECT {'DISTINCT' if distinct else ''}", shown, source]
        if node.args.get("where"):
            if is_aggregated(node.args["where"].this):
                raise Unsupported("an aggregate in WHERE")
            scope.open = True
            parts.append(f"WHERE {to.condition(node.args['where'].this).sql}")
            scope.open = False
        parts += group_by(node, to, pieces, nodes)
        parts += having(node, to, pieces, nodes)
        tail = order_by(node, to, pieces, only_selected=bool(distinct))
        tail += limit_and_offset(node, top=top, limit=limit)
        sql = " ".join(part for part in parts if part) + tail
        return Columns(sql=sql, pieces=tuple(pieces))

    def _projections(self, node: exp.Select, to: ExpressionTranslator) -> tuple[list[TypedSql], list[exp.Expr | None]]:
        pieces: list[TypedSql] = []
        nodes: list[exp.Expr | None] = []
        for selected in node.expressions:
            if isinstance(selected, exp.Star):
                check_args(selected)
                columns = to.scope.stars(())
            elif isinstance(selected, exp.Column) and isinstance(selected.this, exp.Star):
                check_args(selected.this)
                columns = to.scope.stars([part.name for part in selected.parts[:-1]])
            elif isinstance(selected, exp.Alias):
                check_args(selected, ("this", "alias"))
                pieces.append(to(selected.this).named(selected.alias))
                nodes.append(selected.this)
                continue
            else:
                pieces.append(_auto_named(selected, to(selected)))
                nodes.append(selected)
                continue
            pieces += columns
            nodes += [None] * len(columns)
            if len(pieces) > MAX_COLUMNS:
                break
        if len(pieces) > MAX_COLUMNS:
            if not any(map(_multiplies, node.root().find_all(exp.Select))):
                raise Unsupported(f"more than {MAX_COLUMNS:,} columns")  # the columns of one dataset: Spark answers
            raise InvalidRequest(
                f"A SELECT has at most {MAX_COLUMNS:,} columns; a * of this query expands to more. Name the columns."
            )
        return pieces, nodes

    def _from(self, node: exp.Select, scope: Scope, ctes: Ctes) -> str:
        if not node.args.get("from_"):
            if node.args.get("joins"):
                raise Unsupported("a join of nothing")
            return ""
        check_args(node.args["from_"], ("this",))
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
            check_args(node, ("this", "alias"))
            sql = f"(SELECT range AS c1 FROM range({numbers.start}, {numbers.stop}, {numbers.step}))"  # noqa: S608
            parts, names = _alias_of(node)
            return f"{sql} AS {alias}", source_of(alias, parts, [("id", "c1", types.LONG)], names)
        if isinstance(node, exp.Table):
            check_args(node, ("this", "db", "catalog", "alias"))
            return self._table(node, alias, ctes)
        if isinstance(node, exp.Subquery):
            check_args(node, ("this", "alias"))
            done = self.query(node.this, ctes, None)
            parts, names = _alias_of(node)
            return f"({done.sql}) AS {alias}", done.source(alias, parts, names)
        raise Unsupported(f"{node.key.upper()} in FROM")

    def _table(self, node: exp.Table, alias: str, ctes: Ctes) -> tuple[str, ScopeSource]:
        parts, names = _alias_of(node)
        table = tuple(part.name for part in node.parts)
        if len(table) == 1:
            cte = ctes.get(table[0].lower())
            if cte is None:
                raise Unsupported(f"the table {table[0]}")
            return f"{cte[0]} AS {alias}", cte[1].source(alias, parts or table, names)
        relation = self.tables(node)
        columns = [(column.name, column.name, column.type) for column in relation.schema]
        return f"{relation.sql} AS {alias}", source_of(alias, parts or table, columns, names)

    def _join(self, left: str, node: exp.Join, scope: Scope, ctes: Ctes) -> str:
        check_args(node, ("this", "side", "kind", "on", "using"))
        right, source = self._source(node.this, ctes)
        side, kind = str(node.args.get("side") or "").upper(), str(node.args.get("kind") or "").upper()
        if (side, kind) not in _JOINS:
            raise Unsupported(f"a {side} {kind} join")
        word = _JOINS[side, kind]
        on, using = node.args.get("on"), node.args.get("using")
        before = list(scope.sources)
        scope.sources.append(source)
        if using:
            condition = self._using([column.name for column in using], before, source, scope, word)
        elif on is not None:
            condition = ExpressionTranslator(self, scope, ctes).condition(on).sql
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
            left_column, right_column = Scope([before[0]]).find([name]), Scope([right]).find([name])
            if left_column.kind != right_column.kind or not types.is_ordered(left_column.kind):
                raise Unsupported("USING of columns of different types")
            conditions.append(f"{left_column.sql} = {right_column.sql}")
            shown = next(c.name for c in before[0].columns if c.name is not None and c.name.lower() == name.lower())
            shared.append(TypedSql(name=shown, sql=left_column.sql, kind=left_column.kind))
        rest = [
            ScopeSource(parts=s.parts, columns=tuple(c for c in s.columns if (c.name or "").lower() not in lowered))
            for s in (before[0], right)
        ]
        scope.sources[:] = [ScopeSource(parts=(), columns=tuple(shared)), *rest]
        scope.merged = True
        return " AND ".join(conditions)


_JOINS: Final = {
    ("", ""): "JOIN",
    ("", "INNER"): "JOIN",
    ("", "CROSS"): "CROSS JOIN",
    **{(side, outer): f"{side} JOIN" for side in ("LEFT", "RIGHT", "FULL") for outer in ("", "OUTER")},
    **{(side, kind): f"{kind} JOIN" for side in ("", "LEFT") for kind in ("SEMI", "ANTI")},
}


def _alias_of(node: exp.Expr) -> tuple[tuple[str, ...], list[str]]:
    alias = node.args.get("alias")
    if alias is None:
        return (), []
    check_args(alias, ("this", "columns"))
    return ((alias.name,) if alias.this else ()), [column.name for column in alias.args.get("columns") or ()]


def _multiplies(node: exp.Select) -> bool:
    """True if the stars of a SELECT may expand to more columns than its widest source has."""
    bare = sum(isinstance(item, exp.Star) for item in node.expressions)
    qualified = sum(isinstance(item, exp.Column) and isinstance(item.this, exp.Star) for item in node.expressions)
    return bare + qualified > 1 or bool(bare and node.args.get("joins"))


def _auto_named(node: exp.Expr, piece: TypedSql) -> TypedSql:
    """Give a column without an alias Spark's name, if it is known: for columns, plain aggregates and literals."""
    node = node.unnest()
    name: str | None = None
    match node:
        case exp.Column() | exp.Count() | exp.Sum() | exp.Avg() | exp.Min() | exp.Max():
            return piece
        case exp.Boolean():
            name = "true" if node.this else "false"
        case exp.Literal() if (node.is_string and node.this) or str(node.this).isdecimal():
            name = str(node.this) if node.is_string else str(int(node.this))
    return TypedSql(sql=piece.sql, kind=piece.kind, name=name)
