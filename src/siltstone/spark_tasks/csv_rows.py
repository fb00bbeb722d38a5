"""Reads CSV inside Spark's Python workers: a line becomes a row of the dataset's types, or is refused.

A line is a row. Python's `csv` splits lines into fields, strictly: an unclosed quote, or text after a closing quote, is refused.
So is a quote inside an unquoted field. Fields are read by the rules of `values`. Arrow casts whole columns if all fields have a
form that it reads exactly as `values` does. The other columns are read field by field. `dataset.load.file_formats` uses it.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from siltstone.spark_tasks.json_rows import FILE, MAX_TEXT_CHARS, TEXT, TextJob, marked_batch, read_column
from siltstone.spark_tasks.text_columns import quick_column
from siltstone.spark_tasks.values import MISFITS, text_reader

START: Final = "_start"
"""Column with the byte offset in the file at which the task's part begins."""
MAX_FIELD_CHARS: Final = 2**31 - 1
"""Longest field, in characters. Python's default of 131,072 characters is too small for text columns."""
CACHED_TIMES: Final = 65_536
"""Size of the cache for dates and times with a custom format. They are slow to read and often repeat."""
BYTE_ORDER_MARK: Final = "\ufeff"
UNCLOSED: Final = "a quote is not closed; a line break inside a field cannot be loaded"
"""Reason for a line that may continue in the next one. No line after it can be trusted to be a row."""
STRAY: Final = "a quote is inside a field that is not in quotes; put the field in quotes and double the quote"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvForm:
    """The format of CSV files."""

    delimiter: str = ","
    quote: str = '"'
    """The quote character; empty for none."""
    encoding: str = "utf-8"
    header: bool = True
    null_text: tuple[str, ...] = ("",)
    """Fields that are read as null, quoted or not."""
    date_format: str | None = None
    timestamp_format: str | None = None
    decimal_comma: bool = False

    def fields(self, lines: Sequence[str]) -> "Iterator[list[str]]":
        """Split lines into fields. A quote that is not closed, or text after a closing quote, is a `csv.Error`."""
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            doublequote=True,
            strict=True,
        )

    def well_quoted(self) -> re.Pattern[str]:
        """Return the pattern of lines whose quotes all surround fields, or are doubled inside them."""
        d, q = re.escape(self.delimiter), re.escape(self.quote)
        field = f"(?:{q}(?:[^{q}]++|{q}{q})*+{q}|[^{q}{d}]*+)" if q else ".*"
        return re.compile(f"{field}(?:{d}{field})*+[\r\n]*", re.DOTALL)

    def is_open(self, line: str) -> bool:
        """True if a line that `fields` refuses may continue in the next line."""
        if line.count(self.quote) % 2:
            return True
        try:
            next(self.fields([line + self.quote]))
        except csv.Error:
            return False
        return True


