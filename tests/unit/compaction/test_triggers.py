"""Folds, squashes, event logs, clusterings and vacuums: each trigger at, below and above its threshold."""

import datetime as dt
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.compaction.planning.model import Backlog, FileEntry, JobKind, Shape, TableState, UnfinishedJob
from siltstone.model.periods import Granularity
from siltstone.model.small_runs import MAX_SQUASH_ROWS, small_change_files
from tests.support.entries import DAILY, HOURLY, MB, NOW, NOW_MS, entries, keyed, log, planned, reasons
from tests.support.refusals import figures

KB = 1024
MINUTE_MS = 60_000


def changes(count: int, *, size: int = KB, first: int = 1, rows: int = 1) -> list[FileEntry]:
    return [FileEntry(f"c{n:05d}", size, rows=rows, order=n) for n in range(first, first + count)]


# ---- fold ----------------------------------------------------------------------------------------------------------


def backlog(*, batches: int = 1, rows: int = 1, age_ms: int = 0, size: int = KB) -> Backlog:
    return Backlog(batches=batches, rows=rows, size_bytes=size, oldest_ms=NOW_MS - age_ms)


BASE = entries("", 10, size=MB, rows=1000)


@pytest.mark.parametrize(
    ("found", "trigger"),
    [
        (backlog(batches=63), None),
        (backlog(batches=64), "64 of 64 batches"),
        (backlog(rows=99), None),
        (backlog(rows=100), "changes are 1.00% of the base's rows (threshold 1.00%)"),
        (backlog(age_ms=15 * MINUTE_MS - 1), None),
        (backlog(age_ms=15 * MINUTE_MS), "15.0 of 15.0 minutes"),
        (backlog(age_ms=-(10**12)), None),
    ],
)
def test_a_fold_is_due_by_batches_rows_or_age(found: Backlog, trigger: str | None):
    made = planned(keyed(files=BASE, backlog=found))
    assert [job.trigger for job in made.jobs] == ([trigger] if trigger else [])
    assert len(made.left_out) == (0 if trigger else 1)


def test_a_fold_that_is_not_due_has_its_numbers():
    made = planned(keyed(files=BASE, backlog=backlog(batches=3, rows=20, age_ms=3 * MINUTE_MS)))
    assert reasons(made, "fold") == ["3 64 0.20% 1.00% 3.0 15.0"]


def test_the_thresholds_of_a_fold_are_settings_and_zero_turns_one_off():
    table = keyed(files=BASE, backlog=backlog(batches=70, rows=200, age_ms=20 * MINUTE_MS))
    off = {"fold_batches": 0, "fold_share": 0.0, "fold_minutes": 0.0}
    assert reasons(planned(table, settings=off), "fold") == ["fold 0"]
    for name in off:
        others = {key: value for key, value in off.items() if key != name}
        assert len(planned(table, settings=others).jobs) == 1, name
    raised = {"fold_batches": 71, "fold_share": 0.021, "fold_minutes": 20.1}
    assert planned(table, settings=raised).jobs == ()


def test_an_empty_base_and_an_empty_backlog_make_no_share():
    assert planned(keyed(backlog=backlog(rows=10**6))).jobs == ()
    empty = planned(keyed(files=BASE))
    assert (empty.jobs, empty.left_out) == ((), ())


@pytest.mark.parametrize(("files", "rows", "size", "after"), [(0, 9, KB, 1), (10, 3, KB, 3), (0, 9, 300 * MB, 3)])
def test_a_planned_fold_has_the_number_of_files_it_writes(files: int, rows: int, size: int, after: int):
    table = keyed(files=BASE[:files], change_files=changes(2), backlog=backlog(rows=rows, size=size))
    (job,) = planned(table, force=True).jobs
    assert (job.files_after, job.to_dict()["files_after"]) == (after, after)


