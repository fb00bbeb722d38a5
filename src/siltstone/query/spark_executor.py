"""Answers a query on Spark.

1. Every dataset is pinned once. Its frame becomes a view with an unguessable name for the duration of the query.
2. The text that the gate has written is sent.
3. At most `max_rows` rows are returned at once, or all rows as a stream, a few thousand at a time.

A query has a tag. `cancellation.py` interrupts Spark by that tag once the query is cancelled or its time is up.

Streams: Spark's public API fetches a frame as one Arrow table, or as single Python rows. So the tasks pack each Arrow
batch into *one* row of bytes, and an iterator over rows fetches it. The driver holds the batches of one partition,
never all rows.
"""

import functools
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import pyarrow as pa
from sqlglot import exp

from siltstone.dataset.dataset import Dataset
from siltstone.dataset.read.retry import SNAPSHOT_TRIES
from siltstone.errors import Corruption, InvalidRequest, Reason, SiltstoneError, Unavailable
from siltstone.query.cancellation import ActiveQuery
from siltstone.query.gate.admit import source_of, spark_text
from siltstone.query.gate.checked_query import CheckedQuery, Source
from siltstone.query.gate.column_check import check_names
from siltstone.query.gate.cross_join_guard import DatasetSize, check_expansion, check_product
from siltstone.query.result import answered_schema, as_answered, as_answered_batch
from siltstone.spark.arrow_tasks import send_by_value
from siltstone.spark.errors import (
    away,
    damage,
    error_line,
    is_away,
    is_missing_file,
    leaves_end_unknown,
    names_data_file,
    out_of_memory,
    says_out_of_memory,
    spark_errors,
)
from siltstone.spark.job_tags import add_tag, interrupt_tag, remove_tag, stop_tasks_when_ended
from siltstone.spark.session import answering, ended_out_of_memory, suspect, was_ended
from siltstone.spark_tasks import stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_PLAN: Final = "Error occurred during query planning"
"""Prefix of EXPLAIN output for a query that Spark cannot plan."""
_PLACE: Final = re.compile(r"\b(?:file|s3a?|abfss?|gs|hdfs|dbfs|wasbs?):/[^\s,\]\)]*|(?<![\w.])/(?:[\w.=-]+/)+[\w.=-]*")
"""Addresses and paths in a plan."""
INTERRUPT_SECONDS: Final = 0.5
"""Interval between interrupts of a cancelled query. Spark forgets an interrupt between two jobs."""
SERVER_ENDED: Final = (
    "The shared Spark server for queries was ended, because another query on it could not be stopped. Nothing was changed. "
    "Try again: the next query starts another server."
)
_T = TypeVar("_T")
_P = ParamSpec("_P")


class _ServerEndedError(Unavailable):
    """The shared server was ended because of another query."""


