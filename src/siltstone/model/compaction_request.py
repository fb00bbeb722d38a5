"""Requests for compaction: what a caller wants done to which datasets. Plain values."""

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
    """Of a vacuum: retention of removed files, in hours. None means the setting `vacuum_retention_hours`."""

    @property
    def operation(self) -> str:
        """The operation in one word, for messages."""
        return "purge" if self.purge else str(self.kind)
