"""Parquet as Siltstone writes and checks it.

Every file, whoever wrote it, goes through `read_footer` before a commit names it: its size, rows and columns must be
what the commit expects, and no timestamp may count nanoseconds. The statistics that go into the log are taken from
the footer, and only for columns that may appear there: numbers, times and sort columns, never subjects, never free text.
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
"""Longer strings are left out of the log's statistics; missing statistics mean "may contain"."""

EXACT_JSON_DIGITS: Final = 15


def bloom_columns(schema: pa.Schema, key: Collection[str]) -> list[str]:
    """Return the columns that get a bloom filter: keys, ``_batch_id``, strings named ``*_id`` or ``*_key``."""
    named = {f.name for f in schema if pa.types.is_string(f.type) and f.name.endswith(("_id", "_key"))}
    wanted = named | set(key) | {BATCH_ID}
    return [f.name for f in schema if f.name in wanted and not pa.types.is_boolean(f.type)]


def write_file(table: pa.Table, path: Path, *, key: Collection[str]) -> None:
    """Write one file with the house's options. A crash leaves a part of a file that no log names.

    Ctrl-C waits until the file is written: inside the finalizer of Arrow's writer Python would drop it.
    """
    with Uninterrupted():
        footer = _write(table, path, key=key)
    add_checksums(path, footer)


def _write(table: pa.Table, path: Path, *, key: Collection[str]) -> pq.FileMetaData:
    """Write the file and return its footer. A file that cannot be written whole is deleted."""
    footers: list[pq.FileMetaData] = []
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
        writer.is_open = False  # or its end asks once more for a footer, and complains on standard error
        with contextlib.suppress(OSError):
            writer.close()
        path.unlink(missing_ok=True)
        raise
    return footers[0]


def small_file(table: pa.Table) -> bytes:
    """Return a few rows that are read whole as the bytes of a file: nothing in it helps to find some of them.

    For so few bytes a codec that is quick to set up is better than one that packs well.
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
    """Return the options of an Arrow Parquet writer that every file of ours has; bloom filters fit `rows`."""
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
    """What a file says of itself."""

    size_bytes: int
    rows: int
    metadata: pq.FileMetaData


def read_footer(path: Path, *, expected: pa.Schema, exact: bool = True) -> Footer:
    """Read a footer back and compare its columns with what the commit expects.

    Unless they must be `exact`, a file may lack columns that can be null, and have narrower types: it was written before.

    Raises:
        Corruption: the file is missing, truncated, or holds other columns or types.
    """
    try:
        size = path.stat().st_size
        with open_parquet(path) as file:
            metadata, actual = file.metadata, file.schema_arrow
    except FileNotFoundError as error:
        raise Corruption(
            f"File {path} is missing; nothing was committed.", reason=Reason.MISSING_FILE, paths=[path]
        ) from error
    except READ_ERRORS as error:
        raise read_failure(path, error, "Nothing was committed.") from error
    if told := strange_columns(actual, expected, exact=exact):
        raise Corruption(
            f"File {path} does not have the expected columns: {told}; nothing was committed.", paths=[path]
        )
    return Footer(size_bytes=size, rows=metadata.num_rows, metadata=metadata)


READ_ERRORS: Final = (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError)
"""What reading a Parquet file raises; text in a damaged footer need not be UTF-8."""


def strange_columns(actual: pa.Schema, expected: pa.Schema, *, exact: bool) -> str:
    """Say in which columns a file differs from what is expected; empty if it does not."""
    names = {f.name: f.type for f in expected}
    strange = [f.name for f in actual if f.name not in names]
    there = set(actual.names)
    missing = [f.name for f in expected if f.name not in there and (exact or not f.nullable)]
    wrong = [
        f"{f.name} ({f.type}, not {names[f.name]})"
        for f in actual
        if f.name in names
        and not _same(f.type, names[f.name])
        and (exact or names[f.name] not in WIDER.get(f.type, ()))
    ]
    if strange or missing or wrong:
        return f"unknown {strange}, missing {missing}, of another type {wrong}"
    return ""


def _same(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Equal but for the names of inner fields, which writers choose differently."""
    inner = inner_types(actual, expected)
    return bool(actual == expected) if inner is None else all(_same(*pair) for pair in inner)


