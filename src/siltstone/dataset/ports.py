"""What a dataset needs from layers above it. `Lake` passes the implementations in."""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from siltstone.dataset.store import Store
from siltstone.model.reports import (
    ClusterEstimate,
    CompactReport,
    FoldEstimate,
    RollUpReport,
    SquashReport,
    Status,
    VacuumReport,
)


class Maintenance(Protocol):
    """Maintenance operations of a dataset; the compaction layer implements them."""

    def compact(self, store: Store, *, purge: bool) -> CompactReport:
        """Fold the changes into base; with `purge`, delete from disk all that is no longer part of the dataset."""

    def squash(self, store: Store, *, many: int = 2, dry_run: bool = False) -> SquashReport:
        """Merge small change files, if there are at least `many`."""

    def cluster_all(self, store: Store, *, by: Sequence[str] = ()) -> list[RollUpReport]:
        """Cluster the rows of every period of a log by several columns at once."""

    def cluster_estimate(self, store: Store, *, by: Sequence[str] = ()) -> ClusterEstimate:
        """Return what a clustering would rewrite; nothing is changed."""

    def estimate(self, store: Store) -> FoldEstimate:
        """Return the estimated work of a fold; nothing is changed."""

    def vacuum(self, store: Store, *, retention_hours: float | None, dry_run: bool) -> VacuumReport:
        """Delete removed files that are older than the retention."""

    def status(self, store: Store) -> Status:
        """Return counts of rows, files and bytes."""


class Conditions(Protocol):
    """Conditions on rows; the query layer implements them."""

    def for_spark(self, where: str, columns: Sequence[str]) -> str:
        """Check a condition over columns, and return its text for Spark."""

    def columns(self, where: str, schema: pa.Schema) -> list[str]:
        """Return the columns that a condition names."""

    def rows(self, table: pa.Table, where: str) -> pa.Table:
        """Return the rows of a table for which a condition holds, without Spark."""
