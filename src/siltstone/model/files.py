"""Files and commits as data: what a commit adds, removes, sets and depends on."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file of a Delta table: its path below the table, and what the log says of it."""

    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = ""
    modified_ms: int = field(default=0, compare=False)
    """When it was committed, as its log says; 0 if it does not."""


class CommitKind(StrEnum):
    """What a commit does; compactions are checked against everything that happened since their plan."""

    APPEND = "append"
    FIRST_LOAD = "first_load"
    FOLD = "fold"
    PRUNE = "prune"
    SQUASH = "squash"
    CLUSTER = "cluster"
    REGISTER = "register"
    LEASE = "lease"
    EXPORT = "export"
    EPOCH = "epoch"
    LOADS = "loads"
    """Says on base that files are loaded as changes from now on."""
    METADATA = "metadata"
    RESTORE = "restore"
    """Fences what was planned before the dataset was restored from a backup."""
    REPAIR = "repair"
    FORGET = "forget"
    """Forgets the oldest marks of producers and loaded files."""

    @property
    def moves_rows_only(self) -> bool:
        """True if the table says the same before and after, so that followers need not look."""
        return self in (CommitKind.PRUNE, CommitKind.SQUASH, CommitKind.CLUSTER)

    @property
    def rewrites_rows(self) -> bool:
        """True if rows of other files are written anew, so that a column that is missing would be lost."""
        return self in (CommitKind.FOLD, CommitKind.SQUASH, CommitKind.CLUSTER)

    @property
    def is_compaction(self) -> bool:
        """True if a change of metadata or protocol since the plan is a conflict."""
        return self not in (CommitKind.APPEND, CommitKind.REGISTER, CommitKind.LEASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One atomic step of one table.

    `plan_version` is the version the files were chosen at: every log entry after it is checked. `depends` are app
    transactions that must not have moved since then; `forgets` are those that the next checkpoint drops, with their values;
    `epoch` is the lease epoch of the job, if it runs under one;
    `table_actions` change the table itself (its columns, its protocol) and are written as they are.
    """

    kind: CommitKind
    plan_version: int
    adds: tuple[DataFile, ...] = ()
    removes: tuple[DataFile, ...] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)
    forgets: Mapping[str, int] = field(default_factory=dict)
    depends: frozenset[str] = frozenset()
    epoch: int | None = None
    table_actions: tuple[Mapping[str, Any], ...] = ()
    info: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What landed: the version and the commit that made it, as built for its parent."""

    version: int
    commit_id: str
    commit: Commit


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
    """The smallest and largest value of the key's first column in a file or row group; None where the footer does not say."""

    low: Any = None
    high: Any = None

    @property
    def known(self) -> bool:
        """True if the footer says both."""
        return self.low is not None and self.high is not None


def may_contain(found: KeyRange, keys: Sequence[Any]) -> bool:
    """True if a sorted list of keys has one in the range; unknown ends mean "may contain".

    >>> may_contain(KeyRange(3, 5), [1, 2, 6]), may_contain(KeyRange(3, 5), [1, 4]), may_contain(KeyRange(), [1])
    (False, True, True)
    """
    if not found.known:
        return bool(keys)
    at = bisect_left(keys, found.low)
    return at < len(keys) and bool(keys[at] <= found.high)
