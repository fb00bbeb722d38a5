"""Lake: the composition root, which builds components and hands them to each other. What keeps it in shape is `keeping`.

`Lake.open` reads and writes nothing; the first `create` lays the lake's folders. Checkpoints and log cleaning run on one
background thread after the acknowledgement; `close` waits for them.
"""

from collections.abc import Callable, Iterator, Sequence
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
    from siltstone.query.result import QueryResult

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
        self._watcher: Watcher | None = None
        self._on_cycle: list[Callable[[CycleReport], object]] = []
        self._compactor = Compactor(spark=self.spark, leased=self._leased)
        self._upkeep = _Upkeep(settings, clock, self._compactor)
        self._pool: Pool | None = None
        self._goes_on = False
        """True once this object is a compactor that goes on for long: its jobs are better kept apart from it."""
        self._tiers: frozenset[str] = frozenset()
        self._registry = Registry(
            layout,
            settings=settings,
            clock=clock,
            after_commit=self._upkeep.notice,
            after_write=self._upkeep.notice_write,
            reads=KeptReads(settings.lookup_cache_mb * BYTES_PER_MB),
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

    def sql(self, text: str, *, max_rows: int | None = None) -> "QueryResult":
        """Answer one SELECT over datasets by their three-part names, or ``catalog.schema.__raw__table``."""
        from siltstone.query.run import run_sql

        return run_sql(
            text,
            spark=self.spark,
            dataset=self.dataset,
            max_rows=self.settings.max_rows if max_rows is None else max_rows,
        )

    def close(self) -> None:
        """End the workers, finish background upkeep, and let go of the journal."""
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
        return Dataset(found, self._registry.store(found), spark=self.spark, maintenance=self._compactor)


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
