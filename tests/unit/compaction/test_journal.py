"""The journal of a lake: the records of cycles and jobs, and a journal that cannot be written or read."""

import datetime as dt
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone import Lake
from siltstone.compaction.execution.cycle_runner import run_cycle
from siltstone.compaction.execution.events import CompactionEvent, CycleReported
from siltstone.compaction.execution.job import InlineRunner, Job
from siltstone.compaction.execution.report import CycleReport
from siltstone.compaction.journal.journal import Journal, record_of
from siltstone.compaction.journal.records import (
    JobRecord,
    Owner,
    Unreadable,
    cycle_id,
    cycle_number,
    is_whole,
    read_job,
    safe_error,
)
from siltstone.compaction.journal.totals import Totals, add_events, cache_path
from siltstone.compaction.planning.model import FileEntry, JobKind, JobSpec, Plan
from siltstone.compaction.planning.table_state import event_log_state
from siltstone.config import Settings
from siltstone.delta.layout import Layout
from siltstone.delta.log_reader import LogEntry
from siltstone.erasure.scan import scan
from siltstone.errors import CommitUnknown, Corruption, Unavailable
from siltstone.eventlog.events import BuildStatus, Indexed, JobEvent, JobStatus, PartitionStatus
from siltstone.eventlog.log import EventLog
from siltstone.failpoints import arm
from siltstone.model.columns import APP_FOLD, JOB
from siltstone.model.reports import SquashReport
from tests.support.clocks import FakeClock
from tests.support.folds import fold_by_arrow
from tests.support.internals import compactor_of, journal_of, layout_of, stores_of
from tests.support.refusals import figures

NAME = "shop.web.people"
SETTINGS = Settings(durable=False, squash_files=0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lake(tmp_path: Path, clock: FakeClock) -> Iterator[Lake]:
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False), clock=clock) as opened:
        people = opened.create(NAME, "id STRING NOT NULL, note STRING", key="id", subject="id")
        for number in range(4):
            people.upsert([{"id": f"SUBJECT-{number}", "note": "SECRET-NOTE"}])
        yield opened


def log_of(lake: Lake) -> EventLog:
    found = journal_of(lake).log()
    assert found is not None
    return found


def squash(lake: Lake) -> CycleReport:
    return lake.run_cycle(only=["squash"], force=True)


# ---- contents ------------------------------------------------------------------------------------------------------


def test_a_cycle_is_a_build_a_job_a_run_and_a_dataset_a_partition(lake: Lake) -> None:
    done = squash(lake)
    assert (done.cycle, len(done), done[0].error, done.trouble) == (1, 1, None, None)
    log = log_of(lake)
    (build,) = log.builds()
    assert (cycle_number(build.build_request_id), build.status) == (1, BuildStatus.COMPLETED)
    assert build.requested_partitions == (NAME,)
    assert log.partition(NAME).status is PartitionStatus.AVAILABLE
    names = [
        one.event.payload.status.name
        for one in log.events_of_run(done[0].job)
        if isinstance(one.event.payload, JobEvent)
    ]
    assert names == ["SCHEDULED", "RUNNING", "COMPLETED"]


def test_a_job_records_the_files_it_read_and_wrote(lake: Lake) -> None:
    done = squash(lake)
    scheduled, _, ended = [
        one.event.payload for one in log_of(lake).events_of_run(done[0].job) if isinstance(one.event.payload, JobEvent)
    ]
    assert scheduled.config is not None
    assert len(scheduled.config.inputs) == 4
    (made,) = ended.manifests
    assert sorted(made.inputs) == sorted(one.partition_ref for one in scheduled.config.inputs)
    (written,) = json.loads(made.metadata["written"])
    assert (written["path"], written["rows"]) == (made.outputs[0], 4)
    assert (made.metadata["files_before"], made.metadata["files_after"]) == ("4", "1")
    graph = next(one.event.payload for one in log_of(lake).events() if one.event.type == "job_graph")
    found = json.loads(graph.job_graph)  # type: ignore[union-attr]
    assert found["settings"]["fold_batches"] == 64
    assert found["tiers"]["daily"]["min_files"] == 12
    (record,) = lake.jobs()
    assert (record.status, record.done.files_before, record.done.rows) == (JobStatus.COMPLETED, 4, 4)
    assert lake.jobs(dataset="shop.web.others") == []


