"""`silt compactor` as a process, without Spark."""

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.config import Settings
from siltstone.lake import Lake
from tests.e2e.conftest import PEOPLE
from tests.e2e.silt import process, silt
from tests.support.children import NO_SPARK
from tests.support.compactors import CompactorProcess
from tests.support.refusals import figures


@pytest.fixture
def compactors(lake: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Compactors]":
    monkeypatch.setenv("SILT_SPARK_REMOTE", NO_SPARK)
    found = Compactors(lake)
    yield found
    for one in found.made:
        one.end(signal.SIGKILL)


class Compactors:
    """Compactors of one lake."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.made: list[CompactorProcess] = []

    def start(self, *options: str, **environment: str) -> CompactorProcess:
        self.made.append(CompactorProcess(self.lake, *options, **environment))
        return self.made[-1]


def test_a_standby_takes_over_from_a_killed_compactor_and_stops_on_request(lake: Path, compactors: Compactors):
    first = compactors.start()
    assert first.wait_for("started")["role"] == "all"
    assert first.wait_for("lease_acquired")["epoch"] == 1
    second = compactors.start("run", "--only", "vacuum")
    assert str(first.pid) in second.wait_for("standing_by")["because"]
    shown = silt("--lake", lake, "compactor", "status").out
    assert str(first.pid) in shown
    assert re.search(r"\bwaiting\n", shown)
    assert "+00:00" not in shown
    assert "+00:00" not in silt("--lake", lake, "compactor", "status", "--json").out
    assert re.search(r"\npaused +no\n", shown)
    first.send(signal.SIGKILL)
    assert second.wait_for("lease_acquired")["epoch"] == 2
    silt("--lake", lake, "compactor", "pause")
    second.wait_for("paused")
    assert silt("--lake", lake, "compactor", "status", "--json").data["paused"]
    done = process("--lake", lake, "compact", PEOPLE)
    assert (done.code, done.out.splitlines()[0].split(",")[0]) == (0, f"{PEOPLE}: nothing to fold")
    for call in (("vacuum", PEOPLE), ("compact", PEOPLE, "--squash")):
        assert silt("--lake", lake, *call).code == 0
        done = silt("--lake", lake, "--json", *call)
        assert (done.code, done.data["dataset"], done.err) == (0, PEOPLE, "")
    too_short = silt("--lake", lake, "--json", "vacuum", PEOPLE, "--retention-hours", "0.5")
    assert (too_short.code, too_short.error["kind"]) == (2, "invalid_request")
    cycle = process("--lake", lake, "--json", "compact", "--cycle", "--only", "vacuum")
    assert (cycle.code, cycle.data, cycle.err) == (0, [], "")
    silt("--lake", lake, "compactor", "resume")
    second.wait_for("resumed")
    stopped = process("--lake", lake, "--json", "compactor", "stop")
    assert (stopped.code, stopped.data) == (0, {"stopped": True, "taken_over_by": None})
    assert second.wait() == 0
    assert second.names()[-2:] == ["stopping", "stopped"]
    assert silt("--lake", lake, "compactor", "stop").code == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_the_lease_is_free(lake: Path, compactors: Compactors, number: signal.Signals):
    first = compactors.start()
    first.wait_for("lease_acquired")
    assert first.end(number) == 0
    assert first.names()[-2:] == ["stopping", "stopped"]
    found = silt("--lake", lake, "--json", "compactor", "status").data
    assert (found["running"], found["last_holder"]["pid"]) == (False, first.pid)


def test_once_runs_everything_once_and_ends(lake: Path):
    with Lake.open(lake, settings=Settings(durable=False, squash_files=0)) as opened:
        for number in range(40):
            opened.dataset(PEOPLE).upsert([{"id": f"p{number}"}])
    done = process("--lake", lake, "compactor", "run", "--once", "--only", "squash", "--dataset", PEOPLE)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert any("lease" in line and "epoch 1" in line for line in lines), lines
    assert any(f"squash {PEOPLE}" in line and "40 1" in figures(line) for line in lines), lines
    assert any("cycle 1" in line and "1 1 0" in figures(line) for line in lines), lines
    assert len(silt("--lake", lake, "--json", "head", PEOPLE, "-n", "100").data) == 40


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--only", "nix"), "'nix'"),
        (("--catalog", "nix"), "nix"),
        (("--dataset", "no.such.one"), "no.such.one"),
        (("--nix",), "--nix"),
    ],
)
def test_unknown_names_are_refused_before_anything_runs(lake: Path, options: tuple[str, ...], fact: str):
    done = silt("--lake", lake, "compactor", *options)
    assert done.code in (2, 3)
    assert fact in done.err
    assert not (lake / "_system" / "leases").exists()


def test_once_beside_a_compactor_names_the_lease_holder(lake: Path, compactors: Compactors):
    first = compactors.start()
    first.wait_for("lease_acquired")
    done = process("--lake", lake, "--json", "compactor", "--once")
    assert done.code == 4
    assert str(first.pid) in done.err


def test_a_compactor_that_cannot_read_the_leases_stands_by_with_a_reason(lake: Path, compactors: Compactors):
    compactors.start("--once", "--only", "vacuum").wait()
    shutil.rmtree(lake / "_system" / "leases" / "_delta_log")
    second = compactors.start()
    assert second.wait_for("standing_by")["because"]
    refused = silt("--lake", lake, "--json", "compact", PEOPLE, "--purge", "--yes")
    assert (refused.code, refused.error["kind"]) == (9, "corruption")
    assert second.end() == 0
    assert "lease_acquired" not in second.names()


@pytest.mark.parametrize(
    ("role", "call", "code"),
    [
        ("reader", ("upsert", PEOPLE, "--row", '{"id": "a"}'), 2),
        ("reader", ("compact", PEOPLE), 2),
        ("reader", ("compact", "--cycle"), 2),
        ("reader", ("compactor",), 2),
        ("reader", ("compactor", "pause"), 2),
        ("reader", ("vacuum", PEOPLE), 2),
        ("reader", ("drop", PEOPLE, "--yes"), 2),
        ("compactor", ("tombstone", PEOPLE, "a"), 2),
        ("compactor", ("create", "a.b.c", "--key", "id", "--schema", "id STRING"), 2),
        ("compactor", ("ingest", PEOPLE, "x.parquet"), 2),
        ("reader", ("head", PEOPLE), 0),
        ("reader", ("compact", "--plan"), 0),
        ("reader", ("vacuum", PEOPLE, "--dry-run"), 0),
        ("compactor", ("compact", PEOPLE), 0),
    ],
)
def test_a_role_is_what_the_environment_says(
    lake: Path, monkeypatch: pytest.MonkeyPatch, role: str, call: tuple[str, ...], code: int
):
    monkeypatch.setenv("SILT_ROLE", role)
    done = silt("--lake", lake, *call)
    assert done.code == code, done.err
    assert code == 0 or f"'{role}'" in done.err
