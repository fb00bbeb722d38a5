"""The fold: moves all current changes into `base`.

Flow (see `commit` for what a crash leaves behind at each step):

1. plan: take a snapshot and the last change of each key. Spark finds these keys in base and counts, file by file, the
   rows that are replaced and dropped. Files without a match are not touched.
2. run: Spark rewrites the touched files. Few changes are applied file by file (`fold_arrow`). Many are merged by a
   shuffle on the key (`fold_shuffle`).
3. verify: every footer is read back, and the counts must equal those of the plan.
4. commit, prune.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.compaction.operations.commit import commit_fold, prune
from siltstone.compaction.operations.fold_arrow import ArrowMerge
from siltstone.compaction.operations.fold_plan import FoldPlan, Matched, touched_files
from siltstone.compaction.operations.fold_shuffle import ShuffleMerge
from siltstone.compaction.operations.rewrite_errors import discarding, disk_failures, spark_failures
from siltstone.dataset.audit import append_missing
from siltstone.dataset.read.arrow_view import latest_per_key, unfolded_rows
from siltstone.dataset.snapshot import Snapshot, check_columns
from siltstone.dataset.store import Store
from siltstone.delta.parquet import key_ranges
from siltstone.errors import Conflict, Corruption, Fenced, Gone, Reason
from siltstone.failpoints import reach
from siltstone.model.columns import OP
from siltstone.model.files import DataFile, KeyRange, may_contain, whole_range
from siltstone.model.reports import CompactReport, FoldEstimate, OutputFile
from siltstone.spark.arrow_tasks import WorkersUnfit
from siltstone.spark.output_files import attempt_folder, collect_files, discard, manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.compaction.operations.fold_log import LogFold

ARROW_CHANGES_BYTES: Final = 64 * 1024 * 1024
"""Highest size in bytes of changes that are sent to the tasks: Connect limits messages. More use a shuffle."""


@dataclass(frozen=True, kw_only=True)
class KeyedFold:
    """The last changes of a snapshot, and the method to merge them into base."""

    spark: "SparkSession"
    store: Store
    snapshot: Snapshot

    @cached_property
    def _method(self) -> tuple[ArrowMerge | ShuffleMerge, dict[str, Matched]]:
        """The chosen method, and the base files where it has found the changed keys."""
        if self.snapshot.unfolded_rows <= self.store.settings.arrow_changes_rows:
            with suppress(WorkersUnfit, OverflowError):  # a date that Python cannot hold
                few = _arrow_merge(self.spark, self.store, self.snapshot)
                if few.changes.nbytes <= ARROW_CHANGES_BYTES:
                    return few, few.matched()
        many = self._shuffle_merge()
        return many, many.matched()

    def _shuffle_merge(self) -> ShuffleMerge:
        return ShuffleMerge(spark=self.spark, store=self.store, snapshot=self.snapshot)

    def plan(self) -> FoldPlan:
        """Return the plan: the files to rewrite, and the exact row counts to expect."""
        snapshot, (method, matched) = self.snapshot, self._method
        change_rows, upserts, tombstones = method.counts()
        replaced = sum(counts.replaced for counts in matched.values())
        return replace(
            initial_plan(snapshot),
            touched=touched_files(
                snapshot.base.files,
                matched,
                new_rows=upserts - replaced,
                target_bytes=self.store.settings.target_file_bytes,
            ),
            change_rows=change_rows,
            upserts=upserts,
            tombstones=tombstones,
            replaced=replaced,
            dropped=sum(counts.dropped for counts in matched.values()),
        )

    def written(self, plan: FoldPlan, folder: str) -> tuple[DataFile, ...]:
        """Write the files and verify them. If Spark's tasks cannot run the chosen method, use the shuffle."""
        store = self.store
        try:
            names = self._method[0].write(plan, folder)
        except WorkersUnfit:
            discard(store.base.path, folder)
            names = None
            self._shuffle_merge().write(plan, folder)
        reach("fold.after_write")
        return collect_files(store.base.path, folder, schema=store.schema, stats=store.stats, names=names)


def _arrow_merge(spark: "SparkSession", store: Store, snapshot: Snapshot) -> ArrowMerge:
    columns, key = [*store.schema.names, OP], store.spec.key
    rows = unfolded_rows(store, snapshot, columns=columns)
    latest = latest_per_key(rows, key).select(columns).sort_by([(name, "ascending") for name in key])
    ranges = {file.path: _key_range(store, file) for file in snapshot.base.files}
    return ArrowMerge(
        spark=spark,
        store=store,
        change_rows=rows.num_rows,
        changes=latest.combine_chunks(),
        files=_candidates(store, snapshot.base.files, latest, ranges),
        ranges=ranges,
    )


