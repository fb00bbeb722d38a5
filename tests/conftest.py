"""What all tests share: one Spark session and one Connect server for the whole run, both started only if asked for."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from siltstone.config import ENV_PREFIX, Settings
from siltstone.errors import Unavailable
from siltstone.storage.connect import ConnectServer
from siltstone.storage.connect import connect_server as start_connect_server
from siltstone.storage.jars import fetch_driver
from siltstone.storage.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

hypothesis_settings.register_profile(
    "normal", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.register_profile(
    "deep", derandomize=False, deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("normal")

SPARK_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE", "MASTER")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the same tests run on the other kind of session; a process can have only one kind."""
    parser.addoption("--spark-session", choices=["classic", "connect"], default="classic", help="kind of the session")


def pytest_configure(config: pytest.Config) -> None:
    """Take the caller's own settings out of the way; random examples only in a deep run."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX) or name in SPARK_VARIABLES]:
        del os.environ[name]
    os.environ[f"{ENV_PREFIX}SPARK_SHARED"] = "no"  # no test leaves a server behind but those that mean to have one
    if config.option.markexpr == "deep":
        hypothesis_settings.load_profile("deep")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests that share a JVM to one process, so that a run in several processes starts each JVM once."""
    for item in items:
        used = getattr(item, "fixturenames", ())
        shared = next((jvm for jvm in ("connect_server", "spark") if jvm in used), None)
        if shared is not None:
            item.add_marker(pytest.mark.xdist_group(shared))


@pytest.fixture(scope="session")
def spark_settings() -> Settings:
    """Settings for a JVM that lives for one test run on a small machine."""
    return Settings(
        spark_master="local[2]",
        spark_memory_mb=3072,
        spark_short_run=True,
        spark_shared=False,
        spark={"spark.sql.shuffle.partitions": "2"},
    )


@pytest.fixture(scope="session")
def spark(spark_settings: Settings, request: pytest.FixtureRequest) -> "Iterator[SparkSession]":
    """The session of this run: a classic one, unless ``--spark-session connect`` asks for the other kind."""
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
    """The Spark Connect server of this run; child processes join it at its `address`.

    Its driver takes 4 MB of results: whatever children do there has to stay on the executors.
    """
    small = replace(spark_settings, spark={**spark_settings.spark, "spark.driver.maxResultSize": "4m"})
    with start_connect_server(small) as server:
        yield server


@pytest.fixture
def lake_path(tmp_path: Path) -> Path:
    """A place for a lake that does not exist yet."""
    return tmp_path / "lake"
