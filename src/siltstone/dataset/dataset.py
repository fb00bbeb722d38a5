"""The user's handle of a dataset: write, read, query, maintain.

This is a thin facade: `write` writes, `read` reads, `load` loads. The maintenance object that `Lake` passes in folds,
purges and vacuums (`ports`). Modules of loads are imported on use, because most commands load nothing. A handle stays
usable until its dataset is dropped. Then every call raises Gone.
"""

import datetime
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from siltstone.dataset.description import columns_html, info_of, kind_text
from siltstone.dataset.history import history
from siltstone.dataset.load.latest_row import check_order, order_rows
from siltstone.dataset.ports import Conditions, Maintenance
from siltstone.dataset.read.change_feed import change_frame, change_table, changes_since
from siltstone.dataset.read.export import check_export, export_snapshot
from siltstone.dataset.read.merged_view import (
    condition_errors,
    view_columns,
    view_count,
    view_frame,
    view_head,
    view_table,
    view_tombstones,
)
from siltstone.dataset.read.point_lookup import check_key_count, current_rows
from siltstone.dataset.read.retry import damaged_file, with_snapshot
from siltstone.dataset.read.time_travel import snapshot_at
from siltstone.dataset.registry import Registration
from siltstone.dataset.schema_changes import alter
from siltstone.dataset.schema_compat import all_fit, check_frame
from siltstone.dataset.snapshot import Snapshot, files_vanished
from siltstone.dataset.store import Store
from siltstone.dataset.tiers import change_tiers, dataset_tiers
from siltstone.dataset.write.buffered_producer import Limits, Producer
from siltstone.dataset.write.change_writer import ChangeWriter, check_producer
from siltstone.dataset.write.log_rows import MAX_REFUSED_ROWS, OnBadRow, append_ack, write_appends
from siltstone.dataset.write.partial_update import update_rows
from siltstone.dataset.write.row_conversion import check_batch, check_keys, key_table, to_table
from siltstone.dataset.write.tombstones import TombstoneRequest, record_tombstone, write_matching, write_tombstones
from siltstone.errors import Gone, InvalidRequest, SiltstoneError
from siltstone.model.columns import Op
from siltstone.model.ddl import as_schema, as_type
from siltstone.model.evolution import Alteration
from siltstone.model.frames import polars_frame
from siltstone.model.names import DatasetName
from siltstone.model.numbers import whole_number
from siltstone.model.reports import (
    Ack,
    AlterReport,
    AppendAck,
    ClusterEstimate,
    CompactReport,
    DatasetInfo,
    ExportReport,
    FoldEstimate,
    HistoryEntry,
    LoadReport,
    RollUpReport,
    SquashReport,
    Status,
    TombstoneAck,
    VacuumReport,
)
from siltstone.model.roles import check_may_compact, check_may_write
from siltstone.model.spec import Kind, Spec, as_names
from siltstone.model.tiers import Changes, Tier
from siltstone.spark.errors import noticing_absence

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from siltstone.dataset.load.file_ingest import FileIngest
    from siltstone.dataset.load.loader import Loader

T = TypeVar("T")
At = int | str | datetime.datetime
"""A point in a dataset's history: a sequence, or a time."""


@dataclass(frozen=True)
class _Parts:
    """Components of a dataset that are valid while its columns stay the same."""

    store: Store
    writer: ChangeWriter

    @classmethod
    def of(cls, store: Store) -> "_Parts":
        return cls(store, ChangeWriter(store))

    @cached_property
    def loader(self) -> "Loader":
        from siltstone.dataset.load.loader import Loader  # most commands load nothing: their start stays short

        return Loader(self.store, self.writer)

    def ingest(self, spark: "Callable[[], SparkSession]") -> "FileIngest":
        from siltstone.dataset.load.file_ingest import FileIngest

        return FileIngest(self.store, self.loader, spark)


