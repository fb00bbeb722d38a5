"""The Spark server that commands share: one server for all commands, ended when it is idle."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from siltstone.clock import SystemClock
from siltstone.host.user_cache import cache_folder
from siltstone.query.spark_executor import SERVER_ENDED
from siltstone.spark.connect_server import listens
from siltstone.spark.python_workers import python_daemons
from siltstone.spark.shared_server import STATE_FILE, RunningServer, daemon_lives, read_state
from tests.e2e.silt import Result, process

NAME = "a.b.c"
COUNT = f"SELECT count(*) FROM {NAME}"
GONE_SECONDS = 150
WORKING_CLIENT = """
import sys
from siltstone import Lake, Unavailable
from siltstone.spark.errors import noticing_absence
from tests.support.internals import query_session_of

heard = []

def show(progress):
    if not heard:
        heard.append(progress)
        print("tasks:", progress.tasks, flush=True)

with Lake.open(sys.argv[1]) as lake:
    with lake.progress(show):
        spark = query_session_of(lake)
        print("joined", flush=True)
        sys.stdin.readline()
        try:
            with noticing_absence():
                spark.range(0, 10**13, 1, 2).selectExpr("sum(id % 7)").collect()
        except Unavailable as error:
            print("unavailable", flush=True)
    print(lake.sql("SELECT count(*) FROM a.b.c", engine="spark").rows[0][0], flush=True)
"""

pytestmark = pytest.mark.spark


class User:
    """A user with a lake and a separate cache that links to our jars and class archives."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache" / "siltstone"
        self.cache.mkdir(parents=True)
        for shared in ("jars", "appcds"):
            (cache_folder() / shared).mkdir(parents=True, exist_ok=True)
            (self.cache / shared).symlink_to(cache_folder() / shared)
        self.environment = {
            "XDG_CACHE_HOME": str(self.cache.parent),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "SILT_SPARK_SHARED": "yes",
            "SILT_SPARK_MASTER": "local[2]",
            "SILT_SPARK_MEMORY_MB": "2048",
            "SILT_SPARK_SHORT_RUN": "yes",
            "SILT_LAKE": str(folder / "lake"),
        }
        self.silt("create", NAME, "--key", "id", "--schema", "id STRING")
        self.silt("upsert", NAME, "--row", '{"id": "x"}', "--row", '{"id": "y"}')
        (folder / "config" / "siltstone").mkdir(parents=True)
        (folder / "config" / "siltstone" / "silt.toml").write_text('[spark]\n"spark.ui.enabled" = true\n')

    def silt(self, *call: object, **environment: str) -> Result:
        return process("--json", *call, **{**self.environment, **environment})

    @property
    def place(self) -> Path:
        """The folder of the server for queries."""
        return Path(self.silt("spark", "status").data["log"]).parent

    def running(self) -> RunningServer:
        found = read_state(self.place)
        assert found is not None
        return found

    def pid(self, *role: str) -> int:
        return int(self.silt("spark", "status", *role).data["pid"])


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    made = User(tmp_path_factory.mktemp("user"))
    yield made
    made.silt("spark", "stop", "--all", "--force")


