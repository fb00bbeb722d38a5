"""Bulk loads on Spark: straight to base while the dataset is empty, as one change batch otherwise.

Flow:

1. the source becomes a frame with the dataset's columns; duplicates are resolved by `order_by` or counted;
2. `staged_load`: Spark writes it into files that no log names, and bad rows reject the load or are quarantined;
3. first load: one commit on base that depends on "siltstone.fold", so only one load can win. Its files are sorted by
   key, those of a log divided into groups (`partition_groups`). A load that loses, or that finds rows in the dataset,
   becomes one change batch.

A log keeps all rows, so a file must not be loaded both straight to base and as changes. A load as changes first
records that on base ("siltstone.loads") and then checks whether base has the files. A first load is refused on top
of such a commit.

A crash before the commit leaves files of a dead owner for the sweep; after it the load is complete.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from siltstone.dataset.load.latest_row import check_order
from siltstone.dataset.load.staged_load import LoadRequest, LoadStager, StagedLoad
from siltstone.dataset.read.spark_frames import persisted_on_disk
from siltstone.dataset.snapshot import Snapshot, check_columns
from siltstone.dataset.store import Store
from siltstone.dataset.write.change_writer import Batch, ChangeWriter, check_producer
from siltstone.dataset.write.idempotency_marks import loaded_marks
from siltstone.dataset.write.tombstones import TombstoneRequest
from siltstone.delta.table import ParentVersion, Table
from siltstone.errors import Conflict, Fenced, InvalidRequest
from siltstone.failpoints import reach
from siltstone.model.columns import APP_CONTENT, APP_FOLD, APP_LOADS
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.reports import Ack, LoadReport
from siltstone.spark.output_files import attempt_folder, discard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class LoadedMeanwhile(Exception):  # noqa: N818
    """Another process has loaded some of the same files; nothing was committed. Select again what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadOutcome:
    """Result of a committed load."""

    staged: StagedLoad
    sequence: int
    is_first: bool = False


