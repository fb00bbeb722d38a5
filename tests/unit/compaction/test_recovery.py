"""Recovery: the commit log alone decides whether jobs of dead cycles are completed or failed; damage is reported."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from siltstone import Lake
from siltstone.compaction.execution.job import InlineRunner, Job
from siltstone.compaction.journal import journal as journal_module
from siltstone.compaction.journal import owner_liveness
from siltstone.compaction.journal.journal import Journal
from siltstone.compaction.journal.records import Owner, cycle_id
from siltstone.compaction.journal.recovery import RecoveryProblem, RecoveryReport
from siltstone.compaction.operations.commit import job_info
from siltstone.compaction.planning.model import FileEntry, JobKind, JobSpec, Plan
from siltstone.config import Role, Settings
from siltstone.coordination import leases
from siltstone.dataset.dataset_folder import Marker, write_marker
from siltstone.delta.table import ParentVersion
from siltstone.errors import Corruption, InvalidRequest
from siltstone.eventlog.events import BuildRequestEvent, BuildStatus, JobEvent, JobStatus, PartitionStatus
from siltstone.model.columns import APP_FOLD, FOLDED_BYTES, FOLDED_FILES
from siltstone.model.commit import Commit, CommitKind
from tests.support.clocks import FakeClock
from tests.support.folds import stage
from tests.support.internals import (
    clock_of,
    compactor_of,
    journal_liveness_lock,
    journal_of,
    layout_of,
    release_liveness_lock,
    stores_of,
)
from tests.support.leasing import leases_of, taken
from tests.support.refusals import figures

NAME = "shop.web.people"
OTHER = "shop.web.others"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lake(tmp_path: Path, clock: FakeClock) -> Iterator[Lake]:
    with opened(tmp_path, clock) as made:
        for name in (NAME, OTHER):
            dataset = made.create(name, "id STRING NOT NULL, note STRING", key="id")
            for number in range(3):
                dataset.upsert([{"id": f"p{number}", "note": "n"}])
        yield made


def opened(tmp_path: Path, clock: FakeClock) -> Lake:
    return Lake.open(tmp_path / "lake", settings=Settings(durable=False), clock=clock)


def begun(
    lake: Lake,
    *,
    run: bool = True,
    dies: bool = True,
    names: tuple[str, ...] = (NAME, OTHER),
    epoch: int | None = None,
) -> list[Job]:
    """Begin a cycle that squashes datasets, optionally do the first job, and die."""
    journal = Journal(layout_of(lake), settings=lake.settings, clock=clock_of(lake), store=stores_of(lake))
    plan = lake.plan(names, only=["squash"], force=True)
    jobs = [Job.of(planned, cycle=plan.cycle, epoch=epoch) for planned in plan.jobs]
    journal.cycle_began(plan, jobs)
    assert journal.trouble is None
    journal.job_began(jobs[0])
    if run:
        InlineRunner(compactor_of(lake), stores_of(lake)).run(jobs[0])
    if dies:
        end_owner(journal)
    return jobs


def end_owner(journal: Journal) -> None:
    """Release the liveness lock as a crash does."""
    release_liveness_lock(journal_liveness_lock(journal))


def status_of(lake: Lake, job: Job) -> JobStatus:
    return next(record.status for record in lake.jobs() if record.job == job.id)


# ---- completed or failed ---------------------------------------------------------------------------------------------


def test_a_job_that_had_committed_is_completed_and_one_that_had_not_is_failed(lake: Lake) -> None:
    first, second = begun(lake)
    report = lake.recover()
    assert (report.completed, report.failed, report.running) == ((first.id,), (second.id,), ())
    assert (status_of(lake, first), status_of(lake, second)) == (JobStatus.COMPLETED, JobStatus.FAILED)
    done = next(record for record in lake.jobs() if record.job == first.id)
    assert (done.recovered, done.done.files_before, done.done.files_after, done.done.rows) == (True, 3, 1, 3)
    (cycle,) = lake.history()
    assert (cycle.status, figures(cycle.message)) == ("failed", "1 1")
    log = journal_of(lake).log()
    assert log is not None
    assert log.partition(first.spec.dataset).status is PartitionStatus.AVAILABLE
    assert log.partition(second.spec.dataset).status is PartitionStatus.FAILED
    assert lake.totals().all.recovered == 2
    assert lake.recover() == RecoveryReport()


def test_a_cycle_of_which_all_was_done_is_completed(lake: Lake) -> None:
    begun(lake, names=(NAME,))
    lake.recover()
    assert lake.history()[0].status == "completed"


def _given(commit: Commit, _parent: ParentVersion) -> Commit:
    return commit


def died_in_a_split_fold(lake: Lake, *, parts: int) -> Job:
    """Begin a fold of three batches, which is split; commit some of its two parts, as a worker does, and die."""
    journal = Journal(layout_of(lake), settings=lake.settings, clock=clock_of(lake), store=stores_of(lake))
    plan = lake.plan((NAME,), only=["fold"], force=True)
    job = Job.of(plan.jobs[0], cycle=plan.cycle, epoch=None)
    journal.cycle_began(plan, [job])
    journal.job_began(job)
    store, rows = stores_of(lake)(NAME), lake.dataset(NAME).to_arrow().sort_by("id")
    for number, (low, high) in ((1, (0, 2)), (2, (2, 3)))[:parts]:
        file = stage(store, store.base, rows.slice(low, high - low), {})
        folded = {FOLDED_FILES: str(high - low), FOLDED_BYTES: "7"}
        commit = Commit(
            kind=CommitKind.FOLD,
            plan_version=store.base.version(),
            adds=(file,),
            transactions={APP_FOLD: high},
            info=job_info(f"{job.id}.{number}") | folded,
        )
        store.base.commit(partial(_given, commit))
    end_owner(journal)
    return job


def test_a_split_fold_with_only_its_first_part_committed_records_the_numbers_of_that_part(lake: Lake) -> None:
    job = died_in_a_split_fold(lake, parts=1)
    report = lake.recover()
    assert (report.completed, report.failed, figures(report.summary())) == ((), (job.id,), "1")
    (record,) = lake.jobs()
    assert (record.status, record.recovered) == (JobStatus.FAILED, True)
    assert figures(record.message).startswith("2 1")
    assert (record.done.bytes_folded, record.done.rows) == (7, 2), "the effect of the part is recorded"
    (cycle,) = lake.history()
    assert (cycle.status, figures(cycle.message)) == ("failed", "0 1")
    log = journal_of(lake).log()
    assert log is not None
    assert log.partition(NAME).status is PartitionStatus.FAILED
    (left,) = lake.plan((NAME,), only=["fold"], force=True).jobs
    assert [file.order for file in left.files] == [3], "the rest is free again"
    assert sorted(lake.dataset(NAME).to_arrow()["id"].to_pylist()) == ["p0", "p1", "p2"]
    assert lake.recover() == RecoveryReport()


def test_a_split_fold_with_its_last_part_committed_is_completed(lake: Lake) -> None:
    job = died_in_a_split_fold(lake, parts=2)
    report = lake.recover()
    assert (report.completed, report.failed) == ((job.id,), ())
    (record,) = lake.jobs()
    assert (record.status, record.done.files_after, record.done.rows) == (JobStatus.COMPLETED, 2, 3)
    assert lake.history()[0].status == "completed"


def test_the_files_of_a_failed_job_are_free_again_and_the_next_cycle_takes_them(lake: Lake) -> None:
    begun(lake, run=False)
    report = lake.run_cycle(only=["squash"], force=True)
    assert len(report.recovery.failed) == 2
    assert [result.error for result in report] == [None, None]
    assert report.cycle == 2


def test_the_files_of_a_live_owner_are_left_alone(lake: Lake) -> None:
    jobs = begun(lake, run=False, dies=False)
    report = lake.run_cycle(only=["squash"], force=True)
    assert len(report) == 0
    assert {one.job for one in report.recovery.running} == {job.id for job in jobs}
    assert report.recovery == RecoveryReport(running=report.recovery.running)
    reasons = {found.reason for found in lake.plan(only=["squash"], force=True).left_out}
    assert all(any(job.id in reason for job in jobs) for reason in reasons)
    assert len(reasons) == len(jobs)


def test_of_two_concurrent_recoveries_the_second_changes_nothing(lake: Lake, tmp_path: Path, clock: FakeClock) -> None:
    begun(lake)
    found = journal_of(lake).open_cycles()
    with opened(tmp_path, clock) as other:
        other.recover()
    journal_of(lake).open_cycles = lambda: found  # type: ignore[method-assign]
    assert lake.recover().completed == ()


def test_a_dropped_dataset_has_no_commit_and_its_job_is_failed(lake: Lake) -> None:
    (job,) = begun(lake, run=False, names=(NAME,))
    lake.drop(NAME)
    assert lake.recover().failed == (job.id,)


# ---- owners on other machines ----------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record new owners as processes of another machine."""
    monkeypatch.setattr(
        journal_module, "this_process", lambda owner: Owner(id=owner, machine="m", host="elsewhere", pid=os.getpid())
    )


