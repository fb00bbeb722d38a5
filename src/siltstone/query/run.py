"""Answering a query on Spark: merged frames become views for its duration, and at most `max_rows` rows come back."""

import time
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from siltstone.dataset.dataset import SNAPSHOT_TRIES, Dataset
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.query.admitted import Admitted
from siltstone.query.gate import TableReference, references, rewritten
from siltstone.query.result import QueryResult
from siltstone.storage.spark_failures import away, error_line, is_away, is_missing_file, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ROWS: Final = 100_000


class Cancellation:
    """A way to end a query from another thread."""

    def __init__(self) -> None:
        self.asked = False

    def cancel(self) -> None:
        """End the query."""
        self.asked = True


class SparkQuery:
    """One admitted query, to be answered by Spark."""

    def __init__(
        self,
        admitted: Admitted,
        *,
        spark: "Callable[[], SparkSession]",
        dataset: Callable[[str], Dataset],
        seconds: float = 0.0,
        cancellation: Cancellation | None = None,
    ) -> None:
        """Say what is asked of whom."""
        self._admitted, self._spark, self._dataset, self._seconds = admitted, spark, dataset, seconds
        self._cancellation = cancellation or Cancellation()

    def answer(self, max_rows: int) -> QueryResult:
        """Return at most so many rows."""
        return run_sql(self._admitted.text, spark=self._spark, dataset=self._dataset, max_rows=max_rows)

    def explain(self) -> str:
        """Return Spark's plan."""
        return ""


def check_max_rows(max_rows: int) -> None:
    """Refuse a number of rows that is out of bounds.

    Raises:
        InvalidRequest: it is.
    """
    if not 1 <= max_rows <= MAX_ROWS:
        raise InvalidRequest(
            f"A query returns 1 to {MAX_ROWS:,} rows at most, not {max_rows} (--max-rows or max_rows=)."
        )


def run_sql(
    text: str, *, spark: "Callable[[], SparkSession]", dataset: Callable[[str], Dataset], max_rows: int
) -> QueryResult:
    """Answer one SELECT.

    Raises:
        InvalidRequest: the query is not allowed or Spark refuses it.
        NotFound: it names a dataset that does not exist.
        Unavailable: Spark went away.
    """
    if not 1 <= max_rows <= MAX_ROWS:
        raise InvalidRequest(
            f"A query returns 1 to {MAX_ROWS:,} rows at most, not {max_rows} (--max-rows or max_rows=)."
        )
    named = references(text)
    opened = {str(reference.name): dataset(str(reference.name)) for reference in named}
    session = spark()
    failure: Exception | None = None
    for _ in range(SNAPSHOT_TRIES):
        try:
            return _answer(session, text, named, opened, max_rows)
        except FileNotFoundError as error:
            failure = error
        except spark_errors() as error:
            if is_away(error):
                raise away(error) from error
            if not is_missing_file(error):
                raise InvalidRequest(f"Spark refused the query: {error_line(error)}") from error
            failure = error
    raise Unavailable("Files kept disappearing while the query ran. Try again.") from failure


def _answer(
    session: "SparkSession", text: str, named: list[TableReference], opened: dict[str, Dataset], max_rows: int
) -> QueryResult:
    started = time.monotonic()
    views: list[tuple[TableReference, str]] = []
    made: dict[tuple[str, bool], str] = {}
    pinned = {name: found.snapshot() for name, found in opened.items()}
    try:
        for reference in named:
            which = (str(reference.name), reference.raw)
            if which not in made:
                made[which] = f"silt_{uuid.uuid4().hex}"  # noqa: TID251
                frame = opened[which[0]].read_at(pinned[which[0]], raw=reference.raw, once=True)
                frame.createOrReplaceTempView(made[which])
            views.append((reference, made[which]))
        table = session.sql(rewritten(text, views)).limit(max_rows + 1).toArrow()
    finally:
        _drop(session, made.values())
    return QueryResult(
        table=table.slice(0, max_rows),
        engine="spark",
        truncated=table.num_rows > max_rows,
        seconds=time.monotonic() - started,
    )


def _drop(session: "SparkSession", views: Iterable[str]) -> None:
    """Drop the query's views; where Spark is gone, so are they."""
    for view in views:
        try:
            session.catalog.dropTempView(view)
        except spark_errors() as error:
            if not is_away(error):
                raise
            return
