"""Calls of `silt` as a user makes them: in a separate process, or in this one where the process does not matter."""

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siltstone.cli.app import main

COMMAND = (sys.executable, "-m", "siltstone.cli")
TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a call."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:  # noqa: ANN401
        """The answer as JSON."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error as JSON; standard error has nothing else."""
        found: dict[str, dict[str, Any]] = json.loads(self.err)
        assert set(found) == {"error"}
        assert set(found["error"]) == {"kind", "reason", "message"}
        return found["error"]


def process(*arguments: object, stdin: str | None = None, **environment: str) -> Result:
    """Run `silt` in a separate process."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env=os.environ | environment,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def silt(*arguments: object, stdin: str = "") -> Result:
    """Run `silt` in this process, without a terminal."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.StringIO(stdin)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
    finally:
        sys.stdin = before
    return Result(code, out.getvalue(), err.getvalue())


def contents(folder: Path) -> dict[str, str]:
    """Return every file below a folder with a digest of its bytes, to check that nothing has changed."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
