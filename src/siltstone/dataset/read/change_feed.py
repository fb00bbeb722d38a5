"""The changes of a dataset above a sequence, for followers of the dataset.

Unfolded changes are live in `changes`. Folded and pruned changes are served while the log of `changes` names them and
their files are on disk. After that a follower has to read the whole dataset again. The error names the first sequence
that it can follow from.

Each row has its own sequence, also where several batches were squashed into one file. A squash keeps only the last row
of each key, so replaced rows may be missing. A follower that applies the rows in order ends with the same rows.
Rows of a first load have no sequence and are not changes. A follower starts with a read, and continues from its
sequence.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.arrow_view import unfolded_rows
from siltstone.dataset.read.spark_frames import arrow_frame, changes_frame
from siltstone.dataset.read.time_travel import all_there, with_log
from siltstone.dataset.snapshot import Snapshot, sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.log_reader import readable_entries
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import NotFound
from siltstone.model.columns import APP_PRUNE, COMMIT_KIND, SEQ
from siltstone.model.commit import CommitKind
from siltstone.model.files import DataFile
from siltstone.model.numbers import whole_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def changes_since(store: Store, since: object) -> Snapshot:
    """Return a snapshot whose unfolded rows are the changes above the sequence.

    NotFound: the sequence does not exist yet, or changes above it are no longer retained.
    """
    sequence = whole_number("since", since)

    def read() -> Snapshot:
        now = store.snapshot()
        if sequence > now.sequence:
            raise NotFound(
                f"Dataset {store.name}: sequence {sequence} does not exist yet; the newest is {now.sequence}."
            )
        is_pruned = sequence < now.changes.transactions.get(APP_PRUNE, 0)
        files = _retained_files(store, sequence) if is_pruned else now.changes.files
        chosen = tuple(file for file in files if sequence_of(file) > sequence)
        return Snapshot(changes=replace(now.changes, files=chosen), base=now.base, watermark=sequence, past=True)

    return with_log(store, read)


def _retained_files(store: Store, since: int) -> tuple[DataFile, ...]:
    """Return every file that holds changes above the sequence, pruned ones too.

    The files of the oldest readable version and all later appends hold each change once. A squash, and a commit that
    undoes one of another program, add no changes.
    """
    entries = readable_entries(store.changes.path)
    if not entries:
        raise LogChanged(f"{store.changes.path} has no entries that can be read")
    oldest = store.changes.at(entries[0].version, APP_PRUNE)
    appends = (entry for entry in entries[1:] if entry.info.get(COMMIT_KIND) == CommitKind.APPEND)
    files = (*oldest.files, *(file for entry in appends for file in entry.files))
    lost = [sequence_of(file) for file in files if not all_there(store.changes, [file])]
    floor = max(oldest.transactions.get(APP_PRUNE, 0), *lost, 0)
    if since < floor:
        raise NotFound(
            f"Dataset {store.name}: not all changes since sequence {since} are retained. Pass since={floor} for the rest, "
            "or read the dataset and follow it from the sequence of that read."
        )
    return files


def change_table(store: Store, snapshot: Snapshot, *, limit: int | None) -> pa.Table:
    """Return the changes in order, without Spark; with a limit, whole sequences of about `limit` rows, at least one."""
    if limit is not None:
        last = _last_within(snapshot.unfolded, limit)
        files = tuple(file for file in snapshot.unfolded if sequence_of(file) <= last)
        snapshot = replace(snapshot, changes=replace(snapshot.changes, files=files))
    rows = unfolded_rows(store, snapshot)
    if limit is None or rows.num_rows <= limit:
        return rows
    # The file of a squash holds more than one sequence.
    cut = rows.column(SEQ)[limit].as_py()
    before = rows.filter(pc.less(rows.column(SEQ), cut))
    return before if before.num_rows else rows.filter(pc.equal(rows.column(SEQ), rows.column(SEQ)[0]))


def _last_within(files: Sequence[DataFile], limit: int) -> int:
    rows: Counter[int] = Counter()
    for file in files:
        rows[sequence_of(file)] += file.rows
    total = last = 0
    for number, sequence in enumerate(sorted(rows)):
        total += rows[sequence]
        if number and total > limit:
            break
        last = sequence
    return last


def change_frame(spark: "SparkSession", store: Store, snapshot: Snapshot) -> "DataFrame":
    """Return the changes as a Spark frame, in no order."""
    if not snapshot.unfolded:
        return arrow_frame(spark, unfolded_rows(store, snapshot))
    return changes_frame(spark, store, snapshot)