def _retried(run: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run a query once more if the server was ended because of another query. A read changes nothing."""

    @functools.wraps(run)
    def retried(*args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return run(*args, **named)
        except _ServerEndedError:
            return run(*args, **named)

    return retried


class SparkQuery:
    """One admitted query, to be answered by Spark."""

    def __init__(
        self,
        admitted: CheckedQuery,
        *,
        spark: "Callable[[], SparkSession]",
        dataset: Callable[[str], Dataset],
        query: ActiveQuery,
        most_pairs: int = 0,
    ) -> None:
        """Prepare a query. `most_pairs` is the limit of `query/gate/cross_join_guard.py`; 0 means no limit."""
        self._admitted, self._spark, self._dataset = admitted, spark, dataset
        self._most_pairs, self._query = most_pairs, query
        self._session_used: SparkSession | None = None

    @_retried
    def answer(self, most: int) -> pa.Table:
        """Return at most `most` rows. Errors are those of `Router.execute`."""
        opened = self._checked_datasets()
        session = self._session()
        failure: Exception | None = None
        for _ in range(SNAPSHOT_TRIES):
            try:
                with self._interruptible(session), self._frame(session, opened) as frame:
                    return as_answered(_rows(frame, most))
            except _failures() as error:
                failure = self._missing_file(error)
        raise _vanished(opened, "Files disappeared repeatedly while the query ran. Try again.") from failure

    def batches(self) -> Iterator[pa.Schema | pa.RecordBatch]:
        """Yield the schema, then all rows as record batches as they are read. Memory holds a few batches at a time.

        One thread must read all of it, because the tag of a query belongs to its thread. Errors are those of `answer`,
        and Unavailable also if a file disappeared. Run the query again then.
        """
        opened = self._checked_datasets()
        session = self._session()
        try:
            with self._interruptible(session), self._frame(session, opened) as frame:
                schema = _rows(frame, 0).schema
                yield answered_schema(schema)
                for batch in _batches(frame, schema):
                    self._query.check()
                    yield as_answered_batch(batch)
        except _failures() as error:
            failure = self._missing_file(error)
            raise _vanished(opened, "A file disappeared while the rows were read. Run the query again.") from failure

    @_retried
    def explain(self, *, start: bool) -> str:
        """Return Spark's plan of the query, without file paths; no rows are read.

        Without `start`, check the query and return the text for Spark, without starting Spark. Errors are those of
        `answer`.
        """
        opened = self._checked_datasets()
        if not start:
            return f"Spark is not running, so there is no plan yet. It would get:\n{self._admitted.normalised}"
        session = self._session()
        try:
            with self._interruptible(session), self._frame(session, opened, before="EXPLAIN FORMATTED ") as frame:
                plan = str(_rows(frame, 1).column(0)[0])
            if plan.startswith(NO_PLAN):  # EXPLAIN hides the error, running the query raises it
                with self._interruptible(session), self._frame(session, opened) as frame:
                    _rows(frame, 0)
            return _PLACE.sub("<files>", plan)  # everyone who may query sees a plan, and must not see where the lake is
        except _failures() as error:
            failure = self._missing_file(error)
            raise _vanished(opened, "A file disappeared while the query was planned. Run the query again.") from failure

    def _session(self) -> "SparkSession":
        """Return the session that answers the query."""
        self._query.check()
        self._session_used = session = self._spark()
        try:
            self._session_used = answering(session, subqueries=_has_subqueries(self._admitted.checked))
        except _failures() as error:
            raise self._missing_file(error) from error
        return self._session_used

    def _opened(self) -> dict[str, Dataset]:
        return {name: self._dataset(name) for name in self._admitted.names}

    def _checked_datasets(self) -> dict[str, Dataset]:
        """Open the datasets. Reject, before Spark starts, misspelt columns and queries that it cannot plan or interrupt."""
        opened = self._opened()
        check_expansion(self._admitted.checked)

        def dataset(table: exp.Table) -> Dataset:
            return opened[str(source_of(self._admitted, table).name)]

        def size(table: exp.Table) -> DatasetSize:
            snapshot = dataset(table).snapshot()
            columns = frozenset(name.lower() for name in dataset(table).schema.names)
            return DatasetSize(rows=snapshot.base.rows + snapshot.unfolded_rows, columns=columns)

        check_names(self._admitted.checked, lambda table: tuple(dataset(table).schema.names))
        check_product(self._admitted.checked, size, most=self._most_pairs)
        return opened

    def _missing_file(self, error: Exception) -> Exception:
        """Return the error if it means that a file is gone; otherwise raise the error that it means."""
        if self._query.is_cancelled:
            raise self._query.error() from error
        if isinstance(error, FileNotFoundError) or is_missing_file(error):
            return error
        if says_out_of_memory(str(error)) or (is_away(error) and ended_out_of_memory()):
            raise out_of_memory() from error
        if is_away(error):
            ended = self._session_used is not None and was_ended(self._session_used)
            raise _ServerEndedError(SERVER_ENDED, reason=Reason.SPARK_LOST) if ended else away(error) from error
        if isinstance(error, ValueError):
            raise error
        if damaged := damage(error):
            # if several tasks fail at once, Spark names no file
            for name, dataset in ({} if names_data_file(error) else self._opened()).items():
                if file := dataset.damaged_file():
                    raise Corruption(f"Dataset {name}, file {file}: {damaged}", reason=Reason.DAMAGED_FILE) from error
            raise damaged from error
        raise InvalidRequest(f"Spark refused the query: {error_line(error)}") from error

    @contextmanager
    def _frame(
        self, session: "SparkSession", opened: Mapping[str, Dataset], *, before: str = ""
    ) -> Iterator["DataFrame"]:
        """Give the frame of the query over views that exist for the block; `before` is put before its text."""
        pinned = {name: dataset.snapshot() for name, dataset in opened.items()}
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
            for view in views.values():
                with suppress(*spark_errors()):  # if Spark is lost, its views are gone, too
                    session.catalog.dropTempView(view)

    @contextmanager
    def _interruptible(self, session: "SparkSession") -> Iterator[None]:
        """Run a block whose requests to Spark, on this thread, are interrupted once the query is cancelled.

        Each interrupted operation is reported to the shared server's daemon until it has ended. If its end is unknown,
        the report stays. A process that ends closes its session, and Spark then answers although the operation may
        still run.
        """
        tag = f"silt-query-{uuid.uuid4().hex}"  # noqa: TID251
        reports = ExitStack()

        def interrupt() -> None:
            operations = interrupt_tag(session, tag)
            if operations:
                reports.callback(suspect(session, operations))

        with reports:
            try:
                with self._query.interruptible(interrupt, every=INTERRUPT_SECONDS):
                    stop_tasks_when_ended(session)
                    add_tag(session, tag)
                    try:
                        yield
                    finally:
                        remove_tag(session, tag)
            except Exception as error:
                if leaves_end_unknown(error):
                    reports.pop_all()
                raise


def _has_subqueries(query: exp.Query) -> bool:
    """True if an expression contains a subquery: EXISTS, IN or a scalar subquery."""
    return any(
        isinstance(node, exp.Exists)
        or (isinstance(node, exp.In) and node.args.get("query"))
        or (isinstance(node, exp.Subquery) and not isinstance(node.parent, _RELATIONS))
        for node in query.walk()
    )


_RELATIONS: Final = (exp.From, exp.Join, exp.Lateral, exp.Query, exp.CTE)
"""Nodes that read a subquery as a table, or put it into parentheses."""


def _vanished(opened: Mapping[str, Dataset], otherwise: str) -> SiltstoneError:
    """Return the error that names a lost live file; Unavailable with the text `otherwise` if no live file is lost."""
    errors = [dataset.files_vanished() for dataset in opened.values()]
    return next((error for error in errors if isinstance(error, Corruption)), Unavailable(otherwise))


def _failures() -> tuple[type[Exception], ...]:
    return (FileNotFoundError, ValueError, *spark_errors())


def _rows(frame: "DataFrame", most: int) -> pa.Table:
    return frame.limit(most).toArrow()


def _batches(frame: "DataFrame", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a frame as record batches, in its order, as they arrive."""
    send_by_value()
    packed = frame.mapInArrow(stream.packed, f"{stream.COLUMN} binary")
    for row in packed.toLocalIterator():
        with pa.ipc.open_stream(bytes(row[0])) as reader:
            for batch in reader:
                yield batch.cast(schema) if batch.schema != schema else batch
