"""Writes changes: stages a Parquet file, then commits it with the next sequence, grouped with all waiting batches.

Flow of a batch:

1. stage: the rows become the file ``changes/data/<batch>.parquet``, and ``<batch>.1.parquet`` and so on for a large
   batch (or files written by Spark's executors); ``_pos`` counts on through the files of a batch;
2. verify: the footer is read back and the file synced, beside other writers;
3. queue: the leader of the round reads n = "siltstone.seq" and commits k files with sequences n+1..n+k, setting that
   transaction to n+k. A lost race reads n again and rewrites no file, because the number is stored in the log.

A crash in 1 or 2 leaves files that no log names, whose owner is dead: the sweep deletes them. A crash in 3 leaves the
whole round, or nothing of it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.arrow_view import read_file
from siltstone.dataset.snapshot import sequence_of
from siltstone.dataset.store import Store
from siltstone.dataset.table_invariants import check_pruned, check_watermark
from siltstone.dataset.write.idempotency_marks import ACK, loaded_marks
from siltstone.dataset.write.row_conversion import change_rows, file_parts
from siltstone.delta.group_commit import WriterQueue
from siltstone.delta.layout import DATA
from siltstone.delta.parquet import write_file
from siltstone.delta.table import ParentVersion
from siltstone.errors import Conflict, Corruption, Gone, InvalidRequest, SiltstoneError, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import APP_FOLD, APP_PRODUCER, APP_PRUNE, APP_SEQ, OP, SEQ, TOMBSTONES, Op
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.numbers import MAX_LONG, whole_number
from siltstone.model.reports import Ack

MAX_PRODUCER_CHARS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A staged batch: its files, and its idempotency marks: a producer's sequence, or the loaded files."""

    files: tuple[DataFile, ...]
    rows: int
    tombstones: int = 0
    producer: str | None = None
    producer_sequence: int = 0
    loaded: frozenset[str] = frozenset()
    planned_at: int | None = None
    """The sequence at which its rows were read. The batch must not hold a key that was changed since."""


class ChangedMeanwhile(Exception):  # noqa: N818
    """A key of a batch was changed since the batch was planned; nothing was written. Plan the batch again."""


BatchOutcome = Ack | InvalidRequest | ChangedMeanwhile
"""What a round of commits decided for one batch: its acknowledgement, or the error for its caller."""


class _AllApplied(Exception):  # noqa: N818
    """Every batch of the round was applied before; there is nothing to commit."""


class _PrunedMeanwhile(Exception):  # noqa: N818
    """Changes were pruned above the watermark that was read: base was folded since, or is older than `changes`."""

    def __init__(self, sequence: int) -> None:
        super().__init__(sequence)
        self.sequence = sequence


