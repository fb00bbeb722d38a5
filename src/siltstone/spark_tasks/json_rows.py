"""Reads JSON inside Spark's Python workers: a text becomes rows of the dataset's types, or is refused with a reason.

Values are read exactly as an upsert reads them (`values`). Arrow's own JSON parser is tried first on a batch of lines.
What it accepts under the dataset's types has the same meaning. A batch that it refuses is read again line by line,
which also finds the lines at fault. `dataset.load.file_formats` uses it.

Terms: a *text* is a line of NDJSON, or a whole JSON file. Such a file has one array, one object, or one object per
line.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from siltstone.spark_tasks.text_columns import quick_column
from siltstone.spark_tasks.values import MISFITS, Reader, cast_exactly, read_json, reader, shown

TEXT: Final = "_text"
FILE: Final = "_file"
UNREAD: Final = "_unread"
"""Further columns: the original text, its file, and why it could not be read (null if it could)."""
MAX_TEXT_CHARS: Final = 10_000
ROWS_PER_BATCH: Final = 50_000
BLOCK_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TextJob:
    """Common parameters of all tasks of one load: the columns of its files in order, and what they accept."""

    schema: pa.Schema
    rules: Mapping[str, str]
    """Refusal text of a value, by column: ``is not a date. Accepted: ...``."""
    passed: tuple[str, ...] = ()
    """Columns that Spark took from the names of folders. They are passed through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonJob(TextJob):
    """A load of JSON: a text is a line, or a whole file."""

    whole: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: the object, or the reason of its refusal, and its source text."""

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
            rows = _rows(batch, job)
            while some := list(islice(rows, ROWS_PER_BATCH)):
                yield read_slowly(some, job)

    return read


def output(schema: pa.Schema, passed: Sequence[str]) -> pa.Schema:
    """Return the output columns: those of the files, those passed through, and the marks."""
    marks = [pa.field(name, pa.string()) for name in (*passed, UNREAD, TEXT, FILE)]
    return pa.schema([*(f.with_nullable(True).remove_metadata() for f in schema), *marks])  # noqa: FBT003


def marked_batch(
    columns: Sequence[pa.Array], batch: pa.RecordBatch, job: TextJob, *, reasons: pa.Array, texts: pa.Array
) -> pa.RecordBatch:
    """Return rows with their marks. `batch` has the files and passed-through columns. A row with a reason loses its values."""
    if reasons.null_count < len(reasons):  # a row that a later column refused must not show its earlier values
        columns = [pc.if_else(reasons.is_valid(), pa.scalar(None, column.type), column) for column in columns]
    passed = [batch.column(name) for name in job.passed]
    return pa.RecordBatch.from_arrays(
        [*columns, *passed, reasons, texts, batch.column(FILE)], schema=output(job.schema, job.passed)
    )


def read_column(
    values: Sequence[Any], field: pa.Field, read: Reader, rule: str, *, reasons: list[str | None]
) -> pa.Array:
    """Read one column. A value that does not fit becomes null and sets its row's reason, unless the row has one."""
    try:
        return pa.array([None if value is None else read(value) for value in values], field.type)
    except MISFITS:
        pass
    checked: list[Any] = [None] * len(values)
    for row, value in enumerate(values):
        if value is None or reasons[row] is not None:
            continue
        try:
            fitting = read(value)
            pa.array([fitting], field.type)
            checked[row] = fitting
        except MISFITS:
            reasons[row] = f"column {field.name!r}: {shown(value)} {rule}"
    return pa.array(checked, field.type)


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
        nulls = pa.nulls(batch.num_rows, pa.string())
        read = marked_batch(columns, batch, job, reasons=nulls, texts=nulls)
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


def _rows(batch: pa.RecordBatch, job: JsonJob) -> Iterator[_Row]:
    columns = [batch.column(name).to_pylist() for name in (TEXT, FILE, *job.passed)]
    for text, file, *passed in zip(*columns, strict=True):
        for item in _objects(text or b"", whole=job.whole):
            yield _Row(*item, file, tuple(passed))


def _objects(text: bytes, *, whole: bool) -> Iterator[tuple[dict[str, Any] | None, str | None, bytes, int | None]]:
    """Yield each object of a text, or why it was refused, with its text or its position in an array."""
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
            why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            if isinstance(error, json.JSONDecodeError):
                why = f"{error.msg} at line {error.lineno}, column {error.colno}"
            yield None, f"not JSON: {why}", text, None
        return
    for number, item in enumerate(value) if whole and isinstance(value, list) else [(None, value)]:
        source = b"" if whole else text
        if isinstance(item, dict):
            yield item, None, source, number
        else:
            yield None, f"not a JSON object but {shown(item)}", source, number


def read_slowly(rows: Sequence[_Row], job: JsonJob) -> pa.RecordBatch:
    """Convert rows to the dataset's types. A row that does not fit gets a reason and loses its values."""
    reasons: list[str | None] = []
    for row in rows:
        unknown = [repr(name) for name in row.fields or () if name not in job.rules]
        reasons.append(f"column {', '.join(unknown)} is not one of the dataset's" if unknown else row.reason)
    objects = [(row.fields or {}) if reason is None else {} for row, reason in zip(rows, reasons, strict=True)]
    columns = [
        read_column([fields.get(f.name) for fields in objects], f, reader(f.type), job.rules[f.name], reasons=reasons)
        for f in job.schema
    ]
    texts: list[str | None] = [None] * len(rows)
    for index, row in enumerate(rows):
        if reasons[index] is not None:
            reasons[index] = reasons[index] if row.number is None else f"row {row.number}: {reasons[index]}"
            text = row.text or json.dumps(row.fields, default=str).encode()
            texts[index] = text[:MAX_TEXT_CHARS].decode(errors="replace")
    passed = {name: pa.array([row.passed[n] for row in rows], pa.string()) for n, name in enumerate(job.passed)}
    batch = pa.RecordBatch.from_pydict({**passed, FILE: pa.array([row.file for row in rows], pa.string())})
    return marked_batch(columns, batch, job, reasons=pa.array(reasons, pa.string()), texts=pa.array(texts, pa.string()))
