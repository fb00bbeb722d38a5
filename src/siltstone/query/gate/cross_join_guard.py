"""How many pairs of rows a query makes Spark compare at a stretch, from the sizes of its tables alone.

A task of Spark looks whether it is to end only where it takes the next batch of a file, a row of a shuffle or of a sort. Between
two looks it runs through every joined row that one batch leads to. With two tables that is a moment. A third one without an
equality to the others multiplies it, and then no time limit reaches the task. So such a query is refused before it starts.

1. The tables of a FROM that an equality connects count as one, of the size of the largest.
2. What remains is multiplied; of the largest dataset only one batch counts.
3. A condition other than an equality is not known to leave anything out, so it counts for nothing.

It is an estimate that errs on both sides: a table that a filter makes small is counted whole, equal keys that repeat are not
counted at all. The time limit, not this, is the promise; this keeps what is hopeless from holding a core.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import common_table, expanded_tables
from siltstone.query.gate.allowlist import FUNCTIONS_BY_GROUP, GENERATORS
from siltstone.query.gate.parser import Unpivoted
from siltstone.query.gate.sql_writer import range_of, whole

BATCH_ROWS: Final = 1024
"""Rows of a file between two looks (`spark/launch_options.py`; a session that Siltstone did not make may have 4,096)."""
NARROWED_ROWS: Final = 10_000
"""What is grouped, distinct or compared with a constant by = or IN counts as no more rows than this."""
RECURSIVE_ROWS: Final = 1_000_000
"""The most rows of a recursive WITH, which Spark itself holds to."""
ARRAY_ITEMS: Final = 10
"""What an array counts as whose length is not written in the query."""
MAX_EXPANDED_TABLES: Final = 512
"""Most tables of a query on Spark, with every common table expression in the place of its name."""
_AGGREGATES: Final = frozenset(FUNCTIONS_BY_GROUP["Aggregates"].split())
_ONE_SIDED: Final = ("SEMI", "ANTI")
_Pairs = set[frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a dataset."""

    rows: int
    columns: frozenset[str]
    """Its names, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One of the things that a FROM reads."""

    alias: str
    rows: int
    scanned: int
    """Rows of the largest dataset in it: Spark takes them batch by batch. 0 if there is none."""
    columns: frozenset[str] | None
    """None if they are not known."""


def has_products(query: exp.Query) -> bool:
    """True if anything in a query reads more than one table, so that it is worth to look at sizes."""
    return any(len([*_items(select), *_made(select)]) > 1 for select in query.find_all(exp.Select))


def check_expansion(query: exp.Query) -> None:
    """Refuse a query that reads too many tables once its common table expressions are expanded, as Spark's planner does.

    Raises:
        InvalidRequest: it does; the message has the number.
    """
    tables = expanded_tables(query)
    if tables > MAX_EXPANDED_TABLES:
        raise InvalidRequest(
            f"The query reads {_about(tables)} tables once its common table expressions are expanded; Spark plans at most "
            f"{MAX_EXPANDED_TABLES:,}. Each that names another one twice doubles their number. Split the query."
        )


def check_product(query: exp.Query, dataset: Callable[[exp.Table], Known], *, most: int) -> None:
    """Refuse a query that compares more pairs of rows at a stretch than `most`; 0 means any number.

    Args:
        query: the tree that the gate has checked.
        dataset: what is known of the dataset that a table names.
        most: the setting `query_pairs`.

    Raises:
        InvalidRequest: it does; the message names the tables.
    """
    sizes = _Sizes(dataset)
    for select in query.find_all(exp.Select) if most else ():
        try:
            names, pairs = sizes.stretch(select)
        except RecursionError:
            raise InvalidRequest("The query has too many common table expressions in a row. Split it.") from None
        if pairs > most:
            raise InvalidRequest(
                f"Nothing equal connects {', '.join(names)}: each row of one meets every row of the others, about "
                f"{_about(pairs)} pairs at a stretch, which cannot be interrupted. Join by =, make the tables smaller with = "
                f"or GROUP BY first, or raise the setting query_pairs (now {most:,})."
            )


