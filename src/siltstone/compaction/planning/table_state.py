"""Table states for the planner: live files, backlog and removed files of a dataset, read from logs alone. No Spark."""

import datetime
from collections.abc import Callable, Iterable
from dataclasses import replace

from siltstone.clock import Clock, from_epoch_ms
from siltstone.compaction.operations.rewrite import tier_of
from siltstone.compaction.planning.model import CLUSTERED, Backlog, FileEntry, Shape, TableState
from siltstone.config import Settings
from siltstone.dataset.snapshot import sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.layout import JOURNAL, Layout, has_versions
from siltstone.delta.table import Table
from siltstone.errors import Gone, SiltstoneError
from siltstone.eventlog.arrow_rows import DAY
from siltstone.eventlog.local_table import open_table
from siltstone.model.columns import PERIOD, RESERVED_PREFIX
from siltstone.model.files import DataFile
from siltstone.model.spec import Kind
from siltstone.model.tiers import Tier


def table_state(store: Store, *, tiers: tuple[Tier, ...]) -> TableState:
    """Return the state of one dataset."""
    snapshot = store.snapshot()
    unfolded = snapshot.unfolded
    waiting = [*_removal_times(store.base), *_removal_times(store.changes)]
    clustered = [file.modified_ms for file in snapshot.base.files if tier_of(file.path) == CLUSTERED]
    return TableState(
        name=str(store.name),
        shape=Shape.LOG if store.spec.kind is Kind.LOG else Shape.KEYED,
        files=[base_entry(file) for file in snapshot.base.files],
        change_files=[change_entry(file) for file in unfolded],
        backlog=Backlog(
            batches=snapshot.sequence - snapshot.watermark,
            rows=snapshot.unfolded_rows,
            size_bytes=sum(file.size_bytes for file in unfolded),
            oldest_ms=min((file.modified_ms for file in unfolded if file.modified_ms), default=None),
        ),
        tiers=tiers if store.spec.kind is Kind.LOG else (),
        cluster_by=store.spec.clustered_by,
        clustered_at=from_epoch_ms(max(clustered)) if clustered else None,
        removed_files=len(waiting),
        removed_since=from_epoch_ms(min(waiting)) if waiting else None,
    )


def table_states(
    stores: Iterable[Store],
    *,
    tiers: Callable[[Store], tuple[Tier, ...]],
    vacuumed_at: Callable[[str], datetime.datetime | None],
    skip_damaged: bool,
) -> tuple[list[TableState], dict[str, str]]:
    """Return the states of several datasets, and the datasets that cannot be read, each with its reason.

    `vacuumed_at` returns the time of a dataset's last vacuum, if it is known. Without `skip_damaged`, a dataset that
    cannot be read raises its error.
    """
    states: list[TableState] = []
    unreadable: dict[str, str] = {}
    for store in stores:
        try:
            state = table_state(store, tiers=tiers(store))
            states.append(replace(state, vacuumed_at=vacuumed_at(state.name)))
        except (SiltstoneError, OSError) as error:
            if not skip_damaged:
                raise
            if not isinstance(error, Gone):
                unreadable[str(store.name)] = str(error)
    return states, unreadable


def event_log_state(layout: Layout, *, settings: Settings, clock: Clock) -> TableState | None:
    """Return the state of the lake's own event log; None if it does not exist yet."""
    if not has_versions(layout.events):
        return None
    files = open_table(layout.events, settings=settings, clock=clock).pin().files
    entries = [
        FileEntry(
            path=file.path,
            size_bytes=file.size_bytes,
            rows=file.rows,
            period=file.partition.get(DAY) or "",
            modified_ms=file.modified_ms,
        )
        for file in files
    ]
    return TableState(name=JOURNAL, shape=Shape.EVENTS, files=entries, tiers=(), removed_files=0)


def base_entry(file: DataFile) -> FileEntry:
    """Return the planner's entry of a live file of base."""
    columns = {name: value for name, value in file.partition.items() if not name.startswith(RESERVED_PREFIX)}
    return FileEntry(
        path=file.path,
        size_bytes=file.size_bytes,
        rows=file.rows,
        period=file.partition.get(PERIOD) or "",
        partition=tuple(sorted(columns.items())),
        tier=tier_of(file.path),
        modified_ms=file.modified_ms,
    )


def change_entry(file: DataFile) -> FileEntry:
    """Return the planner's entry of a live file of `changes`."""
    return FileEntry(
        path=file.path,
        size_bytes=file.size_bytes,
        rows=file.rows,
        modified_ms=file.modified_ms,
        order=sequence_of(file),
    )


def _removal_times(table: Table) -> list[int]:
    """Return the removal time of each removed file that is still on disk."""
    return [at_ms for path, at_ms in table.removals().items() if (table.path / path).exists()]
