"""Checksums of Parquet files: a checksum block before the footer covers what Parquet itself does not protect.

Parquet has a CRC-32 for the bytes of each page, which our writers write and our readers verify. Nothing in Parquet protects the
footer (schema, ranges, positions of the pages), the page indexes and the bloom filters. A flipped bit there renames a column,
moves a decimal point or skips a row group. So each file gets a *checksum block*::

    pages | page indexes, bloom filters | block | footer, its length, "PAR1"

The block has a CRC-32 of the bytes between the pages and the block (the *indexes*). A second one is of everything after
the block (the *footer*). Readers find everything by offset from the start, or from the end, so any Parquet reader can
read the file. A file without a block was written by an earlier version or by another program. It is read without this
check.

A mismatch is `pyarrow.ArrowInvalid`, like other damage that Arrow finds. Damage may also be an OSError without a number.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC: Final = b"SLT1"
_BLOCK: Final = "<4sQII"
"""The magic bytes, the length of the indexes, their CRC-32, and the CRC-32 of the footer."""
_END: Final = "<I4s"
"""The end of a Parquet file: the length of the footer and its magic bytes."""
_PARQUET: Final = b"PAR1"
_BLOCK_BYTES: Final = struct.calcsize(_BLOCK)
_END_BYTES: Final = struct.calcsize(_END)


@contextmanager
def open_parquet(
    path: str | Path,
    *,
    verify: bool = True,
    indexes: bool = False,
    metadata: pq.FileMetaData | None = None,
    pre_buffer: bool = True,
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file. With `verify`, check its footer now, unless `metadata` has it, and its pages when they are read.

    With `indexes`, also do the checks of `check_file` now.
    """
    with pa.OSFile(str(path)) as source:  # from a path pyarrow would first determine the file system
        if verify and metadata is None:
            _check(source, indexes=indexes)
        with pq.ParquetFile(
            source, metadata=metadata, pre_buffer=pre_buffer, page_checksum_verification=verify
        ) as file:
            yield file


def check_rows(count: int, expected: int) -> None:
    """Compare the number of rows read with the footer's count, because no checksum covers the headers of pages."""
    if count != expected:
        raise pa.ArrowInvalid(f"{count} rows were read, but its footer counts {expected}")


def batches(
    file: pq.ParquetFile,
    rows: int,
    *,
    columns: Sequence[str] | None = None,
    groups: Sequence[int] | None = None,
    use_threads: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, or of some of its row groups, in batches, and check their number."""
    selected = list(range(file.num_row_groups)) if groups is None else list(groups)
    expected = sum(file.metadata.row_group(number).num_rows for number in selected)
    count = 0
    names = None if columns is None else list(columns)
    for batch in file.iter_batches(rows, row_groups=selected, columns=names, use_threads=use_threads):
        count += batch.num_rows
        yield batch
    if names is None or names:
        check_rows(count, expected)


def check_file(path: str | Path) -> None:
    """Check the footer and the indexes of a file, for a reader that does not check them."""
    with pa.OSFile(str(path)) as source:
        _check(source, indexes=True)


def parse_file(content: bytes) -> pa.Table:
    """Return the rows of a Parquet file in memory, with its checksums verified."""
    source = pa.BufferReader(content)
    _check(source, indexes=False)
    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        rows = file.read()
        check_rows(rows.num_rows, file.metadata.num_rows)
    return rows


def with_checksums(content: pa.Buffer, metadata: pq.FileMetaData) -> bytes:
    """Return the content of a Parquet file, whose footer is `metadata`, with its checksum block."""
    footer_at, start = _footer_at(pa.BufferReader(content)), _indexes_at(metadata)
    whole = memoryview(content)
    return b"".join((whole[:footer_at], _block(whole[start:footer_at], whole[footer_at:]), whole[footer_at:]))


def add_checksums(path: str | Path, metadata: pq.FileMetaData | None = None) -> None:
    """Write the checksum block into a file that no log names yet. A file that already has one does not change.

    A crash or a full disk meanwhile leaves a file that is not valid Parquet, and that no log names.
    """
    with pa.OSFile(str(path)) as source:
        footer_at = _footer_at(source)
        if _read_block(source, footer_at) is not None:
            return
        start = _indexes_at(metadata or pq.read_metadata(source))
        indexes, footer = _bytes(source, start, footer_at), _bytes(source, footer_at, source.size())
    with open(path, "r+b") as file:  # noqa: PTH123  # buffered: a raw file may write less than requested, without an error
        file.seek(footer_at)
        file.write(_block(indexes, footer) + footer)


def _check(source: pa.NativeFile, *, indexes: bool) -> None:
    footer_at = _footer_at(source)
    block = _read_block(source, footer_at)
    if block is None:
        return
    _, length, indexes_crc, footer_crc = block
    if zlib.crc32(_bytes(source, footer_at, source.size())) != footer_crc:
        raise pa.ArrowInvalid("the checksum of its footer does not match")
    end = footer_at - _BLOCK_BYTES
    if indexes and (length > end or zlib.crc32(_bytes(source, end - length, end)) != indexes_crc):
        raise pa.ArrowInvalid("the checksum of its page indexes and bloom filters does not match")


def _read_block(source: pa.NativeFile, footer_at: int) -> tuple[Any, ...] | None:
    """Return the fields of the checksum block, or None."""
    start = footer_at - _BLOCK_BYTES
    block = struct.unpack(_BLOCK, _bytes(source, start, footer_at)) if start >= len(_PARQUET) else None
    return block if block is not None and block[0] == MAGIC else None


def _block(indexes: bytes | memoryview, footer: bytes | memoryview) -> bytes:
    return struct.pack(_BLOCK, MAGIC, len(indexes), zlib.crc32(indexes), zlib.crc32(footer))


def _footer_at(source: pa.NativeFile) -> int:
    size = source.size()
    if size < _END_BYTES + len(_PARQUET):
        raise pa.ArrowInvalid(f"{size} bytes are not a Parquet file")
    length, magic = struct.unpack(_END, _bytes(source, size - _END_BYTES, size))
    start = size - _END_BYTES - length
    if magic != _PARQUET or start < len(_PARQUET):
        raise pa.ArrowInvalid("its last bytes are not those of a Parquet file")
    return int(start)


def _indexes_at(metadata: pq.FileMetaData) -> int:
    """Return the offset at which the pages end. Column chunks are written one after the other."""
    if not metadata.num_row_groups or not metadata.num_columns:
        return len(_PARQUET)
    column = metadata.row_group(metadata.num_row_groups - 1).column(metadata.num_columns - 1)
    starts = [at for at in (column.dictionary_page_offset, column.data_page_offset) if at]
    return int(min(starts) + column.total_compressed_size)


def _bytes(source: pa.NativeFile, start: int, end: int) -> bytes:
    return bytes(source.read_at(end - start, start))
