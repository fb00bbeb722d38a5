"""A local Spark Connect server as a child process. Many processes can join it, each in half a second.

It ends with its parent, however the parent ends, because it holds a pipe and stops when the pipe closes.
"""

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from siltstone.clock import Clock, SystemClock
from siltstone.config import Settings
from siltstone.errors import Reason, Unavailable
from siltstone.spark.jars import spark_home
from siltstone.spark.jvm import find_java
from siltstone.spark.launch_options import APP_NAME, LOCAL_DIRS, launch_options, local_cores
from siltstone.spark.python_workers import end_python_workers, java_processes
from siltstone.spark.scratch import Scratch

SERVER_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # its name, not its value
SERVER_START_SECONDS: Final = 180.0
SERVER_STOP_SECONDS: Final = 90.0
"""Longest wait for the end of a server, in seconds. Longer than a JVM takes to write its class archive at exit."""
POLL_SECONDS: Final = 0.05
PROPERTIES: Final = "server.properties"
_VALUE_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})
_NAME_ESCAPES: Final = _VALUE_ESCAPES | str.maketrans({character: f"\\{character}" for character in " =:#!"})
"""Escape sequences of a Java properties file."""
LOG_END_BYTES: Final = 16_384
"""Bytes that are read from the end of a log for its last lines."""
THREADS_SECONDS: Final = 5.0
"""Seconds for which a call waits for a thread dump. A later call continues to wait for the same dump."""
THREADS_LIST: Final = re.compile(rb"Full thread dump.*?JNI global refs", re.DOTALL)
"""A complete thread dump."""
STUCK_TASK: Final = re.compile(rb"ERROR Executor: Killed task \d+ could not be stopped within \d+ ms")
REAPER_OPTIONS: Final = {
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.pollingInterval": "5s",
    "spark.task.reaper.killTimeout": "30s",
    "spark.task.reaper.threadDump": "false",
}
"""Make Spark log that a killed task did not end within this time. Most tasks end within one batch of rows."""


class ConnectServer(AbstractContextManager["ConnectServer"]):
    """A local Spark Connect server of this process. It ends by `stop`, or when this process ends."""

    WRAPPER: Final = """
        exec 3<&0
        "$@" </dev/null 3<&- & server=$!
        { cat <&3; kill "$server"; } >/dev/null 2>&1 & watch=$!
        wait "$server"
        kill "$watch"
    """
    """Run the server, and end it when standard input closes. A killed parent closes it, too."""

    def __init__(self, process: subprocess.Popen[bytes], *, port: int, log: Path, scratch: Scratch) -> None:
        self._process = process
        self._scratch = scratch
        self._log = log
        self._read = 0
        """Position up to which the log was searched."""
        self._listing: int | None = None
        """Position in the log of a requested thread dump that the JVM has not finished."""
        self.port: Final = port
        self.address: Final = f"sc://127.0.0.1:{port}"
        atexit.register(self.stop)

    def alive(self) -> bool:
        """Return whether the server still runs."""
        return self._process.poll() is None

    def end_python(self) -> int:
        """End the Python processes that sessions have left behind; return their number."""
        return end_python_workers(self._process.pid)

    def has_threads(self, names: Sequence[str], *, clock: Clock) -> bool | None:
        """True if the JVM has a thread whose name contains one of these. Requests a thread dump, which is written to the log.

        Returns:
            None if the JVM has not listed its threads in time; call again. A second dump is not requested meanwhile.
        """
        if self._listing is None:
            start = self._log.stat().st_size
            for process in java_processes(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGQUIT)  # a JVM answers with a thread dump
                    self._listing = start
            if self._listing is None:
                return False
        deadline = clock.monotonic_seconds() + THREADS_SECONDS
        while clock.monotonic_seconds() < deadline:
            clock.sleep(POLL_SECONDS)
            dump = THREADS_LIST.search(read_from(self._log, self._listing))
            if dump is not None:
                self._listing = None
                return any(name.encode() in dump[0] for name in names)
        return None

    def stuck_task(self) -> bool:
        """True if Spark has logged, since the last call, that a killed task does not end."""
        written = read_from(self._log, self._read)
        complete = written[: written.rfind(b"\n") + 1]
        self._read += len(complete)
        return STUCK_TASK.search(complete) is not None

    def stop(self, *, seconds: float = SERVER_STOP_SECONDS) -> None:
        """End the server and wait for its end; kill it after `seconds`. A second call has no effect."""
        atexit.unregister(self.stop)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._scratch.close()

    def __exit__(self, *_failure: object) -> None:
        self.stop()


