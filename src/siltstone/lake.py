"""Lake: the composition root. The only place that builds components and hands them to each other.

`Lake.open` reads and writes nothing; the first `create` lays the lake's folders. Checkpoints and log cleaning run on one
background thread after the acknowledgement; `close` waits for them.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from siltstone.clock import Clock, SystemClock
from siltstone.compaction.compactor import Compactor
from siltstone.config import JobPlace, Settings
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.registry import Registration, Registry
from siltstone.dataset.store import Store
from siltstone.dataset.sweep import sweep
from siltstone.errors import SiltstoneError
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

    from siltstone.compaction.candidates import Plan, UnfinishedJob
    from siltstone.compaction.cycle import Watcher as CycleWatcher
    from siltstone.compaction.cycle_report import CycleEntry, CycleReport
    from siltstone.compaction.jobs import Inline
    from siltstone.compaction.journal import Journal
    from siltstone.compaction.pool import Pool
    from siltstone.compaction.records import JobRecord
    from siltstone.compaction.recovery import Recovery, RecoveryReport
    from siltstone.compaction.statistics import Totals
    from siltstone.model.requests import Answer, Wish
    from siltstone.model.tiers import Tier
    from siltstone.query.hot.cache import HotCache
    from siltstone.query.hot.wishes import Wishes
    from siltstone.query.result import QueryResult
    from siltstone.scheduler.caretaker import Caretaker
    from siltstone.scheduler.housework import Crons, Housework, Office, Tell

SQUASH_LOOK_COMMITS: Final = 8
"""Every so many commits to a dataset's changes, its small files are counted."""
BYTES_PER_MB: Final = 1024 * 1024


