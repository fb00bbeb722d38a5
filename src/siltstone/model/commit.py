"""A commit to a table: its kind, what it adds, removes and sets, and its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from siltstone.model.files import DataFile


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
