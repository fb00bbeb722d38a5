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


def with_snapshot(store: Callable[[], Store], take: Callable[[], Snapshot], use: Callable[[Snapshot], T]) -> T:
    """Call `use` with a snapshot; if a file that it needs is gone, take a new snapshot and call it again.

    Raises:
        Corruption: a live file is missing.
        Unavailable: files were removed during every try.
    """
    failure: Exception | None = None
    for _ in range(SNAPSHOT_TRIES):
        snapshot = take()
        try:
            return use(snapshot)
        except FileNotFoundError as error:
            failure = error
        except Exception as error:
            if not _is_spark_error(error) or not is_missing_file(error):
                raise
            failure = error
    raise files_vanished(store()) from failure


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


def _is_spark_error(error: Exception) -> bool:
    return type(error).__module__.startswith(("pyspark", "py4j")) and isinstance(error, spark_errors())
