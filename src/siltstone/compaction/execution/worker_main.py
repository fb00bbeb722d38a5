"""The worker process: owns a driver JVM and runs jobs, one by one, until its parent closes the input.

It reads one JSON object per line from standard input, and answers each with one line on standard output:

    {"lake": "/data/lake", "settings": {...}, "job": {...}}
    {"done": {...}}   or   {"failed": "...", "kind": "unavailable", "reason": "disk_full", "cause": "OSError: ...",
                            "unreadable": {...}, "jvm_ended_with": null}

No user's row passes through these messages: jobs name files, answers carry counts. All other output of this process or
its JVM goes to standard error.

Shutdown. The end of the input means that there is no more work. During a job it means that the parent has died. A
changed parent process id means the same. Then the worker kills its JVM, removes its scratch folder, and exits at once.
The files of the job then belong to a dead owner. The job's commit is either in the log, or will never be.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TextIO

import psutil
import pyarrow as pa

from siltstone.clock import SystemClock
from siltstone.compaction.execution.job import InlineRunner, Job
from siltstone.compaction.failures import UnreadableFiles, foreign_text
from siltstone.compaction.lake_components import LakeComponents, LakeContext
from siltstone.config import Settings
from siltstone.delta.layout import Layout
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import SiltstoneError, reason_of
from siltstone.failpoints import reach
from siltstone.spark.errors import is_away, spark_errors
from siltstone.spark.jvm import end_children
from siltstone.spark.session import ENDING_SECONDS, jvm_ended_with, session

PARENT_POLL_SECONDS: Final = 1.0
ORPHANED: Final = 3
"""Exit code of a worker whose parent died."""
MAX_TEXT_CHARS: Final = 4000
MAX_CAUSE_CHARS: Final = 200_000
"""Highest number of characters of a failure's causes. A Java stack trace names the decisive cause last."""

Answer = dict[str, Any]


class WorkerContext:
    """A lake in a worker process: the components of a lake, on a JVM of this process, without caches."""

    def __init__(self, lake: Path, settings: Settings) -> None:
        self.root = lake
        context = LakeContext(
            layout=Layout.at(lake),
            settings=replace(settings, lookup_cache_mb=0),
            clock=SystemClock(),
            spark=lambda: session(settings, role="worker"),
        )
        self._components = LakeComponents(context)
        self._inline = InlineRunner(self._components.operations, self._components.store)

    def do(self, job: Job) -> Answer:
        """Run one job, and return its result."""
        try:
            reach("job.began")
            report = self._inline.run(job)
            reach("job.done")
            return {"done": report.to_dict()}
        except (SiltstoneError, OSError, LogChanged, MemoryError, pa.ArrowException, *spark_errors()) as error:
            return failed(error)

    def close(self) -> None:
        """Wait for background work."""
        self._components.close()


def failed(error: Exception) -> Answer:
    """Return the answer that describes an error, and how the JVM ended if it did."""
    cause = error.__cause__
    away = any(isinstance(failure, Exception) and is_away(failure) for failure in (error, cause))
    return {
        "failed": str(error)[:MAX_TEXT_CHARS] or type(error).__name__,
        "kind": error.kind if isinstance(error, SiltstoneError) else "",
        "reason": reason_of(error),
        "cause": foreign_text(error)[:MAX_CAUSE_CHARS],
        "unreadable": error.files if isinstance(error, UnreadableFiles) else {},
        "jvm_ended_with": jvm_ended_with(seconds=ENDING_SECONDS if away else 0),
    }


class Worker:
    """The loop of the worker process, and the threads that detect the death of the parent."""

    def __init__(self, answers: TextIO, *, parent: int, scratch: Path) -> None:
        """Set the answer stream, the process id of the parent, and the scratch folder to remove at the end."""
        self._answers = answers
        self._parent = parent
        self._scratch = scratch
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._busy = threading.Event()
        self._contexts: dict[str, WorkerContext] = {}

    def serve(self, do: Callable[[WorkerContext, Job], Answer] = WorkerContext.do) -> None:
        """Run jobs until the input ends."""
        for watch in (self._read_requests, self._watch_parent):
            threading.Thread(target=watch, name=f"siltstone-worker{watch.__name__}", daemon=True).start()
        while (line := self._lines.get()) is not None:
            request = json.loads(line)
            key = json.dumps([request["lake"], request["settings"]], sort_keys=True)
            if key not in self._contexts:
                settings = Settings.from_plain(request["settings"])
                self._contexts[key] = WorkerContext(Path(request["lake"]), settings)
            answer = do(self._contexts[key], Job.from_dict(request["job"]))
            self._busy.clear()
            self._answers.write(json.dumps(answer) + "\n")
            self._answers.flush()
        for context in self._contexts.values():
            context.close()
        end_children()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _read_requests(self) -> None:
        """Read requests. The end of the input during a job means that the parent has died."""
        for line in sys.stdin:
            self._busy.set()
            self._lines.put(line)
        if self._busy.is_set():
            self._die()
        self._lines.put(None)

    def _watch_parent(self) -> None:
        """Detect the death of the parent, even if another process still holds its end of the pipe."""
        while os.getppid() == self._parent:
            time.sleep(PARENT_POLL_SECONDS)
        self._die()

    def _die(self) -> None:
        for member in session_members(os.getsid(0)) - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        shutil.rmtree(self._scratch, ignore_errors=True)
        os._exit(ORPHANED)


def session_members(leader: int) -> set[int]:
    """Return the running processes of a session. They all descend from its leader."""
    members: set[int] = set()
    for process in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):  # the process has ended
            if os.getsid(process) == leader and psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
                members.add(process)
    return members


def own_stdout() -> TextIO:
    """Reserve standard output for answers. Redirect all other output, also that of a JVM, to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(answers, "w")


def main(do: Callable[[WorkerContext, Job], Answer] = WorkerContext.do) -> None:
    """Run a worker. Its arguments are the process id of the parent and a scratch folder."""
    parent, scratch = int(sys.argv[1]), Path(sys.argv[2])
    Worker(own_stdout(), parent=parent, scratch=scratch).serve(do)


if __name__ == "__main__":
    main()
