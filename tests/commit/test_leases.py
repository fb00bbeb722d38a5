"""Leases between processes: one holder at a time, epochs that only rise, and a killed holder that is fenced out."""

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from siltstone.clock import SystemClock
from siltstone.compactor.scheduler import Scheduler
from siltstone.compactor.tasks import ScheduledTask
from siltstone.config import Role
from siltstone.coordination.leases import COMPACTOR
from siltstone.errors import Conflict, Fenced
from tests.support.children import Child
from tests.support.leasing import (
    commit_with,
    lake_at,
    leases_of,
    take_in_process,
    take_turns_for,
    taken,
)
from tests.support.processes import Pool
from tests.support.tables import FAST, make_table

LEASING = "tests.support.leasing"
WAIT_SECONDS = 60.0


def wait_for(path: Path) -> str:
    """Wait until a child has written its file."""
    end = time.monotonic() + WAIT_SECONDS
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, f"{path.name} did not come"
        time.sleep(0.01)
    return path.read_text()


@pytest.mark.parametrize("processes", [2, 8])
def test_of_many_that_take_a_lease_at_once_exactly_one_holds_it(tmp_path: Path, pool: Pool, processes: int):
    root = lake_at(tmp_path / "lake")
    for epoch in range(1, 4):  # the first time the table is made in the same race
        tried = tmp_path / f"tried{epoch}"
        tried.mkdir()
        answers = pool.at_once([(take_in_process, root, tried, number, processes) for number in range(processes)])
        assert sorted(answers) == [0] * (processes - 1) + [epoch]


def test_processes_that_take_turns_never_hold_a_lease_at_the_same_time(tmp_path: Path, pool: Pool):
    root = lake_at(tmp_path / "lake")
    answers = pool.at_once([(take_turns_for, root, 3.0)] * 4)
    turns = sorted(turn for turns in answers for turn in turns)
    assert [epoch for epoch, _, _ in turns] == list(range(1, len(turns) + 1))
    assert sum(1 for turns in answers if turns) > 1, "several processes must have had a turn"
    for (_, _, ended), (_, began, _) in itertools.pairwise(turns):
        assert ended < began


def test_a_killed_holder_is_replaced_at_once_with_a_higher_epoch(tmp_path: Path):
    root, table = lake_at(tmp_path / "lake"), make_table(tmp_path / "t")
    ready, go = tmp_path / "ready", tmp_path / "go"
    child = Child(
        f"{LEASING}:hold_and_commit",
        {"root": str(root), "table": str(table.path), "ready": str(ready), "go": str(go)},
    )
    first = int(wait_for(ready))
    assert leases_of(root).acquire(COMPACTOR, role=Role.ALL) is None
    child.kill()
    child.wait()
    second = taken(leases_of(root))
    assert second.epoch == first + 1
    commit_with(table, second.epoch)
    with pytest.raises(Fenced):
        commit_with(table, first)


def test_a_scheduler_takes_over_when_the_process_of_another_is_killed_in_a_cycle(tmp_path: Path):
    root, ready = lake_at(tmp_path / "lake"), tmp_path / "ready"
    child = Child(f"{LEASING}:schedule_until_killed", {"root": str(root), "ready": str(ready)})
    first = int(wait_for(ready))
    second = Scheduler(
        [ScheduledTask(name="quick", run=lambda _: None)], leases=leases_of(root), settings=FAST, clock=SystemClock()
    )
    second.start()
    try:
        with pytest.raises(Conflict):
            second.trigger()
        child.kill()
        child.wait()
        assert second.wait(second.trigger(), seconds=WAIT_SECONDS).epoch == first + 1
    finally:
        assert second.stop(seconds=WAIT_SECONDS)


def test_a_holder_that_was_frozen_finds_itself_fenced_out_when_it_wakes(tmp_path: Path):
    root, table = lake_at(tmp_path / "lake"), make_table(tmp_path / "t")
    ready, go = tmp_path / "ready", tmp_path / "go"
    child = Child(
        f"{LEASING}:hold_and_commit",
        {"root": str(root), "table": str(table.path), "ready": str(ready), "go": str(go), "ttl_seconds": 0.5},
    )
    first = int(wait_for(ready))
    os.kill(child.pid, signal.SIGSTOP)
    try:
        leases = leases_of(root)
        end = time.monotonic() + WAIT_SECONDS
        while (second := leases.acquire(COMPACTOR, role=Role.ALL)) is None:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert second.epoch == first + 1
        commit_with(table, second.epoch)
        go.touch()
    finally:
        os.kill(child.pid, signal.SIGCONT)
    assert child.value() == {"epoch": first, "commit": "fenced", "check": "fenced", "renew": "fenced"}
    second.check()
