"""Data files with their entries in a Delta log, and ranges of keys."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file of a Delta table: its path below the table, and its fields in the log."""

    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = ""
    modified_ms: int = field(default=0, compare=False)
    """Commit time from the log, in milliseconds; 0 if the log has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The files that a version of a table has added, and the id of its commit, if it has one."""

    files: tuple[DataFile, ...]
    commit_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A version of a table and the files that are live in it."""

    version: int
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Range (smallest, largest) of the key's first column in a file or row group; None if the footer has none."""

    low: Any = None
    high: Any = None

    @property
    def known(self) -> bool:
        """True if both ends are known."""
        return self.low is not None and self.high is not None


def whole_range(parts: Sequence[KeyRange]) -> KeyRange:
    """Return the range of a file from those of its row groups. It is unknown if one of them is, or if there are none.

    >>> whole_range([KeyRange(3, 5), KeyRange(1, 4)]), whole_range([KeyRange(3, 5), KeyRange()])
    (KeyRange(low=1, high=5), KeyRange(low=None, high=None))
    """
    if not parts or not all(part.known for part in parts):
        return KeyRange()
    return KeyRange(min(part.low for part in parts), max(part.high for part in parts))


def may_contain(key_range: KeyRange, keys: Sequence[Any]) -> bool:
    """True if one of the sorted keys may be in the range. A range with unknown ends may contain any key.

    >>> may_contain(KeyRange(3, 5), [1, 2, 6]), may_contain(KeyRange(3, 5), [1, 4]), may_contain(KeyRange(), [1])
    (False, True, True)
    """
    if not key_range.known:
        return bool(keys)
    at = bisect_left(keys, key_range.low)
    return at < len(keys) and bool(keys[at] <= key_range.high)
