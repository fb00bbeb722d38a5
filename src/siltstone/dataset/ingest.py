"""Bulk loads on Spark: straight to base while the dataset is empty, as one change batch otherwise.

Flow:

1. the source becomes a frame with the dataset's columns; duplicates are resolved by `order_by` or counted;
2. Spark writes it, counting rows, null keys, oversized keys and duplicates on the way, into files no log names;
3. bad counts refuse the load with examples, and the files are removed;
4. first load: one commit on base that depends on "siltstone.fold", so only one can win; the files are sorted by key.
   A loser, and a load into a dataset that has rows, becomes one change batch.

A crash before the commit leaves files of a dead owner for the sweep; after it the load is complete.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.dataset.changes import Batch, ChangeWriter, check_producer
from siltstone.dataset.store import Snapshot, Store
from siltstone.dataset.written import attempt_folder, collect_files, discard, write_frame
from siltstone.errors import Conflict, Corruption, Fenced, InvalidRequest
from siltstone.failpoints import reach
from siltstone.model.columns import ACTOR, APP_CONTENT, APP_FOLD, BATCH_ID, OP, POS, REASON, ROW_SEQ, WRITTEN_AT, Op
from siltstone.model.files import Commit, CommitKind, DataFile
from siltstone.model.results import Ack, LoadReport
from siltstone.model.schema import MAX_KEY_BYTES
from siltstone.storage.presence import Presence
from siltstone.storage.spark_failures import away, error_line, is_away, spark_errors
from siltstone.storage.table import Parent, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EXAMPLES: Final = 3
_COPIES: Final = "_copies"
BYTES_PER_TASK: Final = 16 * 1024 * 1024
ROWS_PER_TASK: Final = 250_000
MIN_TASKS: Final = 4
"""A load above this many tasks' bytes or rows is sorted by this many tasks at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load: the frame with the dataset's columns, and its size as far as it is known."""

    frame: "DataFrame"
    size_bytes: int
    rows: int = 0
    order_by: tuple[str, ...] = ()
    refuse_duplicates: bool = True


class Loader:
    """Loads frames into one dataset."""

    def __init__(self, store: Store, writer: ChangeWriter) -> None:
        """Load through the dataset's writer and its presence."""
        self._store = store
        self._writer = writer

    def load(self, load: Load) -> LoadReport:
        """Load a frame, straight to base if the dataset is still empty.

        Raises:
            InvalidRequest: null, oversized or duplicate keys, or no rows at all. Nothing is loaded.
        """
        started = self._store.clock.monotonic_seconds()
        snapshot = self._store.snapshot()
        if snapshot.base.rows == 0 and snapshot.sequence <= snapshot.watermark:
            files, sequence, first = self._first_load(load, snapshot)
        else:
            files, sequence = self._as_changes(load)
            first = False
        return LoadReport(
            rows=sum(file.rows for file in files),
            files=len(files),
            bytes=sum(file.size_bytes for file in files),
            sequence=sequence,
            first_load=first,
            seconds=self._store.clock.monotonic_seconds() - started,
        )

    def upsert_frame(self, frame: "DataFrame", *, producer: str | None, sequence: int | None) -> Ack:
        """Write a user's frame as one change batch; the last of several rows with one key wins."""
        sequence = check_producer(producer, sequence)
        with self._store.presence() as owner:
            files, folder = self._write_changes(Load(frame=frame, size_bytes=0, refuse_duplicates=False), owner)
            try:
                ack = self._commit_changes(files, producer=producer, sequence=sequence)
            except (Conflict, InvalidRequest):
                discard(self._store.changes.path, folder)
                raise
        return ack

    # ---- first load ----------------------------------------------------------------------------------------------

    def _first_load(self, load: Load, snapshot: Snapshot) -> tuple[tuple[DataFile, ...], int, bool]:
        store = self._store
        with store.presence() as owner:
            folder = attempt_folder(owner.owner, 0)
            frame = _sorted(_resolved(load, store), store, partitions=_partitions(load, store))
            files = self._write(frame, load, store.base, folder)
            reach("ingest.after_write")

            def build(parent: Parent) -> Commit:
                # Rows appear without a sequence, so followers are told by the content version.
                return Commit(
                    kind=CommitKind.FIRST_LOAD,
                    plan_version=snapshot.base.version,
                    adds=files,
                    transactions={
                        APP_FOLD: snapshot.watermark,
                        APP_CONTENT: (parent.transaction(APP_CONTENT) or 0) + 1,
                    },
                    depends=frozenset({APP_FOLD}),
                    epoch=snapshot.epoch,
                )

            try:
                committed = store.base.commit(build)
            except (Conflict, Fenced):
                return self._as_loser(folder, load.frame.sparkSession)
            reach("ingest.after_commit")
            store.note_commit(store.base, committed.version)
            return files, snapshot.watermark, True

    def _as_loser(self, folder: str, spark: "SparkSession") -> tuple[tuple[DataFile, ...], int, bool]:
        """Another load or fold was first: what was written becomes a change batch."""
        store = self._store
        staged = spark.read.parquet(str(store.base.path / folder))
        files, sequence = self._as_changes(Load(frame=staged, size_bytes=0, refuse_duplicates=False))
        discard(store.base.path, folder)
        return files, sequence, False

    # ---- change batch --------------------------------------------------------------------------------------------

    def _as_changes(self, load: Load) -> tuple[tuple[DataFile, ...], int]:
        with self._store.presence() as owner:
            files, _ = self._write_changes(load, owner)
            reach("ingest.after_write")
            ack = self._commit_changes(files)
            reach("ingest.after_commit")
        return files, ack.sequence or 0

    def _write_changes(self, load: Load, owner: Presence) -> tuple[tuple[DataFile, ...], str]:
        store = self._store
        folder = attempt_folder(owner.owner, 0)
        frame = _resolved(load, store)
        if load.refuse_duplicates and not load.order_by:
            frame = _sorted(frame, store, partitions=_partitions(load, store))
        frame = _as_change_rows(frame, store, batch_id=owner.owner)
        return self._write(frame, load, store.changes, folder), folder

    def _commit_changes(
        self, files: tuple[DataFile, ...], *, producer: str | None = None, sequence: int | None = None
    ) -> Ack:
        rows = sum(file.rows for file in files)
        return self._writer.submit(Batch(files=files, rows=rows, producer=producer, producer_sequence=sequence or 0))

    # ---- writing and judging -------------------------------------------------------------------------------------

    def _write(self, frame: "DataFrame", load: Load, table: Table, folder: str) -> tuple[DataFile, ...]:
        """Write the frame, and refuse it for what was counted while it passed; what was written must be what was counted."""
        store = self._store
        schema, stats = (store.schema, store.stats) if table is store.base else (store.change_schema, [])
        try:
            seen = self._watched(frame, table, folder, schema=schema)
            self._refuse_bad(seen, load)
            files = collect_files(table.path, folder, schema=schema, stats=stats)
            self._refuse_miscount(seen["rows"], sum(file.rows for file in files))
        except (InvalidRequest, Corruption):
            discard(table.path, folder)
            raise
        return files

    def _watched(self, frame: "DataFrame", table: Table, folder: str, *, schema: pa.Schema) -> dict[str, int]:
        """Let Spark write, and return what was counted on the way."""
        from pyspark.sql import Observation

        seen = Observation()
        watched = frame.observe(seen, *_counts(self._store, counted=_COPIES in frame.columns)).drop(_COPIES)
        try:
            write_frame(watched, table.path, folder, schema=schema, key=self._store.spec.key)
        except spark_errors() as error:
            if is_away(error):
                raise away(error) from error
            raise InvalidRequest(
                f"Dataset {self._store.name}: Spark could not read or write the rows: {error_line(error)} Nothing was loaded."
            ) from error
        return {name: int(value or 0) for name, value in seen.get.items()}

    def _refuse_miscount(self, counted: int, written: int) -> None:
        if counted != written:
            raise Corruption(f"Dataset {self._store.name}: Spark counted {counted} rows and wrote {written}.")

    def _refuse_bad(self, seen: dict[str, int], load: Load) -> None:
        name, key = self._store.name, ", ".join(self._store.spec.key)
        if not seen["rows"]:
            raise InvalidRequest(f"Dataset {name}: there are no rows to load.")
        if seen["null_keys"]:
            raise InvalidRequest(
                f"Dataset {name}: {_rows(seen['null_keys'])} without a key ({key}). Nothing was loaded."
            )
        if seen["null_required"]:
            raise InvalidRequest(
                f"Dataset {name}: {_rows(seen['null_required'])} without a value that must not be null. Nothing was loaded."
            )
        if seen["long_keys"]:
            raise InvalidRequest(
                f"Dataset {name}: {_rows(seen['long_keys'])} with a key of more than {MAX_KEY_BYTES} bytes. Nothing was loaded."
            )
        if seen["bad_text"]:
            raise InvalidRequest(
                f"Dataset {name}: {seen['bad_text']} rows hold text that is not UTF-8. Nothing was loaded."
            )
        if seen.get("duplicates"):
            examples = "; ".join(duplicate_examples(load.frame, self._store.spec.key))
            raise InvalidRequest(
                f"Dataset {name}: {_rows(seen['duplicates'])} with a repeated key ({key}), for example {examples}. "
                "To keep the last of each say what orders them (--order-by or order_by=), or remove them. Nothing was loaded."
            )


