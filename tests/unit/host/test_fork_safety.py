"""Forked children of a process that uses a lake: refused with an error, and without locks of their parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.coordination.liveness import LivenessLock, is_live
from siltstone.delta.commit_lock import LOCK_FILE, CommitLock
from siltstone.errors import Unavailable
from siltstone.host.file_lock import is_locked
from siltstone.lake import Lake
from siltstone.spark.scratch import Scratch
from tests.support.tables import FAST

HANGS_SECONDS = 30
REFUSED, DONE, FAILED, NAME = 10, 11, 12, "a.b.c"
HOLDER = """
import os, sys, time
from pathlib import Path
from siltstone.coordination.liveness import LivenessLock
held = LivenessLock(Path(sys.argv[1]), "holder")
signal_read, signal_write = os.pipe()
child = os.fork()
if child == 0:
    os.write(signal_write, b"x")  # the handlers of the fork have run
    time.sleep(600)
os.read(signal_read, 1)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""


def forked(work: Callable[[], object]) -> int:
    """Run a function in a forked child; return the child's exit."""
    child = os.fork()
    if child == 0:
        code = FAILED
        signal.alarm(HANGS_SECONDS)  # ends the child: no handler is installed
        try:
            work()
            code = DONE
        except Unavailable as error:
            code = REFUSED if "forked" in str(error) and "\n" not in str(error) else FAILED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake.open(tmp_path / "lake", settings=FAST)
    made.create(NAME, "id STRING NOT NULL", key="id").upsert([{"id": "x"}])
    return made


WORK: dict[str, Callable[[Lake], object]] = {
    "read": lambda lake: lake.dataset(NAME).to_arrow(),
    "write": lambda lake: lake.dataset(NAME).upsert([{"id": "y"}]),
    "query": lambda lake: lake.sql(f"SELECT count(*) FROM {NAME}"),
    "open again": lambda lake: Lake.open(lake.path, settings=FAST).dataset(NAME).to_arrow(),
}


@pytest.mark.parametrize("work", WORK)
def test_a_child_that_was_forked_after_a_use_is_refused_in_a_sentence(lake: Lake, work: str):
    assert forked(lambda: WORK[work](lake)) == REFUSED
    assert lake.dataset(NAME).to_arrow().num_rows == 1


def test_a_dataset_that_was_opened_before_the_fork_is_refused_too(lake: Lake):
    dataset = lake.dataset(NAME)
    assert forked(lambda: dataset.upsert([{"id": "y"}])) == REFUSED
    assert forked(lambda: dataset.get(["x"])) == REFUSED
    assert dataset.to_arrow().num_rows == 1


def test_closing_the_lake_in_a_child_does_nothing(lake: Lake):
    assert forked(lake.close) == DONE
    assert lake.dataset(NAME).upsert([{"id": "y"}]).rows == 1


def test_a_child_that_was_forked_before_the_first_use_may_use_the_lake(lake: Lake):
    code = f"""
import os, sys
from siltstone import Lake
lake = Lake.open({str(lake.path)!r})
if os.fork() == 0:
    print(lake.dataset({NAME!r}).to_arrow().num_rows, flush=True)
    os._exit(0)
os.wait()
print(lake.dataset({NAME!r}).to_arrow().num_rows)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1", "1"]


def test_a_child_does_not_keep_the_lock_of_a_dead_holder(tmp_path: Path):
    child = 0
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.wait()
    try:
        os.kill(child, 0)  # the child is alive
        assert not is_live(tmp_path, "holder")
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_that_ends_takes_nothing_from_its_parent(tmp_path: Path):
    with LivenessLock(tmp_path, "owner") as lock, Scratch(Settings(scratch_dir=str(tmp_path))) as scratch:

        def close() -> None:
            lock.close()
            scratch.close()

        assert forked(close) == DONE
        assert is_live(tmp_path, "owner")
        assert scratch.folder.is_dir()


def test_a_child_does_not_keep_the_commit_lock(tmp_path: Path):
    signal_read, signal_write = os.pipe()
    with CommitLock(tmp_path, clock=SystemClock()):
        child = os.fork()
        if child == 0:
            os.write(signal_write, b"x")
            signal.pause()
        os.read(signal_read, 1)  # the child runs
    try:
        assert not is_locked(tmp_path / LOCK_FILE)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(signal_read)
        os.close(signal_write)
