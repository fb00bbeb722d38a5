"""The fold: everything in `changes` up to now becomes part of `base`.

Flow (see `commit` for what a crash leaves behind at each step):

1. plan: snapshot; the last change of each key; Spark joins base's keys with them and says, file by file, how many rows
   are replaced and dropped. Files without a match are not touched.
2. run: Spark rewrites the touched files. A small change set is joined in place (no shuffle: a file stays sorted); a large
   one is merged by a shuffle on the key. New keys become further files.
3. verify: every footer is read back, counts must equal the plan's.
4. commit, prune.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.compaction.commit import commit_fold, prune
from siltstone.compaction.planner import FoldPlan, Matched, may_contain, may_share_a_task, touched_files
from siltstone.dataset.local import latest_per_key, unfolded_rows
from siltstone.dataset.merge import arrow_frame, by_hash, changes_frame, files_frame, join_side, latest_of
from siltstone.dataset.store import Snapshot, Store, sequence_of
from siltstone.dataset.written import attempt_folder, collect_files, discard, write_frame
from siltstone.errors import Conflict, Corruption, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import OP, Op
from siltstone.model.files import DataFile
from siltstone.model.results import CompactReport, FoldEstimate
from siltstone.storage.spark_failures import error_line, is_missing_file, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE: Final = "_name"
ROWS_PER_NEW_FILE: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Latest:
    """The last change of each key: as a frame, and as Arrow if it is small."""

    frame: "DataFrame"
    table: pa.Table | None

    @property
    def small(self) -> bool:
        return self.table is not None


def fold(spark: "SparkSession", store: Store, *, epoch: int | None = None) -> CompactReport:
    """Fold everything that is in `changes` now, and prune it; `epoch` raises the dataset's epoch with the commit.

    Raises:
        Conflict: another fold was first; nothing was changed.
    """
    started = store.clock.monotonic_seconds()
    snapshot = store.snapshot()
    target = snapshot.sequence
    if not snapshot.unfolded:
        return _report(store, _empty_plan(snapshot, target), (), started)
    _check_schemas(store, snapshot)
    with _spark_failures(store):
        latest = _latest(spark, store, snapshot)
        candidates = _candidates(store, snapshot.base.files, latest.table)
        with _present(spark, store, candidates, latest) as present:
            matched = _matched(store, candidates, present)
            plan = _plan(store, snapshot, latest, matched, epoch=snapshot.epoch if epoch is None else epoch)
            reach("fold.after_plan")
            written = _run(spark, store, plan, latest, present)
    return _report(store, plan, written, started)


def _run(
    spark: "SparkSession", store: Store, plan: FoldPlan, latest: _Latest, present: "DataFrame"
) -> tuple[DataFile, ...]:
    """Write, verify, commit and prune; what is not committed is removed again."""
    with store.presence() as owner:
        folder = attempt_folder(owner.owner, 0)
        written: tuple[DataFile, ...] = ()
        try:
            if plan.expected_rows:
                frame = _folded(spark, store, plan, latest, present)
                write_frame(frame, store.base.path, folder, schema=store.schema, key=store.spec.key)
                reach("fold.after_write")
                written = collect_files(store.base.path, folder, schema=store.schema, stats=store.stats)
            commit_fold(store, plan, written)
        except (Conflict, Corruption):
            discard(store.base.path, folder)
            raise
    prune(store)
    return written


# ---- the changes -------------------------------------------------------------------------------------------------


def _latest(spark: "SparkSession", store: Store, snapshot: Snapshot) -> _Latest:
    """Return the last change of each key."""
    columns = [*store.schema.names, OP]
    if snapshot.unfolded_rows <= store.settings.arrow_changes_rows:
        rows = unfolded_rows(store, snapshot, columns=columns)
        table = latest_per_key(rows, store.spec.key).select(columns)
        return _Latest(frame=arrow_frame(spark, table), table=table)
    return _Latest(frame=latest_of(changes_frame(spark, store, snapshot), store.spec.key).select(*columns), table=None)


def _check_schemas(store: Store, snapshot: Snapshot) -> None:
    """A change file with a column that base lacks would lose it in silence; refuse instead."""
    known = set(snapshot.base.schema.names)
    lost = [name for name in snapshot.changes.schema.names if not name.startswith("_") and name not in known]
    if lost:
        raise Conflict(
            f"Dataset {store.name}: changes have column {lost[0]!r}, which base lacks. Open the dataset anew."
        )


# ---- the plan ----------------------------------------------------------------------------------------------------


def _plan(store: Store, snapshot: Snapshot, latest: _Latest, matched: dict[str, Matched], *, epoch: int) -> FoldPlan:
    upserts, tombstones = _count_latest(latest)
    replaced = sum(found.replaced for found in matched.values())
    return FoldPlan(
        base_version=snapshot.base.version,
        watermark=snapshot.watermark,
        target=snapshot.sequence,
        epoch=epoch,
        touched=touched_files(
            snapshot.base.files,
            matched,
            new_rows=upserts - replaced,
            target_bytes=store.settings.target_file_bytes,
        ),
        batches=len({sequence_of(file) for file in snapshot.unfolded}),
        change_rows=snapshot.unfolded_rows,
        upserts=upserts,
        tombstones=tombstones,
        replaced=replaced,
        dropped=sum(found.dropped for found in matched.values()),
        base_rows=snapshot.base.rows,
        base_bytes=snapshot.base.size_bytes,
    )


def estimate(store: Store) -> FoldEstimate:
    """Say what a fold would have to do, from logs and footers alone: no Spark, nothing is written."""
    snapshot = store.snapshot()
    small = snapshot.unfolded_rows <= store.settings.arrow_changes_rows
    keys = unfolded_rows(store, snapshot, columns=store.spec.key) if small else None
    touched = _candidates(store, snapshot.base.files, keys) if snapshot.unfolded else []
    return FoldEstimate(
        dataset=str(store.name),
        base_rows=snapshot.base.rows,
        base_files=len(snapshot.base.files),
        base_bytes=snapshot.base.size_bytes,
        batches=len({sequence_of(file) for file in snapshot.unfolded}),
        change_rows=snapshot.unfolded_rows,
        change_bytes=sum(file.size_bytes for file in snapshot.unfolded),
        files_touched_at_most=len(touched),
        bytes_touched_at_most=sum(file.size_bytes for file in touched),
    )


def _candidates(store: Store, files: Sequence[DataFile], latest: pa.Table | None) -> list[DataFile]:
    """Leave out files whose footer says that no changed key can be in them."""
    first = store.spec.key[0]
    if latest is None or pa.types.is_boolean(store.schema.field(first).type):
        return list(files)
    keys = latest.column(first).combine_chunks().unique().sort().to_pylist()
    return [file for file in files if may_contain(*_key_range(store, file, first), keys)]


def _key_range(store: Store, file: DataFile, column: str) -> tuple[Any, Any]:
    """Return the smallest and largest value of a key column by the file's footer; None where it does not say."""
    with pq.ParquetFile(store.base.path / file.path) as parquet:
        metadata = parquet.metadata
    paths = [metadata.schema.column(number).path for number in range(len(metadata.schema))]
    index = paths.index(column) if column in paths else -1  # a path: inner fields may have the key's name too
    low = high = None
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(index).statistics if index >= 0 else None
        if statistics is None or not statistics.has_min_max:
            return None, None
        low = statistics.min if low is None else min(low, statistics.min)
        high = statistics.max if high is None else max(high, statistics.max)
    return low, high


