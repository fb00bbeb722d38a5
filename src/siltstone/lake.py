"""Lake: the composition root, which builds components and hands them to each other. What keeps it in shape is `keeping`.

`Lake.open` reads and writes nothing; the first `create` lays the lake's folders. Checkpoints and log cleaning run on one
background thread after the acknowledgement; `close` waits for them.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from siltstone.clock import Clock, SystemClock
from siltstone.compaction.operations.dataset_maintenance import Compactor
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset, info_of
from siltstone.dataset.orphan_folders import sweep
from siltstone.dataset.registry import Registration, Registry
from siltstone.dataset.store import Store
from siltstone.dataset.write.idempotency_marks import forget_oldest
from siltstone.delta.background import Background, Tidying
from siltstone.delta.layout import CHANGES, Layout
from siltstone.delta.read_cache import KeptReads
from siltstone.delta.table import Table
from siltstone.delta.table_reader import LogMoved
from siltstone.errors import Corruption, Gone, InvalidRequest, SiltstoneError
from siltstone.keeping.kept import KeptLake
from siltstone.model.names import DatasetName
from siltstone.model.preview import html_table
from siltstone.model.reports import BackupReport, DatasetInfo, RestoreReport
from siltstone.model.roles import check_may_compact, check_may_write, may_compact
from siltstone.model.schema import as_schema
from siltstone.model.spec import as_names, make_spec
from siltstone.model.units import BYTES_PER_MB
from siltstone.spark.progress import Show, Watcher, watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.compaction.execution.report import CycleReport
    from siltstone.compaction.execution.worker_pool import WorkerPool
    from siltstone.dataset.adoption import Adoption, Unregistered
    from siltstone.keeping.repair import Damage, Repairs
    from siltstone.query.cancellation import CancelToken
    from siltstone.query.hot.cache import HotCache
    from siltstone.query.hot.directives import Wishes
    from siltstone.query.result import QueryResult
    from siltstone.query.router import Explanation, Question, Router
    from siltstone.spark.shared_server import ServerRole

SQUASH_LOOK_COMMITS: Final = 8
"""Every so many commits to a dataset's changes, its small files are counted."""
MAX_HTML_DATASETS: Final = 50
"""Datasets of a lake that a notebook shows."""


