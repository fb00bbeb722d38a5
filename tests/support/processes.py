"""Pool of processes that are started once and then run calls of tests, all at the same moment if needed."""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from deltalake.exceptions import DeltaError

from siltstone.clock import SystemClock
from siltstone.delta.checkpoints import Retention, try_checkpoint_and_clean
from siltstone.delta.table import Table
from siltstone.errors import Conflict, SiltstoneError
from siltstone.lake import Lake
from siltstone.model.columns import APP_SEQ, SEQ
from siltstone.model.commit import CommitKind
from siltstone.model.reports import Ack
from tests.support.tables import FAST, TABLE_SCHEMA, append, move, open_table

HEAD_START_SECONDS = 0.3
"""Long enough for every process to have picked up its task before the common start."""


class Pool:
    """Processes started by spawn, so that they share only the disk with this one."""

    def __init__(self, size: int) -> None:
        self.size = size
        context = multiprocessing.get_context("spawn")
        together = context.Barrier(size)
        self._pool = ProcessPoolExecutor(size, mp_context=context, initializer=_arrive, initargs=(together,))
        list(self._pool.map(_wake, range(size)))

    def one(self, task: Callable[..., Any], *given: Any) -> Any:  # noqa: ANN401
        """Run one task in another process."""
        return self._pool.submit(task, *given).result(timeout=120)

    def at_once(self, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run at most one task per process, all from the same moment on."""
        assert len(tasks) <= self.size
        start = time.monotonic() + HEAD_START_SECONDS
        running: list[Future[Any]] = [self._pool.submit(_from, start, *task) for task in tasks]
        return [task.result(timeout=300) for task in running]

    def close(self) -> None:
        self._pool.shutdown()


def _arrive(together: Barrier) -> None:
    """Wait until every process has imported this module."""
    together.wait(300)


def _wake(_number: int) -> None:
    """Start one more process: none is idle before all have arrived."""


def _from(start: float, task: Callable[..., Any], *given: Any) -> Any:  # noqa: ANN401
    time.sleep(max(0.0, start - time.monotonic()))  # the monotonic clock is the same in all processes of a machine
    return task(*given)


def upsert_in_process(root: Path, producer: str, sequence: int, number: int) -> Ack:
    """Upsert one row as an idempotent producer."""
    return (
        Lake.open(root, settings=FAST).dataset("a.b.c").upsert([{"id": number}], producer=producer, sequence=sequence)
    )


def create_table_in_process(path: Path) -> str:
    """Try to create a table; return ``created`` or the name of the error."""
    try:
        Table.create(path, TABLE_SCHEMA, partition_by=[SEQ], properties={}, durable=False)
    except SiltstoneError as error:
        return type(error).__name__
    return "created"


def create_dataset_in_process(root: Path, schema: str) -> str:
    """Create a dataset; return its incarnation or the name of the error."""
    try:
        return Lake.open(root, settings=FAST).create("a.b.c", schema, key="id").info().incarnation
    except SiltstoneError as error:
        return type(error).__name__


def recreate_for(root: Path, seconds: float) -> tuple[int, list[str]]:
    """Drop and create one dataset repeatedly.

    Return the number of rounds, and errors other than those of a lost race.
    """
    made, odd = 0, []
    lake = Lake.open(root, settings=FAST)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            lake.create("a.b.c", "id BIGINT NOT NULL, tag STRING", key="id")
            made += 1
            lake.drop("a.b.c")
        except SiltstoneError as error:
            if error.kind not in ("conflict", "not_found"):
                odd.append(f"{type(error).__name__}: {error}")
        except (DeltaError, OSError) as error:
            odd.append(_traced(error))
    return made, odd


def write_while_recreated(root: Path, writer: int, seconds: float) -> tuple[list[tuple[str, int]], list[str]]:
    """Write through handles that become stale. Return acknowledged (incarnation, id) pairs, and unexpected errors."""
    written, odd, number = [], [], 0
    lake = Lake.open(root, settings=FAST)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            people = lake.dataset("a.b.c")
            incarnation = people.info().incarnation
            for _ in range(5):
                number += 1
                people.upsert([{"id": writer * 1_000_000 + number, "tag": incarnation}])
                written.append((incarnation, writer * 1_000_000 + number))
        except SiltstoneError as error:
            if error.kind not in ("gone", "not_found"):
                odd.append(f"{type(error).__name__}: {error}")
        except (DeltaError, OSError) as error:
            odd.append(_traced(error))
    return written, odd


def _traced(error: Exception) -> str:
    """Return the traceback of an error of another package."""
    return "".join(traceback.format_exception(error)[-6:])


def append_for(path: Path, writer: int, seconds: float) -> list[tuple[int, int]]:
    """Append one-row files; return the acknowledged (id, sequence) pairs."""
    table = open_table(path)
    acknowledged: list[tuple[int, int]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = writer * 1_000_000 + len(acknowledged)
        committed = append(table, number)
        acknowledged.append((number, committed.commit.transactions[APP_SEQ]))
    return acknowledged


def cluster_for(path: Path, seconds: float, *, files_at_once: int = 20) -> tuple[int, int]:
    """Rewrite the oldest files into one, repeatedly; return the numbers of landed and refused rewrites."""
    table, clock = open_table(path), SystemClock()
    landed = refused = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        files = sorted(table.pin().files, key=lambda file: (int(file.partition[SEQ] or 0), file.path))[:files_at_once]
        if len(files) < 2:
            clock.sleep(0.01)
            continue
        commit = move(table, files, kind=CommitKind.CLUSTER)
        try:
            table.commit(lambda _, commit=commit: commit)  # type: ignore[misc]
            landed += 1
        except Conflict:
            refused += 1
            (path / commit.adds[0].path).unlink()
    return landed, refused


def checkpoint_and_clean_for(path: Path, seconds: float) -> tuple[int, list[str]]:
    """Write checkpoints and clean the log without a pause; return the number of rounds, and the errors."""
    done, failures = 0, []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        error_text = try_checkpoint_and_clean(
            path, retention=Retention(hours=100, max_entries=3), durable=False, clock=SystemClock()
        )
        done += 1
        if error_text is not None:
            failures.append(error_text)
    return done, failures