def _about(number: int) -> str:
    """Return a number as people say it.

    >>> _about(1_234_567_890)
    '1.2·10^9'
    """
    zeros = math.floor(math.log10(number))
    return f"{number / 10**zeros:.1f}·10^{zeros}"


class _Sizes:
    """The sizes of everything in one query, each looked at once."""

    def __init__(self, dataset: Callable[[exp.Table], Known]) -> None:
        self._dataset = dataset
        self._seen: dict[int, _Part] = {}

    def stretch(self, select: exp.Select) -> tuple[list[str], int]:
        """Return the tables of a SELECT that nothing connects, and how many pairs are compared at a stretch."""
        groups = self._groups(select)
        scanned = max((part.scanned for group in groups for part in group), default=0)
        pairs = math.prod(_rows(group) for group in groups)
        if scanned:
            pairs = pairs * min(scanned, BATCH_ROWS) // scanned
        return [_largest(group).alias for group in groups], pairs if len(groups) > 1 else 0

    def _of(self, query: exp.Expr) -> _Part:
        """Return what a query gives to the one around it."""
        if id(query) not in self._seen:
            chain = [query]
            while isinstance(
                chain[-1], exp.SetOperation
            ):  # from the first to the last: a long one is too deep to descend
                chain.append(chain[-1].this)
            new = [one for one in chain if id(one) not in self._seen]
            for one in new:
                self._seen[id(one)] = _Part(alias="", rows=RECURSIVE_ROWS, scanned=0, columns=None)  # for itself
            for one in reversed(new):
                self._seen[id(one)] = self._looked(one)
        return self._seen[id(query)]

    def _looked(self, query: exp.Expr) -> _Part:
        match query:
            case exp.Subquery():
                return self._of(query.this)
            case exp.Union():
                both = [self._of(query.this), self._of(query.expression)]
                rows, scanned = sum(part.rows for part in both), max(part.scanned for part in both)
                return _Part(alias="", rows=rows, scanned=scanned, columns=both[0].columns)
            case exp.SetOperation():
                left = self._of(query.this)
                return _Part(alias="", rows=min(left.rows, NARROWED_ROWS), scanned=0, columns=left.columns)
            case exp.Select():
                return self._selected(query)
            case exp.Values():
                return _Part(alias="", rows=len(query.expressions), scanned=0, columns=None)
            case exp.Table():
                return self._table(query)
            case _:
                return _Part(alias="", rows=1, scanned=0, columns=None)

    def _table(self, table: exp.Table) -> _Part:
        numbers = range_of(table)
        if numbers is not None:
            return _Part(alias="range", rows=len(numbers), scanned=0, columns=frozenset({"id"}))
        cte = common_table(table)
        if cte is not None:
            return _renamed(self._of(cte.this), cte)
        known = self._dataset(table)
        return _Part(alias=table.name, rows=known.rows, scanned=known.rows, columns=known.columns)

    def _selected(self, select: exp.Select) -> _Part:
        groups = self._groups(select)
        rows = math.prod(_rows(group) for group in groups)
        scanned = max((part.scanned for group in groups for part in group), default=0)
        if select.args.get("group") or select.args.get("distinct"):
            rows, scanned = min(rows, NARROWED_ROWS), 0
        elif any(_is_aggregate(node) for node in _own(select.expressions)):
            rows, scanned = 1, 0
        limit = select.args.get("limit")
        if limit is not None and (most := whole(limit.expression)) is not None:
            rows, scanned = min(rows, most), 0
        names = [one.alias_or_name.lower() for one in select.expressions]
        columns = None if any(one.is_star for one in select.expressions) else frozenset(names)
        return _Part(alias="", rows=rows, scanned=min(scanned, rows), columns=columns)

    def _groups(self, select: exp.Select) -> list[list[_Part]]:
        """Return what a SELECT reads, with what equalities connect side by side."""
        parts, conditions, pairs = self._read(select)
        for condition in conditions:
            pairs |= _connected(condition, parts)
        narrowed = {number for condition in conditions for number in _narrowed(condition, parts)}
        parts = [_narrow(part) if number in narrowed else part for number, part in enumerate(parts)]
        groups = [{number} for number in range(len(parts))]
        for pair in pairs:
            met = [group for group in groups if group & pair]
            groups = [group for group in groups if not group & pair] + [set().union(*met)]
        return [[parts[number] for number in group] for group in groups]

    def _read(self, select: exp.Select) -> tuple[list[_Part], list[exp.Expr], _Pairs]:
        """Return what a SELECT reads, its conditions, and which parts NATURAL, USING or a LATERAL of its own connects."""
        parts: list[_Part] = []
        where = select.args.get("where")
        conditions: list[exp.Expr] = [where.this] if where is not None else []
        pairs: _Pairs = set()
        for join, item in _items(select):
            if join is not None and any(word in str(join.args.get("kind")) for word in _ONE_SIDED):
                continue
            pairs |= {frozenset({number, len(parts)}) for number in self._correlated(item, parts)}
            parts.append(self._part(item))
            if join is not None and join.args.get("on"):
                conditions.append(join.args["on"])
            if join is not None and (join.args.get("using") or join.args.get("method")):
                pairs.add(frozenset({len(parts) - 2, len(parts) - 1}))
        made = _made(select)
        parts += [_Part(alias=node.name, rows=_items_of(node), scanned=0, columns=frozenset()) for node in made]
        return parts, conditions, pairs

    def _correlated(self, item: exp.Expr, outer: list[_Part]) -> set[int]:
        """Return which of the parts before it a LATERAL subquery connects with by an equality inside of it."""
        select = item.this.unnest() if isinstance(item, exp.Lateral) and isinstance(item.this, exp.Subquery) else None
        if not isinstance(select, exp.Select):
            return set()
        inner, conditions, _ = self._read(select)
        own = frozenset().union(*(part.columns or () for part in inner))
        known = all(part.columns is not None for part in inner)
        seen = [replace(part, columns=(part.columns or frozenset()) - own if known else frozenset()) for part in outer]
        pairs = {pair for condition in conditions for pair in _connected(condition, [*seen, *inner])}
        return {min(pair) for pair in pairs if min(pair) < len(seen) <= max(pair)}

    def _part(self, item: exp.Expr) -> _Part:
        made = item.this if isinstance(item, exp.Lateral) else item
        if _is_generator(made):
            return _Part(alias=made.name, rows=_items_of(made), scanned=0, columns=None)
        found = _renamed(self._of(made), item)
        for pivot in item.args.get("pivots") or ():
            listed = len(pivot.expressions) if isinstance(pivot, Unpivoted) else 1
            found = replace(found, rows=found.rows * listed, columns=None)
        return replace(found, alias=item.alias_or_name or found.alias)