@pytest.fixture(scope="module")
def first_two(user: User) -> list[Result]:
    """Two commands that both need Spark at the same moment, while no server runs."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda _: user.silt("sql", COUNT, "--engine", "spark"), range(2)))


def wait_until_gone(user: User) -> None:
    """Wait until the server and its daemon have ended; the daemon ends a moment later."""
    clock = SystemClock()
    deadline = clock.monotonic_seconds() + GONE_SECONDS
    while user.silt("spark", "status").data["running"] or daemon_lives(user.place):
        assert clock.monotonic_seconds() < deadline
        clock.sleep(0.5)


def test_two_commands_at_once_start_one_server_and_the_third_joins_it(user: User, first_two: list[Result]):
    assert [result.data["rows"] for result in first_two] == [[[2]], [[2]]], first_two
    before = user.pid()
    nobody = "http://127.0.0.1:9"
    assert user.silt("sql", COUNT, "--engine", "spark", http_proxy=nobody, https_proxy=nobody).data["rows"] == [[2]]
    status = user.silt("spark", "status").data
    assert (status["running"], status["in_use"], status["pid"]) == (True, False, before)
    assert status["address"] == f"sc://localhost:{user.running().port}"


@pytest.mark.usefixtures("first_two")
def test_other_users_cannot_see_the_token(user: User):
    token = user.running().token
    shown = user.silt("spark", "status")
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(PermissionError, FileNotFoundError, ProcessLookupError):  # of another user, or ended
            lines.append(path.read_bytes())
    assert lines
    assert token not in shown.out + shown.err + (user.place / "server.log").read_text()
    assert not any(token.encode() in line for line in lines)
    assert {path.stat().st_mode & 0o077 for path in [user.place, *user.place.iterdir()]} == {0}


@pytest.mark.usefixtures("first_two")
def test_a_client_with_another_token_is_refused(user: User):
    refused = user.silt("sql", COUNT, "--engine", "spark", SILT_SPARK_REMOTE=f"{user.running().address}/;token=other")
    assert (refused.code, refused.error["kind"]) == (5, "unavailable"), refused


@pytest.mark.usefixtures("first_two")
def test_the_ui_answers_on_this_machine_only(user: User):
    shown = process("spark", "status", "--ui", **user.environment)
    with urllib.request.urlopen(shown.out.strip(), timeout=30) as page:
        assert page.status == 200
    port = f"{user.running().ui_port:04X}"
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line]
    listening += [line.split()[1] for line in Path("/proc/net/tcp6").read_text().splitlines() if " 0A " in line]
    assert {where.split(":")[0][-8:] for where in listening if where.endswith(f":{port}")} == {"0100007F"}


@pytest.mark.usefixtures("first_two")
def test_a_damaged_state_is_repaired_and_the_server_continues(user: User):
    before = user.pid()
    (user.place / STATE_FILE).write_text("garbage")
    assert user.silt("sql", COUNT, "--engine", "spark").data["rows"] == [[2]]
    (user.place / STATE_FILE).chmod(0o644)
    assert user.silt("spark", "start").data["pid"] == before


@pytest.mark.usefixtures("first_two")
def test_python_processes_go_with_the_last_client(user: User, tmp_path: Path):
    """Spark holds a Python process for every session that ran Python."""
    clock = SystemClock()
    other = f"{NAME}2"
    user.silt("create", other, "--key", "id", "--schema", "id STRING")
    for number in range(2):
        rows = tmp_path / f"{number}.ndjson"
        rows.write_text(f'{{"id": "x{number}"}}\n')
        loaded = user.silt("ingest", other, rows)
        assert (loaded.code, loaded.data["rows"]) == (0, 1), loaded
        deadline = clock.monotonic_seconds() + GONE_SECONDS
        while python_daemons(user.pid("--jobs")):
            assert clock.monotonic_seconds() < deadline
            clock.sleep(0.5)


@pytest.mark.usefixtures("first_two")
def test_a_client_whose_server_dies_gets_an_error_soon_and_then_another_server(user: User):
    """A busy client gets an error when the daemon is killed.

    The next server ends with that client.
    """
    before = user.running()
    environment = os.environ | user.environment | {"SILT_SPARK_IDLE_MINUTES": "0.03"}
    client = subprocess.Popen(
        [sys.executable, "-c", WORKING_CLIENT, user.environment["SILT_LAKE"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    with client:
        assert client.stdout.readline() == "joined\n"
        refused = user.silt("spark", "stop")
        assert (refused.code, refused.error["kind"]) == (4, "conflict")
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.stdout.readline() == "tasks: 2\n"
        killed = SystemClock().monotonic_seconds()
        os.kill(user.pid(), signal.SIGKILL)
        assert client.stdout.readline() == "unavailable\n"
        assert SystemClock().monotonic_seconds() - killed < 60
        assert client.stdout.readline() == "2\n"
    assert not listens(before.port)
    wait_until_gone(user)  # the new server ends soon after its last client
    user.silt("spark", "stop", "--force")  # the server for jobs
    assert user.silt("spark", "stop").data == {"stopped": 0}
    assert user.silt("spark", "status", "--ui").error["kind"] == "invalid_request"


NEVER_ENDS = "SELECT repeat('a', 34) RLIKE '(.*a){18}b' AS x"
"""A constant that Spark computes during planning; it ignores interrupts."""


READ = "a.b.n"
GROWS = f"SELECT sum(x * y) FROM (SELECT x, explode(sequence(1, n)) y FROM (SELECT n, explode(sequence(1, n)) x FROM {READ}))"
"""With a large n it reads for days, and can be interrupted. With 2 the sum is 9."""
READING_CLIENT = """
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from siltstone import Lake, Unavailable
from tests.support.internals import query_session_of

