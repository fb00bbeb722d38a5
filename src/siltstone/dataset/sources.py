"""What `ingest` reads: files, folders and globs of Parquet or CSV, checked one by one before Spark touches them.

Checks here name the file that is at fault; a Spark error would name a task. Nothing is written.
"""

import csv
import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.dataset.frames import spark_schema
from siltstone.errors import InvalidRequest, NotFound
from siltstone.model.schema import a_type, type_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_FILES: Final = 100_000
"""More files than this belong into several loads: their names alone would fill the driver."""


class Format(StrEnum):
    """The formats that can be loaded."""

    PARQUET = "parquet"
    CSV = "csv"


_SUFFIXES: Final = {
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".csv": Format.CSV,
}
_WIDENING: Final = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A set of files of one format, and how many bytes they take."""

    format: Format
    files: tuple[Path, ...]
    size_bytes: int

    def rows(self) -> int:
        """How many rows Parquet footers promise; 0 where the format does not tell."""
        if self.format is not Format.PARQUET:
            return 0
        return sum(pq.read_metadata(file).num_rows for file in self.files)


def find_source(paths: str | Path | Sequence[str | Path], *, format_name: str | None = None) -> Source:
    """Resolve files, folders and globs to a list of files of one format.

    Raises:
        NotFound: a path or glob matches nothing.
        InvalidRequest: formats are mixed or unknown.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files = sorted({file for path in given for file in _expand(str(path))})
    if not files:
        raise NotFound(f"No files to load at {', '.join(map(str, given))}.")
    if len(files) > MAX_FILES:
        raise InvalidRequest(f"{len(files)} files are too many for one load; {MAX_FILES} at most.")
    return Source(
        format=_format(files, format_name),
        files=tuple(files),
        size_bytes=sum(file.stat().st_size for file in files),
    )


def _expand(text: str) -> list[Path]:
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.is_file() and not _hidden(file.relative_to(path))]
    elif path.is_file():
        found = [path]
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        found = [inner for file in found for inner in (_expand(str(file)) if file.is_dir() else [file])]
    if not found:
        raise NotFound(f"No files to load at {text}.")
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _format(files: Sequence[Path], given: str | None) -> Format:
    if given is not None:
        try:
            return Format(given)
        except ValueError as error:
            raise InvalidRequest(f"Format {given!r} cannot be loaded; known are {', '.join(Format)}.") from error
    unknown = [file for file in files if file.suffix.lower() not in _SUFFIXES]
    if unknown:
        raise InvalidRequest(
            f"The format of {unknown[0]} is not known by its name; say it (--format or format=), one of {', '.join(Format)}."
        )
    found = {_SUFFIXES[file.suffix.lower()] for file in files}
    if len(found) > 1:
        raise InvalidRequest(f"The files are of several formats ({', '.join(sorted(found))}); load them one by one.")
    return found.pop()


def source_frame(
    spark: "Callable[[], SparkSession]", source: Source, schema: pa.Schema, *, dataset: str
) -> "DataFrame":
    """Return the source as a frame with exactly the dataset's columns; Spark is asked for when every file was checked.

    Raises:
        InvalidRequest: a file is not readable, or its columns do not fit.
    """
    match source.format:
        case Format.PARQUET:
            return _parquet(spark, source, schema, dataset)
        case Format.CSV:
            return _csv(spark, source, schema, dataset)


