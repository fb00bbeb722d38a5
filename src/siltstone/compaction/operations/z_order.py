"""The Z-order of several columns, with whole numbers: rows that are near in it are near in each of the columns. Pure.

Each column's values are cut into ranges; the number of a value's range is its *rank*. The bits of the ranks are interleaved, the
highest ones first and the columns in turn, so that each column has its share of the order. A column with few different values
has few bits, and one with a single value none: it costs the others nothing.
"""

from collections.abc import Sequence
from typing import Final

RANGES: Final = 64
"""Into so many ranges a column is cut: four columns are 24 bits, more than any period has files."""


def interleaved(ranks: Sequence[int]) -> list[list[int]]:
    """Return what each rank of each column adds to a row's place in the order; columns are given by how many ranks they have.

    >>> interleaved([4, 2])
    [[0, 1, 4, 5], [0, 2]]
    >>> interleaved([1, 3])
    [[0], [0, 1, 2]]
    """
    bits = [(count - 1).bit_length() for count in ranks]
    at = sum(bits)
    places: list[list[int]] = [[] for _ in bits]
    for level in range(max(bits, default=0)):
        for column, own in enumerate(bits):
            if level < own:
                at -= 1
                places[column].append(at)
    return [[_spread(rank, places[column]) for rank in range(count)] for column, count in enumerate(ranks)]


def _spread(rank: int, places: Sequence[int]) -> int:
    """Return a rank with its bits, of which the highest is named first, at these places."""
    low_first = tuple(reversed(places))
    return sum((rank >> bit & 1) << place for bit, place in enumerate(low_first))
