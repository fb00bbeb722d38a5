"""Reads JSON inside Spark's Python workers: a text becomes rows of the dataset's types, or gets the reason of its refusal.

Values are read exactly as an upsert reads them (`values`). Arrow's own JSON parser is tried first on a batch of lines: what it
accepts under the dataset's types has the same meaning. A batch that it refuses is read again line by line, which also finds the
lines at fault. `dataset.load.file_formats` sends this module to the workers by value, so it imports only pyarrow, the standard
library, `text_columns` and `values`.

Terms: a *text* is a line of NDJSON, or a whole JSON file (one array, one object, or one object per line).
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from siltstone.spark_tasks.text_columns import quick_column
from siltstone.spark_tasks.values import MISFITS, Reader, cast_exactly, read_json, reader, shown

TEXT: Final = "_text"
FILE: Final = "_file"
UNREAD: Final = "_unread"
"""Columns beside the dataset's own: the original text, its file, and why it could not be read (null if it could)."""
MAX_TEXT_CHARS: Final = 10_000
ROWS_PER_BATCH: Final = 50_000
BLOCK_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonJob:
    """Common parameters of all tasks of one load: the columns to read, what they accept, and what a text is."""

    schema: pa.Schema
    rules: Mapping[str, str]
    """Refusal text of a value, by column: ``is not a date. Accepted: ...``."""
    whole: bool
    passed: tuple[str, ...] = ()


@dataclass(slots=True)
class _Row:
    """One row in progress: the object, or the reason of its refusal, and its source text."""

    fields: dict[str, Any] | None
    reason: str | None
    text: bytes
    number: int | None
    """Position in the array of a JSON file, from 0; None for a line."""
    file: str
    passed: tuple[str | None, ...]


