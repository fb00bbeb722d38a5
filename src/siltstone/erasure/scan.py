"""The byte oracle: is a text anywhere below a folder? It trusts no log and no engine, only the bytes on disk.

Three searches of every file:

* *name*: the file's path, because a partition value can be a folder's name;
* *raw*: its stored bytes, streamed. A text is searched in UTF-8, with JSON escapes and with URL escapes;
* *decoded*: the decoded content. A Parquet file's string and binary columns, nested ones too, are decoded value by
  value. A raw search finds nothing in a compressed page. A log entry's JSON is parsed, and JSON within its strings.

A Parquet file is identified by its first bytes, not by its name; a checkpoint is one too. A file that cannot be decoded
is *unreadable*. Its content is unknown, so a report with such a file is not clean.

Memory is bounded by one chunk of a file, one line of JSON, or one batch of one column. Numbers are deliberately not
searched. A text is found where it is stored as text. A key that is stored as a number is not found.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.errors import InvalidRequest

CHUNK_BYTES: Final = 1024 * 1024
BATCH_ROWS: Final = 8192
PARQUET_MAGIC: Final = b"PAR1"
TEXT_TYPES: Final = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
TEXT_ARRAYS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
MAX_JSON_DEPTH: Final = 8
"""Largest depth of JSON inside a string inside JSON. Statistics are one level deep, schemas two."""


class How(StrEnum):
    """The search that found a text."""

    NAME = "name"
    RAW = "raw"
    DECODED = "decoded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A text that still exists: its file, the search that found it, and its column or JSON member, if decoded."""

    file: str
    value: str
    how: How
    column: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """The searched files and the findings, of one file or of a folder."""

    files: int
    bytes: int
    parquet_files: int
    json_files: int
    findings: tuple[Finding, ...]
    unreadable: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """True if every file could be searched and none holds any of the texts."""
        return not self.findings and not self.unreadable


def scan(folder: Path, values: Iterable[str]) -> ScanReport:
    """Search the texts in every file below the folder.

    A file that disappears meanwhile counts as gone; a folder that cannot be listed raises.

    Raises:
        InvalidRequest: there is no folder, or no text to search.
    """
    needles = {value: _forms(value) for value in values}
    if not needles or not all(needles):
        raise InvalidRequest("A scan needs at least one text to look for, and none of them may be empty.")
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} is not a folder; there is nothing to scan.")
    reports: list[ScanReport] = []
    for path in _files(folder):
        with contextlib.suppress(FileNotFoundError):
            reports.append(_scan_file(path, path.relative_to(folder).as_posix(), needles))
    return ScanReport(
        files=len(reports),
        bytes=sum(report.bytes for report in reports),
        parquet_files=sum(report.parquet_files for report in reports),
        json_files=sum(report.json_files for report in reports),
        findings=tuple(finding for report in reports for finding in report.findings),
        unreadable=tuple(name for report in reports for name in report.unreadable),
    )


def _forms(value: str) -> tuple[bytes, ...]:
    """Return the encodings of a text in an uncompressed file."""
    escaped = json.dumps(value)[1:-1]
    unicode = json.dumps(value, ensure_ascii=False)[1:-1]
    return tuple(dict.fromkeys(text.encode() for text in (value, escaped, unicode, quote(value, safe=""))))


def _files(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for where, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        yield from (Path(where) / name for name in sorted(names))


Needles = Mapping[str, Sequence[bytes]]
"""The encoded forms of each text."""


def _scan_file(path: Path, name: str, needles: Needles) -> ScanReport:
    in_name = [value for value, forms in needles.items() if any(form.decode() in name for form in forms)]
    findings = [Finding(file=name, value=value, how=How.NAME) for value in in_name]
    raw, size, head = _search_raw(path, needles)
    findings += [Finding(file=name, value=value, how=How.RAW) for value in raw]
    is_parquet, is_json = head == PARQUET_MAGIC, head[:1] == b"{"
    unreadable: tuple[str, ...] = ()
    if is_parquet:
        try:
            findings += _search_parquet(path, name, needles)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError):  # the text in a damaged footer need not be UTF-8
            unreadable = (name,)
    elif is_json:
        try:
            findings += _search_json(path, name, needles)
        except RecursionError:  # nested too deeply, so escaped texts in it are not known
            unreadable = (name,)
    return ScanReport(
        files=1,
        bytes=size,
        parquet_files=int(is_parquet),
        json_files=int(is_json),
        findings=tuple(findings),
        unreadable=unreadable,
    )


