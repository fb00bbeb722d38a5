"""Bulk loads on Spark: straight to base while the dataset is empty, as one change batch otherwise.

Flow:

1. the source becomes a frame with the dataset's columns; duplicates are resolved by `order_by` or counted;
2. Spark writes it into files that no log names, and counts rows, null keys, oversized keys and duplicates;
3. bad counts reject the load with examples, and the files are removed. With a quarantine, bad rows are written there
   instead. Repeated keys always reject the load, because it is unknown which of the rows is bad;
4. first load: one commit on base that depends on "siltstone.fold", so only one load can win. Its files are sorted by
   key, those of a log divided into groups (`partition_groups`). A load that loses, or that finds rows in the dataset,
   becomes one change batch.

A log keeps all rows, so a file must not be loaded both straight to base and as changes. A load as changes first
records that on base ("siltstone.loads") and then checks whether base has the files. A first load is refused on top
of such a commit.

A crash before the commit leaves files of a dead owner for the sweep; after it the load is complete.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from siltstone.coordination.liveness import LivenessLock
from siltstone.dataset.load.latest_row import check_order, last_frame
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
    rejected,
    told_rows,
    unread_examples,
)
from siltstone.dataset.load.sorted_write import (
    UNKNOWN_SIZE,
    FileRows,
    FrameRows,
    ParquetFile,
    Rows,
    Size,
    arranged,
    runs_folder,
    sorted_by_spark,
)
from siltstone.dataset.read.dedup import RANK, ranked
from siltstone.dataset.read.spark_frames import kept_on_disk
from siltstone.dataset.schema_compat import fitted
from siltstone.dataset.snapshot import Snapshot, check_columns
from siltstone.dataset.store import Store
from siltstone.dataset.write.change_writer import Batch, ChangeWriter, check_producer
from siltstone.dataset.write.idempotency_marks import loaded_marks
from siltstone.delta.table import ParentVersion, Table
from siltstone.errors import Conflict, Corruption, Fenced, InvalidRequest, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import (
    ACTOR,
    APP_CONTENT,
    APP_FOLD,
    APP_LOADS,
    BATCH_ID,
    OP,
    PERIOD,
    POS,
    REASON,
    ROW_SEQ,
    WRITTEN_AT,
    Op,
)
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.reports import Ack, LoadReport
from siltstone.spark.errors import away, error_line, is_away, is_missing_file, spark_errors
from siltstone.spark.output_files import attempt_folder, collect_files, discard, house_settings, write_frame
from siltstone.spark_tasks.csv_rows import UNCLOSED
from siltstone.spark_tasks.json_rows import FILE, TEXT, UNREAD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """The actor and the reason of tombstones."""

    actor: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One load: the frame with the dataset's columns and marks (see `file_formats`), and its size if known.

    `loaded` are the app transactions that record the source files. Tombstones need the key alone. `files` are set if
    the frame holds exactly the rows of these files.
    """

    frame: "DataFrame"
    size: Size | None = None
    files: tuple[ParquetFile, ...] = ()
    order_by: tuple[str, ...] = ()
    refuse_duplicates: bool = True
    tombstone: Tombstone | None = None
    quarantine: Quarantine | None = None
    loaded: frozenset[str] = frozenset()
    encoding: str = "utf-8"
    """The encoding of the files, for messages about their lines."""
    check_source: Callable[[], None] = lambda: None
    """Called right before the commit; raises if the source changed since it was checked."""


class LoadedMeanwhile(Exception):  # noqa: N818
    """Another process has loaded some of the same files; nothing was committed.

    Select the files that are left again.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The files that Spark staged, and the number of quarantined rows."""

    files: tuple[DataFile, ...]
    aside: int = 0
    lost: int = 0
    """Number of duplicate rows of the load that are not written to base of a log."""