def key_ranges(metadata: pq.FileMetaData, column: str) -> list[KeyRange]:
    """Return the range of a column in each row group."""
    paths = [metadata.schema.column(number).path for number in range(len(metadata.schema))]
    index = paths.index(column) if column in paths else -1  # a path: inner fields may have the key's name too
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    found = [group.column(index).statistics if index >= 0 else None for group in groups]
    return [KeyRange(s.min, s.max) if s is not None and s.has_min_max else KeyRange() for s in found]


def stat_columns(schema: pa.Schema, *, sort: Sequence[str], subject: Collection[str]) -> list[str]:
    """Return the columns whose minimum and maximum may stand in the log."""
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
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, found in _column_ranges(footer.metadata, columns).items():
        if found.nulls is not None:
            nulls[name] = found.nulls
        if found.low is not None and found.high is not None and _fits_json(found.low, found.high):
            low[name], high[name] = _stat_value(found.low), _stat_value(_round_up(found.high))
    stats: dict[str, Any] = {"numRecords": footer.rows}
    if low or nulls:
        stats |= {"minValues": low, "maxValues": high, "nullCount": nulls}
    return json.dumps(stats)


@dataclass(slots=True)
class _Range:
    low: Any = None
    high: Any = None
    nulls: int | None = 0
    known: bool = True


def _column_ranges(metadata: pq.FileMetaData, columns: Sequence[str]) -> dict[str, _Range]:
    """Fold the row groups' statistics; a column with one unknown group is unknown, all-null groups add nothing."""
    wanted = set(columns)
    ranges: dict[str, _Range] = {}
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        for index in range(rows.num_columns):
            column = rows.column(index)
            if column.path_in_schema not in wanted:
                continue
            _fold_range(ranges.setdefault(column.path_in_schema, _Range()), column.statistics, rows.num_rows)
    return {name: found if found.known else _Range(nulls=found.nulls) for name, found in ranges.items()}


def _fold_range(found: _Range, statistics: pq.Statistics | None, rows: int) -> None:
    if statistics is None or not statistics.has_null_count or found.nulls is None:
        found.nulls, found.known = None, False
        return
    found.nulls += statistics.null_count
    if statistics.null_count == rows:
        return
    low, high = _min_max(statistics)
    if low is None or high is None or _too_long(low) or _too_long(high):
        found.known = False
        return
    found.low = low if found.low is None else min(found.low, low)
    found.high = high if found.high is None else max(found.high, high)


def _too_long(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, str | bytes) and len(value) > MAX_STAT_CHARS


def _fits_json(*values: Any) -> bool:  # noqa: ANN401
    """A decimal goes into JSON as a number; past 15 digits a reader may round it the wrong way."""
    return all(len(v.as_tuple().digits) <= EXACT_JSON_DIGITS for v in values if isinstance(v, decimal.Decimal))


def _round_up(value: Any) -> Any:  # noqa: ANN401
    """Statistics count milliseconds; a maximum cut off below its last microseconds would hide rows."""
    if isinstance(value, datetime.datetime) and value.microsecond % 1000:
        return value + datetime.timedelta(microseconds=1000 - value.microsecond % 1000)
    return value


def _min_max(statistics: pq.Statistics) -> tuple[Any, Any]:
    """Return the range if it is stated and the log can state it too: nothing in or past the last millisecond of 9999."""
    try:
        low, high = (statistics.min, statistics.max) if statistics.has_min_max else (None, None)
        _round_up(high)
    except OverflowError:
        return None, None
    return low, high


def _stat_value(value: Any) -> Any:  # noqa: ANN401
    match value:
        case datetime.datetime():
            aware = value if value.tzinfo is None else value.astimezone(datetime.UTC)
            text = aware.replace(tzinfo=None).isoformat(timespec="milliseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case datetime.date():
            return value.isoformat()
        case decimal.Decimal():
            return float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return value
