"""Jobs in a worker: results and errors; a failed job does not stop the others."""

import hashlib
import resource
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, Lake
from siltstone.compaction.execution.cycle_runner import run_cycle
from siltstone.compaction.execution.worker_main import session_members
from siltstone.compaction.execution.worker_process import WorkerProcess
from siltstone.compaction.operations.cluster import whole_base
from siltstone.compaction.planning.model import Plan
from siltstone.model.columns import APP_EPOCH, PERIOD
from siltstone.model.reports import JobResult
from tests.jobs.conftest import OpenLake
from tests.support.faulty_worker import arrange
from tests.support.internals import idle_workers, pool_of, store_of, stores_of
from tests.support.roll_ups import AT, NAME, add_files, base_files, leftovers, make_log, numbers

pytestmark = pytest.mark.spark


def roll_up(lake: Lake, *names: str) -> list[JobResult]:
    return list(lake.run_cycle(list(names) or None, only=["daily"], force=True))


def test_a_worker_rolls_up_and_reports_the_hash_of_each_file(open_lake: OpenLake) -> None:
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


def test_the_worker_is_reused_for_the_next_job(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=2)
    started = pool_of(lake).started
    assert [one.outcome for one in roll_up(lake)] == ["done"]
    log.append([{"at": AT, "visitor": "V-9", "n": 9999}])
    assert [one.outcome for one in lake.run_cycle(only=["fold"], force=True)] == ["done"]
    assert pool_of(lake).started <= started + 1
    assert numbers(log)[9999] == 1


def test_a_million_rows_are_rewritten_without_passing_the_driver(open_lake: OpenLake) -> None:
    lake = open_lake()
    log = make_log(lake, files=10, rows=100_000, width=8)
    (done,) = roll_up(lake)
    assert (done.outcome, done.error) == ("done", None)
    assert sum(output.rows for output in done.outputs) == 1_000_000
    assert {file.partition[PERIOD] for file in store_of(log).snapshot().base.files} == {"2026-11-01"}
    assert len(log.to_arrow().column("n").unique()) == 1_000_000
    z_ordered = cluster(lake, NAME)
    assert (z_ordered.outcome, z_ordered.error) == ("done", None)
    assert len(log.to_arrow().column("n").unique()) == 1_000_000


def cluster(lake: Lake, name: str) -> JobResult:
    """Cluster a log of one period; unlike a roll-up, the JVM itself does the work."""
    jobs = tuple(whole_base(stores_of(lake)(name)))
    (done,) = run_cycle(Plan(cycle=1, budget_bytes=0, jobs=jobs, left_out=()), lake.maintenance.runner())
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
    damaged = {path.relative_to(store_of(log).base.path).as_posix() for path in (cut, garbage, flipped)}
    assert set(done.corrupt) == damaged
    assert done.error is not None
    assert all(path.name in done.error for path in (cut, garbage, flipped))
    assert done.report is not None
    assert (done.report["files_removed"], done.report["rows"]) == (5, 10_000)
    live = {file.path for file in store_of(log).snapshot().base.files}
    assert damaged < live
    assert len(live) == 4
    assert all((store_of(log).base.path / path).exists() for path in damaged)


def test_a_fold_of_a_change_file_that_cannot_be_read_is_reported_and_the_other_datasets_continue(
    open_lake: OpenLake,
) -> None:
    lake = open_lake(max_jobs=1)
    broken, sound = make_log(lake, files=0, name="web.eu.broken"), make_log(lake, files=0, name="web.eu.sound")
    for log in (broken, sound):
        log.append([{"at": AT, "visitor": "V-1", "n": 1}])
    (change,) = (file for file in store_of(broken).snapshot().unfolded)
    (store_of(broken).changes.path / change.path).write_bytes(b"no Parquet at all")
    done = {one.dataset: one for one in lake.run_cycle(only=["fold"], force=True)}
    assert done["web.eu.sound"].outcome == "done"
    assert (done["web.eu.broken"].outcome, done["web.eu.broken"].failure) == ("failed", "corrupt_input")
    assert (done["web.eu.broken"].error_kind, done["web.eu.broken"].error_reason) == ("corruption", "damaged_file")
    assert change.path.rsplit("/", 1)[-1] in (done["web.eu.broken"].error or "")
    assert (store_of(broken).changes.path / change.path).exists()


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
        (done,) = run_cycle(lake.plan(only=[kind], force=True), lake.maintenance.runner(), epoch=epoch)
        return done

    assert cycle("fold", 5).outcome == "done"
    assert store_of(log).base.pin(APP_EPOCH).transactions[APP_EPOCH] == 5
    late = cycle("daily", 4)
    assert (late.outcome, late.failure, late.attempts) == ("failed", "fenced", 1)
    assert cycle("daily", 6).outcome == "done"
    assert store_of(log).base.pin(APP_EPOCH).transactions[APP_EPOCH] == 6
    assert numbers(log) == dict.fromkeys([*range(40), 9999], 1)


