"""Translation of the clauses that may refer to result columns by position or alias: GROUP BY, HAVING, ORDER BY, LIMIT."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from siltstone.query.translate import Unsupported, types
from siltstone.query.translate.aggregates import direction, order_key
from siltstone.query.translate.expressions import ExpressionTranslator, check_args, is_aggregated
from siltstone.query.translate.scopes import Scope
from siltstone.query.translate.typed_sql import TypedSql

MAX_LIMIT: Final = 2**31 - 1


def group_by(
    node: exp.Select, to: ExpressionTranslator, pieces: Sequence[TypedSql], nodes: Sequence[exp.Expr | None]
) -> list[str]:
    """Translate GROUP BY of a SELECT with these result columns; `nodes` are their expressions, None for a star."""
    group = node.args.get("group")
    if group is None:
        return []
    check_args(group, ("expressions",))
    positions = _positions_by_name(pieces)
    keys = [_group_key(term, to, pieces, nodes, positions) for term in group.expressions]
    if not keys or not all(types.is_grouped(key.kind) and key.kind != types.NULL for key in keys):
        raise Unsupported("GROUP BY of such values")
    return [f"GROUP BY {', '.join(key.sql for key in keys)}"]


def _group_key(
    node: exp.Expr,
    to: ExpressionTranslator,
    pieces: Sequence[TypedSql],
    nodes: Sequence[exp.Expr | None],
    positions: Mapping[str, Sequence[int]],
) -> TypedSql:
    """Resolve a term of GROUP BY: a position, a column of the sources, an alias, or an expression."""
    if isinstance(node, exp.Literal):
        at = _position(node, pieces)
        selected = nodes[at]
        if selected is not None and is_aggregated(selected):
            raise Unsupported("GROUP BY of an aggregate")
        return pieces[at]
    if isinstance(node, exp.Placeholder):
        raise Unsupported("GROUP BY of a parameter")
    if isinstance(node, exp.Column) and len(node.parts) == 1:
        try:
            return Scope(to.scope.sources).find([node.name])
        except Unsupported:
            named = positions.get(node.name.lower(), ())
            if len(named) != 1 or to.scope.outer is not None:
                raise
            return pieces[named[0]]
    return to(node)


def having(
    node: exp.Select, to: ExpressionTranslator, pieces: Sequence[TypedSql], nodes: Sequence[exp.Expr | None]
) -> list[str]:
    """Translate HAVING; the arguments are those of `group_by`."""
    clause = node.args.get("having")
    if clause is None:
        return []
    if not node.args.get("group") and not any(n is not None and is_aggregated(n) for n in nodes):
        raise Unsupported("HAVING without groups")
    return [f"HAVING {_with_aliases(to, pieces).condition(clause.this).sql}"]


def order_by(node: exp.Expr, to: ExpressionTranslator, pieces: Sequence[TypedSql], *, only_selected: bool) -> str:
    """Translate ORDER BY of a query with these result columns; `only_selected` allows no other values."""
    order = node.args.get("order")
    if order is None:
        return ""
    check_args(order, ("expressions",))
    terms = []
    positions, aliased = _positions_by_name(pieces), None
    for term in order.expressions:
        check_args(term, ("this", "desc", "nulls_first"))
        if isinstance(term.this, exp.Placeholder) or term.this.find(exp.Query):
            raise Unsupported("an order by a subquery or a parameter")
        at = _result_column(term.this, pieces, positions)
        if at is not None:
            order_key(pieces[at])
            terms.append(f"{at + 1} {direction(term)}")
        elif only_selected:
            raise Unsupported("an order by something that is not selected")
        else:
            aliased = aliased or _with_aliases(to, pieces)
            key = order_key(aliased(term.this))
            if key.isdigit():
                raise Unsupported("an order by a constant")
            terms.append(f"{key} {direction(term)}")
    return f" ORDER BY {', '.join(terms)}"


def _result_column(node: exp.Expr, pieces: Sequence[TypedSql], positions: Mapping[str, Sequence[int]]) -> int | None:
    """Return the position of the result column that a term of ORDER BY names, by its position or its name."""
    if isinstance(node, exp.Literal):
        return _position(node, pieces)
    if isinstance(node, exp.Column) and len(node.parts) == 1:
        named = positions.get(node.name.lower(), ())
        if len(named) == 1:
            return named[0]
        if named:
            raise Unsupported(f"the name {node.name}, which is ambiguous")
    return None


def limit_and_offset(node: exp.Expr, *, top: bool, limit: int | None) -> str:
    """Translate LIMIT and OFFSET; `limit` is the caller's row limit, `top` is True for the outermost query."""
    written, offset = node.args.get("limit"), node.args.get("offset")
    if (written is not None or offset is not None) and not top and not node.args.get("order"):
        raise Unsupported("a LIMIT in a subquery without ORDER BY")
    if offset is not None and not node.args.get("order"):
        raise Unsupported("an OFFSET without ORDER BY")
    limits = [_rows(written)] if written is not None else []
    limits += [limit] if limit is not None else []
    sql = f" LIMIT {min(limits)}" if limits else ""
    return f"{sql} OFFSET {_rows(offset)}" if offset is not None else sql


def _rows(node: exp.Expr) -> int:
    value = node.expression
    if isinstance(value, exp.Literal) and not value.args["is_string"] and str(value.this).isdigit():
        return min(int(value.this), MAX_LIMIT)
    raise Unsupported("a LIMIT that is not a literal number")


def _position(node: exp.Expr, pieces: Sequence[TypedSql]) -> int:
    """Return the index of the result column that a literal names; positions in a query count from 1."""
    text = str(node.this)
    if node.args.get("is_string") or not text.isdigit() or not 1 <= int(text) <= len(pieces):
        raise Unsupported("a position outside of the select list")
    return int(text) - 1


def _positions_by_name(pieces: Sequence[TypedSql]) -> dict[str, list[int]]:
    """Return the positions of result columns by their names in lower case."""
    positions: dict[str, list[int]] = {}
    for at, piece in enumerate(pieces):
        positions.setdefault((piece.name or "").lower(), []).append(at)
    return positions


def _with_aliases(to: ExpressionTranslator, pieces: Sequence[TypedSql]) -> ExpressionTranslator:
    """Let names refer to columns of the SELECT, unless a source has a different column of that name."""
    aliases: dict[str, TypedSql] = {}
    unclear: set[str] = set()
    for piece in pieces:
        name = (piece.name or "").lower()
        if not name:
            continue
        try:
            column = Scope(to.scope.sources).find([name])
        except Unsupported:
            column = None
        if (column is not None and column.sql != piece.sql) or (name in aliases and aliases[name].sql != piece.sql):
            unclear.add(name)
        aliases[name] = piece
    scope = Scope(to.scope.sources, outer=to.scope.outer, aliases=aliases, unclear=frozenset(unclear))
    return replace(to, scope=scope)
