"""Roll-ups: each rule of a tier at, below and above its threshold."""

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from siltstone.compaction.planning.model import FileEntry, JobKind, TableState, UnfinishedJob
from siltstone.model.periods import Granularity
from tests.support.entries import (
    DAILY,
    HOUR_MS,
    HOURLY,
    MB,
    MONTHLY,
    NOW,
    NOW_MS,
    WEEKLY,
    entries,
    log,
    moment_ms,
    planned,
    reasons,
)
from tests.support.refusals import figures

OLD = "2026-11-02T10"
SMALL_TARGET = replace(HOURLY, target_bytes=100 * MB)


def test_a_closed_period_is_taken_from_the_threshold_on():
    assert reasons(planned(log(entries(OLD, 9))), "hourly") == ["9 10"]
    (job,) = planned(log(entries(OLD, 10))).jobs
    assert (job.kind, job.lane, job.dataset, job.period) == (JobKind.ROLL_UP, "hourly", "a.b.c", OLD)
    assert (len(job.files), job.files_after, job.rows, job.cost_bytes) == (10, 1, 100, 10 * MB)
    assert (job.batch, job.batches, job.target_bytes, job.trigger) == (1, 1, HOURLY.target_bytes, "10 files")


def test_an_open_period_waits_and_a_closed_one_waits_for_the_age_of_the_tier():
    table = log(entries("2026-11-16T10", 10))  # over at 11:00, eligible from 12:00 on
    last_open, last_young = NOW.replace(hour=10, minute=59), NOW - dt.timedelta(microseconds=1)
    assert reasons(planned(table, now=last_open), "hourly") == ["2026-11-16 11:00"]
    assert reasons(planned(table, now=last_young), "hourly") == ["2026-11-16 11:00 2026-11-16 12:00"]
    assert len(planned(table, now=NOW).jobs) == 1


def test_files_of_a_compaction_are_counted_separately_and_rewritten():
    files = entries(OLD, 9), entries(OLD, 1, tier="hourly", prefix="c")
    assert reasons(planned(log(*files)), "hourly") == ["9 10 1"]
    (job,) = planned(log(entries(OLD, 10), files[1])).jobs
    assert len(job.files) == 11


def test_a_file_of_half_the_target_is_left_alone_and_one_below_is_taken():
    for tier in ("", "hourly"):
        half, below = (entries(OLD, 1, size=size, tier=tier, prefix="x") for size in (50 * MB, 50 * MB - 1))
        assert len(planned(log(entries(OLD, 10), half, tiers=[SMALL_TARGET])).jobs[0].files) == 10
        assert len(planned(log(entries(OLD, 10), below, tiers=[SMALL_TARGET])).jobs[0].files) == 11


def test_clustered_files_are_left_alone_unless_they_move():
    clustered = entries(OLD, 20, tier="cluster", prefix="z")
    assert planned(log(clustered)).left_out == ()
    assert len(planned(log(clustered, entries(OLD, 10))).jobs[0].files) == 10
    assert len(planned(log(clustered, tiers=[DAILY])).jobs[0].files) == 20


def test_large_files_do_not_count_for_the_threshold():
    large = entries(OLD, 20, size=50 * MB, prefix="x")
    assert reasons(planned(log(entries(OLD, 9), large, tiers=[SMALL_TARGET])), "hourly") == ["9 10"]
    assert planned(log(large, tiers=[SMALL_TARGET])).left_out == ()


def test_a_period_that_is_done_is_not_mentioned():
    found = planned(log(entries(OLD, 1, tier="hourly")))
    assert (found.jobs, found.left_out) == ((), ())


def test_two_or_more_small_files_that_batches_left_are_merged():
    (job,) = planned(log(entries(OLD, 2, tier="hourly"))).jobs
    assert (len(job.files), figures(job.trigger)) == (2, "2")
    (job,) = planned(log(entries(OLD, 2, tier="hourly"), entries(OLD, 3, prefix="new"))).jobs
    assert len(job.files) == 5


def test_the_target_size_decides_the_number_of_files():
    (job,) = planned(log(entries(OLD, 20, size=30 * MB), tiers=[SMALL_TARGET])).jobs
    assert job.files_after == 6
    (job,) = planned(log(entries(OLD, 20, size=30 * MB), tiers=[replace(SMALL_TARGET, target_bytes=200 * MB)])).jobs
    assert job.files_after == 3


