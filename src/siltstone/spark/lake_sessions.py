"""The Spark sessions of one lake object: one for jobs, one for queries, with progress for a caller who watches."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from siltstone.config import Settings
from siltstone.spark.progress import ShowProgress, Watcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LakeSessions:
    """Opens the sessions of one lake object when they are needed."""

    def __init__(self, settings: Settings, given: "SparkSession | None") -> None:
        """Use the caller's session, if there is one, for everything."""
        self._settings = settings
        self._given = given
        self._watcher: Watcher | None = None

    @property
    def is_given(self) -> bool:
        """True if the session is the caller's."""
        return self._given is not None

    def for_jobs(self) -> "SparkSession":
        """Return the session for loads, folds and frames."""
        return self._session("jobs")

    def for_queries(self) -> "SparkSession":
        """Return the session for SQL, on a server of its own where servers are shared."""
        return self._session("queries")

    def is_running(self) -> bool:
        """True if a query would start no JVM."""
        from siltstone.spark.session import is_running

        return self._given is not None or is_running()

    @contextmanager
    def progress(self, show: ShowProgress | None) -> Iterator[None]:
        """Pass the progress of Spark inside the block to `show`; on Connect sessions only."""
        if show is None:
            yield
            return
        with Watcher(show) as watcher:
            self._watcher = watcher
            try:
                yield
            finally:
                self._watcher = None

    def _session(self, role: Literal["jobs", "queries"]) -> "SparkSession":
        from siltstone.spark.session import session  # late, because most commands start no Spark
        from siltstone.spark.shared_server import ServerRole

        watcher = self._watcher
        announce = None if watcher is None else watcher.show
        opened = session(self._settings, given=self._given, server=ServerRole(role), announce=announce)
        if watcher is not None:
            watcher.attach(opened)
        return opened
