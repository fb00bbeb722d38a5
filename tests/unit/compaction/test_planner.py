"""Whole plans: the budget, the turns of the lanes, and the invariants of every plan."""

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.compaction.planning.budget import select_jobs
from siltstone.compaction.planning.model import (
    COLUMNS,
    Backlog,
    FileEntry,
    Inputs,
    JobKind,
    JobSpec,
    Plan,
    Shape,
    TableState,
    UnfinishedJob,
)
from siltstone.compaction.planning.planner import plan
from siltstone.config import Settings
from siltstone.errors import InvalidRequest
from siltstone.model.periods import Granularity, coarser, end
from siltstone.model.tiers import DEFAULT_TIERS
from tests.support.entries import DAILY, HOURLY, MB, NOW, NOW_MS, entries, keyed, log, planned, reasons
from tests.support.refusals import figures, refused

LANES = ("fold", "squash", "hourly", "daily")


def candidate(lane: str, name: str, *, cost: int, since: int = 0, saved: int = 0, batch: int = 1) -> JobSpec:
    return JobSpec(
        kind=JobKind.ROLL_UP,
        lane=lane,
        dataset=name,
        cost_bytes=cost,
        waiting_since_ms=since,
        saved_bytes=saved,
        batch=batch,
    )


def names(found: tuple[JobSpec, ...]) -> list[str]:
    return [job.dataset for job in found]


def choose(candidates: list[JobSpec], *, cycle: int = 0, budget: int = 10) -> list[str]:
    return names(select_jobs(candidates, lanes=LANES, cycle=cycle, budget_bytes=budget)[0])


# ---- the choice ----------------------------------------------------------------------------------------------------


def test_lanes_alternate_and_the_number_of_the_cycle_decides_which_is_first():
    waiting = [candidate(lane, f"{lane}{n}", cost=1, since=n) for lane in ("daily", "fold", "hourly") for n in (1, 2)]
    assert choose(waiting, cycle=0) == ["fold1", "hourly1", "daily1", "fold2", "hourly2", "daily2"]
    assert choose(waiting, cycle=3) == ["daily1", "fold1", "hourly1", "daily2", "fold2", "hourly2"]
    assert choose(waiting, cycle=7) == choose(waiting, cycle=3)


def test_the_oldest_of_a_lane_is_first_and_the_others_go_by_score():
    waiting = [candidate("fold", f"{n}", cost=1, since=n, saved=n * 1000) for n in (3, 1, 2, 4)]
    assert choose(waiting) == ["1", "4", "3", "2"]


def test_the_budget_holds_to_the_byte_and_smaller_jobs_may_pass():
    waiting = [candidate("fold", "old", cost=6, since=0), candidate("hourly", "big", cost=5, since=0)]
    waiting.append(candidate("hourly", "fits", cost=4, since=1))
    jobs, over = select_jobs(waiting, lanes=LANES, cycle=0, budget_bytes=10)
    assert names(jobs) == ["old", "fits"]
    assert [figures(found.reason) for found in over] == ["5 4 10"]
    assert names(over) == ["big"]


def test_a_job_that_is_larger_than_the_budget_runs_when_its_lane_is_first():
    waiting = [candidate("fold", "small", cost=1), candidate("daily", "huge", cost=99)]
    assert choose(waiting, cycle=0) == ["small"]
    assert choose(waiting, cycle=3) == ["huge"]
    free = candidate("squash", "free", cost=0)
    assert choose([*waiting, free], cycle=3) == ["huge", "free"]


def test_batches_of_one_period_stand_in_order():
    first = candidate("fold", "x", cost=1, since=5, saved=1, batch=1)
    batches = [first, replace(first, batch=2, saved_bytes=100), replace(first, batch=3, saved_bytes=1000)]
    jobs, _ = select_jobs(batches, lanes=LANES, cycle=0, budget_bytes=10)
    assert [job.batch for job in jobs] == [1, 2, 3]


def test_the_score_is_saved_bytes_over_rewritten_bytes():
    assert candidate("fold", "x", cost=4 * MB, saved=16 * MB).score == 2.0
    few, many = (planned(log(entries("2026-11-02T10", count))).jobs[0] for count in (10, 20))
    large = planned(log(entries("2026-11-02T10", 20, size=20 * MB))).jobs[0]
    assert large.score < few.score < many.score
    assert many.saved_bytes == 19 * 4 * MB


