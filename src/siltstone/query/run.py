"""Answering a query on Spark.

1. Every dataset is pinned once; its frame becomes a view with a name that nobody can guess, for the duration of the query.
2. The text that the gate wrote is sent.
3. At most `max_rows` rows come back at once, or all of them as a stream, a few thousand at a time.

A query carries a tag, by which it is ended when its time is up or when somebody asks for that.
"""

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from sqlglot import exp

from siltstone.dataset.dataset import SNAPSHOT_TRIES, Dataset
from siltstone.errors import Corruption, InvalidRequest, SiltstoneError, Unavailable
from siltstone.query.admitted import Admitted, Source
from siltstone.query.gate import source_of, spark_text
from siltstone.query.product import Known, check_product, has_products
from siltstone.query.result import QueryResult, answered_schema, as_answered_batch
from siltstone.query.stream import as_batches, batches_of
from siltstone.storage.spark import answering, ended_out_of_memory
from siltstone.storage.spark_failures import (
    away,
    error_line,
    is_away,
    is_missing_file,
    out_of_memory,
    says_out_of_memory,
    spark_errors,
)
from siltstone.storage.spark_tags import add_tag, interrupt_tag, remove_tag, stop_tasks_when_ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_ROWS: Final = 100_000
NO_PLAN: Final = "Error occurred during query planning"
"""How Spark's plan of a query begins that it cannot plan."""
_PLACE: Final = re.compile(r"\b(?:file|s3a?|abfss?|gs|hdfs|dbfs|wasbs?):/[^\s,\]\)]*|(?<![\w.])/(?:[\w.=-]+/)+[\w.=-]*")
"""Addresses and paths, as plans show them."""
INTERRUPT_SECONDS: Final = 0.5
"""How often a query that is to end is interrupted: Spark forgets an interrupt that comes between two jobs."""


