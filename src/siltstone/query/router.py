"""The router: chooses the engine that answers a query.

0. A worker thread runs the query. Its caller waits no longer than the time limit (`cancellation.py`).
1. The gate admits the text, or returns it from its cache.
2. The query is translated for the hot engine, or rejected with the reason why it is outside the subset.
3. If every dataset is resident, the hot engine answers from one snapshot of all. Small datasets that are not
   resident are filled first, because that is quicker than Spark's first answer.
4. Otherwise Spark answers, and the missed datasets are filled in the background.
5. Results are cached by query, parameter values and the state of every dataset. They are reused while these are the
   same.

Spark answers every query that the hot engine cannot answer exactly as Spark does. The result has the engine and the
reason.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.store import Store
from siltstone.errors import Gone, InvalidRequest, NotFound, Unavailable
from siltstone.model.numbers import MAX_RESULT_ROWS, whole_number
from siltstone.model.units import BYTES_PER_MB
from siltstone.query import hot_executor
from siltstone.query.cancellation import (
    ActiveQueries,
    ActiveQuery,
    CancelToken,
    InterruptibleExecutor,
    stream_from_thread,
)
from siltstone.query.gate.admit import admit
from siltstone.query.gate.checked_query import CheckedQuery
from siltstone.query.hot.resident import NotResident, State, state_of
from siltstone.query.hot.residents import WaitPolicy
from siltstone.query.hot_executor import HotExecutionFailed, HotPlan, Translations
from siltstone.query.result import QueryResult
from siltstone.query.result_cache import ResultCache
from siltstone.query.spark_executor import SparkQuery
from siltstone.query.translate import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.query.hot.cache import HotCache, HotSnapshot
    from siltstone.query.hot.dataset_resolver import DatasetResolver

MAX_ID_CHARS: Final = 128
FILLS: Final = 4
"""Most fills of datasets for one query. Another thread may evict them before the query reads them."""
AT_ONCE_WAIT_SECONDS: Final = 2.0
"""Longest wait for other fills before a small fill, if Spark can answer as well."""
_T = TypeVar("_T")


class Engine(StrEnum):
    """The engine that is to answer."""

    AUTO = "auto"
    HOT = "hot"
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """A query and its options."""

    text: str
    params: Mapping[str, object] = field(default_factory=dict)
    engine: Engine = Engine.AUTO
    max_rows: int
    limit_given: bool = True
    """True if the caller chose `max_rows`; see `query/result.py`."""
    seconds: float = 0.0
    catalog: str | None = None
    schema: str | None = None
    query_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlanInfo:
    """The engine that would answer a query, and its plan."""

    engine: str
    reason: str
    datasets: Mapping[str, str]
    """For each dataset, whether it is resident or may become so."""
    plan: str


class _NotHot(Exception):  # noqa: N818
    """The hot engine does not answer; the message has the reason."""

    def __init__(self, reason: str, *, names: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.names = names
        """Datasets that would have to be resident."""


class Router:
    """Answers queries of one lake. Thread-safe."""

    def __init__(
        self,
        *,
        hot: "Callable[[], HotCache]",
        resolver: "DatasetResolver",
        spark: "Callable[[], SparkSession]",
        dataset: Callable[[str], Dataset],
        settings: Settings,
        clock: Clock,
        has_spark: Callable[[], bool],
        fill_in_background: bool,
    ) -> None:
        """Create a router. Neither engine is started before it is needed.

        With `fill_in_background`, missed datasets are filled after the answer. It is false in a process that ends with
        its answer.
        """
        self._fill_in_background = fill_in_background
        self._hot = hot
        self._resolver = resolver
        self._spark = spark
        self._has_spark = has_spark
        self._dataset = dataset
        self._settings = settings
        self._clock = clock
        self._active = ActiveQueries()
        self._executor = InterruptibleExecutor()
        self._results = ResultCache(settings.result_cache_mb * BYTES_PER_MB)
        self._translations = Translations()

    def request(
        self,
        text: str,
        *,
        params: Mapping[str, object] | None = None,
        engine: str = Engine.AUTO,
        max_rows: int | None = None,
        timeout: float | None = None,
        catalog: str | None = None,
        schema: str | None = None,
        query_id: str | None = None,
    ) -> QueryRequest:
        """Return a request with the settings as defaults; see `Lake.sql`.

        Raises:
            InvalidRequest: there is no such engine.
        """
        if engine not in tuple(Engine):
            raise InvalidRequest(f"An engine is one of {', '.join(Engine)}, not {engine!r}.")
        return QueryRequest(
            text=text,
            params=params or {},
            engine=Engine(engine),
            max_rows=self._settings.max_rows if max_rows is None else max_rows,
            limit_given=max_rows is not None,
            seconds=self._settings.query_seconds if timeout is None else timeout,
            catalog=catalog or self._settings.default_catalog or None,
            schema=schema or self._settings.default_schema or None,
            query_id=query_id,
        )

    def execute(self, request: QueryRequest) -> QueryResult:
        """Answer a query.

        Raises:
            InvalidRequest: the query is not allowed, an engine rejects it, or the hot engine was requested and cannot
                answer.
            NotFound: it names a dataset that does not exist.
            Conflict: a query with that id is running.
            Corruption: a live file is lost or damaged; the message names it.
            Unavailable: the time is up, the query was cancelled, or Spark was lost.
        """
        started = time.monotonic()
        max_rows = whole_number("max_rows, the most rows of a result,", request.max_rows, least=1, most=MAX_RESULT_ROWS)
        request = replace(request, max_rows=max_rows)
        query = self._begin(request)

        def work() -> tuple[QueryResult, CheckedQuery]:
            admitted = _admit(request)
            query.cache_generation = self._results.generation
            return self._route(request, admitted, query), admitted

        result, admitted = self._run_in_thread(query, work)
        seconds = time.monotonic() - started
        result = replace(result, seconds=seconds, query_id=query.query_id, limit_given=request.limit_given)
        self._results.put_pages(result, admitted.names, since=query.cache_generation)
        return result

    def stream(self, request: QueryRequest, *, cancellation: CancelToken | None = None) -> pa.RecordBatchReader:
        """Answer a query on Spark with all its rows, as a stream.

        Raises:
            InvalidRequest, NotFound, Corruption, Unavailable: see `execute`; also while the rows are read.
        """
        query = self._begin(request, cancellation)

        def listed() -> Iterator[pa.Schema | pa.RecordBatch]:
            with self._active.listed(query):
                yield from self._spark_query(_admit(request), query).batches()

        batches = stream_from_thread(listed, end=query.cancel, give_up=query.give_up)
        schema = next(batches)
        if not isinstance(schema, pa.Schema):
            raise TypeError("a stream begins with its schema")
        return pa.RecordBatchReader.from_batches(schema, batches)

    def cancel(self, query_id: str) -> None:
        """Cancel a running query; its caller gets Unavailable.

        Raises:
            NotFound: no query with that id is running in this process.
        """
        self._active.cancel(query_id)

    def close(self) -> None:
        """Cancel all running queries; their callers get Unavailable."""
        self._active.cancel_all()

    def running(self) -> list[str]:
        """Return the ids of the running queries."""
        return self._active.ids()

    def page(self, query_id: str, number: int, *, size: int = 100) -> QueryResult:
        """Return one page, counted from 1, of one of the last 50 results.

        Raises:
            InvalidRequest: the page number or the page size is out of bounds.
            NotFound: that result is not in the cache.
        """
        for name in self._results.datasets(query_id):
            try:
                store = self._resolver.store(name).current()
                self._results.check_purges(name, (store.incarnation, store.snapshot().epoch))
            except (Gone, NotFound):
                self._results.clear()
        return self._results.page(query_id, number, size=size)

    def forget(self) -> None:
        """Clear the result cache, because purged or erased data must not stay in memory."""
        self._results.clear()

    def explain(self, request: QueryRequest) -> QueryPlanInfo:
        """Return the engine that would answer, the reason and the plan, without running the query.

        Small datasets that the query would fill are filled. Spark is started only for the engine ``spark``.

        Raises:
            InvalidRequest: see `execute`.
            Unavailable: the time is up, or Spark was lost.
        """
        query = self._begin(request)
        return self._run_in_thread(query, lambda: self._explain(request, query))

    def _begin(self, request: QueryRequest, cancellation: CancelToken | None = None) -> ActiveQuery:
        """Validate the options of a query, and start its time limit."""
        seconds: object = request.seconds
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise InvalidRequest(
                f"A time limit is a number of seconds, or 0 for none, not {seconds!r} (--timeout or timeout=)."
            )
        query_id: object = request.query_id or self._clock.new_id()
        if not isinstance(query_id, str) or len(query_id) > MAX_ID_CHARS or not query_id.isprintable():
            raise InvalidRequest(f"The id of a query is text of at most {MAX_ID_CHARS} characters that can be printed.")
        return ActiveQuery(query_id, seconds, token=cancellation)

    def _run_in_thread(self, query: ActiveQuery, work: Callable[[], _T]) -> _T:
        """Run work for a query on another thread. The caller waits no longer than the time limit."""

        def listed() -> _T:
            with self._active.listed(query):
                return work()

        try:
            return self._executor.run(listed, interrupt=query.cancel, give_up=query.give_up)
        except BaseException:
            query.abandon()  # after Ctrl-C it may still run, because a starting Spark receives no interrupt
            raise

    def _spark_query(self, admitted: CheckedQuery, query: ActiveQuery) -> SparkQuery:
        query.check()
        most_pairs = self._settings.query_pairs
        return SparkQuery(admitted, spark=self._spark, dataset=self._dataset, query=query, most_pairs=most_pairs)

    def _explain(self, request: QueryRequest, query: ActiveQuery) -> QueryPlanInfo:
        admitted = _admit(request)
        query.check()
        names = admitted.names
        decisions = {name: self._hot().decide(name) for name in names}
        resident = {name: decision.reason for name, decision in decisions.items()}
        try:
            self._check_hot_allowed(request, admitted)
            self._fill_missing(request, admitted, query)
            with self._hot_snapshot(request, admitted) as view:
                plan = self._plan(view.schemas, request, admitted)
                text = hot_executor.explained(plan, admitted.parameters, view)
            reason = "The query's datasets are first read into memory."
            if all(decision.resident for decision in decisions.values()):
                reason = _why_hot(names)
            return QueryPlanInfo(engine=Engine.HOT, reason=reason, datasets=resident, plan=text)
        except (_NotHot, NotResident, HotExecutionFailed) as miss:
            reason = str(miss)
        if request.engine is Engine.HOT:
            raise InvalidRequest(f"The hot engine cannot answer this: {reason}")
        start = request.engine is Engine.SPARK or self._has_spark()
        text = self._spark_query(admitted, query).explain(start=start)
        return QueryPlanInfo(engine=Engine.SPARK, reason=reason, datasets=resident, plan=text)

    def _route(self, request: QueryRequest, admitted: CheckedQuery, query: ActiveQuery) -> QueryResult:
        missed: tuple[str, ...] = ()
        try:
            return self._answer_hot(request, admitted, query)
        except _NotHot as miss:
            reason, missed = str(miss), miss.names
        except NotResident as miss:
            reason, missed = str(miss), admitted.names
        except HotExecutionFailed as failed:
            if request.engine is Engine.HOT:
                raise InvalidRequest(
                    f"The hot engine could not answer: {failed}. With the engine auto, Spark answers.",
                    reason=failed.reason,
                ) from failed
            reason = f"The hot engine could not answer: {failed}."
        if request.engine is Engine.HOT:
            raise InvalidRequest(
                f"The hot engine cannot answer this query. {reason} With the engine auto, Spark answers."
            )
        result = self._answer_on_spark(request, admitted, query, reason)
        if self._fill_in_background and request.engine is Engine.AUTO:
            for name in missed:
                self._hot().want(name)
        return result

    def _answer_hot(self, request: QueryRequest, admitted: CheckedQuery, query: ActiveQuery) -> QueryResult:
        """Answer from memory. Datasets that are not resident are filled, again if they are evicted before the read."""
        self._check_hot_allowed(request, admitted)
        for _ in range(FILLS):
            try:
                return self._answer_from_snapshot(request, admitted, query)
            except NotResident:
                self._fill_missing(request, admitted, query)
        try:
            return self._answer_from_snapshot(request, admitted, query)
        except NotResident as miss:
            if request.engine is Engine.HOT:
                raise Unavailable(
                    f"{miss} This happened after each of {FILLS} fills, before the read. Try again."
                ) from miss
            raise

    @staticmethod
    def _check_hot_allowed(request: QueryRequest, admitted: CheckedQuery) -> None:
        if request.engine is Engine.SPARK:
            raise _NotHot("The engine spark was requested.")
        if len({source.raw for source in admitted.references}) > 1:
            raise _NotHot("It reads raw rows beside merged ones.")

    def _answer_from_snapshot(self, request: QueryRequest, admitted: CheckedQuery, query: ActiveQuery) -> QueryResult:
        with self._hot_snapshot(request, admitted) as view:
            plan = self._plan(view.schemas, request, admitted)
            key = self._key(request, admitted, view.states)
            for name, purges in view.purges.items():
                query.cache_generation += self._results.check_purges(name, purges)  # the query reads after the purge
            cached = self._results.get(key)
            if cached is not None and (cached.engine == Engine.HOT or request.engine is not Engine.HOT):
                return replace(cached, cached=True)
            table = hot_executor.answer(plan, admitted.parameters, view, query)
        result = _result(request, table, Engine.HOT, _why_hot(admitted.names))
        self._results.put(key, result, since=query.cache_generation)
        return result

    @contextmanager
    def _hot_snapshot(self, request: QueryRequest, admitted: CheckedQuery) -> "Iterator[HotSnapshot]":
        """Give the resident datasets of a query, or the raw rows of small datasets, read for this query only."""
        names = admitted.names
        if not admitted.is_raw:
            with self._hot().snapshot(names) as view:
                yield view
            return
        stores = {name: self._resolver.store(name).current() for name in names}
        self._plan({name: store.schema for name, store in stores.items()}, request, admitted)
        if sum(map(_rows, stores.values())) > self._settings.hot_at_once_rows:
            raise _NotHot("Its raw rows are too many to be read at once (the setting hot_at_once_rows).")
        rows = {name: self._dataset(name).to_arrow(raw=True) for name in names}
        with self._hot().snapshot(()) as view, hot_executor.registered(view, rows) as raw_view:
            yield raw_view

    def _plan(self, schemas: Mapping[str, pa.Schema], request: QueryRequest, admitted: CheckedQuery) -> HotPlan:
        try:
            return self._translations.plan(admitted, schemas, max_rows=request.max_rows)
        except Unsupported as error:
            raise _NotHot(f"Outside the hot subset: {error}.") from error

    def _fill_missing(self, request: QueryRequest, admitted: CheckedQuery, query: ActiveQuery) -> None:
        """Fill a query's datasets that are not resident, if they are small or the hot engine was requested.

        A query outside the subset fills nothing. If the hot engine was requested, the query waits for other fills until
        its time limit. Otherwise it waits `AT_ONCE_WAIT_SECONDS`, because Spark is quicker then.
        """
        if admitted.is_raw:
            return
        hot_only = request.engine is Engine.HOT
        names = admitted.names
        stores = {name: self._resolver.store(name).current() for name in names}
        self._plan({name: store.schema for name, store in stores.items()}, request, admitted)
        cache = self._hot()
        decisions = {name: cache.decide(name) for name in names}
        missing = {name: decision for name, decision in decisions.items() if not decision.resident}
        rows = sum(_rows(stores[name]) for name in missing)
        for name, decision in missing.items():
            free = decision.filling or (decision.admitted and not decision.evict)
            small = rows <= self._settings.hot_at_once_rows and free
            if not small and not hot_only:
                raise _NotHot(f"{name}: {decision.reason}", names=tuple(missing))
        wait = WaitPolicy(seconds=math.inf if hot_only else AT_ONCE_WAIT_SECONDS, check=query.check)
        for name in missing:
            cache.fill(name, by_name=hot_only, wait=wait)

    def _answer_on_spark(
        self, request: QueryRequest, admitted: CheckedQuery, query: ActiveQuery, reason: str
    ) -> QueryResult:
        before = self._states(admitted, query)
        key = self._key(request, admitted, before)
        cached = self._results.get(key)
        if cached is not None and cached.engine == Engine.SPARK:
            return replace(cached, cached=True)
        table = self._spark_query(admitted, query).answer(request.max_rows + 1)
        result = _result(request, table, Engine.SPARK, reason)
        if before == self._states(admitted):  # unchanged states mean that the query has read this state
            self._results.put(key, result, since=query.cache_generation)
        return result

    def _states(self, admitted: CheckedQuery, query: ActiveQuery | None = None) -> dict[str, State]:
        """Return the states of the datasets.

        This may detect a purge and clear the result cache. The generation of `query` follows, because the query has
        read nothing yet.
        """
        states = {}
        for name in admitted.names:
            store = self._resolver.store(name).current()
            snapshot = store.snapshot()
            is_cleared = self._results.check_purges(name, (store.incarnation, snapshot.epoch))
            if query is not None:
                query.cache_generation += is_cleared
            states[name] = state_of(store, snapshot)
        return states

    @staticmethod
    def _key(request: QueryRequest, admitted: CheckedQuery, states: Mapping[str, State]) -> Hashable | None:
        """Return the key of a result in the cache; None if it cannot be cached."""
        if not admitted.is_cacheable:
            return None
        engine = request.engine if request.engine is Engine.SPARK else Engine.AUTO
        values = tuple(sorted((name, type(value).__name__, str(value)) for name, value in admitted.parameters.items()))
        return (engine, admitted.normalised, values, request.max_rows, tuple(sorted(states.items())))


def _admit(request: QueryRequest) -> CheckedQuery:
    return admit(request.text, parameters=request.params, catalog=request.catalog, schema=request.schema)


def _result(request: QueryRequest, table: pa.Table, engine: Engine, reason: str) -> QueryResult:
    """Return a result of at most `max_rows` rows. The table has one row more if there are more."""
    truncated = table.num_rows > request.max_rows
    return QueryResult(
        table=table.slice(0, request.max_rows), engine=engine, reason=reason, truncated=truncated, seconds=0.0
    )


def _why_hot(names: tuple[str, ...]) -> str:
    if not names:
        return "It reads no dataset."
    return "Every dataset is in memory." if len(names) > 1 else "The dataset is in memory."


def _rows(store: Store) -> int:
    snapshot = store.snapshot()
    return snapshot.base.rows + snapshot.unfolded_rows
