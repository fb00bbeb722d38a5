"""From files to a frame with the dataset's columns: every file is checked first, then Spark reads the valid ones.

Flow:

1. `check_files` checks every file (footers, header lines, folder names) without Spark, and lists bad files with
   reasons;
2. `read_files` makes one frame of the good files.

A frame has the dataset's columns and three marks. They are ``_unread`` (why a row could not be read, null if it could),
``_text`` (the source text) and ``_file``. Rows of Parquet can always be read. `json_rows` and `csv_rows` parse JSON and
CSV in Spark's tasks. Spark's own readers round, cast, guess and drop in silence.
"""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.dataset.load.sorted_write import ParquetFile
from siltstone.dataset.load.source_files import (
    TEXT_READ_ERRORS,
    Format,
    HivePartition,
    SourceFiles,
    open_text,
    partition_of,
    partition_value,
)
from siltstone.dataset.read.spark_frames import spark_schema
from siltstone.dataset.schema_compat import all_fit, check_names, check_type, fitted
from siltstone.errors import InvalidRequest
from siltstone.model.evolution import WIDER
from siltstone.model.schema import a_type
from siltstone.spark.arrow_tasks import TaskFunction, send_by_value
from siltstone.spark_tasks import csv_rows, json_rows, values
from siltstone.spark_tasks.csv_rows import PLAIN, START, CsvForm
from siltstone.spark_tasks.json_rows import FILE, TEXT, UNREAD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MAX_NAMED: Final = 20
"""Number of bad files that an error names; the others are counted."""
MAX_JSON_BYTES: Final = 256 * 1024 * 1024
"""Largest JSON file in bytes, because one task reads the whole file. Larger data belongs into lines (NDJSON)."""
PATTERN_CHARACTERS: Final = "[]{}*?\\"
MAX_HEADER_BYTES: Final = 1024 * 1024
_LINE_END: Final = re.compile(rb"[\r\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A file that cannot be loaded, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedFiles:
    """The files that can be loaded together, their columns and their folders' columns; and the bad files."""

    format: Format
    files: tuple[Path, ...]
    columns: pa.Schema
    partition_names: tuple[str, ...] = ()
    bad: tuple[BadFile, ...] = ()
    rows: int = 0
    plain_files: tuple[ParquetFile, ...] = ()
    """The same files, if every Parquet reader reads the same rows from them as Spark."""
    form: CsvForm = PLAIN
    """The form of the CSV files."""

    def refuse_bad(self) -> None:
        """Raise InvalidRequest if there are bad files; the message names the first ones."""
        if not self.bad:
            return
        named = [f"{bad.path} {bad.reason}" for bad in self.bad[:MAX_NAMED]]
        if len(self.bad) == 1:
            raise InvalidRequest(f"{named[0]}. Nothing was loaded.")
        more = f"; and {len(self.bad) - MAX_NAMED} more" if len(self.bad) > MAX_NAMED else ""
        raise InvalidRequest(
            f"{len(self.bad)} of {len(self.bad) + len(self.files)} files cannot be loaded: {'; '.join(named)}{more}. "
            "Nothing was loaded. To load the others, quarantine these (--quarantine or quarantine=)."
        )


@dataclass(slots=True)
class _CheckedFile:
    """Columns and row count of one checked file, as far as the file states them."""

    columns: pa.Schema
    partition: HivePartition
    rows: int = 0
    is_plain: bool = False


class BadContent(Exception):  # noqa: N818
    """A file cannot be loaded; the text is the reason."""


def check_files(source: SourceFiles, schema: pa.Schema, *, dataset: str, form: CsvForm = PLAIN) -> ValidatedFiles:
    """Check every file. A bad file does not stop the checks of the others."""
    check: dict[Format, Callable[[Path, pa.Schema, str], _CheckedFile]] = {
        Format.PARQUET: _check_parquet,
        Format.CSV: partial(_check_csv, form=form),
        Format.JSON: partial(_check_json, max_bytes=MAX_JSON_BYTES),
        Format.NDJSON: _check_json,
    }
    first: tuple[Path, _CheckedFile] | None = None
    good: list[Path] = []
    bad: list[BadFile] = []
    plain: list[ParquetFile] = []
    rows = 0
    for file in source.files:
        try:
            checked = check[source.format](file, schema, dataset)
            _check_partition(checked.partition, schema, dataset)
            if first is not None:
                _check_alike(checked, first)
        except BadContent as error:
            bad.append(BadFile(path=file, reason=str(error)))
            continue
        first = first or (file, checked)
        good.append(file)
        rows += checked.rows
        if checked.is_plain:
            plain.append(ParquetFile(path=file, rows=checked.rows, size_bytes=file.stat().st_size))
    return ValidatedFiles(
        format=source.format,
        files=tuple(good),
        columns=first[1].columns if first else schema,
        partition_names=first[1].partition.names if first else (),
        bad=tuple(bad),
        rows=rows,
        plain_files=tuple(plain) if len(plain) == len(good) else (),
        form=form,
    )


def _check_alike(checked: _CheckedFile, first: tuple[Path, _CheckedFile]) -> None:
    other = first[1]
    if checked.partition.names != other.partition.names:
        raise BadContent(
            f"is in folders of other columns ({', '.join(checked.partition.names) or 'none'}) than {first[0]}"
        )
    if checked.columns.names != other.columns.names and (
        set(checked.columns.names) != set(other.columns.names) or not checked.columns.metadata
    ):
        raise BadContent(f"has other columns than {first[0]}")
    if checked.columns.metadata and any(checked.columns.field(f.name).type != f.type for f in other.columns):
        raise BadContent(f"has columns of other types than {first[0]}")


def _check_parquet(file: Path, schema: pa.Schema, dataset: str) -> _CheckedFile:
    try:
        footer = pq.read_metadata(file)
        file_schema = footer.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise BadContent(f"is not a readable Parquet file: {str(error).rstrip('.')}") from error
    partition = partition_of(file)
    _refuse(check_names(_apart(file_schema.names, partition), schema, dataset=dataset))
    for field in file_schema:
        _refuse(check_type(field, schema.field(field.name), dataset=dataset))
    # A narrower integer is read in its stored type and widened afterwards.
    stored = [pa.field(f.name, f.type if f.type in WIDER else schema.field(f.name).type) for f in file_schema]
    columns = pa.schema(stored, metadata={"typed": "yes"})
    is_plain = not partition.names and not _has_old_dates(footer)
    return _CheckedFile(columns, partition, rows=footer.num_rows, is_plain=is_plain)


def _has_old_dates(footer: pq.FileMetaData) -> bool:
    """True if Spark before 3 wrote the file: Spark reads its dates by a calendar that no other reader uses."""
    metadata = footer.metadata or {}
    if any(key in metadata for key in (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")):
        return True
    return metadata.get(b"org.apache.spark.version", b"3").split(b".")[0] in (b"1", b"2")


def _check_csv(file: Path, schema: pa.Schema, dataset: str, *, form: CsvForm) -> _CheckedFile:
    partition = partition_of(file)
    names = csv_header(file, form)
    if not form.header:
        folders = set(partition.names)
        names = [name for name in schema.names if name not in folders]
    _refuse(check_names(_apart(names, partition), schema, dataset=dataset))
    return _CheckedFile(pa.schema([schema.field(name) for name in names]), partition)


def csv_header(file: Path, form: CsvForm = PLAIN) -> list[str]:
    """Return the fields of a CSV file's first line; raise BadContent if the file is empty or the line cannot be read."""
    try:
        with open_text(file) as handle:
            start = handle.readline(MAX_HEADER_BYTES)
        if not start:
            raise BadContent("is empty; a CSV file starts with its column names" if form.header else "is empty")
        line = _LINE_END.split(start, maxsplit=1)[0].decode(form.encoding)
        return next(form.fields([line.removeprefix(csv_rows.BYTE_ORDER_MARK)]))
    except UnicodeDecodeError as error:
        raise BadContent(
            f"is not {form.encoding.upper()}: {error.reason} at byte {error.start}. Name its encoding"
        ) from error
    except (csv.Error, *TEXT_READ_ERRORS) as error:
        raise BadContent(f"is not a readable CSV file: {str(error).rstrip('.')}") from error


def _check_json(file: Path, schema: pa.Schema, dataset: str, *, max_bytes: int | None = None) -> _CheckedFile:
    """Check a JSON file as a whole. Spark's tasks check names and values row by row."""
    size = file.stat().st_size
    if max_bytes is not None and size > max_bytes:
        raise BadContent(f"has {size} bytes; a JSON file may have {max_bytes}. Write one object a line (.ndjson)")
    partition = partition_of(file)
    try:
        with open_text(file) as handle:
            handle.read(1)
    except TEXT_READ_ERRORS as error:
        raise BadContent(f"is not readable: {error}") from error
    folders = set(partition.names)
    rest = [field for field in schema if field.name not in folders]
    _refuse(check_names([*[field.name for field in rest], *partition.names], schema, dataset=dataset))
    return _CheckedFile(pa.schema(rest), partition)


def _apart(names: Sequence[str], partition: HivePartition) -> list[str]:
    """Return the columns of a file and of its folders, which must not share a column."""
    twice = [name for name in partition.names if name in names]
    if twice:
        raise BadContent(f"has column {', '.join(map(repr, twice))}, which its folder names too")
    return [*names, *partition.names]


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise BadContent(reason)


def _check_partition(partition: HivePartition, schema: pa.Schema, dataset: str) -> None:
    """Reject a folder value that is not a valid value of its column."""
    for name, text in partition.values:
        field = schema.field(name)  # the names are known by now
        value = partition_value(text)
        if not text or (value is None and not field.nullable):
            raise BadContent(f"is in a folder without a value for column {name!r}")
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            raise BadContent(
                f"is in a folder for column {name!r}, which is {a_type(field.type)}; no folder can name that"
            )
        if value is not None and not all_fit([value], field.type, as_text=True):
            raise BadContent(
                f"is in a folder {name}={value}, which is not {a_type(field.type)}, as column {name!r} of {dataset} is"
            )


def read_files(spark: "Callable[[], SparkSession]", checked: ValidatedFiles, schema: pa.Schema) -> "DataFrame":
    """Return the rows of the good files with the dataset's columns and the marks. Spark starts only here."""
    roots: dict[Path, list[str]] = {}
    for file in checked.files:
        # Spark reads the path as this one file: pattern characters are escaped.
        literal = "".join(f"\\{letter}" if letter in PATTERN_CHARACTERS else letter for letter in str(file))
        roots.setdefault(partition_of(file).root if checked.partition_names else Path("/"), []).append(literal)
    frames = [_read(spark(), checked, schema, root, files) for root, files in roots.items()]
    return reduce(lambda whole, frame: whole.unionAll(frame), frames)


def _read(
    spark: "SparkSession", checked: ValidatedFiles, schema: pa.Schema, root: Path, files: Sequence[str]
) -> "DataFrame":
    from pyspark.sql import functions as F

    match checked.format:
        case Format.PARQUET:
            columns = _columns(spark_schema(checked.columns), checked)
            read = spark.read.schema(columns).options(**_options(checked, root))
            frame = read.parquet(*files).withColumn(FILE, F.col("_metadata.file_path"))
        case Format.CSV:
            texts = _texts(spark, checked, root, files, F.col("_metadata.file_block_start").alias(START))
            csv_job = csv_rows.CsvJob(
                schema=checked.columns, rules=_rules(checked), form=checked.form, passed=checked.partition_names
            )
            frame = _parsed(texts, csv_rows.in_tasks(csv_job), checked)
        case Format.JSON | Format.NDJSON:
            whole = checked.format is Format.JSON
            json_job = json_rows.JsonJob(
                schema=checked.columns, rules=_rules(checked), whole=whole, passed=checked.partition_names
            )
            frame = _parsed(_texts(spark, checked, root, files, whole=whole), json_rows.in_tasks(json_job), checked)
    frame = _decoded(frame, checked)
    marks = [mark for mark in (UNREAD, TEXT, FILE) if mark in frame.columns]
    return fitted(frame, schema, keep=marks)


def _options(checked: ValidatedFiles, root: Path) -> dict[str, str]:
    return {"basePath": str(root)} if checked.partition_names else {}


def _columns(file_columns: str, checked: ValidatedFiles) -> str:
    """Return the columns of the files and, as text, those of their folders."""
    return ", ".join([file_columns, *[f"`{name}` string" for name in checked.partition_names]])


def _texts(
    spark: "SparkSession",
    checked: ValidatedFiles,
    root: Path,
    files: Sequence[str],
    *more: "Column",
    whole: bool = False,
) -> "DataFrame":
    """Return the lines of the files as bytes, or each file whole, with file name and folder values."""
    from pyspark.sql import functions as F

    return (
        spark.read.schema(_columns("value string", checked))
        .options(**_options(checked, root))
        .text(list(files), wholetext=whole)
        .select(
            F.col("value").cast("binary").alias(TEXT),
            F.col("_metadata.file_path").alias(FILE),
            *more,
            *[F.col(f"`{name}`") for name in checked.partition_names],
        )
    )


def _rules(checked: ValidatedFiles) -> dict[str, str]:
    """Return the rule for values of each column, for error messages."""
    form = checked.form
    formats = {"date_format": form.date_format, "timestamp_format": form.timestamp_format}
    return {
        field.name: f"is not {a_type(field.type)}. Accepted: {values.accepted(field.type, **formats)}"
        for field in checked.columns
    }


def _parsed(texts: "DataFrame", work: TaskFunction, checked: ValidatedFiles) -> "DataFrame":
    """Return the rows that Spark's tasks parse from texts."""
    send_by_value()
    columns = json_rows.output(checked.columns, checked.partition_names)
    return texts.mapInArrow(work, spark_schema(columns))


def _decoded(frame: "DataFrame", checked: ValidatedFiles) -> "DataFrame":
    """Decode the values of folder columns, because Spark unescapes byte by byte, which is wrong for UTF-8."""
    from pyspark.sql import functions as F

    for number, name in enumerate(checked.partition_names):
        texts = {partition_of(file).values[number][1] for file in checked.files}
        column = F.col(f"`{name}`")
        for text in sorted(text for text in texts if unquote(text, "latin-1") != unquote(text)):
            column = F.when(F.col(f"`{name}`") == unquote(text, "latin-1"), F.lit(unquote(text))).otherwise(column)
        frame = frame.withColumn(name, column)
    return frame
