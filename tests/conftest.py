"""Fixtures of all tests: one Spark session and one Connect server per run, both started on first use."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

import siltstone.query  # noqa: F401  # before a test imports sqlglot: see siltstone.query.sqlglot_loader
from siltstone.config import ENV_PREFIX, Settings
from siltstone.errors import Unavailable
from siltstone.spark.connect_server import ConnectServer
from siltstone.spark.connect_server import connect_server as start_connect_server
from siltstone.spark.jars import fetch_driver
from siltstone.spark.session import session
from tests.support.children import none_left
from tests.support.internals import server_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

hypothesis_settings.register_profile(
    "normal", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.register_profile(
    "deep", derandomize=False, deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("normal")

ON_THE_SERVER = (
    "tests/crash/",
    "tests/concurrency/",
    "tests/spark/test_scale.py",
    "tests/docs/test_cli_runs.py",
    "tests/e2e/test_with_spark.py",
    "tests/e2e/test_compactor_spark.py",
)
SPARK_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE", "MASTER")


@pytest.fixture(autouse=True)
def _no_child_stays() -> Iterator[None]:
    with none_left():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the other kind of session; a process can have only one kind."""
    parser.addoption("--spark-session", choices=["classic", "connect"], default="classic", help="kind of the session")


def pytest_configure(config: pytest.Config) -> None:
    """Remove the caller's own settings; use random examples only in a deep run."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job; tests of Ctrl-C send real signals
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX) or name in SPARK_VARIABLES]:
        del os.environ[name]
    os.environ["XDG_CONFIG_HOME"] = os.devnull  # below it there is no file
    os.environ[f"{ENV_PREFIX}SPARK_SHARED"] = "no"  # only tests of the shared server leave one running
    if config.option.markexpr == "deep":
        hypothesis_settings.load_profile("deep")


def jvm_of(test: str) -> str | None:
    """Return which JVM a test uses, by its place and name: all that share one run in one process, so that it starts once.

    >>> jvm_of("tests/crash/test_kill.py::test_a"), jvm_of("tests/spark/test_fold.py::test_b"), jvm_of("tests/unit/test_c.py")
    ('connect_server', 'spark', None)
    """
    if test.startswith("tests/e2e/test_shared_spark"):
        return "shared"
    if test.startswith("tests/jobs/"):
        return "worker"
    if test.startswith(ON_THE_SERVER) or "connect" in test.partition("::")[2]:
        return "connect_server"
    return "spark" if test.startswith(("tests/spark/", "tests/property/", "tests/simulation/")) else None


class ByJvm(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns tests to processes: tests that share a JVM to one, all others to any free process."""

    def _split_scope(self, nodeid: str) -> str:
        if self.config.option.markexpr == "deep" and nodeid.startswith("tests/simulation/"):
            return "simulation"  # 20 minutes: worth a separate JVM if the other process is free
        return jvm_of(nodeid) or nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByJvm:  # noqa: ANN401
    """Use our own scheduler: xdist's groups do not work with this pytest."""
    return ByJvm(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check the names of tests: a test in the wrong process would start another JVM."""
    for item in items:
        used = {"connect_server", "spark"} & set(getattr(item, "fixturenames", ()))
        if used - {jvm_of(item.nodeid)}:
            raise pytest.UsageError(f"{item.nodeid} uses {used}; see jvm_of in tests/conftest.py")


@pytest.fixture(scope="session")
def spark_settings() -> Settings:
    """Settings for a JVM of one test run on a small machine."""
    return Settings(
        spark_master="local[2]",
        spark_memory_mb=3072,
        spark_short_run=True,
        spark_shared=False,
        spark={"spark.sql.shuffle.partitions": "2"},
    )


@pytest.fixture(scope="session")
def spark(spark_settings: Settings, request: pytest.FixtureRequest) -> "Iterator[SparkSession]":
    """The session of this run: a classic session, or with ``--spark-session connect`` a Connect session."""
    with suppress(Unavailable):
        fetch_driver(spark_settings)  # the database driver is on the class path if it can be fetched
    if request.config.getoption("--spark-session") == "classic":
        started = session(spark_settings)
        yield started
        started.stop()
        return
    with start_connect_server(spark_settings) as server:
        started = session(replace(spark_settings, spark_remote=server.address))
        yield started
        started.stop()


@pytest.fixture(scope="session")
def connect_server(spark_settings: Settings) -> Iterator[ConnectServer]:
    """The Spark Connect server of this run; child processes connect to its `address`.

    Its driver accepts 4 MB of results: work of children must stay on the executors.
    """
    small = replace(spark_settings, spark={**spark_settings.spark, "spark.driver.maxResultSize": "4m"})
    with start_connect_server(small) as server:
        yield server
        with suppress(ProcessLookupError):  # at its end the JVM may write a class archive first
            os.killpg(server_process(server).pid, signal.SIGKILL)


@pytest.fixture
def lake_path(tmp_path: Path) -> Path:
    """A path for a lake that does not exist yet."""
    return tmp_path / "lake"