@contextmanager
def _present(spark: "SparkSession", store: Store, files: Sequence[DataFile], latest: _Latest) -> "Iterator[DataFrame]":
    """Provide the changed keys that base has, with what happens to them and the file they are in.

    A small set is kept by the executors: the plan counts it, and the rewrite finds the new keys by it, with one scan of base.
    """
    from pyspark.sql import functions as F

    key = list(store.spec.key)
    base = files_frame(spark, store, files).select(*key, F.col("_metadata.file_name").alias(_FILE)) if files else None
    if base is None:
        yield latest.frame.select(*key, OP, F.lit("").alias(_FILE)).limit(0)
    elif not latest.small:
        yield base.join(join_side(latest.frame.select(*key, OP), broadcast=False), key).select(*key, OP, _FILE)
    else:
        changed, same = by_hash(latest.frame.select(*key, OP), key)
        kept = base.join(F.broadcast(changed), same).select(*key, OP, _FILE).persist()
        try:
            yield kept
        finally:
            kept.unpersist()


def _matched(store: Store, files: Sequence[DataFile], present: "DataFrame") -> dict[str, Matched]:
    """Count, per base file, the rows that are replaced and dropped. Only counts leave Spark."""
    from pyspark.sql import functions as F

    if not files:
        return {}
    names = {file.path.rsplit("/", 1)[-1]: file.path for file in files}
    if len(names) != len(files):
        raise Corruption(f"Dataset {store.name}: two base files have the same name; nothing was changed.")
    counts = present.groupBy(_FILE).agg(
        F.count(F.when(F.col(OP) == Op.UPSERT.value, 1)).alias("replaced"),
        F.count(F.when(F.col(OP) == Op.TOMBSTONE.value, 1)).alias("dropped"),
    )
    return {
        names[row[_FILE]]: Matched(replaced=row["replaced"], dropped=row["dropped"])
        for row in counts.toArrow().to_pylist()
    }