lanes_of = st.sampled_from(LANES)
arrivals = st.lists(
    st.lists(st.tuples(lanes_of, st.integers(0, 40), st.integers(0, 10**9)), max_size=4), min_size=1, max_size=25
)


@given(arrivals, st.integers(0, 1000), st.integers(1, 20))
def test_no_candidate_waits_longer_than_a_turn_for_itself_and_each_older_one_of_its_lane(
    cycles: list[list[tuple[str, int, int]]], first_cycle: int, budget: int
):
    """Independent of the cost, gain and number of other candidates, and also for a candidate larger than the budget."""
    waiting: dict[str, JobSpec] = {}
    deadline: dict[str, int] = {}
    for number in range(len(cycles) + 200):
        for at, (lane, cost, saved) in enumerate(cycles[number] if number < len(cycles) else []):
            name = f"{number}-{at}"
            older = sum(found.lane == lane for found in waiting.values())
            deadline[name] = number + (older + 1) * len(LANES)
            waiting[name] = candidate(lane, name, cost=cost, saved=saved, since=number * 10 + at)
        cycle = first_cycle + number
        jobs, over = select_jobs(waiting.values(), lanes=LANES, cycle=cycle, budget_bytes=budget)
        assert sorted(names(jobs) + names(over)) == sorted(waiting)
        assert sum(job.cost_bytes for job in jobs) <= budget or all(job.cost_bytes == 0 for job in jobs[1:])
        for job in jobs:
            del waiting[job.dataset]
        late = [name for name in waiting if deadline[name] <= number]
        assert not late, (number, late)
    assert not waiting


# ---- plans ---------------------------------------------------------------------------------------------------------

regions = st.sampled_from([(), (("region", "n"),), (("region", None),)])
file_values = st.tuples(
    st.integers(1, 24 * 100),  # hours ago
    st.sampled_from(list(Granularity)),
    regions,
    st.sampled_from([1, MB, 255 * MB, 256 * MB, 2048 * MB]),
    st.sampled_from(["", "", "hourly", "daily", "cluster"]),
    st.integers(0, 24 * 10),
)