def fold(
    spark: "SparkSession",
    store: Store,
    *,
    method: "Callable[..., KeyedFold | LogFold]" = KeyedFold,
    epoch: int | None = None,
    job: str = "",
    until: int | None = None,
) -> CompactReport:
    """Fold all current changes by a method, and prune them. `epoch` raises the dataset's epoch with the commit.

    With `until`, fold only changes up to that sequence, or up to the end of the last file before it. The result is an
    earlier state of the dataset, so this is a fold like any other, with fewer changes.

    Raises:
        Conflict: another fold was first. Nothing was changed.
        UnreadableFiles: change files, or files of base to rewrite, cannot be read. Nothing was changed.
    """
    started = store.clock.monotonic_seconds()
    snapshot = store.snapshot()
    if until is not None:
        snapshot = snapshot.until(until)
    if not snapshot.unfolded:
        return report_of(store, initial_plan(snapshot), (), started)
    check_schemas(store, snapshot)
    with spark_failures(store, snapshot, changes=snapshot.unfolded):
        work = method(spark=spark, store=store, snapshot=snapshot)
        with disk_failures(store):
            plan = replace(work.plan(), job=job, epoch=snapshot.epoch if epoch is None else epoch)
        reach("fold.after_plan")
        append_missing(store, snapshot)
        with store.liveness_lock() as owner:
            with discarding(store, owner.owner), disk_failures(store):
                written = work.written(plan, attempt_folder(owner.owner, 0)) if plan.expected_rows else ()
                outputs = manifest(store.base.path, written)
            # After other errors than these the files may be live.
            with discarding(store, owner.owner, on=(Conflict, Corruption, Fenced, Gone)):
                commit_fold(store, plan, written)
        prune(store)
    return report_of(store, plan, written, started, outputs)


def check_schemas(store: Store, snapshot: Snapshot) -> None:
    """Refuse change files with a column that base lacks: a fold would lose it. Recovery finishes the alteration."""
    check_columns(store, snapshot)
    columns = set(snapshot.base.schema.names)
    lost = [name for name in snapshot.changes.schema.names if not name.startswith("_") and name not in columns]
    if lost:
        raise Conflict(
            f"Dataset {store.name}: changes have column {lost[0]!r}, which base lacks. Open the dataset again.",
            reason=Reason.SCHEMA_CHANGED,
        )


def estimate(store: Store, snapshot: Snapshot) -> FoldEstimate:
    """Estimate the work of a fold from logs and footers alone. Spark is not used, and nothing is written."""
    touched: Sequence[DataFile] = snapshot.base.files if snapshot.unfolded else ()
    if touched and snapshot.unfolded_rows <= store.settings.arrow_changes_rows:
        keys = unfolded_rows(store, snapshot, columns=store.spec.key)
        with suppress(OverflowError):
            touched = _candidates(store, touched, keys, {file.path: _key_range(store, file) for file in touched})
    return estimate_of(store, snapshot, touched)


def estimate_of(store: Store, snapshot: Snapshot, touched: Sequence[DataFile]) -> FoldEstimate:
    """Estimate the work of a fold that rewrites at most these files of base."""
    return FoldEstimate(
        dataset=str(store.name),
        base_rows=snapshot.base.rows,
        base_files=len(snapshot.base.files),
        base_bytes=snapshot.base.size_bytes,
        batches=snapshot.sequence - snapshot.watermark,
        change_rows=snapshot.unfolded_rows,
        change_bytes=sum(file.size_bytes for file in snapshot.unfolded),
        change_files=len(snapshot.unfolded),
        files_touched_at_most=len(touched),
        bytes_touched_at_most=sum(file.size_bytes for file in touched),
    )


def _candidates(
    store: Store, files: Sequence[DataFile], latest: pa.Table, ranges: dict[str, KeyRange]
) -> list[DataFile]:
    """Return the files that may hold a changed key, by their footers."""
    first = store.spec.key[0]
    if pa.types.is_boolean(store.schema.field(first).type):
        return list(files)
    keys = latest.column(first).combine_chunks().unique().sort().to_pylist()
    return [file for file in files if may_contain(ranges[file.path], keys)]


def _key_range(store: Store, file: DataFile) -> KeyRange:
    """Return the range of the key's first column, from the file's footer."""
    return whole_range(key_ranges(store.footer(store.base.path / file.path), store.spec.key[0]))


def initial_plan(snapshot: Snapshot) -> FoldPlan:
    """Return the plan before rows are counted. Without changes this is the plan of a fold that has nothing to do."""
    return FoldPlan(
        base_version=snapshot.base.version,
        watermark=snapshot.watermark,
        target=snapshot.sequence,
        epoch=snapshot.epoch,
        base_rows=snapshot.base.rows,
        base_bytes=snapshot.base.size_bytes,
        batches=snapshot.sequence - snapshot.watermark,
        changed_ms=snapshot.changed_ms,
        change_files=len(snapshot.unfolded),
        change_bytes=sum(file.size_bytes for file in snapshot.unfolded),
    )


def report_of(
    store: Store, plan: FoldPlan, written: tuple[DataFile, ...], started: float, outputs: tuple[OutputFile, ...] = ()
) -> CompactReport:
    """Return the report of a fold, in exact counts."""
    removed_bytes = sum(file.size_bytes for file in plan.touched)
    return CompactReport(
        dataset=str(store.name),
        base_rows=plan.base_rows,
        change_rows=plan.change_rows,
        batches_folded=plan.batches,
        upserts_applied=plan.upserts,
        tombstones_applied=plan.tombstones,
        rows_dropped_by_tombstones=plan.dropped,
        final_rows=plan.final_rows,
        files_removed=len(plan.touched),
        files_added=len(written),
        bytes_before=plan.base_bytes,
        bytes_after=plan.base_bytes - removed_bytes + sum(file.size_bytes for file in written),
        watermark=plan.target,
        seconds=store.clock.monotonic_seconds() - started,
        change_files=plan.change_files,
        change_bytes=plan.change_bytes,
        outputs=outputs,
    )