def _parquet(spark: "Callable[[], SparkSession]", source: Source, schema: pa.Schema, dataset: str) -> "DataFrame":
    first: pa.Schema | None = None
    for file in source.files:
        try:
            found = pq.read_schema(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidRequest(
                f"{file} is not a readable Parquet file: {str(error).rstrip('.')}. Nothing was loaded."
            ) from error
        _check_names(file, found.names, schema, dataset)
        for field in found:
            _check_type(file, field, schema.field(field.name), dataset)
        if first is not None and set(found.names) != set(first.names):
            raise InvalidRequest(f"{file} has other columns than {source.files[0]}. Nothing was loaded.")
        first = found
    assert first is not None  # noqa: S101  # a source has at least one file
    frame = (
        spark()
        .read.schema(spark_schema(pa.schema([_as_stored(f, schema) for f in first])))
        .parquet(*[str(file) for file in source.files])
    )
    return fitted(frame, schema)


def _as_stored(field: pa.Field, schema: pa.Schema) -> pa.Field:
    """Read a narrower integer as it was written and widen it after."""
    wanted = schema.field(field.name)
    return pa.field(field.name, field.type if field.type in _WIDENING else wanted.type)


def _csv(spark: "Callable[[], SparkSession]", source: Source, schema: pa.Schema, dataset: str) -> "DataFrame":
    header: list[str] | None = None
    for file in source.files:
        names = _csv_header(file)
        _check_names(file, names, schema, dataset)
        if header is not None and names != header:
            raise InvalidRequest(f"{file} has other columns than {source.files[0]}. Nothing was loaded.")
        header = names
    assert header is not None  # noqa: S101  # a source has at least one file
    nested = [n for n in header if pa.types.is_nested(schema.field(n).type) or pa.types.is_binary(schema.field(n).type)]
    if nested:
        raise InvalidRequest(f"Column {nested[0]!r} is {a_type(schema.field(nested[0]).type)}; CSV cannot carry that.")
    frame = (
        spark()
        .read.schema(spark_schema(pa.schema([schema.field(n) for n in header])))
        .options(header="true", mode="FAILFAST", enforceSchema="false", multiLine="false", escape='"')
        .csv([str(file) for file in source.files])
    )
    return fitted(frame, schema)


def _csv_header(file: Path) -> list[str]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as handle:
            return next(csv.reader(handle))
    except StopIteration as error:
        raise InvalidRequest(f"{file} is empty; a CSV file starts with its column names.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(
            f"{file} is not a readable CSV file: {str(error).rstrip('.')}. Nothing was loaded."
        ) from error


def _check_names(file: Path, names: Sequence[str], schema: pa.Schema, dataset: str) -> None:
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidRequest(
            f"{file} has column {', '.join(map(repr, unknown))}, which dataset {dataset} does not have "
            f"({', '.join(schema.names)}). Nothing was loaded."
        )
    if len(set(names)) != len(names):
        raise InvalidRequest(f"{file} names a column twice. Nothing was loaded.")
    missing = [f.name for f in schema if not f.nullable and f.name not in names]
    if missing:
        raise InvalidRequest(
            f"{file} lacks column {', '.join(map(repr, missing))}, which must not be null. Nothing was loaded."
        )


def _check_type(file: Path, found: pa.Field, wanted: pa.Field, dataset: str) -> None:
    if _fits(found.type, wanted.type):
        return
    raise InvalidRequest(
        f"{file}: column {found.name!r} is {found.type}; dataset {dataset} has {type_name(wanted.type)}. "
        "Cast it before loading. Nothing was loaded."
    )


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        return _fits(found.value_type, wanted)
    if found == wanted or wanted in _WIDENING.get(found, ()):
        return True
    if pa.types.is_large_string(found) or pa.types.is_large_binary(found):
        return bool(pa.types.is_string(wanted) if pa.types.is_large_string(found) else pa.types.is_binary(wanted))
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return found.unit in ("ms", "us") and (found.tz is None) == (wanted.tz is None)
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _fits(found.value_type, wanted.value_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        return [f.name for f in found.fields] == [f.name for f in wanted.fields] and all(
            _fits(a.type, b.type) for a, b in zip(found.fields, wanted.fields, strict=True)
        )
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return _fits(found.key_type, wanted.key_type) and _fits(found.item_type, wanted.item_type)
    return False


def fitted(frame: "DataFrame", schema: pa.Schema) -> "DataFrame":
    """Return the frame with exactly the schema's columns, in its order and types; missing ones are null."""
    from pyspark.sql import functions as F

    have = set(frame.columns)
    return frame.select(
        *[
            (F.col(f"`{f.name}`") if f.name in have else F.lit(None)).cast(type_name(f.type)).alias(f.name)
            for f in schema
        ]
    )


def check_frame(frame: "DataFrame", schema: pa.Schema, *, dataset: str) -> "DataFrame":
    """Take a user's Spark frame if every column fits, and bring it into the dataset's columns.

    Raises:
        InvalidRequest: unknown or missing columns, or a type that would have to be cast with loss.
    """
    from siltstone.model.schema import from_struct_json

    given = from_struct_json(frame.schema.jsonValue())
    unknown = [name for name in given.names if name not in schema.names]
    if unknown:
        raise InvalidRequest(
            f"Dataset {dataset} has no column {', '.join(map(repr, unknown))}. It has {', '.join(schema.names)}."
        )
    missing = [f.name for f in schema if not f.nullable and f.name not in given.names]
    if missing:
        raise InvalidRequest(
            f"Dataset {dataset}: the frame lacks column {', '.join(map(repr, missing))}, which must not be null."
        )
    for field in given:
        wanted = schema.field(field.name)
        if not _fits(field.type, wanted.type) and not pa.types.is_null(field.type):
            raise InvalidRequest(
                f"Dataset {dataset}: column {field.name!r} is {a_type(wanted.type)}, the frame has {type_name(field.type)}. "
                "Cast it first."
            )
    return fitted(frame, schema)