@st.composite
def tables(draw: st.DrawFn, name: str = "a.b.c") -> TableState:
    listed: list[FileEntry] = []
    for hours, granularity, region, size, tier, age in draw(st.lists(file_values, max_size=12)):
        hour = dt.datetime.fromtimestamp(NOW_MS // 1000 - hours * 3600, dt.UTC).isoformat()[:13]
        period = coarser(hour, granularity)
        copies = draw(st.sampled_from([1, 2, 9, 12, 31]))
        for _ in range(copies):
            modified = NOW_MS - age * 3_600_000
            listed.append(FileEntry(f"f{len(listed)}", size, 1, period, region, tier, modified))
    return TableState(
        name=name,
        shape=draw(st.sampled_from(list(Shape))),
        files=listed,
        change_files=[FileEntry(f"c{n}", 1024, order=n) for n in range(draw(st.sampled_from([0, 1, 40])))],
        backlog=Backlog(batches=draw(st.sampled_from([0, 3, 64])), rows=3, size_bytes=4096, oldest_ms=NOW_MS),
        tiers=tuple(replace(tier, enabled=draw(st.booleans())) for tier in DEFAULT_TIERS),
        cluster_by=draw(st.sampled_from([(), ("at",)])),
        removed_files=draw(st.sampled_from([None, 0, 4])),
    )


@st.composite
def given_inputs(draw: st.DrawFn) -> Inputs:
    found = [draw(tables(f"a.b.t{n}")) for n in range(draw(st.integers(1, 3)))]
    unfinished = []
    for table in found:
        paths = [file.path for file in (*table.files, *table.change_files)]
        if draw(st.booleans()) and paths:
            kind = draw(st.sampled_from(list(JobKind)))
            busy = draw(st.lists(st.sampled_from(paths), max_size=20))
            unfinished.append(UnfinishedJob(job="j", dataset=table.name, kind=kind, files=busy))
    return Inputs(tables=found, cycle=draw(st.integers(0, 99)), unfinished=unfinished, force=draw(st.booleans()))


BUDGETS = st.sampled_from([1, 100 * MB, 10**12])


@given(given_inputs(), BUDGETS)
def test_every_plan_keeps_the_rules(inputs: Inputs, budget: int):
    made = plan(inputs, Settings(cycle_bytes=budget), NOW)
    taken = Counter((job.dataset, file.path) for job in made.jobs for file in job.files)
    assert all(count == 1 for count in taken.values()), "a file is planned twice"
    busy = {(job.dataset, path) for job in inputs.unfinished for path in job.files}
    assert not busy & set(taken), "a file of an unfinished job is planned"
    listed = {(t.name, f.path) for t in inputs.tables for f in (*t.files, *t.change_files)}
    assert set(taken) <= listed
    assert made.cost_bytes <= budget or all(job.cost_bytes == 0 for job in made.jobs[1:])
    assert all(found.reason for found in made.left_out)
    for job in made.jobs:
        check_job(job, inputs)


def check_job(job: JobSpec, inputs: Inputs) -> None:
    assert not job.reason
    assert job.trigger
    if job.kind is not JobKind.ROLL_UP:
        return
    table = next(table for table in inputs.tables if table.name == job.dataset)
    tier = next(tier for tier in table.tiers if tier.name == job.lane)
    assert tier.enabled
    assert end(job.period) <= NOW
    assert 2 <= len(job.files) <= tier.max_files + 1
    assert job.files_after < len(job.files)
    assert job.cost_bytes == sum(file.size_bytes for file in job.files)
    assert {file.partition for file in job.files} == {job.partition}
    for file in job.files:
        assert file.period != job.period or file.size_bytes < tier.small_bytes
        assert end(file.period) <= NOW
    if not inputs.force:
        assert end(job.period) + dt.timedelta(seconds=tier.min_age_seconds) <= NOW


@given(given_inputs(), BUDGETS, st.randoms(use_true_random=False))
def test_a_plan_is_a_function_of_its_input_and_not_of_its_order(inputs: Inputs, budget: int, shuffle: random.Random):
    settings = Settings(cycle_bytes=budget)
    first = plan(inputs, settings, NOW)
    assert plan(inputs, settings, NOW) == first

    def shuffled(values: Sequence[Any]) -> list[Any]:
        return shuffle.sample(list(values), len(values))

    mixed = [
        replace(t, files=shuffled(t.files), change_files=shuffled(t.change_files), tiers=tuple(shuffled(t.tiers)))
        for t in shuffled(inputs.tables)
    ]
    assert plan(replace(inputs, tables=mixed), settings, NOW) == first


@given(given_inputs())
def test_a_plan_is_shown_as_a_table_and_as_json(inputs: Inputs):
    made = plan(inputs, Settings(), NOW)
    lines = made.table()
    assert len(lines) == len(made.jobs) + len(made.left_out)
    assert all(len(line) == len(COLUMNS) and line[-1] for line in lines)
    assert [line[-1].startswith("planned: ") for line in lines] == [True] * len(made.jobs) + [False] * len(
        made.left_out
    )
    again = json.loads(json.dumps(made.to_dict(with_files=True)))
    assert [len(job["paths"]) for job in again["jobs"]] == [len(job.files) for job in made.jobs]
    assert again["cost_bytes"] == made.cost_bytes


def test_a_line_of_a_plan_has_the_job_and_its_reason():
    made = planned(log(entries("2026-11-02T10", 32, partition=(("region", "n"),))), settings={"cycle_bytes": 31 * MB})
    assert [(*line[:-1], figures(line[-1])) for line in made.table()] == [
        (
            "hourly", "a.b.c", "2026-11-02T10 region=n", "1 of 2", "30 → 1", "30.0", "3.41", "32",
        ),
        (
            "hourly", "a.b.c", "2026-11-02T10 region=n", "2 of 2", "2 → 1", "2.0", "0.67",
            "2 1 31",
        ),
    ]  # fmt: skip


def test_only_requested_lanes_are_planned():
    table = log(entries("2026-11-02T10", 12), tiers=[HOURLY, DAILY], backlog=Backlog(batches=64))
    assert {job.lane for job in planned(table).jobs} == {"fold", "daily"}
    assert {job.lane for job in planned(table, only=frozenset({"hourly"})).jobs} == {"hourly"}
    assert {job.lane for job in planned(table, only=frozenset({"roll_up"})).jobs} == {"daily"}
    assert {job.lane for job in planned(table, only=frozenset({"fold"})).jobs} == {"fold"}
    with pytest.raises(InvalidRequest, match="'weekly'"):
        planned(table, only=frozenset({"weekly"}))


def test_the_order_of_datasets_does_not_matter_if_a_tier_differs_among_them():
    files = [entries(f"2026-10-0{day}T10", 12, size=60 * MB) for day in (2, 3, 4)]
    as_ever = replace(DAILY, name="b")
    other = replace(DAILY, name="b", source=Granularity.HOUR, target=Granularity.MONTH)
    third = replace(DAILY, name="a", target=Granularity.WEEK)
    listed = [log(files[n], tiers=[tier], name=f"t{n}") for n, tier in enumerate((as_ever, other, third))]
    assert {job.period for job in planned(*listed).jobs} == {"2026-10-02", "2026-10", "2026-W40"}
    for cycle in range(8):
        made = planned(*listed, cycle=cycle, settings={"cycle_bytes": 1})
        assert made == planned(*listed[::-1], cycle=cycle, settings={"cycle_bytes": 1})


def test_inputs_that_contradict_are_refused():
    with refused(InvalidRequest, None, "a.b.k"):
        planned(keyed(), keyed())
    with refused(InvalidRequest, None, "vacuum_retention_hours (0.5)", "vacuum_floor_hours (1)"):
        planned(keyed(), settings={"vacuum_retention_hours": 0.5})
    assert planned(keyed(), settings={"vacuum_retention_hours": 1.0}).jobs == ()
    with pytest.raises(InvalidRequest):
        planned(keyed(), now=NOW.replace(tzinfo=None))


def test_nothing_to_do_is_an_empty_plan():
    assert planned() == Plan(cycle=0, budget_bytes=Settings().cycle_bytes, jobs=(), left_out=())


# ---- many cycles ---------------------------------------------------------------------------------------------------


def done(table: TableState, made: Plan, number: int) -> TableState:
    """Return the table after its roll-ups: the files of each job are replaced by those of its plan."""
    files = {file.path: file for file in table.files}
    for at, job in enumerate(made.jobs):
        for file in job.files:
            del files[file.path]
        share = -(-job.cost_bytes // job.files_after)
        for n in range(job.files_after):
            path = f"{number}-{at}-{n}"
            files[path] = FileEntry(path, share, 1, job.period, job.partition, job.lane, NOW_MS)
    return replace(table, files=list(files.values()))


@given(st.integers(2, 400), st.sampled_from([1, 7, 60, 300]), st.integers(2, 40))
def test_a_closed_period_ends_in_as_few_files_as_its_target_size_needs_and_then_rests(
    count: int, size: int, most_files: int
):
    tier = replace(HOURLY, min_files=2, max_files=most_files)
    table = log(entries("2026-11-02T10", count, size=size * MB), tiers=[tier])
    rewritten = 0
    for number in range(50):
        made = planned(table, cycle=number)
        if not made.jobs:
            break
        rewritten += made.cost_bytes
        table = done(table, made, number)
    total = count * size * MB
    least = -(-total // tier.target_bytes)
    large = sum(file.size_bytes >= tier.small_bytes for file in table.files)
    assert not planned(table, cycle=99).jobs, "it goes on for ever"
    assert len(table.files) - large <= 1, "small files are left"
    assert len(table.files) <= 2 * least + 1
    assert rewritten <= 12 * total


def test_roll_ups_and_clusterings_do_not_undo_each_other():
    hours = [file for hour in range(24) for file in entries(f"2026-11-02T{hour:02d}", 3, size=90 * MB)]
    table = log(hours, tiers=[HOURLY, DAILY], cluster_by=("at",))
    lanes = []
    for number in range(9):
        made = planned(table, cycle=number)
        lanes += [job.lane for job in made.jobs]
        table = done(table, made, number)
    assert lanes == ["daily", "daily", "daily", "cluster"]
    assert len(table.files) == -(-72 * 90 // 128)


def test_the_daily_tier_is_not_starved_by_the_hourly_one():
    """In every cycle forty new hours are ready, more than the budget; the day is still rolled up in its turn."""
    old = [file for hour in range(12) for file in entries(f"2026-10-01T{hour:02d}", 1)]
    table = log(old, tiers=[HOURLY, DAILY])
    for number in range(7):  # five other kinds of jobs and two tiers
        for n in range(40):
            day = dt.date(2026, 9, 30) - dt.timedelta(days=number * 40 + n)
            table = replace(table, files=[*table.files, *entries(f"{day}T10", 11, modified_ms=NOW_MS + number)])
        made = planned(table, cycle=number, settings={"cycle_bytes": 11 * MB})
        assert made.jobs
        if any(job.period == "2026-10-01" for job in made.jobs):
            break
        assert len(reasons(made, "hourly")) > 30
        table = done(table, made, number)
    else:
        pytest.fail("the day was never rolled up")