PLAIN: Final = CsvForm()
"""Commas, double quotes, UTF-8, a header line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvJob(TextJob):
    """A load of CSV in one format."""

    form: CsvForm


@dataclass(slots=True)
class _Lines:
    """Lines of a batch: their fields, or the reasons of their refusal."""

    texts: list[str]
    fields: list[list[str] | None]
    reasons: list[str | None]


def in_tasks(job: CsvJob) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` over columns (_text binary, _file string, _start long, and those passed through)."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        csv.field_size_limit(MAX_FIELD_CHARS)
        before: tuple[Any, Any] = (None, None)
        for batch in batches:
            parts = list(zip(batch.column(FILE).to_pylist(), batch.column(START).to_pylist(), strict=True))
            first = [part != last and part[1] == 0 for last, part in pairwise([before, *parts])]
            before = parts[-1] if parts else before
            yield _read(batch, first, job)

    return read


def _read(batch: pa.RecordBatch, first: Sequence[bool], job: CsvJob) -> pa.RecordBatch:
    """Read a batch of lines; `first` marks the first line of each file."""
    if job.form.header and any(first):
        batch, first = batch.filter(pa.array([not is_first for is_first in first])), []
    lines = _divided(batch.column(TEXT).to_pylist(), first, job)
    blank = [fields == [] and reason is None for fields, reason in zip(lines.fields, lines.reasons, strict=True)]
    columns = [_column(lines, number, field, job) for number, field in enumerate(job.schema)]
    texts = [
        text[:MAX_TEXT_CHARS] if reason is not None else None
        for text, reason in zip(lines.texts, lines.reasons, strict=True)
    ]
    marked = marked_batch(
        columns, batch, job, reasons=pa.array(lines.reasons, pa.string()), texts=pa.array(texts, pa.string())
    )
    return marked.filter(pa.array([not is_blank for is_blank in blank])) if any(blank) else marked


def _divided(lines: list[bytes | None], first: Sequence[bool], job: CsvJob) -> _Lines:
    texts, reasons = _decoded([line or b"" for line in lines], job.form.encoding)
    if any(first):
        texts = [
            text.removeprefix(BYTE_ORDER_MARK) if is_first else text
            for text, is_first in zip(texts, first, strict=True)
        ]
    divided = _Lines(texts, [], reasons)
    try:
        divided.fields = list(job.form.fields(texts))
    except csv.Error:
        divided.fields = []
    if len(divided.fields) != len(texts):  # an unclosed quote has consumed the next line
        divided.fields = [_fields(number, divided, job.form) for number in range(len(texts))]
    expected, quote, well_quoted = len(job.schema), job.form.quote, job.form.well_quoted()
    for number, fields in enumerate(divided.fields):
        quoted = bool(quote) and quote in texts[number]
        if quoted and divided.reasons[number] is None and not well_quoted.fullmatch(texts[number]):
            divided.reasons[number] = STRAY  # `csv` reads it as text
        if divided.reasons[number] is not None:
            divided.fields[number] = None
        elif fields and len(fields) != expected:
            divided.reasons[number] = f"it has {len(fields)} fields instead of {expected}"
            divided.fields[number] = None
    return divided


def _decoded(lines: list[bytes], encoding: str) -> tuple[list[str], list[str | None]]:
    """Decode lines. A line that cannot be decoded gets a reason."""
    try:
        texts = b"\n".join(lines).decode(encoding).split("\n")
        if len(texts) == len(lines):
            return texts, [None] * len(lines)
    except UnicodeDecodeError:
        pass
    texts = []
    reasons: list[str | None] = []
    for line in lines:
        try:
            texts.append(line.decode(encoding))
            reasons.append(None)
        except UnicodeDecodeError as error:
            texts.append(line.decode(encoding, errors="replace"))
            reasons.append(f"it is not {encoding.upper()} ({error.reason} at byte {error.start}); set the encoding")
    return texts, reasons


def _fields(number: int, lines: _Lines, form: CsvForm) -> list[str] | None:
    try:
        return next(form.fields([lines.texts[number]]))
    except csv.Error as error:
        if form.is_open(lines.texts[number]):
            lines.reasons[number] = UNCLOSED  # takes precedence over other errors of the line
        elif lines.reasons[number] is None:
            lines.reasons[number] = f"its quotes do not match: {error}"
        return None


def _column(lines: _Lines, number: int, field: pa.Field, job: CsvJob) -> pa.Array:
    """Read one column. A field that does not fit sets its line's reason."""
    nulls = frozenset(job.form.null_text)
    texts = [None if not fields or (text := fields[number]) in nulls else text for fields in lines.fields]
    options: dict[str, Any] = {
        "date_format": job.form.date_format,
        "timestamp_format": job.form.timestamp_format,
        "decimal_comma": job.form.decimal_comma,
    }
    try:
        return quick_column(pa.array(texts, pa.string()), field.type, **options)
    except MISFITS:
        pass
    read = text_reader(field.type, **options)
    if pa.types.is_temporal(field.type):
        read = lru_cache(CACHED_TIMES)(read)
    return read_column(texts, field, read, job.rules[field.name], reasons=lines.reasons)