@pytest.mark.parametrize(
    ("count", "expected"), [(29, [29]), (30, [30]), (31, [31]), (32, [30, 2]), (60, [30, 30]), (61, [30, 31])]
)
def test_batches_have_at_most_max_files_and_a_remainder_of_one_goes_into_the_last(count: int, expected: list[int]):
    jobs = planned(log(entries(OLD, count))).jobs
    assert [len(job.files) for job in jobs] == expected
    assert [(job.batch, job.batches) for job in jobs] == [(n, len(expected)) for n in range(1, len(expected) + 1)]
    assert len({file for job in jobs for file in job.files}) == count


def test_partition_values_are_rolled_up_each_for_itself():
    north = entries(OLD, 10, partition=(("region", "north"),), prefix="n")
    none = entries(OLD, 9, partition=(("region", None),), prefix="z")
    found = planned(log(north, none))
    assert [job.partition for job in found.jobs] == [(("region", "north"),)]
    assert reasons(found, "hourly") == ["9 10"]


# ---- into coarser periods ------------------------------------------------------------------------------------------


def hours(day: str, count: int, each: int = 1, **more: Any) -> list[FileEntry]:  # noqa: ANN401
    return [file for hour in range(count) for file in entries(f"{day}T{hour:02d}", each, **more)]


def test_hours_go_into_their_day_whatever_their_size():
    quiet = replace(DAILY, target_bytes=100 * MB)
    files = hours("2026-11-02", 12, size=60 * MB, tier="hourly")
    (job,) = planned(log(files, tiers=[quiet])).jobs
    assert (job.period, len(job.files), job.files_after) == ("2026-11-02", 12, 8)
    assert [file.period for file in job.files] == sorted(file.period for file in files)


def test_files_that_moving_would_not_make_fewer_stay():
    files = hours("2026-11-02", 12, size=100 * MB, tier="hourly")
    found = planned(log(files, tiers=[replace(DAILY, target_bytes=100 * MB)]))
    assert reasons(found, "daily") == ["12"]


def test_a_day_closes_for_the_daily_tier_a_day_after_its_end():
    table = log(hours("2026-11-14", 12), tiers=[DAILY])
    at = dt.datetime(2026, 11, 16, tzinfo=dt.UTC)
    assert len(planned(table, now=at).jobs) == 1
    assert "2026-11-16 00:00" in reasons(planned(table, now=at - dt.timedelta(seconds=1)), "daily")[0]


def test_the_coarsest_ready_tier_takes_the_files_and_the_finer_one_has_a_reason():
    found = planned(log(entries(OLD, 12), tiers=[HOURLY, DAILY]))
    assert [(job.lane, job.period) for job in found.jobs] == [("daily", "2026-11-02")]
    assert reasons(found, "hourly") == ["daily"]


def test_a_tier_that_is_not_ready_leaves_the_files_to_the_finer_one():
    found = planned(log(entries(OLD, 11), tiers=[HOURLY, DAILY]))
    assert [(job.lane, job.period) for job in found.jobs] == [("hourly", OLD)]
    assert reasons(found, "daily") == ["11 12"]


def test_a_tier_takes_what_is_left_in_finer_periods_and_small_files_of_its_own():
    october = hours("2026-10-02", 5) + entries("2026-10-03", 5) + entries("2026-W40", 2)
    own = entries("2026-10", 1, tier="monthly")
    (job,) = planned(log(october, own, tiers=[MONTHLY])).jobs
    assert (job.period, len(job.files)) == ("2026-10", 13)


def test_a_tier_leaves_periods_that_are_coarser_than_its_source():
    weeks = entries("2026-W40", 20)
    assert planned(log(weeks, tiers=[replace(MONTHLY, source=Granularity.DAY)])).jobs == ()
    assert len(planned(log(weeks, tiers=[MONTHLY])).jobs) == 1


