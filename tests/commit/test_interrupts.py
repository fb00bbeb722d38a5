"""Ctrl-C at any moment of a write: the lock is free afterwards, the next write works, acknowledged rows exist."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.delta.commit_lock import LOCK_FILE
from siltstone.host.deferred_interrupts import Uninterrupted, raise_noted
from siltstone.lake import Lake
from tests.support.internals import store_of
from tests.support.tables import FAST

INTERRUPTS = 100
HANGS_SECONDS = 180
LOST_SECONDS = 20
WRITER = """
import signal, sys
from dataclasses import replace
from siltstone.lake import Lake
from siltstone.host.file_lock import is_locked
from tests.support.tables import FAST

quiet = replace(FAST, squash_files=0)  # no background work takes the lock
dataset = Lake.open(sys.argv[1], settings=quiet).dataset("a.b.c")
lock = sys.argv[2]
acknowledged = interrupted = stuck = 0
while interrupted < int(sys.argv[3]):
    try:
        print("again", flush=True)  # the parent sends one interrupt per line
        while True:
            dataset.upsert([{"id": f"{acknowledged}"}])
            acknowledged += 1
    except KeyboardInterrupt:
        interrupted += 1
        stuck += is_locked(lock)
signal.signal(signal.SIGINT, signal.SIG_IGN)
dataset.upsert([{"id": "last"}])
print("done", acknowledged, stuck, is_locked(lock), flush=True)
"""


def test_an_interrupted_writer_leaves_no_lock_and_writes_on(tmp_path: Path):
    lake = Lake.open(tmp_path / "lake", settings=FAST)
    dataset = lake.create("a.b.c", "id STRING NOT NULL", key="id")
    dataset.upsert([{"id": "first"}])
    (lock,) = [path for path in lake.path.rglob(LOCK_FILE) if path.parent.name == "changes"]
    command = [sys.executable, "-c", WRITER, str(lake.path), str(lock), str(INTERRUPTS)]
    # An interrupt can leave the lock of coverage's collector held. Then the writer hangs in its next call.
    unmeasured = {name: value for name, value in os.environ.items() if name != "COVERAGE_PROCESS_CONFIG"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unmeasured) as writer:
        assert writer.stdout is not None
        hung = threading.Timer(HANGS_SECONDS, writer.kill)
        hung.start()
        line = writer.stdout.readline()
        number = 0
        while not line.startswith("done"):
            assert line, "the writer hung or ended"
            time.sleep(0.001 + 0.0037 * (number % 17) / 4)
            number += 1
            writer.send_signal(signal.SIGINT)
            while not select.select([writer.stdout], [], [], LOST_SECONDS)[0]:
                before = store_of(dataset).changes.version()
                time.sleep(2)
                assert store_of(dataset).changes.version() > before, "the writer hangs"
                writer.send_signal(signal.SIGINT)  # it still writes: Python dropped an interrupt inside a finalizer
            line = writer.stdout.readline()
        hung.cancel()
    _, acknowledged, stuck, locked = line.split()
    assert (stuck, locked) == ("0", "False")
    there = set(dataset.to_arrow().column("id").to_pylist())
    assert there >= {"first", "last", *(str(row) for row in range(int(acknowledged)))}


def interrupt(steps: list[str]) -> None:
    """Interrupt this process inside a block, and once more inside an inner one."""
    with Uninterrupted():
        with Uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("inner")
        steps.append("outer")
    steps.append("never")


def interrupt_between(steps: list[str]) -> None:
    with Uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("first")
        raise_noted()
        steps.append("never")


def interrupt_often(steps: list[str]) -> None:
    with Uninterrupted():
        for number in range(9):
            os.kill(os.getpid(), signal.SIGINT)
            steps.append(str(number))


@pytest.mark.parametrize(
    ("work", "expected"),
    [(interrupt, ["inner", "outer"]), (interrupt_between, ["first"]), (interrupt_often, ["0", "1"])],
)
def test_an_interrupt_comes_at_the_end_of_a_block_or_between_steps_or_when_it_is_the_third(
    work: Callable[[list[str]], None], expected: list[str]
):
    steps: list[str] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore interrupts
    try:
        with pytest.raises(KeyboardInterrupt):
            work(steps)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == expected
    raise_noted()  # no interrupt is left


def test_an_error_inside_a_block_is_raised_as_it_is():
    with pytest.raises(ValueError, match="own"), Uninterrupted():
        raise ValueError("own")
