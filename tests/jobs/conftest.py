"""One warm worker for all tests here: each lake has its own pool, which takes over the worker of the previous pool."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone import Lake
from siltstone.clock import SystemClock
from siltstone.compaction.execution.worker_pool import WorkerPool
from siltstone.compaction.execution.worker_process import WorkerProcess
from tests.support.faulty_worker import COMMAND
from tests.support.internals import compactor_of, idle_workers, stores_of, use_pool
from tests.support.roll_ups import SETTINGS

OpenLake = Callable[..., Lake]


@pytest.fixture(scope="session")
def warm() -> Iterator[list[WorkerProcess]]:
    """The warm worker, if it exists."""
    workers: list[WorkerProcess] = []
    yield workers
    for worker in workers:
        worker.close()


@pytest.fixture
def open_lake(warm: list[WorkerProcess], tmp_path: Path) -> Iterator[OpenLake]:
    """Open a lake whose jobs run in the warm worker; with `fresh`, in a new one."""
    with ExitStack() as opened:

        def open_one(name: str = "lake", *, fresh: bool = False, **changed: Any) -> Lake:  # noqa: ANN401
            settings = replace(SETTINGS, **changed)
            lake = opened.enter_context(Lake.open(tmp_path / name / "lake", settings=settings))
            lake.path.parent.mkdir(exist_ok=True)
            pool = WorkerPool(
                lake.path,
                settings=settings,
                clock=SystemClock(),
                operations=compactor_of(lake),
                store=stores_of(lake),
                command=COMMAND,
            )
            use_pool(lake, pool)
            if not fresh:
                idle_workers(pool).extend(warm)
                warm.clear()
                opened.callback(_return_workers, pool, warm)
            return lake

        yield open_one


def _return_workers(pool: WorkerPool, warm: list[WorkerProcess]) -> None:
    alive = [worker for worker in idle_workers(pool) if worker.alive()]
    if alive and not warm:
        idle_workers(pool).remove(alive[0])
        warm.append(alive[0])
