"""A worker with faults that a test arranges: it reads them from a file beside the lake before every job.

``fault.json`` has one of these faults. With ``"once": true`` it happens to one job only.

* ``{"kill_over": 7}`` kills the worker when a job has more files.
* ``{"kill": "job.done"}`` kills it at a fail point.
* ``{"kill_in_spark": true}`` kills it as soon as Spark writes.
* ``{"kill_jvm_over": 4}`` kills only its JVM, if a job has more files.
* ``{"pause_seconds": 1}`` makes it wait.
* ``{"without_rights": "a.b."}`` removes root's rights for jobs of datasets with this name prefix. Its JVM keeps them.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from siltstone.compaction.execution.job import Job
from siltstone.compaction.execution.worker_main import Answer, WorkerContext, main, session_members
from siltstone.failpoints import arm

COMMAND = (sys.executable, "-m", "tests.support.faulty_worker")
FAULT = "fault.json"
CAPABILITIES_VERSION = 0x20080522
READ_AND_WRITE_ALL = 1 << 1 | 1 << 2
"""Capabilities by which root bypasses file modes (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH)."""


def arrange(lake: Path, **fault: Any) -> None:  # noqa: ANN401
    """Arrange a fault for the jobs of a lake; by default none."""
    (lake.parent / FAULT).write_text(json.dumps(fault))


def spark_is_writing(lake: Path) -> bool:
    """True while Spark's tasks write the files of a roll-up."""
    return any(lake.glob("*/*/*/*/base/data/*/0/tier-*"))


def do(place: WorkerContext, job: Job) -> Answer:
    """Run a job with the fault that is arranged for it."""
    path = place.root.parent / FAULT
    fault = json.loads(path.read_text()) if path.exists() else {}
    if fault.get("once"):
        path.unlink()
    with ExitStack() as armed:
        if len(job.spec.files) > fault.get("kill_over", len(job.spec.files)):
            armed.enter_context(arm("job.began", "kill"))
        if "kill" in fault:
            armed.enter_context(arm(fault["kill"], "kill"))
        if "without_rights" in fault and job.spec.dataset.startswith(fault["without_rights"]):
            armed.enter_context(_without_rights())
        time.sleep(fault.get("pause_seconds", 0))
        if fault.get("kill_in_spark"):
            threading.Thread(target=_kill_in_spark, args=(place.root,), daemon=True).start()
        if len(job.spec.files) > fault.get("kill_jvm_over", len(job.spec.files)):
            threading.Thread(target=_kill_jvm_in_spark, args=(place.root,), daemon=True).start()
        return place.do(job)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Rights(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def _without_rights() -> Iterator[None]:
    """Make file modes apply to this thread even if it is root's.

    Another user could not load Python here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, rights = _Header(version=CAPABILITIES_VERSION, pid=0), (_Rights * 2)()
    assert libc.capget(ctypes.byref(header), ctypes.byref(rights)) == 0
    before = rights[0].effective
    rights[0].effective &= ~READ_AND_WRITE_ALL
    assert libc.capset(ctypes.byref(header), ctypes.byref(rights)) == 0
    try:
        yield
    finally:
        rights[0].effective = before
        assert libc.capset(ctypes.byref(header), ctypes.byref(rights)) == 0


def _kill_in_spark(lake: Path) -> None:
    while not spark_is_writing(lake):
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_jvm_in_spark(lake: Path) -> None:
    """Kill the largest process, as the system does when memory is short."""
    while not spark_is_writing(lake):
        time.sleep(0.005)
    for member in session_members(os.getsid(0)):
        if (Path("/proc") / str(member) / "comm").read_text() == "java\n":
            os.kill(member, signal.SIGKILL)


if __name__ == "__main__":
    main(do)
