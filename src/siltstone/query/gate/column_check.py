"""Finds misspelt columns from the schemas of the datasets, so that the query is rejected before Spark is started.

A name is rejected only if the columns of all its possible sources are known. They are unknown for LATERAL, PIVOT,
VALUES without column names, and a subquery with an expression that has no alias. Everything else is left to the engine.
"""

import difflib
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import common_table
from siltstone.query.gate.allowlist import GENERATORS, SESSION_NAMES, VOLATILE_NAMES
from siltstone.query.gate.syntax import UNITS_OF_TIME, WITH_UNIT, located, range_of

Columns = Callable[[exp.Table], tuple[str, ...]]
"""Returns the columns of the dataset that a table names."""
MAX_SHOWN: Final = 20
"""Most columns that an error lists."""
_OF_THE_ENGINE: Final = SESSION_NAMES | VOLATILE_NAMES | {"grouping__id"}
_Known = tuple[str, ...] | None
"""Column names; None if they are not known."""


@dataclass(frozen=True, slots=True)
class _Source:
    """An item of a FROM, with the last part of its name."""

    name: str
    columns: _Known


def check_names(query: exp.Query, columns: Columns) -> None:
    """Reject a query that names a column which no table has.

    Args:
        query: the tree that the gate has checked.
        columns: returns the columns of the dataset that a table names.

    Raises:
        InvalidRequest: it does; the message has the position and columns with a similar name.
    """
    names = _Names(columns)
    with suppress(RecursionError):  # a chain of expressions above the recursion limit is left to the engine
        for select in query.find_all(exp.Select):
            names.check(select)


class _Names:
    """The columns of all sources of one query, each computed once."""

    def __init__(self, dataset: Columns) -> None:
        self._dataset = dataset
        self._seen: dict[int, _Known] = {}
        self._sources: dict[int, list[_Source] | None] = {}

    def check(self, select: exp.Select) -> None:
        """Reject an unknown column of this SELECT; the queries inside it are not checked."""
        sources, outputs = self._visible(select), _outputs(select)
        if sources is None or outputs is None:
            return
        for column in _columns_of(select):
            names = [part.name.lower() for part in column.parts]
            if isinstance(column.this, exp.Star) or names[0] in outputs | _OF_THE_ENGINE or _is_local(column, select):
                continue
            if not all(name.isidentifier() for name in names):
                continue
            if not _is_found(names, sources):
                raise _unknown(column, sources)

    def _visible(self, select: exp.Select) -> list[_Source] | None:
        """Return the sources of a SELECT and of all queries around it; None if the columns of one are not known."""
        found: list[_Source] = []
        node: exp.Expr | None = select
        while node is not None:
            if isinstance(node, exp.Select):
                own = self._own(node)
                if own is None:
                    return None
                found += own
            node = node.parent
        return found

    def _own(self, select: exp.Select) -> list[_Source] | None:
        if id(select) not in self._sources:
            self._sources[id(select)] = self._read(select)
        return self._sources[id(select)]

    def _read(self, select: exp.Select) -> list[_Source] | None:
        if select.args.get("laterals"):
            return None
        start = select.args.get("from_")
        items = [start.this] if start is not None else []
        items += [join.this for join in select.args.get("joins") or ()]
        sources = [self._source(item) for item in items]
        return None if any(source.columns is None for source in sources) else sources

    def _source(self, item: exp.Expr) -> _Source:
        name = item.alias_or_name.lower()
        if item.args.get("pivots") or item.args.get("joins"):
            return _Source(name, None)
        if listed := item.alias_column_names:
            return _Source(name, tuple(listed))
        if isinstance(item, exp.Table):
            return _Source(name, ("id",) if range_of(item) is not None else self._table(item))
        if isinstance(item, exp.Subquery) and isinstance(item.this, exp.Query):
            return _Source(name, self._of(item.this))
        return _Source(name, None)

    def _table(self, table: exp.Table) -> _Known:
        cte = common_table(table)
        if cte is None:
            return self._dataset(table)
        return tuple(cte.alias_column_names) or self._of(cte.this)

    def _of(self, query: exp.Expr) -> _Known:
        """Return the result columns of a query; None if one of them has no name."""
        while isinstance(query, exp.SetOperation | exp.Subquery):
            query = query.this
        if not isinstance(query, exp.Select):
            return None
        if id(query) not in self._seen:
            self._seen[id(query)] = None  # for a recursive expression, which reads itself
            self._seen[id(query)] = self._selected(query)
        return self._seen[id(query)]

    def _selected(self, select: exp.Select) -> _Known:
        found: list[str] = []
        for one in select.expressions:
            if isinstance(one, exp.Star) and not one.args.get("except_"):
                sources = self._own(select)
                if sources is None:
                    return None
                found += [column for source in sources for column in source.columns or ()]
            elif isinstance(one, exp.Alias) or (isinstance(one, exp.Column) and isinstance(one.this, exp.Identifier)):
                found.append(one.alias_or_name)
            else:
                return None
        return tuple(found)


def _outputs(select: exp.Select) -> set[str] | None:
    """Return the result columns of a SELECT and of all around it, in lower case; None if one is not known.

    A name that an engine generates, as ``count(1)``, is not an identifier and is ignored.
    """
    found: set[str] = set()
    node: exp.Expr | None = select
    while node is not None:
        for one in node.expressions if isinstance(node, exp.Select) else ():
            if isinstance(one, exp.Aliases):
                found |= {name.name.lower() for name in one.expressions}
            elif isinstance(one, exp.Column) and len(one.parts) == 1:
                continue  # the column itself is to be found
            elif isinstance(one, exp.Alias | exp.Column | exp.Dot | exp.Literal):
                found.add((one.expression.name if isinstance(one, exp.Dot) else one.alias_or_name).lower())
            elif any(isinstance(part, exp.Anonymous) and part.name.lower() in GENERATORS for part in one.walk()):
                return None
        node = node.parent
    return found


def _columns_of(select: exp.Select) -> Iterator[exp.Column]:
    """Yield the columns of a SELECT itself, without those of its subqueries."""
    for node in select.walk(prune=lambda one: isinstance(one, exp.Query) and one is not select):
        if isinstance(node, exp.Column):
            yield node


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
    if any(name.lower() == names[0] for source in sources for name in source.columns or ()):
        return True
    return any(
        source.name == table and any(name.lower() == column for name in source.columns or ())
        for source in sources
        for table, column in itertools.pairwise(names)
    )


def _unknown(column: exp.Column, sources: list[_Source]) -> InvalidRequest:
    shown = ".".join(part.name for part in column.parts)
    known = list(dict.fromkeys(name for source in sources for name in source.columns or ()))
    by_lower = {name.lower(): name for name in known}
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
        more = f" and {len(known) - MAX_SHOWN:,} more" if len(known) > MAX_SHOWN else ""
        hint = f"Columns: {', '.join(known[:MAX_SHOWN])}{more}." if known else "The query reads no table."
    return InvalidRequest(f"There is no column {shown}{located(column)}. {hint} Nothing was run.")