def _search_raw(path: Path, needles: Needles) -> tuple[list[str], int, bytes]:
    """Stream a file; return the texts found, its size and its first bytes. Chunks overlap by the longest form."""
    overlap = max(len(form) for forms in needles.values() for form in forms) - 1
    missing = dict(needles)
    values: list[str] = []
    size, head, tail = 0, b"", b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            head = head or chunk[: len(PARQUET_MAGIC)]
            size += len(chunk)
            window = tail + chunk
            hits = [value for value, forms in missing.items() if any(form in window for form in forms)]
            values += hits
            missing = {value: forms for value, forms in missing.items() if value not in hits}
            tail = window[len(window) - min(overlap, len(window)) :]
    return values, size, head


def _search_parquet(path: Path, name: str, needles: Needles) -> list[Finding]:
    findings: list[Finding] = []
    with pq.ParquetFile(path) as file:
        columns = [file.schema.column(index) for index in range(len(file.schema))]
        for column in columns:
            if column.physical_type not in TEXT_TYPES or column.logical_type.type == "DECIMAL":
                continue
            missing = dict(needles)
            for batch in file.iter_batches(BATCH_ROWS, columns=[column.path], use_threads=False):
                leaves = [leaf for array in batch.columns for leaf in _leaves(array)]
                hits = [
                    value
                    for value, forms in missing.items()
                    if any(pc.any(pc.match_substring(leaf, form.decode())).as_py() for leaf in leaves for form in forms)
                ]
                findings += [Finding(file=name, value=hit, how=How.DECODED, column=column.path) for hit in hits]
                missing = {value: forms for value, forms in missing.items() if value not in hits}
                if not missing:
                    break
    return findings


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the text arrays inside an array, at any depth."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(array.storage)
    elif pa.types.is_dictionary(kind):
        yield from _leaves(array.dictionary)
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _leaves(child)
    elif pa.types.is_map(kind):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(array.flatten())
    elif pa.types.is_string_view(kind) or pa.types.is_fixed_size_binary(kind):
        yield array.cast(pa.string() if pa.types.is_string_view(kind) else pa.binary())
    elif any(is_text(kind) for is_text in TEXT_ARRAYS):
        yield array


def _search_json(path: Path, name: str, needles: Needles) -> Iterable[Finding]:
    findings: dict[Finding, None] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            for member, text in _texts(_parsed(line), member="", depth=0):
                hits = [value for value in needles if value in text]
                findings |= dict.fromkeys(
                    Finding(file=name, value=hit, how=How.DECODED, column=member or None) for hit in hits
                )
    return findings


def _parsed(text: str) -> Any:  # noqa: ANN401
    """Return the JSON of a line. A line that is not valid JSON was searched raw, and counts as one text."""
    try:
        return json.loads(text, parse_int=len)  # a number is not text, and Python refuses one of thousands of digits
    except ValueError:
        return text


def _texts(value: Any, *, member: str, depth: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield every text of a JSON value with the path of its members."""
    match value:
        case dict():
            for key, inner in value.items():
                path = f"{member}.{key}" if member else key
                yield path, key
                yield from _texts(inner, member=path, depth=depth)
        case list():
            for inner in value:
                yield from _texts(inner, member=member, depth=depth)
        case str():
            yield member, value
            if value[:1] in ("{", "[") and depth < MAX_JSON_DEPTH:
                inner = _parsed(value)
                if not isinstance(inner, str):
                    yield from _texts(inner, member=member, depth=depth + 1)
        case _:
            return
