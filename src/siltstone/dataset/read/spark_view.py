"""The merged view on Spark: frames in, frames out, no actions (except the search of `position_masks`).

A dataset without unfolded changes is the bare base scan. A few changes over a large base are hidden and shown by
position (`position_masks`). Otherwise the changed keys are anti-joined from base and the upserts are added. Small
change sets reach Spark as one Arrow table, large ones are read by the executors. No predicate on a column outside the
key is ever pushed below "latest per key". The last change is known before the join.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.arrow_view import latest_changes
from siltstone.dataset.read.position_masks import HiddenRows, can_hide, hidden_rows, visible_frame
from siltstone.dataset.read.spark_frames import arrow_frame, base_frame, by_hash, changes_frame, join_side, latest_of
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.model.columns import OP, Op

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Overlay:
    """The last change of each key, ready to be merged over base: hidden keys and added rows."""

    keys: "DataFrame"
    upserts: "DataFrame"
    small: bool


def merged_frame(
    spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool = False, once: bool = False
) -> "DataFrame":
    """Return the merged view; with `raw`, tombstones are not applied.

    Positions are not searched for a view that is read `once`. The overlay of a small set of changes is cached with the
    store until the dataset changes.
    """
    if not snapshot.unfolded:
        return base_frame(spark, store, snapshot)
    state = (snapshot.changes.version, snapshot.base.version, raw)
    if snapshot.unfolded_rows > store.settings.arrow_changes_rows:
        over = _overlay_on_spark(spark, store, snapshot, raw=raw)
    elif snapshot.past:
        over = _overlay_in_memory(spark, store, snapshot, raw=raw)
    elif not once and can_hide(store, snapshot):
        hidden = store.frames.get(
            ("positions", *state),
            spark,
            lambda before: hidden_rows(spark, store, snapshot, before=before, raw=raw),
            close=HiddenRows.close,
        )
        return visible_frame(spark, store, snapshot, hidden)
    else:
        over = store.frames.get(("keys", *state), spark, lambda _: _overlay_in_memory(spark, store, snapshot, raw=raw))
    base = base_frame(spark, store, snapshot)
    unchanged = _without_keys(base, over, key=store.spec.key, schema=store.schema).select(*store.schema.names)
    return unchanged.unionByName(over.upserts)


def _overlay_in_memory(spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool) -> Overlay:
    latest = latest_changes(store, snapshot, raw=raw, columns=store.schema.names)
    upserts = latest.filter(pc.equal(latest.column(OP), Op.UPSERT.value))
    keys, rows = latest.select(list(store.spec.key)), upserts.select(store.schema.names)
    return Overlay(arrow_frame(spark, keys), arrow_frame(spark, rows), small=True)


def _overlay_on_spark(spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool) -> Overlay:
    from pyspark.sql import functions as F

    changes = changes_frame(spark, store, snapshot)
    if raw:
        changes = changes.where(F.col(OP) != Op.TOMBSTONE.value)
    latest = latest_of(changes, store.spec.key)
    upserts = latest.where(F.col(OP) == Op.UPSERT.value).select(*store.schema.names)
    return Overlay(latest.select(*store.spec.key), upserts, small=False)


def _without_keys(base: "DataFrame", over: Overlay, *, key: Sequence[str], schema: pa.Schema) -> "DataFrame":
    """Return the base rows whose key was not changed.

    Spark looks up a number in a broadcast table faster than text. So keys that are not numbers are found by their hash.
    """
    from pyspark.sql import functions as F

    if not over.small or (len(key) == 1 and pa.types.is_integer(schema.field(key[0]).type)):
        return base.join(join_side(over.keys, broadcast=over.small), list(key), "left_anti")
    changed, same = by_hash(over.keys, key)
    return base.join(F.broadcast(changed), same, "left_anti")