def test_a_cycle_without_a_job_leaves_no_trace_and_no_log(lake: Lake, tmp_path: Path) -> None:
    assert len(lake.run_cycle(only=["fold"])) == 0
    assert not (tmp_path / "lake" / "_system" / "events").exists()
    assert (lake.history(), lake.jobs(), lake.totals().cycles) == ([], [], 0)


def test_cycles_are_numbered_and_the_planner_gets_the_number(lake: Lake) -> None:
    assert lake.plan().cycle == 1
    assert squash(lake).cycle == 1
    lake.dataset(NAME).upsert([{"id": "x", "note": None}])
    assert lake.plan().cycle == 2
    assert squash(lake).cycle == 2
    assert [entry.cycle for entry in lake.history()] == [2, 1]
    assert lake.history(1)[0].status == "completed"


def test_subscribers_receive_events_after_the_journal(lake: Lake) -> None:
    reported: list[tuple[int, int]] = []

    def on_event(event: CompactionEvent) -> None:
        if isinstance(event, CycleReported):
            reported.append((event.report.cycle, len(lake.history())))

    lake.subscribe(on_event)
    squash(lake)
    assert reported == [(1, 1)]


def candidate(period: str = "2026-11-14", *, kind: JobKind = JobKind.ROLL_UP, batch: int = 1, **more: Any) -> JobSpec:  # noqa: ANN401
    files = (FileEntry(f"data/a{batch}.parquet", 100, rows=3), FileEntry(f"data/b{batch}.parquet", 50, rows=1))
    lane = "daily" if kind is JobKind.ROLL_UP else str(kind)
    return JobSpec(
        kind=kind,
        lane=lane,
        dataset="shop.web.clicks",
        period=period,
        batch=batch,
        files=files,
        trigger="12 files",
        **more,
    )


def plan_of(*jobs: JobSpec, cycle: int = 9) -> Plan:
    return Plan(cycle=cycle, budget_bytes=1, jobs=jobs, left_out=())


class Does:
    """A runner without effect that fails on the given jobs and calls a hook."""

    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.ran: list[Job] = []

    def run(self, job: Job) -> SquashReport:
        self.ran.append(job)
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        return SquashReport(
            dataset=job.spec.dataset,
            files_removed=2,
            files_added=1,
            rows_before=4,
            rows_after=4,
            bytes_before=150,
            bytes_after=120,
            seconds=2.0,
        )


@pytest.fixture
def journal(tmp_path: Path, clock: FakeClock) -> Iterator[Journal]:
    made = Journal(Layout.at(tmp_path / "lake"), settings=SETTINGS, clock=clock)
    yield made
    made.close()


def statuses(journal: Journal) -> dict[str, str]:
    return {record.period: record.status.name for record in journal.jobs(100)}


def test_no_value_of_a_user_enters_the_journal(lake: Lake, journal: Journal, tmp_path: Path) -> None:
    """No names of files, no partition values, no error text that quotes a row."""
    squash(lake)
    failure = Unavailable("[CAST_INVALID_INPUT] The value 'SUBJECT-2' of SUBJECT-3 cannot be cast.")
    run_cycle(plan_of(candidate(partition=(("region", "SUBJECT-1"),))), Does(failure), subscribers=[journal.on_event])
    assert lake.jobs(1)[0].message == "unknown [CAST_INVALID_INPUT]"
    lake.totals()
    for folder in (tmp_path / "lake" / "_system" / "events", tmp_path / "cache"):
        found = scan(folder, ["SUBJECT-0", "SUBJECT-1", "SUBJECT-2", "SUBJECT-3", "SECRET-NOTE"])
        assert found.clean, found
        assert found.files > 1


