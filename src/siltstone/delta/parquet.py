"""Parquet as Siltstone writes and checks it.

Every file passes `read_footer` before a commit names it, regardless of its writer. Its size, rows and columns must be what the
commit expects, and no timestamp may count nanoseconds. The statistics in the log are taken from the footer, and only for
columns that may appear there: numbers, times and sort columns, never subjects, never free text.
"""

import base64
import contextlib
import datetime
import decimal
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.clock import utc_text
from siltstone.errors import Corruption, Reason
from siltstone.host.deferred_interrupts import Uninterrupted
from siltstone.host.system_errors import read_failure
from siltstone.model.columns import BATCH_ID, WRITTEN_AT
from siltstone.model.evolution import WIDER
from siltstone.model.files import DataFile, KeyRange
from siltstone.model.schema import inner_types
from siltstone.spark_tasks.parquet_checksums import add_checksums, open_parquet, with_checksums

COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 3
ROW_GROUP_ROWS: Final = 32_768
PAGE_CHECKSUMS: Final = "parquet.page.verify-checksum.enabled"
"""Option of a Spark reader, or of its session, that verifies the checksums of pages."""
BLOOM_FPP: Final = 0.01
BLOOM_NDV: Final = 10_000
MAX_STAT_CHARS: Final = 64
"""Longest string, in characters, in the log's statistics. Longer ones are left out; missing statistics mean "may contain"."""

EXACT_JSON_DIGITS: Final = 15


def bloom_columns(schema: pa.Schema, key: Collection[str]) -> list[str]:
    """Return the columns that get a bloom filter: keys, ``_batch_id``, strings named ``*_id`` or ``*_key``."""
    named = {f.name for f in schema if pa.types.is_string(f.type) and f.name.endswith(("_id", "_key"))}
    filtered = named | set(key) | {BATCH_ID}
    return [f.name for f in schema if f.name in filtered and not pa.types.is_boolean(f.type)]


def write_file(table: pa.Table, path: Path, *, key: Collection[str]) -> None:
    """Write one file with Siltstone's Parquet options. A crash leaves a partial file that no log names.

    A file that cannot be written completely is deleted. Ctrl-C waits until the file is written, because Python would discard it
    inside the finalizer of Arrow's writer.
    """
    footers: list[pq.FileMetaData] = []
    with Uninterrupted():
        writer = pq.ParquetWriter(
            path,
            table.schema,
            use_dictionary=[n for n in table.column_names if n != WRITTEN_AT],
            column_encoding={WRITTEN_AT: "DELTA_BINARY_PACKED"} if WRITTEN_AT in table.column_names else None,
            metadata_collector=footers,
            **writer_options(table.schema, key, rows=table.num_rows),
        )
        try:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            writer.close()
        except BaseException:
            writer.is_open = False  # otherwise its finalizer writes the footer again and prints an error to stderr
            with contextlib.suppress(OSError):
                writer.close()
            path.unlink(missing_ok=True)
            raise
        del writer  # its finalizer runs here, where Ctrl-C waits
    add_checksums(path, footers[0])


def small_file(table: pa.Table) -> bytes:
    """Return a few rows as the bytes of a Parquet file that is always read whole. It has no statistics or indexes.

    For few bytes a codec that is quick to set up is better than one that compresses well.
    """
    stream = pa.BufferOutputStream()
    footers: list[pq.FileMetaData] = []
    pq.write_table(
        table,
        stream,
        compression="snappy",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
        metadata_collector=footers,
    )
    return with_checksums(stream.getvalue(), footers[0])


def writer_options(schema: pa.Schema, key: Collection[str], *, rows: int = BLOOM_NDV) -> dict[str, Any]:
    """Return the Arrow writer options of all our Parquet files. Bloom filters are sized for `rows`."""
    ndv = max(1, min(BLOOM_NDV, rows))
    return {
        "compression": COMPRESSION,
        "compression_level": COMPRESSION_LEVEL,
        "write_page_index": True,
        "write_page_checksum": True,
        "max_rows_per_page": ROW_GROUP_ROWS,  # the fewer pages, the fewer headers that no checksum covers
        "store_schema": False,
        "write_time_adjusted_to_utc": True,
        "coerce_timestamps": "us",
        "bloom_filter_options": {name: {"ndv": ndv, "fpp": BLOOM_FPP} for name in bloom_columns(schema, key)},
    }


