"""Promises that need a separate process: loaded modules, start time, signals, pipes, terminals."""

import array
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from siltstone import Lake, __version__
from tests.e2e.conftest import PEOPLE
from tests.e2e.silt import COMMAND, TIMEOUT_SECONDS, process, silt

LIGHT = [
    ["list"],
    ["status"],
    ["describe", PEOPLE],
    ["head", PEOPLE],
    ["head", PEOPLE, "--at", "0"],
    ["history", PEOPLE],
    ["changes", PEOPLE, "--since", "0"],
    ["upsert", PEOPLE, "--row", '{"id": "a"}'],
    ["tombstone", PEOPLE, "b"],
    ["tombstones", PEOPLE],
    ["compact", PEOPLE, "--dry-run"],
    ["vacuum", PEOPLE],
    ["drop", PEOPLE, "--dry-run"],
    ["doctor"],
    ["spark", "status"],
]
SHOW_MODULES = """
import sys
from siltstone.cli.app import main
sys.argv = ["silt", *sys.argv[1:]]
code = main()
heavy = [name for name in ("pyspark", "py4j", "grpc", "sqlglot", "duckdb", "pandas", "sqlalchemy") if name in sys.modules]
sys.stderr.write(",".join(heavy))
sys.exit(code)
"""


def loaded(*call: object) -> str:
    """Run a command and return the heavy packages that it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW_MODULES, *map(str, call)],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_SECONDS,
    )
    return done.stderr


@pytest.mark.parametrize("call", LIGHT, ids=lambda call: call[0])
def test_a_command_that_needs_no_spark_loads_nothing_heavy(lake: Path, call: list[str]):
    journal = "sqlalchemy" if call[0] == "vacuum" else ""  # it writes to the journal
    assert loaded("--lake", lake, *call) == journal


def test_a_lookup_in_a_new_process_sees_what_was_written_and_loads_nothing_heavy(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "a", "age": 7}')
    assert loaded("--lake", lake, "get", PEOPLE, "a") == ""
    assert process("--lake", lake, "--json", "get", PEOPLE, "a", "--columns", "age").data == [{"age": 7}]


def test_a_handle_that_has_looked_up_before_sees_what_another_process_writes(lake: Path):
    with Lake.open(lake) as opened:
        people = opened.dataset(PEOPLE)
        assert people.get(["a"]).num_rows == 0
        for age in (7, 8):
            process("--lake", lake, "upsert", PEOPLE, "--row", f'{{"id": "a", "age": {age}}}')
            assert people.get(["a"], columns=["age"]).to_pylist() == [{"age": age}]
        process("--lake", lake, "tombstone", PEOPLE, "a")
        assert people.get(["a"]).num_rows == 0


def test_create_with_text_loads_nothing_heavy(lake_path: Path):
    assert loaded("--lake", lake_path, "create", "a.b.c", "--key", "id", "--schema", "id STRING") == ""


def test_the_installed_command_answers(lake: Path):
    script = Path(sys.executable).with_name("silt")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"silt {__version__}\n"
    assert subprocess.run([script, "--lake", lake, "list"], capture_output=True, check=False).returncode == 0


def test_the_lake_can_come_from_the_environment_and_global_options_may_be_anywhere(lake: Path):
    expected = process("--lake", lake, "--json", "list").data
    assert process("list", "--json", SILT_LAKE=str(lake)).data == expected
    assert silt("list", "--lake", lake, "--json").data == expected
    assert silt("list", f"--lake={lake}", "--json").data == expected


def test_text_after_two_dashes_is_an_argument(lake: Path):
    assert silt("--lake", lake, "--json", "upsert", PEOPLE, "--row", '{"id": "--json"}').code == 0
    assert silt("--lake", lake, "tombstone", PEOPLE, "--", "--json").out.startswith("Hid 1 row")
    assert silt("--lake", lake, "--json", "head", PEOPLE).data == []


def test_an_answer_goes_to_standard_output_and_an_error_to_standard_error(lake: Path):
    good = process("--lake", lake, "list")
    assert (good.code, good.err) == (0, "")
    bad = process("--lake", lake, "describe", "a.b.c")
    assert (bad.code, bad.out) == (3, "")
    assert "Traceback" not in bad.err


def test_a_closed_pipe_ends_quietly(lake: Path):
    rows = "".join(f'{{"id": "{n}", "name": "{"x" * 100}"}}\n' for n in range(5000))
    assert silt("--lake", lake, "upsert", PEOPLE, "-", stdin=rows).code == 0
    child = subprocess.Popen(
        [*COMMAND, "--lake", str(lake), "--json", "head", PEOPLE, "-n", "5000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout, child.stderr:
        child.stdout.read(10)
        child.stdout.close()
        assert child.stderr.read() == b""
    child.wait(TIMEOUT_SECONDS)


def waiting_bytes(pipe: IO[bytes]) -> int:
    """Return the number of bytes written but not yet read."""
    found = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, found)
    return found[0]


AS_OF_A_CONNECT_CLIENT = ("PYTHONFAULTHANDLER=1", "SPARK_CONNECT_MODE_ENABLED=1")
"""PySpark sets the second one in a process with a Connect session; the commands that it starts inherit it."""


def interruptible(*call: object) -> "subprocess.Popen[bytes]":
    """Start a command in its own process group; a shell's job may ignore interrupts, this one must not.

    The limit on cross joins is off: a cross join keeps Spark busy as long as a test needs.
    """
    return subprocess.Popen(
        ["env", "--default-signal=INT", *AS_OF_A_CONNECT_CLIENT, "SILT_QUERY_PAIRS=0", *COMMAND, *map(str, call)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def interrupted(child: "subprocess.Popen[bytes]") -> bytes:
    """Send Ctrl-C to the whole group; return the command's output."""
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=TIMEOUT_SECONDS)
    assert (child.returncode, out) == (130, b""), err
    return err


