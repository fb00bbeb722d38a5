"""The Spark session, through Spark's public API only, so that classic, Connect and cluster sessions all serve.

`session` returns, in this order:

1. the session that the caller passed in;
2. the session that is active in this process;
3. a Spark Connect session, if the setting `spark_remote` names a server;
4. a session on a local server that commands share (`shared_spark.py`), one for queries and another one for jobs, unless the
   setting `spark_shared` says no or `spark_master` names a cluster;
5. a session of our own, on the master that the setting `spark_master` names.

PySpark is imported when a session is asked for, never before: a command that needs no Spark must not pay for it.

Spark's own Connect client waits ten minutes for a server that died, and again when the process ends. Sessions that we
make give up earlier, and are released before the process ends. One whose shared server died is replaced on next use.

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
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
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
from siltstone.spark.shared_server import Membership, ServerRole, SharedSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_PORT: Final = 15002
CONNECT_TIMEOUT_SECONDS: Final = 10.0
NO_PROXY: Final = "no_grpc_proxy"
"""Where gRPC looks, before ``no_proxy``, for hosts that are asked directly."""
LOCAL_RETRIES: Final = 4
"""Tries of a call to the shared server, within about ten seconds: on one machine nobody who is away comes back."""
REMOTE_RETRIES: Final = 8
"""Tries of a call to a server elsewhere, within one or two minutes."""
LONGEST_BACKOFF_MS: Final = 15_000

START_SECONDS: Final = 5
"""How long a JVM takes to start on an idle machine, for people."""
_LOGGER: Final = logging.getLogger("siltstone.spark")
QUERY_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark's own loggers, on the Python side, that do the same."""

OUT_OF_MEMORY_CODES: Final = (3, 52)
"""With these a JVM ends for want of memory: the first by `-XX:+ExitOnOutOfMemoryError`, the second by Spark itself."""
ENDING_SECONDS: Final = 10.0
"""How long a JVM may take to end that has stopped listening."""

_starting: Final = threading.Lock()
_own: list[int] = []
"""The JVM that this process has started for a classic session."""
_scratch: list[Scratch] = []
"""The folder of that JVM."""
_joined: "list[_Joined]" = []
"""The sessions of this process on shared servers: at most one for each role."""
_members: "WeakKeyDictionary[SparkSession, Membership]" = WeakKeyDictionary()
"""The hold on the shared server of each session, also after the server has ended."""
_beside: "WeakKeyDictionary[SparkSession, dict[str, SparkSession]]" = WeakKeyDictionary()
"""Sessions for queries, by the optimiser rules that they exclude, beside those that have other settings."""
EXCLUDED_RULES: Final = "spark.sql.optimizer.excludedRules"
SUBQUERY_RULES: Final = (
    "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughUnion",
    "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughLimitAndOffset",
)
"""Optimiser rules that are wrong about a correlated subquery in a SELECT.

The first fails ("key not found") over a union, as merged views are. The second moves the subquery below the LIMIT of an ordered
subquery. The join that it becomes then loses the order, and so the LIMIT takes other rows.
"""
MEANING: Final = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""Settings of a session that decide what a query says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    """A session on a shared server, and the hold on that server."""

    session: "SparkSession"
    member: Membership
    server: ServerRole


def session(
    settings: Settings,
    *,
    given: "SparkSession | None" = None,
    role: str = "classic",
    server: ServerRole = ServerRole.JOBS,
    announce: Callable[[str], object] | None = None,
) -> "SparkSession":
    """Return the session to work with; see the module's text for which one that is.

    A JVM that is started gets the `role`; of the shared servers it is the one for `server`. `announce` gets a line before a
    JVM is started, and so does the log.

    Raises:
        InvalidRequest: the setting `spark_remote` is no Spark Connect address.
        Unavailable: a session had to be started or joined and could not be.
    """
    if given is not None:
        return given
    with _starting:
        _drop_lost()
        _require_own()
        running = _running()
        if running is not None and not (shares(settings) and any(one.session is running for one in _joined)):
            return running
        if settings.spark_remote:
            started = _join(settings)
        elif shares(settings):
            found = next((one.session for one in _joined if one.server is server), None)
            started = found or _join_shared(settings, server, announce)
        else:
            _announce(announce, f"Starting Spark, about {START_SECONDS} s")
            started = _start(settings, role)
        _quieten_pyspark()
        return started


