"""Fills a table: streams base in pieces without the rows that changes hide, then applies the changes.

DuckDB compresses the new rows after each piece, so a fill holds one piece twice, never the whole dataset. Its memory is
measured after each piece, and a fill that exceeds its limit stops. Readers cannot see the table before it is complete.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.delta.row_group_reader import readable
from siltstone.errors import first_line
from siltstone.model.schema import filled
from siltstone.query.hot.change_set import (
    ChangeSet,
    apply,
    change_sets_above,
    deleted_tables,
    insert,
    insert_changes,
    not_deleted_sql,
    registered,
)
from siltstone.query.hot.duckdb_engine import TABLE, DuckDbEngine
from siltstone.query.hot.duckdb_types import UnsupportedType, check_values, columns_sql
from siltstone.spark_tasks.parquet_checksums import batches

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PIECE_ROWS: Final = 4 * 122_880
"""Rows of one piece: whole row groups of DuckDB, some tens of megabytes."""
BATCH_ROWS: Final = 122_880
SAMPLE_FILES: Final = 16
"""Most footers that an estimate reads. The other files are assumed to be similar."""
ESTIMATE_MARGIN: Final = 1.3
"""Safety factor of the estimate. Rows in memory take about as much as in our files, some take a little more."""
ENCODED_SHARE: Final = 4
"""Divisor of the uncompressed size. Repeated text shrinks to a quarter at best in memory, and far more in a file."""
BLOCK_BYTES: Final = 256 * 1024
"""Size of the blocks in which DuckDB allocates memory."""

FillProgress = Callable[[int, int], None]
"""Receives the number of rows read, and the approximate total."""


class FillTooLarge(Exception):  # noqa: N818
    """A fill exceeded its memory limit; `size_bytes` is its memory when it was stopped."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"a fill had taken {size_bytes} bytes when it was stopped")
        self.size_bytes = size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FillLimits:
    """Memory limit of a fill, its progress callback and its stop condition."""

    size_bytes: int
    progress: FillProgress | None = None
    stopping: Callable[[], bool] = lambda: False


def estimate_bytes(store: Store, snapshot: Snapshot) -> int:
    """Estimate the memory of a dataset from the footers of some of its files.

    Raises:
        FileNotFoundError: a file was removed since the snapshot.
    """
    names = set(store.schema.names)
    stored = encoded = 0.0
    for folder, files in ((store.base.path, snapshot.base.files), (store.changes.path, snapshot.unfolded)):
        chosen = sorted(files, key=lambda file: -file.size_bytes)[:SAMPLE_FILES]
        sampled = sum(file.size_bytes for file in chosen)
        if sampled:
            whole = sum(file.size_bytes for file in files)
            sizes = [_column_bytes(store, folder / file.path, names) for file in chosen]
            stored += sum(compressed for compressed, _ in sizes) * whole / sampled
            encoded += sum(uncompressed for _, uncompressed in sizes) * whole / sampled
    return int(max(stored, encoded / ENCODED_SHARE) * ESTIMATE_MARGIN) + BLOCK_BYTES


def _column_bytes(store: Store, path: Path, names: set[str]) -> tuple[int, int]:
    """Return the size of the columns of a file: compressed as stored, and uncompressed."""
    with readable(path), store.opened(path) as parquet:
        metadata = parquet.metadata
    columns = [
        column
        for group in range(metadata.num_row_groups)
        for column in map(metadata.row_group(group).column, range(metadata.num_columns))
        if column.path_in_schema.split(".")[0] in names
    ]
    return sum(c.total_compressed_size for c in columns), sum(c.total_uncompressed_size for c in columns)


def fill(engine: DuckDbEngine, database: str, store: Store, snapshot: Snapshot, limits: FillLimits) -> int:
    """Create and fill the table of a dataset in its database, and return its number of rows.

    Raises:
        UnsupportedType: DuckDB cannot store a column or a value.
        FillTooLarge: it exceeds its memory limit.
        FileNotFoundError: a file was removed since the snapshot.
    """
    import duckdb

    work = _RunningFill(engine, database, store, snapshot, limits)
    try:
        work.cursor.execute(f"CREATE TABLE {work.table} ({columns_sql(store.schema)})")
        change_sets = change_sets_above(store, snapshot, snapshot.watermark)
        work.insert_base(next(change_sets, ChangeSet(deletes=(), inserts=store.schema.empty_table())))
        for changes in change_sets:
            work.apply(changes)
    except duckdb.OutOfMemoryException as error:
        raise FillTooLarge(limits.size_bytes + 1) from error
    except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.ConstraintException) as error:
        raise UnsupportedType(f"It holds a value that the hot engine does not take ({first_line(error)}).") from error
    finally:
        work.cursor.close()
    return work.rows


class _RunningFill:
    """One running fill."""

    def __init__(
        self, engine: DuckDbEngine, database: str, store: Store, snapshot: Snapshot, limits: FillLimits
    ) -> None:
        self.cursor: DuckDBPyConnection = engine.cursor()
        self.table = f"{database}.{TABLE}"
        self.rows = 0
        self._engine, self._database, self._limits = engine, database, limits
        self._store, self._snapshot = store, snapshot
        self._before = engine.table_bytes()
        self._read_rows = 0

    def insert_base(self, changes: ChangeSet) -> None:
        """Insert base without the rows that the first change set hides, then the rows of that change set."""
        condition = not_deleted_sql(changes, of="n")
        with registered(self.cursor, deleted_tables(changes)):
            for piece in pieces(self._store, self._snapshot):
                check_values(piece)
                self.rows += insert(self.cursor, self.table, piece, condition)
                self._compress(piece.num_rows)
        self.rows += insert_changes(self.cursor, self.table, changes)
        self._compress(changes.inserts.num_rows)

    def apply(self, changes: ChangeSet) -> None:
        """Apply another change set."""
        deleted_rows, inserted_rows = apply(self.cursor, self.table, changes)
        self.rows += inserted_rows - deleted_rows
        self._compress(changes.inserts.num_rows)

    def _compress(self, rows: int) -> None:
        """Compress the new rows, and check the memory limit."""
        self.cursor.execute(f"CHECKPOINT {self._database}")
        self._read_rows += rows
        size_bytes = self._engine.table_bytes() - self._before
        if size_bytes > self._limits.size_bytes or self._limits.stopping():
            raise FillTooLarge(size_bytes)
        if self._limits.progress is not None:
            self._limits.progress(self._read_rows, self._snapshot.base.rows + self._snapshot.unfolded_rows)


def pieces(store: Store, snapshot: Snapshot) -> Iterator[pa.Table]:
    """Yield the user's columns of base in pieces."""
    names = set(store.schema.names)
    waiting: list[pa.Table] = []
    for file in sorted(snapshot.base.files, key=lambda f: f.path):
        path = store.base.path / file.path
        with readable(path), store.opened(path) as parquet:
            columns = [name for name in parquet.schema_arrow.names if name in names]
            for batch in batches(parquet, BATCH_ROWS, columns=columns):
                waiting.append(filled(pa.Table.from_batches([batch]), store.schema))
                if sum(part.num_rows for part in waiting) >= PIECE_ROWS:
                    yield pa.concat_tables(waiting)
                    waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