def test_since_when_a_job_waits_is_iso_text_in_json():
    (job,) = planned(keyed(files=BASE, backlog=backlog(age_ms=MINUTE_MS)), force=True).jobs
    assert job.to_dict()["waiting_since"] == "2026-11-16T11:59:00.000Z"
    assert replace(job, waiting_since_ms=0).to_dict()["waiting_since"] is None


def test_force_folds_any_backlog():
    assert [job.trigger for job in planned(keyed(files=BASE, backlog=backlog()), force=True).jobs] == ["forced"]
    assert planned(keyed(files=BASE), force=True).jobs == ()


@pytest.mark.parametrize("force", [False, True])
def test_a_dataset_whose_fold_is_unfinished_is_left_out(force: bool):  # noqa: FBT001
    table = keyed(files=BASE, backlog=backlog(batches=64), change_files=changes(2))
    fold = UnfinishedJob(job="j1", dataset="a.b.k", kind=JobKind.FOLD)
    squash = UnfinishedJob(job="j1", dataset="a.b.k", kind=JobKind.SQUASH, files=["c00001"])
    for job in (fold, squash):
        assert "j1" in reasons(planned(table, unfinished=[job], force=force), "fold")


def test_a_fold_costs_the_files_it_may_touch_and_that_of_a_log_only_its_changes():
    few = planned(keyed(files=BASE, backlog=backlog(batches=64, rows=3))).jobs[0]
    many = planned(keyed(files=BASE, backlog=backlog(batches=64, rows=30))).jobs[0]
    logged = planned(log(entries("2026-11-02", 1), tiers=(), backlog=backlog(batches=64))).jobs[0]
    assert (few.cost_bytes, many.cost_bytes, logged.cost_bytes) == (3 * MB + KB, 10 * MB + KB, KB)


# ---- squash --------------------------------------------------------------------------------------------------------


def test_a_squash_is_due_from_its_threshold_on():
    assert reasons(planned(keyed(change_files=changes(31))), "squash") == ["31 32"]
    (job,) = planned(keyed(change_files=changes(32))).jobs
    assert (job.kind, len(job.files), job.files_after, job.cost_bytes) == (JobKind.SQUASH, 32, 1, 32 * KB)
    assert planned(keyed(change_files=changes(32)), settings={"squash_files": 33}).jobs == ()
    assert reasons(planned(keyed(change_files=changes(99)), settings={"squash_files": 0}), "squash") == [
        "squash_files 0"
    ]


def test_large_change_files_are_left_for_the_fold_and_end_a_run():
    large = changes(1, size=17 * MB, first=20)
    files = [*changes(19), *large, *changes(30, first=21)]
    assert reasons(planned(keyed(change_files=files)), "squash") == ["30 32"]
    assert len(planned(keyed(change_files=[*files, *changes(2, first=51)])).jobs[0].files) == 32


def test_a_file_of_an_unfinished_job_ends_a_run():
    job = UnfinishedJob(job="j1", dataset="a.b.k", kind=JobKind.CLUSTER, files=["c00020"])
    assert reasons(planned(keyed(change_files=changes(50)), unfinished=[job]), "squash") == ["30 32 j1"]


@pytest.mark.parametrize("kind", [JobKind.FOLD, JobKind.SQUASH])
def test_no_squash_beside_an_unfinished_fold_or_squash(kind: JobKind):
    job = UnfinishedJob(job="j1", dataset="a.b.k", kind=kind)
    assert reasons(planned(keyed(change_files=changes(50)), unfinished=[job]), "squash") == ["j1"]


def test_files_of_a_planned_fold_are_not_squashed_too():
    made = planned(keyed(change_files=changes(50), backlog=backlog(batches=64)))
    assert [job.kind for job in made.jobs] == [JobKind.FOLD]
    assert reasons(made, "squash") == ["fold"]


def test_force_squashes_two_files_and_never_one():
    only = frozenset({"squash"})
    assert len(planned(keyed(change_files=changes(2)), force=True, only=only).jobs) == 1
    assert planned(keyed(change_files=changes(1)), force=True, only=only).jobs == ()


