"""Inside Spark's tasks: record batches become rows of bytes."""

from collections.abc import Iterator

import pyarrow as pa

COLUMN = "batch"
CODEC = "lz4"
"""Compression of batches, because a driver holds the batches of one partition until they are fetched."""


def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield each batch as one row with one value: its bytes in Arrow's own format."""
    codec = CODEC if pa.Codec.is_available(CODEC) else None
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_pydict({COLUMN: pa.array([sink.getvalue().to_pybytes()], pa.binary())})
