"""Lake: the facade of a lake. It holds components and delegates to them.

`Lake.open` reads and writes nothing; the first `create` makes the lake's folders. Checkpoints and log cleaning run on
one background thread after the acknowledgement; `close` waits for them.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from siltstone.clock import Clock, SystemClock
from siltstone.compaction.lake_components import LakeComponents, LakeContext
from siltstone.config import Settings
from siltstone.dataset.adoption import Adoption, Unregistered
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.handles import DatasetHandles
from siltstone.dataset.orphan_folders import sweep
from siltstone.dataset.ports import Conditions
from siltstone.delta.layout import Layout
from siltstone.errors import Corruption
from siltstone.maintenance.background_squash import BackgroundSquash
from siltstone.model.compaction_request import Selection
from siltstone.model.ddl import as_schema
from siltstone.model.names import DatasetName
from siltstone.model.reports import BackupReport, DatasetInfo, RestoreReport
from siltstone.model.roles import check_may_compact, check_may_write
from siltstone.model.spec import as_names, make_spec
from siltstone.spark.lake_sessions import LakeSessions
from siltstone.spark.progress import ShowProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.compaction.execution.events import Subscriber
    from siltstone.compaction.execution.report import CycleEntry, CycleReport
    from siltstone.compaction.journal.records import JobRecord
    from siltstone.compaction.journal.recovery import RecoveryReport
    from siltstone.compaction.journal.totals import Totals
    from siltstone.compaction.planning.model import Plan
    from siltstone.compactor.service import CompactorService
    from siltstone.compactor.status import CompactorState
    from siltstone.maintenance.repair import Damage, Repairs
    from siltstone.maintenance.service import MaintenanceService
    from siltstone.model.compaction_request import CompactionRequest
    from siltstone.query.cancellation import CancelToken
    from siltstone.query.components import QueryComponents
    from siltstone.query.hot.cache import HotCache
    from siltstone.query.hot.directives import DirectiveStore
    from siltstone.query.result import QueryResult
    from siltstone.query.router import QueryPlanInfo, Router


class Lake:
    """A lake: create, open, list and drop datasets, query and maintain them.

    Errors that the methods do not repeat: InvalidRequest if the setting ``role`` forbids the operation. Corruption or
    Unavailable if the registry cannot be read, or the journal, which maintenance methods and `damages` read.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        settings: Settings,
        clock: Clock,
        spark: "SparkSession | None",
        long_running: bool = True,
    ) -> None:
        self.settings = settings
        self._process = os.getpid()
        self._layout = layout
        self._clock = clock
        self._long_running = long_running
        self._query_components: QueryComponents | None = None
        self._maintenance: MaintenanceService | None = None
        self._mutex = threading.Lock()
        self._sessions = LakeSessions(settings, spark)
        context = LakeContext(
            layout=layout,
            settings=settings,
            clock=clock,
            spark=self._sessions.for_jobs,
            session_given=self._sessions.is_given,
        )
        self._components = LakeComponents(context, on_write=BackgroundSquash)
        self._registry = self._components.registry
        self._handles = DatasetHandles(
            self._registry,
            spark=self._sessions.for_jobs,
            maintenance=lambda: self._components.operations,
            conditions=_row_conditions,
        )

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        settings: Settings | None = None,
        spark: "SparkSession | None" = None,
        clock: Clock | None = None,
        long_running: bool = True,
    ) -> "Lake":
        """Open a lake at a folder; it need not exist yet.

        Args:
            path: the lake's folder.
            settings: default: read from the environment, the lake's ``silt.toml`` and the user's.
            spark: the session to use, classic or Connect. Default: the active one, or else one on the local server
                that all commands share. That server is joined or started when it is needed.
            clock: the source of time; tests use a fixed one.
            long_running: false for a process that ends at once. Its hot cache loads nothing after a query.
        """
        layout = Layout.at(path)
        return cls(
            layout,
            settings=settings or Settings.load(lake=layout.root),
            clock=clock or SystemClock(),
            spark=spark,
            long_running=long_running,
        )

    def __repr__(self) -> str:
        return f"<Lake {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        return self._handles.html(f"Lake {self.path}")

    @property
    def path(self) -> Path:
        """The lake's folder."""
        return self._layout.root

    def require_exists(self) -> None:
        """Raise NotFound if there is no lake at this path, because a mistyped path looks like an empty lake."""
        self._registry.require_lake()

    def spark(self) -> "SparkSession":
        """Return the Spark session for loads, folds and frames; start Spark if needed. `sql` may use another server."""
        return self._sessions.for_jobs()

    def progress(self, show: ShowProgress | None) -> AbstractContextManager[None]:
        """Pass the progress of Spark inside the block to `show`. Only Connect sessions report it."""
        return self._sessions.progress(show)

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
        """Create a dataset, keyed or a log. Return an existing one with the same fingerprint and specification.

        Args:
            name: ``catalog.schema.table``.
            schema: a `pyarrow.Schema`, a Spark ``StructType``, or columns as text (``id STRING NOT NULL, n BIGINT``).
            key: the columns that identify a row of a keyed dataset.
            subject: the columns that identify a person. Their values never enter log statistics. Tombstones of a log
                hide rows by them.
            time: the column with the time of an event, instead of a key. The dataset is then a log.
            partition_by: columns of a log that divide its files besides the time.
            sort_by: columns that a log's files are sorted by; default: the time.
            cluster_by: columns that a clustering of a log orders rows by. A search by any of them then opens few
                files. Default: the time, the first partition column and the sort columns.
            dedup_by: columns of a log. Of rows that are equal in all of them, one survives. They must contain the
                time, the partition and the subject columns. Duplicates are then in one period and are hidden
                together.
            survivor: which duplicate survives: the ``first`` (default) or the ``last``, by sequence and position in
                the batch.

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
        return self._handles.open(self._registry.create(parsed, as_schema(schema), spec))

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

        The `source` is rows or the path of a file. Rows are an Arrow table, a frame (pandas, Polars or Spark) or a list
        of dicts. Spark loads a file: Parquet, CSV, JSON or NDJSON. The other arguments are those of `create`.
        `Dataset.schema` shows the inferred columns. If the rows are refused, a dataset that this call has created is
        dropped again. It is not dropped if another process has written to it. A crash between the two steps leaves it
        empty.

        Raises:
            InvalidRequest: columns cannot be inferred, or the rows do not fit. Nothing is left.
            Conflict: a dataset of that name exists and is different.
        """
        from siltstone.dataset.load.schema_inference import schema_of_rows

        made = self.create(name, schema_of_rows(source), key=key, time=time, subject=subject)
        return self._handles.load_new(made, source)

    def dataset(self, name: str) -> Dataset:
        """Open a dataset by name. NotFound if no dataset has this name."""
        return self._handles.find(name)

    def datasets(self) -> list[DatasetInfo]:
        """List the datasets by name. One that cannot be read has its error in `broken` and does not hide the others."""
        return self._handles.infos()

    def handles(self) -> tuple[list[Dataset], dict[str, Corruption]]:
        """Return all datasets by name, not yet opened, and the errors of those whose tables are not on disk."""
        return self._handles.all()

    def unregistered(self) -> list[Unregistered]:
        """List the folders with a dataset that the registry does not name, as after a restore of an older registry.

        They are never deleted; `adopt` registers one again.
        """
        return self._adoption.unregistered()

    def adopt(self, name: str, incarnation: str) -> Unregistered:
        """Register a dataset again that `unregistered` lists. Its rows stay as they are.

        Raises:
            NotFound: there is no such unregistered dataset.
            Conflict: it cannot be adopted; the message says why. Nothing was changed.
        """
        check_may_write(self.settings.role, doing=f"adopt dataset {name}")
        return self._adoption.adopt(DatasetName.parse(name), incarnation)

    def damages(self) -> "list[Damage]":
        """List all damage that can be found without reading rows. Nothing is changed."""
        return self._repairs.damages()

    def repair(self, damage: "Damage", *, drop_missing: bool = False) -> None:
        """Repair a damage that `damages` lists.

        If the folder of a dataset is missing, its disk may not be mounted. Its name is dropped only with
        `drop_missing`.

        Raises:
            InvalidRequest: a folder is missing, and `drop_missing` is not set. Nothing was changed.
            Conflict: it cannot be repaired, or the damage has changed meanwhile. Nothing was changed.
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
        """Copy the lake into a folder of backups beside readers and writers. Only new files are copied. No Spark.

        Each dataset is copied at one sequence. Settings, the registry, the journal and audit records are included;
        leases, hot caches and scratch files are not. An interrupted backup leaves the earlier ones as they were.

        Args:
            path: the folder of backups, outside of the lake; one folder takes any number of backups of one lake.
            keep: number of newest backups to keep; older ones are removed afterwards. Default: all.
            verify: ``sizes`` checks sizes and logs of the copy, and footers and indexes of files that are copied.
                ``full`` also checks every page of every data file, and every hash.
            skip_broken: leave out datasets that cannot be read, instead of failing.
            dry_run: return what would be copied; nothing is written.
            show: receives the progress of the copy as text.

        Raises:
            NotFound: there is no lake.
            InvalidRequest: the folder holds something else, or an option is not allowed. Nothing was written.
            Conflict: another process uses the folder.
            Corruption: a dataset cannot be read, or the copy failed its verification. No backup was recorded.
            Unavailable: a disk failed, or files disappeared repeatedly. No backup was recorded.
        """
        from siltstone.backup.take import Backup, check_request

        request = check_request(self._layout, path, keep=keep, verify=verify, dry_run=dry_run, skip_broken=skip_broken)
        return Backup(
            request,
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
            backup: the id of a backup, or its beginning. Default: the newest.
            dry_run: verify the backup, every hash included, and write nothing at the target.
            settings: default: read from the environment.
            show: receives the progress of the copy as text.

        Raises:
            NotFound: there is no such backup.
            InvalidRequest: the target is not empty. Nothing was written.
            Corruption: the backup is damaged. Nothing is at the target.
            Unavailable: a disk failed. Nothing is at the target.
            CommitUnknown: the lake is at the target, but the disk failed to sync it.
        """
        from siltstone.backup.restore import Restore

        settings = settings or Settings.load()
        if not dry_run:
            check_may_write(settings.role, doing=f"restore a lake to {target}")
        restore = Restore(path, target, backup=backup, settings=settings, clock=SystemClock(), show=show)
        return restore.run(dry_run=dry_run)

    @property
    def _repairs(self) -> "Repairs":
        from siltstone.maintenance.repair import Repairs, system_tables

        return Repairs(
            registry=self._registry,
            adoption=self._adoption,
            journal=self.maintenance.journal,
            state_files=self._components.state_files,
            system=system_tables(self._layout, settings=self.settings, clock=self._clock),
        )

    @property
    def _adoption(self) -> Adoption:
        return Adoption(self._registry, self._layout, clock=self._clock, durable=self.settings.durable)

    def drop(self, name: str) -> None:
        """Drop a dataset and its files. Open handles raise Gone. A dataset whose files are missing is dropped, too.

        Raises:
            NotFound: there is no such dataset.
            InvalidRequest: its folder is behind a symbolic link. Nothing was changed.
        """
        check_may_write(self.settings.role, doing=f"drop dataset {name}")
        self._registry.drop(DatasetName.parse(name))

    def drop_unused(self, made: Dataset) -> bool:
        """Drop a dataset whose first rows were refused; return whether it was dropped.

        It stays if it existed before `create`, or if anything was committed to it since.
        """
        check_may_write(self.settings.role, doing=f"drop dataset {made.name}")
        return self._registry.drop_unused(made.registration)

    def sweep(self) -> list[Path]:
        """Remove the folders that crashed creates and drops left behind, and return them.

        A folder is left alone without proof that Siltstone made it and no longer needs it (`docs/storage.md`).
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
            text: the SELECT, in Spark's dialect. ``docs/sql.md`` lists the supported syntax.
            params: the value of each ``:name`` in the text. Values are bound, never pasted.
            engine: ``hot``, ``spark`` or ``auto``. ``auto`` means hot if that gives the same answer and the datasets
                are, or quickly can be, in memory. Otherwise it means Spark. The result names the engine that answered,
                and why.
            max_rows: most rows to return, 1 to 100,000. Default: the setting ``max_rows``. ``truncated`` says whether
                there are more. A result that the setting has cut cannot become a frame: `to_arrow` and similar
                methods raise.
            timeout: the time limit in seconds, 0 for none. Default: the setting ``query_seconds``.
            catalog: the catalog of tables that are named without one. Default: the setting ``default_catalog``.
            schema: the schema of tables that are named without one. Default: the setting ``default_schema``.
            query_id: the id for `queries.cancel` and `queries.page`. Default: a generated id.

        Raises:
            InvalidRequest: the query is not allowed, an engine refuses it, or ``hot`` was requested and cannot answer.
            NotFound: it names a dataset that does not exist.
            Conflict: a query with that id is running.
            Unavailable: the time limit was reached, the query was cancelled, or Spark ended.
        """
        queries = self.queries
        request = queries.request(
            text,
            params=params,
            engine=engine,
            max_rows=max_rows,
            timeout=timeout,
            catalog=catalog,
            schema=schema,
            query_id=query_id,
        )
        return queries.execute(request)

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
        """Answer one SELECT on Spark as a stream of record batches, which has all rows.

        A few thousand rows are in memory at a time. The arguments and errors are those of `sql`. Default time limit:
        none. Errors of Spark are raised while the batches are read. Another thread can cancel the query by
        `cancellation`.
        """
        queries = self.queries
        request = queries.request(text, params=params, engine="spark", timeout=timeout, catalog=catalog, schema=schema)
        return queries.stream(request, cancellation=cancellation)

    def explain_sql(
        self,
        text: str,
        *,
        params: Mapping[str, object] | None = None,
        engine: str = "auto",
        timeout: float | None = None,
        catalog: str | None = None,
        schema: str | None = None,
    ) -> "QueryPlanInfo":
        """Return which engine would answer a SELECT, why, and its plan, without a run. Arguments are those of `sql`."""
        queries = self.queries
        request = queries.request(text, params=params, engine=engine, timeout=timeout, catalog=catalog, schema=schema)
        return queries.explain(request)

    @property
    def queries(self) -> "Router":
        """The query router: runs, explains and cancels queries, and holds their pages."""
        return self._open_query_components().router

    @property
    def hot(self) -> "HotCache":
        """The hot cache of this process: datasets as merged rows in memory, without Spark."""
        return self._open_query_components().hot

    @property
    def cache_directives(self) -> "DirectiveStore":
        """Directives for the hot caches of all long-running processes: which datasets to pin, warm and evict."""
        return self._open_query_components().directives

    def _open_query_components(self) -> "QueryComponents":
        from siltstone.query.components import QueryComponents

        with self._mutex:
            if self._query_components is None:
                self._query_components = QueryComponents(
                    self._registry,
                    self._layout,
                    dataset=self._handles.find,
                    sessions=self._sessions,
                    purge_listeners=self._components.purge_listeners,
                    settings=self.settings,
                    clock=self._clock,
                    long_running=self._long_running,
                )
            return self._query_components

    @property
    def maintenance(self) -> "MaintenanceService":
        """The compaction cycles of this lake, and their journal. Opened on first use: most commands need neither."""
        from siltstone.maintenance.service import MaintenanceService

        with self._mutex:
            if self._maintenance is None:
                self._maintenance = MaintenanceService(self._components)
            return self._maintenance

    def names(self) -> list[str]:
        """Return the names of all datasets."""
        return self._registry.names()

    def plan(
        self,
        names: Sequence[str] | None = None,
        *,
        only: Sequence[str] | None = None,
        force: bool = False,
        cycle: int | None = None,
    ) -> "Plan":
        """Return the jobs that a compaction cycle would run now, and what it would leave out and why. No Spark.

        Args:
            names: the datasets; default: all.
            only: kinds of jobs (``fold``, ``squash``, ``vacuum``, ...) and names of tiers; default: all.
            force: also plan jobs that are below their thresholds or too young.
            cycle: the number of the cycle, which decides the order of lanes; default: the next one.

        Raises:
            InvalidRequest: an unknown tier or kind of job, or settings that contradict each other.
            NotFound: there is no such dataset.
            Corruption, Unavailable: a dataset that was named cannot be read.
        """
        return self.maintenance.plan(Selection(names=names, only=only, force=force), cycle=cycle)

    def run_cycle(
        self,
        names: Sequence[str] | None = None,
        *,
        only: Sequence[str] | None = None,
        force: bool = False,
        epoch: int | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> "CycleReport":
        """Recover what crashed processes left, then run the jobs of `plan`. A job that fails does not stop the others.

        The arguments `names`, `only` and `force` are those of `plan`. `epoch` is that of a lease that the caller holds;
        default: each job has the epoch of its dataset. Once `stopping` returns true, no further job begins. The
        setting `jobs` decides where Spark starts. The journal records everything (`history`). No lease is needed.
        """
        selection = Selection(names=names, only=only, force=force)
        return self.maintenance.run_cycle(selection, epoch=epoch, stopping=stopping)

    def submit(self, request: "CompactionRequest") -> "CycleReport":
        """Run a request in this process and return its report. The commit check protects the data beside a compactor.

        Raises:
            InvalidRequest: the request is not valid. Nothing was changed.
            NotFound: a dataset does not exist. Nothing was changed; one that is dropped later is its job's failure.
            Conflict: a cycle was requested while a live process runs one. Nothing was changed.
        """
        self.require_exists()
        return self.maintenance.run_request(request)

    def subscribe(self, subscriber: "Subscriber") -> None:
        """Pass the events of all later cycles of this lake object to a subscriber (`compaction.execution.events`).

        The last event of a cycle is `CycleReported`. An error of the subscriber reaches the caller of the cycle.
        """
        self.maintenance.subscribe(subscriber)

    def recover(self, *, epoch: int | None = None) -> "RecoveryReport":
        """Settle what crashed processes left: unfinished jobs, datasets, folders. Each cycle does so first. No Spark.

        `epoch` is that of this process's lease, if it holds one: a cycle of a lower epoch is over.
        """
        return self.maintenance.recover(epoch=epoch)

    def unfinished_jobs(self) -> "RecoveryReport":
        """Return jobs that run, or ran when their process died, and records that cannot be read. Nothing is changed."""
        return self.maintenance.unfinished_jobs()

    def history(self, limit: int = 20) -> "list[CycleEntry]":
        """Return the last cycles that had jobs, the newest first. A limit below 1 is an InvalidRequest."""
        return self.maintenance.history(limit)

    def jobs(self, limit: int = 20, *, dataset: str | None = None) -> "list[JobRecord]":
        """Return the last jobs, of one dataset or of all, the newest first. A limit below 1 is an InvalidRequest."""
        return self.maintenance.jobs(limit, dataset=dataset)

    def has_journal(self) -> bool:
        """Return true once the journal has entries; otherwise `totals` and `unfinished_jobs` are empty."""
        return self._components.has_journal()

    def totals(self) -> "Totals":
        """Return the totals of all cycles: by tier and kind of job, and by dataset."""
        return self.maintenance.totals()

    def compactor(
        self,
        *,
        names: Callable[[], list[str] | None] = lambda: None,
        only: Sequence[str] | None = None,
        on_event: "Subscriber" = lambda _event: None,
        continuous: bool = True,
    ) -> "CompactorService":
        """Return a compactor service for this lake. At most one of a lake works at a time: it holds the lease.

        Args:
            names: function that is called before each cycle and returns the datasets to maintain; None means all.
            only: kinds of jobs and names of tiers; default: all.
            on_event: receives the events of the compactor and of its jobs (`compactor.events`), from other threads.
            continuous: false for a single cycle. Nothing then runs by the schedule. Its jobs use workers only if the
                setting `jobs` is ``worker``.

        Raises:
            InvalidRequest: an unknown task, or settings that contradict each other.
        """
        from siltstone.compactor.service import CompactorService
        from siltstone.spark.session import interrupt

        return CompactorService(
            self.maintenance,
            names=names,
            only=only,
            on_event=on_event,
            interrupt=interrupt,
            continuous=continuous,
        )

    def compactor_status(self) -> dict[str, Any]:
        """Return the status of this lake's compactor as plain data, also if it runs in another process."""
        self.require_exists()
        return self._compactor_state.status()

    def pause_compactor(self) -> None:
        """Pause the schedule of this lake until a resume. A running cycle continues."""
        self.require_exists()
        check_may_compact(self.settings.role, doing="pause the compactor")
        self._compactor_state.pause()

    def resume_compactor(self) -> bool:
        """Resume the schedule of this lake; return whether it was paused."""
        self.require_exists()
        check_may_compact(self.settings.role, doing="resume the compactor")
        return self._compactor_state.resume()

    def stop_compactor(self, *, seconds: float) -> str | None:
        """Request the lease holder to stop, and wait for it; return the process that takes over, if one does.

        Raises:
            NotFound: no compactor is running.
            Unavailable: it has not stopped within that time.
        """
        self.require_exists()
        check_may_compact(self.settings.role, doing="stop the compactor")
        return self._compactor_state.stop(seconds=seconds)

    @property
    def _compactor_state(self) -> "CompactorState":
        from siltstone.compactor.status import CompactorState

        return CompactorState(self._components.leases, self._components.state_files, self._clock)

    def close(self) -> None:
        """End running queries and workers, wait for background work, and close the journal and the hot cache.

        In a forked child it does nothing, because threads and workers belong to the parent.
        """
        if os.getpid() != self._process:
            return
        with ExitStack() as parts:  # the last one is closed first; Ctrl-C in one does not leave the next ones open
            parts.callback(self._components.close)
            if self._maintenance is not None:
                parts.callback(self._maintenance.close)
            if self._query_components is not None:
                parts.callback(self._query_components.close)

    def __enter__(self) -> "Lake":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _row_conditions() -> Conditions:
    """Import the SQL parser and DuckDB at the first condition."""
    from siltstone.query.row_filter import RowConditions

    return RowConditions()