sizes = st.sampled_from([1, 60 * KB, 64 * KB, 65 * KB, 3 * MB, 9 * MB, 20 * MB])
files = st.lists(st.tuples(sizes, st.sampled_from([1, 90_000, 300_000]), st.integers(1, 30)), max_size=60)


@given(files, st.integers(2, 8))
def test_a_run_has_neighbours_only_and_stays_within_its_bounds(given_files: list[tuple[int, int, int]], many: int):
    listed = [FileEntry(f"{n:03d}", size, rows=rows, order=at) for n, (size, rows, at) in enumerate(given_files)]
    run = small_change_files(listed, attrgetter("order"), many=many, max_bytes=16 * MB)
    assert run.enough == (len(run.files) >= many)
    assert sum(file.size_bytes for file in run.files) <= 16 * MB
    assert sum(file.rows for file in run.files) <= MAX_SQUASH_ROWS
    taken = {file.order for file in run.files}
    between = [file for file in listed if taken and min(taken) <= file.order <= max(taken)]
    assert sorted(between, key=attrgetter("order", "path")) == list(run.files)


def test_a_squash_holds_a_bounded_number_of_rows():
    assert len(planned(keyed(change_files=changes(40, rows=5000))).jobs[0].files) == 40
    assert len(planned(keyed(change_files=changes(41, rows=5000))).jobs[0].files) == 40


# ---- event logs ----------------------------------------------------------------------------------------------------


def events(listed: list[FileEntry]) -> TableState:
    return TableState(name="_system/events", shape=Shape.EVENTS, files=listed)


def test_an_event_log_is_compacted_from_its_threshold_on():
    assert reasons(planned(events(changes(31))), "events") == ["31 32"]
    (job,) = planned(events(changes(32)[::-1])).jobs
    assert (job.kind, job.dataset, job.files_after) == (JobKind.EVENTS, "_system/events", 1)
    assert [file.order for file in job.files] == list(range(1, 33))
    assert reasons(planned(events(changes(99)), settings={"event_log_files": 0}), "events") == ["event_log_files 0"]


def test_a_job_of_an_event_log_takes_files_of_one_class_and_none_of_an_unfinished_job():
    assert planned(events([*changes(31), *changes(31, rows=40, first=32)])).jobs == ()
    assert len(planned(events([*changes(33), *changes(31, rows=40, first=34)])).jobs[0].files) == 33
    assert planned(events(changes(40, rows=40_000))).jobs == ()
    assert len(planned(events(changes(100, rows=30_000))).jobs[0].files) == 66
    busy = UnfinishedJob(job="j", dataset="_system/events", kind=JobKind.EVENTS, files=["c00007"])
    assert reasons(planned(events(changes(32)), unfinished=[busy]), "events") == ["31 32 j"]
    assert len(planned(events(changes(33)), unfinished=[busy]).jobs[0].files) == 32


def test_files_of_an_event_log_become_one_for_each_day():
    listed = [file._replace(period=f"2026-11-{1 + at % 3:02d}") for at, file in enumerate(changes(40))]
    assert planned(events(listed)).jobs[0].files_after == 3
    assert planned(events(changes(2)), force=True).jobs[0].files_after == 1


def test_nothing_else_is_planned_for_an_event_log():
    table = replace(events(changes(10)), backlog=backlog(batches=99), change_files=changes(99), cluster_by=("a",))
    assert {found.lane for found in planned(table).left_out} == {"events"}
    assert planned(table).jobs == ()


# ---- cluster -------------------------------------------------------------------------------------------------------

GB = 1024 * MB
WANTED: dict[str, Any] = {"cluster_by": ("at", "region")}


