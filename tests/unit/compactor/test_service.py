"""The caretaker: works by the clock under the lease, and a desk where others ask. No Spark: squashes, vacuums, empty folds."""

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone.cli.compactor_output import told_line
from siltstone.compaction.execution.report import CycleReport
from siltstone.compaction.planning.model import Plan
from siltstone.config import JobPlace, Role, Settings
from siltstone.coordination.leases import COMPACTOR
from siltstone.coordination.state_files import CYCLES, PAUSED, STATUS
from siltstone.cron import next_after as timing
from siltstone.errors import Conflict, Corruption, InvalidRequest, NotFound, Reason, SiltstoneError
from siltstone.lake import Lake
from siltstone.model.compaction_request import Ask, Wish
from siltstone.scheduler.caretaker import Caretaker
from siltstone.scheduler.cycles import Cycle, Outcome, State, Why, WorkResult
from siltstone.scheduler.housework import Turn
from siltstone.scheduler.overview import told_cycle
from siltstone.scheduler.works import crons
from tests.support.caretaking import NAME, SETTINGS, Asked, filled, ids, lake_of, slow_lake, until
from tests.support.children import NO_SPARK
from tests.support.clocks import FakeClock
from tests.support.leasing import leases_of
from tests.support.refusals import refused
from tests.support.rolled import make_log

FOLD = Wish(ask=Ask.COMPACT, names=(NAME,))
PURGE = Wish(ask=Ask.COMPACT, names=(NAME,), purge=True)
CYCLE = Wish(ask=Ask.CYCLE)