class Cancellation:
    """A way to end a query from another thread: before it, while it runs, or in vain."""

    def __init__(self) -> None:
        self._asked = Event()

    def cancel(self) -> None:
        """End the query; who waits for it gets Unavailable."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        """True once somebody has asked for the end."""
        return self._asked.is_set()

    def wait(self, seconds: float | None) -> bool:
        """Wait until somebody asks; return whether that is so."""
        return self._asked.wait(seconds)


class SparkQuery:
    """One admitted query, to be answered by Spark."""

    def __init__(
        self,
        admitted: Admitted,
        *,
        spark: "Callable[[], SparkSession]",
        dataset: Callable[[str], Dataset],
        seconds: float = 0.0,
        limit: float = 0.0,
        most_pairs: int = 0,
        cancellation: Cancellation | None = None,
    ) -> None:
        """Say what is asked of whom; `most_pairs` is the limit of `query/product.py`, 0 for none.

        `seconds` is what is left of the time limit, 0 for none, and `limit` all of it.
        """
        self._admitted, self._spark, self._dataset, self._seconds = admitted, spark, dataset, seconds
        self._limit, self._most_pairs = limit or seconds, most_pairs
        self._cancellation = cancellation or Cancellation()
        self._late = False

    def answer(self, max_rows: int) -> QueryResult:
        """Return at most so many rows.

        Raises:
            InvalidRequest: Spark refuses the query, or `max_rows` is out of bounds.
            NotFound: it names a dataset that does not exist.
            Corruption: a live file is lost; the message names it.
            Unavailable: Spark went away, the time is up, or the query was cancelled.
        """
        check_max_rows(max_rows)
        started = time.monotonic()
        opened = self._opened()
        self._check_product(opened)
        session = self._session()
        failure: Exception | None = None
        for _ in range(SNAPSHOT_TRIES):
            try:
                with self._running(session), self._asked(session, opened) as frame:
                    table = _rows(frame, max_rows + 1)
            except _failures() as error:
                failure = self._missing_file(error)
                continue
            return QueryResult(
                table=table.slice(0, max_rows),
                engine="spark",
                truncated=table.num_rows > max_rows,
                seconds=time.monotonic() - started,
            )
        raise _vanished(opened, "Files kept disappearing while the query ran. Try again.") from failure

    def stream(self) -> pa.RecordBatchReader:
        """Return all rows as record batches, which come as they are read; memory holds a few of them at a time.

        Raises:
            InvalidRequest: Spark refuses the query.
            NotFound: it names a dataset that does not exist.
            Corruption: a live file is lost; the message names it.
            Unavailable: Spark went away, the time is up, the query was cancelled, or a file disappeared: ask anew.
        """
        opened = self._opened()
        self._check_product(opened)
        made = self._batches(self._session(), opened)
        schema = next(made)
        if not isinstance(schema, pa.Schema):
            raise TypeError("a stream begins with its schema")
        return pa.RecordBatchReader.from_batches(schema, made)

    def explain(self) -> str:
        """Return Spark's plan of the query, without the places of files; no rows are read.

        Raises:
            InvalidRequest: Spark refuses the query, or it would be refused as a product of too many rows.
            NotFound: it names a dataset that does not exist.
            Corruption: a live file is lost; the message names it.
            Unavailable: Spark went away, or the query was cancelled.
        """
        opened = self._opened()
        self._check_product(opened)
        session = self._session()
        try:
            with self._running(session), self._asked(session, opened, before="EXPLAIN FORMATTED ") as frame:
                plan = str(_rows(frame, 1).column(0)[0])
            if plan.startswith(NO_PLAN):  # what is wrong is said only to who asks the query itself
                with self._running(session), self._asked(session, opened) as frame:
                    _rows(frame, 0)
            return _without_places(plan)
        except _failures() as error:
            failure = self._missing_file(error)
            raise _vanished(opened, "A file disappeared while the query was planned. Ask again.") from failure

    def _batches(self, session: "SparkSession", opened: Mapping[str, Dataset]) -> Iterator[pa.Schema | pa.RecordBatch]:
        try:
            with self._running(session), self._asked(session, opened) as frame:
                schema = _rows(frame, 0).schema
                yield answered_schema(schema)
                for batch in batches_of(as_batches(frame), schema):
                    if self._cancellation.asked:
                        raise self._ended()
                    yield as_answered_batch(batch)
        except _failures() as error:
            failure = self._missing_file(error)
            raise _vanished(opened, "A file disappeared while the rows were read. Ask again.") from failure

    def _session(self) -> "SparkSession":
        """Return where the query is answered; a session that was lost is told by whoever asks it."""
        found = self._spark()
        try:
            return answering(found)
        except _failures() as error:
            raise self._missing_file(error) from error

    def _opened(self) -> dict[str, Dataset]:
        return {str(source.name): self._dataset(str(source.name)) for source in self._admitted.references}

    def _check_product(self, opened: Mapping[str, Dataset]) -> None:
        """Refuse, before Spark is asked for, what Spark could not be stopped from."""
        if not self._most_pairs or not has_products(self._admitted.checked):
            return
        known = {name: _known(found) for name, found in opened.items()}

        def dataset(table: exp.Table) -> Known:
            return known[str(source_of(self._admitted, table).name)]

        check_product(self._admitted.checked, dataset, most=self._most_pairs)

    def _missing_file(self, error: Exception) -> Exception:
        """Return the error if it means that a file is gone; raise what any other one means."""
        if self._cancellation.asked:
            raise self._ended() from error
        if isinstance(error, FileNotFoundError) or is_missing_file(error):
            return error
        if says_out_of_memory(str(error)) or (is_away(error) and ended_out_of_memory()):
            raise out_of_memory() from error
        if is_away(error):
            raise away(error) from error
        raise InvalidRequest(f"Spark refused the query: {error_line(error)}") from error

    def _ended(self) -> SiltstoneError:
        if self._late:
            return Unavailable(
                f"The query took longer than {self._limit:g} s and was ended. Ask for less, or raise the limit "
                "(query_seconds)."
            )
        return Unavailable("The query was cancelled.")

    @contextmanager
    def _asked(
        self, session: "SparkSession", opened: Mapping[str, Dataset], *, before: str = ""
    ) -> Iterator["DataFrame"]:
        """Give the frame of the query, over views that are there as long as it is; `before` is put before its text."""
        pinned = {name: found.snapshot() for name, found in opened.items()}
        views: dict[Source, str] = {}
        mark = uuid.uuid4().hex  # noqa: TID251
        try:
            for number, source in enumerate(self._admitted.references):
                name = str(source.name)
                frame = opened[name].read_at(pinned[name], raw=source.raw, once=True, session=session)
                views[source] = f"silt_{mark}_{number}"
                frame.createOrReplaceTempView(views[source])
            text = before + spark_text(self._admitted, views, common=f"silt_{mark}_with_{{}}".format)
            yield session.sql(text)
        finally:
            _drop(session, views)

    @contextmanager
    def _running(self, session: "SparkSession") -> Iterator[None]:
        """Let what this thread asks of Spark end when the time is up or somebody cancels it."""
        if self._cancellation.asked:
            raise self._ended()
        tag, done = f"silt-query-{uuid.uuid4().hex}", Event()  # noqa: TID251
        watcher = Thread(target=self._watch, args=(session, tag, done), name=tag, daemon=True)
        stop_tasks_when_ended(session)
        add_tag(session, tag)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            remove_tag(session, tag)

    def _watch(self, session: "SparkSession", tag: str, done: Event) -> None:
        """Wait for the end of the query, of its time or of somebody's patience."""
        ends = time.monotonic() + self._seconds if self._seconds else None
        while not done.is_set():
            if self._cancellation.wait(INTERRUPT_SECONDS / 10):
                break
            if ends is not None and time.monotonic() >= ends:
                self._late = True
                self._cancellation.cancel()
                break
        while not done.wait(INTERRUPT_SECONDS):
            interrupt_tag(session, tag)


def check_max_rows(max_rows: object) -> None:
    """Refuse a number of rows that is out of bounds.

    Raises:
        InvalidRequest: it is.
    """
    if not isinstance(max_rows, int) or isinstance(max_rows, bool) or not 1 <= max_rows <= MAX_ROWS:
        raise InvalidRequest(
            f"A query returns 1 to {MAX_ROWS:,} rows at most, not {max_rows!r} (--max-rows or max_rows=)."
        )


def _known(dataset: Dataset) -> Known:
    snapshot = dataset.snapshot()
    rows = sum(file.rows for file in snapshot.base.files) + snapshot.unfolded_rows
    return Known(rows=rows, columns=frozenset(name.lower() for name in dataset.schema.names))


def _vanished(opened: Mapping[str, Dataset], otherwise: str) -> SiltstoneError:
    """Return what names a live file that is lost; Unavailable with these words if none is."""
    found = [dataset.files_vanished() for dataset in opened.values()]
    return next((error for error in found if isinstance(error, Corruption)), Unavailable(otherwise))


def _without_places(plan: str) -> str:
    """Hide where files lie: a plan is for whoever may ask, the place of a lake is not."""
    return _PLACE.sub("<files>", plan)


def _failures() -> tuple[type[Exception], ...]:
    return (FileNotFoundError, *spark_errors())


def _rows(frame: "DataFrame", most: int) -> pa.Table:
    return frame.limit(most).toArrow()


def _drop(session: "SparkSession", views: Mapping[Source, str]) -> None:
    """Drop the query's views; where Spark is gone, so are they."""
    for view in views.values():
        with suppress(*spark_errors()):
            session.catalog.dropTempView(view)