def _renamed(part: _Part, named: exp.Expr) -> _Part:
    """Return a part with the columns that its alias lists, if it does."""
    names = [name.lower() for name in named.alias_column_names]
    return replace(part, columns=frozenset(names)) if names else part


def _made(select: exp.Select) -> list[exp.Expr]:
    """Return the functions of a SELECT that make rows of each row."""
    views = [one.this for one in select.args.get("laterals") or []]
    return views + [node for node in _own(select.expressions) if _is_generator(node)]


def _items(node: exp.Expr) -> Iterator[tuple[exp.Join | None, exp.Expr]]:
    """Yield what a FROM reads, each with its join; joins in parentheses are joins like others."""
    start = node.args.get("from_")
    if start is not None:
        yield from _flat(None, start.this)
    for join in node.args.get("joins") or []:
        yield from _flat(join, join.this)


def _flat(join: exp.Join | None, item: exp.Expr) -> Iterator[tuple[exp.Join | None, exp.Expr]]:
    if _is_parentheses(item):
        yield from _flat(join, item.this)
    else:
        yield join, item
    for further in item.args.get("joins") or []:
        yield from _flat(further, further.this)


def _is_parentheses(item: exp.Expr) -> bool:
    """True if an item of a FROM is one or several others in parentheses, rather than a subquery or a table that it renames."""
    if not isinstance(item, exp.Subquery) or not isinstance(item.this, exp.Table | exp.Subquery):
        return False
    return not item.alias or bool(item.this.args.get("joins")) or _is_parentheses(item.this)