def spark_options(schema: pa.Schema, key: Collection[str]) -> dict[str, str]:
    """Return the options of a Spark Parquet writer that give the same layout."""
    options = {
        "compression": COMPRESSION,
        "parquet.compression.codec.zstd.level": str(COMPRESSION_LEVEL),
        "parquet.block.row.count.limit": str(ROW_GROUP_ROWS),
        "parquet.page.write-checksum.enabled": "true",
        "parquet.page.row.count.limit": str(ROW_GROUP_ROWS),
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }
    for name in bloom_columns(schema, key):
        options[f"parquet.bloom.filter.enabled#{name}"] = "true"
        options[f"parquet.bloom.filter.expected.ndv#{name}"] = str(BLOOM_NDV)
        options[f"parquet.bloom.filter.fpp#{name}"] = str(BLOOM_FPP)
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """A file's size, row count and Parquet metadata."""

    size_bytes: int
    rows: int
    metadata: pq.FileMetaData


def read_footer(path: Path, *, expected: pa.Schema, exact: bool = True) -> Footer:
    """Read a footer back and compare its columns with what the commit expects.

    Without `exact` a file may lack nullable columns and have narrower types, because it was written before a column change.

    Raises:
        Corruption: the file is missing, truncated, or has other columns or types.
    """
    try:
        size = path.stat().st_size
        with open_parquet(path) as file:
            metadata, actual = file.metadata, file.schema_arrow
    except FileNotFoundError as error:
        raise Corruption(
            f"File {path} is missing; nothing was committed. Check the disk and try again.",
            reason=Reason.MISSING_FILE,
            paths=[path],
        ) from error
    except READ_ERRORS as error:
        raise read_failure(path, error, "Nothing was committed.") from error
    if difference := column_differences(actual, expected, exact=exact):
        raise Corruption(
            f"File {path} does not have the expected columns: {difference}; nothing was committed. Try again.",
            paths=[path],
        )
    return Footer(size_bytes=size, rows=metadata.num_rows, metadata=metadata)


READ_ERRORS: Final = (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError)
"""Exceptions of reading a Parquet file. Text in a damaged footer need not be UTF-8."""


def column_differences(actual: pa.Schema, expected: pa.Schema, *, exact: bool) -> str:
    """Describe how a file's columns differ from the expected ones; empty if they do not."""
    types = {f.name: f.type for f in expected}
    unknown = [f.name for f in actual if f.name not in types]
    stored = set(actual.names)
    missing = [f.name for f in expected if f.name not in stored and (exact or not f.nullable)]
    wrong = [
        f"{f.name} ({f.type}, not {kind})"
        for f in actual
        if (kind := types.get(f.name)) is not None
        and not _same(f.type, kind)
        and (exact or kind not in WIDER.get(f.type, ()))
    ]
    if unknown or missing or wrong:
        return f"unknown {unknown}, missing {missing}, of another type {wrong}"
    return ""