def connect_server(
    settings: Settings, *, token: str = "", ui_port: int = 0, log: Path | None = None, reaper: bool = False
) -> ConnectServer:
    """Start a local Spark Connect server on a free port of 127.0.0.1 and wait until it accepts.

    Args:
        settings: settings of its JVM.
        token: secret that clients must send; without one, every client that reaches the port is served.
        ui_port: port of Spark's UI; 0 disables the UI.
        log: file for its output; default: a file that is deleted with the server.
        reaper: log killed tasks that do not end (`stuck_task`).

    Raises:
        Unavailable: the server ended or did not accept connections in time; the message contains the end of its log.
    """
    clock = SystemClock()
    port = free_port()
    scratch = Scratch(settings, clock=clock)
    extra = dict(REAPER_OPTIONS) if reaper else {}
    if ui_port:  # Spark's UI is off by default
        extra |= {"spark.ui.enabled": "true", "spark.ui.port": str(ui_port)}
    log = log or scratch.folder / "server.log"
    try:
        server = _launch(settings, extra, port=port, token=token, log=log, scratch=scratch)
    except BaseException:
        scratch.close()
        raise
    deadline = clock.monotonic_seconds() + SERVER_START_SECONDS
    while not listens(server.port):
        if not server.alive() or clock.monotonic_seconds() > deadline:
            log_end = " ".join(last_lines(log, 5))
            server.stop()
            raise Unavailable(
                f"The Spark Connect server did not start on port {port}. Its log: {log_end}", reason=Reason.SPARK_LOST
            )
        clock.sleep(POLL_SECONDS)
    return server


def _launch(
    settings: Settings, extra: dict[str, str], *, port: int, token: str, log: Path, scratch: Scratch
) -> ConnectServer:
    """Start the server's process.

    Its options are in a file and its token in the environment. Other users cannot read these, unlike a command line.
    """
    java = find_java()
    chosen = {"spark.master": settings.spark_master, "spark.app.name": APP_NAME}
    chosen |= launch_options(settings, java=java, role="connect", scratch=scratch.folder) | extra
    chosen |= {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    command = [str(spark_home() / "bin" / "spark-submit"), "--properties-file", str(scratch.folder / PROPERTIES)]
    command += ["--load-spark-defaults", "--class", SERVER_CLASS]
    (scratch.folder / PROPERTIES).write_text(properties(chosen), encoding="utf-8")
    variables = {"JAVA_HOME": str(java.home)} | ({TOKEN_VARIABLE: token} if token else {})
    if local_cores(settings.spark_master):
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"  # otherwise Spark's UI listens on all interfaces
    unwanted = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", LOCAL_DIRS, TOKEN_VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", ConnectServer.WRAPPER, "sh", *command],
            env={"PYSPARK_PYTHON": sys.executable} | environment | variables,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return ConnectServer(process, port=port, log=log, scratch=scratch)


def properties(options: Mapping[str, str]) -> str:
    """Return Spark options as the text of a Java properties file."""
    lines = []
    for name, value in options.items():
        leading = "\\" if value.startswith(" ") else ""  # otherwise a space before the value is skipped
        lines.append(f"{name.translate(_NAME_ESCAPES)}={leading}{value.translate(_VALUE_ESCAPES)}\n")
    return "".join(lines)


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether a process accepts connections at a port of 127.0.0.1."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def read_from(log: Path, start: int) -> bytes:
    """Return the content of a log from a position on; empty if the log cannot be read."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(start)
        return file.read()
    return b""


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log; empty if the log cannot be read."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END_BYTES))
        return file.read().decode(errors="replace").splitlines()[-count:]
    return []
