"""Staged files of a load. Spark writes a frame into files that no log names, and counts and checks its rows.

Bad counts reject the load with examples, and the files are removed. With a quarantine, bad rows are written there
instead. Repeated keys always reject the load, because it is unknown which of the rows is bad. `loader` commits the files.
Only loads import this module, so it imports PySpark.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F

from siltstone.coordination.liveness import LivenessLock
from siltstone.dataset.load.latest_row import last_frame
from siltstone.dataset.load.partition_groups import (
    GROUP,
    described,
    group_hash,
    moved_files,
    spread,
    with_period,
    write_groups,
    written_groups,
)
from siltstone.dataset.load.quarantine import Quarantine
from siltstone.dataset.load.row_validation import (
    BAD,
    COPIES,
    bad_examples,
    bad_reason,
    counts_of,
    duplicate_examples,
    quarantine_frame,
    rows_text,
    unread_examples,
)
from siltstone.dataset.load.sorted_write import (
    UNKNOWN_SIZE,
    FileRows,
    FrameRows,
    ParquetFile,
    Rows,
    Size,
    runs_folder,
    write_sorted,
)
from siltstone.dataset.read.dedup import RANK, ranked
from siltstone.dataset.schema_compat import fitted
from siltstone.dataset.store import Store
from siltstone.dataset.write.tombstones import TombstoneRequest
from siltstone.delta.table import Table
from siltstone.errors import Corruption, InvalidRequest, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import ACTOR, BATCH_ID, OP, PERIOD, POS, REASON, ROW_SEQ, WRITTEN_AT, Op
from siltstone.model.files import DataFile
from siltstone.spark.errors import away, error_line, is_away, is_missing_file, spark_errors
from siltstone.spark.output_files import attempt_folder, collect_files, discard, write_frame, writer_settings
from siltstone.spark_tasks.csv_rows import UNCLOSED
from siltstone.spark_tasks.json_rows import FILE, TEXT, UNREAD


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One load: the frame with the dataset's columns and marks (see `file_formats`), and its size if known.

    `loaded` are the app transactions that record the source files. Tombstones need the key alone. `files` are set if
    the frame holds exactly the rows of these files.
    """

    frame: DataFrame
    size: Size | None = None
    files: tuple[ParquetFile, ...] = ()
    order_by: tuple[str, ...] = ()
    refuse_duplicates: bool = True
    tombstone: TombstoneRequest | None = None
    quarantine: Quarantine | None = None
    loaded: frozenset[str] = frozenset()
    encoding: str = "utf-8"
    """The encoding of the files, for messages about their lines."""
    check_source: Callable[[], None] = lambda: None
    """Called right before the commit; raises if the source changed since it was checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLoad:
    """The files that Spark staged, and the number of quarantined rows."""

    files: tuple[DataFile, ...]
    quarantined: int = 0
    duplicates: int = 0
    """Number of duplicate rows of the load that are not written to base of a log."""


class LoadStager:
    """Stages the files of loads into one dataset."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def stage_changes(self, load: LoadRequest, owner: LivenessLock) -> tuple[StagedLoad, str]:
        """Write the rows as one change batch into a folder below `changes`, and return this folder, too."""
        store = self._store
        folder = attempt_folder(owner.owner, 0)
        if load.refuse_duplicates and not store.spec.is_log:
            return self.stage_sorted(load, store.changes, folder, batch_id=owner.owner), folder
        frame = _as_change_rows(_resolved(load, store), store, batch_id=owner.owner, tombstone=load.tombstone)
        return self._write(frame, load, store.changes, folder), folder

    def stage_sorted(self, load: LoadRequest, table: Table, folder: str, *, batch_id: str | None = None) -> StagedLoad:
        """Write the rows sorted by key, and reject repeated keys; with `batch_id` as rows of a change batch."""
        staged = self._stage_by_arrow(load, table, folder, batch_id=batch_id)
        if staged is not None:
            return staged
        store, frame, key = self._store, _resolved(load, self._store), self._store.spec.key
        # With a quarantine only good rows are counted. Rows of one key are in one range partition, already sorted, so the
        # count needs no further shuffle.
        counted = F.when(bad_reason(store, frame.columns).isNull(), 1) if load.quarantine is not None else F.lit(1)
        files = load.size.files(store) if load.size is not None else 1
        frame = frame.repartitionByRange(files, *key).sortWithinPartitions(*key)
        frame = frame.withColumn(COPIES, F.count(counted).over(Window.partitionBy(*key)))
        if batch_id is not None:
            frame = _as_change_rows(frame, store, batch_id=batch_id)
        return self._write(frame, load, table, folder)

    def _stage_by_arrow(
        self, load: LoadRequest, table: Table, folder: str, *, batch_id: str | None
    ) -> StagedLoad | None:
        """Sort a large load with Arrow (`sorted_write`); None if that is not possible, or a row is bad."""
        store = self._store
        if load.quarantine is not None or (load.size is not None and load.size.files(store) == 1):
            return None
        schema, stats = self._layout(table)
        rows = self._rows(load, batch_id=batch_id)
        try:
            with self._spark_errors(table, folder), writer_settings(rows.spark):
                done = write_sorted(rows, store, load.size, schema=schema, table=table, folder=folder)
            if done is None:
                discard(table.path, folder)
                return None
            files = collect_files(table.path, folder, schema=schema, stats=stats, names=done.names)
            self._refuse_miscount(done.rows, sum(file.rows for file in files))
        except Corruption:
            discard(table.path, folder)
            raise
        except OSError as error:
            discard(table.path, folder)
            table.check_there()
            raise Unavailable(
                f"Dataset {store.name}: {table.path} cannot be written ({error}). Nothing was loaded."
            ) from error
        finally:
            discard(table.path, runs_folder(folder))
        return StagedLoad(files=files)

    def _rows(self, load: LoadRequest, *, batch_id: str | None) -> Rows:
        store = self._store
        if load.files and batch_id is None and not load.order_by:
            return FileRows(spark=load.frame.sparkSession, files=load.files, store=store)
        frame = _resolved(load, store)
        bad = bad_reason(store, frame.columns).isNotNull()
        if batch_id is not None:
            frame = _as_change_rows(frame, store, batch_id=batch_id)
        return FrameRows(frame=frame, bad=bad)

    def _layout(self, table: Table) -> tuple[pa.Schema, Sequence[str]]:
        """Return the columns of a table's files, and the columns with statistics in the log."""
        store = self._store
        return (store.base_schema, store.stats) if table is store.base else (store.change_schema, [])

    def stage_log_base(self, load: LoadRequest, folder: str, *, batch_id: str) -> StagedLoad:
        """Write the rows in the form of a log's base: in files of one group each, sorted, without duplicates."""
        store = self._store
        spark = load.frame.sparkSession
        rows = _as_base_rows(load, store, batch_id=batch_id)
        parts = (load.size or UNKNOWN_SIZE).by_target(store)  # one part is divided by groups, without a sample
        rows_per_file = (load.size or UNKNOWN_SIZE).file_rows(store)

        def write(good: DataFrame) -> None:
            with writer_settings(spark):
                write_groups(good, store, folder, rows_per_file=rows_per_file)
            reach("ingest.after_groups")

        def verified() -> tuple[DataFile, ...]:
            paths = [path for path, _ in moved_files(store, folder)]
            with self._spark_errors(store.base, folder), writer_settings(spark):
                groups = written_groups(spark, store, paths)
            return tuple(described(store, path, groups[path]) for path in paths)

        return self._write_with(spread(rows, store, parts=parts), load, store.base, folder, write, verified)

    def _write(self, frame: DataFrame, load: LoadRequest, table: Table, folder: str) -> StagedLoad:
        """Write the frame into the folder, and verify the files."""
        schema, stats = self._layout(table)
        write = partial(write_frame, root=table.path, folder=folder, schema=schema, key=self._store.spec.found_by)
        verified = partial(collect_files, table.path, folder, schema=schema, stats=stats)
        return self._write_with(frame, load, table, folder, write, verified)

    def _write_with(
        self,
        frame: DataFrame,
        load: LoadRequest,
        table: Table,
        folder: str,
        write: Callable[[DataFrame], None],
        verified: Callable[[], tuple[DataFile, ...]],
    ) -> StagedLoad:
        """Write the good rows, and reject the load for bad rows counted meanwhile. Written must equal counted rows."""
        observation = Observation()
        keys_only, quarantine = load.tombstone is not None, load.quarantine is not None
        counts = counts_of(self._store, frame.columns, quarantine=quarantine, keys_only=keys_only)
        watched = frame.observe(observation, *counts)
        if quarantine:
            watched = watched.where(bad_reason(self._store, frame.columns).isNull())
        if RANK in frame.columns:
            watched = watched.where(F.col(RANK) == 1)
        try:
            with self._spark_errors(table, folder, keys_only=keys_only):
                write(watched.drop(COPIES, RANK, UNREAD))
            seen = {name: int(value or 0) for name, value in observation.get.items()}
            self._refuse_bad(seen, load)
            files = verified()
            quarantined, duplicates = seen.get("bad", 0), seen.get("lost", 0)
            self._refuse_miscount(seen["rows"] - quarantined - duplicates, sum(file.rows for file in files))
        except (InvalidRequest, Corruption):
            discard(table.path, folder)
            raise
        return StagedLoad(files=files, quarantined=quarantined, duplicates=duplicates)

    @contextlib.contextmanager
    def _spark_errors(self, table: Table, folder: str, *, keys_only: bool = False) -> Iterator[None]:
        try:
            yield
        except spark_errors() as error:
            discard(table.path, folder)
            table.check_there()
            if keys_only and is_missing_file(error):
                raise  # files of the keys' snapshot are gone by now: take a new snapshot
            if is_away(error):
                raise away(error) from error
            raise InvalidRequest(
                f"Dataset {self._store.name}: Spark could not read or write the rows: {error_line(error)} Nothing was loaded."
            ) from error

    def quarantine_rows(self, load: LoadRequest, staged: StagedLoad, table: Table, folder: str) -> None:
        """Write the bad rows into the quarantine, and sync the quarantine before the commit."""
        if load.quarantine is None:
            return
        try:
            if staged.quarantined:
                load.quarantine.make()
                seen = Observation()
                with self._spark_errors(table, folder), writer_settings(load.frame.sparkSession):
                    bad = quarantine_frame(load.frame, self._store).observe(seen, F.count(F.lit(1)).alias("rows"))
                    bad.write.mode("error").parquet(str(load.quarantine.rows))
                self._refuse_miscount(staged.quarantined, int(seen.get["rows"]))
            load.quarantine.settle()
        except (InvalidRequest, Corruption, Unavailable):
            discard(table.path, folder)
            raise
        if not staged.files:
            discard(table.path, folder)
            raise InvalidRequest(
                f"Dataset {self._store.name}: all {staged.quarantined} rows are bad; they are in {load.quarantine.path}. "
                "Nothing was loaded."
            )
        reach("ingest.after_quarantine")

    def _refuse_miscount(self, counted: int, written: int) -> None:
        if counted != written:
            raise Corruption(
                f"Dataset {self._store.name}: Spark counted {counted} rows and wrote {written}. Nothing was loaded. "
                "Check the disk, and run the load again."
            )

    def _refuse_bad(self, seen: dict[str, int], load: LoadRequest) -> None:
        name, key = self._store.name, ", ".join(self._store.spec.key)
        if not seen["rows"] and load.tombstone is None:
            raise InvalidRequest(f"Dataset {name}: there are no rows to load.")
        if load.quarantine is None:
            self._refuse_bad_rows(seen, load)
        if seen.get("unclosed"):
            examples = "; ".join(unread_examples(load.frame, encoding=load.encoding, reason=UNCLOSED))
            raise InvalidRequest(
                f"Dataset {name}: {rows_text(seen['unclosed'])} that cannot be quarantined, because the lines after it may "
                f"belong to it: {examples}. Nothing was loaded. Close the quote, or remove the line breaks from the field."
            )
        if seen.get("duplicates"):
            examples = "; ".join(duplicate_examples(_resolved(load, self._store), self._store.spec.key))
            same = f" and equal {', '.join(load.order_by)}" if load.order_by else ""
            raise InvalidRequest(
                f"Dataset {name}: {rows_text(seen['duplicates'])} with a repeated key ({key}){same}, for example {examples}. "
                "To keep the last of each, order them by columns (--order-by or order_by=), or remove them. Nothing was loaded."
            )

    def _refuse_bad_rows(self, seen: dict[str, int], load: LoadRequest) -> None:
        name = self._store.name
        if seen["unread"]:
            examples = "; ".join(unread_examples(load.frame, encoding=load.encoding))
            raise InvalidRequest(
                f"Dataset {name}: {rows_text(seen['unread'])} that cannot be read, for example {examples}. Nothing was loaded."
            )
        for count, what in BAD.items():
            if seen[count]:
                text = what.format(key=", ".join(self._store.spec.key))
                examples = "; ".join(bad_examples(load.frame, self._store, count))
                raise InvalidRequest(
                    f"Dataset {name}: {rows_text(seen[count])} {text}{f', for example {examples}' if examples else ''}. "
                    "Nothing was loaded."
                )


