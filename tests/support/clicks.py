"""A small log of clicks, rows for it, and its oracle: a list of appends and tombstones in Python."""

import datetime
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from siltstone import Dataset, Lake

NAME = "web.eu.clicks"
SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("visitor", pa.string()),
        pa.field("account", pa.int64()),
        pa.field("region", pa.string()),
        pa.field("n", pa.int64()),
    ]
)
START = datetime.datetime(2026, 11, 15, 14, 30, tzinfo=datetime.UTC)

Row = dict[str, Any]


def click(n: int, /, **changed: Any) -> Row:  # noqa: ANN401
    """Return one row: 15 minutes after the previous, with one of five visitors, two accounts and one region or none."""
    row = {
        "at": START + datetime.timedelta(minutes=15 * n),
        "visitor": f"V-{n % 5}",
        "account": n % 2,
        "region": [None, "eu"][n // 2 % 2],
        "n": n,
    }
    return row | changed


def clicks(count: int, *, start: int = 0) -> list[Row]:
    """Several rows."""
    return [click(n) for n in range(start, start + count)]


def create(lake: Lake, name: str = NAME, **changed: Any) -> Dataset:  # noqa: ANN401
    """Create the log."""
    options = {
        "time": "at",
        "subject": ["visitor", "account"],
        "partition_by": ["region"],
        "sort_by": ["visitor", "at"],
    }
    return lake.create(name, SCHEMA, **(options | changed))


def as_counter(rows: pa.Table | list[Row]) -> Counter[tuple[Any, ...]]:
    """Return rows as a multiset: order does not count, copies do."""
    listed = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return Counter(tuple(row.get(name) for name in SCHEMA.names) for row in listed)


def period_of(row: Row) -> str:
    """The hour of a row.

    >>> period_of({"at": START})
    '2026-11-15T14'
    """
    return str(row["at"].strftime("%Y-%m-%dT%H"))


@dataclass
class Oracle:
    """The view of a log: every append that no later tombstone names; of rows equal in `dedup_by` only the survivor."""

    entries: list[tuple[str, Row]] = field(default_factory=list)
    dedup_by: tuple[str, ...] = ()
    survivor: str = "first"

    def append(self, rows: list[Row]) -> None:
        """Record appended rows."""
        self.entries += [("A", row) for row in rows]

    def tombstone(self, named: list[Row]) -> None:
        """Hide earlier rows that have all the named values."""
        self.entries += [("D", row) for row in named]

    @property
    def raw(self) -> list[Row]:
        """Return every append."""
        return [row for op, row in self.entries if op == "A"]

    @property
    def rows(self) -> list[Row]:
        """Return the visible rows."""
        seen = [row for place, (op, row) in enumerate(self.entries) if op == "A" and not self._hidden(place, row)]
        if not self.dedup_by:
            return seen
        survivors: dict[tuple[Any, ...], Row] = {}
        for row in seen:
            key = tuple(row.get(name) for name in self.dedup_by)
            if self.survivor == "last" or key not in survivors:
                survivors[key] = row
        return list(survivors.values())

    def _hidden(self, place: int, row: Row) -> bool:
        later = [named for op, named in self.entries[place + 1 :] if op == "D"]
        return any(all(row[name] == value for name, value in named.items()) for named in later)