def in_tasks(job: JsonJob) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` over columns (_text binary, _file string, and those passed through)."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not job.whole and (quick := read_quickly(batch, job)) is not None:
                yield quick
                continue
            rows: list[_Row] = []
            for row in _rows(batch, job):
                rows.append(row)
                if len(rows) == ROWS_PER_BATCH:
                    yield read_slowly(rows, job)
                    rows = []
            if rows:
                yield read_slowly(rows, job)

    return read


def output(schema: pa.Schema, passed: Sequence[str]) -> pa.Schema:
    """Return the output columns: those of the files, those passed through, and the marks."""
    marks = [pa.field(name, pa.string()) for name in (*passed, UNREAD, TEXT, FILE)]
    return pa.schema([*(f.with_nullable(True).remove_metadata() for f in schema), *marks])  # noqa: FBT003


def judged_batch(
    columns: Sequence[pa.Array],
    batch: pa.RecordBatch,
    schema: pa.Schema,
    passed: Sequence[str],
    *,
    reasons: Sequence[str | None],
    texts: Sequence[str | None],
) -> pa.RecordBatch:
    """Return rows with their marks. `batch` has the files and passed-through columns. A row with a reason loses its values."""
    bad = [reason is not None for reason in reasons]
    if any(bad):  # a row that a later column refused must not show its earlier values
        mask = pa.array(bad)
        columns = [pc.if_else(mask, pa.scalar(None, column.type), column) for column in columns]
    marks = [pa.array(reasons, pa.string()), pa.array(texts, pa.string()), batch.column(FILE)]
    return pa.RecordBatch.from_arrays(
        [*columns, *[batch.column(name) for name in passed], *marks], schema=output(schema, passed)
    )


# ---- quickly: Arrow's parser ---------------------------------------------------------------------------------------


def read_quickly(batch: pa.RecordBatch, job: JsonJob) -> pa.RecordBatch | None:
    """Read a batch of lines with Arrow's parser; None if it refuses a line or could read one differently."""
    texts = batch.column(TEXT)
    lines = texts.to_pylist()
    if texts.null_count or any(not line.strip() for line in lines):
        return None
    try:
        parsed = pj.read_json(
            io.BytesIO(b"\n".join(lines)),
            read_options=pj.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([(f.name, _plain(f.type)) for f in job.schema]),
                unexpected_field_behavior="error",
            ),
        )
        if parsed.num_rows != len(lines):
            return None
        columns = [
            quick_column(column, f.type) if pa.types.is_string(column.type) else cast_exactly(column, f.type)
            for f in job.schema
            for column in [parsed.column(f.name).combine_chunks()]
        ]
        nulls = pa.nulls(batch.num_rows, pa.string())  # neither reasons nor texts
        read = pa.RecordBatch.from_arrays(
            [*columns, *[batch.column(name) for name in job.passed], nulls, nulls, batch.column(FILE)],
            schema=output(job.schema, job.passed),
        )
        read.validate(full=True)
    except MISFITS:
        return None
    return read


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type to request from Arrow's parser: text for types that JSON has only as text, and exact floats.

    A type that must be read line by line raises TypeError.
    """
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise TypeError(kind)
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return pa.string()
    return pa.float64() if pa.types.is_floating(kind) else kind


# ---- slowly: line by line ------------------------------------------------------------------------------------------


def _rows(batch: pa.RecordBatch, job: JsonJob) -> Iterator[_Row]:
    passed = [batch.column(name).to_pylist() for name in job.passed]
    for number, (text, file) in enumerate(
        zip(batch.column(TEXT).to_pylist(), batch.column(FILE).to_pylist(), strict=True)
    ):
        values = tuple(column[number] for column in passed)
        for item in _objects(text or b"", whole=job.whole):
            yield _Row(*item, file, values)


def _objects(text: bytes, *, whole: bool) -> Iterator[tuple[dict[str, Any] | None, str | None, bytes, int | None]]:
    """Yield each object of a text, or the reason of its refusal, with its own text or its position in an array."""
    if not text.strip():
        return
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield None, f"not UTF-8: {error.reason} at byte {error.start}", text, None
        return
    try:
        value = read_json(decoded)
    except (ValueError, RecursionError) as error:
        if whole and decoded.lstrip().startswith("{"):
            for line in text.splitlines():
                yield from _objects(line, whole=False)
        else:
            yield None, f"not JSON: {_why(error)}", text, None
        return
    items: list[tuple[int | None, Any]] = [(None, value)]
    if whole and isinstance(value, list):
        items = list(enumerate(value))
    for number, item in items:
        source = b"" if whole else text
        if isinstance(item, dict):
            yield item, None, source, number
        else:
            yield None, f"not a JSON object but {shown(item)}", source, number


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def read_slowly(rows: Sequence[_Row], job: JsonJob) -> pa.RecordBatch:
    """Convert rows to the dataset's types. A row that does not fit gets a reason and loses its values."""
    for row in rows:
        unknown = [name for name in row.fields or () if name not in job.rules]
        if unknown:
            row.reason = f"column {', '.join(map(repr, unknown))} is not one of the dataset's"
    columns = [_column(rows, field, job) for field in job.schema]
    passed = {name: pa.array([row.passed[n] for row in rows], pa.string()) for n, name in enumerate(job.passed)}
    batch = pa.RecordBatch.from_pydict({**passed, FILE: pa.array([row.file for row in rows], pa.string())})
    reasons: list[str | None] = [None] * len(rows)
    texts: list[str | None] = [None] * len(rows)
    for index, row in enumerate(rows):
        if row.reason is not None:
            reasons[index] = row.reason if row.number is None else f"row {row.number}: {row.reason}"
            text = row.text or json.dumps(row.fields, default=str).encode()
            texts[index] = text[:MAX_TEXT_CHARS].decode(errors="replace")
    return judged_batch(columns, batch, job.schema, job.passed, reasons=reasons, texts=texts)


def _column(rows: Sequence[_Row], field: pa.Field, job: JsonJob) -> pa.Array:
    read = reader(field.type)
    try:
        return pa.array([_value(row, field, read) for row in rows], field.type)
    except MISFITS:
        return pa.array([_checked(row, field, read, job) for row in rows], field.type)


def _value(row: _Row, field: pa.Field, read: Reader) -> Any:  # noqa: ANN401
    return read(row.fields.get(field.name)) if row.reason is None and row.fields is not None else None


def _checked(row: _Row, field: pa.Field, read: Reader, job: JsonJob) -> Any:  # noqa: ANN401
    """Return the value, or set the row's reason and return None."""
    try:
        value = _value(row, field, read)
        pa.array([value], field.type)
    except MISFITS:
        assert row.fields is not None  # noqa: S101  # a row without an object has no value to refuse
        row.reason = f"column {field.name!r}: {shown(row.fields[field.name])} {job.rules[field.name]}"
        return None
    return value
