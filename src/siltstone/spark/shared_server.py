"""Local Spark servers that a user's commands share: find, join, start and stop them.

Terms:

* *server*: a Spark Connect server on 127.0.0.1 that serves every client with its token.
* *daemon*: the background process that started the server and ends it after it was unused for a while (`server_daemon.py`). The
  server ends with its daemon, however the daemon ends.
* *client*: a process that uses the server.
* *role*: the purpose of a server. SQL texts run on one for ``queries``, everything else (loads, folds, exports, frames) on one
  for ``jobs``. So a query that cannot be stopped delays no job, and its server can be ended without ending a job.
* *folder*: that of a server in the user's cache, readable by its owner only. A role, or settings, that need another JVM have
  another folder.
* *suspect*: an operation of Spark Connect that was interrupted and has not ended. The daemon ends a server whose suspects do
  not end.

A folder has six files, and one for each suspect. Locks are file locks (`flock`), which the death of their holder releases.

| file | content | locked by |
|---|---|---|
| ``server.json`` | port, token and the rest of `RunningServer`; exists while the server serves | |
| ``clients.lock`` | | each client, shared, for its lifetime |
| ``daemon.lock`` | the daemon's process id | the daemon, for its lifetime |
| ``start.lock`` | | a process that starts a server, until it serves |
| ``server.log`` | output of daemon and server; ``previous.log`` is that of the previous server | |
| ``ended.json`` | the port of the last server that was ended because a query on it could not be stopped | |
| ``suspect-<id>.json`` | operations that a client interrupted without effect, and their server | |

Joining:

1. lock ``clients.lock`` (shared): from now on the daemon sees that a client exists;
2. read ``server.json``; join if the daemon lives and the port answers;
3. otherwise lock ``start.lock``, check again, wait for a daemon that is just starting or ending, and start one.

The daemon removes ``server.json`` only while it holds ``clients.lock`` alone. So a client that read the file after step 1 never
loses its server. This module does not load PySpark.
"""

import datetime
import hashlib
import json
import os
import platform
import secrets
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from siltstone.clock import Clock, SystemClock
from siltstone.config import Settings
from siltstone.errors import Conflict, Reason, Unavailable
from siltstone.host.file_lock import is_locked, is_shared, open_locked
from siltstone.host.fork_safety import close
from siltstone.host.private_folders import OTHERS, private_folder
from siltstone.host.user_cache import cache_folder
from siltstone.spark.connect_server import (
    POLL_SECONDS,
    SERVER_START_SECONDS,
    SERVER_STOP_SECONDS,
    TOKEN_VARIABLE,
    last_lines,
    listens,
)
from siltstone.spark.jars import DELTA_VERSION, spark_version

FORMAT: Final = 2
"""Part of a folder's name. A version that writes other files uses other folders."""
STATE_FILE: Final = "server.json"
CLIENTS_LOCK: Final = "clients.lock"
DAEMON_LOCK: Final = "daemon.lock"
START_LOCK: Final = "start.lock"
LOG_FILE: Final = "server.log"
PREVIOUS_LOG: Final = "previous.log"
LAST_LINES: Final = 10
START_SECONDS: Final = SERVER_START_SECONDS + 30.0
"""Start time of a server, plus some for its daemon's Python, in seconds."""
END_SECONDS: Final = SERVER_STOP_SECONDS + 15.0
SUSPECTS: Final = "suspect-*.json"
ENDED_FILE: Final = "ended.json"
DECIDING_SETTINGS: Final = ("spark_master", "spark_memory_mb", "spark_jars", "spark_short_run", "scratch_dir", "spark")
DECIDING_VARIABLES: Final = (
    "JAVA_HOME",
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "PYSPARK_PYTHON",
)
DETACH: Final = 'exec 3<&0; "$@" <&3 3<&- &'
"""Shell command that runs a detached command: the shell ends at once and leaves the command to the system."""


class ServerRole(StrEnum):
    """The purpose of a shared server."""

    QUERIES = "queries"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that serves. The token is a secret: any process that has it can run code as this user."""

    port: int
    token: str = field(repr=False)
    started_at: str
    idle_minutes: float
    ui_port: int = 0

    @property
    def address(self) -> str:
        """Address of the server, for display."""
        return f"sc://localhost:{self.port}"

    @property
    def connection(self) -> str:
        """Address and token of the server. A token is sent without TLS only to the name ``localhost``."""
        return f"{self.address}/;token={self.token}"

    @property
    def ui(self) -> str | None:
        """Address of Spark's UI, if it is on."""
        return f"http://127.0.0.1:{self.ui_port}" if self.ui_port else None


