"""Compactions and loads at the same moment: one commits, the others report a conflict and change nothing."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.compaction.operations.fold import fold
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.errors import Conflict
from siltstone.spark.connect_server import ConnectServer
from tests.support.actors import STOP, apply, make, open_dataset, seen_rows, wait_for
from tests.support.children import Child, Worker
from tests.support.internals import store_of

ACTORS = "tests.support.actors"


def start(function: str, *, remote: str = "", **arguments: object) -> Child:
    return Child(f"{ACTORS}:{function}", arguments, remote=remote)


def write_source(path: Path, writer: int, keys: range) -> dict[str, list[int]]:
    schema = pa.schema([("id", pa.string()), ("writer", pa.int64()), ("batch", pa.int64())])
    expected = {f"k-{key:03d}": [writer, key] for key in keys}
    rows = [{"id": name, "writer": writer, "batch": key} for name, (_, key) in expected.items()]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return expected


@pytest.mark.spark
def test_of_two_folds_of_the_same_changes_one_commits_and_the_other_reports_a_conflict(
    lake_path: Path, tmp_path: Path, worker: Worker, connect_server: ConnectServer
):
    make(str(lake_path))
    dataset = open_dataset(str(lake_path))
    log: list[list[Any]] = []
    for writer in range(3):
        rows = [{"id": f"k-{key}", "writer": writer, "batch": key} for key in range(writer, 10)]
        log.append([dataset.upsert(rows).sequence, "U", rows])
        if writer == 0:
            worker.call(f"{ACTORS}:compact_once", path=str(lake_path))
    log.append([dataset.tombstone(["k-9"]).sequence, "D", ["k-9"]])
    folds = [
        start(
            "compact_together", remote=connect_server.address, path=str(lake_path), signals=str(tmp_path), number=number
        )
        for number in range(2)
    ]
    for number in range(2):
        wait_for(tmp_path / f"planned-{number}")
    late = [{"id": "k-0", "writer": 9, "batch": 9}, {"id": "late", "writer": 9, "batch": 9}]
    log.append([dataset.upsert(late).sequence, "U", late])  # after both plans: no fold may include or lose it
    (tmp_path / "go").touch()
    ends = [fold.value() for fold in folds]

    assert sorted(str(end["error"]) for end in ends) == ["Conflict", "None"]
    [report] = [end["report"] for end in ends if end["report"]]
    assert (report["base_rows"], report["final_rows"], report["rows_dropped_by_tombstones"]) == (10, 9, 1)
    status = dataset.status()
    assert (status.sequence, status.watermark, status.rows_in_base, status.backlog_batches) == (5, 4, 9, 1)
    assert seen_rows(dataset.to_arrow().to_pylist()) == apply(log)
    worker.call(f"{ACTORS}:compact_once", path=str(lake_path), purge=True)
    assert seen_rows(dataset.to_arrow().to_pylist()) == apply(log)
    assert dataset.status().unreferenced_files == 0


@dataclass(frozen=True, kw_only=True)
class OvertakenStore(Store):
    """A store that runs an action right after each snapshot."""

    overtake: Callable[[], object]

    def snapshot(self) -> Snapshot:
        """Return a snapshot that is out of date when it is used."""
        taken = super().snapshot()
        self.overtake()
        return taken


@pytest.mark.spark
def test_a_fold_whose_files_a_purge_deleted_after_its_snapshot_reports_a_conflict(lake_path: Path, worker: Worker):
    make(str(lake_path))
    dataset = open_dataset(str(lake_path))
    dataset.upsert([{"id": "a", "writer": 1, "batch": 1}])

    def purge() -> None:
        worker.call(f"{ACTORS}:compact_once", path=str(lake_path), purge=True)

    parts = {part.name: getattr(store_of(dataset), part.name) for part in fields(Store) if part.init}
    no_session: Any = None
    with pytest.raises(Conflict):
        fold(no_session, OvertakenStore(**parts, overtake=purge))
    status = dataset.status()
    assert (status.rows_in_base, status.watermark, status.unreferenced_files) == (1, 1, 0)


@pytest.mark.spark
def test_of_two_first_loads_one_becomes_base_and_the_other_a_change_batch_and_an_upsert_outlives_both(
    lake_path: Path, tmp_path: Path, worker: Worker, connect_server: ConnectServer
):
    make(str(lake_path))
    sources = [
        write_source(tmp_path / f"{number}.parquet", number, keys)
        for number, keys in enumerate((range(10), range(5, 15)))
    ]
    loads = [
        start(
            "ingest_together",
            remote=connect_server.address,
            path=str(lake_path),
            source=str(tmp_path / f"{number}.parquet"),
            signals=str(tmp_path),
            number=number,
        )
        for number in range(2)
    ]
    for number in range(2):
        wait_for(tmp_path / f"written-{number}")
    dataset = open_dataset(str(lake_path))
    upserted = [{"id": "k-001", "writer": 7, "batch": 7}, {"id": "fresh", "writer": 7, "batch": 7}]
    assert dataset.upsert(upserted).sequence == 1
    (tmp_path / "go").touch()
    ends = [load.value() for load in loads]

    [first] = [number for number, end in enumerate(ends) if end["first_load"]]
    loser = 1 - first
    assert ends[loser]["sequence"] == 2
    expected = sources[first] | {row["id"]: [7, 7] for row in upserted} | sources[loser]
    assert seen_rows(dataset.to_arrow().to_pylist()) == expected
    report = worker.call(f"{ACTORS}:compact_once", path=str(lake_path), purge=True)
    assert (report["base_rows"], report["change_rows"], report["final_rows"]) == (10, 12, len(expected))
    assert seen_rows(dataset.to_arrow().to_pylist()) == expected
    assert dataset.status().unreferenced_files == 0


@pytest.mark.spark
def test_readers_see_every_acknowledged_write_and_no_wrong_answer_during_folds_and_purges(
    lake_path: Path, tmp_path: Path, connect_server: ConnectServer
):
    make(str(lake_path))
    shared = {"path": str(lake_path), "signals": str(tmp_path)}
    remote = connect_server.address
    reader = start("read_until_stopped", **shared)
    spark_reader = start("read_on_spark_until_stopped", remote=remote, **shared)
    compactor = start("compact_until_stopped", remote=remote, purge_every=2, **shared)
    wait_for(tmp_path / "folded")
    writer = start("write_counting", batches=120, **shared)
    log = writer.value()
    wait_for(tmp_path / "read-on-spark")
    (tmp_path / STOP).touch()
    counts = compactor.value()
    assert counts["folds"] >= 2
    histories = [apply(log[:length]) for length in range(len(log) + 1)]

    readings, on_spark = reader.value(), spark_reader.value()
    assert len(readings) > 10
    assert on_spark
    for before, rows, after in [*readings, *on_spark]:
        # A write may be visible before it is counted: it is acknowledged first.
        assert rows in histories[before : after + 2], f"a reading after {before} writes is no state of the dataset"
