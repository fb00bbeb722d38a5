"""Runs Python functions on Arrow data inside Spark's tasks, and collects their results.

Spark assigns the work to tasks. Rows that such a task reads and writes itself never pass through Spark's row format. Only small
results return to the driver: file names, counts, positions.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone import spark_tasks
from siltstone.spark.errors import spark_errors
from siltstone.spark_tasks.io import UnsortedFile, in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNFIT: Final = (
    "ModuleNotFoundError",
    "has no attribute 'search_sorted'",
    "Cannot run program",
    "PYTHON_VERSION_MISMATCH",
    "Python in worker has different version",
    "PACKAGE_NOT_INSTALLED",
    UnsortedFile.__name__,
    "offset overflow",
    "MemoryError",
    "Python worker exited unexpectedly",  # as the system ends one that takes too much memory
)
"""Words of Python, pyarrow and Spark, and the class name of `UnsortedFile`: Spark returns only the traceback of a task."""

TaskFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that a task applies to its rows."""


class WorkersUnfit(Exception):  # noqa: N818
    """Spark's tasks cannot run it: Python or pyarrow is missing, rows are too wide, or a file is not sorted."""


def send_by_value() -> None:
    """Make Spark send the functions of `spark_tasks` by value. Its Python workers need pyarrow, but not this package."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(spark_tasks)  # type: ignore[no-untyped-call]


def in_numbered_tasks(spark: "SparkSession", count: int, work: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Run `work` on the numbers below `count`, one per task, and yield each number with its small result."""
    numbers = spark.range(0, count, 1, numPartitions=count)
    for row in answers(numbers, in_tasks(work), "id long, answer binary").to_pylist():
        yield row["id"], row["answer"]


def answers(frame: "DataFrame", work: TaskFunction, schema: str) -> pa.Table:
    """Run `work` over the frame's partitions and return their small results.

    Raises:
        WorkersUnfit: Spark's tasks cannot run it.
    """
    send_by_value()
    try:
        return frame.mapInArrow(work, schema).toArrow()
    except spark_errors() as error:
        if any(mark in str(error) for mark in _UNFIT):
            raise WorkersUnfit(str(error)) from error
        raise
