"""The merged view of a dataset of either kind. Only this module chooses the implementation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from siltstone.dataset.read.arrow_view import head_table, merged_table
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def view_table(
    store: Store, snapshot: Snapshot, *, raw: bool = False, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return the view, or some of its columns, as one Arrow table, without Spark.

    With `raw`, tombstones are not applied.
    """
    if not store.spec.is_log:
        return merged_table(store, snapshot, raw=raw, columns=columns)
    from siltstone.dataset.read.log_view import log_table

    return log_table(store, snapshot, raw=raw, columns=columns)


def view_count(store: Store, snapshot: Snapshot) -> int:
    """Return the number of rows of the view. Only the columns that decide about visibility are read."""
    if not snapshot.unfolded:
        return snapshot.base.rows
    few = store.spec.found_by[:1] or (store.spec.time or store.schema.names[0],)
    return int(view_table(store, snapshot, columns=few).num_rows)


def view_head(store: Store, snapshot: Snapshot, rows: int, *, raw: bool = False) -> pa.Table:
    """Return the first rows of `view_table`, reading little more than these."""
    if not store.spec.is_log:
        return head_table(store, snapshot, rows, raw=raw)
    from siltstone.dataset.read.log_view import log_head

    return log_head(store, snapshot, rows, raw=raw)


def view_frame(
    spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool = False, once: bool = False
) -> "DataFrame":
    """Return the view as a Spark frame. A frame that is read `once` is not cached for later reads."""
    if store.spec.is_log:
        from siltstone.dataset.read.log_view import log_frame

        return log_frame(spark, store, snapshot, raw=raw, once=once)
    from siltstone.dataset.read.spark_view import merged_frame

    return merged_frame(spark, store, snapshot, raw=raw, once=once)
