"""A local Spark Connect server as a child process, which many processes can join in half a second each.

It ends with its parent, however the parent ends: it holds a pipe whose closing it takes as the order to stop.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from siltstone.clock import Clock, SystemClock
from siltstone.config import Settings
from siltstone.errors import Unavailable
from siltstone.storage.jars import spark_home
from siltstone.storage.jvm import find_java
from siltstone.storage.launch import APP_NAME, launch_options, local_cores, ui_options
from siltstone.storage.python_workers import end_python_workers

SERVER_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # its name, not its value
SERVER_START_SECONDS: Final = 180.0
SERVER_STOP_SECONDS: Final = 90.0
"""Longer than a JVM takes to write its class archive on the way out."""
POLL_SECONDS: Final = 0.05
LOG_END_BYTES: Final = 16_384
"""How much of a log is read for its last lines."""


class ConnectServer:
    """A local Spark Connect server that this process started; `stop` ends it, and so does the end of this process."""

    WRAPPER: Final = """
        exec 3<&0
        "$@" </dev/null 3<&- & server=$!
        { cat <&3; kill "$server"; } >/dev/null 2>&1 & watch=$!
        wait "$server"
        kill "$watch"
    """
    """Run the server, and end it when standard input closes: a killed parent closes it too."""

    def __init__(self, process: subprocess.Popen[bytes], *, port: int, log: Path, keep_log: bool) -> None:
        self._process = process
        self._log = log
        self._keep_log = keep_log
        self.port: Final = port
        self.address: Final = f"sc://127.0.0.1:{port}"
        atexit.register(self.stop)

    def alive(self) -> bool:
        """Tell whether the server still runs."""
        return self._process.poll() is None

    def accepts(self) -> bool:
        """Tell whether the server takes connections."""
        return listens(self.port)

    def end_python(self) -> int:
        """End the Python processes that sessions have left behind; return how many."""
        return end_python_workers(self._process.pid)

    def last_words(self) -> str:
        """Return the end of what the server wrote to its log."""
        return " ".join(last_lines(self._log, 5))

    def stop(self, *, seconds: float = SERVER_STOP_SECONDS) -> None:
        """End the server and wait until it is gone, by force after so long; a second call does nothing."""
        atexit.unregister(self.stop)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if not self._keep_log:
            self._log.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.stop()


def connect_server(
    settings: Settings,
    *,
    port: int = 0,
    token: str = "",
    ui_port: int = 0,
    log: Path | None = None,
    clock: Clock | None = None,
) -> ConnectServer:
    """Start a local Spark Connect server on 127.0.0.1 and wait until it accepts.

    Args:
        settings: what decides about its JVM.
        port: where it listens; 0 takes a free port.
        token: what clients must show; without one, whoever reaches the port is served.
        ui_port: where Spark's UI listens; 0 for none.
        log: where it writes what it says; otherwise a file that goes when the server does.
        clock: tests hold it still.

    Raises:
        Unavailable: it ended or did not accept in time; the message carries its last words.
    """
    clock = SystemClock() if clock is None else clock
    port = port or free_port()
    java = find_java()
    chosen = {"spark.master": settings.spark_master, "spark.app.name": APP_NAME}
    chosen |= launch_options(settings, java=java, role="connect") | ui_options(ui_port)
    chosen |= {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    command = [str(spark_home() / "bin" / "spark-submit"), "--class", SERVER_CLASS]
    for name, value in chosen.items():
        command += ["--conf", f"{name}={value}"]
    given = {"JAVA_HOME": str(java.home)} | ({TOKEN_VARIABLE: token} if token else {})
    if local_cores(settings.spark_master):
        given["SPARK_LOCAL_IP"] = "127.0.0.1"  # Spark's UI listens there, and would everywhere
    server = _launch(command, given, port=port, log=log)
    deadline = clock.monotonic_seconds() + SERVER_START_SECONDS
    while not server.accepts():
        if not server.alive() or clock.monotonic_seconds() > deadline:
            words = server.last_words()
            server.stop()
            raise Unavailable(f"The Spark Connect server did not start on port {port}. It said: {words}")
        clock.sleep(POLL_SECONDS)
    return server


def _launch(command: list[str], given: dict[str, str], *, port: int, log: Path | None) -> ConnectServer:
    """Start the process. A token is in its environment, which other users cannot see, unlike a command line."""
    path = log or _temporary_log()
    unwanted = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", TOKEN_VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    with path.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", ConnectServer.WRAPPER, "sh", *command],
            env={"PYSPARK_PYTHON": sys.executable} | environment | given,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return ConnectServer(process, port=port, log=path, keep_log=log is not None)


def _temporary_log() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="siltstone-connect-", suffix=".log")
    os.close(descriptor)
    return Path(name)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Tell whether somebody takes connections at a port of 127.0.0.1."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def last_lines(log: Path, count: int) -> list[str]:
    """Return the end of a log; nothing if it cannot be read."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END_BYTES))
        return file.read().decode(errors="replace").splitlines()[-count:]
    return []
