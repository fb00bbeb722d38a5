"""One warm worker for all tests here: each lake has a pool of its own, which takes the worker over from the one before."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone import Lake
from siltstone.clock import SystemClock
from siltstone.compaction.execution.worker_pool import Pool
from siltstone.compaction.execution.worker_process import WorkerProcess
from tests.support.faulty_worker import COMMAND
from tests.support.rolled import SETTINGS

OpenLake = Callable[..., Lake]


@pytest.fixture(scope="session")
def warm() -> Iterator[list[WorkerProcess]]:
    """The worker, if there is one."""
    kept: list[WorkerProcess] = []
    yield kept
    for worker in kept:
        worker.close()


@pytest.fixture
def open_lake(warm: list[WorkerProcess], tmp_path: Path) -> Iterator[OpenLake]:
    """Open a lake whose jobs go to the warm worker; with `fresh`, to one of its own."""
    with ExitStack() as opened:

        def open_one(name: str = "lake", *, fresh: bool = False, **changed: Any) -> Lake:  # noqa: ANN401
            settings = replace(SETTINGS, **changed)
            lake = opened.enter_context(Lake.open(tmp_path / name / "lake", settings=settings))
            lake.path.parent.mkdir(exist_ok=True)
            pool = Pool(
                lake.path,
                settings=settings,
                clock=SystemClock(),
                compactor=lake._components.operations,
                store=lake._components.store,
                command=COMMAND,
            )
            lake.maintenance._pool = pool
            if not fresh:
                pool._idle, warm[:] = list(warm), []
                opened.callback(_give_back, pool, warm)
            return lake

        yield open_one


def _give_back(pool: Pool, warm: list[WorkerProcess]) -> None:
    alive = [worker for worker in pool._idle if worker.alive()]
    if alive and not warm:
        pool._idle.remove(alive[0])
        warm.append(alive[0])


def pool_of(lake: Lake) -> Pool:
    """Return a lake's pool."""
    assert lake.maintenance._pool is not None
    return lake.maintenance._pool
