"""The source files of `ingest`: their paths, format, compression, and the values in their folder names.

No file is opened here and nothing is written; `file_formats` checks their content.
"""

import bz2
import glob
import gzip
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import unquote

from siltstone.delta.layout import expanded
from siltstone.errors import InvalidRequest, NotFound
from siltstone.spark_tasks.csv_rows import CsvForm

MAX_FILES: Final = 100_000
"""Largest number of files of one load, because the names of more would fill the driver's memory."""


class Format(StrEnum):
    """The formats that can be loaded."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    NDJSON = "ndjson"

    @property
    def is_text(self) -> bool:
        """True if files may be compressed as a whole, and single rows can be bad."""
        return self is not Format.PARQUET


_SUFFIXES: Final = {
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".csv": Format.CSV,
    ".json": Format.JSON,
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
}
_OPENERS: Final[dict[str, Callable[..., Any]]] = {".gz": gzip.open, ".bz2": bz2.open}
"""Compressions that both Python and a Spark without additions can read."""
TEXT_READ_ERRORS: Final = (OSError, EOFError, zlib.error)
"""Exceptions of reading a text file, also through its compression."""
_OTHER_COMPRESSIONS: Final = frozenset(
    {".zst", ".zstd", ".lz4", ".lzo", ".snappy", ".xz", ".zip", ".deflate", ".br", ".7z", ".tgz", ".tar", ".z"}
)
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_SEGMENT: Final = re.compile(r"([^=]+)=(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRequest:
    """The arguments of one load of files."""

    paths: tuple[str | Path, ...]
    format_name: str | None = None
    order_by: tuple[str, ...] = ()
    quarantine: str | Path | None = None
    reload: bool = False
    form: CsvForm | None = None
    """The form of the CSV files; None if the caller gives no CSV option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """A set of files of one format."""

    format: Format
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HivePartition:
    """Partition values in the folders above a file, ``region=eu/day=2026-11-16``, and the folder above these."""

    root: Path
    values: tuple[tuple[str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the folders name."""
        return tuple(name for name, _ in self.values)


def find_source(paths: str | Path | Sequence[str | Path], *, format_name: str | None = None) -> SourceFiles:
    """Resolve files, folders and globs to a list of files of one readable format; NotFound if one matches nothing."""
    patterns = [paths] if isinstance(paths, str | Path) else list(paths)
    files = sorted({file for path in patterns for file in _expand(str(path))})
    if not files:
        raise NotFound(f"No files to load at {', '.join(map(str, patterns))}.")
    if len(files) > MAX_FILES:
        raise InvalidRequest(f"{len(files)} files are too many for one load; {MAX_FILES} at most.")
    return SourceFiles(format=_format(files, format_name), files=tuple(files))


def _expand(text: str) -> list[Path]:
    path = expanded(text, what="The source")
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        files = [file for file in files if not any(p.startswith((".", "_")) for p in file.relative_to(path).parts)]
    elif path.is_file():
        files = [path]
    else:
        files = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        files = [inner for file in files for inner in (_expand(str(file)) if file.is_dir() else [file])]
    if not files:
        raise NotFound(f"No files to load at {text}.")
    return files


def _format(files: Sequence[Path], format_name: str | None) -> Format:
    closed = [file for file in files if file.suffix.lower() in _OTHER_COMPRESSIONS]
    if closed:
        raise InvalidRequest(
            f"{closed[0]} is compressed as {closed[0].suffix}, which cannot be loaded. Use .gz or .bz2, or unpack it."
        )
    if format_name is not None:
        try:
            formats = {Format(format_name)}
        except ValueError as error:
            raise InvalidRequest(f"Format {format_name!r} cannot be loaded; known are {', '.join(Format)}.") from error
    else:
        unknown = [file for file in files if _suffix(file) not in _SUFFIXES]
        if unknown:
            raise InvalidRequest(
                f"The format of {unknown[0]} is not clear from its name; name the format (--format or format=), "
                f"one of {', '.join(Format)}."
            )
        formats = {_SUFFIXES[_suffix(file)] for file in files}
    if len(formats) > 1:
        raise InvalidRequest(f"The files are of several formats ({', '.join(sorted(formats))}); load them one by one.")
    packed = [file for file in files if is_compressed(file)]
    if packed and Format.PARQUET in formats:
        raise InvalidRequest(f"{packed[0]} is compressed as a whole; Parquet is compressed inside. Unpack it.")
    return formats.pop()


def is_compressed(file: Path) -> bool:
    """True if the file's name shows that it is compressed as a whole."""
    return file.suffix.lower() in _OPENERS


def format_of(file: Path) -> Format | None:
    """Return the format from a file's name, also below a compression suffix."""
    return _SUFFIXES.get(_suffix(file))


def _suffix(file: Path) -> str:
    """Return the suffix of the format: ``.csv`` of ``a.csv.gz``."""
    return (Path(file.stem) if is_compressed(file) else file).suffix.lower()


def open_text(file: Path) -> IO[bytes]:
    """Open a text file, through its compression."""
    opener = _OPENERS.get(file.suffix.lower())
    return opener(file, "rb") if opener is not None else file.open("rb")


def partition_of(file: Path) -> HivePartition:
    """Return the partition values of the folders directly above a file, still escaped.

    >>> partition_of(Path("/in/region=eu/day=1/a.csv"))
    HivePartition(root=PosixPath('/in'), values=(('region', 'eu'), ('day', '1')))
    """
    values: list[tuple[str, str]] = []
    folder = file.parent
    while segment := _SEGMENT.fullmatch(folder.name):
        values.append((unquote(segment[1]), segment[2]))
        folder = folder.parent
    return HivePartition(root=folder, values=tuple(reversed(values)))


def partition_value(text: str) -> str | None:
    """Return the value of a folder's name: unescaped, None for null."""
    return None if text == NULL_PARTITION else unquote(text)
