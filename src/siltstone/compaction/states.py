"""A dataset as the planner sees it: its live files, its backlog and what waits for a vacuum, from logs alone. No Spark."""

import datetime
from typing import Final

from siltstone.compaction.candidates import CLUSTERED, Backlog, FileEntry, Shape, TableState
from siltstone.compaction.rewrite import tier_of
from siltstone.dataset.store import Snapshot, Store, sequence_of
from siltstone.model.columns import PERIOD, RESERVED_PREFIX
from siltstone.model.files import DataFile
from siltstone.model.spec import Kind
from siltstone.model.tiers import Tier
from siltstone.storage.table import Table

MS_PER_SECOND: Final = 1000


def table_state(store: Store, *, tiers: tuple[Tier, ...]) -> TableState:
    """Look at one dataset.

    Raises:
        Gone: it was dropped.
    """
    snapshot = store.snapshot()
    waiting = [*_waiting(store.base), *_waiting(store.changes)]
    clustered = [file.modified_ms for file in snapshot.base.files if tier_of(file.path) == CLUSTERED]
    return TableState(
        name=str(store.name),
        shape=Shape.LOG if store.spec.kind is Kind.LOG else Shape.KEYED,
        files=[base_entry(file) for file in snapshot.base.files],
        change_files=[_change_entry(file) for file in snapshot.unfolded],
        backlog=_backlog(snapshot),
        tiers=tiers if store.spec.kind is Kind.LOG else (),
        cluster_by=store.spec.clustered_by,
        clustered_at=_moment(max(clustered)) if clustered else None,
        removed_files=len(waiting),
        removed_since=_moment(min(waiting)) if waiting else None,
    )


def base_entry(file: DataFile) -> FileEntry:
    """Return a live file of base as the planner sees it."""
    own = {name: value for name, value in file.partition.items() if not name.startswith(RESERVED_PREFIX)}
    return FileEntry(
        path=file.path,
        size_bytes=file.size_bytes,
        rows=file.rows,
        period=file.partition.get(PERIOD) or "",
        partition=tuple(sorted(own.items())),
        tier=tier_of(file.path),
        modified_ms=file.modified_ms,
    )


def _change_entry(file: DataFile) -> FileEntry:
    return FileEntry(
        path=file.path,
        size_bytes=file.size_bytes,
        rows=file.rows,
        modified_ms=file.modified_ms,
        order=sequence_of(file),
    )


def _backlog(snapshot: Snapshot) -> Backlog:
    files = snapshot.unfolded
    return Backlog(
        batches=snapshot.sequence - snapshot.watermark,
        rows=snapshot.unfolded_rows,
        size_bytes=sum(file.size_bytes for file in files),
        oldest_ms=min((file.modified_ms for file in files if file.modified_ms), default=None),
    )


def _waiting(table: Table) -> list[int]:
    """Return when each file was removed that is still on disk."""
    return [at_ms for path, at_ms in table.removals().items() if (table.path / path).exists()]


def _moment(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / MS_PER_SECOND, datetime.UTC)
