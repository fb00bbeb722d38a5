"""Records class archives ahead of time, for ``make setup``. Every later JVM then starts in half the time.

A JVM records its archive as it exits (`spark/jvm.py`). There are two kinds, one for Connect servers and one for all
others. A small tour (`silt demo`) records each missing archive, so that it has the classes of loads, queries, folds
and purges.

Errors are reported and never fail the setup, because a missing archive only costs time later.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.errors import SiltstoneError, Unavailable
from siltstone.spark.connect_server import connect_server
from siltstone.spark.jvm import Java, find_java
from siltstone.spark.launch_options import local_cores, would_record
from siltstone.spark.server_daemon import TOKEN_BYTES
from siltstone.spark.session import NO_PROXY

TOUR: Final = ("demo", "--candidates", "100", "--calls", "100", "--json")
TOUR_SECONDS: Final = 600
RECORD_SECONDS: Final = 300.0
"""Longest wait for an archive, in seconds. A JVM takes ten seconds to write it, and much longer on a busy machine."""
POLL_SECONDS: Final = 0.5


def main() -> None:
    """Record and report missing archives. Do nothing if there are none."""
    try:
        settings = Settings.load(spark_short_run=True, spark_shared=False)
        java = find_java()
        missing = missing_kinds(settings, java)
        if not missing:
            return
        sys.stdout.write("Recording class archives, so that Spark starts quickly (a minute or more, once)\n")
        sys.stdout.flush()
        with ThreadPoolExecutor(len(missing)) as pool:
            list(pool.map(lambda kind: RECORDERS[kind](settings, java), missing))
    except (SiltstoneError, subprocess.TimeoutExpired) as error:
        sys.stdout.write(f"{error} Spark starts more slowly until its first run has recorded them.\n")


def missing_kinds(settings: Settings, java: Java) -> list[str]:
    """Return the kinds of JVM that start on this machine and have no archive yet."""
    if settings.spark_remote or not local_cores(settings.spark_master):
        return []
    return [kind for kind in RECORDERS if would_record(settings, java=java, role=kind)]


def _record_connect(settings: Settings, java: Java) -> None:
    token = secrets.token_hex(TOKEN_BYTES)
    server = connect_server(settings, token=token)
    try:
        _run_tour(SILT_SPARK_REMOTE=f"sc://localhost:{server.port}/;token={token}", **{NO_PROXY: "localhost,127.0.0.1"})
    finally:
        server.stop(seconds=RECORD_SECONDS)
    _wait(settings, java, "connect")


def _record_classic(settings: Settings, java: Java) -> None:
    _run_tour()
    _wait(settings, java, "classic")


RECORDERS: Final[dict[str, Callable[[Settings, Java], None]]] = {"connect": _record_connect, "classic": _record_classic}


def _run_tour(**environment: str) -> None:
    process = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "siltstone.cli", *TOUR],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TOUR_SECONDS,
        check=False,
    )
    if process.returncode:
        raise Unavailable(f"Class archives could not be recorded: {process.stderr.strip()[-500:]}")


def _wait(settings: Settings, java: Java, role: str) -> None:
    """Wait until the JVM has written its archive, which it does after its command has ended."""
    clock = SystemClock()
    deadline = clock.monotonic_seconds() + RECORD_SECONDS
    while would_record(settings, java=java, role=role):
        if clock.monotonic_seconds() > deadline:
            raise Unavailable(f"A JVM did not write its class archive within {RECORD_SECONDS:.0f} seconds. Try again.")
        clock.sleep(POLL_SECONDS)
