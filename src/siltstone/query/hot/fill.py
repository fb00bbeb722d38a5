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
from siltstone.query.hot.applied import GIVEN, apply, gone_tables, handed, insert, not_gone_sql, put
from siltstone.query.hot.change_set import ChangeSet, deltas_above
from siltstone.query.hot.duckdb_engine import TABLE, Engine
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
"""Divisor of the uncompressed size: repeated text shrinks to a quarter at best in memory, and far more in a file."""
BLOCK_BYTES: Final = 256 * 1024
"""Size of the blocks in which DuckDB allocates memory."""

Progress = Callable[[int, int], None]
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
    progress: Progress | None = None
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
            stored += sum(one for one, _ in sizes) * whole / sampled
            encoded += sum(one for _, one in sizes) * whole / sampled
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
    return sum(one.total_compressed_size for one in columns), sum(one.total_uncompressed_size for one in columns)


def fill(engine: Engine, database: str, store: Store, snapshot: Snapshot, allowed: FillLimits) -> int:
    """Create and fill the table of a dataset in its database, and return its number of rows.

    Raises:
        UnsupportedType: DuckDB cannot store a column or a value.
        FillTooLarge: it exceeds its memory limit.
        FileNotFoundError: a file was removed since the snapshot.
    """
    import duckdb

    work = _Work(engine, database, store, snapshot, allowed)
    try:
        work.cursor.execute(f"CREATE TABLE {work.table} ({columns_sql(store.schema)})")
        deltas = deltas_above(store, snapshot, snapshot.watermark)
        work.base(next(deltas, ChangeSet(gone=(), put=store.schema.empty_table())))
        for delta in deltas:
            work.change(delta)
    except duckdb.OutOfMemoryException as error:
        raise FillTooLarge(allowed.size_bytes + 1) from error
    except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.ConstraintException) as error:
        raise UnsupportedType(f"It holds a value that the hot engine does not take ({first_line(error)}).") from error
    finally:
        work.cursor.close()
    return work.rows


class _Work:
    """One running fill."""

    def __init__(self, engine: Engine, database: str, store: Store, snapshot: Snapshot, allowed: FillLimits) -> None:
        self.cursor: DuckDBPyConnection = engine.cursor()
        self.table = f"{database}.{TABLE}"
        self.rows = 0
        self._engine, self._database, self._allowed = engine, database, allowed
        self._store, self._snapshot = store, snapshot
        self._before = engine.table_bytes()
        self._read = 0

    def base(self, delta: ChangeSet) -> None:
        """Insert base without the rows that the first change set hides, then the rows of that change set."""
        condition = not_gone_sql(delta, of="n")
        with handed(self.cursor, gone_tables(delta)):
            for piece in pieces(self._store, self._snapshot):
                check_values(piece)
                with handed(self.cursor, {GIVEN: piece}):
                    self.rows += insert(self.cursor, self.table, self._store.schema.names, condition)
                self._packed(piece.num_rows)
        self.rows += put(self.cursor, self.table, delta)
        self._packed(delta.put.num_rows)

    def change(self, delta: ChangeSet) -> None:
        """Apply another change set."""
        went, came = apply(self.cursor, self.table, delta)
        self.rows += came - went
        self._packed(delta.put.num_rows)

    def _packed(self, rows: int) -> None:
        """Compress the new rows, and check the memory limit."""
        self.cursor.execute(f"CHECKPOINT {self._database}")
        self._read += rows
        taken = self._engine.table_bytes() - self._before
        if taken > self._allowed.size_bytes or self._allowed.stopping():
            raise FillTooLarge(taken)
        if self._allowed.progress is not None:
            self._allowed.progress(self._read, self._snapshot.base.rows + self._snapshot.unfolded_rows)


def pieces(store: Store, snapshot: Snapshot) -> Iterator[pa.Table]:
    """Yield the user's columns of base in pieces."""
    waiting: list[pa.Table] = []
    count = 0
    for batch in _batches(store, snapshot):
        waiting.append(batch)
        count += batch.num_rows
        if count >= PIECE_ROWS:
            yield pa.concat_tables(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _batches(store: Store, snapshot: Snapshot) -> Iterator[pa.Table]:
    names = set(store.schema.names)
    for file in sorted(snapshot.base.files, key=lambda f: f.path):
        path = store.base.path / file.path
        with readable(path), store.opened(path) as parquet:
            own = [name for name in parquet.schema_arrow.names if name in names]
            for batch in batches(parquet, BATCH_ROWS, columns=own):
                yield filled(pa.Table.from_batches([batch]), store.schema)
