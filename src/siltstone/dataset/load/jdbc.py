"""Reads tables and queries of a database over JDBC as Spark frames. Siltstone ships PostgreSQL's driver (see `jars`).

A password is an option of the read only. It is not shown or logged, and is removed from every error text.
Parallel reads of one table are several statements, each with its own snapshot. Of a table that is written meanwhile,
some parts may be read before the write and some after it.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from siltstone.errors import InvalidRequest, SiltstoneError, Unavailable, named_error
from siltstone.spark.errors import error_line, spark_errors
from siltstone.spark.jars import POSTGRES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POSTGRES_SCHEME: Final = "jdbc:postgresql:"
POSTGRES_DRIVER: Final = "org.postgresql.Driver"
FETCH_ROWS: Final = 10_000
"""Rows per network fetch. PostgreSQL's driver would otherwise fetch the whole table at once."""
PARTITIONS: Final = 8
MAX_PARTITIONS: Final = 1_000
"""Largest number of partitions. Each is a connection of its own; as many are open at a time as Spark has cores."""
_STACK: Final = "spark.sql.pyspark.jvmStacktrace.enabled"
_DATABASE: Final = re.compile(r"(?:org\.postgresql|java\.sql)[\w.]*Exception: (.+)")
_NO_DRIVER: Final = ("ClassNotFoundException", "No suitable driver")
_UNREACHABLE: Final = ("refused", "timed out", "UnknownHost", "could not be resolved", "connection attempt failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcSource:
    """The table or query to read from a database, and the column for parallel reads."""

    url: str
    table: str | None = None
    query: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    partition_column: str | None = None
    lower: Any = None
    upper: Any = None
    partitions: int | None = None

    def check(self) -> None:
        """Reject a bad address, one with a password, and options that contradict each other, before Spark starts."""
        if not self.url.startswith("jdbc:"):
            raise InvalidRequest("A database's address starts with jdbc:, like jdbc:postgresql://host:5432/name.")
        if "password=" in self.url.lower() or "@" in self.url.partition("?")[0]:
            raise InvalidRequest("Leave user and password out of the address; pass them as user and password.")
        if (self.table is None) == (self.query is None):
            raise InvalidRequest("Name a table or a query to read; one of the two.")
        if self.partition_column is None and not (self.lower is self.upper is self.partitions is None):
            raise InvalidRequest("Bounds and a number of partitions need a partition column.")
        if (self.lower is None) != (self.upper is None):
            raise InvalidRequest("Pass both bounds, lower and upper, or none.")
        if self.partitions is not None and self.partitions not in range(1, MAX_PARTITIONS + 1):
            raise InvalidRequest(f"The number of partitions must be from 1 to {MAX_PARTITIONS}.")

    @property
    def is_postgres(self) -> bool:
        """True if the database is PostgreSQL, whose driver Siltstone provides."""
        return self.url.startswith(POSTGRES_SCHEME)

    @property
    def shown(self) -> str:
        """The source for messages: the table, and the address without its parameters."""
        return f"{self.table or 'a query'} at {self.url.partition('?')[0]}"

    @property
    def _from(self) -> str:
        return self.table if self.table is not None else f"({self.query}) AS silt_source"

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """Return the rows as a Spark frame. Only the columns are queried here, and the bounds if they are not set."""
        options = self._options() | {"dbtable": self._from}
        if self.partition_column is not None:
            low, high = (self.lower, self.upper) if self.lower is not None else self._bounds(spark)
            if low is not None:
                options |= {
                    "partitionColumn": self.partition_column,
                    "lowerBound": str(low),
                    "upperBound": str(high),
                    "numPartitions": str(self.partitions or PARTITIONS),
                }
        return spark.read.format("jdbc").options(**options).load()

    def _options(self) -> dict[str, str]:
        options = {"url": self.url, "fetchsize": str(FETCH_ROWS), "preferTimestampNTZ": "true"}
        if self.is_postgres:
            options["driver"] = POSTGRES_DRIVER
        credentials = {"user": self.user, "password": self.password}
        return options | {name: value for name, value in credentials.items() if value is not None}

    def _bounds(self, spark: "SparkSession") -> tuple[Any, Any]:
        """Query the smallest and the largest value of the partition column."""
        quoted = '"' + str(self.partition_column).replace('"', '""') + '"'
        query = f"SELECT min({quoted}) AS low, max({quoted}) AS high FROM {self._from}"  # noqa: S608  # the user's own words
        rows = spark.read.format("jdbc").options(**self._options(), query=query).load().toArrow().to_pylist()
        return rows[0]["low"], rows[0]["high"]

    @contextlib.contextmanager
    def readable_errors(self, spark: "SparkSession", dataset: str) -> Iterator[None]:
        """Convert errors inside the block to readable ones without the password.

        Spark reports the database's message only in the causes of its own error, and shows causes only with a setting.
        """
        shown = spark.conf.get(_STACK, "false")
        spark.conf.set(_STACK, "true")
        try:
            yield
        except SiltstoneError as error:
            if self._without_password(str(error)) == str(error):
                raise
            raise named_error(error.kind, self._without_password(str(error)), reason=error.reason) from None
        except spark_errors() as error:
            raise self._failure(str(error), error_line(error), dataset) from None  # its text may hold the password
        finally:
            spark.conf.set(_STACK, shown or "false")

    def _failure(self, text: str, line: str, dataset: str) -> SiltstoneError:
        if any(mark in text for mark in _NO_DRIVER):
            need = f"the driver {POSTGRES}" if self.is_postgres else "the driver of this database"
            return Unavailable(
                f"Dataset {dataset}: this Spark session lacks {need}. Add its jar where the session is started "
                "(spark.jars.packages), or let Siltstone start the session. Nothing was loaded."
            )
        cause = match[1].strip().rstrip(".") + "." if (match := _DATABASE.search(text)) else line
        message = f"Dataset {dataset}: {self.shown} cannot be read: {self._without_password(cause)} Nothing was loaded."
        return Unavailable(message) if any(mark in text for mark in _UNREACHABLE) else InvalidRequest(message)

    def _without_password(self, text: str) -> str:
        return text.replace(self.password, "***") if self.password else text
