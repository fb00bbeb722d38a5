"""The squash: merges many small change files of a contiguous range into one, without Spark.

Every commit, read and fold has to open each change file. One file with the same rows is opened once.

Flow:

1. plan: small live files above the watermark, neighbours by sequence, without gaps (`model.small_runs`).
2. write: the last change of each key. If that is a tombstone, also the last upsert before it, because the raw view
   shows it. Of a log, every row. Each row keeps its own sequence in ``_row_seq``. So a fold or a reader in the middle
   of the range is correct.
3. commit on `changes`: removes exactly the planned files, and adds the new one under the highest of their sequences.

A crash before 3 leaves a file of a dead owner for the sweep. After 3 the squash is done. If a fold or prune was first,
step 3 raises Conflict, and only the work is lost.

A squash beside a fold can merge rows that the fold takes with rows that it does not. Readers skip the former. A purge
must delete them: `prune_exactly` rewrites such a file.
"""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.compaction.operations.commit import job_info, prune
from siltstone.dataset.audit import append_missing
from siltstone.dataset.read.arrow_view import change_rows_in, latest_per_key, sorted_rows
from siltstone.dataset.snapshot import check_columns, sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.layout import is_squashed, squashed_file
from siltstone.delta.parquet import write_file
from siltstone.errors import Conflict, Corruption, Fenced, Gone, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import APP_FOLD, APP_PRUNE, OP, ROW_SEQ, SEQ, Op
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.reports import OutputFile, SquashReport
from siltstone.model.small_runs import small_change_files
from siltstone.spark.output_files import manifest

PRUNE_TRIES: Final = 20
"""Highest number of attempts of an exact prune. Each failed attempt needs a compaction that commits first."""


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


def prune_exactly(store: Store) -> None:
    """Prune until no live change file holds a row that base holds.

    The watermark is read before the change files. Files that have no folded row then never get one again, because
    commits merge only live files. At most one file has rows on both sides of the watermark. It is replaced by its
    rows above, in the commit that also prunes: followers must see the new mark when rows disappear. A crash leaves
    what a crash of a squash leaves.

    Raises:
        Unavailable: other compactions committed first at every attempt.
    """
    for _ in range(PRUNE_TRIES):
        store.base.sync()
        watermark = store.base.pin(APP_FOLD).transactions.get(APP_FOLD, 0)
        changes = store.changes.pin()
        folded = tuple(file for file in changes.files if sequence_of(file) <= watermark)
        with contextlib.suppress(Conflict, FileNotFoundError):
            squashed = [file for file in changes.files if sequence_of(file) > watermark and is_squashed(file.path)]
            mixed = [file for file in squashed if _first_sequence(store, file) <= watermark]
            if not folded and not mixed:
                return
            if not mixed:
                prune(store)
                continue
            commit = Commit(
                kind=CommitKind.SQUASH,
                plan_version=changes.version,
                removes=(*folded, *mixed),
                transactions={APP_PRUNE: watermark},
                depends=frozenset({APP_PRUNE}),
            )
            _replace(store, commit, above=watermark)
    raise Unavailable(
        f"Dataset {store.name}: other compactions keep merging change files, so folded rows are still in them. Nothing was "
        "deleted from disk. Purge again."
    )


def _first_sequence(store: Store, file: DataFile) -> int:
    sequences = change_rows_in(store, (file,), columns=()).column(SEQ)
    return min(sequences.to_pylist(), default=sequence_of(file))


def _overtaken(store: Store) -> Conflict:
    return Conflict(
        f"Dataset {store.name}: files of the squash are gone; another compaction was first. "
        "The dataset's rows were not changed. Plan again."
    )


def _replace(store: Store, commit: Commit, *, above: int = 0) -> tuple[DataFile, tuple[OutputFile, ...]]:
    """Write the rows with sequences `above` into a new file, and commit it in place of the removed ones."""
    with store.liveness_lock() as owner:
        relative = squashed_file(owner.owner)
        written = _staged(store, commit.removes, relative, above=above)
        commit = replace(commit, adds=(written,))
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


def _staged(store: Store, taken: tuple[DataFile, ...], relative: str, *, above: int) -> DataFile:
    path = store.changes.path / relative
    try:
        rows = change_rows_in(store, taken)
        rows = squashed_rows(rows.filter(pc.greater(rows.column(SEQ), above)) if above else rows, store)
        store.changes.make_folder(Path(relative).parent)
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
        store.changes.check_there()
        raise _overtaken(store) from error
    except OSError as error:
        path.unlink(missing_ok=True)
        raise Unavailable(
            f"Dataset {store.name}: {path} cannot be written ({error}); the dataset's rows were not changed. "
            "Check the disk and its permissions."
        ) from error
    return written


def squashed_rows(rows: pa.Table, store: Store) -> pa.Table:
    """Return the change rows that a squash stores in its file.

    For a keyed dataset: the last rows of each key, sorted by key. So lookups need not read the whole file. For a
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
