"""One worker on the Connect server, and the template lakes that cases copy."""

import datetime
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.spark.connect_server import ConnectServer
from tests.support.children import Worker
from tests.support.operations import LOADED, LOADED_EVENTS, State, event, row, state

StartLake = Callable[[str], Path]
AfterStates = Callable[[str, str], State | None]


@pytest.fixture(scope="session")
def worker(connect_server: ConnectServer) -> Iterator[Worker]:
    """A process with a Spark session for cases that need Spark."""
    with Worker(remote=connect_server.address) as started:
        yield started


@pytest.fixture(scope="session")
def templates(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lakes that cases copy, and the files that `ingest` loads."""
    folder = tmp_path_factory.mktemp("templates")
    worker.call("tests.support.operations:build_lakes", folder=str(folder))
    rows = [row(number, 500 + number, "loaded") for number in (0, 2, 5, 60, 61)]
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("note", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / LOADED)
    events = [event(number, 500 + number, "loaded") for number in (0, 2, 5, 60, 61, 61)]
    timed = [found | {"at": datetime.datetime.fromisoformat(found["at"])} for found in events]
    pq.write_table(
        pa.Table.from_pylist(timed, schema.append(pa.field("at", pa.timestamp("us", "UTC")))), folder / LOADED_EVENTS
    )
    return folder


@pytest.fixture
def start_lake(templates: Path, tmp_path: Path) -> StartLake:
    """Copy a template for one case; ``nothing`` is the path of a lake that does not exist yet."""

    def start(name: str) -> Path:
        return copy_template(templates, name, tmp_path)

    return start


def copy_template(templates: Path, name: str, folder: Path) -> Path:
    """Copy one lake, and the files to load beside it."""
    path = folder / "lake"
    if name != "nothing":
        shutil.copytree(templates / name, path)
    for source in (LOADED, LOADED_EVENTS):
        shutil.copy(templates / source, folder / source)
    return path


@pytest.fixture(scope="session")
def after_states(templates: Path, worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> AfterStates:
    """The state that an uninterrupted operation leaves of a template; ``look`` does nothing."""
    known: dict[tuple[str, str], State | None] = {}

    def after(name: str, operation: str) -> State | None:
        if (name, operation) not in known:
            path = copy_template(templates, name, tmp_path_factory.mktemp("after"))
            if operation != "look":
                worker.call("tests.support.operations:perform", path=str(path), operation=operation)
            known[name, operation] = state(str(path))
        return known[name, operation]

    return after