class Lake(KeptLake):
    """A lake: create, open, list and drop datasets, and query them."""

    def __init__(self, layout: Layout, *, settings: Settings, clock: Clock, spark: "SparkSession | None") -> None:
        """Use `Lake.open`."""
        self.settings = settings
        self._process = os.getpid()
        self._layout = layout
        self._clock = clock
        self._given = spark
        self._hot: HotCache | None = None
        self._queries: Router | None = None
        self._making = threading.Lock()
        self.lasting = True
        """False in a process that ends at once: its hot cache fills nothing behind answers."""
        self._watcher: Watcher | None = None
        self._on_cycle: list[Callable[[CycleReport], object]] = []
        self._compactor = Compactor(spark=self.spark, leased=self._leased)
        self._upkeep = _Upkeep(settings, clock, self._compactor)
        self._pool: WorkerPool | None = None
        self._goes_on = False
        """True once this object is a compactor that goes on for long: its jobs are better kept apart from it."""
        self._tiers: frozenset[str] = frozenset()
        self._reads = KeptReads(settings.lookup_cache_mb * BYTES_PER_MB)
        self._registry = Registry(
            layout,
            settings=settings,
            clock=clock,
            after_commit=self._upkeep.notice,
            after_write=self._upkeep.notice_write,
            reads=self._reads,
        )

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        settings: Settings | None = None,
        spark: "SparkSession | None" = None,
        clock: Clock | None = None,
    ) -> "Lake":
        """Open a lake at a folder; it need not exist yet.

        Args:
            path: the lake's folder.
            settings: otherwise read from the environment, the lake's ``silt.toml`` and the user's.
            spark: the session to use, classic or Connect; otherwise the active one, otherwise one on the local server
                that all commands share, which is joined or started when it is needed.
            clock: where time comes from; tests hold it still.
        """
        layout = Layout.at(path)
        return cls(
            layout,
            settings=settings or Settings.load(lake=layout.root),
            clock=clock or SystemClock(),
            spark=spark,
        )

    def __repr__(self) -> str:
        return f"<Lake {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        names = ("dataset", "kind", "key or time")
        try:
            found = self._registry.all()
        except (SiltstoneError, OSError) as error:
            return html_table(names, (), caption=f"Lake {self.path}: {error}")
        shown = [
            [str(one.name), str(one.spec.kind), one.spec.time or ", ".join(one.spec.key)]
            for one in found[:MAX_HTML_DATASETS]
        ]
        return html_table(names, shown, caption=f"Lake {self.path}, {len(found):,} datasets")

    @property
    def path(self) -> Path:
        """The lake's folder."""
        return self._layout.root

    def spark(self) -> "SparkSession":
        """Return the Spark session, starting one if there is none.

        It loads, folds and reads frames. The texts of `sql` run on a server of their own where servers are shared.
        """
        from siltstone.spark.shared_server import ServerRole

        return self._session(ServerRole.JOBS)

    def _spark_for_queries(self) -> "SparkSession":
        from siltstone.spark.shared_server import ServerRole

        return self._session(ServerRole.QUERIES)

    def _session(self, server: "ServerRole") -> "SparkSession":
        """Return a session on Spark; a start is announced first, in the log and to who watches."""
        from siltstone.spark.session import session

        watcher = self._watcher
        found = session(
            self.settings,
            given=self._given,
            server=server,
            announce=lambda text: watcher.announce(text) if watcher is not None else None,
        )
        if self._watcher is not None:
            self._watcher.attach(found)
        return found

    def _has_spark(self) -> bool:
        """True if a query would start none."""
        from siltstone.spark.session import is_running

        return self._given is not None or is_running()

    @contextmanager
    def watched(self, show: Show | None) -> Iterator[None]:
        """Tell `show` how Spark comes along with what is done inside the block; on Connect sessions only."""
        if show is None:
            yield
            return
        with watching(show) as watcher:
            self._watcher = watcher
            try:
                yield
            finally:
                self._watcher = None

    def create(  # noqa: PLR0913  # one parameter for each thing that is fixed
        self,
        name: str,
        schema: "pa.Schema | str | Any",  # noqa: ANN401
        *,
        key: str | Sequence[str] | None = None,
        subject: str | Sequence[str] | None = None,
        time: str | None = None,
        partition_by: str | Sequence[str] | None = None,
        sort_by: str | Sequence[str] | None = None,
        cluster_by: str | Sequence[str] | None = None,
        dedup_by: str | Sequence[str] | None = None,
        survivor: str | None = None,
    ) -> Dataset:
        """Create a dataset, keyed or a log, or return the one that exists if it has the same fingerprint and specification.

        Args:
            name: ``catalog.schema.table``.
            schema: a `pyarrow.Schema`, a Spark ``StructType``, or columns as text (``id STRING NOT NULL, n BIGINT``).
            key: the columns that identify a row of a keyed dataset.
            subject: the columns that identify a person; their values never enter log statistics. A log's tombstones hide by
                them.
            time: instead of a key, the column that says when an event happened: the dataset is a log.
            partition_by: columns of a log that divide its files besides the time.
            sort_by: columns that a log's files are sorted by; the time unless told.
            cluster_by: columns that a clustering of a log orders rows by, so that a search by any of them opens few files; the
                time, the first partition column and the sort columns unless told.
            dedup_by: columns of a log; of rows that are equal in all of them one survives. They must contain the time, the
                partition and the subject columns, so that duplicates lie in one period and are hidden together.
            survivor: which one: the ``first`` (unless told) or the ``last``, by sequence and place in the batch.

        Raises:
            InvalidRequest: the name, a column, a type, the key or the time is not allowed. Nothing is written.
            Conflict: a dataset of that name exists and is different.
        """
        check_may_write(self.settings.role, doing=f"create dataset {name}")
        parsed = DatasetName.parse(name)
        spec = make_spec(
            key=as_names(key),
            subject=as_names(subject),
            time=time,
            partition_by=as_names(partition_by),
            sort_by=as_names(sort_by),
            cluster_by=as_names(cluster_by),
            dedup_by=as_names(dedup_by),
            survivor=survivor,
        )
        return self._dataset(self._registry.create(parsed, as_schema(schema), spec))

    def create_from(
        self,
        name: str,
        source: Any,  # noqa: ANN401
        *,
        key: str | Sequence[str] | None = None,
        time: str | None = None,
        subject: str | Sequence[str] | None = None,
    ) -> Dataset:
        """Create a dataset with the columns of a frame or a file, and load the rows.

        `Dataset.schema` shows the columns that were inferred. If the rows are refused, a dataset that this call has created is
        dropped again, if no other process has written to it. A crash between the two steps leaves it empty.

        Args:
            name: ``catalog.schema.table``.
            source: an Arrow table, a pandas, Polars or Spark frame, a list of dicts; or the path of a Parquet, CSV, JSON or
                NDJSON file, which Spark loads.
            key: the columns that identify a row, or
            time: the time column of a log.
            subject: see `create`.

        Raises:
            InvalidRequest: columns cannot be inferred, or the rows do not fit. Nothing is left.
            Conflict: a dataset of that name exists and is different.
        """
        from siltstone.dataset.load.schema_inference import schema_of_rows

        schema = schema_of_rows(source)
        made = self.create(name, schema, key=key, time=time, subject=subject)
        try:
            if isinstance(source, str | Path):
                made.ingest(source)
            elif made.spec.is_log:
                made.append(source)
            else:
                made.upsert(source)
        except InvalidRequest:
            self.drop_unused(made)
            raise
        return made

    def dataset(self, name: str) -> Dataset:
        """Open a dataset by name.

        Raises:
            NotFound: there is none.
        """
        return self._dataset(self._registry.find(DatasetName.parse(name)))

    def datasets(self) -> list[DatasetInfo]:
        """List the datasets by name; one that cannot be read says so in `broken` and hides no other."""
        return [info for found in self._registry.all() if (info := self._info(found)) is not None]

    def handles(self) -> tuple[list[Dataset], dict[str, Corruption]]:
        """Return all datasets by name, not yet opened, and what is wrong with those whose tables are not on disk."""
        datasets: list[Dataset] = []
        broken: dict[str, Corruption] = {}
        for found in self._registry.all():
            if error := self._registry.broken(found):
                broken[str(found.name)] = error
            else:
                datasets.append(self._dataset(found))
        return datasets, broken

    def _info(self, found: Registration) -> DatasetInfo | None:
        """Describe one dataset; None if it was dropped since it was listed."""
        if error := self._registry.broken(found):
            return info_of(found, found.schema, broken=error)
        try:
            return self._dataset(found).info()
        except Gone:
            return None
        except SiltstoneError as error:
            return info_of(found, found.schema, broken=error)

    def unregistered(self) -> "list[Unregistered]":
        """List the folders with a dataset that the registry does not name, as after it was restored from an older copy.

        They are never deleted; `adopt` registers one again.
        """
        return self._adoption.found()

    def adopt(self, name: str, incarnation: str) -> "Unregistered":
        """Register a dataset again that `unregistered` lists. Its rows stay as they are.

        Raises:
            NotFound: there is no such unregistered dataset.
            Conflict: it cannot be adopted; the message says why. Nothing was changed.
        """
        check_may_write(self.settings.role, doing=f"adopt dataset {name}")
        return self._adoption.adopt(DatasetName.parse(name), incarnation)

    def damages(self) -> "list[Damage]":
        """List what is damaged as far as that can be found without reading rows; nothing is changed."""
        return self._repairs.damages()

    def repair(self, damage: "Damage", *, drop_missing: bool = False) -> None:
        """Repair what `damages` lists.

        The name of a dataset whose folder is missing is dropped only with `drop_missing`: its disk may not be mounted.

        Raises:
            InvalidRequest: a folder is missing, and `drop_missing` is not set. Nothing was changed.
            Conflict: it cannot be repaired, or is another damage by now. Nothing was changed.
        """
        check_may_write(self.settings.role, doing="repair the lake")
        self._repairs.repair(damage, drop_missing=drop_missing)

    def backup(
        self,
        path: str | Path,
        *,
        keep: int | None = None,
        verify: str = "sizes",
        skip_broken: bool = False,
        dry_run: bool = False,
        show: Callable[[str], None] | None = None,
    ) -> BackupReport:
        """Copy the lake into a folder of backups while others read and write. Only new files are copied. No Spark.

        Each dataset is copied at one sequence. Settings, the registry, the journal and audit records are included; leases, hot
        caches and scratch files are not. An interrupted backup leaves the earlier ones as they were.

        Args:
            path: the folder of backups, outside of the lake; one folder takes any number of backups of one lake.
            keep: remove all but this number of the newest backups afterwards; all are kept by default.
            verify: ``sizes`` checks sizes and logs of the copy, and footers and indexes of files that are copied. ``full``
                also checks every page of every data file, and every hash.
            skip_broken: leave out datasets that cannot be read, instead of failing.
            dry_run: return what would be copied; nothing is written.
            show: is called with a text that says how far the copy is.

        Raises:
            NotFound: there is no lake.
            InvalidRequest: the folder holds something else, or an option is not allowed. Nothing was written.
            Conflict: another process uses the folder.
            Corruption: a dataset cannot be read, or the copy is not what it must be. No backup was recorded.
            Unavailable: a disk failed, or files kept disappearing. No backup was recorded.
        """
        from siltstone.backup.take import Backup, check_wanted

        wanted = check_wanted(self._layout, path, keep=keep, verify=verify, dry_run=dry_run, skip_broken=skip_broken)
        return Backup(
            wanted,
            registry=self._registry,
            layout=self._layout,
            settings=self.settings,
            clock=self._clock,
            show=show,
        ).run()

    @classmethod
    def restore(
        cls,
        path: str | Path,
        target: str | Path,
        *,
        backup: str | None = None,
        dry_run: bool = False,
        settings: Settings | None = None,
        show: Callable[[str], None] | None = None,
    ) -> RestoreReport:
        """Restore a lake from a folder of backups to a folder that is empty or does not exist. No Spark.

        Args:
            path: the folder of backups.
            target: the lake's folder, a new one or the one it had.
            backup: the id of a backup, or its beginning; the newest by default.
            dry_run: verify the backup, every hash included, and write nothing at the target.
            settings: otherwise read from the environment.
            show: is called with a text that says how far the copy is.

        Raises:
            NotFound: there is no such backup.
            InvalidRequest: the target is not empty. Nothing was written.
            Corruption: the backup is damaged. Nothing is at the target.
            Unavailable: a disk failed. Nothing is at the target.
        """
        from siltstone.backup.restore import Restore

        known = settings or Settings.load()
        if not dry_run:
            check_may_write(known.role, doing=f"restore a lake to {target}")
        return Restore(path, target, backup=backup, settings=known, clock=SystemClock(), show=show).run(dry_run=dry_run)

    @property
    def _repairs(self) -> "Repairs":
        from siltstone.keeping.repair import Repairs, system_tables

        system = system_tables(self._layout, settings=self.settings, clock=self._clock)
        return Repairs(
            registry=self._registry, adoption=self._adoption, journal=self._journal, notes=self._notes, system=system
        )

    @property
    def _adoption(self) -> "Adoption":
        from siltstone.dataset.adoption import Adoption

        return Adoption(self._registry, self._layout, clock=self._clock, durable=self.settings.durable)

    def drop(self, name: str) -> None:
        """Drop a dataset and its files; open handles get Gone. One whose files are missing is dropped, too.

        Raises:
            NotFound: there is no such dataset.
            InvalidRequest: its folder is behind a symbolic link. Nothing was changed.
        """
        check_may_write(self.settings.role, doing=f"drop dataset {name}")
        self._registry.drop(DatasetName.parse(name))

    def drop_unused(self, made: Dataset) -> bool:
        """Drop a dataset whose first rows were refused; return whether it was dropped.

        It stays if `create` found it instead of making it, or if anything was committed to it since.
        """
        check_may_write(self.settings.role, doing=f"drop dataset {made.name}")
        return self._registry.drop_unused(made.registration)

    def sweep(self) -> list[Path]:
        """Remove the folders that crashed creates and drops left behind, and return them.

        A folder without proof that Siltstone made it and no longer needs it is left alone (`docs/storage.md`).
        """
        check_may_compact(self.settings.role, doing="sweep the lake")
        return sweep(self._registry, self._layout)

    def sql(
        self,
        text: str,
        *,
        params: Mapping[str, object] | None = None,
        engine: str = "auto",
        max_rows: int | None = None,
        timeout: float | None = None,
        catalog: str | None = None,
        schema: str | None = None,
        query_id: str | None = None,
    ) -> "QueryResult":
        """Answer one SELECT over datasets by their three-part names, or ``catalog.schema.__raw__table``.

        Args:
            text: the SELECT, in Spark's dialect; ``docs/sql.md`` lists what it may have.
            params: the value of each ``:name`` in it; bound, never pasted.
            engine: ``hot``, ``spark``, or ``auto``: hot if that gives the same answer and the datasets are, or quickly can be, in
                memory; Spark otherwise. The result says which one answered, and why.
            max_rows: how many rows come back at most, 1 to 100,000; else the setting ``max_rows``. ``truncated`` says whether
                there are more. What the setting has cut becomes no frame: `to_arrow` and the like raise then.
            timeout: the time limit in seconds, 0 for none; else the setting ``query_seconds``.
            catalog: the catalog of tables that are named without one; else the setting ``default_catalog``.
            schema: the schema of tables that are named without one; else the setting ``default_schema``.
            query_id: by which `queries.cancel` ends the query and `queries.page` gives its pages; made up unless given.

        Raises:
            InvalidRequest: the query is not allowed, an engine refuses it, or the hot one was asked for and cannot answer.
            NotFound: it names a dataset that does not exist.
            Conflict: a query with that id is running.
            Unavailable: the time is up, the query was cancelled, or Spark went away.
        """
        return self.queries.ask(
            self._question(
                text,
                params=params,
                engine=engine,
                max_rows=max_rows,
                timeout=timeout,
                catalog=catalog,
                schema=schema,
                query_id=query_id,
            )
        )

    def stream_sql(
        self,
        text: str,
        *,
        params: Mapping[str, object] | None = None,
        timeout: float = 0.0,
        catalog: str | None = None,
        schema: str | None = None,
        cancellation: "CancelToken | None" = None,
    ) -> pa.RecordBatchReader:
        """Answer one SELECT on Spark as a stream of record batches: all rows, a few thousand in memory at a time.

        The arguments and errors are those of `sql`; there is no limit of rows, and none of time unless one is given. Errors of
        Spark come while the batches are read. Another thread can cancel it by `cancellation`.
        """
        asked = self._question(text, params=params, engine="spark", timeout=timeout, catalog=catalog, schema=schema)
        return self.queries.stream(asked, cancellation=cancellation)

    def explain_sql(
        self,
        text: str,
        *,
        params: Mapping[str, object] | None = None,
        engine: str = "auto",
        timeout: float | None = None,
        catalog: str | None = None,
        schema: str | None = None,
    ) -> "Explanation":
        """Say which engine would answer a SELECT, why, and by which plan; it is not asked. The arguments are those of `sql`."""
        return self.queries.explain(
            self._question(text, params=params, engine=engine, timeout=timeout, catalog=catalog, schema=schema)
        )

    def _question(
        self,
        text: str,
        *,
        params: Mapping[str, object] | None,
        engine: str,
        catalog: str | None,
        schema: str | None,
        max_rows: int | None = None,
        timeout: float | None = None,
        query_id: str | None = None,
    ) -> "Question":
        from siltstone.query.router import Question, engine_of

        return Question(
            text=text,
            params=params or {},
            engine=engine_of(engine),
            max_rows=self.settings.max_rows if max_rows is None else max_rows,
            limit_given=max_rows is not None,
            seconds=self.settings.query_seconds if timeout is None else timeout,
            catalog=catalog or self.settings.default_catalog or None,
            schema=schema or self.settings.default_schema or None,
            query_id=query_id,
        )

    @property
    def queries(self) -> "Router":
        """Who answers questions: cancels them by id, explains them, keeps their pages."""
        with self._making:
            if self._queries is None:
                self._queries = self._open_queries()
            return self._queries

    def _open_queries(self) -> "Router":
        from siltstone.query.hot.dataset_resolver import Sources
        from siltstone.query.router import Router

        router = Router(
            hot=lambda: self.hot,
            sources=Sources(self._registry),
            spark=self._spark_for_queries,
            dataset=self.dataset,
            settings=self.settings,
            clock=self._clock,
            has_spark=self._has_spark,
        )
        router.fill_behind = self.lasting
        self._reads.also.append(lambda _path: router.forget())
        return router

    @property
    def hot(self) -> "HotCache":
        """The hot cache of this process: datasets as merged rows in memory, without Spark."""
        with self._making:
            if self._hot is None:
                self._hot = self._open_hot()
            return self._hot

    def _open_hot(self) -> "HotCache":
        from siltstone.query.hot.cache import HotCache
        from siltstone.query.hot.dataset_resolver import Sources

        wishes = self.hot_wishes if self.lasting else None
        cache = HotCache.open(Sources(self._registry), settings=self.settings, clock=self._clock, wishes=wishes)
        self._reads.also.append(cache.forget)
        return cache

    @property
    def hot_wishes(self) -> "Wishes":
        """What is wished of the hot caches of all processes that last: which datasets are pinned, warmed and evicted."""
        from siltstone.query.hot.directives import Wishes

        return Wishes(self._layout, settings=self.settings, clock=self._clock)

    def close(self) -> None:
        """End the queries that run and the workers, finish background upkeep, and let go of the journal and the hot cache.

        In a forked child it does nothing: threads and workers are the parent's.
        """
        if os.getpid() != self._process:
            return
        if self._queries is not None:
            self._queries.close()
        if self._hot is not None:
            self._hot.close()
        if self._pool is not None:
            self._pool.close()
        self._upkeep.close()
        if "_journal" in self.__dict__:
            self._journal.close()

    def __enter__(self) -> "Lake":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _dataset(self, found: Registration) -> Dataset:
        return Dataset(
            found,
            self._registry.store(found),
            spark=self.spark,
            maintenance=self._compactor,
            conditions=_Conditions(),
        )


