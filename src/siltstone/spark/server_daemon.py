"""The server daemon: a background process that starts a Spark server, watches it, and ends it when no longer needed.

`shared_server.py` starts it and documents its files. Flow:

1. lock ``daemon.lock`` for the daemon's lifetime, and write the process id into it;
2. start the server on 127.0.0.1 with a fresh token, and write ``server.json``;
3. report to the process that waits on standard output, and detach from it;
4. watch the server:

   * When the last client has left, end the Python processes that the server holds for every session. Also do so every
     10 s while there is no client. One may have connected and left between two checks.
   * When no client held ``clients.lock`` for the setting `spark_idle_minutes`, remove ``server.json`` while holding that lock
     alone, and end the server.
   * When the server process has ended, or on SIGTERM, do the same at once.
5. for a server for queries: an interrupted operation still runs after `SUSPECT_SECONDS`, or Spark's log reports that a
   killed task does not end. Then remove ``server.json`` and end the server, by force after `STUCK_STOP_SECONDS`.
   Clients get Unavailable or, for reads, retry. The next client starts another server.

A daemon whose folder was deleted serves its clients and then ends. A damaged ``server.json`` is rewritten. A killed daemon
leaves ``server.json`` behind, which no client trusts without the lock, and its server ends with it.
"""

import json
import os
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from siltstone.clock import Clock, SystemClock, utc_text
from siltstone.config import Settings
from siltstone.errors import SiltstoneError, Unavailable
from siltstone.host.file_lock import open_locked, try_lock, unlock
from siltstone.spark.connect_server import ConnectServer, connect_server, free_port
from siltstone.spark.shared_server import (
    CLIENTS_LOCK,
    DAEMON_LOCK,
    LOG_FILE,
    STATE_FILE,
    RunningServer,
    ServerRole,
    prepare,
    read_state,
    take_suspects,
    write_ended,
    write_state,
)

TOKEN_BYTES: Final = 32
WATCH_SECONDS: Final = 0.5
PYTHON_SECONDS: Final = 10.0
"""Interval, in seconds, at which a daemon without clients looks for Python processes. It lists all processes of the machine."""
LOCK_TRIES: Final = 100
"""Attempts to acquire the daemon's lock. A process that checks whether a daemon lives holds the lock for a moment."""
SUSPECT_SECONDS: Final = 10.0
"""Seconds after which the server of an interrupted operation that still runs is ended."""
STUCK_STOP_SECONDS: Final = 3.0
"""Seconds until a server with stuck threads is killed, because its own clean-up waits for them."""
THREAD_NAME: Final = "SparkConnectExecuteThread_opId={}"
"""The name of the thread in which Spark Connect runs an operation."""


