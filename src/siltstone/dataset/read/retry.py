"""Retries of a read whose files were removed: a fold and a purge replace files while a reader uses them."""

from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa

from siltstone.dataset.read.arrow_view import HEAD_BATCH_ROWS
from siltstone.dataset.snapshot import Snapshot, files_vanished
from siltstone.dataset.store import Store
from siltstone.spark.errors import is_missing_file, spark_errors
from siltstone.spark_tasks.parquet_checksums import batches

T = TypeVar("T")

SNAPSHOT_TRIES: Final = 5
"""Snapshots that a read takes before it reports missing files. Five purges during one read mean another fault."""


def with_snapshot(
    current: Callable[[], Store], use: Callable[[Snapshot], T], *, take: Callable[[Store], Snapshot] = Store.snapshot
) -> T:
    """Call `use` with a snapshot. If a file that it needs is gone, call it again with a new snapshot.

    `current` returns the store with the current columns. Nothing is guessed if files are missing. Corruption names a
    lost live file. Unavailable means that files were removed during every try.
    """
    failure: Exception | None = None
    for _ in range(SNAPSHOT_TRIES):
        snapshot = take(current())
        try:
            return use(snapshot)
        except FileNotFoundError as error:
            failure = error
        except Exception as error:
            # `spark_errors` imports PySpark, so only errors of these packages reach it.
            may_be_spark = type(error).__module__.startswith(("pyspark", "py4j"))
            if not (may_be_spark and isinstance(error, spark_errors()) and is_missing_file(error)):
                raise
            failure = error
    raise files_vanished(current()) from failure


def damaged_file(store: Store) -> str | None:
    """Return the first live file that is damaged, by its path below the dataset. Every file is read to its end."""
    snapshot = store.snapshot()
    for table, files in ((store.changes, snapshot.unfolded), (store.base, snapshot.base.files)):
        for file in files:
            try:
                with store.opened(table.path / file.path) as opened:
                    for _ in batches(opened, HEAD_BATCH_ROWS):
                        continue
            except (OSError, pa.ArrowException):
                return f"{table.path.name}/{file.path}"
    return None