class _Upkeep:
    """Checkpoints tables and squashes changes off the acknowledgement path, one at a time."""

    def __init__(self, settings: Settings, clock: Clock, compactor: Compactor) -> None:
        self._settings = settings
        self._compactor = compactor
        self._background = Background()
        self._tidying = Tidying(self._background, settings=settings, clock=clock)
        self.close = self._background.close

    def notice(self, table: Table, version: int) -> None:
        """Take note of a commit; every N commits the table's log is tidied, and the oldest marks of changes are forgotten."""
        self._tidying.notice(table, version, then=self._forget if table.path.name == CHANGES else None)

    def _forget(self, table: Table) -> None:
        with suppress(OSError, SiltstoneError, LogMoved):  # the next checkpoint tries again
            forget_oldest(table, most=self._settings.idempotence_marks)

    def notice_write(self, store: Store, version: int) -> None:
        """Take note of a commit to a dataset's changes; if many small files have come together, they are squashed."""
        many = self._settings.squash_files if may_compact(self._settings.role) else 0
        if not many or version % SQUASH_LOOK_COMMITS or len(store.changes.files()) < many:
            return
        self._background.start("squash", store.path, lambda: _try_squash(self._compactor, store, many=many))


def _try_squash(compactor: Compactor, store: Store, *, many: int) -> str | None:
    """Squash, and return what went wrong instead of raising: it never fails a write, and the next one tries again."""
    try:
        compactor.squash(store, many=many)
    except (OSError, SiltstoneError, LogMoved, pa.ArrowException) as error:
        return str(error)
    return None


class _Conditions:
    """Conditions on rows; the parser and DuckDB are loaded when the first one comes."""

    def for_spark(self, where: str, columns: Sequence[str]) -> str:
        from siltstone.query.gate.row_condition import condition_of

        return condition_of(where, columns)

    def columns(self, where: str, schema: pa.Schema) -> list[str]:
        from siltstone.query.row_filter import matching_columns

        return matching_columns(where, schema)

    def rows(self, table: pa.Table, where: str) -> pa.Table:
        from siltstone.query.row_filter import matching_rows

        return matching_rows(table, where)
