"""The folder of the shared server: trust, liveness, and the end of its daemon. No JVM is started."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

import pytest

from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.errors import Conflict, Reason, Unavailable
from siltstone.host.file_lock import open_locked
from siltstone.query.cancellation import ActiveQueries, ActiveQuery
from siltstone.query.gate.admit import admit
from siltstone.query.spark_executor import SparkQuery
from siltstone.spark import shared_server
from siltstone.spark.connect_server import THREADS_SECONDS, ConnectServer
from siltstone.spark.scratch import Scratch
from siltstone.spark.server_daemon import ServerDaemon
from siltstone.spark.shared_server import (
    CLIENTS_LOCK,
    DAEMON_LOCK,
    FORMAT,
    LOG_FILE,
    START_LOCK,
    STATE_FILE,
    RunningServer,
    ServerRole,
    SharedServerHandle,
    SharedSpark,
    prepare,
    read_state,
    server_folder,
    write_ended,
    write_state,
    write_suspect,
)
from tests.support.internals import interruptible_query, members
from tests.support.refusals import refused

RUNNING = RunningServer(port=1, token="t" * 64, started_at="2026-11-16T00:00:00+00:00", idle_minutes=15.0)


class Ticking:
    """A clock that advances only in sleeps; each sleep triggers the next action."""

    def __init__(self, *happenings: Callable[[], object]) -> None:
        self._passed_seconds = 0.0
        self._happenings = list(happenings)
        self._real = SystemClock()
        self.now = self._real.now
        self.new_id = self._real.new_id
        self.jitter = self._real.jitter

    def monotonic_seconds(self) -> float:
        return self._passed_seconds

    def sleep(self, seconds: float) -> None:
        self._passed_seconds += seconds
        if self._happenings:
            self._happenings.pop(0)()


@dataclass
class FakeServer:
    """A fake of a server that lives until it is ended."""

    lives: bool = True
    python: int = 0
    """Number of Python processes that its sessions have left."""

    def alive(self) -> bool:
        return self.lives

    def end_python(self) -> int:
        ended, self.python = self.python, 0
        return ended

    def run_python(self) -> None:
        self.python += 1

    def end(self) -> None:
        self.lives = False

    threads: str = ""
    """The names of the threads of its JVM."""
    task: bool = False
    """True if its log names a killed task that does not end."""
    listed: int = 0
    """Number of requests for its threads."""
    slow: int = 0
    """Number of requests for threads that it does not answer in time."""

    def has_threads(self, names: Sequence[str], *, clock: object) -> bool | None:
        self.listed += clock is not None
        return None if self.listed <= self.slow else any(name in self.threads for name in names)

    def stuck_task(self) -> bool:
        return self.task


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "connect" / "key"
    prepare(folder)
    return folder


def daemon(place: Path, clock: Ticking, role: ServerRole = ServerRole.JOBS) -> ServerDaemon:
    return ServerDaemon(place, Settings(), ui=False, role=role, clock=clock)


def watch(
    place: Path,
    server: FakeServer,
    clock: Ticking,
    running: RunningServer = RUNNING,
    role: ServerRole = ServerRole.JOBS,
) -> bool:
    write_state(place, running)
    return daemon(place, clock, role).watch(server, running)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"spark_memory_mb": 2000},
        {"spark_master": "local[1]"},
        {"spark_jars": "/jars"},
        {"spark": {"spark.sql.shuffle.partitions": "3"}},
        {"spark_short_run": True},
    ],
)
def test_other_settings_of_the_jvm_have_another_folder(changed: dict[str, Any]):
    assert server_folder(replace(Settings(), **changed)) != server_folder(Settings())


def test_other_settings_share_the_server_folder():
    other = Settings(durable=False, spark_idle_minutes=1, max_rows=5)
    assert server_folder(other) == server_folder(Settings())


def test_each_setting_of_spark_decides_on_the_folder_or_does_not_change_the_jvm():
    of_spark = {field.name for field in fields(Settings) if field.name.startswith("spark")}
    assert of_spark - {"spark_remote", "spark_shared", "spark_idle_minutes"} < set(shared_server.DECIDING_SETTINGS)


def test_another_java_or_configuration_has_another_folder():
    given = {"XDG_CACHE_HOME": "/x"}
    places = {server_folder(Settings(), given | more) for more in ({}, {"JAVA_HOME": "/j"}, {"HADOOP_CONF_DIR": "/h"})}
    assert len(places) == 3
    assert all(place.parent == Path("/x/siltstone/connect") for place in places)


def test_a_version_with_other_files_has_another_folder():
    files = [CLIENTS_LOCK, DAEMON_LOCK, START_LOCK, STATE_FILE]
    known = {2: ["clients.lock", "daemon.lock", "start.lock", "server.json"]}  # in format 1 the daemon held keeper.lock
    assert files == known[FORMAT]  # else two daemons would serve one folder, and replace each other's state


def test_a_server_folder_is_for_its_owner_only(tmp_path: Path):
    folder = tmp_path / "connect" / "key"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    prepare(folder)
    write_state(folder, RUNNING)
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder, folder / STATE_FILE)] == [
        0o700,
        0o700,
        0o600,
    ]


def test_the_state_that_a_server_daemon_wrote_is_read_back(place: Path):
    write_state(place, RUNNING)
    assert read_state(place) == RUNNING
    assert RUNNING.token not in repr(RUNNING)


WRONG_TYPES = json.dumps({"port": "x", "token": 1, "started_at": "", "idle_minutes": 1})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"port": 1}', '{"unknown": 1}', WRONG_TYPES])
def test_an_invalid_state_file_is_ignored(place: Path, text: str):
    write_state(place, RUNNING)
    (place / STATE_FILE).write_text(text)
    assert read_state(place) is None


def test_a_state_that_others_can_read_is_not_trusted(place: Path):
    write_state(place, RUNNING)
    (place / STATE_FILE).chmod(0o644)
    assert read_state(place) is None


def test_a_link_is_not_followed(place: Path, tmp_path: Path):
    write_state(place, RUNNING)
    (place / STATE_FILE).rename(tmp_path / "elsewhere")
    (place / STATE_FILE).symlink_to(tmp_path / "elsewhere")
    assert read_state(place) is None


def test_a_state_without_a_living_daemon_is_ignored(place: Path):
    write_state(place, RUNNING)
    (place / DAEMON_LOCK).write_text(str(os.getpid()))
    shared = SharedSpark(Settings(), folder=place)
    assert (shared.running(), shared.daemon_pid(), shared.stop()) == (None, None, False)


def test_of_two_daemons_one_serves(place: Path):
    first = daemon(place, Ticking())
    assert SharedSpark(Settings(), folder=place).daemon_pid() == os.getpid()
    with pytest.raises(Unavailable):
        daemon(place, Ticking())
    del first


def test_a_server_in_use_is_not_stopped_unless_forced(place: Path):
    daemon, client = open_locked(place / DAEMON_LOCK), open_locked(place / CLIENTS_LOCK, shared=True)
    shared = SharedSpark(Settings(), folder=place)
    assert shared.in_use()
    with pytest.raises(Conflict, match="--force"):
        shared.stop()
    os.close(client)
    assert not shared.in_use()
    of_daemon = open_locked(place / CLIENTS_LOCK)
    assert not shared.in_use(), "the daemon holds it exclusively while there is no client"
    os.close(of_daemon)
    os.close(daemon)


DEAF_DAEMON = """
import os, signal, sys, time
from pathlib import Path
from siltstone.host.file_lock import open_locked
signal.signal(signal.SIGTERM, signal.SIG_IGN)
handle = open_locked(Path(sys.argv[1]))
os.write(handle, str(os.getpid()).encode())
print(flush=True)
time.sleep(60)
"""


def test_a_daemon_that_does_not_end_is_unavailable(place: Path):
    with subprocess.Popen(
        [sys.executable, "-c", DEAF_DAEMON, str(place / DAEMON_LOCK)], stdout=subprocess.PIPE
    ) as deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        with pytest.raises(Unavailable, match=str(deaf.pid)):
            SharedSpark(Settings(), folder=place, clock=Ticking()).stop()
        deaf.kill()


def test_a_server_that_cannot_start_has_a_reason_and_names_its_log(tmp_path: Path):
    shared = SharedSpark(Settings(spark_jars=str(tmp_path)), folder=tmp_path / "connect" / "key")
    with refused(Unavailable, Reason.SPARK_LOST, "delta-spark", "server.log"):
        shared.join()
    assert not shared.in_use()


def test_a_cache_that_cannot_be_written_names_the_settings_to_change(tmp_path: Path):
    (tmp_path / "file").touch()
    with refused(Unavailable, None, "XDG_CACHE_HOME", "spark_shared"):
        SharedSpark(Settings(), folder=tmp_path / "file" / "key").join()


def test_a_server_daemon_ends_after_the_idle_time_without_clients(place: Path):
    clock = Ticking()
    watch(place, FakeServer(), clock)
    assert clock.monotonic_seconds() == pytest.approx(15 * 60, abs=1)
    assert not (place / STATE_FILE).exists()


def test_a_client_keeps_the_server_however_long_it_stays(place: Path):
    clients: list[int] = []
    server = FakeServer()
    left: list[int] = []
    come = [lambda: clients.append(open_locked(place / CLIENTS_LOCK, shared=True)), server.run_python]
    stay: list[Callable[[], object]] = [lambda: None] * 5000
    seen = [lambda: left.append(server.python)]
    clock = Ticking(*come, *stay, *seen, lambda: os.close(clients.pop()), *seen)
    watch(place, server, clock)
    assert clock.monotonic_seconds() > 5000 * 0.5 + 15 * 60
    assert left == [1, 0], "Python workers live while a client may use them, and are ended at once afterwards"


def test_python_of_a_client_that_came_and_left_between_two_checks_is_ended(place: Path):
    server = FakeServer()
    clock = Ticking(server.run_python, *[lambda: None] * 20, server.end)
    watch(place, server, clock)
    assert (server.python, clock.monotonic_seconds()) == (0, 11)


def test_a_daemon_whose_server_ended_withdraws_at_once(place: Path):
    server = FakeServer()
    clock = Ticking(server.end)
    watch(place, server, clock)
    assert clock.monotonic_seconds() < 2
    assert not (place / STATE_FILE).exists()


def test_a_damaged_state_is_rewritten(place: Path):
    seen: list[RunningServer | None] = []
    server = FakeServer()
    damage = (place / STATE_FILE).write_text
    clock = Ticking(lambda: damage("garbage"), lambda: seen.append(read_state(place)), server.end)
    watch(place, server, clock)
    assert seen == [RUNNING]


def test_a_daemon_whose_folder_was_deleted_ends_after_its_clients_and_leaves_its_successor_alone(place: Path):
    client = open_locked(place / CLIENTS_LOCK, shared=True)
    successor = replace(RUNNING, port=2)

    def delete() -> None:
        place.rename(place.with_name("deleted"))
        prepare(place)
        (place / DAEMON_LOCK).touch()
        write_state(place, successor)

    clock = Ticking(delete, lambda: None, lambda: os.close(client))
    watch(place, FakeServer(), clock)
    assert clock.monotonic_seconds() < 3
    assert read_state(place) == successor


def test_queries_and_jobs_have_servers_of_their_own():
    assert len({server_folder(Settings(), role=role) for role in ServerRole}) == 2


def suspect(place: Path, operation: str, *, port: int = RUNNING.port) -> Path:
    """Report an operation in a file with an old modification time."""
    found = write_suspect(place, port=port, operations=[operation])
    os.utime(found, (0, 0))
    return found


def test_a_server_whose_interrupted_query_works_on_is_ended_and_its_clients_can_tell(place: Path):
    handle = open_locked(place / CLIENTS_LOCK, shared=True)
    server = FakeServer(threads='"SparkConnectExecuteThread_opId=a1" daemon')
    assert watch(place, server, Ticking(lambda: suspect(place, "a1")), role=ServerRole.QUERIES)
    assert not (place / STATE_FILE).exists()
    assert list(place.glob("suspect-*")) == []
    assert SharedServerHandle(handle, RUNNING, place).was_ended()
    member = SharedServerHandle(open_locked(place / CLIENTS_LOCK, shared=True), replace(RUNNING, port=2), place)
    assert not member.was_ended()
    os.close(handle)
    member.leave()


def test_a_client_never_reads_half_a_record_of_an_ended_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(content: object, file: IO[str]) -> None:
        file.write(json.dumps(content)[:3])
        file.flush()
        seen.append(handle.was_ended())

    seen: list[bool] = []
    handle = SharedServerHandle(open_locked(place / CLIENTS_LOCK, shared=True), RUNNING, place)
    write_ended(place, RUNNING)
    monkeypatch.setattr(json, "dump", cut_off)
    write_ended(place, RUNNING)
    handle.leave()
    assert seen == [True]


def test_a_server_whose_interrupted_query_has_ended_or_is_not_its_own_continues(place: Path):
    server = FakeServer(threads='"SparkConnectExecuteThread_opId=b1" daemon')
    reports = [lambda: suspect(place, "a1"), lambda: suspect(place, "b1", port=2), lambda: suspect(place, "c1")]
    assert not watch(place, server, Ticking(*reports, lambda: None, server.end), role=ServerRole.QUERIES)
    assert (server.listed, list(place.glob("suspect-*"))) == (2, [])


def test_a_report_outlasts_a_jvm_that_lists_its_threads_slowly(place: Path):
    server = FakeServer(threads='"SparkConnectExecuteThread_opId=a1" daemon', slow=3)
    later = [lambda: None, lambda: suspect(place, "b1"), *[lambda: None] * 5, server.end]
    assert watch(place, server, Ticking(lambda: suspect(place, "a1"), *later), role=ServerRole.QUERIES)
    assert server.listed == 4
    assert len(list(place.glob("suspect-*"))) == 1, "a later report waits for a list of its own"


HUNG_SECONDS = 60.0
SLOW_JVM = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGQUIT})
while True:
    print("ready", flush=True)
    signal.sigwait({signal.SIGQUIT})
"""
"""Ignores the signal that requests a thread dump; the test writes the answer."""