def test_a_clustering_is_due_by_bytes_and_share():
    made = planned(keyed(files=entries("", 8, size=128 * MB), **WANTED))
    assert [(job.kind, len(job.files), job.target_bytes) for job in made.jobs] == [(JobKind.CLUSTER, 8, 128 * MB)]
    short = [*entries("", 7, size=128 * MB), *entries("", 1, size=128 * MB - 1, prefix="x")]
    assert reasons(planned(keyed(files=short, **WANTED)), "cluster") == ["1 1"]
    loose, done = entries("", 8, size=128 * MB), entries("", 32, size=128 * MB, tier="cluster", prefix="c")
    assert len(planned(keyed(files=[*loose, *done], **WANTED)).jobs[0].files) == 40
    more = entries("", 1, size=128 * MB, tier="cluster", prefix="d")
    assert reasons(planned(keyed(files=[*loose, *done, *more], **WANTED)), "cluster") == ["20% 20%"]
    made = planned(keyed(files=loose, **WANTED), settings={"cluster_bytes": 0})
    assert reasons(made, "cluster") == ["cluster_bytes 0"]


def test_nothing_is_clustered_without_columns_or_when_all_is():
    large = entries("", 20, size=128 * MB)
    assert planned(keyed(files=large)).jobs == ()
    done = planned(keyed(files=entries("", 20, size=128 * MB, tier="cluster"), **WANTED), force=True)
    assert (done.jobs, done.left_out) == ((), ())


def test_force_clusters_little_but_never_one_file():
    assert len(planned(keyed(files=entries("", 2), **WANTED), force=True).jobs) == 1
    assert reasons(planned(keyed(files=entries("", 1), **WANTED), force=True), "cluster") == ["1 2"]


def test_a_keyed_dataset_is_folded_before_it_is_clustered():
    table = keyed(files=entries("", 20, size=128 * MB), backlog=backlog(batches=64), **WANTED)
    made = planned(table)
    assert [job.kind for job in made.jobs] == [JobKind.FOLD]
    assert reasons(made, "cluster") == ["fold"]
    for kind, reason in (
        (JobKind.FOLD, "fold"),
        (JobKind.CLUSTER, "j"),
    ):
        job = UnfinishedJob(job="j", dataset="a.b.k", kind=kind)
        assert reasons(planned(table, unfinished=[job]), "cluster") == [reason]


def test_a_file_that_a_tier_will_move_is_not_clustered():
    def table(period: str) -> TableState:
        return log(entries(period, 9, size=2 * GB), tiers=[HOURLY, DAILY], **WANTED)

    assert [job.period for job in planned(table("2026-11-02")).jobs] == ["2026-11-02"]
    assert reasons(planned(table("2026-11-02T10")), "cluster") == [str(Granularity.DAY)]
    assert reasons(planned(table("2026-11-16")), "cluster") == ["2026-11-17 00:00"]


def test_files_that_are_rolled_up_in_this_cycle_are_not_clustered_too():
    made = planned(
        log(entries("2026-11-02", 9, size=2 * GB), entries("2026-11-02", 12, prefix="s"), tiers=[DAILY], **WANTED)
    )
    assert sorted((job.lane, len(job.files)) for job in made.jobs) == [("cluster", 9), ("daily", 12)]


def test_a_clustering_that_is_larger_than_a_cycle_takes_what_is_not_clustered_and_fits():
    loose = entries("", 20, size=128 * MB)
    table = keyed(files=[*loose, *entries("", 20, size=128 * MB, tier="cluster", prefix="c")], **WANTED)
    (job,) = planned(table, settings={"cycle_bytes": 10 * 128 * MB}).jobs
    assert (len(job.files), {file.tier for file in job.files}) == (10, {""})
    assert len(planned(table, settings={"cycle_bytes": 1}).jobs[0].files) == 2
    assert len(planned(table, settings={"cycle_bytes": 40 * 128 * MB}).jobs[0].files) == 40


def test_files_of_unfinished_jobs_are_not_clustered():
    listed = entries("", 20, size=128 * MB)
    job = UnfinishedJob(job="j", dataset="a.b.k", kind=JobKind.SQUASH, files=[file.path for file in listed[:5]])
    assert len(planned(keyed(files=listed, **WANTED), unfinished=[job]).jobs[0].files) == 15
    job = replace(job, files=[file.path for file in listed[1:]])
    assert reasons(planned(keyed(files=listed, **WANTED), unfinished=[job]), "cluster") == ["j"]