def test_a_week_that_goes_into_a_month_closes_the_month_only_with_its_own_end():
    table = log(entries("2026-W31", 12), tiers=[MONTHLY])  # Thursday 2026-07-30, over on 2026-08-03
    assert planned(table, now=dt.datetime(2026, 8, 5, 23, tzinfo=dt.UTC)).jobs == ()
    assert len(planned(table, now=dt.datetime(2026, 8, 6, tzinfo=dt.UTC)).jobs) == 1


def test_a_disabled_tier_is_left_out_with_a_reason():
    found = planned(log(entries("2026-11-02", 20), tiers=[WEEKLY]))
    assert found.jobs == ()
    assert reasons(found, "weekly") == ["weekly"]


# ---- quiet ---------------------------------------------------------------------------------------------------------


def test_a_period_with_a_young_file_waits_until_it_is_quiet():
    def table(age_ms: int, tier: str = "") -> TableState:
        late = entries("2026-11-14T03", 1, prefix="late", modified_ms=NOW_MS - age_ms, tier=tier)
        return log(hours("2026-11-14", 12, tier="hourly"), late, tiers=[DAILY])

    assert len(planned(table(24 * HOUR_MS)).jobs) == 1
    assert reasons(planned(table(23 * HOUR_MS)), "daily") == ["1.0"]
    assert len(planned(table(1, tier="hourly")).jobs) == 1, "a compaction brings no new rows"


def test_a_period_that_closed_seven_days_ago_need_not_be_quiet():
    now = dt.datetime(2026, 11, 16, tzinfo=dt.UTC)
    late: dict[str, Any] = {"prefix": "late", "modified_ms": moment_ms("2026-11-15T23:59")}
    for day, jobs in (("2026-11-08", 1), ("2026-11-09", 0)):  # over on the 9th and on the 10th
        table = log(hours(day, 12), entries(f"{day}T01", 1, **late), tiers=[DAILY])
        assert len(planned(table, now=now).jobs) == jobs, day


# ---- force ---------------------------------------------------------------------------------------------------------


def test_force_takes_sparse_and_young_periods():
    assert len(planned(log(entries(OLD, 2)), force=True).jobs) == 1
    young = log(entries("2026-11-16T11", 2, modified_ms=NOW_MS))
    assert planned(young).jobs == ()
    assert len(planned(young, force=True).jobs) == 1
    noisy = log(hours("2026-11-15", 2, modified_ms=NOW_MS), tiers=[DAILY])
    assert len(planned(noisy, force=True).jobs) == 1


def test_force_never_takes_one_file_or_an_open_period():
    assert reasons(planned(log(entries(OLD, 1)), force=True), "hourly") == ["1 2"]
    assert reasons(planned(log(entries("2026-11-16T12", 50)), force=True), "hourly") == ["2026-11-16 13:00"]


# ---- unfinished jobs and bad state ---------------------------------------------------------------------------------


def test_files_of_unfinished_jobs_are_neither_counted_nor_taken():
    files = entries(OLD, 12)
    job = UnfinishedJob(job="j7", dataset="a.b.c", kind=JobKind.ROLL_UP, files=[file.path for file in files[:2]])
    (found,) = planned(log(files), unfinished=[job]).jobs
    assert len(found.files) == 10
    job = replace(job, files=[file.path for file in files[:3]])
    assert reasons(planned(log(files), unfinished=[job]), "hourly") == ["9 10 j7"]
    job = replace(job, files=[file.path for file in files])
    assert reasons(planned(log(files), unfinished=[job]), "hourly") == ["j7"]
    assert len(planned(log(files), unfinished=[replace(job, dataset="x.y.z")]).jobs) == 1


def test_a_period_that_cannot_be_read_is_named_and_the_others_are_planned():
    found = planned(log(entries(OLD, 10), entries("nonsense", 3)))
    assert len(found.jobs) == 1
    assert "'nonsense'" in reasons(found, "roll_up")[0]


def test_a_candidate_waits_since_its_period_was_ready_or_its_first_file_came():
    (early,) = planned(log(entries(OLD, 10))).jobs
    assert early.waiting_since_ms == moment_ms("2026-11-02T12:00")
    (late,) = planned(log(entries(OLD, 10, modified_ms=moment_ms("2026-11-09")))).jobs
    assert late.waiting_since_ms == moment_ms("2026-11-09")