def test_error_texts_are_recorded_only_if_they_are_ours() -> None:
    assert safe_error("conflict", "column 'x' was altered") == "conflict: column … was altered"
    assert safe_error("corruption", "row SUBJECT-1 is broken") == "corruption"
    assert safe_error(None, "[A_B] x [C_D] [A_B]") == "error [A_B] [C_D]"
    assert len(safe_error("gone", "x" * 1000)) < 400


def test_a_commit_with_a_lost_result_is_found_in_the_log(lake: Lake) -> None:
    class Lost(InlineRunner):
        def run(self, job: Job) -> Any:  # noqa: ANN401
            super().run(job)
            raise CommitUnknown("whether it landed cannot be seen")

    plan = lake.plan(only=["squash"], force=True)
    (result,) = run_cycle(plan, Lost(compactor_of(lake), stores_of(lake)), subscribers=[journal_of(lake).on_event])
    assert result.failure == "commit_unknown"
    (record,) = lake.jobs()
    assert (record.status, figures(record.message), record.done.files_before) == (JobStatus.COMPLETED, "4 1", 4)


def test_a_purge_that_stopped_after_its_fold_is_not_recorded_as_completed(lake: Lake) -> None:
    class Stopped(InlineRunner):
        def run(self, job: Job) -> Any:  # noqa: ANN401
            fold_by_arrow(lake.dataset(NAME), job=job.id)
            raise CommitUnknown("whether it landed cannot be seen")

    plan = plan_of(replace(candidate(kind=JobKind.PURGE), dataset=NAME, period="", files=()))
    run_cycle(plan, Stopped(compactor_of(lake), stores_of(lake)), subscribers=[journal_of(lake).on_event])
    (record,) = lake.jobs()
    assert (record.status, figures(record.message)) == (JobStatus.FAILED, "commit_unknown 0 1")


def test_an_unexpected_error_of_a_job_is_recorded_as_failed_and_its_cycle_ends(lake: Lake) -> None:
    class Broken(InlineRunner):
        def run(self, job: Job) -> SquashReport:
            raise KeyError(f"SUBJECT-1 of {job.id}")

    plan = lake.plan(only=["squash"], force=True)
    run_cycle(plan, Broken(compactor_of(lake), stores_of(lake)), subscribers=[journal_of(lake).on_event])
    (record,) = lake.jobs()
    assert (record.status, record.message) == (JobStatus.FAILED, "unknown"), "what it says may be a value of a user"
    assert (lake.history()[0].status, lake.recover().summary()) == ("failed", "")


def test_an_unexpected_error_of_the_journal_stops_no_job(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_events: object) -> None:
        raise KeyError("event")

    squash(lake)
    monkeypatch.setattr(log_of(lake), "append", broken)
    for number in range(2):
        lake.dataset(NAME).upsert([{"id": str(number), "note": "n"}])
    report = squash(lake)
    assert [result.outcome for result in report] == ["done"]
    assert "KeyError: 'event'" in (report.trouble or "")


def entry(job: str, *, removes: tuple[str, ...] = (), folded: int | None = None) -> LogEntry:
    return LogEntry(
        version=1,
        files=(),
        removes=dict.fromkeys(removes, 0),
        transactions={} if folded is None else {APP_FOLD: folded},
        forgotten=frozenset(),
        metadata=None,
        protocol=None,
        info={JOB: job},
    )


