"""The columns of a file: declared by a Parquet file, or inferred from the first rows of a text file.

An inferred type accepts every value of its column by the rules of `spark_tasks.values`. So the same rows can be loaded
afterwards:

* JSON: booleans, integers (BIGINT), numbers (DOUBLE), text, lists and objects;
* text in both formats: dates (DATE), times with a zone (TIMESTAMP), times without one (TIMESTAMP_NTZ);
* CSV: also ``true`` and ``false``, integers and numbers. Numbers with a leading zero or plus sign stay text: they are
  codes.
"""

import csv
import decimal
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from siltstone.dataset.load.file_formats import BadContent, csv_header
from siltstone.dataset.load.source_files import TEXT_READ_ERRORS, Format, format_of, open_text
from siltstone.dataset.schema_compat import all_fit
from siltstone.errors import InvalidRequest, NotFound
from siltstone.model.ddl import as_schema
from siltstone.spark_tasks.csv_rows import PLAIN
from siltstone.spark_tasks.values import read_json, shown

SAMPLE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a text file that are read to infer its columns."""
MAX_ARRAY_BYTES: Final = 16 * 1024 * 1024
"""Largest JSON array in bytes, because it is read whole."""
_PLAIN_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ZONED, _LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")


def schema_of_rows(source: Any) -> pa.Schema:  # noqa: ANN401
    """Return the columns of a frame, a list of dicts, or a file; raise InvalidRequest if they cannot be inferred."""
    if isinstance(source, str | Path):
        return columns_of(Path(source))
    if isinstance(source, pa.Table | pa.RecordBatch):
        return source.schema
    if type(source).__module__.startswith("pyspark.sql"):
        return as_schema(source.schema)
    try:
        if hasattr(source, "iloc"):
            return pa.Table.from_pandas(source, preserve_index=False).schema
        if hasattr(source, "__arrow_c_stream__"):
            return pa.table(source).schema
        if isinstance(source, list) and source:
            names = dict.fromkeys(name for row in source for name in row)
            return pa.table({name: [row.get(name) for row in source] for name in names}).schema
    except (pa.ArrowException, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"Columns cannot be inferred from these rows: {error}. Use create with a schema."
        ) from error
    raise InvalidRequest(
        f"Columns are inferred from a file, a frame or a list of dicts with at least one row, not from {type(source).__name__}."
    )


def columns_of(file: Path) -> pa.Schema:
    """Return the columns of a file. It must be readable, and each inferred column must have values of one type."""
    if not file.is_file():
        raise NotFound(f"There is no file {file}.")
    try:
        match format_of(file):
            case Format.PARQUET:
                import pyarrow.parquet as pq

                return pq.read_schema(file).remove_metadata()
            case Format.CSV:
                return _csv_columns(file)
            case Format.JSON | Format.NDJSON:
                return _json_columns(file)
            case None:
                raise InvalidRequest(f"{file}: columns can be taken from a {', '.join(Format)} file.")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{file} cannot be read: it is not UTF-8. Name the columns (--schema), then load it with silt ingest and its "
            "--encoding."
        ) from error
    except (
        pa.ArrowException,
        *TEXT_READ_ERRORS,
        ValueError,
        TypeError,
        RecursionError,
        BadContent,
        csv.Error,
    ) as error:
        raise InvalidRequest(f"{file} cannot be read: {str(error).rstrip('.')}.") from error


def _csv_columns(file: Path) -> pa.Schema:
    names = csv_header(file)
    if len(names) == 1 and set(names[0]) & set(";\t"):
        raise ValueError(
            "its first line has no comma. Name the columns (--schema), then load it with silt ingest and its --delimiter"
        )
    lines = [line.decode() for line in _sample(file).splitlines()[1:]]
    rows = [fields for fields in PLAIN.fields(lines) if len(fields) == len(names)]  # the load reports the other rows
    return pa.schema([(name, _csv_kind([row[n] for row in rows if row[n]])) for n, name in enumerate(names)])


def _sample(file: Path) -> bytes:
    """Return the first whole lines of a file."""
    with open_text(file) as text:
        content = text.read(SAMPLE_BYTES)
    return content if len(content) < SAMPLE_BYTES else content[: content.rindex(b"\n")]


def _csv_kind(texts: Sequence[str]) -> pa.DataType:
    if not texts:
        return pa.string()
    are_numbers = all(_PLAIN_NUMBER.fullmatch(text) for text in texts)
    kinds = (pa.bool_(), pa.int64(), pa.float64()) if are_numbers else (pa.bool_(),)
    fitting = (kind for kind in kinds if all_fit(texts, kind, as_text=True))
    return next(fitting, None) or _text_kind(texts)


def _json_columns(file: Path) -> pa.Schema:
    values: dict[str, list[Any]] = {}
    for number, row in enumerate(_objects(file)):
        if not isinstance(row, dict):
            raise TypeError(f"row {number} is {shown(row)}, not an object")
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    if not values:
        raise ValueError("it has no objects")
    return pa.schema([(name, _json_kind(column_values, name)) for name, column_values in values.items()])


def _objects(file: Path) -> list[Any]:
    with open_text(file) as text:
        start = text.read(MAX_ARRAY_BYTES)
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        if len(start) == MAX_ARRAY_BYTES:
            raise ValueError("it is a large array; use --schema, or a file with one object a line")
        return list(read_json(start.decode("utf-8-sig")))
    try:
        return [read_json(line.decode("utf-8-sig")) for line in _sample(file).splitlines() if line.strip()]
    except ValueError:
        return [read_json(start.decode("utf-8-sig"))]  # one object over several lines


def _json_kind(values: Iterable[Any], column: str) -> pa.DataType:
    """Return the type of all values."""
    present = [value for value in values if value is not None]
    if not present:
        raise ValueError(f"column {column!r} has only null; name its type with --schema")
    if all(isinstance(value, bool) for value in present):
        return pa.bool_()
    if all(isinstance(value, int) and not isinstance(value, bool) for value in present):
        kind = pa.int64()
    elif all(isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool) for value in present):
        kind = pa.float64()
    elif all(isinstance(value, str) for value in present):
        return _text_kind(present)
    elif all(isinstance(value, list) for value in present):
        return pa.list_(_json_kind((item for value in present for item in value), f"{column}.element"))
    elif all(isinstance(value, dict) for value in present):
        names = dict.fromkeys(name for value in present for name in value)
        return pa.struct([(n, _json_kind((value.get(n) for value in present), f"{column}.{n}")) for n in names])
    else:
        raise ValueError(f"column {column!r} has values of several types; name its type with --schema")
    if not all_fit(present, kind):
        raise ValueError(f"column {column!r} has numbers that {kind} cannot hold; name its type with --schema")
    return kind


def _text_kind(texts: Sequence[str]) -> pa.DataType:
    if all_fit(texts, pa.date32()):
        return pa.date32()
    if not all_fit(texts, _ZONED):
        return pa.string()
    return _LOCAL if all_fit(texts, _LOCAL) else _ZONED