def _same(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Equal but for the names of inner fields, which writers choose differently."""
    inner = inner_types(actual, expected)
    return bool(actual == expected) if inner is None else all(_same(*pair) for pair in inner)


def key_ranges(metadata: pq.FileMetaData, column: str) -> list[KeyRange]:
    """Return the range of a column in each row group. It is unknown if it has a date that Python cannot represent."""
    return [_key_range(statistics) for statistics in column_statistics(metadata, column)]


def _key_range(statistics: pq.Statistics | None) -> KeyRange:
    with contextlib.suppress(OverflowError):
        if statistics is not None and statistics.has_min_max:
            return KeyRange(statistics.min, statistics.max)
    return KeyRange()


def column_statistics(metadata: pq.FileMetaData, column: str) -> list[pq.Statistics | None]:
    """Return a column's statistics in each row group; None if the file lacks them or the column."""
    paths = [metadata.schema.column(number).path for number in range(len(metadata.schema))]
    index = paths.index(column) if column in paths else -1  # by path, because inner fields may have the key's name too
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    return [group.column(index).statistics if index >= 0 else None for group in groups]


def stat_columns(schema: pa.Schema, *, sort: Sequence[str], subject: Collection[str]) -> list[str]:
    """Return the columns whose minimum and maximum may appear in the log."""
    return [
        f.name
        for f in schema
        if f.name not in subject
        and (
            f.name in sort
            or pa.types.is_integer(f.type)
            or pa.types.is_date(f.type)
            or pa.types.is_timestamp(f.type)
            or pa.types.is_decimal(f.type)
        )
    ]


def data_file(
    root: Path,
    relative: str,
    *,
    expected: pa.Schema,
    stats: Sequence[str],
    partition: Mapping[str, str | None] | None = None,
) -> DataFile:
    """Verify a written file and describe it for the log."""
    footer = read_footer(root / relative, expected=expected)
    return DataFile(
        path=relative,
        size_bytes=footer.size_bytes,
        rows=footer.rows,
        partition=partition or {},
        stats=log_statistics(footer, columns=stats),
    )


def log_statistics(footer: Footer, *, columns: Sequence[str]) -> str:
    """Return the log's statistics JSON: the row count, and minimum, maximum and nulls of the allowed columns."""
    groups: dict[str, list[tuple[Any, int]]] = {name: [] for name in columns}
    for number in range(footer.metadata.num_row_groups):
        group = footer.metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            if column.path_in_schema in groups:
                groups[column.path_in_schema].append((column.statistics, group.num_rows))
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, statistics in groups.items():
        if not statistics or any(s is None or not s.has_null_count for s, _ in statistics):
            continue
        nulls[name] = sum(s.null_count for s, _ in statistics)
        ranges = [_range(s) for s, rows in statistics if s.null_count != rows]
        if ranges and None not in ranges:  # one unknown group makes the column unknown; all-null groups add nothing
            lowest, highest = min(r[0] for r in ranges if r), max(r[1] for r in ranges if r)
            if _fits_json(lowest, highest):
                low[name], high[name] = _stat_value(lowest), _stat_value(_round_up(highest))
    stats: dict[str, Any] = {"numRecords": footer.rows}
    if low or nulls:
        stats |= {"minValues": low, "maxValues": high, "nullCount": nulls}
    return json.dumps(stats)


def _range(statistics: pq.Statistics) -> tuple[Any, Any] | None:
    """Return the smallest and largest value of a row group; None if the log cannot state them."""
    try:
        low, high = (statistics.min, statistics.max) if statistics.has_min_max else (None, None)
        _round_up(high)
    except OverflowError:  # it reaches the last millisecond of 9999
        return None
    return None if low is None or high is None or _too_long(low) or _too_long(high) else (low, high)


def _too_long(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, str | bytes) and len(value) > MAX_STAT_CHARS


def _fits_json(*values: Any) -> bool:  # noqa: ANN401
    """False for decimals of more than 15 digits: they become JSON numbers, which a reader may round the wrong way."""
    return all(len(v.as_tuple().digits) <= EXACT_JSON_DIGITS for v in values if isinstance(v, decimal.Decimal))


def _round_up(value: Any) -> Any:  # noqa: ANN401
    """Round a time up to milliseconds, the unit of log statistics. A truncated maximum would hide rows."""
    if isinstance(value, datetime.datetime) and value.microsecond % 1000:
        return value + datetime.timedelta(microseconds=1000 - value.microsecond % 1000)
    return value


def _stat_value(value: Any) -> Any:  # noqa: ANN401
    match value:
        case datetime.datetime():
            if value.tzinfo is not None:
                return utc_text(value, timespec="milliseconds")
            return value.isoformat(timespec="milliseconds")
        case datetime.date():
            return value.isoformat()
        case decimal.Decimal():
            return float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return value
