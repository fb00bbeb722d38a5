"""The Spark session, through Spark's public API only, so that classic, Connect and cluster sessions all serve.

`session` returns, in this order:

1. the session that the caller passed in;
2. the session that is active in this process;
3. a Spark Connect session, if the setting `spark_remote` names a server;
4. a session of our own, on the master that the setting `spark_master` names.

Only for the fourth do we choose a JVM, its memory and its options; `options` computes them as plain data. Whatever the
setting `spark` names wins over ours. PySpark is imported when a session is asked for, never before: a command that
needs no Spark must not pay for it.

Architecture invariant: nothing here or above reaches into the JVM (no ``_jvm``, no py4j object).
"""

import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from siltstone.config import Settings
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.storage.jars import cache_folder, delta_jars, driver_jars, spark_home
from siltstone.storage.jvm import (
    Java,
    archive_key,
    archive_options,
    children,
    end_children,
    filtered_stderr,
    find_java,
    fitted_memory_mb,
    machine_memory_mb,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME: Final = "siltstone"
CONNECT_PORT: Final = 15002
CONNECT_TIMEOUT_SECONDS: Final = 10.0

SESSION_OPTIONS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "512",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""What every session that we make has, a remote one too."""

SERVER_OPTIONS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.hadoop.parquet.compression.codec.zstd.level": "3",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""What can be set only where the JVM starts."""

JOINED_OPTIONS: Final = {"spark.driver.extraJavaOptions": " ", "spark.driver.extraClassPath": os.pathsep}
"""Settings of the user's that come after ours instead of in their place, and what separates the two."""

LOG_SETTINGS: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
"""The gateway takes the level of its own logger for the whole log, and says so, unless the two agree."""
REPEATED_BY_THE_EXCEPTION: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.util.Utils",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.delta.files",
    "org.apache.spark.util.ShutdownHookManager",
)
"""Loggers that print as an error what the caller gets as an exception anyway."""

QUERY_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark's own loggers, on the Python side, that do the same."""

_starting: Final = threading.Lock()


def session(settings: Settings, *, given: "SparkSession | None" = None) -> "SparkSession":
    """Return the session to work with; see the module's text for which one that is.

    Raises:
        InvalidRequest: the setting `spark_remote` is no Spark Connect address.
        Unavailable: a session had to be started or joined and could not be.
    """
    if given is not None:
        return given
    with _starting:
        running = _running()
        if running is not None:
            return running
        started = _join(settings) if settings.spark_remote else _start(settings)
        _quieten_pyspark()
        return started


def _running() -> "SparkSession | None":
    """Return this process's session, also from a thread that never used it."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _join(settings: Settings) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _require_listener(settings.spark_remote)
    builder = SparkSession.builder.remote(settings.spark_remote).appName(APP_NAME)
    given = {name: value for name, value in settings.spark.items() if name.startswith("spark.sql.")}
    for name, value in (SESSION_OPTIONS | given).items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise Unavailable(
            f"The Spark Connect server at {settings.spark_remote} refused a session: {_first_line(error)} "
            "Check the settings spark_remote and spark."
        ) from error


def _require_listener(address: str) -> None:
    """Fail at once where nobody listens: Spark's own client would try again for ten minutes."""
    where = urlsplit(address.partition(";")[0])
    if where.scheme != "sc" or not where.hostname:
        raise InvalidRequest(f"The setting spark_remote takes sc://host:port, not {address!r}.")
    try:
        socket.create_connection((where.hostname, where.port or CONNECT_PORT), timeout=CONNECT_TIMEOUT_SECONDS).close()
    except OSError as error:
        raise Unavailable(
            f"No Spark Connect server listens at {address} ({error}). Start it, or change the setting spark_remote."
        ) from error


