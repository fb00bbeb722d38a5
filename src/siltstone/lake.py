"""Lake: the composition root, which builds components and hands them to each other. What keeps it in shape is `keeping`.

`Lake.open` reads and writes nothing; the first `create` lays the lake's folders. Checkpoints and log cleaning run on one
background thread after the acknowledgement; `close` waits for them.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from siltstone.clock import Clock, SystemClock
from siltstone.compaction.compactor import Compactor
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.registry import Registration, Registry
from siltstone.dataset.store import Store
from siltstone.dataset.sweep import sweep
from siltstone.errors import SiltstoneError
from siltstone.keeping.kept import KeptLake
from siltstone.model.names import DatasetName
from siltstone.model.results import DatasetInfo
from siltstone.model.roles import check_may_compact, check_may_write, may_compact
from siltstone.model.schema import as_schema
from siltstone.model.spec import as_names, make_spec
from siltstone.storage.handle import LogMoved
from siltstone.storage.kept import KeptReads
from siltstone.storage.layout import Layout
from siltstone.storage.progress import Show, Watcher, watching
from siltstone.storage.tidying import Background, Tidying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.compaction.cycle_report import CycleReport
    from siltstone.compaction.pool import Pool
    from siltstone.query.hot.cache import HotCache
    from siltstone.query.hot.wishes import Wishes
    from siltstone.query.result import QueryResult
    from siltstone.query.router import Explanation, Question, Router
    from siltstone.query.run import Cancellation

SQUASH_LOOK_COMMITS: Final = 8
"""Every so many commits to a dataset's changes, its small files are counted."""
BYTES_PER_MB: Final = 1024 * 1024


class Lake(KeptLake):
    """A lake: create, open, list and drop datasets, and query them."""

    def __init__(self, layout: Layout, *, settings: Settings, clock: Clock, spark: "SparkSession | None") -> None:
        """Use `Lake.open`."""
        self.settings = settings
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
        self._pool: Pool | None = None
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
            settings: otherwise read from the environment and the lake's ``silt.toml``.
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

    @property
    def path(self) -> Path:
        """The lake's folder."""
        return self._layout.root

    def spark(self) -> "SparkSession":
        """Return the Spark session, starting one if there is none."""
        from siltstone.storage.spark import session

        found = session(self.settings, given=self._given)
        if self._watcher is not None:
            self._watcher.attach(found)
        return found

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

    def dataset(self, name: str) -> Dataset:
        """Open a dataset by name.

        Raises:
            NotFound: there is none.
        """
        return self._dataset(self._registry.find(DatasetName.parse(name)))

    def datasets(self) -> list[DatasetInfo]:
        """List the datasets by name."""
        return [self._dataset(found).info() for found in self._registry.all()]

    def drop(self, name: str) -> None:
        """Drop a dataset and its files; open handles get Gone."""
        check_may_write(self.settings.role, doing=f"drop dataset {name}")
        self._registry.drop(DatasetName.parse(name))

    def sweep(self) -> list[Path]:
        """Remove the folders that crashed creates and drops left behind, and return them."""
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
            max_rows: how many rows come back at most; ``truncated`` says whether there are more.
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
        cancellation: "Cancellation | None" = None,
    ) -> pa.RecordBatchReader:
        """Answer one SELECT on Spark as a stream of record batches: all rows, a few thousand in memory at a time.

        The arguments and errors are those of `sql`; there is no limit of rows, and none of time unless one is given. Errors of
        Spark come while the batches are read. `cancellation` is what another thread can end it by.
        """
        from siltstone.query.gate import admit
        from siltstone.query.router import check_seconds
        from siltstone.query.run import SparkQuery

        check_seconds(timeout)
        asked = self._question(text, params=params, engine="spark", catalog=catalog, schema=schema)
        admitted = admit(text, parameters=asked.params, catalog=asked.catalog, schema=asked.schema)
        query = SparkQuery(
            admitted,
            spark=self.spark,
            dataset=self.dataset,
            seconds=timeout,
            most_pairs=self.settings.query_pairs,
            cancellation=cancellation,
        )
        return query.stream()

    def explain_sql(
        self,
        text: str,
        *,
        params: Mapping[str, object] | None = None,
        engine: str = "auto",
        catalog: str | None = None,
        schema: str | None = None,
    ) -> "Explanation":
        """Say which engine would answer a SELECT, why, and by which plan; it is not asked. The arguments are those of `sql`."""
        return self.queries.explain(self._question(text, params=params, engine=engine, catalog=catalog, schema=schema))

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
        from siltstone.query.hot.sources import Sources
        from siltstone.query.router import Router

        router = Router(
            hot=lambda: self.hot,
            sources=Sources(self._registry),
            spark=self.spark,
            dataset=self.dataset,
            settings=self.settings,
            clock=self._clock,
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
        from siltstone.query.hot.sources import Sources

        wishes = self.hot_wishes if self.lasting else None
        cache = HotCache.open(Sources(self._registry), settings=self.settings, clock=self._clock, wishes=wishes)
        self._reads.also.append(cache.forget)
        return cache

    @property
    def hot_wishes(self) -> "Wishes":
        """What is wished of the hot caches of all processes that last: which datasets are pinned, warmed and evicted."""
        from siltstone.query.hot.wishes import Wishes

        return Wishes(self._layout, settings=self.settings, clock=self._clock)

    def close(self) -> None:
        """End the queries that run and the workers, finish background upkeep, and let go of the journal and the hot cache."""
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
            condition=_condition,
        )


class _Upkeep:
    """Checkpoints tables and squashes changes off the acknowledgement path, one at a time."""

    def __init__(self, settings: Settings, clock: Clock, compactor: Compactor) -> None:
        self._settings = settings
        self._compactor = compactor
        self._background = Background()
        self._tidying = Tidying(self._background, settings=settings, clock=clock)
        self.notice = self._tidying.notice
        self.close = self._background.close

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


def _condition(text: str, columns: Sequence[str]) -> str:
    """Check a condition on rows; the parser is loaded when the first one comes."""
    from siltstone.query.condition import condition_of

    return condition_of(text, columns)
