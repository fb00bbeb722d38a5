"""A call that meets a failing disk at a fail point raises one clear error, and leaves the state before or after."""

from typing import Any

import pytest

from tests.crash.cases import CASES, Case
from tests.crash.conftest import AfterStates, StartLake
from tests.crash.test_kill import OPERATIONS, finish_drop, vacuum_all
from tests.support.children import Worker
from tests.support.operations import perform_failing, state

SURVIVED = {"commit.after_entry"}
"""The entry is in the log, so the commit path finds its own commit and continues."""
ON_SPARK = {"fold.after_write", "fold.after_commit", "ingest.after_write", "purge.after_fold", "export.after_commit"}
"""One Spark case per step: the others differ by a line that runs no Spark."""


def chosen() -> list[Case]:
    return [case for case in CASES if not case.spark or case.failpoint in ON_SPARK]


@pytest.mark.spark
@pytest.mark.parametrize("case", chosen(), ids=str)
def test_a_failed_operation_leaves_the_state_before_or_after_and_its_handle_can_repeat_it(
    case: Case, start_lake: StartLake, after_states: AfterStates, worker: Worker
):
    path = start_lake(case.start)
    before, after = after_states(case.start, "look"), after_states(case.start, case.operation)
    arguments: dict[str, Any] = {
        "path": str(path),
        "operation": case.operation,
        "failpoint": case.failpoint,
        "count": case.count,
    }
    outcome = worker.call(f"{OPERATIONS}:perform_failing", **arguments) if case.spark else perform_failing(**arguments)

    assert (outcome["raised"] is None) == (case.failpoint in SURVIVED), outcome
    assert outcome["seen"] == outcome["same_handle"] == (after if case.done else before)

    if case.operation == "drop":
        assert outcome["repeated"] == ("NotFound" if case.done else None)
        finish_drop(path, Case(operation="drop", start=case.start, failpoint=case.failpoint, done=True), after_states)
        return
    assert outcome["repeated"] is None
    seen = state(str(path))
    assert seen is not None
    assert after is not None
    assert seen["rows"] == after["rows"]
    vacuum_all(path)
