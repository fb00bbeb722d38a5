"""A dataset as a user holds it: write, read, ask, maintain.

Everything here is a thin arrangement of the parts: `changes` writes, `local` and `merge` read, `ingest` loads, and the
maintenance object that `Lake` passes in folds, purges and vacuums. A handle stays usable until its dataset is dropped;
then every call raises Gone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.changes import ChangeWriter
from siltstone.dataset.ingest import Load, Loader
from siltstone.dataset.local import head_table, latest_per_key, merged_table, unfolded_rows
from siltstone.dataset.merge import merged_frame
from siltstone.dataset.registry import Registration
from siltstone.dataset.rows import change_rows, check_keys, to_table
from siltstone.dataset.sources import Format, check_frame, find_source, source_frame
from siltstone.dataset.store import Snapshot, Store
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.model.columns import ACTOR, OP, REASON, SEQ, WRITTEN_AT, Op
from siltstone.model.names import DatasetName
from siltstone.model.results import Ack, CompactReport, DatasetInfo, FoldEstimate, LoadReport, Status, VacuumReport
from siltstone.model.schema import describe, fingerprint
from siltstone.model.spec import as_names
from siltstone.storage.spark_failures import is_missing_file, noticing_absence, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

SNAPSHOT_TRIES: Final = 5
"""A reader that meets a removed file takes a new snapshot; five purges during one read mean something else is wrong."""
CSV_RATIO: Final = 4
"""How much smaller rows are as compressed Parquet than as CSV, for choosing the number of files."""


class Maintenance(Protocol):
    """What keeps a dataset in shape; the compaction layer implements it."""

    def compact(self, store: Store, *, purge: bool) -> CompactReport:
        """Fold the changes into base; with `purge`, delete from disk whatever is no longer part of the dataset."""
        ...

    def estimate(self, store: Store) -> FoldEstimate:
        """Say what a fold would have to do; nothing is changed."""
        ...

    def vacuum(self, store: Store, *, retention_hours: float | None, dry_run: bool) -> VacuumReport:
        """Delete removed files that are older than the retention."""
        ...

    def status(self, store: Store) -> Status:
        """Count what is there."""
        ...


class Dataset:
    """One dataset of a lake."""

    def __init__(
        self,
        registration: Registration,
        store: Store,
        *,
        spark: "Callable[[], SparkSession]",
        maintenance: Maintenance,
    ) -> None:
        """Made by `Lake`; nothing is opened yet."""
        self._registration = registration
        self._store = store
        self._spark = spark
        self._maintenance = maintenance
        self._writer = ChangeWriter(store)
        self._loader = Loader(store, self._writer)

    @property
    def name(self) -> DatasetName:
        """The three-part name."""
        return self._store.name

    @property
    def schema(self) -> pa.Schema:
        """The user's columns."""
        return self._store.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self._store.spec.key

    @property
    def path(self) -> Path:
        """The folder with `base` and `changes`; any Delta reader can read the former."""
        return self._store.path

    def info(self) -> DatasetInfo:
        """Return what this dataset is."""
        found = self._registration
        return DatasetInfo(
            name=str(found.name),
            kind=found.spec.kind.value,
            key=found.spec.key,
            subject=found.spec.subject,
            fingerprint=fingerprint(found.schema),
            incarnation=found.incarnation,
            created_at=found.at.isoformat(timespec="seconds"),
            columns=describe(found.schema),
        )

    # ---- writing -------------------------------------------------------------------------------------------------

    def upsert(self, rows: Any, *, producer: str | None = None, sequence: int | None = None) -> Ack:  # noqa: ANN401
        """Insert or replace whole rows by key, and return when they are durable.

        Args:
            rows: a list of dicts, an Arrow table, a pandas or a Spark frame. Columns that are left out become null.
                If a key appears twice the last one wins.
            producer: with `sequence`, makes the write idempotent: a sequence that was applied is not applied again.
            sequence: the producer's own number of this write; it must grow.

        Raises:
            InvalidRequest: the rows do not fit the dataset. Nothing is written.
            Gone: the dataset was dropped.
        """
        if _is_spark_frame(rows):
            with noticing_absence():
                frame = check_frame(rows, self.schema, dataset=str(self.name))
                return self._loader.upsert_frame(frame, producer=producer, sequence=sequence)
        table = to_table(rows, self.schema, dataset=str(self.name))
        self._check_size(table)
        check_keys(table, self.key, dataset=str(self.name))
        return self._write(table, Op.UPSERT, producer=producer, sequence=sequence)

    def tombstone(
        self,
        keys: Any,  # noqa: ANN401
        *,
        actor: str | None = None,
        reason: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Ack:
        """Hide the rows of these keys at once; the next fold drops them and a purge removes them from disk.

        Args:
            keys: key values; for a composite key tuples or dicts of its columns. Arrow and pandas work too.
            actor: who asked for it, kept with the tombstone until it is folded.
            reason: why, kept with it too.
            producer: see `upsert`.
            sequence: see `upsert`.
        """
        key_schema = pa.schema([self.schema.field(name) for name in self.key])
        table = to_table(self._key_rows(keys), key_schema, dataset=str(self.name))
        self._check_size(table)
        check_keys(table, self.key, dataset=str(self.name))
        return self._write(table, Op.TOMBSTONE, actor=actor, reason=reason, producer=producer, sequence=sequence)

    def _write(
        self,
        table: pa.Table,
        op: Op,
        *,
        producer: str | None,
        sequence: int | None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Ack:
        batch_id = self._store.clock.new_id()
        rows = change_rows(
            table,
            op=op,
            schema=self._store.change_schema,
            batch_id=batch_id,
            written_at=self._store.clock.now(),
            actor=actor,
            reason=reason,
        )
        return self._writer.write(rows, batch_id=batch_id, producer=producer, sequence=sequence)

    def _check_size(self, table: pa.Table) -> None:
        if not table.num_rows:
            raise InvalidRequest(f"Dataset {self.name}: the batch is empty; nothing was written.")
        if table.num_rows > self._store.settings.upsert_rows:
            raise InvalidRequest(
                f"Dataset {self.name}: {table.num_rows} rows are too many for one call ({self._store.settings.upsert_rows}). "
                "Pass a Spark frame or use ingest."
            )

    def _key_rows(self, keys: Any) -> Any:  # noqa: ANN401
        if isinstance(keys, str | bytes) or not isinstance(keys, Sequence):
            if isinstance(keys, pa.Table) or hasattr(keys, "iloc"):
                return keys
            raise InvalidRequest(f"Dataset {self.name}: pass the keys as a list, not as {type(keys).__name__}.")
        return [self._key_row(item) for item in keys]

    def _key_row(self, item: Any) -> dict[str, Any]:  # noqa: ANN401
        if isinstance(item, dict):
            return item
        values = item if isinstance(item, tuple | list) else (item,)
        if len(values) != len(self.key):
            raise InvalidRequest(
                f"Dataset {self.name}: a key has {len(self.key)} values ({', '.join(self.key)}), not {item!r}."
            )
        return dict(zip(self.key, values, strict=True))

    def ingest(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        format: str | None = None,  # noqa: A002
        order_by: str | Sequence[str] | None = None,
    ) -> LoadReport:
        """Load files on Spark: straight to base while the dataset is empty, as one change batch otherwise.

        Args:
            paths: files, folders or globs of Parquet or CSV files (CSV with a header line).
            format: ``parquet`` or ``csv``, if the names do not tell.
            order_by: which of several rows with one key wins: the last by these columns. Without it such a load is
                refused.

        Raises:
            NotFound: nothing is at the path.
            InvalidRequest: a file cannot be read or does not fit. Nothing is loaded.
        """
        source = find_source(paths, format_name=format)
        order = as_names(order_by)
        for column in order:
            if column not in self.schema.names:
                raise InvalidRequest(
                    f"Dataset {self.name}: column {column!r}, which is to order the rows, is not in the schema."
                )
        self._store.snapshot()  # a dropped dataset is Gone before Spark starts
        size = source.size_bytes // (CSV_RATIO if source.format is Format.CSV else 1)
        with noticing_absence():
            frame = source_frame(self._spark, source, self.schema, dataset=str(self.name))
            return self._loader.load(Load(frame=frame, size_bytes=size, rows=source.rows(), order_by=order))

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, *, raw: bool = False, once: bool = False) -> "DataFrame":
        """Return the merged view as a Spark frame, pinned to this moment.

        With `raw`: base plus unfolded upserts, tombstones not applied. With `once`, nothing is worked out for later reads.
        """
        return self._with_snapshot(lambda snapshot: self.read_at(snapshot, raw=raw, once=once))

    def snapshot(self) -> Snapshot:
        """Pin this moment, for several frames of `read_at` that must agree."""
        return self._store.snapshot()

    def read_at(self, snapshot: Snapshot, *, raw: bool = False, once: bool = False) -> "DataFrame":
        """Return the frame of `read` for a snapshot that was taken before; its files may be gone by the time it is used."""
        with noticing_absence():
            return merged_frame(self._spark(), self._store, snapshot, raw=raw, once=once)

    def to_arrow(self, *, raw: bool = False) -> pa.Table:
        """Return the rows of `read` as an Arrow table, without Spark."""
        return self._with_snapshot(lambda snapshot: merged_table(self._store, snapshot, raw=raw))

    def head(self, rows: int = 10, *, raw: bool = False) -> pa.Table:
        """Return the first rows of `to_arrow`, reading little more than those.

        Raises:
            InvalidRequest: the number of rows is negative.
        """
        if rows < 0:
            raise InvalidRequest(f"Dataset {self.name}: the number of rows must not be negative, it is {rows}.")
        return self._with_snapshot(lambda snapshot: head_table(self._store, snapshot, rows, raw=raw))

    def tombstones(self) -> list[dict[str, Any]]:
        """Return the tombstones that hide a row now and are not yet folded: key, actor, reason, time, sequence."""
        columns = [*self.key, WRITTEN_AT, ACTOR, REASON]

        def listed(snapshot: Snapshot) -> list[dict[str, Any]]:
            latest = latest_per_key(unfolded_rows(self._store, snapshot, columns=columns), self.key)
            hidden = latest.filter(pc.equal(latest.column(OP), Op.TOMBSTONE.value))
            names = {WRITTEN_AT: "deleted_at", ACTOR: "actor", REASON: "reason", SEQ: "sequence"}
            rows = hidden.select([*columns, SEQ]).rename_columns([names.get(n, n) for n in [*columns, SEQ]])
            return list(rows.to_pylist())

        return self._with_snapshot(listed)

    def _with_snapshot(self, use: Callable[[Snapshot], T]) -> T:
        """Use a snapshot; if a file or version it needs is gone, take a new one: never a guess."""
        failure: Exception | None = None
        for _ in range(SNAPSHOT_TRIES):
            snapshot = self._store.snapshot()
            try:
                return use(snapshot)
            except FileNotFoundError as error:
                failure = error
            except Exception as error:
                if not _is_spark_error(error) or not is_missing_file(error):
                    raise
                failure = error
        raise Unavailable(f"Dataset {self.name}: files kept disappearing while it was read. Try again.") from failure

    # ---- maintenance ---------------------------------------------------------------------------------------------

    def compact(self, *, purge: bool = False) -> CompactReport:
        """Fold the changes into base; with `purge`, also delete from disk what is no longer part of the dataset."""
        return self._maintenance.compact(self._store, purge=purge)

    def compact_estimate(self) -> FoldEstimate:
        """Return what `compact` would have to do now; nothing is changed and Spark is not started."""
        return self._maintenance.estimate(self._store)

    def vacuum(self, *, retention_hours: float | None = None, dry_run: bool = False) -> VacuumReport:
        """Delete files that were removed longer ago than the retention (at least one hour)."""
        return self._maintenance.vacuum(self._store, retention_hours=retention_hours, dry_run=dry_run)

    def status(self) -> Status:
        """Return how the dataset stands: rows, files, bytes, backlog."""
        return self._maintenance.status(self._store)


def _is_spark_frame(rows: Any) -> bool:  # noqa: ANN401
    return type(rows).__module__.startswith("pyspark.sql") and type(rows).__name__ == "DataFrame"


def _is_spark_error(error: Exception) -> bool:
    return type(error).__module__.startswith(("pyspark", "py4j")) and isinstance(error, spark_errors())
