"""What a load of CSV does inside Spark's Python workers: lines become rows of the dataset's types, or a reason why not.

A line is a row. Python's `csv` divides lines into fields, strictly: a quote that is not closed, or text after a closing quote, is
refused. So is a quote inside a field that is not in quotes. Fields are read by the rules of `values`. Arrow casts whole columns
where all fields have a form that it reads exactly as `values` does; the other columns are read field by field.

`dataset.load.file_formats` sends this module to the workers by value: it imports only pyarrow, the standard library, `json_rows`,
`text_columns` and `values`.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from siltstone.spark_tasks.json_rows import FILE, MAX_TEXT_CHARS, TEXT, judged_batch
from siltstone.spark_tasks.text_columns import quick_column
from siltstone.spark_tasks.values import MISFITS, shown, text_reader

START: Final = "_start"
"""The column with the byte of the file at which the task's part begins."""
MAX_FIELD_CHARS: Final = 2**31 - 1
"""Python's own limit of 131,072 characters is too small for text columns."""
CACHED_TIMES: Final = 65_536
"""Dates and times in a format of their own are slow to read, and repeat."""
BYTE_ORDER_MARK: Final = "\ufeff"
UNCLOSED: Final = "a quote is not closed; a line break inside a field cannot be loaded"
"""The reason of a line that may go on in the next one: no line after it can be trusted to be a row."""
STRAY: Final = "a quote stands in a field that is not in quotes; put the field in quotes and double the quote"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvForm:
    """How CSV files are written."""

    delimiter: str = ","
    quote: str = '"'
    """The character around fields; empty if there is none."""
    encoding: str = "utf-8"
    header: bool = True
    null_text: tuple[str, ...] = ("",)
    """The fields that are null, quoted or not."""
    date_format: str | None = None
    timestamp_format: str | None = None
    decimal_comma: bool = False

    def fields(self, lines: Sequence[str]) -> "Iterator[list[str]]":
        """Divide lines into fields.

        Raises:
            csv.Error: a quote is not closed, or text follows a closing quote.
        """
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            doublequote=True,
            strict=True,
        )

    def has_stray_quote(self, line: str) -> bool:
        """Return whether a line that `fields` divides has a quote in a field that is not in quotes; `csv` takes it as text."""
        return (
            bool(self.quote) and self.quote in line and _well_quoted(self.delimiter, self.quote).fullmatch(line) is None
        )

    def is_open(self, line: str) -> bool:
        """Return whether a line that `fields` refuses may go on in the next line."""
        if line.count(self.quote) % 2:
            return True
        try:
            next(self.fields([line + self.quote]))
        except csv.Error:
            return False
        return True


@lru_cache
def _well_quoted(delimiter: str, quote: str) -> re.Pattern[str]:
    """Return the form of lines whose quotes all stand around fields, or doubled inside of them."""
    d, q = re.escape(delimiter), re.escape(quote)
    field = f"(?:{q}(?:[^{q}]++|{q}{q})*+{q}|[^{q}{d}]*+)"
    return re.compile(f"{field}(?:{d}{field})*+[\r\n]*", re.DOTALL)


