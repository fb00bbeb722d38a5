"""Reads parts of an immutable Parquet file: its footer, some columns of a row group, rows by their number.

Footers and columns are cached (see `read_cache`), so a file's footer is parsed once. Rows by number: Arrow cannot jump
to a page, but it reads lazily. So a row group is read no further than the last requested row. With `keep` it is read
whole and cached.

Bloom filters are not read, because pyarrow gives their position but cannot query them. Files are sorted by key, so the ranges
of their row groups are as selective. Missing statistics mean "may contain".
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.delta.parquet import READ_ERRORS, key_ranges
from siltstone.delta.read_cache import CacheReader
from siltstone.host.system_errors import read_failure
from siltstone.model.arrays import Numbers
from siltstone.model.files import KeyRange, whole_range
from siltstone.model.schema import default_of, filled
from siltstone.spark_tasks.parquet_checksums import batches, check_rows, open_parquet

FOOTER_GROWTH: Final = 4
"""Approximate ratio of a footer's size in memory to its size on disk."""
_FOOTER: Final = "footer"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Name the file in read errors. A missing file is not treated as damaged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except READ_ERRORS as error:
        raise read_failure(path, error) from error


@dataclass(frozen=True, kw_only=True)
class GroupedFile:
    """A file's footer, and the ranges of the key columns in each row group."""

    metadata: pq.FileMetaData
    groups: tuple[tuple[KeyRange, ...], ...]

    @cached_property
    def whole(self) -> KeyRange:
        """The range of the first key column in the whole file."""
        return whole_range([ranges[0] for ranges in self.groups])

    @cached_property
    def size_bytes(self) -> int:
        """Decompressed size of the rows in bytes."""
        return sum(self.metadata.row_group(number).total_byte_size for number in range(self.metadata.num_row_groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader:
    """One file, read by one visit. `schema` has the dataset's columns; `key` names the columns whose ranges are read.

    Every method raises FileNotFoundError if the file was removed since the snapshot, and Corruption if it cannot be read.
    """

    root: Path
    path: str
    schema: pa.Schema
    key: tuple[str, ...]
    visit: CacheReader
    verify: bool

    def has_footer(self) -> bool:
        """True if the footer is cached."""
        return self.visit.has(self.path, _FOOTER)

    def footer(self) -> GroupedFile:
        """Return the footer and cache it."""
        footer: GroupedFile | None = self.visit.find(self.path, _FOOTER)
        if footer is None:
            with self._open(None) as file:
                metadata = file.metadata
            groups = tuple(zip(*(key_ranges(metadata, name) for name in self.key), strict=True))
            footer = GroupedFile(metadata=metadata, groups=groups)
            self.visit.put(self.path, _FOOTER, footer, metadata.serialized_size * FOOTER_GROWTH)
        return footer

    def has_columns(self, group: int, names: Sequence[str]) -> bool:
        """True if these columns of a row group are cached."""
        return any(self.visit.has(self.path, (group, tuple(cached))) for cached in (names, self.schema.names))

    def _cached_columns(self, group: int, names: Sequence[str]) -> pa.Table | None:
        table: pa.Table | None = self.visit.find(self.path, (group, tuple(names)))
        if table is None:
            whole: pa.Table | None = self.visit.find(self.path, (group, tuple(self.schema.names)))
            table = whole.select(list(names)) if whole is not None else None
        return table

    def columns(self, group: int, names: Sequence[str], *, keep: bool = True) -> pa.Table:
        """Return columns of a row group and cache them."""
        table = self._cached_columns(group, names)
        if table is None:
            with self._open(self.footer().metadata) as file:
                table = file.read_row_group(group, columns=list(names), use_threads=False)
                check_rows(table.num_rows, file.metadata.row_group(group).num_rows)
            table = filled(table, self._schema_of(names)).combine_chunks()
            if keep:
                self.visit.put(self.path, (group, tuple(names)), table, table.nbytes)
        return table

    def rows(
        self, group: int, rows: Numbers, names: Sequence[str], *, keep: bool, cached: pa.Table | None = None
    ) -> pa.Table:
        """Return rows of a row group by their ascending numbers. With `keep` the whole row group is read and cached.

        Columns of the row group in `cached` are not read again.
        """
        table = self._cached_columns(group, names)
        if table is None and keep:
            table = self.columns(group, self.schema.names).select(list(names))
        if table is not None:
            return _picked(table, rows)
        table = cached if cached is not None else pa.table({})
        stored = set(table.column_names)
        available = [name for name in names if name in stored]
        table = table.select(available)
        parts = [table.take(pa.array(rows))] if available else []
        missing = [name for name in names if name not in available]
        stored = set(self.footer().metadata.schema.to_arrow_schema().names) if missing else set()
        if read := [name for name in missing if name in stored]:
            parts.append(filled(self._first_rows(group, rows, read), self._schema_of(read)))
        columns = {name: part.column(name) for part in parts for name in part.column_names}
        for name in missing:  # a column that was added after the file was written shows its default
            if name not in columns:
                columns[name] = pa.repeat(default_of(self.schema.field(name)), len(rows))
        return pa.table([columns[name] for name in names], schema=self._schema_of(names))

    def _first_rows(self, group: int, rows: Numbers, names: Sequence[str]) -> pa.Table:
        """Read up to the last requested row."""
        last = int(rows[-1])
        parts: list[pa.Table] = []
        start = 0
        with self._open(self.footer().metadata) as file:
            for batch in batches(file, last + 1, columns=names, groups=[group], use_threads=False):
                selected = rows[(rows >= start) & (rows < start + batch.num_rows)] - start
                table = pa.Table.from_batches([batch])
                parts.append(table.take(pa.array(selected)))
                start += batch.num_rows
                if start > last:
                    break
        return pa.concat_tables(parts)

    @contextmanager
    def _open(self, metadata: pq.FileMetaData | None) -> Iterator[pq.ParquetFile]:
        path = self.root / self.path
        with readable(path), open_parquet(path, verify=self.verify, metadata=metadata, pre_buffer=False) as file:
            yield file

    def _schema_of(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in names])


def _picked(table: pa.Table, rows: Numbers) -> pa.Table:
    """Return rows by their ascending numbers, each once. More than 2 GiB of text is filtered chunk by chunk."""
    try:
        return table.take(pa.array(rows))
    except pa.ArrowInvalid:  # take concatenates the chunks of a column first, and the result is too large
        chosen = np.zeros(table.num_rows, dtype=bool)
        chosen[rows] = True
        return table.filter(pa.array(chosen))
