"""`silt compactor` with real folds: killed and stopped in the middle of one, and commands beside it."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.config import Settings
from siltstone.lake import Lake
from siltstone.spark.connect_server import ConnectServer
from tests.e2e.silt import process
from tests.support.compactors import EVERY_MINUTE, WAIT_SECONDS, CompactorProcess, overdue
from tests.support.internals import store_of

NAME = "crm.sales.people"
ROWS = 20_000

pytestmark = pytest.mark.spark


class Bench:
    """A lake with rows in base and in changes, and compactors that fold on the Connect server."""

    def __init__(self, root: Path, remote: str) -> None:
        self.root = root
        self.environment = {"SILT_SPARK_REMOTE": remote, "SILT_FOLD_BATCHES": "1"}
        self.lake = Lake.open(root, settings=Settings(durable=False, squash_files=0))
        self.made: list[CompactorProcess] = []
        dataset = self.lake.create(NAME, "id BIGINT NOT NULL, note STRING", key="id")
        self.rows = dict.fromkeys(range(ROWS), "first")
        for batch in range(4):
            chosen = range(batch * ROWS // 4, (batch + 1) * ROWS // 4)
            dataset.upsert(pa.table({"id": list(chosen), "note": ["first"] * len(chosen)}))
        dataset.tombstone([0, 1, 2])
        for number in (0, 1, 2):
            del self.rows[number]

    def compactor(self, *options: str, **environment: str) -> CompactorProcess:
        self.made.append(CompactorProcess(self.root, *options, **self.environment, **environment))
        return self.made[-1]

    def check(self, *, folded: bool) -> None:
        """Check that every row exists once, and whether it is in base."""
        found = self.lake.dataset(NAME).to_arrow()
        assert found.num_rows == len(self.rows)
        assert dict(zip(found["id"].to_pylist(), found["note"].to_pylist(), strict=True)) == self.rows
        store = store_of(self.lake.dataset(NAME))
        snapshot = store.snapshot()
        assert (snapshot.watermark == snapshot.sequence) == folded
        if folded:
            in_base = [pq.read_table(store.base.path / file.path, columns=["id"]) for file in snapshot.base.files]
            assert sorted(pa.concat_tables(in_base)["id"].to_pylist()) == sorted(self.rows)

    def fold_when_resumed(self) -> dict[str, str]:
        """Make a fold due when the compactors are resumed; return their environment."""
        overdue(self.lake, "fold")
        return {"SILT_FOLD_CRON": EVERY_MINUTE}

    def overview(self) -> dict[str, Any]:
        return self.lake.compactor_status()


@pytest.fixture
def bench(lake_path: Path, connect_server: ConnectServer) -> Iterator[Bench]:
    found = Bench(lake_path, connect_server.address)
    yield found
    for one in found.made:
        one.end(signal.SIGKILL)


def until(condition: Callable[[], Any], *, seconds: float = WAIT_SECONDS) -> Any:  # noqa: ANN401
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def written(base: Path) -> bool:
    """True if a job has written into base, committed or not. The check is cheap, as the job needs the processor."""
    try:
        return any(base.rglob("*.parquet"))
    except FileNotFoundError:  # Spark has just moved its output
        return True


@pytest.mark.parametrize("way", ["kill -9", pytest.param("at a fail point", marks=pytest.mark.deep)])
def test_a_compactor_that_dies_in_a_fold_is_replaced_and_every_row_is_there_once(bench: Bench, way: str):
    due = bench.fold_when_resumed()
    crash = {"SILT_FAILPOINT": "fold.after_write:kill"} if way == "at a fail point" else {}
    first = bench.compactor(**due, **crash)
    first.wait_for("lease_acquired")
    second = bench.compactor(**due)
    assert f"process {first.pid} on " in second.wait_for("standing_by")["because"]
    assert bench.lake.resume_compactor()
    if way == "kill -9":
        first.wait_for("job_began")
        base = bench.lake.dataset(NAME).path / "base"
        until(lambda: written(base))
        first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    landed = store_of(bench.lake.dataset(NAME)).snapshot().watermark > 0  # on a busy machine the signal may arrive late
    if not landed:
        assert second.wait_for("cycle_ended")["failed"] == 0
    bench.check(folded=True)
    assert second.end() == 0
    epoch = store_of(bench.lake.dataset(NAME)).snapshot().epoch
    assert epoch == (1 if landed else 2), "a fold has the epoch of its process's lease"
    assert not bench.lake.dataset(NAME).vacuum(dry_run=True).files, "files of the dead process were swept"


def test_commands_fold_and_purge_beside_a_compactor(bench: Bench):
    first = bench.compactor()
    first.wait_for("lease_acquired")
    done = process("--lake", bench.root, "compact", "--cycle", "--only", "fold", "--force", **bench.environment)
    assert done.code == 0, done.err
    assert any(f"fold {NAME}" in line and "5 batches" in line for line in done.out.splitlines()), done.out
    assert done.err.splitlines()[-1] == "1 job."
    bench.check(folded=True)
    bench.lake.dataset(NAME).tombstone([3])
    del bench.rows[3]
    purged = process("--lake", bench.root, "--json", "compact", NAME, "--purge", "--yes", **bench.environment)
    assert purged.code == 0, purged.err
    assert (purged.data["purged"], purged.data["final_rows"]) == (True, len(bench.rows))
    bench.check(folded=True)
    assert store_of(bench.lake.dataset(NAME)).snapshot().epoch == 2, "above that of the lease"
    bench.lake.dataset(NAME).tombstone([4])
    del bench.rows[4]
    again = process("--lake", bench.root, "--json", "compact", NAME, **bench.environment)
    assert (again.code, again.data["rows_dropped_by_tombstones"]) == (0, 1), again.err
    bench.check(folded=True)
    assert first.end() == 0


@pytest.mark.parametrize(
    ("number", "patience"), [(signal.SIGINT, "0"), pytest.param(signal.SIGTERM, "30", marks=pytest.mark.deep)]
)
def test_a_compactor_stopped_in_a_fold_finishes_or_ends_it_and_nothing_is_lost(
    bench: Bench, number: signal.Signals, patience: str
):
    first = bench.compactor(**bench.fold_when_resumed(), SILT_STOP_SECONDS=patience)
    first.wait_for("lease_acquired")
    assert bench.lake.resume_compactor()
    first.wait_for("job_began")
    first.send(number)
    assert first.wait() == 0, first.errors
    assert first.names()[-1] == "stopped"
    assert not bench.overview()["running"], "the lease is free"
    bench.check(folded=store_of(bench.lake.dataset(NAME)).snapshot().watermark > 0)
    second = bench.compactor("--once", "--only", "fold")
    assert second.wait() == 0
    bench.check(folded=True)
