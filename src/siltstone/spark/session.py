"""The Spark session, through Spark's public API only, so that classic, Connect and cluster sessions all work.

`session` returns, in this order:

1. the session that the caller passed in;
2. the session that is active in this process;
3. a Spark Connect session, if the setting `spark_remote` names a server;
4. a session on a local server that commands share (`shared_server.py`), unless `spark_shared` is false or
   `spark_master` names a cluster. There is one server for queries and another one for jobs;
5. a session of our own, on the master that the setting `spark_master` names.

PySpark is imported when a session is requested, never before. A command that needs no Spark must not pay for it.

Spark's own Connect client waits ten minutes for a dead server, and again when the process ends. Our sessions give up earlier
and are released before the process ends. A session whose shared server died is replaced on next use.

Architecture invariant: nothing here or above reaches into the JVM (no ``_jvm``, no py4j object).
"""

import atexit
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from siltstone.config import Settings
from siltstone.errors import InvalidRequest, Reason, Unavailable, first_line
from siltstone.spark.errors import says_out_of_memory
from siltstone.spark.jvm import children, end_children, ended_with, filtered_stderr, find_java, is_alive
from siltstone.spark.launch_options import APP_NAME, LOCAL_DIRS, SESSION_OPTIONS, launch_options, local_cores
from siltstone.spark.progress import is_connect
from siltstone.spark.scratch import Scratch
from siltstone.spark.shared_server import ServerRole, SharedServerHandle, SharedSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_PORT: Final = 15002
CONNECT_TIMEOUT_SECONDS: Final = 10.0
NO_PROXY: Final = "no_grpc_proxy"
"""Environment variable in which gRPC looks, before ``no_proxy``, for hosts to reach without a proxy."""
LOCAL_RETRIES: Final = 4
"""Attempts of a call to the shared server, within about ten seconds. A dead server on this machine does not come back."""
REMOTE_RETRIES: Final = 8
"""Attempts of a call to a remote server, within one or two minutes."""
LONGEST_BACKOFF_MS: Final = 15_000

START_SECONDS: Final = 5
"""Typical start time of a JVM on an idle machine, in seconds, shown to users."""
_LOGGER: Final = logging.getLogger("siltstone.spark")
QUERY_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark loggers that print every query error as JSON. Silenced, because the caller gets the exception."""

OUT_OF_MEMORY_CODES: Final = (3, 52)
"""Exit codes of a JVM that ran out of memory: the first by `-XX:+ExitOnOutOfMemoryError`, the second by Spark itself."""
ENDING_SECONDS: Final = 10.0
"""Longest wait for the end of a JVM that no longer listens, in seconds."""

_starting: Final = threading.Lock()
_jvm_pids: list[int] = []
"""Process id of the JVM that this process started for a classic session."""
_scratch: list[Scratch] = []
"""The scratch folder of that JVM, which is removed when the process ends."""
_shared_sessions: "dict[ServerRole, SparkSession]" = {}
"""The sessions of this process on shared servers."""
_server_handles: "WeakKeyDictionary[SparkSession, SharedServerHandle]" = WeakKeyDictionary()
"""The handle of the shared server of each session, also after the server has ended."""
_query_sessions: "WeakKeyDictionary[SparkSession, dict[str, SparkSession]]" = WeakKeyDictionary()
"""For sessions with other settings: separate sessions for queries, by the optimizer rules that they exclude."""
EXCLUDED_RULES: Final = "spark.sql.optimizer.excludedRules"
SUBQUERY_RULES: Final = (
    "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughUnion",
    "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughLimitAndOffset",
)
"""Optimizer rules that are wrong for a correlated subquery in a SELECT.

The first rule fails ("key not found") over a union, which every merged view is. The second rule moves the subquery below the
LIMIT of an ordered subquery. The resulting join loses the order, and so the LIMIT returns other rows.
"""
MEANING: Final = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""Session settings that affect the meaning of a query."""


def session(
    settings: Settings,
    *,
    given: "SparkSession | None" = None,
    role: str = "classic",
    server: ServerRole = ServerRole.JOBS,
    announce: Callable[[str], object] | None = None,
) -> "SparkSession":
    """Return the session to work with; the module's text lists the order of choice.

    `role` is the role of a JVM that is started here. `server` selects the shared server. `announce` and the log receive a
    line before a JVM is started.

    Raises:
        InvalidRequest: the setting `spark_remote` is not a valid Spark Connect address.
        Unavailable: a session had to be started or joined, which failed.
    """
    if given is not None:
        return given
    with _starting:
        # the session of a server that has ended is not used again
        for lost in [used for used, shared in _shared_sessions.items() if not _server_handles[shared].alive()]:
            _release(_shared_sessions[lost])
            _server_handles[_shared_sessions.pop(lost)].leave()
        _require_jvm()
        running = _active_session()
        is_shared = any(shared is running for shared in _shared_sessions.values())
        if running is not None and not (is_shared and shares(settings)):
            return running
        if settings.spark_remote:
            started = _join_remote(settings)
        elif shares(settings):
            started = _shared_sessions.get(server) or _join_shared(settings, server, announce)
        else:
            _announce(announce, f"Starting Spark, about {START_SECONDS} s")
            started = _start(settings, role)
        from pyspark.logger import PySparkLogger

        warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
        for name in QUERY_LOGGERS:
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
        return started


