"""A fold without Spark, for tests of readers: Arrow rewrites the whole merged view as base files of any layout."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone import Dataset
from siltstone.clock import SystemClock
from siltstone.compaction.operations.commit import fold_info, job_info, prune
from siltstone.dataset.read.merged_view import view_table
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.delta.parquet import write_file
from siltstone.delta.table import Table
from siltstone.model.columns import APP_FOLD
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from tests.support.internals import store_of


def fold_by_arrow(
    dataset: Dataset,
    *,
    files: int = 1,
    group_rows: int = 32_768,
    shuffled: bool = False,
    statistics: bool | list[str] = True,
    with_prune: bool = True,
    job: str = "",
) -> int:
    """Fold every change into base: sorted by key, or `shuffled` as another program might write it.

    Return the watermark.
    """
    store = store_of(dataset)
    snapshot = store.snapshot()
    rows = view_table(store, snapshot)  # of this snapshot: another process may write meanwhile
    order = np.random.default_rng(7).permutation(rows.num_rows) if shuffled else _key_order(rows, dataset.key)
    rows = rows.take(pa.array(order, pa.int64()))
    cuts = np.linspace(0, rows.num_rows, files + 1).astype(int)
    parts = [rows.slice(low, high - low) for low, high in itertools.pairwise(cuts)]
    written = tuple(
        _write(dataset, part, row_group_size=group_rows, write_statistics=statistics) for part in parts if part.num_rows
    )
    land(store, snapshot, written, with_prune=with_prune, job=job)
    return snapshot.sequence


def land(store: Store, snapshot: Snapshot, files: tuple[DataFile, ...], *, with_prune: bool, job: str = "") -> None:
    """Commit files as a fold of a whole snapshot into all of base."""
    store.base.commit(
        lambda _: Commit(
            kind=CommitKind.FOLD,
            plan_version=snapshot.base.version,
            adds=files,
            removes=snapshot.base.files,
            transactions={APP_FOLD: snapshot.sequence},
            epoch=snapshot.epoch,
            info=fold_info(snapshot.changed_ms) | job_info(job),
        )
    )
    if with_prune:
        prune(store)


def _key_order(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    ready = [
        rows.column(n).cast(pa.int8()) if pa.types.is_boolean(rows.column(n).type) else rows.column(n) for n in key
    ]
    names = [str(number) for number in range(len(key))]
    return pc.sort_indices(pa.table(ready, names=names), sort_keys=[(n, "ascending") for n in names])


def _write(dataset: Dataset, rows: pa.Table, **options: Any) -> DataFile:  # noqa: ANN401
    relative = f"data/{SystemClock().new_id()}.parquet"
    path = dataset.path / "base" / relative
    path.parent.mkdir(exist_ok=True)
    pq.write_table(rows, path, store_schema=False, coerce_timestamps="us", **options)
    stats = json.dumps({"numRecords": rows.num_rows})
    return DataFile(path=relative, size_bytes=path.stat().st_size, rows=rows.num_rows, stats=stats)


def stage(store: Store, table: Table, rows: pa.Table, partition: dict[str, str | None]) -> DataFile:
    """Write a file that no log names yet, and return its description for a commit."""
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


def squash_here(dataset: Dataset) -> tuple[int, int]:
    """Squash all unfolded change files into one, and return its range of sequences."""
    snapshot = store_of(dataset).snapshot()
    assert dataset.squash().files_added == 1
    return snapshot.watermark + 1, snapshot.sequence