class Dataset:
    """One dataset of a lake."""

    def __init__(
        self,
        registration: Registration,
        store: Store,
        *,
        spark: "Callable[[], SparkSession]",
        maintenance: Callable[[], Maintenance],
        conditions: Callable[[], Conditions],
    ) -> None:
        """Created by `Lake`; nothing is opened yet."""
        self._registration = registration
        self._spark = spark
        self._maintenance = maintenance
        self._conditions = conditions
        self._mutex = threading.Lock()
        self._parts = _Parts.of(store)

    def _now(self) -> "_Parts":
        """Return the components for the dataset's current columns; raise Gone if it was dropped."""
        parts = self._parts
        store = parts.store.current()
        if store is parts.store:
            return parts
        with self._mutex:
            if self._parts is parts:
                self._parts = _Parts.of(store)
            return self._parts

    @property
    def _store(self) -> Store:
        return self._now().store

    def __repr__(self) -> str:
        return f"<Dataset {self.name}, {kind_text(self.spec)}>"

    def _repr_html_(self) -> str:
        try:
            schema = self.schema
        except (SiltstoneError, OSError) as error:
            return columns_html(pa.schema([]), caption=f"Dataset {self.name}: {error}")
        return columns_html(schema, caption=f"Dataset {self.name}, {kind_text(self.spec)}")

    @property
    def registration(self) -> Registration:
        """The row of the registry that this handle was opened with."""
        return self._registration

    @property
    def name(self) -> DatasetName:
        """The three-part name."""
        return self._registration.name

    @property
    def schema(self) -> pa.Schema:
        """The user's current columns."""
        return self._store.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self._registration.spec.key

    @property
    def spec(self) -> Spec:
        """The specification from `create`: the kind, the key or the time, the subject."""
        return self._registration.spec

    def _may_write(self, what: str) -> None:
        check_may_write(self._parts.store.settings.role, doing=f"{what} dataset {self.name}")

    def _may_compact(self, what: str) -> None:
        check_may_compact(self._parts.store.settings.role, doing=f"{what} dataset {self.name}")

    def _require(self, kind: Kind, what: str, instead: str) -> None:
        if self.spec.kind is not kind:
            raise InvalidRequest(f"Dataset {self.name} is a {self.spec.kind} dataset and has no {what}. {instead}")

    def require_key(self) -> None:
        """Raise InvalidRequest if the dataset is a log."""
        self._require(Kind.KEYED, "key to get rows by", "Filter read() or to_arrow(), or query with sql.")

    @property
    def path(self) -> Path:
        """The folder with `base` and `changes`. Any Delta reader can read `base`."""
        return self._parts.store.path

    def info(self) -> DatasetInfo:
        """Return a description of this dataset."""
        return info_of(self._registration, self.schema)

    def upsert(
        self,
        rows: Any,  # noqa: ANN401
        *,
        order_by: str | Sequence[str] | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Ack:
        """Insert or replace whole rows by key, and return when they are durable.

        Args:
            rows: a list of dicts, an Arrow table, a pandas or a Spark frame. Columns that are left out become null.
                If a key appears twice the last one wins. A Spark frame has no order, so there it is rejected. Any
                number of rows is one commit.
            order_by: of several rows with one key the last by these columns wins, null first. Rows of a Spark frame
                that are equal in them, and differ elsewhere, are rejected. Of other rows the last one wins.
            producer: with `sequence`, makes the write idempotent: a sequence that was applied is not applied again.
            sequence: the producer's own number of this write. The first may be any number. Each later one is one more
                than the last. A repeat of the last returns its first acknowledgement; every other number is rejected.

        Raises:
            InvalidRequest: the rows do not fit the dataset. Nothing is written.
        """
        self._may_write("upsert into")
        self._require(Kind.KEYED, "upsert", "Append to it (append, silt append).")
        parts = self._now()
        order = as_names(order_by)
        if _is_spark_frame(rows):
            return self._write_frame(parts, rows, producer=producer, sequence=sequence, order_by=order)
        table = to_table(rows, parts.store.schema, dataset=str(self.name))
        if order:
            check_order(parts.store, order)
            table = order_rows(table, order)
        check_batch(table, self.key, dataset=str(self.name))
        return parts.writer.write_rows(table, Op.UPSERT, producer=producer, sequence=sequence)

    def _write_frame(
        self,
        parts: _Parts,
        rows: Any,  # noqa: ANN401
        *,
        producer: str | None,
        sequence: int | None,
        order_by: tuple[str, ...] = (),
    ) -> Ack:
        with noticing_absence():
            frame = check_frame(rows, parts.store.schema, dataset=str(self.name))
            return parts.loader.write_frame(frame, producer=producer, sequence=sequence, order_by=order_by)

    def update(
        self,
        rows: Any,  # noqa: ANN401
        *,
        missing: str = "error",
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Ack:
        """Change some columns of rows by key, and return when that is durable. Other columns keep their values.

        Concurrent updates of one row never lose each other's columns. A row that was changed since it was read is read
        again.

        Args:
            rows: a list of dicts, an Arrow table, a pandas or Polars frame. They have the key and the columns to
                change. Each dict may name other columns; None sets a column to null. Of a repeated key the later rows
                change the earlier ones.
            missing: ``error`` rejects a key without a row, ``insert`` writes a new row for it.
            producer: see `upsert`.
            sequence: see `upsert`.

        Raises:
            InvalidRequest: the rows do not fit, or there are too many keys. Nothing is written.
            NotFound: a key has no row. Nothing is written.
            Conflict: other writers kept changing the rows. Nothing is written.
        """
        self._may_write("update")
        self._require(Kind.KEYED, "rows to update", "Append to it (append, silt append).")
        check_producer(producer, sequence)
        if _is_spark_frame(rows):
            raise InvalidRequest(f"Dataset {self.name}: update takes rows of this process. Join read() and use upsert.")
        return update_rows(lambda: self._now().writer, rows, missing=missing, producer=producer, sequence=sequence)

    def append(
        self,
        rows: Any,  # noqa: ANN401
        *,
        producer: str | None = None,
        sequence: int | None = None,
        on_bad_row: str = "reject-batch",
    ) -> AppendAck:
        """Append rows to a log, and return when they are durable.

        Args:
            rows: a list of dicts, an Arrow table, a pandas or a Spark frame. Columns that are left out become null.
            producer: see `upsert`.
            sequence: see `upsert`.
            on_bad_row: ``reject-batch`` rejects the whole batch, ``skip`` only the bad row. The acknowledgement then names
                the rejected rows; the others are written. Not for Spark frames.

        Raises:
            InvalidRequest: the rows do not fit the dataset. Nothing is written.
        """
        self._may_write("append to")
        self._require(Kind.LOG, "append", "Upsert into it (upsert, silt upsert).")
        if on_bad_row not in tuple(OnBadRow):
            raise InvalidRequest(f"on_bad_row is one of {', '.join(OnBadRow)}, not {on_bad_row!r}.")
        check_producer(producer, sequence)
        parts = self._now()
        if not _is_spark_frame(rows):
            at_most = MAX_REFUSED_ROWS if on_bad_row == OnBadRow.SKIP else 0
            return write_appends(parts.writer, rows, at_most=at_most, producer=producer, sequence=sequence)
        if on_bad_row == OnBadRow.SKIP:
            raise InvalidRequest(f"Dataset {self.name}: a Spark frame is appended whole. Use ingest with a quarantine.")
        return append_ack(self._write_frame(parts, rows, producer=producer, sequence=sequence))

    def producer(self, *, rows: int = 10_000, seconds: float = 60.0, bytes: int = 8 * 1024 * 1024) -> Producer:  # noqa: A002
        """Return a buffered producer that appends rows to this log in batches; use it in a ``with`` block.

        Args:
            rows: a batch is written when this many rows wait,
            seconds: or the oldest of them has waited this many seconds,
            bytes: or they take about this many bytes.

        Raises:
            InvalidRequest: the dataset is not a log, or a limit is not positive.
        """
        self._may_write("append to")
        self._require(Kind.LOG, "producer", "Upsert into it (upsert, silt upsert).")
        limits = Limits(rows=rows, seconds=seconds, size_bytes=bytes)
        limits.check(str(self.name))
        clock = self._parts.store.clock
        return Producer(lambda parcels: write_appends(self._now().writer, parcels, at_most=None), limits, clock=clock)

    def tombstone(
        self,
        keys: Any = None,  # noqa: ANN401
        *,
        where: str | None = None,
        actor: str | None = None,
        reason: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> TombstoneAck:
        """Hide the rows of these keys at once. The next fold drops them and a purge removes them from disk.

        A log hides by subject: all rows with these values that were appended before, and none that are appended later.

        With an actor or a reason an audit record is written. It holds both, the time, the sequence and the numbers of
        keys and rows, but no key. It outlives fold and purge, and `history` shows it.

        Args:
            keys: key values; for a composite key tuples or dicts of its columns. Arrow and pandas work too. For a log
                values of its subject column, or dicts that name one or more of its subject columns. All of them must
                match.
            where: instead of keys, a condition in Spark SQL. Spark finds the keys of the rows that match now, and only
                these keys are written. The condition itself is not stored. If no row matches, nothing is written. A row
                that is changed meanwhile is checked again.
            actor: who requested it. Do not name a person whose rows are hidden.
            reason: why. Do not name such a person here either.
            producer: see `upsert`.
            sequence: see `upsert`.
        """
        self._may_write("hide rows of")
        if (keys is None) == (where is None):
            raise InvalidRequest(f"Dataset {self.name}: name the keys or a condition (where), one of the two.")
        check_producer(producer, sequence)
        if not all_fit([actor, reason], pa.string()):
            raise InvalidRequest(f"Dataset {self.name}: actor and reason must be text in UTF-8.")
        request = TombstoneRequest(actor=actor, reason=reason, producer=producer, sequence=sequence)
        if where is not None:
            ack = self._tombstone_matching(where, request)
        else:
            ack = write_tombstones(self._now().writer, lambda: self._store, keys, request)
        record_tombstone(self._parts.store, ack, request)
        return ack

    def _tombstone_matching(self, where: str, request: TombstoneRequest) -> TombstoneAck:
        self._require(Kind.KEYED, "key to find by a condition", "Name values of its subject columns.")

        def hide(snapshot: Snapshot) -> Ack:
            with condition_errors(self._parts.store):
                keys = self._matching(where, snapshot).select(*self.key)
                return self._now().loader.tombstone_frame(keys, request=request, planned_at=snapshot.sequence)

        return write_matching(self._parts.store, lambda: self._with_snapshot(hide))

    def key_table(self, keys: Any) -> pa.Table:  # noqa: ANN401
        """Return keys in the dataset's types, one row for each; raise InvalidRequest for a key that does not fit."""
        return self._checked_keys(keys, self.schema)

    def _checked_keys(self, keys: Any, schema: pa.Schema) -> pa.Table:  # noqa: ANN401
        table = key_table(keys, schema, self.key, dataset=str(self.name))
        check_keys(table, self.key, dataset=str(self.name))
        return table

    def ingest(  # noqa: PLR0913  # one parameter for each way to load
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        format: str | None = None,  # noqa: A002
        order_by: str | Sequence[str] | None = None,
        quarantine: str | Path | None = None,
        reload: bool = False,
        delimiter: str | None = None,
        quote: str | None = None,
        encoding: str | None = None,
        header: bool | None = None,
        null_text: str | Sequence[str] | None = None,
        date_format: str | None = None,
        timestamp_format: str | None = None,
        decimal_comma: bool | None = None,
    ) -> LoadReport:
        """Load files on Spark: straight to base while the dataset is empty, as one change batch otherwise.

        Once files were loaded into a log as changes, all its loads are change batches.
        Files that were loaded before, by the SHA-256 of their bytes, are left out.

        Args:
            paths: files, folders or globs of Parquet, CSV, JSON or NDJSON files, text also as ``.gz`` or
                ``.bz2``. Folders named ``column=value`` above a file are columns.
            format: ``parquet``, ``csv``, ``json`` or ``ndjson``, if the file names do not show it.
            order_by: of several rows with one key the last by these columns wins. Without it such a load is rejected.
                Not for logs, which keep them all.
            quarantine: a folder for bad files and rows; the good ones are loaded. Without it a bad one rejects the
                load.
            reload: also load files that were loaded before; nothing is hashed then.
            delimiter: of CSV files, the character between fields; default: a comma.
            quote: the character around fields; default: the double quote. Empty: quotes have no meaning.
            encoding: the encoding of text, by Python's name; default: ``utf-8``.
            header: whether the first line names the columns; default: yes. Without it fields are the dataset's columns
                in order.
            null_text: the field, or fields, that are null; default: the empty one.
            date_format: the form of dates as `strptime` has it, ``%d.%m.%Y``; default: ISO 8601.
            timestamp_format: the form of times, ``%d.%m.%Y %H:%M:%S``; default: ISO 8601.
            decimal_comma: numbers have a comma instead of a point; default: no.

        Raises:
            NotFound: nothing is at the path.
            InvalidRequest: a file cannot be read or does not fit, or an option is not valid. Nothing is loaded.
        """
        self._may_write("load into")
        from siltstone.dataset.load.csv_options import csv_form
        from siltstone.dataset.load.source_files import IngestRequest

        form = csv_form(
            delimiter=delimiter,
            quote=quote,
            encoding=encoding,
            header=header,
            null_text=null_text,
            date_format=date_format,
            timestamp_format=timestamp_format,
            decimal_comma=decimal_comma,
        )
        parts = self._now()  # a dropped dataset is Gone before Spark starts
        request = IngestRequest(
            paths=(paths,) if isinstance(paths, str | Path) else tuple(paths),
            format_name=format,
            order_by=as_names(order_by),
            quarantine=quarantine,
            reload=reload,
            form=form,
        )
        with noticing_absence():
            return parts.ingest(self._spark).load_files(request)

    def ingest_jdbc(  # noqa: PLR0913  # one parameter for each thing to say about a database
        self,
        url: str,
        *,
        table: str | None = None,
        query: str | None = None,
        user: str | None = None,
        password: str | None = None,
        partition_column: str | None = None,
        lower: Any = None,  # noqa: ANN401
        upper: Any = None,  # noqa: ANN401
        partitions: int | None = None,
        order_by: str | Sequence[str] | None = None,
        quarantine: str | Path | None = None,
    ) -> LoadReport:
        """Load a database table or a query result on Spark, as `ingest` loads files. Repeated loads are not detected.

        Args:
            url: the database's address, ``jdbc:postgresql://host:5432/name``, without user and password.
            table: the table to read, or
            query: the query whose result to read.
            user: the database user.
            password: the user's password; it appears in no error and in no log.
            partition_column: a column of numbers, dates or times by which the rows are read in parallel.
            lower: the lowest value of that column, with
            upper: the highest one; default: the database is queried for both. Rows outside are read, too.
            partitions: the number of parallel parts; default: 8.
            order_by: see `ingest`.
            quarantine: see `ingest`.

        Raises:
            InvalidRequest: columns or rows do not fit, or the database refuses. Nothing is loaded.
            Unavailable: the database is out of reach, or Spark has no driver for it.
        """
        self._may_write("load into")
        from siltstone.dataset.load.jdbc import JdbcSource

        source = JdbcSource(
            url=url,
            table=table,
            query=query,
            user=user,
            password=password,
            partition_column=partition_column,
            lower=lower,
            upper=upper,
            partitions=partitions,
        )
        parts = self._now()
        with noticing_absence():
            return parts.ingest(self._spark).load_jdbc(source, order_by=as_names(order_by), quarantine=quarantine)

    def read(self, *, raw: bool = False, once: bool = False, at: At | None = None) -> "DataFrame":
        """Return the merged view as a Spark frame, pinned to the current snapshot, or to an earlier one with `at`.

        Args:
            raw: base plus unfolded upserts, tombstones not applied.
            once: cache nothing for later reads.
            at: a sequence, a time with its zone, or either as text. See docs/guarantees.md for the retention.

        Raises:
            NotFound: that point never existed or is no longer retained; the message lists what can be read.
        """
        return self._with_snapshot(lambda snapshot: self.read_at(snapshot, raw=raw, once=once), at=at)

    def _matching(self, where: str, snapshot: Snapshot) -> "DataFrame":
        condition = self._conditions().for_spark(where, self.schema.names)
        return self.read_at(snapshot, once=True).where(condition)

    def count_matching(self, where: str) -> int:
        """Return the number of rows that match a condition now, on Spark; raise InvalidRequest if it is not valid."""

        def count(snapshot: Snapshot) -> int:
            with condition_errors(self._parts.store):
                return self._matching(where, snapshot).count()

        return self._with_snapshot(count)

    def snapshot(self, at: At | None = None) -> Snapshot:
        """Pin the current or an earlier snapshot, for several frames of `read_at` that must agree."""
        return snapshot_at(self._store, at)

    def read_at(
        self, snapshot: Snapshot, *, raw: bool = False, once: bool = False, session: "SparkSession | None" = None
    ) -> "DataFrame":
        """Return the frame of `read` for an earlier snapshot. Its files may be gone by the time the frame is used."""
        with noticing_absence():
            return view_frame(session or self._spark(), self._store, snapshot, raw=raw, once=once)

    def to_arrow(
        self,
        *,
        columns: str | Sequence[str] | None = None,
        where: str | None = None,
        raw: bool = False,
        at: At | None = None,
    ) -> pa.Table:
        """Return the rows of `read` as an Arrow table, without Spark.

        Args:
            columns: the columns to return, in this order (default: all). Others are not read.
            where: a condition on one row in Spark SQL, with the functions that `sql` supports. It filters the merged
                rows.
            raw: do not apply tombstones.
            at: an earlier point, as for `read`.

        Raises:
            InvalidRequest: a column does not exist, or the condition is not valid or needs Spark; then filter `read()`.
        """
        store = self._store
        names = view_columns(store, columns)
        compared = [] if where is None else self._conditions().columns(where, store.schema)
        needed = list(dict.fromkeys([*names, *compared]))
        rows = self._with_snapshot(lambda snapshot: view_table(store, snapshot, raw=raw, columns=needed), at=at)
        return rows if where is None else self._conditions().rows(rows, where).select(names)

    def to_pandas(
        self, *, columns: str | Sequence[str] | None = None, where: str | None = None, at: At | None = None
    ) -> "pd.DataFrame":
        """Return the rows of `to_arrow` as a pandas frame, all of them."""
        return self.to_arrow(columns=columns, where=where, at=at).to_pandas()

    def to_polars(
        self, *, columns: str | Sequence[str] | None = None, where: str | None = None, at: At | None = None
    ) -> "pl.DataFrame":
        """Return the rows of `to_arrow` as a Polars frame, all of them; raise InvalidRequest if there is no Polars."""
        return polars_frame(self.to_arrow(columns=columns, where=where, at=at))

    def count(self, *, where: str | None = None, at: At | None = None) -> int:
        """Return the number of rows, or of rows that match a condition, without Spark (`count_matching`: on Spark)."""
        if where is not None:
            columns = self._conditions().columns(where, self.schema)
            return int(self.to_arrow(columns=columns, where=where, at=at).num_rows)
        return self._with_snapshot(lambda snapshot: view_count(self._store, snapshot), at=at)

    def head(self, rows: int = 10, *, raw: bool = False, at: At | None = None) -> pa.Table:
        """Return the first rows of `to_arrow`, reading little more than these."""
        rows = whole_number(f"Dataset {self.name}: rows", rows)
        return self._with_snapshot(lambda snapshot: view_head(self._store, snapshot, rows, raw=raw), at=at)

    def get(self, keys: Any, *, columns: Sequence[str] | None = None, raw: bool = False) -> pa.Table:  # noqa: ANN401
        """Return the rows of these keys, without Spark, reading little more than these.

        Args:
            keys: key values; for a composite key tuples or dicts of its columns. Arrow and pandas work too.
            columns: the columns to return, in this order; default: all.
            raw: do not apply tombstones.

        Returns:
            The rows that were found, in the order of the keys: a repeated key once, an unknown one not at all.

        Raises:
            InvalidRequest: a key or a column does not fit the dataset, or there are too many keys.
        """
        self.require_key()
        try:
            store = self._store
            names = view_columns(store, columns)
            table = self._checked_keys(keys, store.schema)
            check_key_count(store, table.num_rows)
            return current_rows(store, lambda: self._store, table, columns=names, raw=raw)[1]
        except Gone:
            self._parts.store.forget()
            raise

    def tombstones(self) -> list[dict[str, Any]]:
        """Return the unfolded tombstones that hide a row now: key or subject, actor, reason, time, sequence."""
        return self._with_snapshot(lambda snapshot: view_tombstones(self._store, snapshot))

    def changes(self, *, since: int = 0) -> "DataFrame":
        """Return every change above a sequence as a Spark frame, in no order.

        Columns: the user's, ``_op`` (U upsert, A append, D tombstone), ``_pos``, ``_batch_id``, ``_written_at``,
        ``_actor``, ``_reason``, ``_seq``. Apply them in the order of (``_seq``, ``_pos``).

        Raises:
            NotFound: changes above it are no longer retained; the message names the first sequence that is.
        """
        return self._with_changes(since, lambda snapshot: change_frame(self._spark(), self._store, snapshot))

    def changes_to_arrow(self, *, since: int = 0, limit: int | None = None) -> pa.Table:
        """Return the rows of `changes` as an Arrow table, in the order of application, without Spark.

        With a limit, return whole sequences of about `limit` rows, at least one. So the last ``_seq`` is the next
        `since`.
        """
        if limit is not None:
            limit = whole_number(f"Dataset {self.name}: limit", limit, least=1)
        return self._with_changes(since, lambda snapshot: change_table(self._store, snapshot, limit=limit))

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """Return the commits to this dataset that its logs retain, newest first; at most `limit`, if it is given."""
        if limit is not None:
            limit = whole_number(f"Dataset {self.name}: limit", limit, least=1)
        return history(self._parts.store, limit)  # also for a dataset that is rejected: history shows why

    def export(
        self,
        path: str | Path,
        *,
        format: str = "parquet",  # noqa: A002
        at: At | None = None,
        raw: bool = False,
        files: int | None = None,
        overwrite: bool = False,
    ) -> ExportReport:
        """Write the rows of `read` into a folder outside the lake, on Spark: all under that name, or nothing.

        Args:
            path: the folder; it must not exist, or be empty.
            format: ``parquet``, ``csv`` (not with nested or binary columns), or ``delta``, a plain Delta table.
            at: an earlier point, as for `read`.
            raw: do not apply tombstones.
            files: the number of files to write; default: Spark chooses it.
            overwrite: replace an earlier export; a folder with any other content is rejected.

        Raises:
            InvalidRequest: the format or the target is not valid. Nothing is written.
        """
        request = check_export(self._store, path, format_name=format, raw=raw, files=files, overwrite=overwrite)
        return self._with_snapshot(
            lambda snapshot: export_snapshot(self._spark(), self._store, snapshot, request), at=at
        )

    def _with_changes(self, since: object, use: Callable[[Snapshot], T]) -> T:
        return with_snapshot(lambda: self._store, use, take=lambda store: changes_since(store, since))

    def _with_snapshot(self, use: Callable[[Snapshot], T], *, at: At | None = None) -> T:
        return with_snapshot(lambda: self._store, use, take=lambda store: snapshot_at(store, at))

    def files_vanished(self) -> SiltstoneError:
        """Return why files were missing at every try: `Corruption` names a live file that is lost."""
        return files_vanished(self._store)

    def damaged_file(self) -> str | None:
        """Return the first live file that is damaged, by its path below the dataset. Every file is read to its end."""
        return damaged_file(self._store)

    def alter(
        self,
        *,
        add: "pa.Schema | str | Any" = None,  # noqa: ANN401
        widen: Mapping[str, pa.DataType | str] | None = None,
        comments: Mapping[str, str | None] | None = None,
        tags: Mapping[str, Sequence[str]] | None = None,
        defaults: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> AlterReport:
        """Add columns, widen types, and change comments and tags, beside writers and readers. Old files stay unchanged.

        Args:
            add: new columns, in the forms that `create` accepts; they may be null.
            widen: wider types by column: integers to longer ones, ``float`` to ``double``.
            comments: comments by column; None removes a comment.
            tags: tags by column; they replace the column's tags.
            defaults: for added columns, the value in rows older than the column; default: null.
            dry_run: only return what would change.

        Raises:
            InvalidRequest: the change is not possible. Nothing was changed.
        """
        if not dry_run:
            self._may_write("alter")
        alteration = Alteration(
            add=pa.schema([]) if add is None else as_schema(add),
            widen={name: as_type(kind, column=name) for name, kind in (widen or {}).items()},
            comments=comments or {},
            tags=tags or {},
            defaults=defaults or {},
        )
        return alter(self._store, alteration, dry_run=dry_run)

    def compact(self, *, purge: bool = False) -> CompactReport:
        """Fold the changes into base; with `purge`, also delete from disk all that is no longer part of the dataset."""
        self._may_compact("compact")
        return self._maintenance().compact(self._store, purge=purge)

    def squash(self, *, dry_run: bool = False) -> SquashReport:
        """Merge the small files of unfolded changes, without Spark. The dataset's rows do not change.

        Writing processes also do this automatically (setting `squash_files`).

        Raises:
            Conflict: a fold was first; nothing was changed.
        """
        if not dry_run:
            self._may_compact("squash")
        return self._maintenance().squash(self._store, dry_run=dry_run)

    def compact_estimate(self) -> FoldEstimate:
        """Return the estimated work of `compact` now; nothing is changed and Spark is not started."""
        return self._maintenance().estimate(self._store)

    def tiers(self) -> tuple[Tier, ...]:
        """Return the tiers by which the periods of this log are rolled up; empty for a keyed dataset.

        Raises:
            InvalidRequest: the lake's settings and the changes for this dataset contradict each other.
        """
        return dataset_tiers(self._store) if self.spec.is_log else ()

    def set_tiers(self, changes: Changes | str = "", *, reset: bool = False) -> tuple[Tier, ...]:
        """Change tiers for this log alone, on top of the lake's, and return them all.

        Args:
            changes: fields by tier: ``{"daily": {"min_files": 6}}``, or as text: ``daily.min_files=6;
                weekly.enabled=yes``.
            reset: remove earlier changes for this dataset first.

        Raises:
            InvalidRequest: a field or value does not fit, or tiers contradict each other. Nothing was changed.
        """
        self._may_write("change the tiers of")
        return change_tiers(self._store, changes, reset=reset)

    def cluster(self, by: str | Sequence[str] | None = None) -> list[RollUpReport]:
        """Cluster the rows of each period of a log's base by several columns at once (a Z-order), on Spark.

        Afterwards a search by any of the columns opens few files. Rows only move, so the log's content stays the same.
        Periods that are clustered already are skipped. Unfolded changes are not clustered.

        Args:
            by: the columns, four at most; default: those of ``cluster_by`` at `create`.

        Raises:
            InvalidRequest: the dataset is keyed, or a column cannot be ordered by. Nothing was changed.
            Conflict: another compaction was first with some files; periods before them are clustered.
        """
        self._may_compact("cluster")
        return self._maintenance().cluster_all(self._store, by=as_names(by))

    def cluster_estimate(self, by: str | Sequence[str] | None = None) -> ClusterEstimate:
        """Return what `cluster` would rewrite now, and by which columns; nothing is changed and Spark is not started."""
        return self._maintenance().cluster_estimate(self._store, by=as_names(by))

    def vacuum(self, *, retention_hours: float | None = None, dry_run: bool = False) -> VacuumReport:
        """Delete files that were removed longer ago than the retention.

        Default: the setting `base_retention_hours`. The shortest is `vacuum_floor_hours`.
        """
        if not dry_run:
            self._may_compact("vacuum")
        return self._maintenance().vacuum(self._store, retention_hours=retention_hours, dry_run=dry_run)

    def status(self) -> Status:
        """Return the status of the dataset: rows, files, bytes, backlog."""
        return self._maintenance().status(self._store)


def _is_spark_frame(rows: Any) -> bool:  # noqa: ANN401
    return type(rows).__module__.startswith("pyspark.sql") and type(rows).__name__ == "DataFrame"