@pytest.fixture
def slow_jvm(tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    call = ["/bin/sh", "-c", '"$@"; :', "sh", str(java), "-ISc", SLOW_JVM]
    with subprocess.Popen(call, stdout=subprocess.PIPE, start_new_session=True) as process:
        hung = threading.Timer(HUNG_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        hung.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            hung.cancel()
            hung.join()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_list_of_threads_that_comes_late_and_in_pieces_is_waited_for(
    slow_jvm: "subprocess.Popen[bytes]", tmp_path: Path
):
    log = tmp_path / "server.log"
    log.write_text("JNI global refs: of a list before\n")

    def write(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    server = ConnectServer(slow_jvm, port=1, log=log, scratch=Scratch(Settings(scratch_dir=str(tmp_path))))
    clock = Ticking(*[lambda: None] * round(THREADS_SECONDS / 0.05), lambda: write("Full thread dump:\n" + '"opId=a1'))
    assert server.has_threads(["opId=a1"], clock=clock) is None
    assert server.has_threads(["opId=a1"], clock=clock) is None
    assert server.has_threads(["opId=a1"], clock=Ticking(lambda: write('" daemon\nJNI global refs: 5\n'))) is True
    assert slow_jvm.stdout is not None
    assert slow_jvm.stdout.readline() == b"ready\n"  # two equal signals that wait at once count as one
    answer = "Full thread dump:\n" + '"main"\nJNI global refs: 5\n'
    assert server.has_threads(["opId=a1"], clock=Ticking(lambda: write(answer))) is False
    assert slow_jvm.stdout.readline() == b"ready\n"
    os.killpg(slow_jvm.pid, signal.SIGKILL)
    assert slow_jvm.stdout.read() == b"", "a list that is on its way is not asked for again"
    server.stop()


class DeafSession:
    """Stands for a session of Spark Connect whose operation ignores interrupts."""

    def __init__(self) -> None:
        self._new = ["a1"]

    def addTag(self, tag: str) -> None:  # noqa: N802
        self.tag = tag

    def removeTag(self, tag: str) -> None:  # noqa: N802
        assert tag == self.tag

    def interruptTag(self, tag: str) -> list[str]:  # noqa: N802
        assert tag == self.tag
        interrupted, self._new = self._new, []
        return interrupted


DeafSession.__module__ = "pyspark.sql.connect.session"
CANCELLED = "[OPERATION_CANCELED] Operation has been canceled."


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (RuntimeError(CANCELLED), 0),
        (ValueError("Cannot invoke RPC: Channel closed!"), 1),
        (RuntimeError("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid."), 1),
        (RuntimeError("[INVALID_HANDLE.OPERATION_ABANDONED] The handle is invalid."), 1),
    ],
    ids=["ended", "channel closed", "session closed", "abandoned"],
)
def test_a_report_is_taken_back_only_if_the_query_has_ended(place: Path, error: Exception, left: int):
    """A process that gives up a query and ends closes its session first.

    Its call then fails at once, although the query may still run.
    """
    session: Any = DeafSession()
    member = SharedServerHandle(open_locked(place / CLIENTS_LOCK, shared=True), RUNNING, place)
    members()[session] = member
    active = ActiveQuery("one")
    query = SparkQuery(admit("SELECT 1"), spark=lambda: session, dataset=pytest.fail, query=active)

    def fail() -> None:
        active.cancel()
        while not list(place.glob("suspect-*")):
            SystemClock().sleep(0.01)
        raise error

    with ActiveQueries().listed(active), pytest.raises(type(error)), interruptible_query(query, session):
        fail()
    assert len(list(place.glob("suspect-*"))) == left
    member.leave()


def test_a_fresh_report_waits_for_its_time(place: Path):
    server = FakeServer(threads="SparkConnectExecuteThread_opId=a1")
    member = SharedServerHandle(open_locked(place / CLIENTS_LOCK, shared=True), RUNNING, place)
    found = member.suspect(["a1"])
    assert not watch(place, server, Ticking(lambda: None, server.end), role=ServerRole.QUERIES)
    assert found is not None
    assert (found.exists(), found.stat().st_mode & 0o777, server.listed) == (True, 0o600, 0)
    member.leave()


@pytest.mark.parametrize("role", ServerRole)
def test_a_killed_task_that_does_not_end_ends_a_server_for_queries_and_none_for_jobs(place: Path, role: ServerRole):
    server = FakeServer(task=True)
    assert watch(place, server, Ticking(lambda: None, server.end), role=role) is (role is ServerRole.QUERIES)


def test_the_log_of_the_server_before_is_kept(tmp_path: Path):
    shared = SharedSpark(Settings(spark_jars=str(tmp_path)), folder=tmp_path / "connect" / "key")
    prepare(shared.folder)
    (shared.folder / LOG_FILE).write_text("old\n")
    with pytest.raises(Unavailable):
        shared.join()
    assert (shared.folder / shared_server.PREVIOUS_LOG).read_text() == "old\n"
