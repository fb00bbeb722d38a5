"""Status of a dataset: size, backlog and the estimated work of a fold, from logs, listings and footers, without Spark.

A status is requested most often when something is wrong. So a file that cannot be read is named and hides nothing
else. Numbers that would come from it are replaced by their upper bounds. Rows of a dataset with such a file still
cannot be read.
"""

import datetime
from typing import Final

import pyarrow as pa

from siltstone.clock import from_epoch_ms, utc_text
from siltstone.compaction.operations.fold import estimate, estimate_of
from siltstone.compaction.operations.fold_log import estimate_log
from siltstone.compaction.operations.garbage_collection import Disk, scan_files
from siltstone.compaction.operations.unreadable_files import unreadable_files
from siltstone.dataset.read.arrow_view import read_file
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.errors import Corruption, SiltstoneError, Unavailable
from siltstone.model.columns import WRITTEN_AT
from siltstone.model.reports import FoldEstimate, Status

MAX_FOOTERS: Final = 1_000
"""Highest number of change files whose footers are read. More exist only in a dataset that is never folded."""

Reasons = dict[str, SiltstoneError]
"""Errors of files, by their paths below the dataset's folder."""


def status(store: Store) -> Status:
    """Count rows, files, bytes and backlog, and name the unreadable files that were found."""
    disk = Disk.of(store)  # before the logs are read
    snapshot = store.snapshot()
    unfolded = snapshot.unfolded
    unreferenced, bad = scan_files(store, disk, base=snapshot.base, changes=snapshot.changes)
    bad |= unreadable_files(store, (), changes=unfolded[:MAX_FOOTERS])
    fold = _estimate_or_bound(store, snapshot, bad)
    since = _oldest_change(store, snapshot, bad)
    if bad:  # leave out files that were compacted and deleted meanwhile
        now = store.snapshot()
        live = {f"base/{file.path}" for file in now.base.files} | {f"changes/{file.path}" for file in now.unfolded}
        bad = {path: error for path, error in sorted(bad.items()) if path in live}
    return Status(
        dataset=str(store.name),
        kind=store.spec.kind.value,
        rows_in_base=snapshot.base.rows,
        base_files=len(snapshot.base.files),
        base_bytes=snapshot.base.size_bytes,
        base_version=snapshot.base.version,
        sequence=snapshot.sequence,
        watermark=snapshot.watermark,
        backlog_batches=snapshot.sequence - snapshot.watermark,
        backlog_rows=snapshot.unfolded_rows,
        backlog_files=len(unfolded),
        backlog_bytes=sum(file.size_bytes for file in unfolded),
        oldest_unfolded_at=utc_text(since, timespec="seconds") if since else None,
        stale_seconds=max(0.0, (store.clock.now() - since).total_seconds()) if since else 0.0,
        fold_files_at_most=fold.files_touched_at_most,
        fold_bytes_at_most=fold.bytes_touched_at_most,
        unreferenced_files=len(unreferenced),
        unreferenced_bytes=sum(file.size_bytes for file in unreferenced),
        unreadable={path: str(error) for path, error in bad.items()},
        unreadable_kinds={path: error.kind for path, error in bad.items()},
        unreadable_reasons={path: error.reason for path, error in bad.items()},
    )


def fold_estimate(store: Store, snapshot: Snapshot) -> FoldEstimate:
    """Estimate the work of a fold of a snapshot, without Spark."""
    return estimate_log(store, snapshot) if store.spec.is_log else estimate(store, snapshot)


def _estimate_or_bound(store: Store, snapshot: Snapshot, bad: Reasons) -> FoldEstimate:
    """Estimate the work of a fold. If changes cannot be read, assume all of base and add the reasons to `bad`."""
    try:
        return fold_estimate(store, snapshot)
    except (Corruption, Unavailable, OSError, pa.ArrowException) as error:
        unreadable = unreadable_files(store, snapshot.base.files, changes=snapshot.unfolded, error=error)
        if not unreadable and not isinstance(error, FileNotFoundError):  # such a file was folded and deleted meanwhile
            raise
        bad |= unreadable
        return estimate_of(store, snapshot, snapshot.base.files)


def _oldest_change(store: Store, snapshot: Snapshot, bad: Reasons) -> datetime.datetime | None:
    """Return the commit time of the oldest change; if a squash hid it, the oldest readable write time."""
    if snapshot.changed_ms is not None:
        return from_epoch_ms(snapshot.changed_ms[0])
    for file in snapshot.unfolded:
        try:
            rows = read_file(store, store.changes.path / file.path, store.change_schema, [WRITTEN_AT])
        except FileNotFoundError:
            continue
        except (Corruption, Unavailable) as error:
            bad.setdefault(f"changes/{file.path}", error)
            continue
        return min(rows.column(WRITTEN_AT).to_pylist(), default=None)
    return None
