"""The roll-up: merges small files of a closed period of a log into few sorted ones.

The new files belong to the same period or a coarser one. `rewrite` plans, verifies and commits the job. Rows are
written in the order of `sort_by`, into at most the planned number of files. Arrow writes them inside Spark's tasks
(`merge_small_files`), or Spark's own shuffle where that does not fit. Late rows are folded into their hour, and a
later roll-up takes them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from siltstone.compaction.operations.merge_small_files import merge_small_files
from siltstone.compaction.operations.rewrite import TIER_FOLDER, rewrite
from siltstone.compaction.planning.model import JobSpec
from siltstone.dataset.read.spark_frames import scan
from siltstone.dataset.store import Store
from siltstone.model.files import DataFile
from siltstone.model.reports import RollUpReport
from siltstone.spark.arrow_tasks import WorkersUnfit
from siltstone.spark.output_files import discard, write_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def roll_up(
    spark: "SparkSession", store: Store, spec: JobSpec, *, epoch: int | None = None, job: str = ""
) -> RollUpReport:
    """Run one planned roll-up; see `rewrite`."""
    files = max(1, spec.files_after)

    def write(taken: Sequence[DataFile], folder: str) -> list[str] | None:
        try:
            names = merge_small_files(spark, store, taken, folder, files=files)
        except WorkersUnfit:
            discard(store.base.path, folder)
            names = None
        if names is None:
            rows = scan(spark, store, store.base_schema, [store.base.path / file.path for file in taken])
            order = store.spec.sort_by
            parts = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, *order)  # of similar size
            ordered = parts.sortWithinPartitions(*order)
            write_frame(ordered, store.base.path, folder, schema=store.base_schema, key=store.spec.found_by)
        return names

    return rewrite(spark, store, spec, write, mark=f"{TIER_FOLDER}{spec.lane}", epoch=epoch, job=job)
