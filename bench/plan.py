"""Extent of a run: sizes, rounds, and the text form of sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from bench.data import Stage
from bench.measure import Meter

MILLION: Final = 1_000_000
ROUNDS: Final = 7
LARGE_ROWS: Final = 5_000_000
LARGE_ROUNDS: Final = 3
"""Rewriting ten million rows takes long and varies little, so three rounds are enough there."""
_UNITS: Final = {"k": 1_000, "m": 1_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: what is prepared, how it is measured, and how much of it."""

    stage: Stage
    meter: Meter
    console: Console
    sizes: tuple[int, ...]
    rounds: int
    quick: bool

    @property
    def large_sizes(self) -> tuple[int, ...]:
        """The sizes from a million rows on, or the largest one there is."""
        return tuple(rows for rows in self.sizes if rows >= MILLION) or self.sizes[-1:]

    def rounds_at(self, rows: int) -> int:
        """Return how often something that rewrites this many rows is measured."""
        return min(self.rounds, LARGE_ROUNDS) if rows >= LARGE_ROWS else self.rounds

    def log(self, text: str) -> None:
        """Print the progress."""
        self.console.print(f"[dim]{text}[/dim]", highlight=False)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes, smallest first.

    >>> parse_sizes("1m,100k,500")
    (500, 100000, 1000000)
    """
    return tuple(sorted({_size(part.strip().lower()) for part in text.split(",")}))


def _size(text: str) -> int:
    factor = _UNITS.get(text[-1:], 1)
    return int(float(text[:-1]) * factor) if factor > 1 else int(text)


def size_text(rows: int) -> str:
    """Write a size.

    >>> size_text(100_000), size_text(10_000_000), size_text(123)
    ('100K', '10M', '123')
    """
    if rows % 1_000_000 == 0:
        return f"{rows // 1_000_000}M"
    return f"{rows // 1_000}K" if rows % 1_000 == 0 else str(rows)


def step(sizes: Sequence[int], rows: int) -> int | None:
    """Return the size before this one."""
    at = list(sizes).index(rows)
    return sizes[at - 1] if at else None