def answering(found: "SparkSession", *, subqueries: bool = False) -> "SparkSession":
    """Return a session in which a query means what it means in memory, too: in UTC, by ANSI rules.

    One that a user brings may have other settings, or get them at any time. Then it is a session beside that one, on the same
    Spark, and the user's stays as it is. A query with `subqueries` in expressions gets a session without `SUBQUERY_RULES`.
    """
    rules = excluded = found.conf.get(EXCLUDED_RULES, "") or ""
    if subqueries:
        rules = ",".join([*filter(None, [excluded]), *(rule for rule in SUBQUERY_RULES if rule not in excluded)])
    if rules == excluded and all(found.conf.get(name) == SESSION_OPTIONS[name] for name in MEANING):
        return found
    with _starting:
        besides = _beside.setdefault(found, {})
        if rules not in besides:
            made = _cloned(found) if is_connect(found) else found.newSession()
            for name, value in {**SESSION_OPTIONS, EXCLUDED_RULES: rules}.items():
                made.conf.set(name, value)
            besides[rules] = made
            if found in _members:
                _members[made] = _members[found]
        return besides[rules]


def _cloned(found: "SparkSession") -> "SparkSession":
    """Return a session beside one of Spark Connect, on a channel of its own with the same limits."""
    client = found.client
    with _past_proxies() if found in _members else nullcontext():
        made: SparkSession = found.cloneSession()  # type: ignore[attr-defined]
    made.release_session_on_close = True  # type: ignore[attr-defined]  # PySpark's clone lacks it, and could not be stopped
    made.client.set_retry_policies(list(client.get_retry_policies()))
    atexit.register(_release, made)
    return made


def shares(settings: Settings) -> bool:
    """Tell whether processes with these settings use the shared server."""
    return settings.spark_shared and not settings.spark_remote and local_cores(settings.spark_master) > 0


def ended_out_of_memory() -> bool:
    """True if the Spark of this process, which no longer answers, has ended because its memory was used up."""
    if any(says_out_of_memory(line) for one in _joined for line in one.member.last_words()):
        return True
    return jvm_ended_with(seconds=ENDING_SECONDS) in OUT_OF_MEMORY_CODES


def jvm_ended_with(*, seconds: float = 0.0) -> int | None:
    """Return how the JVM of this process's classic session ended, as `ended_with`; one that runs gets some time to end."""
    deadline = time.monotonic() + seconds
    while _own and ended_with(_own[-1]) is None and is_alive(_own[-1]) and time.monotonic() < deadline:
        time.sleep(ENDING_SECONDS / 100)
    return ended_with(_own[-1]) if _own else None


def _require_own() -> None:
    """Say so where the JVM of a classic session is gone: PySpark cannot start a second one in a process."""
    if any(ended_with(child) is not None or not is_alive(child) for child in _own):
        reason = Reason.MEMORY if ended_out_of_memory() else Reason.SPARK_LOST
        why = " for want of memory (the setting spark_memory_mb)" if reason is Reason.MEMORY else ""
        raise Unavailable(
            f"The JVM of this process's Spark session has ended{why}, and a process can have only one. Start the process anew; "
            "with the setting spark_shared a server is used that is started again by itself.",
            reason=reason,
        )


def is_running(server: ServerRole = ServerRole.QUERIES) -> bool:
    """True if this process has a session, of shared servers one for that role; PySpark is not imported to find out."""
    if _joined:
        return any(one.server is server for one in _joined)
    return bool(_own) or ("pyspark" in sys.modules and _running() is not None)


def _running() -> "SparkSession | None":
    """Return this process's session, also from a thread that never used it."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def interrupt() -> None:
    """End the jobs that this process runs on Spark now, if it has a session; their callers get an error."""
    if "pyspark" not in sys.modules:
        return
    from pyspark.errors import PySparkException

    running = _running()
    jobs = [one.session for one in _joined if one.server is ServerRole.JOBS]
    for found in jobs or ([] if running is None or _joined else [running]):
        with suppress(PySparkException):  # a server that is away runs nothing of ours
            found.interruptAll()


def _join(settings: Settings) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _require_listener(settings.spark_remote)
    given = {name: value for name, value in settings.spark.items() if name.startswith("spark.sql.")}
    joined = _connected(settings.spark_remote, retries=REMOTE_RETRIES)
    try:  # the session is the active one now; this sets what may be set
        SparkSession.builder.remote(settings.spark_remote).config(map={**SESSION_OPTIONS, **given}).getOrCreate()
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


def _join_shared(
    settings: Settings, server: ServerRole, announce: Callable[[str], object] | None = None
) -> "SparkSession":
    """Join a shared server; its options are those of the settings already, they are part of what names it."""
    shared = SharedSpark(settings, role=server)
    if shared.running() is None:
        _announce(announce, f"Starting Spark for {server}, about {START_SECONDS} s; later commands join it")
    member = shared.join()
    with _past_proxies():
        joined = _connected(member.running.connection, retries=LOCAL_RETRIES)
    _joined.append(_Joined(session=joined, member=member, server=server))
    _members[joined] = member
    return joined


def suspect(found: "SparkSession", operations: Sequence[str]) -> Callable[[], None]:
    """Report operations that were interrupted to the keeper of their shared server, and return what takes the report back.

    Call that once the operations have ended. A report that nobody takes back ends no server that obeys: the keeper looks itself.
    """
    member = _members.get(found)
    report = member.suspect(operations) if member is not None else None

    def take_back() -> None:
        if report is not None:
            with suppress(OSError):
                report.unlink(missing_ok=True)

    return take_back


def was_ended(found: "SparkSession") -> bool:
    """True if the server of a session was ended because a query on it could not be stopped."""
    member = _members.get(found)
    return member is not None and member.was_ended()


def _connected(address: str, *, retries: int) -> "SparkSession":
    """Return a session that does not wait for ever; it is released when the process ends. Asks the server nothing yet."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    joined = SparkSession.builder.remote(address).create()  # a process may have one on each of two servers
    joined.client.set_retry_policies([DefaultPolicy(max_retries=retries, max_backoff=LONGEST_BACKOFF_MS)])
    atexit.register(_release, joined)  # runs before PySpark's own, which would ask a server that is gone
    return joined