def _start(settings: Settings) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)  # PySpark takes the JVM from there and nowhere else
    if local_cores(settings.spark_master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the tasks' Python is ours, with its packages
    builder = SparkSession.builder.master(settings.spark_master).appName(APP_NAME)
    for name, value in launch_options(settings, java=java, role="classic").items():
        builder = builder.config(name, value)
    others, handler = children(), signal.getsignal(signal.SIGINT)
    with filtered_stderr() as said:
        try:
            return builder.getOrCreate()
        except KeyboardInterrupt:
            end_children(spared=others)  # the JVM ignores the interrupt, and would outlive us
            raise
        except (PySparkException, OSError) as error:
            failure = error
        finally:
            _restore(handler)
    raise Unavailable(
        f"Spark did not start on {settings.spark_master}: {_first_line(failure)} {' '.join(list(said)[-3:])} "
        "Check the settings spark_master, spark_memory_mb and spark."
    ) from failure


def _restore(handler: object) -> None:
    """Give a program that handles interrupts itself its handler back; all others keep PySpark's, which cancels jobs."""
    if callable(handler) and handler is not signal.default_int_handler and _in_main_thread():
        signal.signal(signal.SIGINT, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _quieten_pyspark() -> None:
    """Keep PySpark from printing every query error as JSON: the caller gets it as an exception anyway."""
    from pyspark.logger import PySparkLogger

    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def launch_options(settings: Settings, *, java: Java, role: str) -> dict[str, str]:
    """Compute the options for a JVM that starts now on this machine: fetches jars, records or uses an archive."""
    jars = (*delta_jars(settings), *driver_jars(settings))
    cache = cache_folder()
    key = archive_key(java, role=role, class_path=jars, spark=f"{spark_home()} {version('pyspark')}")
    java_options = [
        *archive_options(cache / "appcds", key),
        *(["-XX:TieredStopAtLevel=1"] if settings.spark_short_run else []),
        *("-XX:-UsePerfData", "-Xlog:disable", "-Xlog:all=error:stderr"),
        *_log_options(cache, settings),
    ]
    return options(settings, jars=jars, java_options=java_options, machine_mb=machine_memory_mb())


def options(
    settings: Settings, *, jars: Sequence[Path], java_options: Sequence[str], machine_mb: int
) -> dict[str, str]:
    """Return every Spark setting of a session that we start, as plain data."""
    cores = local_cores(settings.spark_master)
    chosen = SESSION_OPTIONS | SERVER_OPTIONS
    chosen["spark.driver.memory"] = f"{settings.spark_memory_mb or fitted_memory_mb(machine_mb)}m"
    chosen["spark.driver.extraJavaOptions"] = " ".join(_quoted(option) for option in java_options)
    if cores:
        chosen |= _local_options(cores)
        chosen["spark.driver.extraClassPath"] = os.pathsep.join(map(str, jars))  # only these an archive can hold
    else:
        chosen["spark.jars"] = ",".join(map(str, jars))  # shipped to the executors
    for name, value in settings.spark.items():
        ours = chosen.get(name)
        chosen[name] = JOINED_OPTIONS[name].join([ours, value]) if ours and name in JOINED_OPTIONS else value
    return {name: value for name, value in chosen.items() if value}


def local_cores(master: str) -> int:
    """Return how many cores a local master uses: ``local[2]`` is 2; 0 for a cluster."""
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[(\*|\d+)(?:,\s*\d+)?\]", master)
    if not found:
        return 0
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])


def _local_options(cores: int) -> dict[str, str]:
    """Return what fits one machine, where a partition more than there are cores is only overhead."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(cores),
        "spark.databricks.delta.snapshotPartitions": str(cores),
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "siltstone-warehouse"),
    }


def _quoted(option: str) -> str:
    return f'"{option}"' if " " in option else option


def _log_options(cache: Path, settings: Settings) -> list[str]:
    """Quieten Spark's log, unless the user chose a level: then Spark's own ways apply."""
    if "spark.log.level" in settings.spark:
        return []
    text = LOG_SETTINGS
    for number, name in enumerate(REPEATED_BY_THE_EXCEPTION):
        text += f"logger.repeated{number}.name = {name}\nlogger.repeated{number}.level = off\n"
    path = cache / "log4j2.properties"
    try:
        if not path.is_file() or path.read_text() != text:
            cache.mkdir(parents=True, exist_ok=True)
            descriptor, fresh = tempfile.mkstemp(dir=cache, prefix=".log4j2-")
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            Path(fresh).rename(path)
    except OSError:
        return []
    return [f"-Dlog4j2.configurationFile={path.as_uri()}"]
