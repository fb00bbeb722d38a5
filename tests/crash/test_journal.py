"""A process that dies in a cycle, before or after any event and any commit, leaves jobs that recovery completes or fails.

Each case is about the first of the two jobs; the second has not begun. Appends of the journal and commits of the job
share fail points. The first `commit.before_entry` is the cycle's first append. The second records that the job began.
The third is the job's own commit. The fourth records that the job has ended.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import Child
from tests.support.cycles import NAMES, ROWS, build, cycle, observe, recover, submit

NOTHING = None
"""The journal has no record of the cycle: it died before the first event."""
CYCLE = {
    "journal.before_cycle_began": NOTHING,
    "commit.before_entry": NOTHING,
    "commit.after_entry": "failed",
    "journal.after_cycle_began": "failed",
    "journal.before_job_began": "failed",
    "journal.after_job_began": "failed",
    "squash.after_write": "failed",
    "commit.before_entry:kill:3": "failed",
    "commit.after_entry:kill:3": "completed",
    "squash.after_commit": "completed",
    "journal.before_job_ended": "completed",
    "commit.after_entry:kill:4": "ended",
    "journal.after_job_ended": "ended",
    "journal.before_cycle_ended": "all ended",
    "journal.after_cycle_ended": "cycle ended",
}
"""Fail point in a cycle: expected state of its first job."""
RECOVERY = (
    "recovery.before_events",
    "recovery.after_events",
    "recovery.after_cycles",
    "recovery.after_datasets",
    "commit.before_entry",
    "commit.after_entry",
)
DEEP = {"commit.before_entry", "commit.after_entry", "commit.after_entry:kill:4"}
"""Fail points with nearly the same outcome as others."""
PLACES = {place.split(":")[0] for place in (*CYCLE, *RECOVERY)}
LIVE = [sorted((f"p{number}", number) for number in range(ROWS))] * 2


@pytest.fixture(autouse=True)
def _own_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with two datasets to squash."""
    path = tmp_path_factory.mktemp("cycles") / "lake"
    build(str(path))
    return path


@pytest.fixture
def lake(template: Path, tmp_path: Path) -> str:
    path = tmp_path / "lake"
    shutil.copytree(template, path)
    return str(path)


@pytest.fixture
def empty_lake(tmp_path: Path) -> str:
    """A lake whose datasets have no rows, so that a purge needs no Spark."""
    build(str(tmp_path / "empty"), rows=0)
    return str(tmp_path / "empty")


def killed(target: str, lake: str, place: str, **given: str) -> None:
    failpoint = place if ":" in place else f"{place}:kill"
    outcome = Child(f"tests.support.cycles:{target}", {"path": lake, **given}, failpoint=failpoint).wait()
    assert outcome.killed, outcome.stderr


def settled(lake: str) -> None:
    """Run the next cycle; then no job is unfinished and no file is left over."""
    done = cycle(lake)
    assert done["trouble"] is None
    assert [job["error"] for job in done["jobs"]] == [None] * len(done["jobs"])
    found = observe(lake)
    assert found["rows"] == LIVE
    assert found["files"] == [1, 1]
    assert found["unfinished"] == 0
    assert "executing" not in found["cycles"]
    assert set(found["jobs"].values()) == {"COMPLETED"}
    again = recover(lake)
    assert (again["completed"], again["failed"], again["running"]) == ((), (), [])
    assert list((Path(lake) / "_system" / "liveness").iterdir()) == []


def weighted(place: str, *more: str | None) -> Any:  # noqa: ANN401
    return pytest.param(place, *more, marks=[pytest.mark.deep] if place in DEEP else [])


@pytest.mark.parametrize(("place", "expected"), [weighted(*one) for one in CYCLE.items()])
def test_a_cycle_that_is_killed_is_recovered(place: str, expected: str | None, lake: str) -> None:
    killed("cycle", lake, place)
    before = observe(lake)
    assert before["rows"] == LIVE
    found = recover(lake)
    after = observe(lake)
    first = after["jobs"].get(NAMES[0])
    assert len(found["completed"]) == (expected == "completed")
    assert first == {
        NOTHING: None,
        "failed": "FAILED",
    }.get(expected, "COMPLETED")
    assert after["files"][0] == (1 if first == "COMPLETED" else ROWS)
    failed = {NOTHING: 0, "failed": 2, "completed": 1, "ended": 1, "all ended": 0, "cycle ended": 0}
    assert len(found["failed"]) == failed[expected]
    assert after["cycles"] == ([] if expected is NOTHING else ["completed" if failed[expected] == 0 else "failed"])
    settled(lake)


@pytest.mark.parametrize("place", [weighted(place) for place in RECOVERY])
def test_a_recovery_that_is_killed_is_done_by_the_next(place: str, lake: str) -> None:
    killed("cycle", lake, "journal.before_job_ended")
    killed("recover", lake, place)
    recover(lake)
    found = observe(lake)
    assert found["jobs"] == {NAMES[0]: "COMPLETED", NAMES[1]: "FAILED"}
    assert found["cycles"] == ["failed"]
    settled(lake)


SQUASHED = {
    "journal.after_cycle_began": "FAILED",
    "journal.after_job_began": "FAILED",
    "squash.after_write": "FAILED",
    "squash.after_commit": "COMPLETED",
    "journal.before_job_ended": "COMPLETED",
}
"""Fail point in a requested squash: status of its job after recovery."""
REQUESTED_DEEP = {"journal.after_cycle_began", "squash.after_write"}


@pytest.mark.parametrize(
    ("place", "status"),
    [pytest.param(*one, marks=[pytest.mark.deep] if one[0] in REQUESTED_DEEP else []) for one in SQUASHED.items()],
)
def test_a_request_whose_process_died_is_recovered_and_can_be_submitted_again(
    place: str, status: str, lake: str
) -> None:
    killed("submit", lake, place, what="squash")
    again = submit(lake, "squash")
    assert (again["trouble"], again["jobs"][0]["error"]) == (None, None), "also before anybody has recovered"
    found = recover(lake)
    assert len(found["completed"]) == (status == "COMPLETED")
    assert len(found["failed"]) == (status == "FAILED")
    after = observe(lake)
    assert sorted(after["cycles"]) == sorted(["completed", "completed" if status == "COMPLETED" else "failed"])
    assert (after["rows"], after["files"], after["unfinished"]) == (LIVE, [1, ROWS], 0)
    assert cycle(lake)["trouble"] is None
    assert (observe(lake)["rows"], observe(lake)["files"]) == (LIVE, [1, 1])


@pytest.mark.parametrize(
    "place", ["purge.after_delete", pytest.param("journal.before_job_ended", marks=pytest.mark.deep)]
)
def test_a_purge_whose_process_died_is_never_taken_for_done(place: str, empty_lake: str) -> None:
    killed("submit", empty_lake, place, what="purge")
    found = recover(empty_lake)
    assert (len(found["failed"]), found["completed"]) == (1, ())
    assert observe(empty_lake)["jobs"] == {NAMES[0]: "FAILED"}
    assert submit(empty_lake, "purge")["jobs"][0]["report"]["purged"]
    assert observe(empty_lake)["jobs"] == {NAMES[0]: "COMPLETED"}