def _count_latest(latest: _Latest) -> tuple[int, int]:
    """Return how many keys end as an upsert and how many as a tombstone."""
    from pyspark.sql import functions as F

    if latest.table is not None:
        ops = latest.table.column(OP).to_pylist()
        return ops.count(Op.UPSERT.value), ops.count(Op.TOMBSTONE.value)
    rows = latest.frame.groupBy(OP).agg(F.count(F.lit(1)).alias("n")).toArrow().to_pylist()
    counts = {row[OP]: int(row["n"]) for row in rows}
    return counts.get(Op.UPSERT.value, 0), counts.get(Op.TOMBSTONE.value, 0)


# ---- the rewrite -------------------------------------------------------------------------------------------------


def _folded(spark: "SparkSession", store: Store, plan: FoldPlan, latest: _Latest, present: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    columns, key = store.schema.names, list(store.spec.key)
    upserts = latest.frame.where(F.col(OP) == Op.UPSERT.value).select(*columns)
    if not plan.touched:
        return upserts.repartitionByRange(_file_count(plan.upserts), *key).sortWithinPartitions(*key)
    touched = files_frame(spark, store, plan.touched)
    if latest.small:
        kept = _in_place(touched, latest.frame, columns, key)
        if may_share_a_task(plan.touched, cores=_cores(spark)):
            kept = kept.sortWithinPartitions(*key)
        if not plan.new_rows:
            return kept
        new = upserts.join(F.broadcast(present.select(*key)), key, "left_anti").select(*columns)
        return kept.unionByName(new.coalesce(1).sortWithinPartitions(*key))
    kept = touched.join(join_side(latest.frame.select(*key), broadcast=False), key, "left_anti").select(*columns)
    size = sum(file.size_bytes for file in plan.touched)
    parts = max(1, -(-size // store.settings.target_file_bytes), _file_count(plan.new_rows))
    return kept.unionByName(upserts).repartitionByRange(parts, *key).sortWithinPartitions(*key)


def _cores(spark: "SparkSession") -> int:
    """Return how many tasks Spark spreads a scan over, as far as the session says."""
    try:
        return max(1, int(spark.conf.get("spark.sql.shuffle.partitions", "2") or 2))
    except ValueError:
        return 1


def _file_count(rows: int) -> int:
    return max(1, -(-rows // ROWS_PER_NEW_FILE))


def _in_place(touched: "DataFrame", latest: "DataFrame", columns: Sequence[str], key: Sequence[str]) -> "DataFrame":
    """Replace and drop rows where they stand: a broadcast join, no shuffle, the order of the file kept."""
    from pyspark.sql import functions as F

    changed, same = by_hash(
        latest.select(*key, OP, F.struct(F.lit(1).alias("_"), *[c for c in columns if c not in key]).alias("_new")), key
    )
    joined = touched.join(F.broadcast(changed), same, "left")
    joined = joined.where(F.col(OP).isNull() | (F.col(OP) != Op.TOMBSTONE.value))
    return joined.select(
        *[
            F.col(c)
            if c in key
            else F.when(F.col(OP).isNotNull(), F.col("_new").getField(c)).otherwise(F.col(c)).alias(c)
            for c in columns
        ]
    )


# ---- the report --------------------------------------------------------------------------------------------------


def _empty_plan(snapshot: Snapshot, target: int) -> FoldPlan:
    return FoldPlan(
        base_version=snapshot.base.version,
        watermark=snapshot.watermark,
        target=target,
        epoch=snapshot.epoch,
        touched=(),
        batches=0,
        change_rows=0,
        upserts=0,
        tombstones=0,
        replaced=0,
        dropped=0,
        base_rows=snapshot.base.rows,
        base_bytes=snapshot.base.size_bytes,
    )


def _report(store: Store, plan: FoldPlan, written: tuple[DataFile, ...], started: float) -> CompactReport:
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
    )


@contextmanager
def _spark_failures(store: Store) -> Iterator[None]:
    """Say in our words what went wrong while Spark or we read and wrote; nothing was committed by then."""
    try:
        yield
    except FileNotFoundError as error:
        raise Conflict(f"Dataset {store.name}: files of the plan are gone; another compaction was first.") from error
    except spark_errors() as error:
        if is_missing_file(error):
            raise Conflict(
                f"Dataset {store.name}: files of the plan are gone; another compaction was first."
            ) from error
        raise Unavailable(
            f"Dataset {store.name}: the fold failed in Spark: {error_line(error)} Nothing was changed."
        ) from error