# ---- vacuum --------------------------------------------------------------------------------------------------------


def vacuumed(ago: dt.timedelta | None, **more: object) -> TableState:
    return keyed(**{"removed_files": 5, "vacuumed_at": None if ago is None else NOW - ago} | more)


def test_a_vacuum_is_due_daily():
    day = dt.timedelta(hours=24)
    assert [figures(job.trigger) for job in planned(vacuumed(day)).jobs] == ["24"]
    assert reasons(planned(vacuumed(day - dt.timedelta(hours=2))), "vacuum") == ["2.0"]
    assert [figures(job.trigger) for job in planned(vacuumed(None)).jobs] == [""]
    assert [job.trigger for job in planned(vacuumed(dt.timedelta(0)), force=True).jobs] == ["forced"]
    assert [job.trigger for job in planned(vacuumed(None, removed_since=NOW), force=True).jobs] == ["forced"]
    assert planned(vacuumed(day), settings={"vacuum_interval_hours": 25.0}).jobs == ()
    off = planned(vacuumed(day), settings={"vacuum_interval_hours": 0.0}, force=True)
    assert reasons(off, "vacuum") == ["vacuum_interval_hours 0"]
    assert planned(vacuumed(day), settings={"vacuum_interval_hours": 1e12}).jobs == ()


def test_the_oldest_removed_file_dates_the_last_vacuum():
    """A vacuum leaves files that are younger than its retention.

    If they made the next vacuum due, every cycle would have one.
    """
    assert planned(vacuumed(None, removed_since=NOW - dt.timedelta(hours=47))).jobs == ()
    (job,) = planned(vacuumed(None, removed_since=NOW - dt.timedelta(hours=48))).jobs
    assert figures(job.trigger) == "48"


def test_a_job_that_is_not_due_has_no_trigger_and_the_numbers_of_its_files():
    few = [
        *planned(events(changes(14))).left_out,
        *planned(keyed(change_files=changes(14))).left_out,
        *planned(vacuumed(dt.timedelta(0))).left_out,
    ]
    assert [(one.lane, one.trigger, len(one.files), figures(one.reason)) for one in few] == [
        ("events", "", 14, "14 32"),
        ("squash", "", 14, "14 32"),
        ("vacuum", "", 0, "24.0"),
    ]


def test_a_last_vacuum_in_the_future_is_ignored():
    """A clock that was years ahead for a while must not keep a dataset from being vacuumed for years."""
    ahead = dt.timedelta(days=-4000)
    assert len(planned(vacuumed(ahead, removed_since=NOW - dt.timedelta(hours=48))).jobs) == 1
    assert planned(vacuumed(ahead, removed_since=NOW - dt.timedelta(hours=47))).jobs == ()


def test_a_vacuum_is_due_after_a_clustering():
    table = vacuumed(dt.timedelta(hours=2), clustered_at=NOW - dt.timedelta(hours=1))
    assert [job.trigger for job in planned(table).jobs] == ["after a clustering"]
    assert planned(replace(table, clustered_at=NOW - dt.timedelta(hours=3))).jobs == ()


def test_without_a_known_vacuum_one_is_due_when_files_of_a_clustering_can_be_deleted():
    for hours, due in ((23, False), (25, True)):
        at = NOW - dt.timedelta(hours=hours)
        table = vacuumed(None, removed_since=at, clustered_at=at)
        assert [job.trigger for job in planned(table).jobs] == (["after a clustering"] if due else [])


def test_a_vacuum_of_nothing_or_beside_another_is_left_out():
    assert planned(vacuumed(None, removed_files=0)).left_out == ()
    job = UnfinishedJob(job="j", dataset="a.b.k", kind=JobKind.VACUUM)
    assert reasons(planned(vacuumed(None), unfinished=[job]), "vacuum") == ["j"]