@pytest.mark.usefixtures("elsewhere")
def test_an_owner_on_another_machine_is_dead_after_a_day_of_silence(lake: Lake, clock: FakeClock) -> None:
    jobs = begun(lake, run=False)
    assert len(lake.recover().running) == 2
    clock.pass_time(hours=25)
    assert set(lake.recover().failed) == {job.id for job in jobs}


@pytest.mark.usefixtures("elsewhere")
def test_an_owner_with_a_lower_epoch_is_dead(lake: Lake) -> None:
    journal = Journal(layout_of(lake), settings=lake.settings, clock=clock_of(lake))
    planned = JobSpec(kind=JobKind.VACUUM, lane="vacuum", dataset=NAME)
    journal.cycle_began(
        Plan(cycle=1, budget_bytes=1, jobs=(planned,), left_out=()), [Job(id="j", cycle=1, spec=planned, epoch=4)]
    )
    assert len(lake.recover(epoch=4).running) == 1
    assert lake.recover(epoch=5).failed == ("j",)


def test_a_hanging_owner_blocks_no_files_after_a_takeover_and_is_not_reported_dead(
    lake: Lake,
) -> None:
    journal = Journal(layout_of(lake), settings=lake.settings, clock=clock_of(lake), store=stores_of(lake))
    plan = lake.plan((NAME,), only=["squash"], force=True)
    jobs = [Job.of(planned, cycle=plan.cycle, epoch=4) for planned in plan.jobs]
    journal.cycle_began(plan, jobs)
    journal.job_began(jobs[0])
    assert [found.job for found in lake.recover(epoch=4).running] == [jobs[0].id]
    assert lake.recover(epoch=5) == RecoveryReport()
    report = lake.run_cycle((NAME,), only=["squash"], force=True, epoch=5)
    assert [result.outcome for result in report] == ["done"]
    assert status_of(lake, jobs[0]) is JobStatus.RUNNING, "it may still say itself how it ended"
    end_owner(journal)
    assert lake.recover(epoch=5).failed == (jobs[0].id,)


