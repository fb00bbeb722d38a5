"""Checkpoints are written after the acknowledgement: a crash there undoes nothing, and a torn one is repaired."""

from pathlib import Path

import pytest

from tests.crash.conftest import AfterStates, StartLake
from tests.crash.test_kill import OPERATIONS, vacuum_all
from tests.support.children import Child
from tests.support.operations import open_lake, perform, perform_failing, state

PLACES = ["checkpoint.before_write", "checkpoint.after_write", "checkpoint.after_checksum"]
CHECKPOINT = "checkpoint"


def checkpoints(path: Path) -> list[Path]:
    return sorted(path.glob("crash/test/people/*/changes/_delta_log/*.checkpoint*.parquet"))


@pytest.mark.spark
@pytest.mark.parametrize("place", PLACES)
def test_a_crash_during_a_checkpoint_takes_no_commit_back(place: str, start_lake: StartLake, after_states: AfterStates):
    path = start_lake("pending")
    before, after = after_states("pending", "look"), after_states("pending", CHECKPOINT)
    arguments = {"path": str(path), "operation": CHECKPOINT}
    outcome = Child(f"{OPERATIONS}:perform", arguments, failpoint=f"{place}:kill").wait()
    assert outcome.killed, outcome.stderr

    seen = state(str(path))
    assert seen is not None
    assert before is not None
    assert after is not None
    assert seen["sequence"] > before["sequence"]  # the checkpoint is due after the first commit
    perform(str(path), CHECKPOINT)  # the producer's repeats are not applied again
    assert state(str(path)) == after
    vacuum_all(path)


@pytest.mark.spark
@pytest.mark.parametrize("place", PLACES)
def test_a_checkpoint_that_fails_never_fails_a_write(place: str, start_lake: StartLake, after_states: AfterStates):
    path = start_lake("pending")
    answer = perform_failing(str(path), CHECKPOINT, place, 1)
    assert (answer["raised"], answer["repeated"]) == (None, None)
    assert answer["seen"] == answer["same_handle"] == after_states("pending", CHECKPOINT)
    vacuum_all(path)


@pytest.mark.spark
@pytest.mark.parametrize("kept_bytes", [0, 100, -1])
def test_a_checkpoint_torn_by_a_power_cut_is_healed_and_nothing_is_lost(
    kept_bytes: int, start_lake: StartLake, after_states: AfterStates
):
    path = start_lake("pending")
    arguments = {"path": str(path), "operation": CHECKPOINT}
    outcome = Child(f"{OPERATIONS}:perform", arguments, failpoint="checkpoint.after_write:kill").wait()
    assert outcome.killed, outcome.stderr
    [torn] = checkpoints(path)
    torn.write_bytes(torn.read_bytes()[:kept_bytes])

    with open_lake(path) as lake:
        lake.dataset("crash.test.people").upsert([{"id": "p-050", "n": 50}])
    perform(str(path), CHECKPOINT)
    seen, after = state(str(path)), after_states("pending", CHECKPOINT)
    assert seen is not None
    assert after is not None
    assert seen["rows"] == sorted([*after["rows"], ["p-050", 50, None]])