def running(group: int) -> list[str]:
    """Return the names of a group's processes, without zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, _, its_group = rest.split()[:3]
        if int(its_group) == group and state != "Z":
            found.append(name)
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_interrupt_ends_with_130(lake: Path):
    child = interruptible("--lake", lake, "upsert", PEOPLE, "-")
    assert child.stdin is not None
    child.stdin.write(b'{"id": "a"}\n')
    child.stdin.flush()
    pipe = child.stdin
    wait_for(lambda: not waiting_bytes(pipe))
    time.sleep(0.5)  # it has read the row, and waits for more
    assert interrupted(child).startswith(b"silt: Interrupted")
    assert silt("--lake", lake, "--json", "head", PEOPLE).data == []


SLOW = (
    "SELECT sum((a.x + b.x) % 7) FROM (SELECT explode(sequence(1, 100000)) x) a "
    "CROSS JOIN (SELECT explode(sequence(1, 1000000)) x) b"
)


@pytest.mark.spark
@pytest.mark.parametrize("seconds", [0.0, 1.0, pytest.param(20.0, marks=pytest.mark.deep)])
def test_an_interrupt_of_spark_is_one_line_and_leaves_no_jvm(lake: Path, seconds: float):
    """At once, the JVM is still starting; later it is busy with the query."""
    child = interruptible("--lake", lake, "sql", SLOW)
    try:
        wait_for(lambda: "java" in running(child.pid))
    except AssertionError as late:
        left = running(child.pid)
        os.killpg(child.pid, signal.SIGABRT)  # Python prints the position of the interrupt
        pytest.fail(f"no JVM was started; running: {left}; {child.communicate(timeout=TIMEOUT_SECONDS)} {late}")
    time.sleep(seconds)
    err = interrupted(child)
    assert err.startswith(b"silt: Interrupted"), err
    assert err.count(b"\n") == 1, err
    wait_for(lambda: not running(child.pid))


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 1), ("n\n", 1, 2)])
def test_a_drop_at_a_terminal_needs_a_confirmation(lake: Path, answer: str, code: int, left: int):
    terminal, end = pty.openpty()
    try:
        child = subprocess.Popen(
            [*COMMAND, "--lake", str(lake), "drop", PEOPLE], stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.write(terminal, answer.encode())
        _, err = child.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        os.close(terminal)
        os.close(end)
    assert child.returncode == code
    assert b"Drop crm.sales.people" in err
    assert len(silt("--lake", lake, "--json", "list").data) == left


STARTS = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
from siltstone import Lake, Unavailable
try:
    Lake.open(sys.argv[1]).sql("SELECT 1", engine="spark")
except Unavailable:
    print("unavailable")
"""


@pytest.fixture
def without_jars(tmp_path: Path) -> dict[str, str]:
    """An environment in which a Spark server starts, and ends at once because its jars are missing."""
    (tmp_path / "jars").mkdir()
    return os.environ | {
        "SILT_SPARK_SHARED": "yes",
        "SILT_SPARK_JARS": str(tmp_path / "jars"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def test_a_person_at_a_terminal_reads_that_spark_starts_before_it_does(lake: Path, without_jars: dict[str, str]):
    terminal, end = pty.openpty()
    call = [*COMMAND, "--lake", str(lake), "sql", "SELECT 1", "--engine", "spark"]
    with subprocess.Popen(call, stdin=end, stdout=end, stderr=end, env=without_jars | {"TERM": "xterm"}) as child:
        os.close(end)
        shown = b""
        with suppress(OSError):  # the terminal is closed after the child has ended
            while piece := os.read(terminal, 4096):
                shown += piece
        os.close(terminal)
    assert child.returncode == 5
    text = shown.decode(errors="replace")
    assert "Starting Spark" in text, text
    quiet = subprocess.run([*call, "--json"], capture_output=True, text=True, check=False, env=without_jars)
    assert (quiet.returncode, "Starting" in quiet.stdout + quiet.stderr) == (5, False)


def test_a_program_logs_that_spark_starts(lake: Path, without_jars: dict[str, str]):
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(lake)], capture_output=True, text=True, check=True, env=without_jars
    )
    assert done.stdout == "unavailable\n"
    assert "siltstone.spark Starting Spark" in done.stderr
