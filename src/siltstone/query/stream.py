"""All rows of a frame, as Arrow, a batch at a time.

Spark's public ways to fetch a frame are the whole of it as Arrow, or its rows one by one as Python objects. So each
batch travels as *one* row of bytes: the tasks pack it, the iterator over rows brings it, and it is unpacked here. Memory
holds what one partition of Spark sends ahead, never the whole answer. It works the same on classic and Connect sessions.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from siltstone.spark.arrow_tasks import send_by_value
from siltstone.spark_tasks import stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def as_batches(frame: "DataFrame") -> "DataFrame":
    """Return a frame with one row for each batch of the frame given, in its order."""
    send_by_value()
    return frame.mapInArrow(stream.packed, f"{stream.COLUMN} binary")


def batches_of(packed: "DataFrame", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a packed frame as they come."""
    for row in packed.toLocalIterator():
        with pa.ipc.open_stream(bytes(row[0])) as reader:
            for batch in reader:
                yield batch.cast(schema) if batch.schema != schema else batch
