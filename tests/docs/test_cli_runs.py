"""Every command of docs/cli.md runs in order by copy and paste, in an empty folder."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from siltstone.spark.connect_server import ConnectServer
from tests.e2e.silt import Result, silt

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
NOT_RUN = {
    "--jdbc": "needs a database",
    "silt compactor": "runs until it is stopped",
    "silt spark status": "tells of the shared server, which the test does not use",
    "silt demo": "has a test of its own",
}
"""Commands that are not run, by a part of their text, with the reason."""


def commands() -> list[str]:
    """Return the commands of the page, lines that end in a backslash joined."""
    found: list[str] = []
    for kind, text in BLOCK.findall(PAGE.read_text()):
        joined = text.replace("\\\n", " ")
        lines = joined.splitlines()
        found += [line[2:] for line in lines if line.startswith("$ ")] if kind == "console" else lines
    return [line for line in found if line.strip()]


def why_not(command: str) -> str | None:
    return next((why for part, why in NOT_RUN.items() if command == part or (part[0] == "-" and part in command)), None)


def test_the_page_has_its_commands() -> None:
    found = commands()
    assert len(found) >= 40
    assert len([command for command in found if why_not(command)]) <= len(NOT_RUN)
    assert all(command.split()[0] in {"silt", "export", "mkdir", "echo", "cat"} for command in found)


def run(command: str) -> Result:
    """Run one line as a shell would; `silt` runs in this process."""
    if command.startswith("export "):
        name, _, value = command.removeprefix("export ").partition("=")
        os.environ[name] = value
        return Result(0, "", "")
    before, pipe, last = command.rpartition(" | ")
    if not pipe and not command.startswith("silt "):
        subprocess.run(command, shell=True, check=True)  # a line of our own page
        return Result(0, "", "")
    stdin = subprocess.run(before, shell=True, check=True, capture_output=True, text=True).stdout if pipe else ""
    return silt(*shlex.split(last, comments=True)[1:], stdin=stdin)


@pytest.mark.spark
def test_every_command_runs_in_order_by_copy_and_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect_server: ConnectServer
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SILT_LAKE", "SILT_EVENT_LOG"):
        monkeypatch.setenv(name, "")  # so that an export of the page is reverted
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SILT_SPARK_REMOTE", connect_server.address)
    failed = {}
    for command in commands():
        if why_not(command):
            continue
        done = run(command)
        if done.code:
            failed[command] = (done.code, done.err)
    assert not failed
