"""Finds misspelt columns from the schemas of the datasets, so that the query is rejected before Spark is started.

A name is rejected only if the columns of all its possible sources are known. They are unknown for LATERAL, PIVOT,
VALUES without column names, and a subquery with an expression that has no alias. Everything else is left to the engine.
"""

import difflib
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import common_table
from siltstone.query.gate.allowlist import GENERATORS, SESSION_NAMES, UNITS_OF_TIME, VOLATILE_NAMES, WITH_UNIT
from siltstone.query.gate.syntax import position_suffix, range_of

ColumnsOf = Callable[[exp.Table], tuple[str, ...]]
"""Returns the columns of the dataset that a table names."""
MAX_SHOWN: Final = 20
"""Most columns that an error lists."""
_ENGINE_NAMES: Final = SESSION_NAMES | VOLATILE_NAMES | {"grouping__id"}
_ColumnNames = tuple[str, ...] | None
"""Column names; None if they are not known."""


@dataclass(frozen=True, slots=True)
class _Source:
    """An item of a FROM, with the last part of its name."""

    name: str
    columns: _ColumnNames


def check_names(query: exp.Query, columns: ColumnsOf) -> None:
    """Reject a checked query that names a column which no table has. The error suggests similar names."""
    names = _Names(columns)
    with suppress(RecursionError):  # a chain of expressions above the recursion limit is left to the engine
        for select in query.find_all(exp.Select):
            names.check(select)


class _Names:
    """The columns of all sources of one query, each computed once."""

    def __init__(self, dataset: ColumnsOf) -> None:
        self._dataset = dataset
        self._results: dict[int, _ColumnNames] = {}
        self._sources: dict[int, list[_Source] | None] = {}

    def check(self, select: exp.Select) -> None:
        """Reject an unknown column of this SELECT; the queries inside it are not checked."""
        sources, outputs = self._visible(select), _outputs(select)
        if sources is None or outputs is None:
            return
        for column in select.walk(prune=lambda node: isinstance(node, exp.Query) and node is not select):
            if not isinstance(column, exp.Column):
                continue
            names = [part.name.lower() for part in column.parts]
            if isinstance(column.this, exp.Star) or names[0] in outputs | _ENGINE_NAMES or _is_local(column, select):
                continue
            if not all(name.isidentifier() for name in names):
                continue
            if not _is_found(names, sources):
                raise _unknown_column(column, sources)

    def _visible(self, select: exp.Select) -> list[_Source] | None:
        """Return the sources of a SELECT and of all queries around it; None if the columns of one are unknown."""
        visible: list[_Source] = []
        node: exp.Expr | None = select
        while node is not None:
            if isinstance(node, exp.Select):
                sources = self._from(node)
                if sources is None:
                    return None
                visible += sources
            node = node.parent
        return visible

    def _from(self, select: exp.Select) -> list[_Source] | None:
        """Return the sources of a SELECT's own FROM; None if the columns of one are not known."""
        if id(select) not in self._sources:
            start, laterals = select.args.get("from_"), select.args.get("laterals")
            items = [start.this] if start is not None else []
            items += [join.this for join in select.args.get("joins") or ()]
            sources = [] if laterals else [self._source(item) for item in items]
            unknown = laterals or any(source.columns is None for source in sources)
            self._sources[id(select)] = None if unknown else sources
        return self._sources[id(select)]

    def _source(self, item: exp.Expr) -> _Source:
        name = item.alias_or_name.lower()
        if item.args.get("pivots") or item.args.get("joins"):
            return _Source(name, None)
        if listed := item.alias_column_names:
            return _Source(name, tuple(listed))
        if isinstance(item, exp.Table):
            if range_of(item) is not None:
                return _Source(name, ("id",))
            cte = common_table(item)
            if cte is None:
                return _Source(name, self._dataset(item))
            return _Source(name, tuple(cte.alias_column_names) or self._result(cte.this))
        if isinstance(item, exp.Subquery) and isinstance(item.this, exp.Query):
            return _Source(name, self._result(item.this))
        return _Source(name, None)

    def _result(self, query: exp.Expr) -> _ColumnNames:
        """Return the result columns of a query; None if one of them has no name."""
        while isinstance(query, exp.SetOperation | exp.Subquery):
            query = query.this
        if not isinstance(query, exp.Select):
            return None
        if id(query) not in self._results:
            self._results[id(query)] = None  # for a recursive expression, which reads itself
            self._results[id(query)] = self._selected(query)
        return self._results[id(query)]

    def _selected(self, select: exp.Select) -> _ColumnNames:
        names: list[str] = []
        for item in select.expressions:
            if isinstance(item, exp.Star) and not item.args.get("except_"):
                sources = self._from(select)
                if sources is None:
                    return None
                names += [column for source in sources for column in source.columns or ()]
            elif isinstance(item, exp.Alias) or (
                isinstance(item, exp.Column) and isinstance(item.this, exp.Identifier)
            ):
                names.append(item.alias_or_name)
            else:
                return None
        return tuple(names)