def test_commits_cover_a_job_if_one_is_its_own_or_its_parts_together_cover_the_plan() -> None:
    owner = Owner(id="o", machine="m", host="h", pid=1)
    files = tuple(FileEntry(path=path, size_bytes=1, order=n) for n, path in enumerate("abcd", 1))

    def record(kind: JobKind, files: tuple[FileEntry, ...] = files) -> JobRecord:
        planned = JobSpec(kind=kind, lane=str(kind), dataset=NAME, files=files)
        return record_of(Job(id="7-ab", cycle=7, spec=planned), "b", owner)

    assert is_whole(record(JobKind.FOLD), [entry("7-ab", folded=2)]), "a whole fold takes what it finds"
    assert not is_whole(record(JobKind.FOLD), [entry("7-ab.1", folded=2)])
    assert is_whole(record(JobKind.FOLD), [entry("7-ab.1", folded=2), entry("7-ab.2", folded=4)])
    assert not is_whole(record(JobKind.FOLD, ()), [entry("7-ab.1", folded=2)]), "the planned files are unknown"
    parts = [entry("7-ab.1", removes=("a", "b")), entry("7-ab.2", removes=("c", "d"))]
    assert not is_whole(record(JobKind.ROLL_UP), parts[:1])
    assert is_whole(record(JobKind.ROLL_UP), parts)
    assert not is_whole(record(JobKind.ROLL_UP), [])
    assert not is_whole(record(JobKind.PURGE, ()), [entry("7-ab", folded=4)]), "it deletes after its fold"


def test_followers_of_the_journal_see_every_event_once_and_in_order_while_its_files_are_merged(
    tmp_path: Path, clock: FakeClock
) -> None:
    settings = Settings(durable=False, event_log_files=4)
    with Lake.open(tmp_path / "lake", settings=settings, clock=clock) as lake:
        people = lake.create(NAME, "id STRING NOT NULL", key="id")
        followed: list[tuple[int, str]] = []
        start, live = 1, 0
        for number in range(4):
            for _ in range(2):
                people.upsert([{"id": str(number)}])
            lake.run_cycle(only=["squash", "events"], force=number % 2 == 0)
            with EventLog.open(journal_of(lake).uri, create=False) as follower:
                page = follower.page(start, limit=1000)
                followed += [(one.index, one.event.event_id) for one in page.events]
                start = page.next_index
        whole = [(one.index, one.event.event_id) for one in log_of(lake).events()]
        assert followed == whole
        assert [index for index, _ in whole] == list(range(1, len(whole) + 1))
        assert any(record.lane == "events" and record.done.files_after for record in lake.jobs(100))
        live = len(event_log_state(layout_of(lake), settings=settings, clock=clock).files)  # type: ignore[union-attr]
        assert live < len({record.job for record in lake.jobs(100)}) * 3


# ---- how cycles end ------------------------------------------------------------------------------------------------


def test_failed_jobs_and_jobs_that_never_began_are_distinguished(journal: Journal) -> None:
    jobs = [candidate(f"2026-11-1{number}") for number in range(4)]
    runner = Does(None, Unavailable("no"))
    run_cycle(plan_of(*jobs), runner, subscribers=[journal.on_event], stopping=lambda: len(runner.ran) == 3)
    assert statuses(journal) == {
        "2026-11-10": "COMPLETED",
        "2026-11-11": "FAILED",
        "2026-11-12": "COMPLETED",
        "2026-11-13": "CANCELLED",
    }
    (build,) = journal.cycles(10)
    assert (build.status, build.message) == (BuildStatus.CANCELLED, "3 jobs, 1 failed, 1 left")
    assert journal.open_cycles() == []


def test_batches_of_one_period_are_one_partition_that_is_available_when_all_are_done(journal: Journal) -> None:
    seen: list[PartitionStatus] = []

    class Looks(Does):
        def run(self, job: Job) -> SquashReport:
            log = journal.log()
            assert log is not None
            seen.append(log.partition("shop.web.clicks/2026-11-14").status)
            return super().run(job)

    run_cycle(plan_of(candidate(batch=1), candidate(batch=2)), Looks(), subscribers=[journal.on_event])
    log = journal.log()
    assert log is not None
    assert seen == [PartitionStatus.BUILDING, PartitionStatus.BUILDING]
    assert log.partition("shop.web.clicks/2026-11-14").status is PartitionStatus.AVAILABLE
    run_cycle(
        plan_of(candidate(batch=1), candidate(batch=2), cycle=10),
        Does(Unavailable("no")),
        subscribers=[journal.on_event],
    )
    assert log.partition("shop.web.clicks/2026-11-14").status is PartitionStatus.FAILED