def answering(spark: "SparkSession", *, subqueries: bool = False) -> "SparkSession":
    """Return a session in which a query means the same as in memory: in UTC, by ANSI rules.

    A session of the user may have other settings, or get them at any time. Then this returns a separate session on the same
    Spark and leaves the user's session unchanged. A query with `subqueries` in expressions gets a session without
    `SUBQUERY_RULES`.
    """
    rules = excluded = spark.conf.get(EXCLUDED_RULES, "") or ""
    if subqueries:
        rules = ",".join([*filter(None, [excluded]), *(rule for rule in SUBQUERY_RULES if rule not in excluded)])
    if rules == excluded and all(spark.conf.get(name) == SESSION_OPTIONS[name] for name in MEANING):
        return spark
    with _starting:
        by_rules = _query_sessions.setdefault(spark, {})
        if rules not in by_rules:
            separate = _clone(spark) if is_connect(spark) else spark.newSession()
            for name, value in {**SESSION_OPTIONS, EXCLUDED_RULES: rules}.items():
                separate.conf.set(name, value)
            by_rules[rules] = separate
            if spark in _server_handles:
                _server_handles[separate] = _server_handles[spark]
        return by_rules[rules]


def _clone(spark: "SparkSession") -> "SparkSession":
    """Return a separate Connect session, on its own channel with the same limits."""
    client = spark.client
    with _without_proxy() if spark in _server_handles else nullcontext():
        separate: SparkSession = spark.cloneSession()  # type: ignore[attr-defined]
    separate.release_session_on_close = True  # type: ignore[attr-defined]  # PySpark's clone lacks it and could not be stopped
    separate.client.set_retry_policies(list(client.get_retry_policies()))
    atexit.register(_release, separate)
    return separate


def shares(settings: Settings) -> bool:
    """Return whether processes with these settings use the shared server."""
    return settings.spark_shared and not settings.spark_remote and local_cores(settings.spark_master) > 0


def ended_out_of_memory() -> bool:
    """True if this process's Spark, which no longer answers, ended because it ran out of memory."""
    handles = [_server_handles[shared] for shared in list(_shared_sessions.values())]
    if any(says_out_of_memory(line) for handle in handles for line in handle.log_tail()):
        return True
    return jvm_ended_with(seconds=ENDING_SECONDS) in OUT_OF_MEMORY_CODES


def jvm_ended_with(*, seconds: float = 0.0) -> int | None:
    """Return the exit code of this process's JVM, as `ended_with`. Wait up to `seconds` for a running JVM to end."""
    deadline = time.monotonic() + seconds
    while _jvm_pids and ended_with(_jvm_pids[-1]) is None and is_alive(_jvm_pids[-1]) and time.monotonic() < deadline:
        time.sleep(ENDING_SECONDS / 100)
    return ended_with(_jvm_pids[-1]) if _jvm_pids else None


def _require_jvm() -> None:
    """Raise if the JVM of a classic session is gone, because PySpark cannot start a second one in a process."""
    if any(ended_with(child) is not None or not is_alive(child) for child in _jvm_pids):
        reason = Reason.MEMORY if ended_out_of_memory() else Reason.SPARK_LOST
        why = " because it ran out of memory (see the setting spark_memory_mb)" if reason is Reason.MEMORY else ""
        raise Unavailable(
            f"The JVM of this process's Spark session has ended{why}, and a process can have only one. Restart the process; "
            "the setting spark_shared uses a shared server, which is restarted automatically.",
            reason=reason,
        )


def is_running() -> bool:
    """True if this process has a session; on shared servers, one for queries. Does not import PySpark."""
    if _shared_sessions:
        return ServerRole.QUERIES in _shared_sessions
    return bool(_jvm_pids) or ("pyspark" in sys.modules and _active_session() is not None)


def _active_session() -> "SparkSession | None":
    """Return this process's session, also from a thread that has not used it yet."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def interrupt() -> None:
    """Cancel this process's running Spark jobs, if it has a session. Their callers get an error."""
    if "pyspark" not in sys.modules:
        return
    from pyspark.errors import PySparkException

    active = _shared_sessions.get(ServerRole.JOBS) if _shared_sessions else _active_session()
    if active is not None:
        with suppress(PySparkException):  # a lost server does not run our jobs
            active.interruptAll()


def _join_remote(settings: Settings) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _require_listener(settings.spark_remote)
    options = {name: value for name, value in settings.spark.items() if name.startswith("spark.sql.")}
    joined = _connect(settings.spark_remote, retries=REMOTE_RETRIES)
    try:  # the new session is the active one now; this sets the options that may be set
        SparkSession.builder.remote(settings.spark_remote).config(map={**SESSION_OPTIONS, **options}).getOrCreate()
    except PySparkException as error:
        _release(joined)
        raise Unavailable(
            f"The Spark Connect server at {settings.spark_remote.partition(';')[0]} refused a session: {first_line(error)} "
            "Check the settings spark_remote and spark.",
            reason=Reason.SPARK_LOST,
        ) from error
    return joined


