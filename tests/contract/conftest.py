"""Every kind of event log, each fresh for each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from siltstone.eventlog.log import EventLog
from tests.support.postgres import PASSWORD, USER, Postgres, postgres_server

KINDS = ("memory", "sqlite", "postgresql", "delta")

Opener = Callable[[str], EventLog]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server for this run."""
    with postgres_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _own_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def address(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return the address of a new log of a kind."""
    made: list[str] = []

    def new(kind: str) -> str:
        if kind == "memory":
            return "memory:"
        made.append(kind)
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/log{len(made)}.db"
        if kind == "delta":
            return f"delta://{tmp_path}/log{len(made)}"
        server: Postgres = request.getfixturevalue("postgres")
        name = f"log_{tmp_path.name.lower()}_{len(made)}".replace("-", "_")[-60:]
        server.run(f'DROP DATABASE IF EXISTS "{name}"')
        server.run(f'CREATE DATABASE "{name}" OWNER {USER}')
        return f"postgresql://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/{name}"

    return new


@pytest.fixture
def opened(address: Callable[[str], str]) -> Iterator[Opener]:
    """Open new logs that are closed after the test."""
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(EventLog.open(address(kind)))


@pytest.fixture(params=KINDS)
def log(request: pytest.FixtureRequest, opened: Opener) -> EventLog:
    """A log of each kind."""
    return opened(request.param)
