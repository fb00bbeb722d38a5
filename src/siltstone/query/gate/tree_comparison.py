"""Checks that the rewrite means the same: compares its tree with the tree of the original text.

The rewrite may change the spelling of keywords, functions and units, and the qualification of tables and columns. It
may also change parentheses that do not group. Every other difference is a defect of the writer, for example a NOT in
another place. Such a query is rejected.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final

from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.parser import Quantified
from siltstone.query.gate.syntax import unit_of

Path = tuple[str, ...]
Resolve = Callable[[exp.Table], Path]
"""Returns the name under which the rewrite reads a table."""
_EXACT: Final = (exp.Identifier, exp.Literal, exp.HexString, exp.Placeholder)
"""Nodes whose text keeps its letter case."""
_IGNORED: Final = frozenset({"quoted", "_type", "typed", "safe", "nested"})
"""Arguments that describe the path of the parser, not the query. `safe` of a cast is compared."""
_COUNTED: Final = (
    exp.Not,
    exp.Connector,
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
    exp.NullSafeEQ,
    exp.NullSafeNEQ,
    exp.Like,
    exp.ILike,
    exp.Is,
    exp.In,
    exp.Between,
    exp.Exists,
    exp.Query,
    exp.Join,
    exp.Where,
    exp.Group,
    exp.Having,
    exp.Distinct,
    exp.Ordered,
    exp.Limit,
    exp.Offset,
    Quantified,
)
"""Nodes that decide which rows are in a result. No function is read as one of these."""


def check_same(
    read: exp.Expr, written: exp.Expr | None, *, table: Resolve, datasets: frozenset[Path] = frozenset()
) -> None:
    """Reject a rewrite whose tree differs from the tree of the original, or cannot be parsed (None).

    `datasets` are names that the rewrite leaves out before a column, except for their last part.
    """
    pairs: list[tuple[object, object]] = [(read, written)]
    while pairs:
        before, after = map(_bare, pairs.pop())
        if isinstance(before, exp.Expr) and isinstance(after, exp.Expr):
            parts = _parts(before, after, table, datasets)
            if parts is None:
                raise _changed()
            pairs += parts
        elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            pairs += zip(before, after, strict=True)
        elif before != after:
            raise _changed()


def decides_alike(typed: exp.Expr, plain: exp.Expr) -> bool:
    """True if two trees of one text have the same conditions, negations, joins and clauses. Functions may differ."""
    return Counter(_deciding(typed)) == Counter(_deciding(plain))


def _deciding(tree: exp.Expr) -> Iterator[tuple[str, bool]]:
    for node in tree.walk():
        if isinstance(node, _COUNTED):
            yield node.key, bool(node.args.get("negate") or node.args.get("desc"))


def _changed() -> InvalidRequest:
    return InvalidRequest(
        "The query was not run: its rewritten form would not mean the same. Please report it with its text. Parentheses "
        "around conditions, as in NOT (a LIKE b), usually help."
    )


def _bare(node: object) -> object:
    """Return the content of parentheses that only group: those of a subquery have no alias or clause, and no table."""
    while isinstance(node, exp.Paren) or (
        isinstance(node, exp.Subquery)
        and isinstance(node.this, exp.Query)
        and not any(value for name, value in node.args.items() if name != "this")
    ):
        node = node.this
    return node


def _parts(
    before: exp.Expr, after: exp.Expr, table: Resolve, datasets: frozenset[Path]
) -> list[tuple[object, object]] | None:
    """Return the parts of two nodes that are to be compared; None if the nodes differ."""
    if (path := _path(before)) is not None:
        dataset = next((name for name in datasets if path[: len(name)] == name and len(path) > len(name)), ())
        shortened = path[len(dataset) - 1 :] if dataset else path  # without catalog and schema
        if shortened != _path(after) and not _is_unit(before, after):
            return None
        return [(before.this, after.this)] if isinstance(before.this, exp.Star) else []  # a star may exclude columns
    if type(before) is not type(after):
        return None
    left, right = _arguments(before), _arguments(after)
    if isinstance(before, exp.Table) and isinstance(after, exp.Table) and isinstance(before.this, exp.Identifier):
        if table(before) != tuple(part.name for part in after.parts) or before.alias_or_name != after.alias_or_name:
            return None
        left["alias"], right["alias"] = before.alias_column_names, after.alias_column_names
        left, right = ({k: v for k, v in side.items() if k not in _TABLE_NAMES} for side in (left, right))
    if left.keys() != right.keys():
        return None
    return [(_text(before, left[name]), _text(after, right[name])) for name in left]


_TABLE_NAMES: Final = frozenset({"this", "db", "catalog"})


def _arguments(node: exp.Expr) -> dict[str, object]:
    ignored = _IGNORED - {"safe"} if isinstance(node, exp.Cast) else _IGNORED
    return {name: value for name, value in node.args.items() if value and name not in ignored}


def _text(node: exp.Expr, value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Enum) and not isinstance(node, _EXACT):
        return value.upper()
    return value


def _path(node: exp.Expr) -> Path | None:
    """Return the names of a column and its fields, from the left; None for anything else."""
    fields: list[str] = []
    while isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        fields.append(node.expression.name)
        node = node.this
    return (*(part.name for part in node.parts), *reversed(fields)) if isinstance(node, exp.Column) else None


def _is_unit(before: exp.Expr, after: exp.Expr) -> bool:
    """True for two spellings of a unit, as in ``dateadd(day, 1, d)``."""
    function = before.parent
    if not isinstance(function, exp.Anonymous) or before is not next(iter(function.expressions), None):
        return False
    return bool(after.name) and after.name == unit_of(function)