heard = set()

def show(progress):
    heard.add(threading.get_ident())
    print("at work:", len(heard), flush=True)

def streamed(lake):
    try:
        return lake.stream_sql(sys.argv[2]).read_all()
    except Unavailable as error:
        return error

with Lake.open(sys.argv[1]) as lake, ThreadPoolExecutor(1) as pool:
    query_session_of(lake)
    with lake.progress(show):
        stream = pool.submit(streamed, lake)
        answer = lake.sql(sys.argv[2], engine="spark", timeout=0)
    print("answer:", answer.rows[0][0], flush=True)
    print("stream:", stream.result(), flush=True)
"""
"""Reports the number of its two running reads, and then their results."""


@dataclass(frozen=True)
class Replaced:
    """Results of clients whose server was replaced."""

    before: RunningServer
    late: Result
    """The query that ignored its time limit."""
    job: Result
    """A job that ran at the same time."""
    read: list[str]
    """Output of a client whose reads ran on that server."""


@pytest.fixture(scope="module")
def replaced(user: User, first_two: list[Result]) -> Replaced:
    """Let a query exceed its time limit beside another client's reads, until its server is replaced."""
    assert len(first_two) == 2
    user.silt("create", READ, "--key", "id", "--schema", "id STRING, n BIGINT")
    user.silt("upsert", READ, "--row", '{"id": "x", "n": 1000000}')
    user.silt("sql", COUNT, "--engine", "spark")
    before = user.running()
    reader = subprocess.Popen(
        [sys.executable, "-c", READING_CLIENT, user.environment["SILT_LAKE"], GROWS],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | user.environment,
    )
    assert reader.stdout is not None
    with reader:
        while "2" not in (line := reader.stdout.readline()):
            assert line.startswith("at work")
        user.silt("upsert", READ, "--row", '{"id": "x", "n": 2}')  # a caller that repeats the query reads this
        late = user.silt("sql", NEVER_ENDS, "--timeout", "15")
        job = user.silt("compact", NAME)
        clock = SystemClock()
        deadline = clock.monotonic_seconds() + GONE_SECONDS
        while read_state(user.place) == before:
            assert clock.monotonic_seconds() < deadline
            clock.sleep(0.2)
        read = [line for line in reader.stdout.read().splitlines() if not line.startswith("at work")]
    return Replaced(before, late, job, read)


@pytest.mark.deep
def test_a_server_whose_query_does_not_obey_is_replaced_and_jobs_do_not_notice(user: User, replaced: Replaced):
    assert (replaced.late.code, replaced.late.error["kind"]) == (5, "unavailable")
    assert replaced.late.error["reason"] == "time_limit"
    assert replaced.job.code == 0
    assert user.silt("sql", COUNT, "--engine", "spark").data["rows"] == [[2]]
    assert user.running() != replaced.before
    assert user.silt("spark", "status", "--jobs").data["running"]


@pytest.mark.deep
def test_a_query_of_another_client_runs_again_on_the_replacement_server(replaced: Replaced):
    """A stream is not repeated, because its caller has received rows. The error gives this reason."""
    answer, stream = replaced.read
    assert answer == "answer: 9"
    assert stream == f"stream: {SERVER_ENDED}"
