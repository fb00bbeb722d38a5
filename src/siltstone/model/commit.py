"""A commit to a table: its kind, what it adds, removes and sets, and its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from siltstone.model.files import DataFile


class CommitKind(StrEnum):
    """The kind of a commit. Compactions are checked against every commit since their plan."""

    APPEND = "append"
    FIRST_LOAD = "first_load"
    FOLD = "fold"
    PRUNE = "prune"
    SQUASH = "squash"
    ROLL_UP = "roll_up"
    CLUSTER = "cluster"
    REGISTER = "register"
    LEASE = "lease"
    EXPORT = "export"
    EPOCH = "epoch"
    LOADS = "loads"
    """Marks base: from now on files are loaded as changes."""
    METADATA = "metadata"
    RESTORE = "restore"
    """Fences jobs that were planned before the dataset was restored from a backup."""
    REPAIR = "repair"
    FORGET = "forget"
    """Drops the oldest transactions of producers and loaded files."""

    @property
    def moves_rows_only(self) -> bool:
        """True if the rows of the table stay the same, so that followers can skip the commit."""
        return self in (CommitKind.PRUNE, CommitKind.SQUASH, CommitKind.ROLL_UP, CommitKind.CLUSTER)

    @property
    def rewrites_rows(self) -> bool:
        """True if rows of other files are rewritten, so that a missing column would be lost."""
        return self in (CommitKind.FOLD, CommitKind.SQUASH, CommitKind.ROLL_UP, CommitKind.CLUSTER)

    @property
    def is_compaction(self) -> bool:
        """True if a change of metadata or protocol since the plan is a conflict."""
        return self not in (CommitKind.APPEND, CommitKind.REGISTER, CommitKind.LEASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One atomic change of one table.

    `plan_version` is the version at which the files were chosen: every log entry after it is checked. `depends` are
    app transactions that must not have changed since then. `forgets` are app transactions that the next checkpoint
    drops, with their values. `epoch` is the lease epoch of the job, if it runs under a lease. `table_actions` change
    the table itself (its columns, its protocol) and are written unchanged.
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
    """A commit that has landed: its version, and the commit as built for its parent version."""

    version: int
    commit_id: str
    commit: Commit