@contextmanager
def small_files_only(worker: WorkerProcess, size_bytes: int = 64 * 1024) -> Iterator[None]:
    """Limit the size of every file of a worker, its JVM and the JVM's Python, as on a disk that is nearly full."""
    members = session_members(worker.pid)
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in members}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        for pid in session_members(worker.pid):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before.get(pid, (resource.RLIM_INFINITY,) * 2))


def people(lake: Lake, name: str, rows: int) -> Dataset:
    """A keyed dataset with changes that are not folded."""
    made = lake.create(name, "id STRING NOT NULL, note STRING", key="id")
    made.upsert([{"id": f"P-{n}", "note": secrets.token_hex(8)} for n in range(rows)])
    return made


def cycle_with_clustering(lake: Lake, *names: str) -> dict[tuple[str, str], JobResult]:
    """Fold, roll up and cluster these logs in one cycle; return the outcome by kind and dataset."""
    plan = lake.plan(only=["fold", "daily"], force=True)
    clusterings = [job for name in names for job in whole_base(stores_of(lake)(name))]
    done = run_cycle(replace(plan, jobs=(*clusterings, *plan.jobs)), lake.maintenance.runner())
    return {(one.kind, one.dataset): one for one in done}


def test_a_full_disk_is_reported_changes_nothing_and_keeps_the_worker(open_lake: OpenLake) -> None:
    lake = open_lake(max_jobs=1)
    log = make_log(lake, files=4, rows=20_000)
    keyed = people(lake, "web.eu.people", 20_000)
    noted = lake.create("web.eu.noted", "at TIMESTAMP NOT NULL, note STRING", time="at")
    noted.append([{"at": AT, "note": secrets.token_hex(8)} for _ in range(20_000)])
    small = make_log(lake, files=2, name="web.eu.small")
    make_log(lake, files=2, name="web.eu.first")
    assert cluster(lake, "web.eu.first").outcome == "done"  # the JVM has started and has written
    pool = pool_of(lake)
    before = {name: state(lake, name) for name in (NAME, "web.eu.people", "web.eu.noted")}
    with small_files_only(idle_workers(pool)[0]):
        done = cycle_with_clustering(lake, NAME)
    assert done.pop(("roll_up", "web.eu.small")).outcome == "done", "the rest of the cycle goes on"
    assert len(base_files(small)) == 1
    assert done.keys() == {
        ("cluster", NAME),
        ("roll_up", NAME),
        ("fold", "web.eu.people"),
        ("fold", "web.eu.noted"),
    }
    for one in done.values():
        assert (one.outcome, one.failure, one.attempts) == ("failed", "disk_full", 1), one
        assert (one.error_kind, one.error_reason) == ("unavailable", "disk_full"), one
    assert {name: state(lake, name) for name in before} == before
    for dataset in (log, keyed, noted):
        assert leftovers(dataset) == 0, "what was written is removed at once: the disk is full"
    started = pool.started
    again = lake.run_cycle(only=["fold", "daily"], force=True)
    assert [one.outcome for one in again] == ["done"] * 3
    assert pool.started == started
    assert numbers(log) == dict.fromkeys(range(80_000), 1)


def state(lake: Lake, name: str) -> tuple[int, int, int]:
    """The versions of a dataset's tables, and its rows."""
    snapshot = stores_of(lake)(name).snapshot()
    return snapshot.base.version, snapshot.changes.version, lake.dataset(name).to_arrow().num_rows


def test_jobs_without_write_permission_report_it_change_nothing_and_stop_no_other(open_lake: OpenLake) -> None:
    lake = open_lake(max_jobs=1)
    log, names = make_log(lake, files=4, name="den.ied.clicks"), ["den.ied.clicks", "den.ied.people"]
    log.append([{"at": AT, "visitor": "V-9", "n": 9999}])
    people(lake, "den.ied.people", 3)
    make_log(lake, files=2)
    denied = lake.path / "den"
    before = {name: state(lake, name) for name in names}
    files = sorted(map(str, denied.rglob("*")))
    folders = [path for path in [denied, *denied.rglob("*")] if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    arrange(lake.path, without_rights="den.")
    try:
        done = cycle_with_clustering(lake, "den.ied.clicks")
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.pop(("roll_up", NAME)).outcome == "done", "the rest of the cycle goes on"
    assert done.keys() == {(kind, names[0]) for kind in ("cluster", "roll_up", "fold")} | {("fold", names[1])}
    for one in done.values():
        assert (one.outcome, one.failure, one.attempts) == ("failed", "permission_denied", 1), one
        assert (one.error_kind, one.error_reason) == ("unavailable", "permission_denied"), one
        assert one.dataset in (one.error or "")
    assert {name: state(lake, name) for name in names} == before
    assert sorted(map(str, denied.rglob("*"))) == files
    arrange(lake.path)
    assert {one.outcome for one in lake.run_cycle(only=["fold", "daily"], force=True)} == {"done"}
    assert numbers(log) == dict.fromkeys([*range(40), 9999], 1)
