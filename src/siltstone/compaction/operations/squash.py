"""The squash: merges many small change files of a contiguous range into one, without Spark.

Every commit, read and fold has to open each change file. One file with the same rows is opened once.

Flow:

1. plan: small live files above the watermark, neighbours by sequence, without gaps (`model.small_runs`).
2. write: the last change of each key. If that is a tombstone, also the last upsert before it, because the raw view
   shows it. Of a log, every row. Each row keeps its own sequence in ``_row_seq``, so that a fold or a reader in the
   middle of the range is correct.
3. commit on `changes`: removes exactly the planned files, and adds the new one under the highest of their sequences.

A crash before 3 leaves a file of a dead owner for the sweep. After 3 the squash is done. If a fold or prune was first,
step 3 raises Conflict, and only the work is lost.
"""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.compaction.operations.commit import job_info
from siltstone.dataset.audit import append_missing
from siltstone.dataset.read.arrow_view import change_rows_in, latest_per_key, sorted_rows
from siltstone.dataset.snapshot import check_columns, sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.layout import squashed_file
from siltstone.delta.parquet import write_file
from siltstone.errors import Conflict, Corruption, Fenced, Gone, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import OP, ROW_SEQ, SEQ, Op
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.reports import OutputFile, SquashReport
from siltstone.model.small_runs import small_change_files
from siltstone.spark.output_files import manifest


def squash(store: Store, *, many: int, dry_run: bool = False, epoch: int | None = None, job: str = "") -> SquashReport:
    """Merge small change files, if there are enough of them. A dry run only reports the files.

    With an `epoch` the squash is refused once a higher epoch has committed to `changes`.

    Raises:
        Conflict: a fold, a prune or another squash was first. Nothing was changed.
        Fenced: a higher epoch has committed. Nothing was changed.
    """
    started = store.clock.monotonic_seconds()
    snapshot = store.snapshot()
    check_columns(store, snapshot)
    run = small_change_files(snapshot.unfolded, sequence_of, many=many, max_bytes=store.settings.squash_bytes)
    taken = run.files if run.enough else ()
    written: DataFile | None = None
    outputs: tuple[OutputFile, ...] = ()
    if taken and not dry_run:
        try:  # audit records first: squashed rows may lack a tombstone that a later upsert replaced
            append_missing(store, snapshot)
        except FileNotFoundError as error:
            raise _overtaken(store) from error
        commit = Commit(
            kind=CommitKind.SQUASH,
            plan_version=snapshot.changes.version,
            removes=taken,
            epoch=epoch,
            info=job_info(job),
        )
        written, outputs = _replace(store, commit)
    return SquashReport(
        dataset=str(store.name),
        files_removed=len(taken),
        files_added=1 if written else 0,
        rows_before=sum(file.rows for file in taken),
        rows_after=written.rows if written else 0,
        bytes_before=sum(file.size_bytes for file in taken),
        bytes_after=written.size_bytes if written else 0,
        seconds=store.clock.monotonic_seconds() - started,
        dry_run=dry_run,
        outputs=outputs,
    )


def _overtaken(store: Store) -> Conflict:
    return Conflict(f"Dataset {store.name}: files of the squash are gone; another compaction was first.")


def _replace(store: Store, planned: Commit) -> tuple[DataFile, tuple[OutputFile, ...]]:
    """Write the new file and commit it in place of the removed ones."""
    with store.liveness_lock() as owner:
        relative = squashed_file(owner.owner)
        written = _staged(store, planned.removes, relative)
        commit = replace(planned, adds=(written,))
        outputs = manifest(store.changes.path, commit.adds)
        try:
            committed = store.changes.commit(lambda _: commit)
        except (Conflict, Corruption, Fenced, Gone, Unavailable):
            # The commit is certainly not in the log. After CommitUnknown the file may be live.
            (store.changes.path / relative).unlink(missing_ok=True)
            raise
        reach("squash.after_commit")
    store.note_commit(store.changes, committed.version)
    return written, outputs


def _staged(store: Store, taken: tuple[DataFile, ...], relative: str) -> DataFile:
    path = store.changes.path / relative
    try:
        rows = squashed_rows(change_rows_in(store, taken), store)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(rows, path, key=store.spec.found_by)
        written = DataFile(
            path=relative,
            size_bytes=path.stat().st_size,
            rows=rows.num_rows,
            partition={SEQ: str(max(sequence_of(file) for file in taken))},
            stats=json.dumps({"numRecords": rows.num_rows}),
        )
        reach("squash.after_write")
    except FileNotFoundError as error:
        path.unlink(missing_ok=True)
        raise _overtaken(store) from error
    except OSError as error:
        path.unlink(missing_ok=True)
        raise Unavailable(f"Dataset {store.name}: {path} cannot be written ({error}); nothing was changed.") from error
    return written


def squashed_rows(rows: pa.Table, store: Store) -> pa.Table:
    """Return the change rows that a squash stores in its file.

    For a keyed dataset: the last rows of each key, sorted by key, so that lookups need not read the whole file. For a
    log: every row, in the order of application.
    """
    if store.spec.is_log:
        return _stored(rows, store)
    upserts = rows.filter(pc.equal(rows.column(OP), Op.UPSERT.value))
    latest = latest_per_key(rows, store.spec.key)
    deleted = latest.filter(pc.equal(latest.column(OP), Op.TOMBSTONE.value))
    last = pa.concat_tables([latest_per_key(upserts, store.spec.key), deleted])
    return _stored(sorted_rows(last, store.spec.key), store)


def _stored(rows: pa.Table, store: Store) -> pa.Table:
    """Return change rows in the format of a change file. Each row keeps its own sequence in ``_row_seq``."""
    stored = rows.append_column(ROW_SEQ, rows.column(SEQ)).drop_columns([SEQ])
    return stored.select(store.change_schema.names).cast(store.change_schema)