def _rows(group: Iterable[_Part]) -> int:
    return max([1, *(part.rows for part in group)])


def _largest(group: Iterable[_Part]) -> _Part:
    return max(group, key=lambda part: part.rows)


def _narrow(part: _Part) -> _Part:
    rows = min(part.rows, NARROWED_ROWS)
    return replace(part, rows=rows, scanned=min(part.scanned, rows))


def _connected(condition: exp.Expr, parts: list[_Part]) -> _Pairs:
    """Return which parts a condition connects by an equality; of alternatives, what each of them connects."""
    match condition:
        case exp.Paren():
            return _connected(condition.this, parts)
        case exp.And():
            return set().union(*(_connected(one, parts) for one in condition.flatten()))
        case exp.Or():
            return set.intersection(*(_connected(one, parts) for one in condition.flatten()))
        case exp.EQ() | exp.NullSafeEQ():
            sides = [_parts_of(side, parts) for side in (condition.this, condition.expression)]
            return {frozenset({a, b}) for a in sides[0] for b in sides[1] if a != b}
        case _:
            return set()


def _narrowed(condition: exp.Expr, parts: list[_Part]) -> set[int]:
    """Return the parts of which a condition compares something with constants."""
    match condition:
        case exp.Paren():
            return _narrowed(condition.this, parts)
        case exp.And():
            return set().union(*(_narrowed(one, parts) for one in condition.flatten()))
        case exp.Or():
            return set.intersection(*(_narrowed(one, parts) for one in condition.flatten()))
        case exp.EQ() | exp.NullSafeEQ() if not (
            condition.this.find(exp.Column) and condition.expression.find(exp.Column)
        ):
            return _parts_of(condition, parts)
        case exp.In() if not condition.args.get("query"):
            return _parts_of(condition.this, parts)
        case _:
            return set()


def _parts_of(node: exp.Expr, parts: list[_Part]) -> set[int]:
    """Return the parts whose columns stand in an expression."""
    found: set[int] = set()
    for column in node.find_all(exp.Column):
        found |= _owners([part.name.lower() for part in column.parts], parts)
    return found


def _owners(names: list[str], parts: list[_Part]) -> set[int]:
    """Return the parts that a column may belong to.

    Its names are an alias, a column, and fields of that; without an alias of a part, any of them may be the column.
    """
    aliased = {number for number, part in enumerate(parts) if names[1:] and part.alias.lower() == names[0]}
    return aliased or {
        number
        for number, part in enumerate(parts)
        if part.columns is None or part.alias.lower() in names[:-1] or not part.columns.isdisjoint(names)
    }


def _own(nodes: Iterable[exp.Expr]) -> Iterator[exp.Expr]:
    """Yield the nodes of expressions, without those of subqueries in them."""
    for node in nodes:
        yield from node.walk(prune=lambda one: isinstance(one, exp.Query))


def _is_aggregate(node: exp.Expr) -> bool:
    return (
        isinstance(node, exp.Anonymous) and node.name.lower() in _AGGREGATES and not isinstance(node.parent, exp.Window)
    )


def _is_generator(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in GENERATORS


def _items_of(generator: exp.Expr) -> int:
    """Return how many rows a function makes of one, as far as numbers in the query say it."""
    found = 1
    for node in generator.find_all(exp.Anonymous):
        numbers = [whole(argument) for argument in node.expressions]
        match node.name.lower(), numbers:
            case "sequence", [int(first), int(last)]:
                found *= abs(last - first) + 1
            case "sequence", [int(first), int(last), int(step)] if step:
                found *= abs((last - first) // step) + 1
            case "array_repeat" | "repeat", [_, int(times)]:
                found *= max(1, times)
            case "stack", [int(times), *_]:
                found *= max(1, times)
            case "array", _:
                found *= max(1, len(numbers))
            case _:
                pass
    return max(found, ARRAY_ITEMS if found == 1 else 1)