def _announce(announce: Callable[[str], object] | None, text: str) -> None:
    _LOGGER.info(text)
    if announce is not None:
        announce(text)


def _join_shared(settings: Settings, role: ServerRole, announce: Callable[[str], object] | None) -> "SparkSession":
    """Join a shared server. It already has the options of the settings, because they are part of its folder's name."""
    server = SharedSpark(settings, role=role)
    if server.running() is None:
        _announce(announce, f"Starting Spark for {role}, about {START_SECONDS} s; later commands join it")
    handle = server.join()
    with _without_proxy():
        joined = _connect(handle.running.connection, retries=LOCAL_RETRIES)
    _server_handles[joined] = handle
    _shared_sessions[role] = joined
    return joined


def suspect(spark: "SparkSession", operations: Sequence[str]) -> Callable[[], None]:
    """Report interrupted operations to the daemon of their shared server; return a function that withdraws the report.

    Call that function once the operations have ended. A report that is not withdrawn does not end a working server, because
    the daemon checks the server first.
    """
    handle = _server_handles.get(spark)
    report = handle.suspect(operations) if handle is not None else None

    def withdraw() -> None:
        if report is not None:
            with suppress(OSError):
                report.unlink(missing_ok=True)

    return withdraw


def was_ended(spark: "SparkSession") -> bool:
    """True if the session's server was ended because a query on it could not be stopped."""
    handle = _server_handles.get(spark)
    return handle is not None and handle.was_ended()


def _connect(address: str, *, retries: int) -> "SparkSession":
    """Return a session with bounded retries, which is released when the process ends. Sends nothing to the server yet."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    joined = SparkSession.builder.remote(address).create()  # a process may have a session on each of two servers
    joined.client.set_retry_policies([DefaultPolicy(max_retries=retries, max_backoff=LONGEST_BACKOFF_MS)])
    atexit.register(_release, joined)  # runs before PySpark's own hook, which would call a lost server
    return joined


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set a variable of the environment inside the block, or remove it (None)."""
    before = os.environ.pop(name, None)
    try:
        if value is not None:
            os.environ[name] = value
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def _without_proxy() -> AbstractContextManager[None]:
    """Open channels to this machine without the network's proxy, because gRPC would use it for ``localhost``, too."""
    configured = os.environ.get(NO_PROXY, os.environ.get("no_proxy", ""))
    return _environment(NO_PROXY, ",".join(filter(None, [configured, "localhost"])))


def _release(session: "SparkSession") -> None:
    """Release the session on its server, without retries if the server is lost."""
    session.client.set_retry_policies([])
    session.stop()


def _require_listener(address: str) -> None:
    """Fail at once if nothing listens at the address, because Spark's own client would retry for ten minutes."""
    where = urlsplit(address.partition(";")[0])
    if where.scheme != "sc" or not where.hostname:
        raise InvalidRequest(f"The setting spark_remote must be sc://host:port, not {address!r}.")
    try:
        socket.create_connection((where.hostname, where.port or CONNECT_PORT), timeout=CONNECT_TIMEOUT_SECONDS).close()
    except OSError as error:
        raise Unavailable(
            f"No Spark Connect server listens at {address} ({error}). Start it, or change the setting spark_remote.",
            reason=Reason.SPARK_LOST,
        ) from error


def _start(settings: Settings, role: str) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)  # PySpark finds the JVM only by this variable
    if local_cores(settings.spark_master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # tasks use this Python, with its packages
    builder = SparkSession.builder.master(settings.spark_master).appName(APP_NAME)
    if not _scratch:
        _scratch.append(Scratch(settings))
        atexit.register(_scratch[0].close)
    for name, value in launch_options(settings, java=java, role=role, scratch=_scratch[0].folder).items():
        builder = builder.config(name, value)
    earlier, handler = children(), signal.getsignal(signal.SIGINT)
    with filtered_stderr() as stderr_tail, _environment(LOCAL_DIRS, None):  # it would override the scratch folder
        try:
            started = builder.getOrCreate()
        except KeyboardInterrupt:
            end_children(spared=earlier)  # the JVM ignores the interrupt and would outlive this process
            raise
        except (PySparkException, OSError) as error:
            failure = error
        else:
            fresh = children() - earlier
            _jvm_pids[:] = fresh if len(fresh) == 1 else []
            return started
        finally:
            # Restore the handler of a program that installed its own. All others use PySpark's, which cancels jobs.
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and callable(handler) and handler is not signal.default_int_handler:
                signal.signal(signal.SIGINT, handler)
    raise Unavailable(
        f"Spark did not start on {settings.spark_master}: {first_line(failure)} {' '.join(list(stderr_tail)[-3:])} "
        "Check the settings spark_master, spark_memory_mb and spark.",
        reason=Reason.SPARK_LOST,
    ) from failure