@contextmanager
def _past_proxies() -> Iterator[None]:
    """Let a channel to this machine be made without the network's proxy: gRPC would ask it for ``localhost`` too."""
    before = os.environ.get(NO_PROXY)
    others = before if before is not None else os.environ.get("no_proxy", "")
    os.environ[NO_PROXY] = ",".join(filter(None, [others, "localhost"]))
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_PROXY]
        else:
            os.environ[NO_PROXY] = before


def _release(session: "SparkSession") -> None:
    """Let the server forget the session; one that is away is not waited for."""
    session.client.set_retry_policies([])
    session.stop()


def _drop_lost() -> None:
    """Leave a shared server that has ended, so that its session is not taken for one that works."""
    for lost in [one for one in _joined if not one.member.alive()]:
        _release(lost.session)
        lost.member.leave()
        _joined.remove(lost)


def _require_listener(address: str) -> None:
    """Fail at once where nobody listens: Spark's own client would try again for ten minutes."""
    where = urlsplit(address.partition(";")[0])
    if where.scheme != "sc" or not where.hostname:
        raise InvalidRequest(f"The setting spark_remote takes sc://host:port, not {address!r}.")
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
    os.environ["JAVA_HOME"] = str(java.home)  # PySpark takes the JVM from there and nowhere else
    if local_cores(settings.spark_master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the tasks' Python is ours, with its packages
    builder = SparkSession.builder.master(settings.spark_master).appName(APP_NAME)
    scratch = _own_scratch(settings)
    for name, value in launch_options(settings, java=java, role=role, scratch=scratch.folder).items():
        builder = builder.config(name, value)
    others, handler = children(), signal.getsignal(signal.SIGINT)
    with filtered_stderr() as said, _without_local_dirs():
        try:
            started = builder.getOrCreate()
        except KeyboardInterrupt:
            end_children(spared=others)  # the JVM ignores the interrupt, and would outlive us
            raise
        except (PySparkException, OSError) as error:
            failure = error
        else:
            fresh = children() - others
            _own[:] = fresh if len(fresh) == 1 else []
            return started
        finally:
            _restore(handler)
    raise Unavailable(
        f"Spark did not start on {settings.spark_master}: {first_line(failure)} {' '.join(list(said)[-3:])} "
        "Check the settings spark_master, spark_memory_mb and spark.",
        reason=Reason.SPARK_LOST,
    ) from failure


def _own_scratch(settings: Settings) -> Scratch:
    """Return the folder of this process's JVM, which is removed when the process ends."""
    if not _scratch:
        _scratch.append(Scratch(settings))
        atexit.register(_scratch[0].close)
    return _scratch[0]


@contextmanager
def _without_local_dirs() -> Iterator[None]:
    """Start a JVM without ``SPARK_LOCAL_DIRS``, which would win over the scratch folder."""
    before = os.environ.pop(LOCAL_DIRS, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[LOCAL_DIRS] = before


def _restore(handler: object) -> None:
    """Give a program that handles interrupts itself its handler back; all others keep PySpark's, which cancels jobs."""
    if callable(handler) and handler is not signal.default_int_handler and _in_main_thread():
        signal.signal(signal.SIGINT, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _quieten_pyspark() -> None:
    """Keep PySpark from printing every query error as JSON: the caller gets it as an exception anyway."""
    from pyspark.logger import PySparkLogger

    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