def _rows(count: int) -> str:
    return f"there {'is 1 row' if count == 1 else f'are {count} rows'}"


def _resolved(load: Load, store: Store) -> "DataFrame":
    """Keep the last row of each key by `order_by`, if it was given."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not load.order_by:
        return load.frame
    order = Window.partitionBy(*store.spec.key).orderBy(
        *[F.col(f"`{name}`").desc_nulls_last() for name in load.order_by]
    )
    return load.frame.withColumn("_rank", F.row_number().over(order)).where("_rank = 1").drop("_rank")


def _sorted(frame: "DataFrame", store: Store, *, partitions: int) -> "DataFrame":
    """Sort by key into files of the target size, and count each key's copies on the way.

    Rows of one key meet in one range partition, already sorted, so the count needs no further shuffle.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = list(store.spec.key)
    ranged = frame.repartitionByRange(partitions, *key).sortWithinPartitions(*key)
    return ranged.withColumn(_COPIES, F.count(F.lit(1)).over(Window.partitionBy(*key)))


def _partitions(load: Load, store: Store) -> int:
    """Files of the target size, but enough of them to keep a few cores busy with a middling load."""
    by_target = math.ceil(load.size_bytes / store.settings.target_file_bytes)
    tasks = max(math.ceil(load.size_bytes / BYTES_PER_TASK), math.ceil(load.rows / ROWS_PER_TASK))
    return max(1, by_target, min(MIN_TASKS, tasks))


