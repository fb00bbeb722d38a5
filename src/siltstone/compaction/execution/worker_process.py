"""The parent's handle of a worker process: starts, calls, monitors and ends it.

The worker leads its own session. Its JVM and the JVM's Python processes never leave that session. To end a worker, the
parent kills every process of the session and waits until all are gone. Only then is a job retried.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil

from siltstone.clock import Clock
from siltstone.compaction.execution.job import Job
from siltstone.compaction.execution.worker_main import session_members
from siltstone.compaction.failures import WorkerLost, exit_text
from siltstone.config import Settings
from siltstone.errors import Unavailable
from siltstone.host.memory import machine_memory_mb
from siltstone.model.units import BYTES_PER_MB
from siltstone.spark.jvm import MEMORY_FLOOR_MB, fitted_memory_mb
from siltstone.spark.scratch import Scratch

COMMAND: Final = (sys.executable, "-m", "siltstone.compaction.execution.worker_main")
STOP_SECONDS: Final = 15.0
"""Seconds that an idle worker has to shut down its JVM. After that it is killed."""
KILL_SECONDS: Final = 10.0
"""Seconds to wait for the system to remove killed processes."""
POLL_SECONDS: Final = 0.02
STDERR_LINES: Final = 60
"""Number of last output lines of a worker and its JVM that are stored, to explain why they ended."""
SPARE_MEMORY_MB: Final = 1536
"""Megabytes of a worker beside the heap of its JVM: its code and threads, Python, Python in Spark's tasks."""
NOT_INHERITED: Final = (
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_LOCAL_REMOTE",
    "PYSPARK_GATEWAY_PORT",
    "MASTER",
)
"""Environment variables that would connect a worker to the JVM of another process."""


def worker_settings(settings: Settings, *, scratch: Path) -> Settings:
    """Return the settings of a worker: its own JVM, with its share of memory, that spills into its scratch folder."""
    fitted = max(MEMORY_FLOOR_MB, fitted_memory_mb(machine_memory_mb()) // settings.max_jobs)
    return replace(
        settings,
        spark_shared=False,
        spark_remote="",
        spark_memory_mb=settings.worker_memory_mb or fitted,
        scratch_dir=str(scratch),
    )


class WorkerProcess:
    """One worker process. `run` is called by one thread at a time, `kill` by any thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process. Its JVM starts with the first job that needs it."""
        self.jobs_done = 0
        self.idle_since_seconds = clock.monotonic_seconds()
        self._clock = clock
        self._own_scratch = Scratch(settings, clock=clock)
        self._scratch = self._own_scratch.folder
        self._settings = worker_settings(settings, scratch=self._scratch)
        self._stderr_lines: deque[str] = deque(maxlen=STDERR_LINES)
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [*command, str(os.getpid()), str(self._scratch)],
                env=inherited | dict(environment or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            self._own_scratch.close()
            raise Unavailable(
                f"A worker could not be started ({error}); nothing was changed. Try again later."
            ) from error
        self._listener = threading.Thread(target=self._listen, name="siltstone-worker-stderr", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Process id of the worker, which is also the id of its session."""
        return self._process.pid

    def alive(self) -> bool:
        """True if the process is running."""
        return self._process.poll() is None

    def memory_mb(self) -> int:
        """Return the memory of the worker, its JVM and their children, in megabytes."""
        size = 0
        for member in session_members(self.pid):
            with contextlib.suppress(psutil.Error):  # the process has ended
                size += int(psutil.Process(member).memory_info().rss)
        return size // BYTES_PER_MB

    def has_grown(self) -> bool:
        """True if the worker uses more memory than it should."""
        return self.memory_mb() > self._settings.spark_memory_mb + SPARE_MEMORY_MB

    def run(self, lake: Path, job: Job) -> dict[str, Any]:
        """Send a job to the worker, and return its answer. Raise `WorkerLost` if it ends before it answers."""
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        request = {"lake": str(lake), "settings": self._settings.plain(), "job": job.to_dict()}
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise self._lost(job)
        self.jobs_done += 1
        return dict(json.loads(line))

    def stderr_tail(self) -> str:
        """Return the last lines that the worker or its JVM printed."""
        return "\n".join(self._stderr_lines)

    def kill(self) -> None:
        """Kill the worker and all processes that it has started, and wait until all are gone."""
        deadline = self._clock.monotonic_seconds() + KILL_SECONDS
        while (members := session_members(self.pid)) or self.alive():
            for member in members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(member, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            if self._clock.monotonic_seconds() > deadline:
                break
            self._clock.sleep(POLL_SECONDS)
        self._own_scratch.close()

    def close(self) -> None:
        """Shut down an idle worker. Kill it if that takes longer than `STOP_SECONDS`."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()
        self._listener.join(timeout=1)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _lost(self, job: Job) -> WorkerLost:
        """Kill the rest of the session, and return an error that describes how the worker ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # a closed pipe is seen a moment before the exit
            self._process.wait(1)
        code = self._process.poll()
        self.kill()
        self._listener.join(timeout=1)
        last = next(reversed(self._stderr_lines), "")
        return WorkerLost(
            f"Dataset {job.spec.dataset}: the worker {exit_text(code)} before the job was done; nothing was changed."
            + (f" Its last line: {last}" if last and code is not None and code >= 0 else ""),
            ended_with=code,
            stderr=self.stderr_tail(),
        )

    def _listen(self) -> None:
        assert self._process.stderr is not None  # noqa: S101
        with contextlib.suppress(ValueError):  # closed meanwhile
            for line in self._process.stderr:
                self._stderr_lines.append(line.rstrip())
