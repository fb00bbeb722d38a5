"""A worker in which a test arranges faults: it looks for them beside the lake before every job.

``fault.json`` says what is to happen: ``{"kill_over": 7}`` kills the worker when a job has more files, ``{"kill": "job.done"}``
kills it at a fail point, ``{"kill_in_spark": true}`` as soon as Spark writes, ``{"pause_seconds": 1}`` lets it wait.
With ``"once": true`` it happens to one job.
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from siltstone.compaction.job_worker import Answer, Workplace, main
from siltstone.compaction.jobs import Job
from siltstone.failpoints import arm

COMMAND = (sys.executable, "-m", "tests.support.faulty_worker")
FAULT = "fault.json"


def arrange(lake: Path, **fault: Any) -> None:  # noqa: ANN401
    """Arrange a fault for the jobs of a lake; none, if nothing is said."""
    (lake.parent / FAULT).write_text(json.dumps(fault))


def spark_is_writing(lake: Path) -> bool:
    """True while Spark's tasks make the files of a roll-up."""
    return any(lake.glob("*/*/*/*/base/data/*/0/tier-*"))


def do(place: Workplace, job: Job) -> Answer:
    """Do a job, with the fault that is arranged for it."""
    path = place.lake.parent / FAULT
    fault = json.loads(path.read_text()) if path.exists() else {}
    if fault.get("once"):
        path.unlink()
    with ExitStack() as armed:
        if len(job.planned.files) > fault.get("kill_over", len(job.planned.files)):
            armed.enter_context(arm("job.began", "kill"))
        if "kill" in fault:
            armed.enter_context(arm(fault["kill"], "kill"))
        time.sleep(fault.get("pause_seconds", 0))
        if fault.get("kill_in_spark"):
            threading.Thread(target=_kill_in_spark, args=(place.lake,), daemon=True).start()
        return place.do(job)


def _kill_in_spark(lake: Path) -> None:
    while not spark_is_writing(lake):
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(do)