class Lake:
    """A lake: create, open, list and drop datasets, and query them."""

    def __init__(self, layout: Layout, *, settings: Settings, clock: Clock, spark: "SparkSession | None") -> None:
        """Use `Lake.open`."""
        self.settings = settings
        self._layout = layout
        self._clock = clock
        self._given = spark
        self._hot: HotCache | None = None
        self._hot_mutex = threading.Lock()
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

    def require(self) -> None:
        """Do nothing where there is a lake; a path that was mistyped looks like an empty one otherwise.

        Raises:
            NotFound: there is none yet.
        """
        self._registry.require_lake()

    def datasets(self) -> list[DatasetInfo]:
        """List the datasets by name."""
        return [self._dataset(found).info() for found in self._registry.all()]

    def drop(self, name: str) -> None:
        """Drop a dataset and its files; open handles get Gone."""
        check_may_write(self.settings.role, doing=f"drop dataset {name}")
        self._registry.drop(DatasetName.parse(name))

    def plan(
        self,
        names: Sequence[str] | None = None,
        *,
        only: Sequence[str] | None = None,
        force: bool = False,
        cycle: int | None = None,
    ) -> "Plan":
        """Return what a cycle of compaction would do now, and what it would leave out and why; nothing is changed. No Spark.

        Args:
            names: the datasets to look at; all unless told.
            only: kinds of work (``fold``, ``squash``, ``vacuum``, ...) and names of tiers; all unless told.
            force: take what is below its thresholds and too young, too.
            cycle: the number of the cycle, which says whose turn is first; the next one of the journal unless told.

        Raises:
            InvalidRequest: an unknown tier or kind of work, or settings that contradict each other.
            NotFound: there is no such dataset.
            Corruption, Unavailable: the journal cannot be read, or a dataset that was named.
        """
        number = self._journal.next_cycle() if cycle is None else cycle
        return self._planned(names, only=only, force=force, cycle=number, unfinished=self._recovery.look().unfinished)

    def _planned(
        self,
        names: Sequence[str] | None,
        *,
        only: Sequence[str] | None,
        force: bool,
        cycle: int,
        unfinished: "Sequence[UnfinishedJob]",
        crons: "Crons | None" = None,
    ) -> "Plan":
        from siltstone.compaction.candidates import Inputs, JobKind, plan
        from siltstone.compaction.states import event_log_state, table_states
        from siltstone.dataset.tiers import due_tiers
        from siltstone.model.tiers import tiers_from_text

        tiers = tiers_from_text(
            self.settings.tiers
        )  # what contradicts itself is refused, also where there is no log yet
        found = (
            self._registry.all() if names is None else [self._registry.find(DatasetName.parse(name)) for name in names]
        )
        stores = [self._registry.store(one) for one in found]
        totals = self.totals()
        tables, unreadable = table_states(
            stores,
            tiers=lambda store: due_tiers(store, crons) if store.spec.is_log else (),
            vacuumed_at=lambda name: totals.last_done(name, JobKind.VACUUM),
            skip_damaged=names is None,
        )
        if names is None and (events := event_log_state(self._layout, settings=self.settings, clock=self._clock)):
            tables.append(events)
        there = {tier.name for table in tables for tier in table.tiers}
        absent = ({tier.name for tier in tiers} | self._tiers) - there - frozenset(JobKind)
        wanted = None if only is None else frozenset(only) - absent  # a tier that no dataset here has: nothing to do
        inputs = Inputs(tables=tables, cycle=cycle, unfinished=unfinished, only=wanted, force=force)
        return replace(plan(inputs, self.settings, self._clock.now()), unreadable=unreadable)

    def run_cycle(
        self,
        names: Sequence[str] | None = None,
        *,
        only: Sequence[str] | None = None,
        crons: "Crons | None" = None,
        force: bool = False,
        cycle: int | None = None,
        epoch: int | None = None,
        watchers: "Sequence[CycleWatcher]" = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> "CycleReport":
        """Recover what crashed processes left, then do what `plan` says; a job that fails does not stop the others.

        Spark starts where the setting `jobs` says. Everything is written down in the journal (`history`).

        Args:
            names: see `plan`.
            only: see `plan`.
            crons: of tiers, by which crons they are due: a dataset where a tier has another one is left out. All unless told.
            force: see `plan`.
            cycle: see `plan`.
            epoch: that of the lease under which the cycle runs; without one each job has its dataset's own.
            watchers: are told of each step.
            stopping: once it says so, no further job is begun.

        Raises:
            InvalidRequest: see `plan`; or the role may not compact.
            Corruption, Unavailable: the journal or the registry cannot be read, so what is unfinished is not known.
        """
        check_may_compact(self.settings.role, doing="run a cycle")
        recovery = self.recover(epoch=epoch)
        number = self._journal.next_cycle() if cycle is None else cycle
        plan = self._planned(names, only=only, force=force, cycle=number, unfinished=recovery.unfinished, crons=crons)
        return self._carried_out(plan, epoch=epoch, watchers=watchers, stopping=stopping, recovery=recovery)

    def run_asked(
        self,
        wish: "Wish",
        *,
        cycle: int,
        epoch: int | None = None,
        trigger: str = "asked for",
        watchers: "Sequence[CycleWatcher]" = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> "CycleReport":
        """Do one kind of work on datasets, as a cycle of its own; `ask` does so under the lease, here or where it is held.

        The journal is written and not read: one that is damaged keeps nobody from a purge, and `trouble` says what is missing.

        Raises:
            InvalidRequest: see `asked_plan`; or the role may not compact. Nothing was changed.
            NotFound: see `asked_plan`.
        """
        from siltstone.compaction.recovery import RecoveryReport

        check_may_compact(self.settings.role, doing=wish.what)
        plan = self._asked_plan(wish, cycle=cycle, trigger=trigger)
        return self._carried_out(plan, epoch=epoch, watchers=watchers, stopping=stopping, recovery=RecoveryReport())

    def _asked_plan(self, wish: "Wish", *, cycle: int = 0, trigger: str = "") -> "Plan":
        from siltstone.compaction.asked import asked_plan

        names = self.names() if wish.names is None else wish.names
        return asked_plan(wish, names, store=self._store, settings=self.settings, cycle=cycle, trigger=trigger)

    def _carried_out(
        self,
        plan: "Plan",
        *,
        epoch: int | None,
        watchers: "Sequence[CycleWatcher]",
        stopping: Callable[[], bool],
        recovery: "RecoveryReport",
    ) -> "CycleReport":
        from siltstone.compaction.cycle import run_cycle
        from siltstone.compaction.cycle_report import CycleReport
        from siltstone.compaction.system_jobs import SystemJobs

        if self._pool is not None:
            self._pool.let_idle_go()
        runner = SystemJobs(self.runner(), layout=self._layout, settings=self.settings, clock=self._clock)
        results = run_cycle(
            plan,
            runner,
            epoch=epoch,
            watchers=[self._journal, *watchers],
            stopping=stopping,
            clock=self._clock,
        )
        report = CycleReport(
            cycle=plan.cycle,
            results=tuple(results),
            recovery=recovery,
            unreadable=dict(plan.unreadable),
            trouble=self._journal.trouble,
        )
        for callback in self._on_cycle:
            callback(report)
        return report

    def on_cycle(self, callback: "Callable[[CycleReport], object]") -> None:
        """Have something called after each cycle of this lake object, with what came of it; what it raises reaches the caller."""
        self._on_cycle.append(callback)

    def recover(self, *, epoch: int | None = None) -> "RecoveryReport":
        """Put in order what crashed processes left: unfinished jobs, datasets, folders. Done before each cycle. No Spark.

        Args:
            epoch: that of our lease, if we hold one: a cycle of a lower one is over.

        Raises:
            InvalidRequest: the role may not compact.
            Corruption, Unavailable: the journal or the registry cannot be read.
        """
        check_may_compact(self.settings.role, doing="recover a lake")
        return self._recovery.run(epoch=epoch)

    def unfinished(self) -> "RecoveryReport":
        """Return which jobs are under way, or were when their process died, and what cannot be read; nothing is changed.

        Raises:
            Corruption, Unavailable: the journal cannot be read.
        """
        return self._recovery.look()

    def history(self, limit: int = 20) -> "list[CycleEntry]":
        """Return the last cycles that did something, the newest first.

        Raises:
            InvalidRequest: the limit is less than 1.
            Corruption, Unavailable: the journal cannot be read.
        """
        from siltstone.compaction.cycle_report import CycleEntry

        return [CycleEntry.of(build) for build in self._journal.cycles(limit)]

    def jobs(self, limit: int = 20, *, dataset: str | None = None) -> "list[JobRecord]":
        """Return the last jobs, of one dataset or of all, the newest first; `lake.history()` has the cycles.

        Raises:
            InvalidRequest: the limit is less than 1.
            Corruption, Unavailable: the journal cannot be read.
        """
        return self._journal.jobs(limit, dataset=dataset)

    def totals(self) -> "Totals":
        """Return what all cycles have come to: by tier and kind of work, and by dataset.

        Raises:
            Corruption, Unavailable: the journal cannot be read.
        """
        from siltstone.compaction.statistics import Totals, kept_at, totals_of

        log = self._journal.log()
        return totals_of(log, kept_at(log)) if log is not None else Totals()

    @cached_property
    def _journal(self) -> "Journal":
        from siltstone.compaction.journal import Journal

        return Journal(self._layout, settings=self.settings, clock=self._clock, store=self._store)

    @cached_property
    def _recovery(self) -> "Recovery":
        from siltstone.compaction.recovery import Recovery

        return Recovery(
            self._journal,
            registry=self._registry,
            layout=self._layout,
            compactor=self._compactor,
            clock=self._clock,
        )

    def runner(self) -> "Inline | Pool":
        """Return who does the jobs of cycles, as the setting `jobs` says. Workers are kept warm for a while."""
        from siltstone.compaction.jobs import Inline
        from siltstone.compaction.pool import SECONDS_PER_MINUTE, Pool

        if self._job_place() is JobPlace.INLINE:
            return Inline(self._compactor, self._store, limit_seconds=self.settings.job_minutes * SECONDS_PER_MINUTE)
        if self._pool is None:
            self._pool = Pool(
                self.path, settings=self.settings, clock=self._clock, compactor=self._compactor, store=self._store
            )
        return self._pool

    def _job_place(self) -> JobPlace:
        """Choose: a compactor that goes on has workers, unless somebody said on whose Spark the work is to be done."""
        if self.settings.jobs is not JobPlace.AUTO:
            return self.settings.jobs
        told = self._given is not None or bool(self.settings.spark_remote)
        return JobPlace.WORKER if self._goes_on and not told else JobPlace.INLINE

    # ---- the compactor -------------------------------------------------------------------------------------------

    def compactor(
        self,
        *,
        names: Callable[[], list[str] | None] = lambda: None,
        only: Sequence[str] | None = None,
        tell: "Tell" = lambda _told: None,
        goes_on: bool = True,
    ) -> "Caretaker":
        """Return what keeps this lake in shape by itself: start it, stop it, ask it. At most one of a lake works at a time.

        Args:
            names: returns the datasets to look after, asked before each cycle; None means all.
            only: kinds of work and names of tiers; all unless told.
            tell: is told what happens, from other threads.
            goes_on: false for a single cycle, whose jobs need no process of their own unless the setting `jobs` says so.

        Raises:
            InvalidRequest: the role may not compact, an unknown work, or settings that contradict each other.
        """
        from siltstone.scheduler.caretaker import Caretaker
        from siltstone.storage.spark import interrupt

        self._goes_on = goes_on
        return Caretaker(
            self._housework(), self._office(), crons=self._crons, names=names, only=only, tell=tell, interrupt=interrupt
        )

    def _crons(self) -> dict[str, str | None]:
        """Return the works of this lake and its datasets, and when each is due; remember which tiers there are."""
        from siltstone.scheduler.works import crons, tier_of

        found = crons(self.settings, of_datasets=self._dataset_tiers())
        self._tiers = frozenset(map(tier_of, found))
        return found

    def _dataset_tiers(self) -> "list[Tier]":
        """Return the tiers of all logs; those of one that cannot be read are left to its cycles to complain about."""
        from siltstone.dataset.tiers import dataset_tiers

        found: list[Tier] = []
        for one in self._registry.all():
            with suppress(SiltstoneError):
                store = self._registry.store(one)
                found += dataset_tiers(store) if store.spec.is_log else ()
        return found

    def ask(self, wish: "Wish", *, tell: "Tell" = lambda _told: None) -> "Answer":
        """Have something compacted: here under the lease if it is free, by the compactor that holds it otherwise.

        Raises:
            InvalidRequest: the role may not compact, or what is asked for cannot be. Nothing was changed.
            Conflict: a cycle was asked for while one is running.
        """
        from siltstone.model.requests import Ask
        from siltstone.scheduler.asking import Asking

        self.require()
        check_may_compact(self.settings.role, doing=wish.what)
        if wish.ask is not Ask.CYCLE:
            self._asked_plan(wish)  # what is wrong with it is said before anybody is asked
        return Asking(self._housework(), self._office()).ask(wish, tell=tell)

    def compactor_overview(self) -> dict[str, Any]:
        """Return how this lake's compactor stands, wherever it runs, as plain data."""
        from siltstone.scheduler.overview import overview

        self.require()
        return overview(self._office())

    def pause_compactor(self) -> None:
        """Let no compactor of this lake run anything by the clock until somebody resumes; a cycle that runs goes on."""
        from siltstone.scheduler.overview import pause

        self.require()
        check_may_compact(self.settings.role, doing="pause the compactor")
        pause(self._office().notes, self._clock)

    def resume_compactor(self) -> bool:
        """Let the compactor go on by the clock; return whether it was paused."""
        from siltstone.scheduler.overview import resume

        self.require()
        check_may_compact(self.settings.role, doing="resume the compactor")
        return resume(self._office().notes)

    def stop_compactor(self, *, seconds: float) -> str | None:
        """Ask the compactor that holds the lease to stop, and wait for it; return who has taken over, if somebody has.

        Raises:
            NotFound: none is running.
            Conflict: the lease is held by a single command.
            Unavailable: it has not stopped within that time.
        """
        from siltstone.scheduler.asking import Asking

        self.require()
        check_may_compact(self.settings.role, doing="stop the compactor")
        return Asking(self._housework(), self._office()).stop(seconds=seconds)

    def names(self) -> list[str]:
        """Return the names of all datasets."""
        return [str(found.name) for found in self._registry.all()]

    def highest_epoch(self, names: Sequence[str]) -> int:
        """Return the highest epoch that has committed to any of these datasets.

        Those that are gone or cannot be read are left out: they have no jobs, or jobs that say so.
        """
        highest = 0
        for name in names:
            with suppress(SiltstoneError, LogMoved):
                highest = max(highest, self._store(name).snapshot().epoch)
        return highest

    def _housework(self) -> "Housework":
        from siltstone.scheduler.housework import Housework

        return Housework(self, clock=self._clock)

    def _office(self) -> "Office":
        from siltstone.scheduler.housework import Office
        from siltstone.storage.leases import Leases
        from siltstone.storage.notes import Notes
        from siltstone.storage.requests import Requests

        durable = self.settings.durable
        return Office(
            leases=Leases(self._layout, self.settings, self._clock),
            requests=Requests(self._layout, clock=self._clock, durable=durable),
            notes=Notes(self._layout, durable=durable),
            settings=self.settings,
            clock=self._clock,
            last_cycle=self._last_cycle,
        )

    def _last_cycle(self) -> int:
        """Return the number of the last cycle of the journal; 0 where it cannot be read, which a cycle finds out by itself."""
        try:
            return self._journal.next_cycle() - 1
        except SiltstoneError:
            return 0

    def _leased(self) -> int:
        from siltstone.storage.leases import Leases

        return Leases(self._layout, self.settings, self._clock).epoch()

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

    @property
    def hot(self) -> "HotCache":
        """The hot cache of this process: datasets as merged rows in memory, without Spark."""
        with self._hot_mutex:
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
        """End the workers, finish background upkeep, and let go of the journal and the hot cache."""
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

    def _store(self, name: str) -> Store:
        return self._registry.store(self._registry.find(DatasetName.parse(name)))

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
