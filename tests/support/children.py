"""Child processes of tests: run one function, be killed at a fail point, or serve calls one by one.

A target is ``module:function``; its arguments and its value are JSON. A child that needs Spark connects to the server
whose address it gets. A child without an address must not use Spark.

There are hundreds of children, and their imports take longer than their work. So they are forked from a process that has
only run these imports (`preloaded.py`). Each child has its own files, locks and threads, as any process has.
"""

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.internals import run_exit_handlers

ROOT: Final = Path(__file__).parents[2]
WAIT_SECONDS: Final = 120.0
NO_SPARK: Final = "sc://127.0.0.1:1"
"""No process listens there: a child without a server that requests Spark fails at once."""
_SERVE: Final = "--serve"


def children_of(process: int) -> list[int]:
    """Return the children of all threads of a process."""
    return [
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Exit of a child, and its function's return value if it finished."""

    code: int
    value: Any
    stderr: str

    @property
    def killed(self) -> bool:
        """True if the child ended as in a crash."""
        return self.code == -signal.SIGKILL


class ChildFailed(Exception):  # noqa: N818
    """A served call raised; the text names the error."""


class Child:
    """A function that runs in a separate process."""

    def __init__(
        self, target: str, arguments: dict[str, Any], *, failpoint: str = "", remote: str = "", **environment: str
    ) -> None:
        """Start it immediately."""
        self._folder = Path(tempfile.mkdtemp(prefix="child-"))
        given = (target, json.dumps(arguments), _environment(failpoint, remote, environment), str(self._folder))
        self._process = _FORKS.Process(target=_run_forked, args=given)
        self._process.start()
        _started.append(self)

    @property
    def running(self) -> bool:
        """True until the child ends."""
        return self._process.is_alive()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self._process.kill()

    def forget(self) -> None:
        """Delete its files after its end."""
        self._process.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self, seconds: float | None = None) -> Outcome:
        """Wait until it ends; a child that exceeds the limit is killed and fails the test."""
        patience = WAIT_SECONDS if seconds is None else seconds
        self._process.join(patience)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
            raise subprocess.TimeoutExpired(self._process.name, patience, stderr=self._output("err"))
        value = json.loads(self._output("out"))["value"] if code == 0 else None
        return Outcome(code=code, value=value, stderr=self._output("err"))

    def _output(self, stream: str) -> str:
        path = self._folder / stream
        return path.read_text() if path.exists() else ""

    def value(self, seconds: float | None = None) -> Any:  # noqa: ANN401
        """Wait, and return the function's value; a failed child fails the test."""
        outcome = self.wait(seconds)
        assert outcome.code == 0, f"the child ended with {outcome.code}:\n{outcome.stderr}"
        return outcome.value


_started: Final[list[Child]] = []


@contextmanager
def none_left() -> Iterator[None]:
    """End children that a failing test did not wait for: they would disturb the next tests."""
    before = len(_started)
    yield
    for child in _started[before:]:
        if child.running:
            child.kill()
        child.forget()
    del _started[before:]


class Worker:
    """A child that serves calls until it is closed: for many short calls on one Spark session."""

    def __init__(self, *, remote: str = "") -> None:
        """Start it immediately."""
        self._process = _spawn(remote)

    def call(self, target: str, **arguments: Any) -> Any:  # noqa: ANN401
        """Run a function in the worker and return its value.

        Raises:
            ChildFailed: it raised.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([target, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ChildFailed(f"the worker ended: {self._process.communicate()[1]}")
        answer = json.loads(line)
        if "error" in answer:
            raise ChildFailed(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """End the child."""
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.preloaded"])


def _environment(failpoint: str, remote: str, given: dict[str, str]) -> dict[str, str]:
    chosen = os.environ | given
    if failpoint:
        chosen["SILT_FAILPOINT"] = failpoint
    chosen["SILT_SPARK_REMOTE"] = remote or NO_SPARK
    return chosen


def _run_forked(target: str, text: str, environment: dict[str, str], folder: str) -> None:
    """Runs in the child: become a process with its own environment and streams, and run the function."""
    from siltstone.failpoints import arm_from_environment

    os.chdir(ROOT)
    for stream, name in ((1, "out"), (2, "err")):
        opened = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, stream)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    arm_from_environment(environment.get("SILT_FAILPOINT", ""))
    main([target, text])
    run_exit_handlers()


def _spawn(remote: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.children", _SERVE],
        cwd=ROOT,
        env=_environment("", remote, {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(target: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)(**arguments)


def _serve() -> None:
    for line in sys.stdin:
        target, arguments = json.loads(line)
        try:
            answer = {"value": _run(target, arguments)}
        except Exception as error:  # noqa: BLE001  # any error is passed to the calling test
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)  # noqa: T201


def main(arguments: list[str]) -> None:
    """Run one function, or serve."""
    if arguments == [_SERVE]:
        _serve()
        return
    target, text = arguments
    print(json.dumps({"value": _run(target, json.loads(text))}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
