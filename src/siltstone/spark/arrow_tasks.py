"""Work inside Spark's tasks, in Python and on Arrow: how it is sent there, and what comes back.

Spark says which task works on what and where; rows that such a task reads and writes itself never pass through Spark's row
format. Only small answers come back to the driver: names of files, counts, places.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.dataset.store import Store
from siltstone.delta.parquet import ROW_GROUP_ROWS, writer_options
from siltstone.spark.errors import spark_errors
from siltstone.spark_tasks import io as task_files
from siltstone.spark_tasks import parquet_checksums as checksums
from siltstone.spark_tasks.io import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNFIT: Final = (
    "ModuleNotFoundError",
    "has no attribute 'search_sorted'",
    "Cannot run program",
    "PYTHON_VERSION_MISMATCH",
    "Python in worker has different version",
    "PACKAGE_NOT_INSTALLED",
    task_files.UnsortedFile.__name__,
    "offset overflow",
    "MemoryError",
    "Python worker exited unexpectedly",  # as the system ends one that takes too much memory
)
"""Class names and words of Python, pyarrow and Spark. Of an error in a task Spark hands over nothing but the traceback."""


Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task does to its rows."""


class WorkersUnfit(Exception):  # noqa: N818
    """Spark's tasks cannot do it: Python or pyarrow is missing there, rows are too wide, or a file is not sorted."""


def store_target(store: Store, schema: pa.Schema, folder: Path) -> Target:
    """Say how tasks write files of a dataset into a folder."""
    return Target(
        schema=schema,
        folder=str(folder),
        options=writer_options(schema, store.spec.found_by),
        row_group_rows=ROW_GROUP_ROWS,
        durable=store.settings.durable,
        verify=store.settings.verify_checksums,
    )


def in_numbered_tasks(
    spark: "SparkSession", count: int, work: Callable[[int], bytes], *, modules: Sequence[ModuleType]
) -> Iterator[tuple[int, bytes]]:
    """Run `work` on the numbers below `count`, one a task, and yield what comes back: a little for each.

    Raises:
        WorkersUnfit: Spark's tasks cannot do it.
    """
    numbers = spark.range(0, count, 1, numPartitions=count)
    for row in answers(numbers, task_files.in_tasks(work), "id long, answer binary", modules=modules).to_pylist():
        yield row["id"], row["answer"]


def answers(
    frame: "DataFrame",
    work: Work,
    schema: str,
    *,
    modules: Sequence[ModuleType],
) -> pa.Table:
    """Run `work` over the frame's partitions and return what it says; `modules` are sent along by value.

    Raises:
        WorkersUnfit: Spark's tasks cannot do it.
    """
    from pyspark import cloudpickle

    for module in (checksums, task_files, *modules):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the tasks need nothing of ours
    try:
        return frame.mapInArrow(work, schema).toArrow()
    except spark_errors() as error:
        if any(mark in str(error) for mark in _UNFIT):
            raise WorkersUnfit(str(error)) from error
        raise
