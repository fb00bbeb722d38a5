"""Work inside Spark's tasks, in Python and on Arrow: how it is sent there, and what comes back.

Spark says which task works on what and where; rows that such a task reads and writes itself never pass through Spark's row
format. Only small answers come back to the driver: names of files, counts, places.
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
"""Class names and words of Python, pyarrow and Spark. Of an error in a task Spark hands over nothing but the traceback."""


Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task does to its rows."""


class WorkersUnfit(Exception):  # noqa: N818
    """Spark's tasks cannot do it: Python or pyarrow is missing there, rows are too wide, or a file is not sorted."""


def send_by_value() -> None:
    """Have Spark send the functions of `spark_tasks` by value: its Python workers need pyarrow, and nothing of ours."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(spark_tasks)  # type: ignore[no-untyped-call]


def in_numbered_tasks(spark: "SparkSession", count: int, work: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Run `work` on the numbers below `count`, one a task, and yield what comes back: a little for each.

    Raises:
        WorkersUnfit: Spark's tasks cannot do it.
    """
    numbers = spark.range(0, count, 1, numPartitions=count)
    for row in answers(numbers, in_tasks(work), "id long, answer binary").to_pylist():
        yield row["id"], row["answer"]


def answers(
    frame: "DataFrame",
    work: Work,
    schema: str,
) -> pa.Table:
    """Run `work` over the frame's partitions and return their small answers.

    Raises:
        WorkersUnfit: Spark's tasks cannot do it.
    """
    send_by_value()
    try:
        return frame.mapInArrow(work, schema).toArrow()
    except spark_errors() as error:
        if any(mark in str(error) for mark in _UNFIT):
            raise WorkersUnfit(str(error)) from error
        raise