class Loader:
    """Loads frames into one dataset."""

    def __init__(self, store: Store, writer: ChangeWriter) -> None:
        self._store = store
        self._writer = writer
        self._stager = LoadStager(store)

    def load(self, load: LoadRequest) -> LoadReport:
        """Load a frame, straight to base if the dataset is still empty.

        Raise LoadedMeanwhile if another process was first with a file. Then nothing is loaded.
        """
        started = self._store.clock.monotonic_seconds()
        snapshot = self._store.snapshot()
        check_columns(self._store, snapshot)
        if self._store.spec.is_log and load.order_by:
            raise InvalidRequest(
                f"Dataset {self._store.name} is a log and keeps every row; there is nothing for order_by to choose from."
            )
        is_empty = snapshot.base.rows == 0 and snapshot.sequence <= snapshot.watermark
        if is_empty and not self._store.base.pin(APP_LOADS).transactions.get(APP_LOADS):
            done = self._first_load(load, snapshot)
        else:
            done = self._as_changes(load)
        files, quarantined = done.staged.files, done.staged.quarantined
        return LoadReport(
            rows=sum(file.rows for file in files),
            files=len(files),
            bytes=sum(file.size_bytes for file in files),
            sequence=done.sequence,
            first_load=done.is_first,
            seconds=self._store.clock.monotonic_seconds() - started,
            rows_quarantined=quarantined,
            rows_duplicate=done.staged.duplicates,
            quarantine=str(load.quarantine.path) if quarantined and load.quarantine is not None else None,
        )

    def write_frame(
        self, frame: "DataFrame", *, producer: str | None, sequence: int | None, order_by: tuple[str, ...] = ()
    ) -> Ack:
        """Write a user's frame as one change batch. A log keeps all rows. Repeated keys need an order, or are rejected.

        A crash before the commit leaves files of a dead owner for the sweep.
        """
        sequence = check_producer(producer, sequence)
        check_order(self._store, order_by)
        # The frame is read more than once, and may have other rows the next time.
        with persisted_on_disk(frame) as persisted, self._store.liveness_lock() as owner:
            staged, folder = self._stager.stage_changes(LoadRequest(frame=persisted, order_by=order_by), owner)
            return self._commit_changes(staged.files, folder, producer=producer, sequence=sequence)

    def tombstone_frame(self, keys: "DataFrame", *, request: TombstoneRequest, planned_at: int) -> Ack:
        """Write a tombstone for each key of a frame, as one change batch. Without keys no batch is written.

        The keys are those of the snapshot at sequence `planned_at`. Raise ChangedMeanwhile if one was changed since.
        """
        producer, sequence = request.producer, check_producer(request.producer, request.sequence)
        load = LoadRequest(frame=keys, refuse_duplicates=False, tombstone=request)
        with self._store.liveness_lock() as owner:
            staged, folder = self._stager.stage_changes(load, owner)
            if not staged.files:
                discard(self._store.changes.path, folder)
                self._writer.note(producer, sequence)
                return Ack(sequence=None, rows=0, applied=False)
            return self._commit_changes(
                staged.files, folder, producer=producer, sequence=sequence, planned_at=planned_at, hides=True
            )

    def _first_load(self, load: LoadRequest, snapshot: Snapshot) -> _LoadOutcome:
        store = self._store
        with store.liveness_lock() as owner:
            folder = attempt_folder(owner.owner, 0)
            if store.spec.is_log:
                staged = self._stager.stage_log_base(load, folder, batch_id=owner.owner)
            else:
                staged = self._stager.stage_sorted(load, store.base, folder)
            reach("ingest.after_write")
            self._stager.quarantine_rows(load, staged, store.base, folder)

            def build(parent: ParentVersion) -> Commit:
                if parent.transaction(APP_LOADS):
                    raise Conflict(
                        f"Dataset {store.name}: another process has loaded files into it meanwhile. The first load was not "
                        "committed. Run the load again."
                    )
                # Rows appear without a sequence, so the content version notifies followers.
                return Commit(
                    kind=CommitKind.FIRST_LOAD,
                    plan_version=snapshot.base.version,
                    adds=staged.files,
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
                return self._as_loser(load, staged, folder)
            reach("ingest.after_commit")
            store.note_commit(store.base, committed.version)
            return _LoadOutcome(staged=staged, sequence=snapshot.watermark, is_first=True)

    def _as_loser(self, load: LoadRequest, staged: StagedLoad, folder: str) -> _LoadOutcome:
        """Commit the staged rows as a change batch, because another load or fold was first."""
        store = self._store
        self._refuse_loaded(load, store.base, folder)
        frame = load.frame.sparkSession.read.parquet(str(store.base.path / folder))
        try:
            done = self._as_changes(LoadRequest(frame=frame, refuse_duplicates=False, loaded=load.loaded))
        finally:
            discard(store.base.path, folder)
        return replace(done, staged=replace(done.staged, quarantined=staged.quarantined, duplicates=staged.duplicates))

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

    def _as_changes(self, load: LoadRequest) -> _LoadOutcome:
        with self._store.liveness_lock() as owner:
            staged, folder = self._stager.stage_changes(load, owner)
            reach("ingest.after_write")
            self._stager.quarantine_rows(load, staged, self._store.changes, folder)
            self._close_base(load)
            self._refuse_loaded(load, self._store.changes, folder)
            ack = self._commit_changes(staged.files, folder, loaded=load.loaded)
            if not ack.applied:
                raise LoadedMeanwhile
            reach("ingest.after_commit")
        return _LoadOutcome(staged=staged, sequence=ack.sequence or 0)

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

    def _commit_changes(
        self,
        files: tuple[DataFile, ...],
        folder: str,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        loaded: frozenset[str] = frozenset(),
        planned_at: int | None = None,
        hides: bool = False,
    ) -> Ack:
        """Commit the staged files. If that certainly failed, their folder is removed."""
        rows = sum(file.rows for file in files)
        batch = Batch(
            files=files,
            rows=rows,
            tombstones=rows if hides else 0,
            producer=producer,
            producer_sequence=sequence or 0,
            loaded=loaded,
            planned_at=planned_at,
        )
        try:
            return self._writer.submit(batch)
        except (Conflict, InvalidRequest):
            discard(self._store.changes.path, folder)
            raise
