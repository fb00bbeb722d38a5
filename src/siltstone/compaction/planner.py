"""What a fold will do, as data: which base files it rewrites, and how many rows must come out. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from siltstone.model.files import DataFile

MEGABYTE: Final = 1024 * 1024
SMALL_FILE_SHARE: Final = 8
"""A base file below this fraction of the target size is small."""
MANY_SMALL_FILES: Final = 8
"""A fold that adds rows takes small files along once there are this many, so that their number stays bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """How many rows of one base file have a key that is replaced or dropped."""

    replaced: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """A fold as data: exact files in, exact row counts out."""

    base_version: int
    watermark: int
    target: int
    epoch: int
    touched: tuple[DataFile, ...]
    batches: int
    change_rows: int
    upserts: int
    tombstones: int
    replaced: int
    dropped: int
    base_rows: int
    base_bytes: int

    @property
    def new_rows(self) -> int:
        """Upserts of keys that base does not have."""
        return self.upserts - self.replaced

    @property
    def expected_rows(self) -> int:
        """How many rows the written files must hold."""
        return sum(file.rows for file in self.touched) - self.dropped + self.new_rows

    @property
    def final_rows(self) -> int:
        """How many rows base holds after the fold."""
        return self.base_rows - self.dropped + self.new_rows


def touched_files(
    files: Iterable[DataFile], matched: Mapping[str, Matched], *, new_rows: int, target_bytes: int
) -> tuple[DataFile, ...]:
    """Return the files to rewrite: those with matched rows, and small ones if rows are added and they have become many.

    >>> a, b = (DataFile(path=p, size_bytes=9, rows=1) for p in "ab")
    >>> [f.path for f in touched_files([a, b], {"b": Matched(replaced=1)}, new_rows=0, target_bytes=100)]
    ['b']
    """
    everything = sorted(files, key=lambda file: file.path)
    small = [file for file in everything if file.size_bytes * SMALL_FILE_SHARE < target_bytes]
    take_small = new_rows > 0 and len(small) >= MANY_SMALL_FILES
    return tuple(file for file in everything if file.path in matched or (take_small and file in small))


def may_contain(low: Any, high: Any, keys: Sequence[Any]) -> bool:  # noqa: ANN401
    """True if a sorted list of keys has one in the range; unknown ends mean "may contain".

    >>> may_contain(3, 5, [1, 2, 6]), may_contain(3, 5, [1, 4]), may_contain(None, None, [1])
    (False, True, True)
    """
    from bisect import bisect_left

    if low is None or high is None:
        return bool(keys)
    at = bisect_left(keys, low)
    return at < len(keys) and keys[at] <= high


def may_share_a_task(files: Sequence[DataFile], *, cores: int) -> bool:
    """True if Spark may read two of these files in one task, so that what it writes is no longer in their order.

    Spark packs files into tasks of at most 128 MB, or the share of one core if that is less, each file with 4 MB on top.

    >>> large, small = (DataFile(path="f", size_bytes=n * MEGABYTE, rows=1) for n in (100, 5))
    >>> may_share_a_task([large, large], cores=2), may_share_a_task([large, small, small], cores=2)
    (False, True)
    """
    if len(files) < 2:  # noqa: PLR2004
        return False
    opened = sorted(file.size_bytes + 4 * MEGABYTE for file in files)
    task = min(128 * MEGABYTE, max(4 * MEGABYTE, sum(opened) // cores))
    return opened[0] + opened[1] - 4 * MEGABYTE <= task