class Bench:
    """Compactors on one lake and one clock that a test moves, and what they told."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, FakeClock()
        self.told: list[dict[str, Any]] = []
        self.made: list[Caretaker] = []
        self.lake = lake_of(root, clock=self.clock)
        filled(self.lake)

    def caretaker(self, lake: Lake | None = None, **given: Any) -> Caretaker:  # noqa: ANN401
        found = (lake or lake_of(self.root, clock=self.clock)).compactor(tell=self.told.append, **given)
        self.made.append(found)
        return found

    def events(self) -> list[str]:
        return [str(one["event"]) for one in self.told]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path / "lake")
    yield found
    for caretaker in found.made:
        caretaker.stop()


# ---- the works -------------------------------------------------------------------------------------------------------


def test_every_tier_and_kind_of_work_has_its_cron():
    found = crons(replace(Settings(), tiers="weekly.enabled=yes; hourly.cron=7 * * * *", cluster_cron=" "))
    assert next(iter(found)) == "recovery"
    assert (found["hourly"], found["weekly"], found["cluster"]) == ("7 * * * *", "0 4 * * 3", None)
    assert {"fold", "squash", "events", "vacuum", "daily", "monthly"} < set(found)


def test_a_tier_that_only_a_dataset_has_is_looked_at_by_the_cron_it_has_there(bench: Bench):
    log = bench.lake.create("a.b.log", "at TIMESTAMP NOT NULL", time="at")
    log.set_tiers("weekly.enabled=yes; hourly.cron=9 * * * *")
    caretaker = bench.caretaker()
    due = caretaker.status().due
    assert (due["weekly"], due["weekly@0 4 * * 3"]) == (None, timing("0 4 * * 3", bench.clock.now()))
    assert due["hourly"] == timing("5 * * * *", bench.clock.now()), "the other datasets keep the lake's cron"
    assert due["hourly@9 * * * *"] == timing("9 * * * *", bench.clock.now())
    bench.lake.drop("a.b.log")
    bench.clock.pass_time(minutes=1)
    caretaker.step()
    assert [name for name in caretaker.status().due if "@" in name] == [], "looked at with every cycle"
    assert "weekly" in bench.caretaker(only=["weekly"]).status().due


class PlanningLake(Lake):
    """A lake that plans cycles and does none of their jobs."""

    planned: list[tuple[str, str]]

    def _carried_out(self, plan: Plan, **_given: Any) -> CycleReport:  # noqa: ANN401
        self.planned += [(job.lane, job.dataset) for job in plan.jobs]
        return CycleReport(cycle=plan.cycle, results=())


def test_a_tier_is_rolled_up_in_each_dataset_by_the_cron_it_has_there(bench: Bench):
    names = ["a.b.lakes", "a.b.own", "a.b.same"]
    for name in names:
        make_log(bench.lake, files=12, name=name)
    bench.lake.dataset("a.b.own").set_tiers("hourly.cron=9 * * * *")
    bench.lake.dataset("a.b.same").set_tiers("hourly.min_files=11")
    lake = PlanningLake.open(bench.root, settings=SETTINGS, clock=bench.clock)
    assert isinstance(lake, PlanningLake)
    lake.planned = []
    caretaker = bench.caretaker(lake, only=["hourly"])
    found = {}
    for minute in range(1, 13):
        bench.clock.pass_time(minutes=1)
        lake.planned.clear()
        caretaker.step()
        found[minute] = [dataset for _, dataset in lake.planned]
    assert found == {minute: [] for minute in range(1, 13)} | {5: ["a.b.lakes", "a.b.same"], 9: ["a.b.own"]}
    bench.lake.dataset("a.b.same").set_tiers("hourly.cron=20 * * * *")
    bench.clock.pass_time(minutes=53)
    caretaker.step()
    assert [dataset for _, dataset in lake.planned] == ["a.b.lakes"], "from the next cycle on"
    lake.planned.clear()
    caretaker.trigger(["hourly"])
    caretaker.step()
    assert [dataset for _, dataset in lake.planned] == names, "who asks for a tier means all that have it"
    bench.clock.pass_time(minutes=15)
    lake.planned.clear()
    caretaker.step()
    assert [dataset for _, dataset in lake.planned] == ["a.b.own", "a.b.same"]


def test_a_cron_that_is_none_is_named_with_its_setting(bench: Bench):
    with pytest.raises(InvalidRequest, match="Setting 'fold_cron': 'often' is not a valid cron expression"):
        bench.caretaker(lake_of(bench.root, settings=replace(SETTINGS, fold_cron="often")))


def test_an_unknown_work_is_refused(bench: Bench):
    with pytest.raises(InvalidRequest, match=r"no tier or work 'nix'\. Known: recovery, fold"):
        bench.caretaker(only=["nix"])


# ---- by the clock ----------------------------------------------------------------------------------------------------


def test_what_is_due_together_is_planned_together_and_is_one_cycle(bench: Bench):
    filled(bench.lake, batches=5)
    caretaker = bench.caretaker()
    assert caretaker.step() is None
    bench.clock.pass_time(minutes=1)
    cycle = caretaker.step()
    assert cycle is not None
    assert [(one.work, one.outcome) for one in cycle.results] == [("fold, squash", Outcome.DONE)]
    [job] = cycle.results[0].value
    assert (job["kind"], job["error"], job["report"]["files_removed"]) == ("squash", None, 5)
    assert job["job"].startswith(f"{cycle.number}-")
    assert ids(bench.lake) == [0, 1, 2, 3, 4]
    assert bench.events() == ["holding", "cycle_began", "job_began", "job_ended", "cycle_ended"]


def test_a_cycle_with_nothing_to_do_says_nothing(bench: Bench):
    caretaker = bench.caretaker()
    for _ in range(5):
        caretaker.step()
        bench.clock.pass_time(minutes=1)
    assert len(caretaker.history()) == 4
    assert bench.events() == ["holding"]


def test_numbers_go_on_and_what_was_missed_is_caught_up_once(bench: Bench):
    first = bench.caretaker(only=["vacuum"])
    first.step()
    bench.clock.pass_time(hours=1)
    cycle = first.step()
    assert cycle is not None
    assert cycle.number == 1
    first.stop()
    bench.clock.pass_time(days=3)
    second = bench.caretaker(only=["vacuum"])
    cycle = second.step()
    assert cycle is not None
    assert (cycle.number, [one.work for one in cycle.results]) == (2, ["recovery", "vacuum"])
    assert second.step() is None


def test_a_clock_that_jumps_neither_stops_the_works_nor_repeats_them(bench: Bench):
    caretaker = bench.caretaker(only=["squash"])
    caretaker.step()
    bench.clock.jump(days=-30)
    assert caretaker.step() is None
    bench.clock.pass_time(minutes=1)
    assert caretaker.step() is not None
    bench.clock.jump(days=60)
    assert caretaker.step() is not None
    assert caretaker.step() is None


def test_only_the_chosen_datasets_are_looked_after(bench: Bench):
    other = bench.lake.create("x.y.z", "id BIGINT NOT NULL", key="id")
    for number in range(5):
        other.upsert([{"id": number}])
    filled(bench.lake, batches=5)
    caretaker = bench.caretaker(names=lambda: ["x.y.z"], only=["squash"])
    caretaker.step()
    bench.clock.pass_time(minutes=1)
    cycle = caretaker.step()
    assert cycle is not None
    assert [job["dataset"] for job in cycle.results[0].value] == ["x.y.z"]


def test_a_lake_that_is_paused_stays_so_in_the_next_compactor(bench: Bench):
    first = bench.caretaker(only=["squash"])
    first.step()
    bench.lake.pause_compactor()
    bench.clock.pass_time(minutes=5)
    assert first.step() is None
    assert first.status().state is State.PAUSED
    first.stop()
    second = bench.caretaker(only=["squash"])
    bench.clock.pass_time(minutes=5)
    second.start()
    until(lambda: second.status().holder is not None)
    assert second.history() == ()
    assert bench.lake.compactor_overview()["paused"]
    assert bench.lake.resume_compactor()
    until(second.history)
    assert not bench.lake.resume_compactor()
    assert bench.events().count("paused") == 2


def test_what_is_asked_for_is_done_while_paused(bench: Bench):
    caretaker = bench.caretaker(lake_of(bench.root))
    caretaker.pause()
    caretaker.start()
    until(lambda: bench.lake.compactor_overview()["kind"])
    assert Asked(bench.root, FOLD).value().results[0]["report"]["final_rows"] == 0
    assert caretaker.wait(caretaker.trigger(["vacuum"]), seconds=60).failed is False
    caretaker.resume()
    assert not caretaker.status().paused


def test_a_compactor_for_one_cycle_does_nothing_by_the_clock_however_much_is_overdue(bench: Bench):
    first = bench.caretaker()
    bench.clock.pass_time(minutes=1)
    assert first.step() is not None
    first.stop()
    bench.clock.pass_time(days=1)
    once = bench.caretaker(goes_on=False)
    assert once.step() is None
    number = once.trigger()
    cycle = once.step()
    assert cycle is not None
    assert (cycle.number, cycle.failed) == (number, False)
    assert once.step() is None
    after = bench.caretaker()
    once.stop()
    assert after.step() is None, "what was overdue was a part of that cycle"


def test_cycles_with_and_without_the_lease_never_have_the_same_number(bench: Bench):
    caretaker = bench.caretaker()
    bench.clock.pass_time(minutes=1)
    found = [bench.lake.run_cycle().cycle, bench.lake.plan().cycle - 1]
    assert caretaker.step() is not None
    found += [bench.lake.run_cycle().cycle, bench.lake.ask(CYCLE).cycle or 0] if caretaker.stop() else []
    assert found == [1, 1, 3, 4]
    assert caretaker.history()[0].number == 2


def test_the_works_of_the_last_cycle_are_told_one_by_one(bench: Bench):
    caretaker = bench.caretaker(only=["fold", "squash"])
    bench.clock.pass_time(minutes=1)
    caretaker.step()
    assert bench.lake.compactor_overview()["last_cycle"]["works"] == ["fold", "squash"]


# ---- the lease -------------------------------------------------------------------------------------------------------


def test_a_second_compactor_stands_by_says_who_works_and_takes_over(bench: Bench):
    first, second = bench.caretaker(), bench.caretaker()
    first.step()
    second.step()
    second.step()
    assert bench.told[-1]["event"] == "standing_by"
    assert "holds the lease" in bench.told[-1]["because"]
    assert second.status().state is State.STANDING_BY
    with pytest.raises(Conflict, match="stands by: process"):
        second.trigger()
    first.stop()
    bench.clock.pass_time(minutes=1)
    cycle = second.step()
    assert cycle is not None
    assert (cycle.epoch, second.status().state) == (2, State.WAITING)


def test_whoever_stops_a_compactor_is_told_who_takes_over(bench: Bench):
    first, second = bench.caretaker(lake_of(bench.root)), bench.caretaker(lake_of(bench.root))
    first.start()
    until(lambda: bench.lake.compactor_overview()["kind"])
    second.start()
    until(lambda: "standing_by" in bench.events())
    told: list[str | None] = []
    asking = threading.Thread(target=lambda: told.append(lake_of(bench.root).stop_compactor(seconds=60)), daemon=True)
    asking.start()
    assert first.wait_until_told_to_stop(60)
    assert first.stop()
    asking.join(60)
    taken = second.status().holder
    assert taken is not None
    assert (told, taken.epoch) == ([taken.described()], 2)


def test_a_compactor_that_loses_its_lease_in_a_cycle_stops_at_once_and_stands_by(bench: Bench):
    lake = slow_lake(bench.root)
    caretaker = bench.caretaker(lake, only=["squash"])
    caretaker.start()
    until(lambda: caretaker.status().holder)
    caretaker.trigger(["squash"])
    assert lake.began.wait(60)
    leases = leases_of(bench.root)
    leases._table.look(COMPACTOR)
    row = leases.row(COMPACTOR)
    assert row is not None
    # another machine, whose clock says that the time of the lease is long over
    leases._table.write(replace(row, epoch=row.epoch + 1, holder="f" * 32, machine="another"), allowed=lambda *_: True)
    until(caretaker.history)
    [result] = caretaker.history()[0].results
    assert (result.outcome, result.error_kind) == (Outcome.FAILED, "fenced")
    until(lambda: caretaker.status().state is State.STANDING_BY)


def test_leases_that_cannot_be_read_mean_standing_by_and_a_clear_word(bench: Bench):
    filled(bench.lake, batches=5)
    bench.caretaker().step()
    bench.made.pop().stop()
    shutil.rmtree(bench.root / "_system" / "leases" / "_delta_log")
    caretaker = bench.caretaker()
    for _ in range(3):
        assert caretaker.step() is None
        bench.clock.pass_time(minutes=1)
    assert bench.events()[-1] == "standing_by"
    assert "are damaged: its log is gone" in bench.told[-1]["because"]
    assert len(bench.lake.dataset(NAME)._store.changes.files()) == 5
    for call in (lambda: lake_of(bench.root).ask(FOLD), bench.lake.compactor_overview):
        with refused(Corruption, Reason.DAMAGED_FILE, bench.root / "_system" / "leases"):
            call()


def test_damaged_notes_are_said_and_never_taken_for_absent(bench: Bench):
    caretaker = bench.caretaker(only=["squash"])
    caretaker.step()
    (bench.root / "_system" / "compactor" / CYCLES).write_text("[")
    bench.clock.pass_time(minutes=1)
    with refused(Corruption, Reason.DAMAGED_FILE, "cycles.json"):
        caretaker.step()
    (bench.root / "_system" / "compactor" / CYCLES).unlink()
    assert caretaker.step() is not None


# ---- requests --------------------------------------------------------------------------------------------------------


def test_a_fold_is_handed_to_the_holder_and_followed(bench: Bench):
    caretaker = bench.caretaker(lake_of(bench.root))
    caretaker.start()
    until(lambda: bench.lake.compactor_overview()["kind"] == "compactor")
    asked = Asked(bench.root, FOLD)
    answer = asked.value()
    assert (answer.cycle, answer.error) == (1, None)
    assert answer.results[0]["report"]["dataset"] == NAME
    assert asked.events() == ["handed_over", "begun", "cycle_began", "job_began", "job_ended"]
    assert [one["ask"] for one in bench.told if one["event"] == "request"] == ["compact"]
    assert list((bench.root / "_system" / "compactor" / "requests").iterdir()) == []


def test_without_a_holder_it_is_done_here_under_the_lease(bench: Bench):
    filled(bench.lake, batches=4)
    answer = lake_of(bench.root).ask(replace(CYCLE, only=("squash",), force=True))
    assert (answer.cycle, [one["kind"] for one in answer.results]) == (1, ["squash"])
    row = leases_of(bench.root).row(COMPACTOR)
    assert row is not None
    assert (row.epoch, row.released) == (1, True)
    found = bench.lake.compactor_overview()
    assert (found["running"], found["cycles"], found["last_cycle"]["jobs"]) == (False, 1, 1)


def test_a_second_cycle_is_refused_with_the_number_of_the_one_that_runs(bench: Bench):
    lake = slow_lake(bench.root)
    caretaker = bench.caretaker(lake)
    caretaker.start()
    until(lambda: bench.lake.compactor_overview()["kind"])
    first = Asked(bench.root, CYCLE)
    assert lake.began.wait(60)
    second, fold = Asked(bench.root, CYCLE), Asked(bench.root, FOLD)
    answer = second.value()
    assert (answer.error_kind, answer.error) == ("conflict", "Cycle 1 is already running. Wait until it has ended.")
    until(lambda: "handed_over" in fold.events())
    assert fold.answer is None, "a fold waits for the cycle"
    lake.go_on.set()
    assert (first.value().cycle, first.value().error) == (1, None)
    assert (fold.value().cycle, fold.value().error) == (2, None)


def test_a_second_cycle_is_refused_beside_a_command_and_a_fold_waits_for_it(bench: Bench):
    lake = slow_lake(bench.root)
    running = threading.Thread(target=lambda: lake.ask(CYCLE), daemon=True)
    running.start()
    assert lake.began.wait(60)
    with refused(Conflict, None, "Cycle 1 ", "process "):
        lake_of(bench.root).ask(CYCLE)
    fold = Asked(bench.root, FOLD)
    until(lambda: fold.events() == ["waiting"])
    with pytest.raises(Conflict, match="runs a single command"):
        bench.lake.stop_compactor(seconds=1)
    lake.go_on.set()
    running.join(60)
    assert fold.value().cycle == 2


def test_what_is_wrong_with_a_request_is_its_answer(bench: Bench):
    bench.caretaker(lake_of(bench.root)).start()
    until(lambda: bench.lake.compactor_overview()["kind"])
    assert Asked(bench.root, replace(CYCLE, only=("nix",))).value().error_kind == "invalid_request"


def test_a_name_that_is_none_is_refused_before_anybody_is_asked(bench: Bench):
    for wish in (FOLD, CYCLE, Wish(ask=Ask.VACUUM)):
        with refused(NotFound, None, "no.such.one", "silt list"):
            bench.lake.ask(replace(wish, names=(NAME, "no.such.one")))
    assert (bench.lake.history(), bench.lake.totals().cycles) == ([], 0)


def test_a_dataset_that_is_dropped_before_its_turn_is_the_failure_of_its_job(bench: Bench):
    lake = lake_of(bench.root)
    lake.create("a.b.gone", "id BIGINT NOT NULL", key="id")
    office = lake._office()
    following = office.requests.ask(replace(FOLD, names=(NAME, "a.b.gone")))
    lake.drop("a.b.gone")
    caretaker = bench.caretaker()
    for _ in range(3):
        caretaker.step()
    answer = following.answer()
    assert answer is not None
    assert [one["error_kind"] for one in answer.results] == [None, "not_found"]


def test_a_request_that_nobody_follows_is_not_begun(bench: Bench):
    office = bench.lake._office()
    following = office.requests.ask(PURGE)
    following._presence.close()
    caretaker = bench.caretaker()
    caretaker.step()
    assert caretaker.step() is None
    assert office.requests.waiting() == []
    assert caretaker.history() == ()


def test_a_request_that_a_dead_holder_had_begun_is_done_by_the_next_one_and_not_again_once_answered(bench: Bench):
    office = bench.lake._office()
    following = office.requests.ask(FOLD)
    assert office.requests.begin(following.request)
    caretaker = bench.caretaker()
    for _ in range(3):
        caretaker.step()
    assert [one.number for one in caretaker.history()] == [1]
    answer = following.answer()
    assert answer is not None
    assert answer.cycle == 1
    caretaker.stop()
    following._requests._path(following.request.id, ".taken").write_text(following.request.to_json())
    after = bench.caretaker()
    for _ in range(3):
        after.step()
    assert after.history() == ()


def test_a_follower_whose_holder_stops_before_its_turn_does_it_itself(bench: Bench):
    lake = slow_lake(bench.root)
    caretaker = bench.caretaker(lake)
    caretaker.start()
    until(lambda: bench.lake.compactor_overview()["kind"])
    caretaker.trigger(["squash"])
    assert lake.began.wait(60)
    fold = Asked(bench.root, FOLD)
    until(lambda: "handed_over" in fold.events())
    assert caretaker.stop()
    assert fold.value().results[0]["error"] is None
    assert "holder_gone" in fold.events()


def test_whoever_stops_following_takes_back_what_was_not_begun(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    lake = slow_lake(bench.root)
    caretaker = bench.caretaker(lake)
    caretaker.start()
    until(lambda: bench.lake.compactor_overview()["kind"])

    class Interrupted(Exception):  # noqa: N818
        """As by Ctrl-C."""

    def interrupted(wish: Wish, *, when: str) -> list[str]:
        told: list[str] = []

        def tell(one: dict[str, Any]) -> None:
            told.append(str(one["event"]))
            if one["event"] == when:
                monkeypatch.setattr(asker._clock.__class__, "sleep", leave)

        def leave(*_given: object) -> None:
            raise Interrupted

        asker = lake_of(bench.root)
        with pytest.raises(Interrupted), monkeypatch.context():
            asker.ask(wish, tell=tell)
        monkeypatch.undo()
        return told

    assert interrupted(CYCLE, when="begun")[-1] == "left"
    lake.go_on.set()
    until(lambda: any(cycle.number == 1 for cycle in caretaker.history()))
    caretaker.stop()
    quiet = lake_of(bench.root)
    with quiet._office().leases.hold(COMPACTOR, role=Role.ALL) as lease:  # a holder that never looks at its desk
        quiet._office().notes.write(STATUS, {"holder": lease.row.holder, "kind": "compactor"})
        assert interrupted(FOLD, when="handed_over") == ["handed_over", "withdrawn"]
    assert quiet._office().requests.waiting() == []


def test_a_compactor_is_told_to_stop_from_elsewhere(bench: Bench):
    with pytest.raises(NotFound, match="No compactor is running"):
        bench.lake.stop_compactor(seconds=1)
    caretaker = bench.caretaker(lake_of(bench.root))
    caretaker.start()
    until(lambda: bench.lake.compactor_overview()["kind"])
    asking = threading.Thread(target=lambda: lake_of(bench.root).stop_compactor(seconds=60), daemon=True)
    asking.start()
    assert caretaker.wait_until_told_to_stop(60)
    assert caretaker.stop()
    asking.join(60)
    assert not asking.is_alive()
    assert not bench.lake.compactor_overview()["running"]


def test_a_job_that_does_not_end_is_interrupted_when_the_compactor_stops(bench: Bench):
    lake = slow_lake(bench.root)
    caretaker = bench.caretaker(lake)
    caretaker._interrupt = lake.go_on.set
    lake.deaf = True
    caretaker.start()
    until(lambda: "holding" in bench.events())
    caretaker.trigger(["squash"])
    assert lake.began.wait(60)
    assert caretaker.stop(seconds=0.1)
    assert bench.events()[-3:] == ["stopping", "interrupting", "stopped"]
    assert not bench.lake.compactor_overview()["running"]


# ---- purges and epochs -----------------------------------------------------------------------------------------------


def epoch_of(lake: Lake) -> int:
    return lake.dataset(NAME)._store.snapshot().epoch


def test_a_purge_by_the_holder_raises_the_datasets_epoch_above_the_leases_and_the_lease_follows(bench: Bench):
    for _ in range(4):  # the lease's epoch is ahead of the dataset's
        leases_of(bench.root).hold(COMPACTOR, role=Role.ALL).release()
    bench.caretaker(lake_of(bench.root)).start()
    until(lambda: bench.lake.compactor_overview()["kind"])
    assert Asked(bench.root, PURGE).value().results[0]["report"]["purged"]
    row = leases_of(bench.root).row(COMPACTOR)
    assert row is not None
    assert (epoch_of(bench.lake), row.epoch) == (6, 6), "what was planned with 5 is fenced out; the holder goes on"
    assert Asked(bench.root, PURGE).value().results[0]["error"] is None
    assert epoch_of(bench.lake) == 7


def test_a_purge_beside_the_holder_fences_its_running_jobs_and_the_next_cycle_goes_on(bench: Bench):
    caretaker = bench.caretaker(lake_of(bench.root), only=["squash"])
    caretaker.start()
    until(lambda: caretaker.status().holder)
    bench.lake.dataset(NAME).compact(purge=True)
    bench.lake.dataset(NAME).compact(purge=True)
    assert epoch_of(bench.lake) == 3, "above the dataset's, and above the lease's"
    filled(bench.lake, batches=4)
    cycle = caretaker.wait(caretaker.trigger(), seconds=60)
    assert [one.error for one in cycle.results] == [None, None]
    row = caretaker.status().holder
    assert row is not None
    assert row.epoch == 3
    assert leases_of(bench.root).row(COMPACTOR) == row


# ---- single works ----------------------------------------------------------------------------------------------------

SINGLE = {
    "fold": FOLD,
    "purge": PURGE,
    "squash": Wish(ask=Ask.SQUASH, names=(NAME,)),
    "vacuum": Wish(ask=Ask.VACUUM, names=(NAME,), retention_hours=7.0),
}


def test_every_single_work_is_done_by_the_holder_and_is_a_job_of_the_journal(bench: Bench):
    caretaker = bench.caretaker(lake_of(bench.root))
    caretaker.start()
    until(lambda: bench.lake.compactor_overview()["kind"] == "compactor")
    for kind, wish in SINGLE.items():
        asked = Asked(bench.root, wish)
        [result] = asked.value().results
        assert (result["kind"], result["error"], result["report"]["dataset"]) == (kind, None, NAME)
        assert asked.events()[0] == "handed_over"
    jobs = bench.lake.jobs()
    assert [(job.cycle, job.lane, job.status.name) for job in reversed(jobs)] == [
        (number, kind, "COMPLETED") for number, kind in enumerate(SINGLE, start=1)
    ]
    assert all(re.fullmatch(r"asked by process \d+ on .*, request [0-9a-f]+", job.trigger) for job in jobs)
    assert {lane: one.jobs for lane, one in bench.lake.totals().lanes.items()} == dict.fromkeys(SINGLE, 1)
    assert bench.lake.totals().lanes["purge"].files_deleted == jobs[2].done.files_deleted
    assert bench.lake.unfinished().unfinished == ()


@pytest.mark.parametrize("kind", SINGLE)
def test_every_single_work_takes_the_lease_where_nobody_holds_it(bench: Bench, kind: str):
    lake = lake_of(bench.root)
    [result] = lake.ask(SINGLE[kind]).results
    assert (result["kind"], result["error"]) == (kind, None)
    row = leases_of(bench.root).row(COMPACTOR)
    assert row is not None
    assert row.released
    [job] = lake.jobs()
    assert (job.cycle, job.lane, job.owner.pid) == (1, kind, os.getpid())
    assert job.epoch == 1


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (Wish(ask=Ask.VACUUM, names=(NAME,), retention_hours=0.5), "at least 1 h"),
        (Wish(ask=Ask.CLUSTER, names=(NAME,)), "is keyed"),
        (Wish(ask=Ask.CLUSTER, names=("a.b.log",), by=("nix",)), "nix"),
        (Wish(ask=Ask.CLUSTER, names=("no.such.one",)), "no dataset"),
        (Wish(ask=Ask.STOP), "no work on datasets"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_the_lease_is_taken(bench: Bench, wish: Wish, says: str):
    bench.lake.create("a.b.log", "at TIMESTAMP NOT NULL", time="at")
    with pytest.raises((InvalidRequest, NotFound), match=says):
        lake_of(bench.root).ask(wish)
    assert leases_of(bench.root).row(COMPACTOR) is None
    assert bench.lake.jobs() == []


def test_works_that_were_not_begun_when_the_compactor_stopped_are_left_to_the_next_one(bench: Bench):
    bench.lake.create("a.b.more", "id BIGINT NOT NULL", key="id")
    lake = lake_of(bench.root)
    with leases_of(bench.root).hold(COMPACTOR, role=Role.ALL) as lease:
        begun: list[dict[str, Any]] = []
        turn = Turn(number=1, lease=lease, stopping=lambda: bool(begun), tell=begun.append)
        results = lake._housework().do(Wish(ask=Ask.SQUASH, names=(NAME, "a.b.more")), turn)
    assert [(one["dataset"], one["error_kind"]) for one in results] == [
        (NAME, "unavailable"),
        ("a.b.more", "unavailable"),
    ]
    assert {job.status.name for job in lake.jobs()} == {"CANCELLED"}


@pytest.mark.parametrize(
    ("changed", "goes_on", "once"),
    [
        ({}, JobPlace.WORKER, JobPlace.INLINE),
        ({"spark_remote": NO_SPARK}, JobPlace.INLINE, JobPlace.INLINE),
        ({"jobs": JobPlace.INLINE}, JobPlace.INLINE, JobPlace.INLINE),
        ({"jobs": JobPlace.WORKER}, JobPlace.WORKER, JobPlace.WORKER),
    ],
)
def test_a_compactor_that_goes_on_has_workers_unless_told(
    bench: Bench, changed: dict[str, Any], goes_on: JobPlace, once: JobPlace
):
    lake = lake_of(bench.root, settings=replace(SETTINGS, **{"jobs": JobPlace.AUTO, **changed}))
    assert lake._job_place() is once, "a single call"
    lake.compactor()
    assert lake._job_place() is goes_on
    lake.compactor(goes_on=False)
    assert lake._job_place() is once


# ---- roles -----------------------------------------------------------------------------------------------------------

ROWS = [{"id": 1}]


def attempted(role: Role, root: Path) -> Iterator[tuple[str, SiltstoneError | None]]:
    lake = lake_of(root, settings=replace(SETTINGS, role=role, spark_remote=NO_SPARK))
    dataset, log = lake.dataset(NAME), lake.dataset("a.b.log")
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: lake.create("n.e.w", "id BIGINT NOT NULL", key="id"),
        "drop": lambda: lake.drop("no.such.one"),
        "upsert": lambda: dataset.upsert(ROWS),
        "tombstone": lambda: dataset.tombstone([1]),
        "ingest": lambda: dataset.ingest("/no/such/file.parquet"),
        "ingest_jdbc": lambda: dataset.ingest_jdbc("jdbc:nix", table="t"),
        "alter": lambda: dataset.alter(add="n BIGINT"),
        "append": lambda: log.append([{"at": "2026-01-01T00:00:00Z"}]),
        "producer": log.producer,
        "set_tiers": lambda: log.set_tiers("daily.min_files=6"),
        "compact": dataset.compact,
        "purge": lambda: dataset.compact(purge=True),
        "squash": dataset.squash,
        "vacuum": dataset.vacuum,
        "cluster": log.cluster,
        "cycle": lambda: lake.run_cycle(only=["vacuum"]),
        "sweep": lake.sweep,
        "recover": lake.recover,
        "compactor": lake.compactor,
        "ask": lambda: lake.ask(FOLD),
        "pause": lake.pause_compactor,
        "resume": lake.resume_compactor,
    }
    for name, call in calls.items():
        try:
            call()
            yield name, None
        except SiltstoneError as error:
            yield name, error if "has the role" in str(error) else None


WRITES = {"create", "drop", "upsert", "tombstone", "ingest", "ingest_jdbc", "alter", "append", "producer", "set_tiers"}


@pytest.mark.parametrize("role", Role)
def test_each_role_is_refused_what_is_not_its_own(bench: Bench, role: Role):
    bench.lake.create("a.b.log", "at TIMESTAMP NOT NULL", time="at")
    found = dict(attempted(role, bench.root))
    no = {name for name, error in found.items() if error is not None}
    assert no == {Role.ALL: set(), Role.COMPACTOR: WRITES, Role.READER: set(found)}[role]
    for error in filter(None, found.values()):
        assert isinstance(error, InvalidRequest)
        assert "SILT_ROLE" in str(error)


def test_a_reader_reads_plans_and_looks(bench: Bench):
    filled(bench.lake, batches=3)
    lake = lake_of(bench.root, settings=replace(SETTINGS, role=Role.READER))
    assert ids(lake) == [0, 1, 2]
    assert lake.plan(force=True).jobs
    assert lake.dataset(NAME).squash(dry_run=True).files_removed == 3
    assert lake.dataset(NAME).vacuum(dry_run=True).files == ()
    assert lake.dataset(NAME).status().backlog_batches == 3
    assert lake.compactor_overview()["running"] is False
    assert not (bench.root / "_system" / "compactor" / PAUSED).exists()


def test_a_job_that_was_cancelled_has_not_failed():
    at = FakeClock().now()
    jobs = [
        {"report": {}, "error": None, "outcome": "done"},
        {"report": None, "error": "no", "outcome": "failed"},
        {"report": None, "error": "stopped", "outcome": "cancelled"},
    ]
    works = (WorkResult(work="fold", outcome=Outcome.DONE, value=jobs),)
    told = told_cycle(Cycle(number=2, why=Why.SCHEDULE, epoch=1, started=at, ended=at, seconds=1.0, results=works))
    assert (told["jobs"], told["failed"], told["cancelled"]) == (3, 1, 1)
    assert told_line({"event": "cycle_ended", **told}) == "cycle 2 ended: 3 jobs, 1 failed, 1 cancelled, 1.0 s"
