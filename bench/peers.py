"""The contenders: Siltstone, delta-rs' merge, and Spark's MERGE with and without deletion vectors.

Each gets the same Arrow rows. What a contender needs before it can start (a temporary view for Spark, an open handle for
delta-rs) is made in `prepare`, outside the clock: that favours the peers.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from bench.data import KEY, SCHEMA, Stage, open_dataset
from siltstone import Lake
from siltstone.dataset.dataset import Dataset

SILTSTONE: Final = "siltstone"
SILTSTONE_FSYNC: Final = "siltstone, fsync"
DELTA_RS: Final = "delta-rs merge"
MERGE: Final = "Spark MERGE"
MERGE_VECTORS: Final = "Spark MERGE, deletion vectors"
_VIEW: Final = "bench_source"


class Contender(Protocol):
    """One way to upsert."""

    name: str
    uses_jvm: bool

    def prepare(self, rows: pa.Table) -> None:
        """Take the rows of the next upsert."""
        ...

    def upsert(self) -> None:
        """Write them; return when the write is acknowledged."""
        ...

    def close(self) -> None:
        """Close everything and remove the copy."""
        ...


@dataclass(kw_only=True)
class Siltstone:
    """`Dataset.upsert`."""

    stage: Stage
    path: Path
    durable: bool
    uses_jvm: bool = False
    _rows: pa.Table = field(init=False)
    _lake: Lake = field(init=False)
    _dataset: Dataset = field(init=False)

    def __post_init__(self) -> None:
        self.name = SILTSTONE_FSYNC if self.durable else SILTSTONE
        self._lake, self._dataset = open_dataset(self.stage, self.path, durable=self.durable)

    def prepare(self, rows: pa.Table) -> None:
        """Take the rows."""
        self._rows = rows

    def upsert(self) -> None:
        """Write them."""
        self._dataset.upsert(self._rows)

    def close(self) -> None:
        """Close the lake."""
        self._lake.close()
        self.stage.discard(self.path)


@dataclass(kw_only=True)
class DeltaRs:
    """`DeltaTable.merge` on an open handle."""

    stage: Stage
    path: Path
    name: str = DELTA_RS
    uses_jvm: bool = False
    _rows: pa.Table = field(init=False)
    _table: DeltaTable = field(init=False)

    def __post_init__(self) -> None:
        self._table = DeltaTable(self.path)

    def prepare(self, rows: pa.Table) -> None:
        """Take the rows."""
        self._rows = rows

    def upsert(self) -> None:
        """Merge them."""
        merger: Any = self._table.merge(self._rows, predicate=f"t.{KEY} = s.{KEY}", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def close(self) -> None:
        """Remove the copy."""
        self.stage.discard(self.path)


@dataclass(kw_only=True)
class SparkMerge:
    """`MERGE INTO` on Spark, by path."""

    stage: Stage
    path: Path
    name: str = MERGE
    uses_jvm: bool = True

    def prepare(self, rows: pa.Table) -> None:
        """Make the rows a view."""
        self.stage.spark.createDataFrame(rows).createOrReplaceTempView(_VIEW)

    def prepare_file(self, path: Path) -> None:
        """Make a Parquet file the view, for many rows."""
        self.stage.spark.read.parquet(str(path)).createOrReplaceTempView(_VIEW)

    def upsert(self) -> None:
        """Merge them."""
        self.stage.spark.sql(
            f"MERGE INTO delta.`{self.path}` t USING {_VIEW} s ON t.{KEY} = s.{KEY} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def upsert_and_delete(self) -> None:
        """Merge rows whose ``_op`` is upsert or delete."""
        names = SCHEMA.names
        assigned = ", ".join(f"{name} = s.{name}" for name in names)
        values = ", ".join(f"s.{name}" for name in names)
        self.stage.spark.sql(
            f"MERGE INTO delta.`{self.path}` t USING {_VIEW} s ON t.{KEY} = s.{KEY} "
            f"WHEN MATCHED AND s._op = 'D' THEN DELETE WHEN MATCHED THEN UPDATE SET {assigned} "
            f"WHEN NOT MATCHED AND s._op = 'U' THEN INSERT ({', '.join(names)}) VALUES ({values})"
        )

    def close(self) -> None:
        """Remove the copy."""
        self.stage.discard(self.path)


def all_contenders(stage: Stage, rows: int) -> list[Contender]:
    """Return all contenders, each on its own copy of the same rows."""
    return [
        Siltstone(stage=stage, path=stage.copy(stage.lake(rows), "ours"), durable=False),
        Siltstone(stage=stage, path=stage.copy(stage.lake(rows), "ours-fsync"), durable=True),
        DeltaRs(stage=stage, path=stage.copy(stage.plain(rows, deletion_vectors=False), "delta-rs")),
        SparkMerge(stage=stage, path=stage.copy(stage.plain(rows, deletion_vectors=False), "merge")),
        SparkMerge(
            stage=stage,
            path=stage.copy(stage.plain(rows, deletion_vectors=True), "merge-vectors"),
            name=MERGE_VECTORS,
        ),
    ]
