"""`silt compactor` as processes, and their events."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Final

from siltstone.coordination.state_files import CYCLES, StateFiles
from siltstone.delta.layout import Layout
from siltstone.lake import Lake
from tests.e2e.silt import COMMAND
from tests.support.maintenance import CRONS

WAIT_SECONDS: Final = 120.0
QUIET: Final = {
    "SILT_DURABLE": "no",
    "SILT_TIERS": "hourly.enabled=no; daily.enabled=no; monthly.enabled=no",
    **{f"SILT_{cron.upper()}": "" for cron in CRONS},
}
"""No task is due by the clock."""
EVERY_MINUTE: Final = "* * * * *"
LONG_AGO: Final = "2026-01-01T00:00:00+00:00"


def overdue(lake: Lake, *tasks: str) -> None:
    """Pause the compactors of a lake, and make these tasks due when they are resumed."""
    lake.pause_compactor()
    StateFiles(Layout.at(lake.path), durable=False).write(CYCLES, {"settled": dict.fromkeys(tasks, LONG_AGO)})


class CompactorProcess:
    """One `silt compactor` process, and its events in order."""

    def __init__(self, lake: Path, *options: str, **environment: str) -> None:
        """Start it immediately."""
        self._process = subprocess.Popen(
            ["env", "--default-signal=INT", *COMMAND, "--lake", str(lake), "--json", "compactor", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | QUIET | environment,
            start_new_session=True,
        )
        self.events: list[dict[str, Any]] = []
        self.errors = ""
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_for(self, event: str) -> dict[str, Any]:
        """Wait for an event and return it; earlier events are not searched again."""
        end = time.monotonic() + WAIT_SECONDS
        while True:
            line = self._lines.get(timeout=max(0.1, end - time.monotonic()))
            assert line is not None, f"it ended with {self._process.wait()}: {self.events} {self._errors()}"
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait until it ends; return its exit code."""
        code = self._process.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            if pipe is self._process.stderr and not pipe.closed:
                self.errors = pipe.read()
            pipe.close()
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                self.events.append(json.loads(line))
        return code

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        if self._process.poll() is None:
            self.send(number)
        return self.wait()

    def names(self) -> list[str]:
        """Return the kinds of all events so far."""
        return [event["event"] for event in self.events]

    def _errors(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)
