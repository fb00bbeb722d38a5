"""Options of a JVM that we start: its memory, class path, Spark options and log, as plain data.

`launch_options` inspects this machine (downloads jars, records or uses a class archive); `options` only computes. Values of the
setting `spark` override ours.
"""

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from siltstone.config import Settings
from siltstone.host.memory import machine_memory_mb
from siltstone.host.user_cache import cache_folder
from siltstone.spark.jars import delta_jars, driver_jars, spark_home, spark_version
from siltstone.spark.jvm import Java, archive_key, archive_options, fitted_memory_mb

APP_NAME: Final = "siltstone"

SESSION_OPTIONS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.datetime.java8API.enabled": "true",  # otherwise pushed-down filters use a calendar that lacks ten days of 1582
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.columnarReaderBatchSize": "1024",  # rows after which a task checks whether it was cancelled
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "512",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.variable.substitute": "false",  # no query can read ${env:...}; the gate writes none either
}
"""Options of every session that we create, also of a remote one."""

GUARDED_OPTIONS: Final = {"spark.authenticate": "true", "spark.io.encryption.enabled": "true"}
"""Options that protect Spark's ports and blocks from other users of this machine. A local Spark generates its secrets in memory:
no command line, variable or file contains them. Shuffle files of a killed Spark cannot be read without them. Traffic is not
encrypted, because it stays on the loopback interface. With `spark.network.crypto.enabled`, tasks of Connect sessions sometimes
failed: a request for a class got no answer for 120 s, and then a closed connection."""

SERVER_OPTIONS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.hadoop.parquet.compression.codec.zstd.level": "3",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Options that can be set only when the JVM starts."""

LOCAL_DIRS: Final = "SPARK_LOCAL_DIRS"
"""Environment variable that overrides the option ``spark.local.dir``."""

PAGE_SIZE: Final = f"{4 * 1024 * 1024 - 16}b"
"""Memory page of each join, sort and sum, for small heaps. Spark's own pages are up to 64 MB. An array of this size, with its
header, fills whole regions of the garbage collector."""

JOINED_OPTIONS: Final = {"spark.driver.extraJavaOptions": " ", "spark.driver.extraClassPath": os.pathsep}
"""User options that are appended to ours instead of replacing them, with the separator."""

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
"""Unless the two levels agree, the gateway sets its own logger's level for the whole log, and logs that."""
EXECUTOR_LOG_SETTINGS: Final = """\
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = error
logger.executor.filter.stuck.type = RegexFilter
logger.executor.filter.stuck.regex = Killed task.*could not be stopped within.*
logger.executor.filter.stuck.onMatch = ACCEPT
logger.executor.filter.stuck.onMismatch = DENY
"""
"""An executor logs every failed task, which the caller gets as an exception. Only `connect_server.STUCK_TASK` passes."""
REPEATED_BY_THE_EXCEPTION: Final = (
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.util.Utils",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.delta.files",
    "org.apache.spark.util.ShutdownHookManager",
    "org.apache.spark.sql.connect.utils.ErrorUtils",
)
"""Loggers that print an error which the caller also gets as an exception."""


def launch_options(settings: Settings, *, java: Java, role: str, scratch: Path) -> dict[str, str]:
    """Compute the options of a JVM that starts now on this machine. Downloads jars, records or uses an archive.

    The role is `connect` for a server, `worker` for the JVM of a job's process, `classic` for any other. Everything that the
    JVM writes outside a lake is in the folder `scratch`.
    """
    jars = _jars(settings)
    java_options = [
        *_archive(java, role=role, jars=jars),
        *(["-XX:TieredStopAtLevel=1"] if settings.spark_short_run else []),
        # other processes rely on a server or worker, so it must be sound
        *(["-XX:+ExitOnOutOfMemoryError"] if role != "classic" else []),
        *("-XX:-UsePerfData", "-Xlog:disable", "-Xlog:all=error:stderr"),
        *_log_options(settings),
    ]
    return options(settings, jars=jars, java_options=java_options, machine_mb=machine_memory_mb(), scratch=scratch)


def would_record(settings: Settings, *, java: Java, role: str) -> bool:
    """Return whether a JVM of this role would record a class archive: none fits yet, and recording is possible."""
    return any("ArchiveClassesAtExit" in option for option in _archive(java, role=role, jars=_jars(settings)))


def _jars(settings: Settings) -> tuple[Path, ...]:
    jars = (*delta_jars(settings), *driver_jars(settings))
    return tuple(jar.resolve() for jar in jars)  # an archive identifies jars by name


def _archive(java: Java, *, role: str, jars: Sequence[Path]) -> list[str]:
    kind = "connect" if role == "connect" else "classic"
    key = archive_key(java, role=kind, class_path=jars, spark=f"{spark_home()} {spark_version()}")
    return archive_options(cache_folder() / "appcds", key)


def options(
    settings: Settings, *, jars: Sequence[Path], java_options: Sequence[str], machine_mb: int, scratch: Path
) -> dict[str, str]:
    """Return every Spark option of a session that we start, as plain data."""
    cores = local_cores(settings.spark_master)
    chosen = SESSION_OPTIONS | SERVER_OPTIONS
    chosen["spark.driver.memory"] = f"{settings.spark_memory_mb or fitted_memory_mb(machine_mb)}m"
    java_options = [f"-Djava.io.tmpdir={scratch}", *java_options]
    chosen["spark.driver.extraJavaOptions"] = " ".join(
        f'"{option}"' if " " in option else option for option in java_options
    )
    chosen["spark.sql.warehouse.dir"] = str(scratch / "warehouse")
    if cores:
        partitions = str(cores)  # on one machine, more partitions than cores only add overhead
        chosen |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": partitions,
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": partitions,
            "spark.databricks.delta.snapshotPartitions": partitions,
            "spark.buffer.pageSize": PAGE_SIZE,
            **GUARDED_OPTIONS,
            "spark.local.dir": str(scratch),
            "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),  # an archive covers only this class path
        }
    else:
        chosen["spark.jars"] = ",".join(map(str, jars))  # Spark sends them to the executors
    for name, value in settings.spark.items():
        ours = chosen.get(name)
        chosen[name] = JOINED_OPTIONS[name].join([ours, value]) if ours and name in JOINED_OPTIONS else value
    return {name: value for name, value in chosen.items() if value}


def local_cores(master: str) -> int:
    """Return the number of cores of a local master: 2 for ``local[2]``; 0 for a cluster."""
    if master == "local":
        return 1
    cores = re.fullmatch(r"local\[(\*|\d+)(?:,\s*\d+)?\]", master)
    if not cores:
        return 0
    return (os.cpu_count() or 1) if cores[1] == "*" else int(cores[1])


def _log_options(settings: Settings) -> list[str]:
    """Quieten Spark's log, unless the user has set a level. Then Spark's own log settings apply."""
    if "spark.log.level" in settings.spark:
        return []
    text = LOG_SETTINGS + EXECUTOR_LOG_SETTINGS
    for number, name in enumerate(REPEATED_BY_THE_EXCEPTION):
        text += f"logger.repeated{number}.name = {name}\nlogger.repeated{number}.level = off\n"
    path = cache_folder() / "log4j2.properties"
    try:
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=".log4j2-")
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            Path(fresh).rename(path)
    except OSError:
        return []
    return [f"-Dlog4j2.configurationFile={path.as_uri()}"]
