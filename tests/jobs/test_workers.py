"""Jobs in a worker: what they do, what they meet, and that one that fails does not stop the others."""

import hashlib
import resource
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from siltstone import Lake
from siltstone.compaction.candidates import Plan
from siltstone.compaction.cluster import whole_base
from siltstone.compaction.cycle import run_cycle
from siltstone.model.columns import APP_EPOCH, PERIOD
from siltstone.model.results import JobResult
from tests.jobs.conftest import OpenLake, pool_of
from tests.support.rolled import AT, NAME, add_files, base_files, leftovers, make_log, numbers

pytestmark = pytest.mark.spark


def roll_up(lake: Lake, *names: str) -> list[JobResult]:
    return list(lake.run_cycle(list(names) or None, only=["daily"], force=True))


def test_a_worker_rolls_up_and_tells_the_hash_of_each_file(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=6)
    (done,) = roll_up(lake)
    assert (done.outcome, done.error, done.attempts, done.failed_attempts) == ("done", None, 1, ())
    assert done.report is not None
    assert (done.report["files_removed"], done.report["files_added"], done.report["rows"]) == (6, 1, 60)
    assert numbers(log) == dict.fromkeys(range(60), 1)
    (output,), (path,) = done.outputs, base_files(log)
    assert str(path).endswith(output.path)
    assert output.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (output.rows, output.bytes) == (60, path.stat().st_size)
    assert pq.read_table(path, partitioning=None).column("n").to_pylist() == list(range(60))
    assert leftovers(log) == 6, "what was removed stays for readers of older versions"


def test_the_worker_is_kept_for_the_next_job(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=2)
    started = pool_of(lake).started
    assert [one.outcome for one in roll_up(lake)] == ["done"]
    log.append([{"at": AT, "visitor": "V-9", "n": 9999}])
    assert [one.outcome for one in lake.run_cycle(only=["fold"], force=True)] == ["done"]
    assert pool_of(lake).started <= started + 1
    assert numbers(log)[9999] == 1


def test_a_million_rows_pass_no_driver(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=10, rows=100_000, width=8)
    (done,) = roll_up(lake)
    assert (done.outcome, done.error) == ("done", None)
    assert sum(output.rows for output in done.outputs) == 1_000_000
    assert {file.partition[PERIOD] for file in log._store.snapshot().base.files} == {"2026-11-01"}
    assert len(log.to_arrow().column("n").unique()) == 1_000_000
    z_ordered = cluster(lake, NAME)
    assert (z_ordered.outcome, z_ordered.error) == ("done", None)
    assert len(log.to_arrow().column("n").unique()) == 1_000_000


def cluster(lake: Lake, name: str) -> JobResult:
    """Cluster a log of one period; unlike a roll-up that is done by the JVM itself."""
    jobs = tuple(whole_base(lake._store(name)))
    (done,) = run_cycle(Plan(cycle=1, budget_bytes=0, jobs=jobs, left_out=()), lake.runner())
    return done


def test_files_that_cannot_be_read_stay_and_the_others_are_rolled_up(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=8, rows=2000)
    cut, garbage, flipped = sorted(base_files(log))[:3]
    cut.write_bytes(cut.read_bytes()[:-100])
    garbage.write_bytes(b"no Parquet at all")
    data = bytearray(flipped.read_bytes())
    data[60:160] = bytes(100)
    flipped.write_bytes(data)
    (done,) = roll_up(lake)
    assert (done.outcome, done.failure) == ("partly", "corrupt_input"), done
    damaged = {path.relative_to(log._store.base.path).as_posix() for path in (cut, garbage, flipped)}
    assert set(done.corrupt) == damaged
    assert done.error is not None
    assert "stay in place" in done.error
    assert done.report is not None
    assert (done.report["files_removed"], done.report["rows"]) == (5, 10_000)
    live = {file.path for file in log._store.snapshot().base.files}
    assert damaged < live
    assert len(live) == 4
    assert all((log._store.base.path / path).exists() for path in damaged)


def test_a_fold_of_a_change_file_that_cannot_be_read_is_reported_and_the_other_datasets_go_on(
    open_lake: OpenLake,
) -> None:
    lake = open_lake(max_jobs=1)
    broken, sound = make_log(lake, files=0, name="web.eu.broken"), make_log(lake, files=0, name="web.eu.sound")
    for log in (broken, sound):
        log.append([{"at": AT, "visitor": "V-1", "n": 1}])
    (change,) = (file for file in broken._store.snapshot().unfolded)
    (broken._store.changes.path / change.path).write_bytes(b"no Parquet at all")
    done = {one.dataset: one for one in lake.run_cycle(only=["fold"], force=True)}
    assert done["web.eu.sound"].outcome == "done"
    assert (done["web.eu.broken"].outcome, done["web.eu.broken"].failure) == ("failed", "corrupt_input")
    assert change.path.rsplit("/", 1)[-1] in (done["web.eu.broken"].error or "")
    assert (broken._store.changes.path / change.path).exists()


def test_files_from_before_and_after_a_change_of_columns_become_one(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=3)
    log.alter(add="region STRING", defaults={"region": "eu"}, widen={"n": "BIGINT"})
    add_files(log, files=3, start=2**33)
    before = sorted(map(str, lake.dataset(NAME).to_arrow().to_pylist()))
    (done,) = roll_up(lake)
    assert (done.outcome, done.error) == ("done", None)
    after = lake.dataset(NAME).to_arrow()
    assert sorted(map(str, after.to_pylist())) == before
    assert after.column("region").to_pylist().count("eu") == 30
    assert len(base_files(log)) == 1


def test_commits_carry_the_epoch_of_the_lease_and_a_lower_one_is_fenced(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=4)
    log.append([{"at": AT, "visitor": "V-9", "n": 9999}])

    def cycle(kind: str, epoch: int) -> JobResult:
        (done,) = run_cycle(lake.plan(only=[kind], force=True), lake.runner(), epoch=epoch)
        return done

    assert cycle("fold", 5).outcome == "done"
    assert log._store.base.pin(APP_EPOCH).transactions[APP_EPOCH] == 5
    late = cycle("daily", 4)
    assert (late.outcome, late.failure, late.attempts) == ("failed", "fenced", 1)
    assert cycle("daily", 6).outcome == "done"
    assert log._store.base.pin(APP_EPOCH).transactions[APP_EPOCH] == 6
    assert numbers(log) == dict.fromkeys([*range(40), 9999], 1)


def jvm_of(worker: int) -> int:
    """Return the JVM among a worker's children."""
    listed = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    found = [int(child) for child in listed if "java" in Path(f"/proc/{child}/comm").read_text()]
    return found[0]


def test_a_full_disk_is_told_changes_nothing_and_does_not_cost_the_worker(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=4, rows=20_000)
    make_log(lake, files=2, name="web.eu.small")
    assert roll_up(lake, "web.eu.small")[0].outcome == "done"  # the JVM is up
    pool = pool_of(lake)
    jvm = jvm_of(pool._idle[0].pid)
    before = set(base_files(log))
    unlimited = resource.prlimit(jvm, resource.RLIMIT_FSIZE, (64 * 1024, resource.RLIM_INFINITY))
    try:
        done = cluster(lake, NAME)
    finally:
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, unlimited)
    assert (done.outcome, done.failure, done.attempts) == ("failed", "disk_full", 1), done
    assert set(base_files(log)) == before
    assert leftovers(log) == 0, "what was written is removed at once: the disk is full"
    started = pool.started
    assert roll_up(lake, NAME)[0].outcome == "done"
    assert pool.started == started
    assert numbers(log) == dict.fromkeys(range(80_000), 1)