def _resolved(load: LoadRequest, store: Store) -> DataFrame:
    """Drop the marks that only messages need. With `order_by`, keep only the last row of each key."""
    frame = load.frame.drop(TEXT, FILE)
    if not load.order_by:
        return frame
    return last_frame(frame, store, load.order_by, bad=bad_reason(store, frame.columns).isNotNull())


def _as_base_rows(load: LoadRequest, store: Store, *, batch_id: str) -> DataFrame:
    """Add the columns of a log's base and a group hash. If the log has `dedup_by`, add the rank among duplicates.

    First and last of duplicates are the same rows as in a change batch of this frame. Bad rows are ranked separately.
    """
    rows = with_period(_resolved(load, store), store).withColumn(GROUP, group_hash(store)).drop(PERIOD)
    rows = rows.withColumns({WRITTEN_AT: _now(store), BATCH_ID: F.lit(batch_id)})
    if not store.spec.dedup_by:
        return rows
    bad = [bad_reason(store, rows.columns).isNotNull()] if load.quarantine is not None else []
    return ranked(rows.withColumn(POS, F.monotonically_increasing_id()), store, by=[POS], apart=bad).drop(POS)


def _now(store: Store) -> Column:
    return F.lit(store.clock.now()).cast("timestamp")


def _as_change_rows(
    frame: DataFrame, store: Store, *, batch_id: str, tombstone: TombstoneRequest | None = None
) -> DataFrame:
    """Add the system columns. The position is unique across the batch's files and follows the frame's order."""
    if tombstone is not None:
        frame = fitted(frame, store.schema)  # all but the key is null
    columns = [*store.schema.names, *[mark for mark in (COPIES, UNREAD) if mark in frame.columns]]
    written = Op.APPEND if store.spec.is_log else Op.UPSERT
    op = written if tombstone is None else Op.TOMBSTONE
    return frame.select(
        *columns,
        F.lit(op.value).alias(OP),
        F.monotonically_increasing_id().alias(POS),
        F.lit(None).cast("long").alias(ROW_SEQ),
        F.lit(batch_id).alias(BATCH_ID),
        _now(store).alias(WRITTEN_AT),
        F.lit(tombstone and tombstone.actor).cast("string").alias(ACTOR),
        F.lit(tombstone and tombstone.reason).cast("string").alias(REASON),
    )