@dataclass(frozen=True, slots=True)
class _WriteStrategy:
    """How to write good rows to files of a folder, and how to verify these files."""

    write: "Callable[[DataFrame], None]"
    verified: Callable[[], tuple[DataFile, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadOutcome:
    """Result of a committed load."""

    written: _Written
    sequence: int
    is_first: bool = False


class Loader:
    """Loads frames into one dataset."""

    def __init__(self, store: Store, writer: ChangeWriter) -> None:
        """Load through the dataset's writer and its liveness lock."""
        self._store = store
        self._writer = writer

    def load(self, load: LoadRequest) -> LoadReport:
        """Load a frame, straight to base if the dataset is still empty.

        Raises:
            InvalidRequest: null, oversized or duplicate keys, or no rows at all. Nothing is loaded.
            LoadedMeanwhile: another process was first with a file. Nothing is loaded.
        """
        started = self._store.clock.monotonic_seconds()
        snapshot = self._store.snapshot()
        check_columns(self._store, snapshot)
        self._refuse_order(load)
        is_empty = snapshot.base.rows == 0 and snapshot.sequence <= snapshot.watermark
        if is_empty and not self._store.base.pin(APP_LOADS).transactions.get(APP_LOADS):
            done = self._first_load(load, snapshot)
        else:
            done = self._as_changes(load)
        files, aside = done.written.files, done.written.aside
        return LoadReport(
            rows=sum(file.rows for file in files),
            files=len(files),
            bytes=sum(file.size_bytes for file in files),
            sequence=done.sequence,
            first_load=done.is_first,
            seconds=self._store.clock.monotonic_seconds() - started,
            rows_quarantined=aside,
            rows_duplicate=done.written.lost,
            quarantine=str(load.quarantine.path) if aside and load.quarantine is not None else None,
        )

    def _refuse_order(self, load: LoadRequest) -> None:
        if self._store.spec.is_log and load.order_by:
            raise InvalidRequest(
                f"Dataset {self._store.name} is a log and keeps every row; there is nothing for order_by to choose from."
            )

    def write_frame(
        self, frame: "DataFrame", *, producer: str | None, sequence: int | None, order_by: tuple[str, ...] = ()
    ) -> Ack:
        """Write a user's frame as one change batch. A log keeps all rows. Repeated keys need an order, or are rejected.

        A crash before the commit leaves files of a dead owner for the sweep.
        """
        sequence = check_producer(producer, sequence)
        check_order(self._store, order_by)
        kept = kept_on_disk(frame)  # it is read more than once, and may have other rows the next time
        try:
            with self._store.presence() as owner:
                written, folder = self._write_changes(LoadRequest(frame=kept, order_by=order_by), owner)
                try:
                    return self._commit_changes(written.files, producer=producer, sequence=sequence)
                except (Conflict, InvalidRequest):
                    discard(self._store.changes.path, folder)
                    raise
        finally:
            kept.unpersist()

    def tombstone_frame(
        self,
        keys: "DataFrame",
        *,
        planned_at: int,
        actor: str | None,
        reason: str | None,
        producer: str | None,
        sequence: int | None,
    ) -> Ack:
        """Write a tombstone for each key of a frame, as one change batch. Without keys no batch is written.

        The keys are those of the snapshot at sequence `planned_at`.

        Raises:
            ChangedMeanwhile: one of them was changed since then; nothing was written.
        """
        number = check_producer(producer, sequence)
        load = LoadRequest(frame=keys, refuse_duplicates=False, tombstone=Tombstone(actor=actor, reason=reason))
        with self._store.presence() as owner:
            written, folder = self._write_changes(load, owner)
            if not written.files:
                discard(self._store.changes.path, folder)
                self._writer.note(producer, sequence)
                return Ack(sequence=None, rows=0, applied=False)
            try:
                return self._commit_changes(
                    written.files, producer=producer, sequence=number, planned_at=planned_at, hides=True
                )
            except (Conflict, InvalidRequest):
                discard(self._store.changes.path, folder)
                raise

    # ---- first load ----------------------------------------------------------------------------------------------

    def _first_load(self, load: LoadRequest, snapshot: Snapshot) -> _LoadOutcome:
        store = self._store
        with store.presence() as owner:
            folder = attempt_folder(owner.owner, 0)
            if store.spec.is_log:
                written = self._write_groups(load, folder, batch_id=owner.owner)
            else:
                written = self._write_sorted(load, store.base, folder)
            reach("ingest.after_write")
            self._put_aside(load, written, store.base, folder)

            def build(parent: ParentVersion) -> Commit:
                if parent.transaction(APP_LOADS):
                    raise Conflict(f"Dataset {store.name}: files are loaded as changes now.")
                # Rows appear without a sequence, so the content version notifies followers.
                return Commit(
                    kind=CommitKind.FIRST_LOAD,
                    plan_version=snapshot.base.version,
                    adds=written.files,
                    transactions={
                        APP_FOLD: snapshot.watermark,
                        APP_CONTENT: (parent.transaction(APP_CONTENT) or 0) + 1,
                        **dict.fromkeys(load.loaded, 1),
                    },
                    depends=frozenset({APP_FOLD}),
                    epoch=snapshot.epoch,
                )

            try:
                self._refuse_loaded(load, store.base, folder)
                committed = store.base.commit(build)
            except (Conflict, Fenced):
                return self._as_loser(load, written, folder)
            reach("ingest.after_commit")
            store.note_commit(store.base, committed.version)
            return _LoadOutcome(written=written, sequence=snapshot.watermark, is_first=True)

    def _as_loser(self, load: LoadRequest, written: _Written, folder: str) -> _LoadOutcome:
        """Commit the written files as a change batch, because another load or fold was first."""
        store = self._store
        self._refuse_loaded(load, store.base, folder)
        staged = load.frame.sparkSession.read.parquet(str(store.base.path / folder))
        again = LoadRequest(frame=staged, refuse_duplicates=False, loaded=load.loaded)
        try:
            done = self._as_changes(again)
        finally:
            discard(store.base.path, folder)
        return replace(done, written=replace(done.written, aside=written.aside, lost=written.lost))

    def _refuse_loaded(self, load: LoadRequest, table: Table, folder: str) -> None:
        """Stop if another process has loaded one of the files since the lookup, or if the files have changed."""
        store = self._store
        try:
            load.check_source()
        except InvalidRequest:
            discard(table.path, folder)
            raise
        if load.loaded and load.loaded & (loaded_marks(store.base) | loaded_marks(store.changes)):
            discard(table.path, folder)
            raise LoadedMeanwhile

    # ---- change batch --------------------------------------------------------------------------------------------

    def _as_changes(self, load: LoadRequest) -> _LoadOutcome:
        with self._store.presence() as owner:
            written, folder = self._write_changes(load, owner)
            reach("ingest.after_write")
            self._put_aside(load, written, self._store.changes, folder)
            self._close_base(load)
            self._refuse_loaded(load, self._store.changes, folder)
            ack = self._commit_changes(written.files, loaded=load.loaded)
            if not ack.applied:
                raise LoadedMeanwhile
            reach("ingest.after_commit")
        return _LoadOutcome(written=written, sequence=ack.sequence or 0)

    def _close_base(self, load: LoadRequest) -> None:
        """Close base of a log to first loads, before files are loaded as changes.

        A first load that commits later would not be seen here. A crash afterwards leaves a log whose loads all become
        change batches.
        """
        store = self._store
        if not store.spec.is_log or not load.loaded or store.base.pin(APP_LOADS).transactions.get(APP_LOADS):
            return
        committed = store.base.commit(
            lambda parent: Commit(kind=CommitKind.LOADS, plan_version=parent.version, transactions={APP_LOADS: 1})
        )
        reach("ingest.after_closing")
        store.note_commit(store.base, committed.version)

    def _write_changes(self, load: LoadRequest, owner: LivenessLock) -> tuple[_Written, str]:
        store = self._store
        folder = attempt_folder(owner.owner, 0)
        if load.refuse_duplicates and not store.spec.is_log:
            return self._write_sorted(load, store.changes, folder, batch_id=owner.owner), folder
        frame = _as_change_rows(_resolved(load, store), store, batch_id=owner.owner, tombstone=load.tombstone)
        return self._write(frame, load, store.changes, folder), folder

    def _commit_changes(
        self,
        files: tuple[DataFile, ...],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        loaded: frozenset[str] = frozenset(),
        planned_at: int | None = None,
        hides: bool = False,
    ) -> Ack:
        rows = sum(file.rows for file in files)
        return self._writer.submit(
            Batch(
                files=files,
                rows=rows,
                tombstones=rows if hides else 0,
                producer=producer,
                producer_sequence=sequence or 0,
                loaded=loaded,
                planned_at=planned_at,
            )
        )

    # ---- writing and validation ----------------------------------------------------------------------------------

    def _write_sorted(self, load: LoadRequest, table: Table, folder: str, *, batch_id: str | None = None) -> _Written:
        """Write the rows sorted by key, and reject repeated keys; with `batch_id` as rows of a change batch."""
        written = self._arranged(load, table, folder, batch_id=batch_id)
        if written is not None:
            return written
        frame = _counted(load, self._store)
        if batch_id is not None:
            frame = _as_change_rows(frame, self._store, batch_id=batch_id)
        return self._write(frame, load, table, folder)

    def _arranged(self, load: LoadRequest, table: Table, folder: str, *, batch_id: str | None) -> _Written | None:
        """Sort a large load with Arrow (`sorted_write`); None if that is not possible, or a row is bad."""
        store = self._store
        if load.quarantine is not None or (load.size is not None and load.size.files(store) == 1):
            return None
        schema, stats = self._layout(table)
        rows = self._rows(load, batch_id=batch_id)
        try:
            with self._spark_errors(table, folder), house_settings(rows.spark):
                done = arranged(rows, store, load.size, schema=schema, folder=table.path / folder)
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
        return _Written(files=files)

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

    def _write_groups(self, load: LoadRequest, folder: str, *, batch_id: str) -> _Written:
        """Write the rows in the form of a log's base: in files of one group each, sorted, without duplicates."""
        store = self._store
        spark = load.frame.sparkSession
        rows = _as_base_rows(load, store, batch_id=batch_id)
        parts = (load.size or UNKNOWN_SIZE).by_target(store)  # one part is divided by groups, without a sample
        rows_per_file = (load.size or UNKNOWN_SIZE).file_rows(store)

        def write(good: "DataFrame") -> None:
            with house_settings(spark):
                write_groups(good, store, folder, rows_per_file=rows_per_file)
            reach("ingest.after_groups")

        def verified() -> tuple[DataFile, ...]:
            paths = [path for path, _ in moved_files(store, folder)]
            with self._spark_errors(store.base, folder), house_settings(spark):
                groups = written_groups(spark, store, paths)
            return tuple(described(store, path, groups[path]) for path in paths)

        return self._write_with(
            spread(rows, store, parts=parts), load, store.base, folder, _WriteStrategy(write, verified)
        )

    def _write(self, frame: "DataFrame", load: LoadRequest, table: Table, folder: str) -> _Written:
        """Write the frame into the folder, and verify the files."""
        schema, stats = self._layout(table)
        way = _WriteStrategy(
            write=lambda good: write_frame(good, table.path, folder, schema=schema, key=self._store.spec.found_by),
            verified=lambda: collect_files(table.path, folder, schema=schema, stats=stats),
        )
        return self._write_with(frame, load, table, folder, way)

    def _write_with(
        self, frame: "DataFrame", load: LoadRequest, table: Table, folder: str, way: "_WriteStrategy"
    ) -> _Written:
        """Write the frame, and reject it for bad rows counted during the write.

        Written rows must equal counted rows.
        """
        try:
            seen = self._watched(frame, load, table, folder, way.write)
            self._refuse_bad(seen, load)
            files = way.verified()
            aside, lost = seen.get("bad", 0), seen.get("lost", 0)
            self._refuse_miscount(seen["rows"] - aside - lost, sum(file.rows for file in files))
        except (InvalidRequest, Corruption):
            discard(table.path, folder)
            raise
        return _Written(files=files, aside=aside, lost=lost)

    def _watched(
        self, frame: "DataFrame", load: LoadRequest, table: Table, folder: str, write: "Callable[[DataFrame], None]"
    ) -> dict[str, int]:
        """Write the good rows with Spark, and return the counts taken during the write."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        keys_only, aside = load.tombstone is not None, load.quarantine is not None
        watched = frame.observe(seen, *counts_of(self._store, frame.columns, aside=aside, keys_only=keys_only))
        if aside:
            watched = watched.where(bad_reason(self._store, frame.columns).isNull())
        if RANK in frame.columns:
            watched = watched.where(F.col(RANK) == 1)
        with self._spark_errors(table, folder, keys_only=keys_only):
            write(watched.drop(COPIES, RANK, UNREAD))
        return {name: int(value or 0) for name, value in seen.get.items()}

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

    def _put_aside(self, load: LoadRequest, written: _Written, table: Table, folder: str) -> None:
        """Write the bad rows into the quarantine, and sync the quarantine before the commit."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        if load.quarantine is None:
            return
        try:
            if written.aside:
                load.quarantine.make()
                seen = Observation()
                with self._spark_errors(table, folder), house_settings(load.frame.sparkSession):
                    bad = rejected(load.frame, self._store).observe(seen, F.count(F.lit(1)).alias("rows"))
                    bad.write.mode("error").parquet(str(load.quarantine.rows))
                self._refuse_miscount(written.aside, int(seen.get["rows"]))
            load.quarantine.settle()
            self._refuse_nothing(load.quarantine, written)
        except (InvalidRequest, Corruption, Unavailable):
            discard(table.path, folder)
            raise
        reach("ingest.after_quarantine")

    def _refuse_nothing(self, quarantine: Quarantine, written: _Written) -> None:
        if not written.files:
            raise InvalidRequest(
                f"Dataset {self._store.name}: all {written.aside} rows are bad; they are in {quarantine.path}. "
                "Nothing was loaded."
            )

    def _refuse_miscount(self, counted: int, written: int) -> None:
        if counted != written:
            raise Corruption(f"Dataset {self._store.name}: Spark counted {counted} rows and wrote {written}.")

    def _refuse_bad(self, seen: dict[str, int], load: LoadRequest) -> None:
        name, key = self._store.name, ", ".join(self._store.spec.key)
        if not seen["rows"] and load.tombstone is None:
            raise InvalidRequest(f"Dataset {name}: there are no rows to load.")
        if load.quarantine is None:
            self._refuse_bad_rows(seen, load)
        if seen.get("unclosed"):
            examples = "; ".join(unread_examples(load.frame, encoding=load.encoding, reason=UNCLOSED))
            raise InvalidRequest(
                f"Dataset {name}: {told_rows(seen['unclosed'])} that cannot be put aside, because the lines after it may belong "
                f"to it: {examples}. Nothing was loaded. Close the quote, or remove the line breaks from the field."
            )
        if seen.get("duplicates"):
            examples = "; ".join(duplicate_examples(_resolved(load, self._store), self._store.spec.key))
            same = f" and equal {', '.join(load.order_by)}" if load.order_by else ""
            raise InvalidRequest(
                f"Dataset {name}: {told_rows(seen['duplicates'])} with a repeated key ({key}){same}, for example {examples}. "
                "To keep the last of each say what orders them (--order-by or order_by=), or remove them. Nothing was loaded."
            )

    def _refuse_bad_rows(self, seen: dict[str, int], load: LoadRequest) -> None:
        name = self._store.name
        if seen["unread"]:
            examples = "; ".join(unread_examples(load.frame, encoding=load.encoding))
            raise InvalidRequest(
                f"Dataset {name}: {told_rows(seen['unread'])} that cannot be read, for example {examples}. Nothing was loaded."
            )
        for count, what in BAD.items():
            if seen[count]:
                text = what.format(key=", ".join(self._store.spec.key))
                examples = "; ".join(bad_examples(load.frame, self._store, count))
                raise InvalidRequest(
                    f"Dataset {name}: {told_rows(seen[count])} {text}{f', for example {examples}' if examples else ''}. "
                    "Nothing was loaded."
                )


def _resolved(load: LoadRequest, store: Store) -> "DataFrame":
    """Drop the marks that only messages need. With `order_by`, keep only the last row of each key."""
    frame = load.frame.drop(TEXT, FILE)
    if not load.order_by:
        return frame
    return last_frame(frame, store, load.order_by, bad=bad_reason(store, frame.columns).isNotNull())


def _counted(load: LoadRequest, store: Store) -> "DataFrame":
    """Sort by key, and count the copies of each key. With a quarantine only good rows are counted.

    Rows of one key meet in one range partition, already sorted, so the count needs no further shuffle.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    frame = _resolved(load, store)
    counted = F.when(bad_reason(store, frame.columns).isNull(), 1) if load.quarantine is not None else F.lit(1)
    by_key = Window.partitionBy(*store.spec.key)
    return sorted_by_spark(frame, store, load.size).withColumn(COPIES, F.count(counted).over(by_key))


def _as_base_rows(load: LoadRequest, store: Store, *, batch_id: str) -> "DataFrame":
    """Add the columns of a log's base and a group hash. If the log has `dedup_by`, add the rank among duplicates.

    First and last of duplicates are the same rows as in a change batch of this frame. Bad rows are ranked separately.
    """
    from pyspark.sql import functions as F

    rows = with_period(_resolved(load, store), store).withColumn(GROUP, group_hash(store)).drop(PERIOD)
    rows = rows.withColumns({WRITTEN_AT: _now(store), BATCH_ID: F.lit(batch_id)})
    if not store.spec.dedup_by:
        return rows
    bad = [bad_reason(store, rows.columns).isNotNull()] if load.quarantine is not None else []
    return ranked(rows.withColumn(POS, F.monotonically_increasing_id()), store, by=[POS], apart=bad).drop(POS)


def _now(store: Store) -> "Column":
    from pyspark.sql import functions as F

    return F.lit(store.clock.now()).cast("timestamp")


def _as_change_rows(
    frame: "DataFrame", store: Store, *, batch_id: str, tombstone: Tombstone | None = None
) -> "DataFrame":
    """Add the system columns. The position is unique across the batch's files and follows the frame's order."""
    from pyspark.sql import functions as F

    if tombstone is not None:
        frame = fitted(frame, store.schema)  # all but the key is null
    columns = [*store.schema.names, *[mark for mark in (COPIES, UNREAD) if mark in frame.columns]]
    written = Op.APPEND if store.spec.is_log else Op.UPSERT
    op = written if tombstone is None else Op.TOMBSTONE
    who = tombstone or Tombstone()
    return frame.select(
        *columns,
        F.lit(op.value).alias(OP),
        F.monotonically_increasing_id().alias(POS),
        F.lit(None).cast("long").alias(ROW_SEQ),
        F.lit(batch_id).alias(BATCH_ID),
        _now(store).alias(WRITTEN_AT),
        F.lit(who.actor).cast("string").alias(ACTOR),
        F.lit(who.reason).cast("string").alias(REASON),
    )
