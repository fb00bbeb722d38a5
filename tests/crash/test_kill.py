"""A child is killed at every fail point: the state afterwards is the one before or the one after, and nothing else."""

import ast
from pathlib import Path
from typing import Any

import pytest

import siltstone
from siltstone.failpoints import FAILPOINTS
from siltstone.spark.connect_server import ConnectServer
from tests.crash.cases import CASES, Case
from tests.crash.conftest import AfterStates, StartLake
from tests.crash.test_backup import PLACES as BACKUP_PLACES
from tests.crash.test_eventlog import PLACES as EVENTLOG_PLACES
from tests.crash.test_journal import PLACES as JOURNAL_PLACES
from tests.crash.test_leases import PLACES as LEASE_PLACES
from tests.crash.test_state_files import PLACES as STATE_PLACES
from tests.jobs.test_killed_workers import PLACES as WORKER_PLACES
from tests.support.children import Child, Worker
from tests.support.operations import NAME, open_lake, state

OPERATIONS = "tests.support.operations"
REPEATED = {"purge_beside_squash": "purge_beside_squash_again"}
"""Operations whose repetition has another state: a second purge folds rows written during the first."""


def reached_in_source() -> set[str]:
    """Every name that the package passes to `reach`."""
    found: set[str] = set()
    for path in Path(siltstone.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
                [argument] = node.args
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: a fail point is named by a literal"
                found.add(str(argument.value))
    return found


def test_every_fail_point_of_the_source_is_declared_and_every_declared_one_is_in_the_source():
    assert reached_in_source() == FAILPOINTS


def test_every_fail_point_has_a_crash_test():
    elsewhere = BACKUP_PLACES | EVENTLOG_PLACES | JOURNAL_PLACES | LEASE_PLACES | STATE_PLACES | WORKER_PLACES
    assert {case.failpoint for case in CASES} | elsewhere == FAILPOINTS


def _weighted(case: Case) -> Any:  # noqa: ANN401
    """Mark all Spark cases as deep but the first of each fail point; those inside a commit are deep, too.

    On Spark a child costs seconds.
    """
    first = next(other for other in CASES if other.failpoint == case.failpoint)
    deep = case.spark and (case.failpoint.startswith("commit.") or case is not first)
    return pytest.param(case, marks=pytest.mark.deep) if deep else pytest.param(case)


@pytest.mark.spark
@pytest.mark.parametrize("case", [_weighted(case) for case in CASES], ids=str)
def test_a_killed_operation_leaves_the_state_before_or_after_and_can_be_repeated(
    case: Case, start_lake: StartLake, after_states: AfterStates, worker: Worker, connect_server: ConnectServer
):
    path = start_lake(case.start)
    before, after = after_states(case.start, "look"), after_states(case.start, case.operation)
    child = Child(
        f"{OPERATIONS}:perform",
        {"path": str(path), "operation": case.operation},
        failpoint=f"{case.failpoint}:kill:{case.count}",
        remote=connect_server.address if case.spark else "",
    )
    outcome = child.wait()
    assert outcome.killed, outcome.stderr

    assert state(str(path)) == (after if case.done else before)

    if case.operation == "drop":
        finish_drop(path, case, after_states)
    else:
        worker.call(f"{OPERATIONS}:perform", path=str(path), operation=case.operation)
        repeated = after_states(case.start, REPEATED.get(case.operation, case.operation))
        assert repeated is not None
        assert state(str(path)) == repeated
        if case.operation == "tombstone":
            vacuum_all(path)
        else:
            settle(path, worker)


def finish_drop(path: Path, case: Case, after_states: AfterStates) -> None:
    """Repeat the drop if it did not happen; sweep its remains; create the name again."""
    with open_lake(path) as lake:
        if not case.done:
            lake.drop(NAME)
        lake.sweep()
        assert incarnations(path) == []
        assert lake.sweep() == []
        lake.create(NAME, "id STRING NOT NULL, n BIGINT, note STRING", key="id")
    assert state(str(path)) == after_states("empty", "look")


def settle(path: Path, worker: Worker) -> None:
    """Recovery loses nothing, duplicates nothing, and leaves no file that the dataset does not name."""
    expected = state(str(path))
    assert expected is not None
    worker.call(f"{OPERATIONS}:perform", path=str(path), operation="fold")
    with open_lake(path) as lake:
        dataset = lake.dataset(NAME)
        lake.sweep()
        dataset.compact(purge=True)
        status = dataset.status()
    settled = state(str(path))
    assert settled is not None
    assert settled["rows"] == settled["raw"] == expected["rows"]
    assert settled["sequence"] == settled["watermark"] == expected["sequence"]
    assert settled["tombstones"] == []
    assert status.rows_in_base == len(expected["rows"])
    assert (status.backlog_files, status.unreferenced_files) == (0, 0)
    assert len(incarnations(path)) == 1
    assert list((path / "_system" / "liveness").iterdir()) == []
    assert [found.name for found in path.parent.iterdir() if found.name.startswith(".")] == []


def vacuum_all(path: Path) -> None:
    """The checks of `settle` after a vacuum alone: without Spark, unfolded changes stay unfolded."""
    expected = state(str(path))
    with open_lake(path) as lake:
        dataset = lake.dataset(NAME)
        lake.sweep()
        dataset.vacuum(retention_hours=0)
        assert dataset.status().unreferenced_files == 0
    assert state(str(path)) == expected
    assert len(incarnations(path)) == 1


def incarnations(path: Path) -> list[Path]:
    """Return the folders of datasets, dropped ones included."""
    catalog, schema, table = NAME.split(".")
    return sorted((path / catalog / schema / table).glob("*"))