class ChangeWriter:
    """The write side of one dataset in one process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._queue: WriterQueue[Batch, BatchOutcome] = WriterQueue(
            self._commit,
            label=f"Dataset {store.name}",
            bound=store.settings.writer_queue_batches,
            wait_seconds=store.settings.commit_timeout_seconds,
        )

    def write(
        self,
        parts: Iterable[pa.Table],
        *,
        batch_id: str,
        producer: str | None = None,
        sequence: int | None = None,
        planned_at: int | None = None,
    ) -> Ack:
        """Stage each part of one batch as a file, and commit the files with one sequence; return when they are durable.

        ChangedMeanwhile: a key of the batch was changed above the sequence `planned_at`; nothing was written.
        """
        number = check_producer(producer, sequence)
        self.store.changes.check_there()  # a dropped dataset is Gone before a file is written
        with self.store.liveness_lock(batch_id):
            staged = self._staged(parts, batch_id)
            batch = replace(staged, producer=producer, producer_sequence=number or 0, planned_at=planned_at)
            return self.submit(batch)

    def write_rows(
        self,
        table: pa.Table,
        op: Op,
        *,
        producer: str | None,
        sequence: int | None,
        actor: str | None = None,
        reason: str | None = None,
        planned_at: int | None = None,
    ) -> Ack:
        """Write one batch of checked rows in the dataset's types; see `write`."""
        store = self.store
        batch_id, written_at = store.clock.new_id(), store.clock.now()
        parts = (
            change_rows(
                part,
                op=op,
                schema=store.change_schema,
                batch_id=batch_id,
                written_at=written_at,
                first_position=first,
                actor=actor,
                reason=reason,
            )
            for first, part in file_parts(table, max_rows=store.settings.upsert_rows)
        )
        return self.write(parts, batch_id=batch_id, producer=producer, sequence=sequence, planned_at=planned_at)

    def _staged(self, parts: Iterable[pa.Table], batch_id: str) -> Batch:
        """Write the files of a batch. On failure the written files are removed; a crash leaves them to the sweep."""
        batch = Batch(files=(), rows=0)
        try:
            for number, rows in enumerate(parts):
                suffix = f".{number}" if number else ""
                file = self._stage(rows, f"{DATA}/{batch_id}{suffix}.parquet")
                hidden = pc.sum(pc.equal(rows.column(OP), Op.TOMBSTONE.value)).as_py() or 0
                batch = replace(
                    batch,
                    files=(*batch.files, file),
                    rows=batch.rows + file.rows,
                    tombstones=batch.tombstones + hidden,
                )
                reach("upsert.after_stage")
        except (SiltstoneError, OSError):
            self._discard(batch)
            raise
        return batch

    def _stage(self, rows: pa.Table, relative: str) -> DataFile:
        path = self.store.changes.path / relative
        try:
            self.store.changes.make_folder(DATA)
            write_file(rows, path, key=self.store.spec.found_by)
            size = path.stat().st_size
        except OSError as error:
            path.unlink(missing_ok=True)
            self.store.changes.check_there()
            raise Unavailable(
                f"Dataset {self.store.name}: {path.parent} cannot be written ({error}); nothing was changed. "
                "Check the disk and its permissions."
            ) from error
        stats = json.dumps({"numRecords": rows.num_rows})
        return DataFile(path=relative, size_bytes=size, rows=rows.num_rows, stats=stats)

    def submit(self, batch: Batch) -> Ack:
        """Commit a staged batch. If it certainly failed, its files are removed."""
        try:
            self.store.changes.verify(batch.files, expected=self.store.change_schema)
            outcome = self._queue.submit(batch)
            if not isinstance(outcome, Ack):
                raise outcome
        except (ChangedMeanwhile, Conflict, Corruption, Gone, InvalidRequest, Unavailable):
            self._discard(batch)
            raise
        reach("upsert.after_commit")
        if not outcome.applied:
            self._discard(batch)
        return outcome

    def note(self, producer: str | None, sequence: int | None) -> None:
        """Record the sequence of a producer's write without rows, so that its next sequence leaves no gap."""
        number = check_producer(producer, sequence)
        if producer is not None:
            self.submit(Batch(files=(), rows=0, producer=producer, producer_sequence=number or 0))

    def _discard(self, batch: Batch) -> None:
        for file in batch.files:
            (self.store.changes.path / file.path).unlink(missing_ok=True)

    def _commit(self, batches: Sequence[Batch]) -> list[BatchOutcome]:
        outcomes: list[BatchOutcome] = []
        watermark = self.store.base.newest(APP_FOLD) or 0

        def build(parent: ParentVersion) -> Commit:
            nonlocal outcomes
            # Refuse a parent older than base, whose next sequence would be invisible. If changes were pruned above
            # the watermark, base has to be read again to decide.
            check_watermark(self.store.name, sequence=parent.transaction(APP_SEQ) or 0, watermark=watermark)
            pruned_to = parent.transaction(APP_PRUNE) or 0
            if pruned_to > watermark:
                raise _PrunedMeanwhile(pruned_to)
            commit, outcomes = self._build_commit(parent, batches)
            if commit is None:
                raise _AllApplied
            return commit

        try:
            committed = self.store.changes.commit(build)
        except _AllApplied:
            return outcomes
        except _PrunedMeanwhile as pruned:
            check_pruned(self.store.name, pruned=pruned.sequence, watermark=self.store.base.newest(APP_FOLD) or 0)
            return self._commit(batches)
        self.store.note_commit(self.store.changes, committed.version)
        return outcomes

    def _changed_since(
        self, parent: ParentVersion, batch: Batch, planned_at: int, *, before: Sequence[DataFile]
    ) -> bool:
        """True if a key of the batch was changed above a sequence, or if that can no longer be determined.

        `before` are the files of earlier batches in the same commit.
        """
        if (parent.transaction(APP_PRUNE) or 0) > planned_at:
            return True
        newer = [*(file for file in parent.files() if sequence_of(file) > planned_at), *before]
        if not newer:
            return False
        key, folder = list(self.store.spec.key), self.store.changes.path
        schema = pa.schema([self.store.schema.field(name).with_nullable(True) for name in key])  # noqa: FBT003

        def keys(files: Sequence[DataFile]) -> pa.Table:
            tables = [read_file(self.store, folder / file.path, schema, key) for file in files]
            return pa.concat_tables(tables).combine_chunks()

        return bool(keys(batch.files).join(keys(newer), key, join_type="left semi").num_rows)

    def _build_commit(
        self, parent: ParentVersion, batches: Sequence[Batch]
    ) -> tuple[Commit | None, list[BatchOutcome]]:
        """Give each batch its sequence on this parent. Without a batch to apply there is no commit.

        A repeat of a producer's last sequence gets its first acknowledgement again.
        A producer's sequence that is neither the last nor the next is rejected; the other batches of the round are not.
        A batch is not applied if any of its files was loaded meanwhile: its loader plans again.
        """
        sequence = parent.transaction(APP_SEQ) or 0
        outcomes: list[BatchOutcome] = []
        adds: list[DataFile] = []
        tombstones = 0
        transactions: dict[str, int] = {}
        loaded = loaded_marks(self.store.changes) if any(batch.loaded for batch in batches) else set()
        for batch in batches:
            planned_at = batch.planned_at
            if planned_at is not None and self._changed_since(parent, batch, planned_at, before=adds):
                outcomes.append(ChangedMeanwhile())
                continue
            if batch.loaded & (loaded | transactions.keys()):
                outcomes.append(Ack(sequence=None, rows=batch.rows, applied=False))
                continue
            app = f"{APP_PRODUCER}{batch.producer}"
            if batch.producer is not None:
                last = transactions.get(app, parent.transaction(app))
                if last == batch.producer_sequence:
                    first = transactions.get(app + ACK, parent.transaction(app + ACK))
                    outcomes.append(Ack(sequence=first, rows=batch.rows, applied=False))
                    continue
                if last is not None and batch.producer_sequence != last + 1:
                    outcomes.append(self._out_of_order(batch, last))
                    continue
            if batch.files:  # every sequence has a file: a missing file is a lost one
                sequence += 1
            if batch.producer is not None:
                transactions |= {app: batch.producer_sequence, app + ACK: sequence}
            transactions |= dict.fromkeys(batch.loaded, sequence)
            adds += [replace(file, partition={SEQ: str(sequence)}) for file in batch.files]
            tombstones += batch.tombstones
            outcomes.append(Ack(sequence=sequence if batch.files else None, rows=batch.rows, applied=bool(batch.files)))
        if not adds and not transactions:
            return None, outcomes
        commit = Commit(
            kind=CommitKind.APPEND,
            plan_version=parent.version,
            adds=tuple(adds),
            transactions=transactions | ({APP_SEQ: sequence} if adds else {}),
            info={TOMBSTONES: str(tombstones)} if tombstones else {},
        )
        return commit, outcomes

    def _out_of_order(self, batch: Batch, last: int) -> InvalidRequest:
        """Return the error for a producer's sequence that is neither its last nor its next."""
        number = batch.producer_sequence
        why = "is older: whether it was ever written is not known" if number < last else f"leaves a gap after {last}"
        is_last = last == MAX_LONG
        following = "There is no next sequence: choose another producer" if is_last else f"Send {last + 1} next"
        return InvalidRequest(
            f"Dataset {self.store.name}: sequence {number} of producer {batch.producer!r} {why}. The last one that was written "
            f"is {last}. Nothing was written. {following}, or repeat {last} for its first acknowledgement."
        )


def check_producer(producer: str | None, sequence: int | None) -> int | None:
    """Require producer and sequence together, both in range; return the sequence as an int."""
    if (producer is None) != (sequence is None):
        raise InvalidRequest("An idempotent write needs both a producer and its sequence.")
    if producer is not None and not isinstance(producer, str):
        raise InvalidRequest(f"A producer must be text, not {producer!r}.")
    if producer is not None and (not producer or len(producer) > MAX_PRODUCER_CHARS or producer.endswith(ACK)):
        raise InvalidRequest(f"A producer must be 1 to {MAX_PRODUCER_CHARS} characters and not end with {ACK!r}.")
    if producer is not None and not producer.isprintable():
        raise InvalidRequest("A producer must not have characters that cannot be printed.")
    return None if sequence is None else whole_number("A producer's sequence", sequence)