class ServerDaemon:
    """Starts, watches and ends the server of one folder."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        *,
        ui: bool,
        role: ServerRole = ServerRole.JOBS,
        clock: Clock | None = None,
    ) -> None:
        self._role = role
        self._folder = folder
        self._settings = settings
        self._clock = SystemClock() if clock is None else clock
        self._suspects: list[str] = []
        """Reported operations, until the server has answered whether they still run."""
        self._ui = ui or settings.spark.get("spark.ui.enabled") == "true"
        prepare(folder)
        self._lock = self._acquire_lock()
        self._clients = open_locked(folder / CLIENTS_LOCK, shared=True)
        unlock(self._clients)

    def _acquire_lock(self) -> int:
        for _ in range(LOCK_TRIES):
            with suppress(BlockingIOError):
                handle = open_locked(self._folder / DAEMON_LOCK, wait=False)
                os.truncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                return handle
            self._clock.sleep(0.05)
        raise Unavailable(f"Another daemon serves {self._folder}. Use that one, or end it with silt spark stop.")

    def start(self) -> tuple[ConnectServer, RunningServer]:
        """Start the server and publish it to clients."""
        token = secrets.token_hex(TOKEN_BYTES)
        ui_port = int(self._settings.spark.get("spark.ui.port", 0)) or free_port() if self._ui else 0
        server = connect_server(
            self._settings,
            token=token,
            ui_port=ui_port,
            log=self._folder / LOG_FILE,
            reaper=self._role is ServerRole.QUERIES,
        )
        running = RunningServer(
            port=server.port,
            token=token,
            started_at=utc_text(self._clock.now(), timespec="seconds"),
            idle_minutes=self._settings.spark_idle_minutes,
            ui_port=ui_port,
        )
        write_state(self._folder, running)
        return server, running

    def watch(self, server: ConnectServer, running: RunningServer) -> bool:
        """Return when the server must end, or has ended. Clients can no longer find it then.

        Returns:
            True if it must end because a query does not end.
        """
        idle_since = python_ended = self._clock.monotonic_seconds()
        were_clients = False
        while server.alive():
            now = self._clock.monotonic_seconds()
            if not try_lock(self._clients):  # a client holds the lock
                idle_since, were_clients = now, True
            else:
                if were_clients or now - python_ended >= PYTHON_SECONDS:
                    server.end_python()
                    python_ended = now
                were_clients = False
                if now - idle_since >= running.idle_minutes * 60 or self._orphaned():
                    self._forget()
                    return False
                unlock(self._clients)
            if not self._orphaned() and read_state(self._folder) != running:
                write_state(self._folder, running)
            if self._role is ServerRole.QUERIES and self._is_stuck(server, running):
                write_ended(self._folder, running)
                self._forget()
                return True
            self._clock.sleep(WATCH_SECONDS)
        self._forget()
        return False

    def _is_stuck(self, server: ConnectServer, running: RunningServer) -> bool:
        """True if an interrupted query still runs; write a line about it to the log."""
        if not self._suspects:
            self._suspects = take_suspects(self._folder, port=running.port, older_seconds=SUSPECT_SECONDS)
        stuck = server.stuck_task()
        if self._suspects and not stuck:
            threads = [THREAD_NAME.format(operation) for operation in self._suspects]
            at_work = server.has_threads(threads, clock=self._clock)
            if at_work is not None:
                self._suspects = []
            stuck = bool(at_work)
        if stuck:
            sys.stderr.write(
                "The server is ended because an interrupted query does not end. The next command starts another server.\n"
            )
            sys.stderr.flush()
        return stuck

    def _orphaned(self) -> bool:
        """True if the folder was deleted. The next client finds another daemon there, or none."""
        try:
            return not os.path.samestat(os.fstat(self._lock), (self._folder / DAEMON_LOCK).stat())
        except FileNotFoundError:
            return True

    def _forget(self) -> None:
        """Hide the server from clients, then release the clients' lock for the processes that wait for it."""
        self.withdraw()
        unlock(self._clients)

    def withdraw(self) -> None:
        """Remove ``server.json``, unless it belongs to another daemon."""
        if not self._orphaned():
            (self._folder / STATE_FILE).unlink(missing_ok=True)


def run_daemon(folder: Path, order: dict[str, Any]) -> None:
    """Run a daemon from start to end."""
    daemon = ServerDaemon(
        folder, Settings.from_plain(order["settings"]), ui=order["ui"], role=ServerRole(order["role"])
    )
    os.chdir(folder)  # the caller's folder may be deleted
    server, running = daemon.start()
    with server:
        try:
            _report_start("")
            if daemon.watch(server, running):
                server.stop(seconds=STUCK_STOP_SECONDS)
        finally:
            daemon.withdraw()


def _report_start(failure: str) -> None:
    """Report the result of the start to the waiting process, and detach from it."""
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps({"failure": failure}))
        sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_RDWR), sys.stdout.fileno())


def main() -> None:
    """Run a server daemon in the folder of the first argument. Its parameters come on standard input."""
    order = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        run_daemon(Path(sys.argv[1]), order)
    except (SiltstoneError, OSError) as error:
        _report_start(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
