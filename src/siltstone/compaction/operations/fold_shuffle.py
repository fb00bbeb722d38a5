"""A fold of many changes: a shuffle on the key merges them into the touched files.

No change passes through the driver.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from siltstone.compaction.operations.fold_plan import FoldPlan, Matched, by_file_name
from siltstone.dataset.read.spark_frames import changes_frame, files_frame, join_side, latest_of
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.delta.layout import is_squashed
from siltstone.model.columns import OP, Op
from siltstone.spark.output_files import write_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE: Final = "_name"
ROWS_PER_NEW_FILE: Final = 2_000_000


@dataclass(frozen=True, kw_only=True)
class ShuffleMerge:
    """The changes of a snapshot as a frame, and the steps to merge them into base files."""

    spark: "SparkSession"
    store: Store
    snapshot: Snapshot

    @cached_property
    def _changes(self) -> "DataFrame":
        return changes_frame(self.spark, self.store, self.snapshot)

    @cached_property
    def _latest(self) -> "DataFrame":
        return latest_of(self._changes, self.store.spec.key).select(*self.store.schema.names, OP)

    def counts(self) -> tuple[int, int, int]:
        """Return the number of change rows, of keys that end as upsert, and of keys that end as tombstone."""
        from pyspark.sql import functions as F

        rows = self._latest.groupBy(OP).agg(F.count(F.lit(1)).alias("n")).toArrow().to_pylist()
        by_op = {row[OP]: int(row["n"]) for row in rows}
        partly = any(is_squashed(file.path) for file in self.snapshot.unfolded)  # some of its rows may be in base
        changes = self._changes.count() if partly else self.snapshot.unfolded_rows
        return changes, by_op.get(Op.UPSERT.value, 0), by_op.get(Op.TOMBSTONE.value, 0)

    def matched(self) -> dict[str, Matched]:
        """Count, per base file, the rows that are replaced and dropped. Only counts leave Spark."""
        from pyspark.sql import functions as F

        files, key = self.snapshot.base.files, list(self.store.spec.key)
        if not files:
            return {}
        names = by_file_name(files, dataset=str(self.store.name))
        base = files_frame(self.spark, self.store, files).select(*key, F.col("_metadata.file_name").alias(_FILE))
        present = base.join(join_side(self._latest.select(*key, OP), broadcast=False), key)
        counts = present.groupBy(_FILE).agg(
            F.count(F.when(F.col(OP) == Op.UPSERT.value, 1)).alias("replaced"),
            F.count(F.when(F.col(OP) == Op.TOMBSTONE.value, 1)).alias("dropped"),
        )
        return {
            names[row[_FILE]].path: Matched(replaced=row["replaced"], dropped=row["dropped"])
            for row in counts.toArrow().to_pylist()
        }

    def write(self, plan: FoldPlan, folder: str) -> None:
        """Rewrite the touched files and write the upserts with Spark, sorted by key."""
        from pyspark.sql import functions as F

        columns, key = self.store.schema.names, list(self.store.spec.key)
        rows = self._latest.where(F.col(OP) == Op.UPSERT.value).select(*columns)
        if plan.touched:
            touched = files_frame(self.spark, self.store, plan.touched)
            changed = join_side(self._latest.select(*key), broadcast=False)
            rows = touched.join(changed, key, "left_anti").select(*columns).unionByName(rows)
        size = sum(file.size_bytes for file in plan.touched)
        parts = max(1, -(-size // self.store.settings.target_file_bytes), -(-plan.new_rows // ROWS_PER_NEW_FILE))
        ordered = rows.repartitionByRange(parts, *key).sortWithinPartitions(*key)
        write_frame(ordered, self.store.base.path, folder, schema=self.store.schema, key=self.store.spec.key)
