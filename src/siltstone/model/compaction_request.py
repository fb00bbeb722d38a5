"""Requests for compaction: what a caller wants done to which datasets. Plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class RequestKind(StrEnum):
    """The operation of a request."""

    CYCLE = "cycle"
    COMPACT = "compact"
    SQUASH = "squash"
    CLUSTER = "cluster"
    VACUUM = "vacuum"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """A cycle, or one operation on datasets."""

    kind: RequestKind
    names: tuple[str, ...] | None = None
    """The datasets; None means all."""
    only: tuple[str, ...] | None = None
    """Of a cycle: tiers and kinds of jobs; None means all."""
    force: bool = False
    """Of a cycle: also plan jobs that are below their thresholds or too young."""
    purge: bool = False
    """Of a compaction: also delete from disk all data that is no longer part of the datasets."""
    by: tuple[str, ...] = ()
    """Of a clustering: the columns; the dataset's own if empty."""
    retention_hours: float | None = None
    """Of a vacuum: retention of removed files, in hours.

    None means the setting `base_retention_hours`, at least `vacuum_floor_hours`.
    """

    @property
    def operation(self) -> str:
        """The operation in one word, for messages."""
        return "purge" if self.purge else str(self.kind)


Crons = Mapping[str, frozenset[str | None]]
"""Crons by which each tier is due, by tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of the jobs that a cycle plans."""

    names: Sequence[str] | None = None
    """Names of the datasets; None means all."""
    only: Sequence[str] | None = None
    """Kinds of jobs and names of tiers; None means all."""
    force: bool = False
    """True to also plan jobs below their thresholds or minimum ages."""
    crons: Crons | None = None
    """Crons by which each tier is due. A dataset with another cron for the tier is left out."""
    known_tiers: frozenset[str] = frozenset()
    """Tiers that `only` may name although no dataset has them now."""
