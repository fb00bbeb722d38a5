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
from siltstone.storage.jvm import Java, find_java
from siltstone.storage.spark import APP_NAME, launch_options

SERVER_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
SERVER_START_SECONDS: Final = 180.0
SERVER_STOP_SECONDS: Final = 30.0
"""Longer than a JVM takes to write its class archive on the way out."""
POLL_SECONDS: Final = 0.05


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

    def __init__(self, process: subprocess.Popen[bytes], *, port: int, log: Path) -> None:
        self._process = process
        self._log = log
        self.port: Final = port
        self.address: Final = f"sc://127.0.0.1:{port}"
        atexit.register(self.stop)

    def alive(self) -> bool:
        """Tell whether the server still runs."""
        return self._process.poll() is None

    def accepts(self) -> bool:
        """Tell whether the server takes connections."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def last_words(self) -> str:
        """Return the end of what the server wrote to its log."""
        with suppress(OSError):
            return " ".join(self._log.read_text(errors="replace").splitlines()[-5:])
        return ""

    def stop(self) -> None:
        """End the server and wait until it is gone; a second call does nothing."""
        atexit.unregister(self.stop)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(SERVER_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.stop()


def connect_server(settings: Settings, *, port: int = 0, clock: Clock | None = None) -> ConnectServer:
    """Start a local Spark Connect server on 127.0.0.1 and wait until it accepts; port 0 takes a free one.

    Raises:
        Unavailable: it ended or did not accept in time; the message carries its last words.
    """
    clock = SystemClock() if clock is None else clock
    port = port or _free_port()
    java = find_java()
    chosen = {"spark.master": settings.spark_master, "spark.app.name": APP_NAME}
    chosen |= launch_options(settings, java=java, role="connect")
    chosen |= {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    command = [str(spark_home() / "bin" / "spark-submit"), "--class", SERVER_CLASS]
    for name, value in chosen.items():
        command += ["--conf", f"{name}={value}"]
    server = _launch(command, java=java, port=port)
    deadline = clock.monotonic_seconds() + SERVER_START_SECONDS
    while not server.accepts():
        if not server.alive() or clock.monotonic_seconds() > deadline:
            words = server.last_words()
            server.stop()
            raise Unavailable(f"The Spark Connect server did not start on port {port}. It said: {words}")
        clock.sleep(POLL_SECONDS)
    return server


def _launch(command: list[str], *, java: Java, port: int) -> ConnectServer:
    descriptor, log = tempfile.mkstemp(prefix="siltstone-connect-", suffix=".log")
    unwanted = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE"}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    with os.fdopen(descriptor, "wb") as output:
        process = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", ConnectServer.WRAPPER, "sh", *command],
            env={"PYSPARK_PYTHON": sys.executable} | environment | {"JAVA_HOME": str(java.home)},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return ConnectServer(process, port=port, log=Path(log))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
