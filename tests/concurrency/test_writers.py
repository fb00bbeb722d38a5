"""Writers in many processes and threads, beside folds, purges and drops: no acknowledged write is ever lost."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from siltstone import Lake
from siltstone.spark.connect_server import ConnectServer
from tests.support.actors import (
    NAME,
    SCHEMA,
    STOP,
    apply,
    batch_rows,
    make,
    open_dataset,
    seen_rows,
    wait_for,
)
from tests.support.children import Child, Worker
from tests.support.internals import store_of

ACTORS = "tests.support.actors"
WRITERS = 4
BATCHES = 50


def start(function: str, *, remote: str = "", **arguments: object) -> Child:
    return Child(f"{ACTORS}:{function}", arguments, remote=remote)


def assert_nothing_lost(path: Path, log: list[list[Any]], worker: Worker) -> None:
    """Sequences are 1..n without a gap; rows equal the oracle's, before and after a final fold and purge."""
    assert sorted(item[0] for item in log) == list(range(1, len(log) + 1))
    expected = apply(log)
    dataset = open_dataset(str(path))
    assert seen_rows(dataset.to_arrow().to_pylist()) == expected
    report = worker.call(f"{ACTORS}:compact_once", path=str(path), purge=True)
    assert report["final_rows"] == len(expected)
    assert seen_rows(dataset.to_arrow().to_pylist()) == expected
    status = dataset.status()
    assert (status.sequence, status.watermark) == (len(log), len(log))
    assert (status.rows_in_base, status.backlog_files, status.unreferenced_files) == (len(expected), 0, 0)


@pytest.mark.spark
@pytest.mark.parametrize("purge_every", [0, 2], ids=["folds", "purges"])
def test_writers_in_four_processes_lose_nothing_while_another_compacts(
    purge_every: int, lake_path: Path, tmp_path: Path, worker: Worker, connect_server: ConnectServer
):
    make(str(lake_path))
    compactor = start(
        "compact_until_stopped",
        remote=connect_server.address,
        path=str(lake_path),
        signals=str(tmp_path),
        purge_every=purge_every,
    )
    writers = [start("write_batches", path=str(lake_path), writer=number, batches=BATCHES) for number in range(WRITERS)]
    log = [item for writer in writers for item in writer.value()]
    wait_for(tmp_path / "folded")
    (tmp_path / STOP).touch()
    counts = compactor.value()
    assert counts["folds"] > 0
    assert len(log) == WRITERS * (BATCHES + BATCHES // 10)
    assert_nothing_lost(lake_path, log, worker)


def test_threads_of_one_process_share_commits_and_each_gets_its_own_sequence(lake_path: Path):
    make(str(lake_path))
    dataset = open_dataset(str(lake_path))

    def write(number: int) -> list[Any]:
        rows = batch_rows(number, number)
        return [dataset.upsert(rows).sequence, "U", rows]

    with ThreadPoolExecutor(32) as pool:
        log = list(pool.map(write, range(200)))
    assert sorted(item[0] for item in log) == list(range(1, 201))
    assert seen_rows(dataset.to_arrow().to_pylist()) == apply(log)
    commits = store_of(dataset).changes.version()
    assert commits < 200, "no commit carried more than one batch"


def test_writers_of_a_dropped_dataset_fail_and_write_nothing_into_the_next_one(lake_path: Path, tmp_path: Path):
    make(str(lake_path))
    writers = [
        start("write_until_gone", path=str(lake_path), writer=number, signals=str(tmp_path)) for number in range(3)
    ]
    for number in range(3):
        wait_for(tmp_path / f"writing-{number}")
    with Lake.open(lake_path) as lake:
        lake.drop(NAME)
        again = lake.create(NAME, SCHEMA, key="id")
        ends = [writer.value() for writer in writers]
        assert {end["error"] for end in ends} <= {"Gone", "NotFound"}
        assert again.to_arrow().num_rows == 0
        assert again.status().sequence == 0
        assert again.upsert([{"id": "new"}]).sequence == 1
        lake.sweep()
        assert [path.name for path in again.path.parent.iterdir()] == [again.path.name]
