"""The keeper: a process in the background that starts a Spark server, watches over it and ends it when it is not needed.

`shared_spark.py` starts it and says what its files mean. Flow:

1. lock ``keeper.lock`` for life, and write the process id into it;
2. start the server on 127.0.0.1 with a fresh token, and write ``server.json``;
3. tell the process that waits on standard output, and let go of it;
4. watch. The last client has gone: end the Python processes that the server keeps for every session; also every 10 s while
   there is none, because one may have come and gone between two looks. Nobody held ``clients.lock`` for the setting
   `spark_idle_minutes`: remove ``server.json`` while holding that lock alone, and end the server. The server ended by itself,
   or SIGTERM came: the same, at once.
5. of a server for queries: an operation that a client has interrupted is still at work after `SUSPECT_SECONDS`, or Spark's log
   says that a killed task does not end. Remove ``server.json`` and end the server, by force after `STUCK_STOP_SECONDS`. Clients
   get Unavailable or, for reads, ask again; the next one starts another server.

A keeper whose folder was deleted serves the clients it has and then ends; one whose ``server.json`` was damaged writes
it anew. A killed keeper leaves ``server.json`` behind, which nobody trusts without its lock, and takes the server with it.
"""

import fcntl
import json
import os
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from siltstone.clock import Clock, SystemClock
from siltstone.config import Settings
from siltstone.errors import SiltstoneError, Unavailable
from siltstone.spark.connect_server import ConnectServer, connect_server, free_port
from siltstone.spark.shared_server import (
    CLIENTS_LOCK,
    KEEPER_LOCK,
    LOG_FILE,
    STATE_FILE,
    Running,
    ServerRole,
    lock,
    prepare,
    read_state,
    take_suspects,
    write_ended,
    write_state,
)

TOKEN_BYTES: Final = 32
WATCH_SECONDS: Final = 0.5
PYTHON_SECONDS: Final = 10.0
"""How often a keeper without clients looks for Python processes: that lists all processes of the machine."""
LOCK_TRIES: Final = 100
"""Whoever only asks whether the keeper lives holds its lock for a moment."""
SECONDS_PER_MINUTE: Final = 60.0
SUSPECT_SECONDS: Final = 10.0
"""Time that an interrupted operation has to end before its server is ended."""
STUCK_STOP_SECONDS: Final = 3.0
"""Time that a server has to end whose threads do not: its own clean-up waits for them."""
THREAD_NAME: Final = "SparkConnectExecuteThread_opId={}"
"""The name of the thread in which Spark Connect runs an operation."""


class Keeper:
    """Serves one place, from its start to its end."""

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
        """Operations that were reported, until the server has said whether they are at work."""
        self._ui = ui or settings.spark.get("spark.ui.enabled") == "true"
        prepare(folder)
        self._own = self._own_lock()
        self._clients = lock(folder / CLIENTS_LOCK, fcntl.LOCK_SH)
        fcntl.flock(self._clients, fcntl.LOCK_UN)

    def _own_lock(self) -> int:
        for _ in range(LOCK_TRIES):
            with suppress(BlockingIOError):
                handle = lock(self._folder / KEEPER_LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.truncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                return handle
            self._clock.sleep(0.05)
        raise Unavailable(f"Another keeper serves {self._folder}.")

    def start(self) -> tuple[ConnectServer, Running]:
        """Start the server and let clients find it.

        Raises:
            Unavailable: it did not start.
        """
        token = secrets.token_hex(TOKEN_BYTES)
        ui_port = int(self._settings.spark.get("spark.ui.port", 0)) or free_port() if self._ui else 0
        server = connect_server(
            self._settings,
            token=token,
            ui_port=ui_port,
            log=self._folder / LOG_FILE,
            reaper=self._role is ServerRole.QUERIES,
        )
        running = Running(
            port=server.port,
            token=token,
            started_at=self._clock.now().isoformat(timespec="seconds"),
            idle_minutes=self._settings.spark_idle_minutes,
            ui_port=ui_port,
        )
        write_state(self._folder, running)
        return server, running

    def watch(self, server: ConnectServer, running: Running) -> bool:
        """Return when the server has to end, or has ended; no client can find it any more then.

        Returns:
            True if it has to end because a query does not.
        """
        idle_since = python_ended = self._clock.monotonic_seconds()
        were_clients = False
        while server.alive():
            now = self._clock.monotonic_seconds()
            if self._alone():
                if were_clients or now - python_ended >= PYTHON_SECONDS:
                    server.end_python()
                    python_ended = now
                were_clients = False
                due = now - idle_since >= running.idle_minutes * SECONDS_PER_MINUTE
                if due or self._orphaned():
                    self._forget()
                    return False
                fcntl.flock(self._clients, fcntl.LOCK_UN)
            else:
                idle_since, were_clients = now, True
            if not self._orphaned() and read_state(self._folder) != running:
                write_state(self._folder, running)
            if self._role is ServerRole.QUERIES and self._is_stuck(server, running):
                write_ended(self._folder, running)
                self._forget()
                return True
            self._clock.sleep(WATCH_SECONDS)
        self._forget()
        return False

    def _is_stuck(self, server: ConnectServer, running: Running) -> bool:
        """True if a query works on although it was interrupted; the log gets a line about it."""
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
                "The server is ended: a query that was interrupted does not end. The next command starts another.\n"
            )
            sys.stderr.flush()
        return stuck

    def _alone(self) -> bool:
        """Take the clients' lock if no client is there."""
        with suppress(BlockingIOError):
            fcntl.flock(self._clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def _orphaned(self) -> bool:
        """True if the folder was deleted: whoever comes next finds another keeper there, or none."""
        try:
            return not os.path.samestat(os.fstat(self._own), (self._folder / KEEPER_LOCK).stat())
        except FileNotFoundError:
            return True

    def _forget(self) -> None:
        """Let no client find the server; then whoever waits for the clients' lock may go on."""
        self.withdraw()
        fcntl.flock(self._clients, fcntl.LOCK_UN)

    def withdraw(self) -> None:
        """Remove ``server.json``, unless it is another keeper's."""
        if not self._orphaned():
            (self._folder / STATE_FILE).unlink(missing_ok=True)


def keep(folder: Path, order: dict[str, Any]) -> None:
    """Live a keeper's life."""
    keeper = Keeper(folder, Settings(**order["settings"]), ui=order["ui"], role=ServerRole(order["role"]))
    os.chdir(folder)  # the caller's folder may go
    server, running = keeper.start()
    with server:
        try:
            _tell("")
            if keeper.watch(server, running):
                server.stop(seconds=STUCK_STOP_SECONDS)
        finally:
            keeper.withdraw()


def _tell(failure: str) -> None:
    """Say to the process that waits how the start went, and let go of it."""
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps({"failure": failure}))
        sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_RDWR), sys.stdout.fileno())


def main() -> None:
    """Keep a server in the folder that is named; the order comes on standard input."""
    order = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        keep(Path(sys.argv[1]), order)
    except (SiltstoneError, OSError) as error:
        _tell(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
