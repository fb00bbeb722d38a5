"""Folds and squashes without Spark, through the real commit path: what they leave in the logs is the real thing."""

import json

import pyarrow as pa

from siltstone import Dataset
from siltstone.clock import SystemClock
from siltstone.compaction.commit import fold_info, prune
from siltstone.dataset.local import latest_per_key, merged_table, unfolded_rows
from siltstone.dataset.store import Store, sequence_of
from siltstone.model.columns import APP_FOLD, ROW_SEQ, SEQ
from siltstone.model.files import Commit, CommitKind, DataFile
from siltstone.storage.parquet import write_file
from siltstone.storage.table import Table


def stage(store: Store, table: Table, rows: pa.Table, partition: dict[str, str | None]) -> DataFile:
    """Write a file that no log names yet, and describe it for a commit."""
    relative = f"data/{SystemClock().new_id()}/0/part.parquet"
    path = table.path / relative
    path.parent.mkdir(parents=True)
    write_file(rows, path, key=store.spec.key)
    return DataFile(
        path=relative,
        size_bytes=path.stat().st_size,
        rows=rows.num_rows,
        partition=partition,
        stats=json.dumps({"numRecords": rows.num_rows}),
    )


def fold_here(dataset: Dataset, *, pruned: bool = True) -> int:
    """Fold everything into one base file and return the watermark; with `pruned`, prune what was folded."""
    store = dataset._store
    snapshot = store.snapshot()
    rows = merged_table(store, snapshot)
    commit = Commit(
        kind=CommitKind.FOLD,
        plan_version=snapshot.base.version,
        adds=(stage(store, store.base, rows, {}),) if rows.num_rows else (),
        removes=snapshot.base.files,
        transactions={APP_FOLD: snapshot.sequence},
        depends=frozenset({APP_FOLD}),
        info=fold_info(snapshot.changed_ms),
    )
    store.base.commit(lambda _: commit)
    if pruned:
        prune(store)
    return snapshot.sequence


def squash_here(dataset: Dataset) -> tuple[int, int]:
    """Squash all unfolded change files into one, and return the range of sequences that it stands for."""
    store = dataset._store
    snapshot = store.snapshot()
    files = snapshot.unfolded
    last = max(sequence_of(file) for file in files)
    latest = latest_per_key(unfolded_rows(store, snapshot), store.spec.key)
    rows = latest.drop_columns([SEQ]).append_column(ROW_SEQ, latest.column(SEQ))
    squashed = rows.select(store.change_schema.names).cast(store.change_schema)
    commit = Commit(
        kind=CommitKind.SQUASH,
        plan_version=snapshot.changes.version,
        adds=(stage(store, store.changes, squashed, {SEQ: str(last)}),),
        removes=files,
    )
    store.changes.commit(lambda _: commit)
    return snapshot.watermark + 1, last