def _counts(store: Store, *, counted: bool) -> "list[Column]":
    from pyspark.sql import functions as F

    def total(condition: "Column") -> "Column":
        return F.sum(F.when(condition, 1).otherwise(0))

    key = store.spec.key
    null_key = F.lit(False)  # noqa: FBT003
    long_key = F.lit(False)  # noqa: FBT003
    missing = F.lit(False)  # noqa: FBT003
    bad_text = F.lit(False)  # noqa: FBT003
    for field in store.schema:
        if pa.types.is_string(field.type):
            bad_text = bad_text | ~F.coalesce(F.is_valid_utf8(field.name), F.lit(True))  # noqa: FBT003
        if field.name in key:
            null_key = null_key | F.col(field.name).isNull()
            if pa.types.is_string(field.type):
                long_key = long_key | F.coalesce(F.octet_length(field.name) > MAX_KEY_BYTES, F.lit(False))  # noqa: FBT003
        elif not field.nullable:
            missing = missing | F.col(field.name).isNull()
    counts = [
        F.count(F.lit(1)).alias("rows"),
        total(null_key).alias("null_keys"),
        total(long_key).alias("long_keys"),
        total(missing).alias("null_required"),
        total(bad_text).alias("bad_text"),
    ]
    return [*counts, total(F.col(_COPIES) > 1).alias("duplicates")] if counted else counts


def _as_change_rows(frame: "DataFrame", store: Store, *, batch_id: str) -> "DataFrame":
    """Add our columns; the position is unique across the batch's files and follows the frame's order."""
    from pyspark.sql import functions as F

    columns = [*store.schema.names, *([_COPIES] if _COPIES in frame.columns else [])]
    return frame.select(
        *columns,
        F.lit(Op.UPSERT.value).alias(OP),
        F.monotonically_increasing_id().alias(POS),
        F.lit(None).cast("long").alias(ROW_SEQ),
        F.lit(batch_id).alias(BATCH_ID),
        F.lit(store.clock.now()).cast("timestamp").alias(WRITTEN_AT),
        F.lit(None).cast("string").alias(ACTOR),
        F.lit(None).cast("string").alias(REASON),
    )


def duplicate_examples(frame: "DataFrame", key: Sequence[str]) -> list[str]:
    """Return a few repeated keys with their counts, for an error message."""
    from pyspark.sql import functions as F

    repeated = frame.groupBy(*key).agg(F.count(F.lit(1)).alias(_COPIES)).where(F.col(_COPIES) > 1)
    rows = repeated.orderBy(F.col(_COPIES).desc(), *key).limit(EXAMPLES).toArrow().to_pylist()
    return [", ".join(f"{name}={row[name]!r}" for name in key) + f" ({row[_COPIES]} times)" for row in rows]