def test_a_cycle_of_a_live_owner_is_not_recovered_at_any_age(lake: Lake, clock: FakeClock) -> None:
    jobs = begun(lake, run=False, dies=False)
    clock.pass_time(days=8)
    report = lake.recover()
    assert {one.job for one in report.running} == {job.id for job in jobs}
    assert report == RecoveryReport(running=report.running)
    assert [entry.status for entry in lake.history()] == ["executing"]


@pytest.mark.usefixtures("elsewhere")
def test_a_cycle_of_a_remote_owner_that_renews_its_lease_is_not_recovered_at_any_age(
    lake: Lake, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        there.setattr(leases, "machine", lambda: "m")
        there.setattr(socket, "gethostname", lambda: "elsewhere")
        lease = taken(leases_of(lake.path, clock=clock))
    jobs = begun(lake, run=False, epoch=lease.epoch)
    for hours in (25, 24 * 8):
        clock.pass_time(hours=hours)
        lease.renew()
        report = lake.recover()
        assert {one.job for one in report.running} == {job.id for job in jobs}
        assert report == RecoveryReport(running=report.running)
    lease.advance(above=lease.epoch)
    lease.renew()
    assert len(lake.recover().running) == 2, "it has only raised its epoch"
    clock.pass_time(hours=25)
    assert set(lake.recover().failed) == {job.id for job in jobs}, "it is not renewed any more"


def begun_on(monkeypatch: pytest.MonkeyPatch, lake: Lake, *, installation: str) -> None:
    """Begin a cycle under another running kernel, with the host name of this machine, and die."""
    now = journal_module.this_process
    monkeypatch.setattr(owner_liveness, "installation", lambda: "this machine")
    monkeypatch.setattr(
        journal_module,
        "this_process",
        lambda owner: replace(now(owner), machine="another boot", installation=installation),
    )
    begun(lake, run=False)


def test_an_owner_from_before_a_restart_of_this_machine_is_dead(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    begun_on(monkeypatch, lake, installation="this machine")
    assert len(lake.recover().failed) == 2


@pytest.mark.parametrize("installation", ["another machine", ""])
def test_an_owner_on_another_machine_of_the_same_host_name_does_not_count_as_dead(
    lake: Lake, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, installation: str
) -> None:
    begun_on(monkeypatch, lake, installation=installation)
    report = lake.recover()
    assert (len(report.running), report) == (2, RecoveryReport(running=report.running))
    clock.pass_time(hours=25)
    assert len(lake.recover().failed) == 2


# ---- unreadable records ----------------------------------------------------------------------------------------------


def break_log(lake: Lake, name: str, content: bytes = b"{") -> bytes:
    path = max((lake.dataset(name).path / "changes" / "_delta_log").glob("*.json"))
    before = path.read_bytes()
    path.write_bytes(content)
    return before


TOO_DEEP = b"[" * 100_000
"""JSON nested so deeply that Python raises an error that no reader expects."""


@pytest.mark.parametrize("content", [b"{", TOO_DEEP], ids=["expected", "unexpected"])
def test_a_job_whose_log_cannot_be_read_is_reported_until_it_can(
    lake: Lake, tmp_path: Path, clock: FakeClock, content: bytes
) -> None:
    (job,) = begun(lake, names=(NAME,))
    before = break_log(lake, NAME, content)
    with opened(tmp_path, clock) as again:
        report = again.recover()
        assert (report.completed, report.failed) == ((), ())
        assert [one.job for one in report.running] == [job.id]
        assert {problem.subject for problem in report.problems} == {f"job {job.id}", f"dataset {NAME}"}
        assert again.history()[0].status == "executing"
    path = max((lake.dataset(NAME).path / "changes" / "_delta_log").glob("*.json"))
    path.write_bytes(before)
    with opened(tmp_path, clock) as again:
        assert again.recover().completed == (job.id,)


def test_a_job_whose_log_cannot_be_read_for_a_week_is_failed(lake: Lake, tmp_path: Path, clock: FakeClock) -> None:
    (job,) = begun(lake, names=(NAME,))
    break_log(lake, NAME)
    clock.pass_time(days=8)
    with opened(tmp_path, clock) as again:
        report = again.recover()
        assert (report.failed, report.running) == ((job.id,), ())
        assert (again.jobs()[0].status, again.jobs()[0].recovered) == (JobStatus.FAILED, True)
        assert again.recover().failed == ()


def test_a_record_that_cannot_be_read_is_reported_and_failed(lake: Lake) -> None:
    begun(lake, names=(NAME,))
    journal = journal_of(lake)
    build = journal.open_cycles()[0].build.build_request_id
    journal.append(build, [JobEvent(job_run_id="strange", job_label="x", status=JobStatus.SCHEDULED)])
    assert [problem.subject for problem in lake.unfinished_jobs().problems] == ["record of job strange"]
    report = lake.recover()
    assert (len(report.completed), report.failed) == (1, ("strange",))
    assert [problem.subject for problem in report.problems] == ["record of job strange"]
    assert journal.cycles(1)[0].status is BuildStatus.FAILED
    assert lake.recover() == RecoveryReport()


def test_a_cycle_of_which_no_record_can_be_read_is_failed_after_a_day_of_silence(lake: Lake, clock: FakeClock) -> None:
    build = [BuildRequestEvent(status=status) for status in (BuildStatus.RECEIVED, BuildStatus.PLANNING)]
    strange = JobEvent(job_run_id="strange", job_label="x", status=JobStatus.SCHEDULED)
    journal_of(lake).append(cycle_id(1, "ab12cd34"), [*build, strange])
    report = lake.recover()
    assert ([problem.subject for problem in report.problems], report.failed) == (["record of job strange"], ())
    clock.pass_time(hours=25)
    assert lake.recover().failed == ("strange",)
    assert journal_of(lake).cycles(1)[0].status is BuildStatus.FAILED


def test_an_unreadable_journal_does_not_count_as_an_empty_one(lake: Lake, tmp_path: Path, clock: FakeClock) -> None:
    begun(lake)
    max((lake.path / "_system" / "events" / "_delta_log").glob("*.json")).write_bytes(b"")
    with opened(tmp_path, clock) as again, pytest.raises(Corruption):
        again.recover()


# ---- sweeping --------------------------------------------------------------------------------------------------------


def test_files_of_dead_owners_are_swept_at_the_start_and_then_every_hour(lake: Lake, clock: FakeClock) -> None:
    stray = lake.dataset(NAME).path / "changes" / "data" / ("a" * 32 + ".parquet")
    stray.write_bytes(b"x")
    assert lake.recover().files_swept == 1
    stray.write_bytes(b"x")
    assert lake.recover().files_swept == 0
    clock.pass_time(hours=1)
    assert lake.recover().files_swept == 1
    folder = lake.path / "shop" / "web" / "gone" / ("b" * 32)
    folder.mkdir(parents=True)
    write_marker(folder, Marker(dataset="shop.web.gone", incarnation=folder.name), durable=False)
    clock.pass_time(hours=1)
    assert lake.recover().folders_swept == 1
    assert not folder.exists()


def test_liveness_locks_of_dead_processes_are_swept(lake: Lake) -> None:
    begun(lake, run=False)
    lock_folder = lake.path / "_system" / "events" / "_live"
    (lock_folder / "dead").write_text("")
    lake.recover()
    assert not (lock_folder / "dead").exists()
    assert list((lake.path / "_system" / "liveness").iterdir()) == []


def test_a_reader_recovers_nothing(lake: Lake) -> None:
    with Lake.open(lake.path, settings=Settings(role=Role.READER)) as reader, pytest.raises(InvalidRequest):
        reader.run_cycle()


def test_a_report_becomes_plain_data() -> None:
    report = RecoveryReport(problems=(RecoveryProblem(subject="dataset x", error="broken"),))
    assert report.summary() == ""
    assert report.to_dict()["problems"][0]["error"] == "broken"


def test_an_unfinished_job_names_its_files(lake: Lake) -> None:
    (job, _) = begun(lake, run=False, dies=False)
    (found, _) = lake.recover().running
    assert set(found.files) == {file.path for file in job.spec.files}
    assert isinstance(job.spec.files[0], FileEntry)
