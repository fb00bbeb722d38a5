"""Maintenance operations of one dataset: recovery, folds, purges, vacuums, status. `Dataset` and jobs call them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from siltstone.compaction.operations.cluster import cluster, estimate, whole_base
from siltstone.compaction.operations.commit import prune, raise_epoch
from siltstone.compaction.operations.dataset_status import fold_estimate, status
from siltstone.compaction.operations.fold import KeyedFold, fold, initial_plan, report_of
from siltstone.compaction.operations.fold_log import LogFold
from siltstone.compaction.operations.garbage_collection import (
    check_no_link,
    purge_files,
    sweep_orphans,
    unreferenced_files,
    vacuum,
)
from siltstone.compaction.operations.roll_up import roll_up
from siltstone.compaction.operations.squash import prune_exactly, squash
from siltstone.compaction.planning.model import JobSpec
from siltstone.dataset.schema_changes import finish
from siltstone.dataset.store import Store
from siltstone.errors import Conflict
from siltstone.failpoints import reach
from siltstone.model.reports import (
    ClusterEstimate,
    CompactReport,
    FoldEstimate,
    RollUpReport,
    SquashReport,
    Status,
    VacuumReport,
)
from siltstone.spark.job_tags import add_tag, interrupt_tag, remove_tag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PURGE_TRIES: Final = 5
"""Highest number of folds in a purge. A fold is repeated if another process commits first."""


class DatasetMaintenance:
    """Implements the dataset layer's `Maintenance`."""

    def __init__(self, *, spark: "Callable[[], SparkSession]", leased: Callable[[], int] = lambda: 0) -> None:
        """Call `spark` only when there is something to rewrite. `leased` returns the epoch of the lake's lease."""
        self._session = spark
        self._leased = leased
        self._tagged: dict[str, SparkSession] = {}
        self._thread_local = threading.local()

    def _spark(self) -> "SparkSession":
        """Return the session. Tag its work for this thread, so that it can be interrupted by the thread's job."""
        session = self._session()
        tag: str = getattr(self._thread_local, "tag", "")
        if tag:
            add_tag(session, tag)
            self._tagged[tag] = session
        return session

    @contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        """Tag the Spark work of this thread inside the block, so that it can be interrupted."""
        self._thread_local.tag = tag
        try:
            yield
        finally:
            self._thread_local.tag = ""
            session = self._tagged.pop(tag, None)
            if session is not None:
                remove_tag(session, tag)

    def interrupt(self, tag: str) -> None:
        """Cancel the Spark work with a tag, if there is any. May be called from any thread."""
        session = self._tagged.get(tag)
        if session is not None:
            interrupt_tag(session, tag)

    def recover(self, store: Store) -> int:
        """Finish what a crash interrupted, prune what base holds, sweep orphans. Return the number of swept files."""
        self.catch_up(store)
        return sweep_orphans(store)

    def catch_up(self, store: Store) -> None:
        """Finish what a crash interrupted, and prune what base holds. This is recovery without a listing of files."""
        finish(store)
        prune(store)

    def compact(
        self, store: Store, *, purge: bool, epoch: int | None = None, job: str = "", until: int | None = None
    ) -> CompactReport:
        """Recover, fold and prune. With `purge`, also raise the epoch and delete from disk all files that are not live.

        The fold carries the job's id and the given `epoch`, which is that of a lease. Default: the dataset's own epoch.
        The epoch of a purge is above both, and so fences out every job that was planned before it. Such a job may hold
        rows that must be forgotten. With `until` a fold takes the changes up to that sequence.
        """
        started = store.clock.monotonic_seconds()
        if purge:
            check_no_link(store)
        self.recover(store)
        store = store.current()
        if not purge:
            return self._fold_any(store, epoch=epoch, job=job, until=until)
        epoch = max(store.snapshot().epoch, self._leased()) + 1
        for _ in range(PURGE_TRIES - 1):  # a purge must not fail because of a concurrent commit
            with suppress(Conflict):
                report = self._fold_any(store, epoch=epoch, job=job)
                break
            self.catch_up(store)
            store = store.current()
        else:
            report = self._fold_any(store, epoch=epoch, job=job)
        if store.snapshot().epoch < epoch:  # nothing was folded, here or because another fold was first
            raise_epoch(store, epoch)
        reach("purge.after_fold")
        prune_exactly(store)
        store.forget()
        files, size = purge_files(store)
        seconds = store.clock.monotonic_seconds() - started
        return replace(report, purged=True, files_deleted=files, bytes_deleted=size, seconds=seconds)

    def _fold_any(self, store: Store, *, epoch: int | None, job: str, until: int | None = None) -> CompactReport:
        """Fold. Spark is not used if there is nothing to fold."""
        started, snapshot = store.clock.monotonic_seconds(), store.snapshot()
        if not snapshot.unfolded:
            return report_of(store, initial_plan(snapshot), (), started)
        return self._fold(store, epoch=epoch, job=job, until=until)

    def _fold(self, store: Store, *, epoch: int | None, job: str, until: int | None = None) -> CompactReport:
        method = LogFold if store.spec.is_log else KeyedFold
        return fold(self._spark(), store, method=method, epoch=epoch, job=job, until=until)

    def squash(
        self, store: Store, *, many: int = 2, dry_run: bool = False, epoch: int | None = None, job: str = ""
    ) -> SquashReport:
        """Merge small change files, if there are enough of them."""
        return squash(store.current(), many=many, dry_run=dry_run, epoch=epoch, job=job)

    def roll_up(self, store: Store, spec: JobSpec, *, epoch: int | None = None, job: str = "") -> RollUpReport:
        """Merge small files of a period of a log, as planned."""
        return roll_up(self._spark(), store.current(), spec, epoch=epoch, job=job)

    def cluster(self, store: Store, spec: JobSpec, *, epoch: int | None = None, job: str = "") -> RollUpReport:
        """Sort the rows of a period of a log by several columns at once, as planned."""
        return cluster(self._spark(), store.current(), spec, epoch=epoch, job=job)

    def cluster_all(self, store: Store, *, by: Sequence[str] = ()) -> list[RollUpReport]:
        """Sort the rows of every period of a log; default: by the dataset's own columns."""
        store = store.current()
        return [cluster(self._spark(), store, job) for job in whole_base(store, by=by)]

    def cluster_estimate(self, store: Store, *, by: Sequence[str] = ()) -> ClusterEstimate:
        """Estimate what `cluster_all` would rewrite, without Spark."""
        return estimate(store.current(), by=by)

    def estimate(self, store: Store) -> FoldEstimate:
        """Estimate the work of a fold or a purge, without Spark."""
        unreferenced = unreferenced_files(store)
        return replace(
            fold_estimate(store, store.snapshot()),
            unreferenced_files=len(unreferenced),
            unreferenced_bytes=sum(file.size_bytes for file in unreferenced),
        )

    def vacuum(self, store: Store, *, retention_hours: float | None, dry_run: bool) -> VacuumReport:
        """Delete removed files that are older than the retention."""
        return vacuum(store, retention_hours=retention_hours, dry_run=dry_run)

    def status(self, store: Store) -> Status:
        """Count rows, files, bytes and backlog. Name the files that cannot be read."""
        return status(store)
