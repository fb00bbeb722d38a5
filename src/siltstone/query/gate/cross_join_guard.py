"""Rejects joins that Spark cannot interrupt, and queries that Spark's planner cannot expand.

A Spark task checks for an interrupt after each batch of a file. It does not check between the rows that a join makes of
it. With two tables that takes a moment. Three datasets without an equality between them can take hours, so such a query
is rejected.

The check is an estimate: subqueries, common table expressions, filters and repeated keys are not counted. The time
limit is the promise to the caller. A shared server whose query does not end after its interrupt is replaced
(`spark/server_daemon.py`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import common_table, expanded_tables

BATCH_ROWS: Final = 1024
"""Rows of a file between two checks for an interrupt (`spark/launch_options.py`)."""
MIN_DATASETS: Final = 3
"""Datasets without an equality between them from which on the row pairs are estimated."""
MAX_EXPANDED_TABLES: Final = 512
"""Most tables of a query on Spark after its common table expressions are expanded."""
_ONE_SIDED: Final = ("SEMI", "ANTI")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSize:
    """Size and columns of a dataset."""

    rows: int
    columns: frozenset[str]
    """Column names in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One item of a FROM clause."""

    alias: str
    """In lower case."""
    size: DatasetSize | None
    """None unless the item is a dataset."""

    @property
    def rows(self) -> int:
        return self.size.rows if self.size is not None else 1

    def may_have(self, names: list[str]) -> bool:
        """True if one of these names can be a column of this item; its columns may be unknown."""
        return self.size is None or self.alias in names[:-1] or not self.size.columns.isdisjoint(names)


def check_expansion(query: exp.Query) -> None:
    """Reject a query with too many tables after Spark's planner has expanded its common table expressions."""
    tables = expanded_tables(query)
    if tables > MAX_EXPANDED_TABLES:
        raise InvalidRequest(
            f"The query reads {_about(tables)} tables once its common table expressions are expanded; Spark plans at most "
            f"{MAX_EXPANDED_TABLES:,}. An expression that names another one twice doubles its tables. Split the query."
        )


def check_product(query: exp.Query, dataset: Callable[[exp.Table], DatasetSize], *, most: int) -> None:
    """Reject a query that joins three or more datasets without an equality into more than `most` row pairs.

    Args:
        query: the tree that the gate has checked.
        dataset: returns size and columns of the dataset that a table names; called only for joins that may be rejected.
        most: the setting `query_pairs`; 0 allows any number.
    """
    for select in query.find_all(exp.Select) if most else ():
        tables = [item for _, item in _items(select) if _is_dataset(item)]
        if len(tables) < MIN_DATASETS:
            continue
        groups = [group for group in _groups(select, dataset) if any(item.size for item in group)]
        largest = [max(group, key=lambda item: item.rows) for group in groups]
        rows = [item.rows for item in largest]
        scanned = max(rows, default=0)
        # row pairs that one batch of the largest dataset makes
        pairs = math.prod(rows) * min(scanned, BATCH_ROWS) // scanned if scanned else 0
        if len(groups) >= MIN_DATASETS and pairs > most:
            *first, last = (item.alias for item in largest)
            raise InvalidRequest(
                f"Rejected: {', '.join(first)} and {last} are joined without an equality condition (about {_about(pairs)} row "
                "pairs that cannot be interrupted). The query was not run. Add an equi-join, filter or aggregate in a subquery "
                f"first, or raise query_pairs (now {most:,})."
            )


def _about(number: int) -> str:
    """Return a number, which may be too large for a float, with two digits.

    >>> _about(1_234_567_890)
    '1.2e9'
    """
    zeros = math.floor(math.log10(number))
    return f"{number / 10**zeros:.1f}e{zeros}"


def _groups(select: exp.Select, dataset: Callable[[exp.Table], DatasetSize]) -> list[list[_Item]]:
    """Return the FROM items of a SELECT, grouped by the equalities that connect them."""
    items: list[_Item] = []
    where = select.args.get("where")
    conditions: list[exp.Expr] = [where.this] if where is not None else []
    pairs: list[set[int]] = []
    for join, item in _items(select):
        if join is not None and any(word in str(join.args.get("kind")) for word in _ONE_SIDED):
            continue
        size = dataset(item) if isinstance(item, exp.Table) and _is_dataset(item) else None
        if size is not None and (names := item.alias_column_names):
            size = DatasetSize(rows=size.rows, columns=size.columns | {name.lower() for name in names})
        items.append(_Item(alias=item.alias_or_name.lower(), size=size))
        if join is not None and join.args.get("on"):
            conditions.append(join.args["on"])
        if join is not None and (join.args.get("using") or join.args.get("method")):
            pairs.append({len(items) - 2, len(items) - 1})
    pairs += [pair for condition in conditions for pair in _connected(condition, items)]
    groups = [{number} for number in range(len(items))]
    for pair in pairs:
        connected = [group for group in groups if group & pair]
        groups = [group for group in groups if not group & pair] + [set().union(*connected)]
    return [[items[number] for number in sorted(group)] for group in groups]


def _connected(condition: exp.Expr, items: list[_Item]) -> Iterator[set[int]]:
    """Yield the items on both sides of each equality of a condition, outside of its subqueries."""
    for node in condition.walk(prune=lambda inner: isinstance(inner, exp.Query)):
        if isinstance(node, exp.EQ | exp.NullSafeEQ):
            left, right = (_owners(side, items) for side in (node.this, node.expression))
            if left and right and len(left | right) > 1:
                yield left | right


def _owners(side: exp.Expr, items: list[_Item]) -> set[int]:
    """Return the items that the columns of an expression may belong to.

    The names of a column are an alias, a column and fields of it. Without an alias, each of them may be the column.
    """
    owners: set[int] = set()
    for column in side.find_all(exp.Column):
        names = [part.name.lower() for part in column.parts]
        aliased = {number for number, item in enumerate(items) if names[1:] and item.alias == names[0]}
        owners |= aliased or {number for number, item in enumerate(items) if item.may_have(names)}
    return owners


def _is_dataset(item: exp.Expr) -> bool:
    return isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier) and common_table(item) is None


def _items(node: exp.Expr) -> Iterator[tuple[exp.Join | None, exp.Expr]]:
    """Yield the items of a FROM, each with its join, also those of joins in parentheses."""
    start = node.args.get("from_")
    if start is not None:
        yield from _flat(None, start.this)
    for join in node.args.get("joins") or []:
        yield from _flat(join, join.this)


def _flat(join: exp.Join | None, item: exp.Expr) -> Iterator[tuple[exp.Join | None, exp.Expr]]:
    if isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table | exp.Subquery):
        yield from _flat(join, item.this)
    else:
        yield join, item
    for further in item.args.get("joins") or []:
        yield from _flat(further, further.this)