def test_parts_of_a_job_without_a_schedule_event_are_recorded_too(journal: Journal) -> None:
    plan = plan_of(candidate())
    job = Job.of(plan.jobs[0], cycle=9, epoch=None)
    part = Job(id=f"{job.id}.1", cycle=9, spec=candidate("2026-11-13"))
    journal.cycle_began(plan, [job])
    journal.job_began(part)
    journal.cycle_ended([])
    assert journal.trouble is None
    assert statuses(journal) == {"2026-11-14": "CANCELLED", "2026-11-13": "CANCELLED"}


# ---- when it cannot be written or read -------------------------------------------------------------------------------


def test_events_that_cannot_be_written_are_retried_with_the_next_event(journal: Journal) -> None:
    with arm("commit.before_entry", "raise", count=2):  # the second append: a job began
        run_cycle(plan_of(candidate()), Does(), subscribers=[journal.on_event])
    assert statuses(journal) == {"2026-11-14": "COMPLETED"}
    assert journal.cycles(1)[0].status is BuildStatus.COMPLETED


def test_a_journal_that_cannot_be_written_loses_no_result_and_is_reported(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "lake" / "_system" / "events").write_text("a file where a folder must be")
    done = squash(lake)
    assert (done[0].error, (done[0].report or {})["files_removed"]) == (None, 4)
    assert done.trouble is not None
    assert len(lake.plan(only=["squash"], force=True).jobs) == 0


def test_a_journal_that_cannot_be_read_keeps_a_cycle_from_beginning(lake: Lake, tmp_path: Path) -> None:
    squash(lake)
    lake.dataset(NAME).upsert([{"id": "x", "note": None}])
    files = lake.dataset(NAME).status().backlog_files
    entries = sorted((tmp_path / "lake" / "_system" / "events" / "_delta_log").glob("*.json"))
    entries[1].write_bytes(b"")
    shutil.rmtree(tmp_path / "cache")
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False)) as again:
        with pytest.raises(Corruption):
            squash(again)
        assert again.dataset(NAME).status().backlog_files == files
        assert again.dataset(NAME).squash().files_removed == files


def test_a_dataset_that_cannot_be_read_is_reported_and_the_others_continue(lake: Lake) -> None:
    broken = lake.create("shop.web.broken", "id STRING NOT NULL", key="id")
    broken.upsert([{"id": "a"}])
    entry = max((broken.path / "base" / "_delta_log").glob("*.json"))
    entry.write_bytes(b"{")
    with Lake.open(lake.path, settings=Settings(durable=False)) as again:
        done = squash(again)
        assert [result.dataset for result in done] == [NAME]
        assert list(done.unreadable) == ["shop.web.broken"]
        assert [one.dataset for one in done.recovery.problems] == ["shop.web.broken"]
        assert list(again.plan().unreadable) == ["shop.web.broken"]
        with pytest.raises(Corruption):
            again.plan(["shop.web.broken"])


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_the_ids_of_cycles_are_in_the_order_of_their_numbers() -> None:
    assert sorted([cycle_id(10, "b" * 32), cycle_id(9, "c" * 32)]) == [cycle_id(9, "c" * 32), cycle_id(10, "b" * 32)]
    assert cycle_number("cycle-12") is None


def test_an_invalid_record_is_named() -> None:
    with pytest.raises(Unreadable):
        read_job([])


# ---- totals ----------------------------------------------------------------------------------------------------------


