"""Writes rows to a file or to standard output, one batch at a time. A file is replaced whole or not at all.

Rows go to a temporary file beside the target. It replaces the target when the last row is written and synced. If the
command fails or is interrupted, it removes the temporary file. A killed process leaves it, under a name that begins
with a dot. The new file has the mode of an existing target. A pipe, a device and standard output are written to
directly.
"""

import errno
import json
import os
import secrets
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from siltstone.cli import render
from siltstone.dataset.read.python_rows import python_columns
from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Size at which a row group of a Parquet file is written, in rows and in bytes. Bounds memory."""


def write_rows(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", out: Path, form: str) -> int:
    """Write rows to a file as ``parquet``, ``csv`` or ``json``, and return the number of rows.

    Raises:
        InvalidRequest: the file cannot be written, or would lose a column.
    """
    writes = {"parquet": _parquet, "csv": _csv, "json": _json}[form]
    repeated = next((name for name, times in Counter(schema.names).items() if times > 1), None)
    if repeated is not None and form != "csv":
        raise InvalidRequest(
            f"Two columns have the name {repeated}, and {form} would keep only one of them. Rename one with AS."
        )
    counted = _RowCounter(batches)
    try:
        with atomic_replace(out) as path:
            writes(schema, counted, path)
    except OSError as error:
        if error is counted.failure:
            raise
        raise InvalidRequest(f"{out} cannot be written: {error.strerror or error}.") from error
    return counted.rows


def print_rows(
    schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", form: str, *, facts: Callable[[int], Mapping[str, Any]]
) -> int:
    """Write rows to standard output as ``csv`` or ``json``, and return the number of rows.

    A JSON document has the columns and the rows, then the result of `facts` for the number of rows. It has the form of
    `render.write_json`. An error while rows are written leaves an incomplete document.
    """
    counted = _RowCounter(batches)
    if form == "csv":
        render.write_csv(schema.names, _rows(counted))
        return counted.rows
    sys.stdout.write('{\n  "columns": ' + _indented(schema.names) + ',\n  "rows": [')
    before = "\n"
    for row in _rows(counted):
        sys.stdout.write(before + "    " + _indented(list(row), levels=2))
        before = ",\n"
    sys.stdout.write("]" if before == "\n" else "\n  ]")
    for name, value in facts(counted.rows).items():
        sys.stdout.write(f',\n  "{name}": {_indented(value)}')
    sys.stdout.write("\n}\n")
    return counted.rows


def _indented(value: Any, *, levels: int = 1) -> str:  # noqa: ANN401
    """Return a value as JSON, with its lines indented by `levels` levels."""
    shown = json.dumps(render.plain(value), ensure_ascii=False, indent=2)
    return shown.replace("\n", "\n" + "  " * levels)  # JSON text contains no line ends


class _RowCounter:
    """Iterator over batches that counts their rows and records the error of their source."""

    def __init__(self, batches: "Iterable[pa.RecordBatch]") -> None:
        self._batches = batches
        self.rows = 0
        self.failure: OSError | None = None

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        source = iter(self._batches)
        while True:
            try:
                batch = next(source, None)
            except OSError as error:
                self.failure = error
                raise
            if batch is None:
                return
            self.rows += batch.num_rows
            yield batch


@contextmanager
def atomic_replace(out: Path, *, new: bool = False) -> Iterator[Path]:
    """Yield a temporary path. It is renamed to `out` at the end of the block, and deleted if the block fails.

    Raises:
        InvalidRequest: `out` is a folder.
        FileExistsError: `out` must be `new`, and exists before the block or after it.
        OSError: a file cannot be created there, or `out` may not be written.
    """
    if new and os.path.lexists(out):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if out.is_dir():
        raise InvalidRequest(f"{out} cannot be written: it is a folder.")
    if out.exists() and not out.is_file():  # before links are followed: /dev/stdout may link to no path
        yield out
        return
    target = out.resolve()
    path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    path.touch(mode=0o666 if mode is None else mode, exist_ok=False)
    try:
        if mode is not None:
            path.chmod(mode)
        yield path
        with path.open("ab") as file:
            os.fsync(file.fileno())
        if new:
            os.link(path, target)  # unlike a rename it fails if another process has made the file
        else:
            path.replace(target)
    finally:
        path.unlink(missing_ok=True)


def _parquet(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema) as writer:
        for group in _row_groups(batches):
            writer.write_table(pa.Table.from_batches(group, schema))


def _row_groups(batches: "Iterable[pa.RecordBatch]") -> "Iterator[list[pa.RecordBatch]]":
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


def _csv(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        render.write_csv(schema.names, _rows(batches), file=file)


def _json(schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", path: Path) -> None:
    """Write one document, an array of objects, in the form of `render.write_json`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        before = "[\n  "
        for row in _rows(batches):
            file.write(before + _indented(dict(zip(schema.names, row, strict=True))))
            before = ",\n  "
        file.write("[]\n" if before.startswith("[") else "\n]\n")


def _rows(batches: "Iterable[pa.RecordBatch]") -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        columns = python_columns(batch)
        yield from zip(*columns, strict=True) if columns else [()] * batch.num_rows
