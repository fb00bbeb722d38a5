"""The Python daemons of a Spark server are found below it and ended; no other process is."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.spark.python_workers import end_python_workers

SLEEP = "import time; time.sleep(60)"
TREE = f"""{sys.executable} -c '{SLEEP}' pyspark.daemon pyspark.worker & first=$!
{sys.executable} -c '{SLEEP}' pyspark.daemon.other & second=$!
echo $first $second
wait"""


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """A process with a daemon and another child."""
    process = subprocess.Popen(["/bin/sh", "-c", TREE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    daemon, other = map(int, process.stdout.readline().split())
    yield process, daemon, other
    subprocess.run(["kill", "-9", str(process.pid), str(daemon), str(other)], stderr=subprocess.DEVNULL, check=False)
    process.wait()
    process.stdout.close()


def test_only_daemons_below_the_server_end(server: tuple[subprocess.Popen[str], int, int]) -> None:
    process, daemon, other = server
    _until(lambda: _arguments(daemon).count("pyspark.daemon") == 1 and "pyspark.daemon.other" in _arguments(other))
    assert end_python_workers(process.pid) == 1
    _until(lambda: _arguments(daemon) == [])
    assert "pyspark.daemon.other" in _arguments(other)
    assert end_python_workers(process.pid) == 0


def test_a_server_that_has_ended_has_no_python_workers() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert end_python_workers(process.pid) == 0


def _arguments(process: int) -> list[str]:
    try:
        return [part for part in Path(f"/proc/{process}/cmdline").read_text().split("\0") if part]
    except OSError:
        return []


def _until(holds: object) -> None:
    deadline = time.monotonic() + 20
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)
