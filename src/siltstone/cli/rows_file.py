"""Rows into a file, a batch at a time: the file is there whole, or what was there before is.

Rows go to a file beside the one that was named, which takes its place when the last row is written and synced. Whatever
ends the command earlier removes it; a killed process leaves it, under a name that begins with a point.
"""

import json
import os
import secrets
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from siltstone.cli import render
from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""A row group of a Parquet file is written when it has so many rows or bytes: so much is held in memory."""


def write_rows(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", out: Path, form: str) -> int:
    """Write rows to a file as ``parquet``, ``csv`` or ``json``, and return how many they were.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    writes = {"parquet": _parquet, "csv": _csv, "json": _json}[form]
    counted = _Counted(batches)
    with _whole(out) as place:
        writes(schema, counted, place)
    return counted.rows


class _Counted:
    """Batches that pass by, and how many rows they had."""

    def __init__(self, batches: "Iterable[pa.RecordBatch]") -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """Give a place to write to; what is there takes its name at the end of the block, and goes if the block fails."""
    target = out.resolve()
    place = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        if target.is_dir():
            raise InvalidRequest(f"{out} cannot be written: it is a folder.")
        if target.exists() and not target.is_file():  # a pipe or a device
            yield target
            return
        place.touch(mode=0o666, exist_ok=False)
        try:
            yield place
            with place.open("rb") as file:
                os.fsync(file.fileno())
            place.replace(target)
        finally:
            place.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{out} cannot be written: {error.strerror or error}.") from error


def _parquet(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", place: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(place, schema) as writer:
        for group in _row_groups(batches):
            writer.write_table(pa.Table.from_batches(group, schema))


def _row_groups(batches: "Iterable[pa.RecordBatch]") -> "Iterator[list[pa.RecordBatch]]":
    """Gather batches until they are enough for a row group."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _csv(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", place: Path) -> None:
    with _text(place) as file:
        render.write_csv(schema.names, _rows(batches), file=file)


def _json(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", place: Path) -> None:
    """Write one document, an array of objects, in the form of `render.write_json`."""
    with _text(place) as file:
        before = "["
        for row in _rows(batches):
            shown = json.dumps(render.plain(dict(zip(schema.names, row, strict=True))), ensure_ascii=False, indent=2)
            file.write(f"{before}\n{textwrap.indent(shown, '  ')}")
            before = ","
        file.write("[]\n" if before == "[" else "\n]\n")


def _text(place: Path) -> TextIO:
    return place.open("w", encoding="utf-8", newline="")


def _rows(batches: "Iterable[pa.RecordBatch]") -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        yield from zip(*columns, strict=True) if columns else [()] * batch.num_rows