PLAIN: Final = CsvForm()
"""Commas, double quotes, UTF-8, a header line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvJob:
    """What all tasks of one load have in common: the columns of the files in order, what they accept, and the form."""

    schema: pa.Schema
    rules: Mapping[str, str]
    """What a refusal says of a value, by column: ``is not a date. Accepted: ...``."""
    form: CsvForm
    passed: tuple[str, ...] = ()


@dataclass(slots=True)
class _Lines:
    """Lines of a batch: their fields, or why there are none."""

    texts: list[str]
    fields: list[list[str] | None]
    reasons: list[str | None]


def in_tasks(job: CsvJob) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` over columns (_text binary, _file string, _start long, and those passed on)."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        csv.field_size_limit(MAX_FIELD_CHARS)
        before: tuple[Any, Any] = (None, None)
        for batch in batches:
            parts = list(zip(batch.column(FILE).to_pylist(), batch.column(START).to_pylist(), strict=True))
            first = [place != last and place[1] == 0 for last, place in pairwise([before, *parts])]
            before = parts[-1] if parts else before
            yield _read(batch, first, job)

    return read


def _read(batch: pa.RecordBatch, first: Sequence[bool], job: CsvJob) -> pa.RecordBatch:
    """Read a batch of lines; `first` marks the first line of each file."""
    if job.form.header and any(first):
        batch, first = batch.filter(pa.array([not is_first for is_first in first])), [False] * len(first)
    lines = _divided(batch.column(TEXT).to_pylist(), first, job)
    blank = [fields == [] and reason is None for fields, reason in zip(lines.fields, lines.reasons, strict=True)]
    columns = [_column(lines, number, field, job) for number, field in enumerate(job.schema)]
    texts = [
        text[:MAX_TEXT_CHARS] if reason is not None else None
        for text, reason in zip(lines.texts, lines.reasons, strict=True)
    ]
    found = judged_batch(columns, batch, job.schema, job.passed, reasons=lines.reasons, texts=texts)
    return found.filter(pa.array([not is_blank for is_blank in blank])) if any(blank) else found


def _divided(lines: list[bytes | None], first: Sequence[bool], job: CsvJob) -> _Lines:
    texts, reasons = _decoded([line or b"" for line in lines], job.form.encoding)
    if any(first):
        texts = [
            text.removeprefix(BYTE_ORDER_MARK) if is_first else text
            for text, is_first in zip(texts, first, strict=True)
        ]
    found = _Lines(texts, [], reasons)
    try:
        found.fields = list(job.form.fields(texts))
    except csv.Error:
        found.fields = []
    if len(found.fields) != len(texts):  # a line has a quote that is not closed, and took the next line with it
        found.fields = [_fields(number, found, job.form) for number in range(len(texts))]
    wanted = len(job.schema)
    for number, fields in enumerate(found.fields):
        if found.reasons[number] is None and job.form.has_stray_quote(texts[number]):
            found.reasons[number] = STRAY
        if found.reasons[number] is not None:
            found.fields[number] = None
        elif fields and len(fields) != wanted:
            found.reasons[number] = f"it has {len(fields)} fields instead of {wanted}"
            found.fields[number] = None
    return found


def _decoded(lines: list[bytes], encoding: str) -> tuple[list[str], list[str | None]]:
    """Decode lines; one that cannot be decoded has a reason."""
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
            reasons.append(
                f"it is not {encoding.upper()} ({error.reason} at byte {error.start}); say which encoding it has"
            )
    return texts, reasons


def _fields(number: int, lines: _Lines, form: CsvForm) -> list[str] | None:
    try:
        return next(form.fields([lines.texts[number]]))
    except csv.Error as error:
        if form.is_open(lines.texts[number]):
            lines.reasons[number] = UNCLOSED  # whatever else is wrong with the line
        elif lines.reasons[number] is None:
            lines.reasons[number] = f"its quotes do not match: {error}"
        return None


def _column(lines: _Lines, number: int, field: pa.Field, job: CsvJob) -> pa.Array:
    """Read one column; a field that does not fit leaves its reason with the line."""
    nulls = frozenset(job.form.null_text)
    texts = [None if not fields or (text := fields[number]) in nulls else text for fields in lines.fields]
    try:
        return quick_column(
            pa.array(texts, pa.string()),
            field.type,
            date_format=job.form.date_format,
            timestamp_format=job.form.timestamp_format,
            decimal_comma=job.form.decimal_comma,
        )
    except MISFITS:
        pass
    read = _reader(field.type, job.form)
    try:
        return pa.array([None if text is None else read(text) for text in texts], field.type)
    except MISFITS:
        return pa.array([_checked(lines, row, text, field, read, job) for row, text in enumerate(texts)], field.type)


def _reader(kind: pa.DataType, form: CsvForm) -> Callable[[str], Any]:
    read = text_reader(
        kind,
        date_format=form.date_format,
        timestamp_format=form.timestamp_format,
        decimal_comma=form.decimal_comma,
    )
    return lru_cache(CACHED_TIMES)(read) if pa.types.is_temporal(kind) else read


def _checked(  # all that a reason names
    lines: _Lines, row: int, text: str | None, field: pa.Field, read: Callable[[str], Any], job: CsvJob
) -> Any:  # noqa: ANN401
    """Return the value, or None and leave the reason with the line."""
    if text is None or lines.reasons[row] is not None:
        return None
    try:
        value = read(text)
        pa.array([value], field.type)
    except MISFITS:
        lines.reasons[row] = f"column {field.name!r}: {shown(text)} {job.rules[field.name]}"
        return None
    return value
