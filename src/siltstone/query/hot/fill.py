"""Filling: base streams into a table a piece at a time, what changes hide is left out on the way, then the changes come.

After each piece DuckDB compresses what came, so a fill holds one piece twice, never the dataset. What it takes is looked at after
each piece, and a fill that outgrows what it was allowed stops. Nobody sees the table before it is whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.delta.row_group_reader import readable
from siltstone.model.schema import filled
from siltstone.query.hot.applied import GIVEN, apply, gone_tables, handed, insert, not_gone_sql, put
from siltstone.query.hot.change_set import ChangeSet, deltas_above
from siltstone.query.hot.duckdb_engine import TABLE, Engine
from siltstone.query.hot.duckdb_types import UnsupportedType, check_values, columns_sql
from siltstone.spark_tasks.parquet_checksums import batches

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PIECE_ROWS: Final = 4 * 122_880
"""Whole row groups of DuckDB; some tens of megabytes."""
BATCH_ROWS: Final = 122_880
SAMPLE_FILES: Final = 16
"""How many footers an estimate reads; the other files are taken to be like them."""
ESTIMATE_MARGIN: Final = 1.3
"""Rows in memory take about what they take in our files; this is for those that do a little worse."""
ENCODED_SHARE: Final = 4
"""Text that says the same again and again is much smaller in a file; in memory it is a quarter of its plain size at best."""
BLOCK_BYTES: Final = 256 * 1024
"""DuckDB takes memory in blocks of this size."""

Progress = Callable[[int, int], None]
"""Told the rows that are in, and how many there are about."""


class FillTooLarge(Exception):  # noqa: N818
    """A fill took more than it was allowed; the number of bytes is what it took so far."""

    def __init__(self, size_bytes: int) -> None:
        """Remember how large it had become."""
        super().__init__(f"a fill had taken {size_bytes} bytes when it was stopped")
        self.size_bytes = size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FillLimits:
    """What a fill may take, and where it tells how it comes along."""

    size_bytes: int
    progress: Progress | None = None
    stopping: Callable[[], bool] = lambda: False


def estimate_bytes(store: Store, snapshot: Snapshot) -> int:
    """Return about how much memory a dataset would take, from the footers of some of its files.

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
    """Return how many bytes the columns of a file take, as they are stored and before that was compressed."""
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
    """Make the table of a dataset in its database, and return its rows.

    Raises:
        UnsupportedType: DuckDB cannot hold a column or a value.
        FillTooLarge: it takes more than it may.
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
        raise UnsupportedType(f"It holds a value that the hot engine does not take ({_line(error)}).") from error
    finally:
        work.cursor.close()
    return work.rows


class _Work:
    """One fill under way."""

    def __init__(self, engine: Engine, database: str, store: Store, snapshot: Snapshot, allowed: FillLimits) -> None:
        self.cursor: DuckDBPyConnection = engine.cursor()
        self.table = f"{database}.{TABLE}"
        self.rows = 0
        self._engine, self._database, self._allowed = engine, database, allowed
        self._store, self._snapshot = store, snapshot
        self._before = engine.table_bytes()
        self._read = 0

    def base(self, delta: ChangeSet) -> None:
        """Bring in base, without what the first changes hide, and those."""
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
        """Apply further changes."""
        went, came = apply(self.cursor, self.table, delta)
        self.rows += came - went
        self._packed(delta.put.num_rows)

    def _packed(self, rows: int) -> None:
        """Compress what came, and look how much it takes."""
        self.cursor.execute(f"CHECKPOINT {self._database}")
        self._read += rows
        taken = self._engine.table_bytes() - self._before
        if taken > self._allowed.size_bytes or self._allowed.stopping():
            raise FillTooLarge(taken)
        if self._allowed.progress is not None:
            self._allowed.progress(self._read, self._snapshot.base.rows + self._snapshot.unfolded_rows)


def pieces(store: Store, snapshot: Snapshot) -> Iterator[pa.Table]:
    """Yield the rows of base, the user's columns, some at a time."""
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


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0]