def server_folder(
    settings: Settings, environment: Mapping[str, str] | None = None, *, role: ServerRole = ServerRole.JOBS
) -> Path:
    """Return the folder of the matching server. The role and everything that affects its JVM are part of its name."""
    environment = os.environ if environment is None else environment
    parts: dict[str, Any] = {name: getattr(settings, name) for name in DECIDING_SETTINGS}
    parts["spark"] = sorted(settings.spark.items())
    parts |= {name: environment.get(name, "") for name in DECIDING_VARIABLES}
    parts |= {"format": FORMAT, "role": role, "python": sys.executable, "user": os.getuid(), "host": platform.node()}
    parts |= {"pyspark": spark_version(), "delta": DELTA_VERSION}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder(environment) / "connect" / digest


class SharedServerHandle(AbstractContextManager["SharedServerHandle"]):
    """A client's handle of the server. While it is open, the server does not end as unused."""

    def __init__(self, handle: int, running: RunningServer, folder: Path) -> None:
        self._handle: int | None = handle
        self._folder = folder
        self.running: Final = running

    def alive(self) -> bool:
        """Return whether the joined server still serves."""
        return daemon_lives(self._folder) and read_state(self._folder) == self.running

    def log_tail(self) -> list[str]:
        """Return the end of the server's log."""
        return last_lines(self._folder / LOG_FILE, LAST_LINES)

    def was_ended(self) -> bool:
        """True if the daemon ended the server because a query on it could not be stopped."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            return bool(json.loads((self._folder / ENDED_FILE).read_text())["port"] == self.running.port)
        return False

    def suspect(self, operations: Sequence[str]) -> Path | None:
        """Report operations that were interrupted and have not ended. The daemon checks them after a while."""
        with suppress(OSError):  # the folder is gone, and its server with it
            return write_suspect(self._folder, port=self.running.port, operations=operations)
        return None

    def leave(self) -> None:
        """Release the server. The end of the process does the same."""
        if self._handle is not None:
            close(self._handle)
            self._handle = None

    def __exit__(self, *_failure: object) -> None:
        self.leave()


class SharedSpark:
    """The shared server of one folder, running or not."""

    def __init__(
        self,
        settings: Settings,
        *,
        role: ServerRole = ServerRole.JOBS,
        folder: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._clock = SystemClock() if clock is None else clock
        self.role: Final = role
        self.folder: Final = server_folder(settings, role=role) if folder is None else folder

    @property
    def log(self) -> Path:
        """The log of daemon and server."""
        return self.folder / LOG_FILE

    def log_tail(self) -> list[str]:
        """Return the end of the log."""
        return last_lines(self.log, LAST_LINES)

    def running(self) -> RunningServer | None:
        """Return the server if it serves now, or None."""
        state = read_state(self.folder)
        return state if state is not None and daemon_lives(self.folder) and listens(state.port) else None

    def daemon_pid(self) -> int | None:
        """Return the daemon's process id, if it lives."""
        with suppress(OSError, ValueError):
            return int((self.folder / DAEMON_LOCK).read_text()) if daemon_lives(self.folder) else None
        return None

    def uptime_seconds(self) -> int | None:
        """Return for how many seconds the server has served."""
        state = read_state(self.folder)
        if state is None:
            return None
        return int((self._clock.now() - datetime.datetime.fromisoformat(state.started_at)).total_seconds())

    def in_use(self) -> bool:
        """Return whether a client uses the server: it has a shared lock. The daemon has an exclusive one for moments."""
        return is_shared(self.folder / CLIENTS_LOCK)

    def join(self, *, ui: bool = False) -> SharedServerHandle:
        """Return a handle of the server, and start it if it does not run. `ui` requests a server with Spark's UI.

        Raises:
            Unavailable: the server did not start, or the cache cannot be used.
        """
        try:
            prepare(self.folder)
            handle = open_locked(self.folder / CLIENTS_LOCK, shared=True)
            try:
                running = self.running() or self._start(ui=ui)
            except BaseException:
                close(handle)
                raise
        except OSError as error:
            raise Unavailable(
                f"The shared Spark server needs the cache folder {self.folder}: {error}. "
                "Set XDG_CACHE_HOME, or the setting spark_shared to false."
            ) from error
        return SharedServerHandle(handle, running, self.folder)

    def stop(self, *, force: bool = False) -> bool:
        """End the server and wait for its end; return False if no server runs.

        Raises:
            Conflict: a client uses the server, and `force` is not set.
            Unavailable: the server does not end.
        """
        if not daemon_lives(self.folder):
            return False
        if self.in_use() and not force:
            raise Conflict(
                "Another process uses the shared Spark server. Wait for it, or end the server anyway with "
                "silt spark stop --force; operations that run there fail and change nothing."
            )
        deadline = self._clock.monotonic_seconds() + END_SECONDS
        requested = False
        while daemon_lives(self.folder):
            pid = self.daemon_pid()
            if pid is not None and not requested:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                requested = True
            if self._clock.monotonic_seconds() > deadline:
                raise Unavailable(
                    f"The daemon of the shared Spark server (process {pid}) has not ended within {END_SECONDS:g} seconds. "
                    f"End that process. Log: {self.log}"
                )
            self._clock.sleep(POLL_SECONDS)
        return True

    def _start(self, *, ui: bool) -> RunningServer:
        """Return the server once it serves, whether another process is starting it or this one."""
        start_lock = open_locked(self.folder / START_LOCK)
        try:
            deadline = self._clock.monotonic_seconds() + START_SECONDS
            while daemon_lives(self.folder):
                running = self.running()
                if running is not None:
                    return running
                if self._clock.monotonic_seconds() > deadline:
                    raise Unavailable(
                        f"The shared Spark server neither answers nor ends; end it with silt spark stop --force. Log: {self.log}",
                        reason=Reason.SPARK_LOST,
                    )
                self._clock.sleep(POLL_SECONDS)
            return self._launch(ui=ui)
        finally:
            close(start_lock)

    def _launch(self, *, ui: bool) -> RunningServer:
        """Start a daemon and wait for its reply. If the caller is killed, the daemon still starts for the next client."""
        (self.folder / STATE_FILE).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self.log.replace(self.folder / PREVIOUS_LOG)
        order = json.dumps({"settings": self._settings.plain(), "ui": ui, "role": self.role})
        daemon = [sys.executable, "-m", "siltstone.spark.server_daemon", str(self.folder)]
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        with os.fdopen(os.open(self.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as log:
            started = subprocess.Popen(  # noqa: S603
                ["/bin/sh", "-c", DETACH, "sh", *daemon],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        try:
            reply = started.communicate(order, timeout=START_SECONDS)[0]
            failure = json.loads(reply)["failure"] if reply else " ".join(self.log_tail())
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            failure = str(error)
        running = self.running()
        if running is None:
            raise Unavailable(
                f"The shared Spark server did not start: {failure} Read its log and try again: {self.log}",
                reason=Reason.SPARK_LOST,
            )
        return running


def all_server_folders() -> list[Path]:
    """Return the folders of all servers of this user, running or not."""
    root = cache_folder() / "connect"
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def prepare(folder: Path) -> None:
    """Create the folder, for its owner only. Raises Unavailable if it belongs to another user."""
    for path in (folder.parent, folder):
        private_folder(path, remedy="Set XDG_CACHE_HOME to a folder of your own, or the setting spark_shared to false.")


def read_state(folder: Path) -> RunningServer | None:
    """Return the state that the daemon wrote; None if it is missing or cannot be trusted."""
    try:
        descriptor = os.open(folder / STATE_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor) as file:
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & OTHERS:
                return None
            running = RunningServer(**json.load(file))
        datetime.datetime.fromisoformat(running.started_at)
        numbers = (running.port, running.ui_port, running.idle_minutes)
        is_typed = all(isinstance(number, int | float) for number in numbers) and isinstance(running.token, str)
    except (OSError, ValueError, TypeError):
        return None
    return running if is_typed else None


def write_state(folder: Path, running: RunningServer) -> None:
    """Publish the server to clients."""
    _publish(folder / STATE_FILE, asdict(running))


def write_suspect(folder: Path, *, port: int, operations: Sequence[str]) -> Path:
    """Report operations of the server at a port to its daemon: they were interrupted and have not ended."""
    path = folder / SUSPECTS.replace("*", secrets.token_hex(8))
    return _publish(path, {"port": port, "operations": list(operations)})


def _publish(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a file that its readers see complete or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(content, file)
    return draft.replace(path)


def write_ended(folder: Path, running: RunningServer) -> None:
    """Record that this server was ended because a query could not be stopped, for its clients."""
    with suppress(OSError):
        _publish(folder / ENDED_FILE, {"port": running.port})


def take_suspects(folder: Path, *, port: int, older_seconds: float) -> list[str]:
    """Return and delete the suspects of a server that were reported long enough ago; also delete those of other servers."""
    operations: list[str] = []
    for path in sorted(folder.glob(SUSPECTS)):
        with suppress(OSError, ValueError, TypeError, KeyError):
            if time.time() - path.stat().st_mtime < older_seconds:  # noqa: TID251  # compared with file times
                continue
            data = json.loads(path.read_text())
            if data["port"] == port:
                operations += map(str, data["operations"])
            path.unlink()
    return operations


def daemon_lives(folder: Path) -> bool:
    """Return whether a daemon holds its lock. Unlike a process id, this cannot be outdated."""
    return is_locked(folder / DAEMON_LOCK)