def test_totals_count_by_lane_and_dataset(journal: Journal, clock: FakeClock) -> None:
    since = int((clock.now() - dt.timedelta(hours=2)).timestamp() * 1000)
    fold = candidate("", kind=JobKind.FOLD, waiting_since_ms=since)
    run_cycle(plan_of(candidate(), fold), Does(), subscribers=[journal.on_event])
    run_cycle(plan_of(candidate("2026-11-13"), cycle=10), Does(Unavailable("no")), subscribers=[journal.on_event])
    log = journal.log()
    assert log is not None
    totals = add_events(Totals(), log.events())
    assert (totals.cycles, totals.cycles_failed, totals.all.jobs, totals.all.failures) == (2, 1, 2, 1)
    daily = totals.lanes["daily"]
    assert (daily.jobs, daily.failures, daily.files_before, daily.files_after, daily.rows) == (1, 1, 2, 1, 4)
    assert totals.lanes["fold"].longest_wait_seconds == 7200
    assert (totals.begun, totals.scheduled) == ({}, {})
    dataset = totals.datasets["shop.web.clicks"]
    assert (dataset.last_status, dataset.last_message) == ("failed", "unknown")
    assert json.loads(json.dumps(totals.to_dict()))["lanes"]["daily"]["bytes_after"] == 120


def test_totals_read_only_new_events(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    squash(lake)
    first = lake.totals()
    starts: list[int] = []
    events = EventLog.events

    def noted(self: EventLog, start: int = 1, **more: Any) -> Iterator[Indexed]:  # noqa: ANN401
        starts.append(start)
        return events(self, start, **more)

    monkeypatch.setattr(EventLog, "events", noted)
    assert lake.totals().to_dict() == first.to_dict()
    assert starts == [first.next_index]
    cache_path(log_of(lake)).write_text("{}")
    assert lake.totals().to_dict() == first.to_dict()
    assert starts[-1] == 1


def test_cached_totals_with_values_of_another_type_are_counted_again(lake: Lake) -> None:
    squash(lake)
    assert lake.totals().all.jobs == 1
    path = cache_path(log_of(lake))
    layout, cached = json.loads(path.read_text())
    path.write_text(json.dumps([layout, cached | {"all": {"jobs": "many"}}]))
    lake.dataset(NAME).upsert([{"id": "x", "note": None}])
    squash(lake)
    assert lake.totals().all.jobs == 2


def test_cached_totals_of_another_log_are_discarded(lake: Lake, tmp_path: Path) -> None:
    squash(lake)
    lake.dataset(NAME).upsert([{"id": "x", "note": None}])
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "lake" / "_system" / "events", copy)
    squash(lake)
    assert lake.totals().cycles == 2
    lake.close()
    shutil.rmtree(tmp_path / "lake" / "_system" / "events")
    shutil.copytree(copy, tmp_path / "lake" / "_system" / "events")
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False)) as again:
        assert again.totals().cycles == 1


def test_write_amplification_is_what_is_written_for_each_byte_of_a_user() -> None:
    totals = Totals()
    assert totals.all.write_amplification is None
    totals.all.bytes_folded, totals.all.bytes_after = 100, 250
    assert totals.all.write_amplification == 3.5


def test_the_planner_gets_the_time_of_the_last_vacuum(lake: Lake, clock: FakeClock) -> None:
    lake.dataset(NAME).squash()
    assert [result.error for result in lake.run_cycle(only=["vacuum"], force=True)] == [None]
    assert lake.totals().last_done(NAME, "vacuum") == clock.now()
    assert lake.totals().last_done(NAME, "fold") is None
    (left,) = lake.plan([NAME], only=["vacuum"]).left_out
    assert figures(left.reason) == "24.0"
    clock.pass_time(hours=24)
    (job,) = lake.plan([NAME], only=["vacuum"]).jobs
    assert figures(job.trigger) == "24"
