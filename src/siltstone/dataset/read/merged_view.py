"""The merged view of a dataset of either kind. Only this module chooses the implementation."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.arrow_view import head_table, latest_changes, merged_table
from siltstone.dataset.read.log_view import log_frame, log_head, log_table, tombstone_rows
from siltstone.dataset.read.python_rows import python_rows
from siltstone.dataset.read.spark_view import merged_frame
from siltstone.dataset.schema_compat import refuse_unknown
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.errors import InvalidRequest
from siltstone.model.columns import ACTOR, OP, REASON, SEQ, WRITTEN_AT, Op
from siltstone.model.spec import as_names
from siltstone.spark.errors import damage, error_line, is_away, is_missing_file, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def view_columns(store: Store, columns: str | Sequence[str] | None) -> Sequence[str]:
    """Return the columns that a reader requests (default: all); each must exist, and is requested once."""
    names: Sequence[str] = store.schema.names if columns is None else as_names(columns)
    refuse_unknown(names, store.schema, dataset=str(store.name))
    if not names or len(set(names)) < len(names):
        raise InvalidRequest(f"Dataset {store.name}: name at least one column, and each once.")
    return names


def view_table(
    store: Store, snapshot: Snapshot, *, raw: bool = False, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return the view, or some columns, as one Arrow table, without Spark. With `raw`, tombstones are not applied."""
    if not store.spec.is_log:
        return merged_table(store, snapshot, raw=raw, columns=columns)
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
    return log_head(store, snapshot, rows, raw=raw)


def view_frame(
    spark: "SparkSession", store: Store, snapshot: Snapshot, *, raw: bool = False, once: bool = False
) -> "DataFrame":
    """Return the view as a Spark frame. A frame that is read `once` is not cached for later reads."""
    if store.spec.is_log:
        return log_frame(spark, store, snapshot, raw=raw, once=once)
    return merged_frame(spark, store, snapshot, raw=raw, once=once)


def view_tombstones(store: Store, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the unfolded tombstones that hide a row: key or subject, time, actor, reason, sequence."""
    names = [*store.spec.found_by, WRITTEN_AT, ACTOR, REASON]
    if store.spec.is_log:
        rows = tombstone_rows(store, snapshot, columns=[WRITTEN_AT, ACTOR, REASON])
    else:
        latest = latest_changes(store, snapshot, columns=[WRITTEN_AT, ACTOR, REASON])
        rows = latest.filter(pc.equal(latest.column(OP), Op.TOMBSTONE.value))
    public = {WRITTEN_AT: "deleted_at", ACTOR: "actor", REASON: "reason", SEQ: "sequence"}
    names.append(SEQ)
    return python_rows(rows.select(names).rename_columns([public.get(name, name) for name in names]))


@contextmanager
def condition_errors(store: Store) -> Iterator[None]:
    """Convert Spark's errors about a user's condition on the view. Missing files and an absent Spark are not its fault."""
    try:
        yield
    except spark_errors() as error:
        if is_missing_file(error) or is_away(error):
            raise
        if damaged := damage(error):
            raise damaged from error
        raise InvalidRequest(f"Dataset {store.name}: Spark refused the condition: {error_line(error)}") from error
