"""Appenders, tombstones, squashes, folds and roll-ups of a log at the same moment: nothing is lost, nothing is there twice."""

import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.spark.connect_server import ConnectServer
from tests.support.actors import STOP
from tests.support.children import Child, Worker
from tests.support.log_actors import (
    COUNTED,
    FORGOTTEN,
    count_of,
    files_of,
    make,
    make_logs,
    names_by_log,
    names_of,
    row_of,
    rows_of,
)

ACTORS = "tests.support.log_actors"
WRITERS = 3
SECONDS = 5.0


@pytest.mark.spark
def test_appenders_beside_folds_lose_and_double_nothing(lake_path: Path, worker: Worker, connect_server: ConnectServer):
    make(str(lake_path))
    writers = [
        Child(f"{ACTORS}:append_for", {"path": str(lake_path), "writer": writer, "seconds": SECONDS})
        for writer in range(WRITERS)
    ]
    folder = Child(f"{ACTORS}:fold_for", {"path": str(lake_path), "seconds": SECONDS}, remote=connect_server.address)
    appended = [writer.value() for writer in writers]
    folds = folder.value()

    assert folds >= 1
    assert all(found[COUNTED] > 0 for found in appended)
    assert count_of(str(lake_path)) == sum(found[COUNTED] for found in appended)
    worker.call(f"{ACTORS}:fold_once", path=str(lake_path))
    assert count_of(str(lake_path)) == sum(found[COUNTED] for found in appended)
    shown = names_of(str(lake_path))
    assert len(shown) == len(set(shown))
    assert not {name for found in appended for name in found[FORGOTTEN]} & set(shown)


PATIENCE_SECONDS = 100.0
"""Longest wait on a busy machine until each process has done something."""
WORK = ("fold", "fold", "roll_up", "hourly", "squash")
"""Two processes compete for the same changes, and two for the same files of base."""


def stress(path: Path, signals: Path, press: Callable[[], list[str]], *, seconds: float, remote: str) -> None:
    """Run all processes concurrently for a time, and until each has done some work. Then every row must exist once."""
    make(str(path))
    shared = {"path": str(path), "signals": str(signals)}

    def start(function: str, *, spark: bool = False, **more: object) -> Child:
        return Child(f"{ACTORS}:{function}", shared | more, remote=remote if spark else "")

    appenders = [start("append_until_stopped", writer=writer) for writer in range(2)]
    readers = [
        start("read_log_until_stopped", number=0),
        start("read_log_until_stopped", number=1, on_spark=True, spark=True),
    ]
    compactors = [start("compact_log_until_stopped", work=work, spark=True) for work in WORK]
    ready = ["done-fold", "done-roll_up", "done-squash", *(f"read-{number}" for number in range(len(readers)))]
    began = time.monotonic()
    try:
        while time.monotonic() < began + seconds or not all((signals / name).exists() for name in ready):
            ended = [name for name in ready if (signals / name).exists()]
            assert time.monotonic() < began + seconds + PATIENCE_SECONDS, f"in time only {ended}"
            time.sleep(0.1)
    finally:
        (signals / STOP).touch()
    expected = [row_of(name) for appender in appenders for name in appender.value()]
    counts = [compactor.value() for compactor in compactors]
    readings = [reader.value() for reader in readers]
    sys.stdout.write(f"\n{len(expected)} rows, compactions {counts}, readings {[r['readings'] for r in readings]}\n")

    assert [reading["wrong"] for reading in readings] == [None, None]
    assert in_order(rows_of(str(path))) == in_order(expected)
    assert press() == []
    assert in_order(rows_of(str(path))) == in_order(expected)
    assert set(files_of(str(path)).values()) == {1}


def in_order(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(rows, key=lambda row: row["name"])


@pytest.mark.spark
def test_all_operations_at_once_on_a_log_lose_and_duplicate_nothing(
    lake_path: Path, tmp_path: Path, worker: Worker, connect_server: ConnectServer
):
    def press() -> list[str]:
        return list(worker.call(f"{ACTORS}:fold_and_roll_up", path=str(lake_path)))

    stress(lake_path, tmp_path, press, seconds=5.0, remote=connect_server.address)


@pytest.mark.deep
@pytest.mark.spark
def test_all_operations_at_once_on_a_log_for_minutes(
    lake_path: Path, tmp_path: Path, worker: Worker, connect_server: ConnectServer
):
    def press() -> list[str]:
        return list(worker.call(f"{ACTORS}:fold_and_roll_up", path=str(lake_path)))

    stress(lake_path, tmp_path, press, seconds=180.0, remote=connect_server.address)


LOADED = {"load.test.apart": ("a", "b"), "load.test.same": ("a", "a")}
"""Two processes each load a file into one empty log, and the same file into another log."""


@pytest.mark.spark
def test_first_loads_of_two_processes_at_once_beside_an_appender_lose_and_double_nothing(
    lake_path: Path, tmp_path: Path, worker: Worker, connect_server: ConnectServer
):
    path, names = str(lake_path), list(LOADED)
    make_logs(path, names)
    rows = {file: [row_of(f"{file}-{number}") for number in range(50)] for file in "ab"}
    for file, held in rows.items():
        at = pa.array([datetime.datetime.fromisoformat(row["at"]) for row in held], pa.timestamp("us", tz="UTC"))
        others = {name: [row[name] for row in held] for name in ("who", "name")}
        pq.write_table(pa.table({"at": at, **others}), tmp_path / f"{file}.parquet")
    shared = {"path": path, "signals": str(tmp_path)}
    appender = Child(f"{ACTORS}:append_beside", shared | {"names": names})
    loaders = [
        Child(
            f"{ACTORS}:first_loads",
            shared
            | {"me": me, "files": {name: str(tmp_path / f"{files[me]}.parquet") for name, files in LOADED.items()}},
            remote=connect_server.address,
        )
        for me in range(2)
    ]
    try:
        apart, same = zip(*(loader.value() for loader in loaders), strict=True)
    finally:
        (tmp_path / STOP).touch()
    appended = appender.value()

    assert sorted(report["first"] for report in apart) == [False, True], (
        "one is straight in base, the other a change batch"
    )
    assert [report["rows"] for report in apart] == [50, 50]
    assert sorted((report["rows"], report["skipped"]) for report in same) == [(0, 1), (50, 0)]
    assert all(appended.values())
    expected = {
        name: sorted([*appended[name], *(row["name"] for file in set(files) for row in rows[file])])
        for name, files in LOADED.items()
    }
    assert names_by_log(path, names) == expected
    apart_only = {name: expected[name] for name in names[:1]}
    assert worker.call(f"{ACTORS}:names_by_log", path=path, names=names[:1], fold=True) == apart_only
