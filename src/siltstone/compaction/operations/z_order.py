"""The Z-order of several columns, with whole numbers: rows that are close in it are close in each of the columns. Pure.

Each column's values are cut into ranges. The number of a value's range is its *rank*. The bits of the ranks are
interleaved, the highest bits first and the columns in rotation. So each column has its share of the order. A column
with few different values has few bits. A column with a single value has none, and costs the others nothing.
"""

from collections.abc import Sequence
from typing import Final

RANGES: Final = 64
"""Number of ranges of a column. Four columns have 24 bits, which is more positions than any period has files."""


def interleaved(ranks: Sequence[int]) -> list[list[int]]:
    """Return the share of each rank of each column in a row's position. Columns are given by their numbers of ranks.

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
    """Return a rank with its bits moved to these positions, the highest bit first."""
    low_first = tuple(reversed(places))
    return sum((rank >> bit & 1) << place for bit, place in enumerate(low_first))