def _outputs(select: exp.Select) -> set[str] | None:
    """Return the result columns of a SELECT and of all around it, in lower case; None if one is unknown.

    A name that an engine generates, as ``count(1)``, is not an identifier and is ignored.
    """
    names: set[str] = set()
    node: exp.Expr | None = select
    while node is not None:
        for item in node.expressions if isinstance(node, exp.Select) else ():
            if isinstance(item, exp.Aliases):
                names |= {name.name.lower() for name in item.expressions}
            elif isinstance(item, exp.Column) and len(item.parts) == 1:
                continue  # the column itself is to be found
            elif isinstance(item, exp.Alias | exp.Column | exp.Dot | exp.Literal):
                names.add((item.expression.name if isinstance(item, exp.Dot) else item.alias_or_name).lower())
            elif any(isinstance(part, exp.Anonymous) and part.name.lower() in GENERATORS for part in item.walk()):
                return None
        node = node.parent
    return names


def _is_local(column: exp.Column, select: exp.Select) -> bool:
    """True for the variable of a lambda, a field of time, or a name from USING in a join."""
    node: exp.Expr = column
    while node is not select and node.parent is not None:
        parent = node.parent
        if isinstance(parent, exp.Lambda | exp.Interval | exp.Extract):
            return True
        if isinstance(parent, exp.Anonymous) and node is column and parent.name.lower() in WITH_UNIT:
            return column.name.upper() in UNITS_OF_TIME
        node = parent
    return False


def _is_found(names: list[str], sources: list[_Source]) -> bool:
    """True if a name may be one of these: `column.field`, `table.column` or `catalog.schema.table.column`."""
    columns = {(source.name, name.lower()) for source in sources for name in source.columns or ()}
    return any(name == names[0] for _, name in columns) or not columns.isdisjoint(itertools.pairwise(names))


def _unknown_column(column: exp.Column, sources: list[_Source]) -> InvalidRequest:
    shown = ".".join(part.name for part in column.parts)
    columns = list(dict.fromkeys(name for source in sources for name in source.columns or ()))
    by_lower = {name.lower(): name for name in columns}
    near = [by_lower[name] for name in difflib.get_close_matches(column.name.lower(), by_lower, n=3)]
    tables = {source.name for source in sources}
    if len(column.parts) > 1 and column.parts[-2].name.lower() not in tables:
        near_tables = difflib.get_close_matches(column.parts[-2].name.lower(), tables, n=1)
        hint = (
            f"Did you mean {near_tables[0]}.{column.name}?" if near_tables else f"Tables: {', '.join(sorted(tables))}."
        )
    elif near:
        hint = f"Did you mean {' or '.join(near)}?"
    else:
        more = f" and {len(columns) - MAX_SHOWN:,} more" if len(columns) > MAX_SHOWN else ""
        hint = f"Columns: {', '.join(columns[:MAX_SHOWN])}{more}." if columns else "The query reads no table."
    return InvalidRequest(f"There is no column {shown}{position_suffix(column)}. {hint} Nothing was run.")
