"""Random queries inside the subset: templates for each type and clause, filled with templates and columns.

A template has the item of the subset that it tests, and holes: ``{whole}`` becomes another whole number. `GeneratedQuery.items` lists
the items of a query, so that a test can check that every item of the subset is used.
"""

import datetime
import math
import random
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from tests.differential.templates import COLUMNS, LEAVES, PICKED, SHORT, TEMPLATES

MAX_DEPTH: Final = 3
LEAF: Final = 0.4
"""Probability that a hole becomes a column or a literal before the depth limit."""
EDGY: Final = 0.06
"""Probability that a query uses values that may end it on the hot engine: overflows, divisions by zero."""

_SUMMED: Final = re.compile(r"\b(sum|avg)\(")
_EXTREME: Final = re.compile(r"\b(min|max|greatest|least)\(")
_HOLE: Final = re.compile(r"\{(\w+)\}")
_NAMED: Final = re.compile(r":(int|long|float|decimal|text|bytes|bool|day|time|local)\b")
_VALUES: dict[str, tuple[object, ...]] = {
    "int": (0, 1, -1, 7, -(2**31) + 1),
    "long": (2**31, -(2**33), 10**12),
    "float": (0.5, -0.0, math.nan, math.inf, 1e-300, -2.25),
    "decimal": (Decimal("0.05"), Decimal("-12345678901234567890.5"), Decimal("1E+3"), Decimal("0.000")),
    "text": ("", "a", "é ", "it's", 'q"', "\\", "%", "a\0b", "😀", ":int", "$1", "${env:HOME}", "x'; --", "\r\n"),
    "bytes": (b"", b"\0", b"\xff\xfe", b"'"),
    "bool": (True, False),
    "day": (datetime.date(2024, 2, 29), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    "time": (
        datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.UTC),
        datetime.datetime(2026, 3, 29, 3, 30, 0, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    ),
    "local": (datetime.datetime.fromisoformat("2024-02-29T23:59:59.500000"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedQuery:
    """One query and its items."""

    text: str
    parameters: dict[str, object] = field(default_factory=dict)
    items: frozenset[str]
    """Items of the published subset."""

    @property
    def summed(self) -> bool:
        """True if the last digits of doubles may differ."""
        return _SUMMED.search(self.text) is not None

    @property
    def either_zero(self) -> bool:
        """True if a zero may have either sign."""
        return _EXTREME.search(self.text) is not None


class _Chance:
    """Generates random queries."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.items: set[str] = set()

    def query(self) -> GeneratedQuery:
        self.items = set()
        text = self.drawn("edgy query" if self.random.random() < EDGY else "query", 0)
        names = dict.fromkeys(_NAMED.findall(text))
        values = {name: self.random.choice(_VALUES[name]) for name in names}
        if values:
            self.items.add("parameters :name")
        return GeneratedQuery(text=text, parameters=values, items=frozenset(self.items))

    def drawn(self, kind: str, depth: int) -> str:
        """Return a random word, column, literal or filled template of a kind."""
        if kind in COLUMNS or kind in SHORT:
            return self.random.choice((COLUMNS | SHORT)[kind])
        if kind in PICKED:
            return self.drawn(self.random.choice(PICKED[kind]), depth)
        templates = TEMPLATES[kind]
        if kind in LEAVES and (not templates or depth >= MAX_DEPTH or self.random.random() < LEAF):
            return self.random.choice(LEAVES[kind])
        item, text = self.random.choice(templates)
        self.items.add(item)
        return _HOLE.sub(lambda hole: self.drawn(hole[1], depth + (kind in LEAVES)), text)


def generated(count: int, *, seed: int) -> list[GeneratedQuery]:
    """Return queries over the tables of `generated_rows`; the same for the same seed."""
    chance = _Chance(seed)
    return [chance.query() for _ in range(count)]
