"""Which commands each role may run. A new command must declare its effect, or a test fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from siltstone.cli.app import app
from siltstone.lake import Lake
from tests.e2e.silt import contents, silt
from tests.support.children import NO_SPARK

NAME, LOG = "crm.sales.people", "web.eu.clicks"
EVENT = '{"build_request_id": "b1", "event_type": "build_request", "build_request_event": {"status_name": "RECEIVED"}}'

WRITES: dict[str, tuple[str, ...]] = {
    "create": ("create", "a.b.c", "--key", "id", "--schema", "id STRING"),
    "alter": ("alter", NAME, "--add", "more BIGINT"),
    "drop": ("drop", NAME, "--yes"),
    "upsert": ("upsert", NAME, "--row", '{"id": "z"}'),
    "update": ("update", NAME, "--row", '{"id": "z"}'),
    "append": ("append", LOG, "--row", '{"at": "2026-01-01T00:00:00Z"}'),
    "tombstone": ("tombstone", NAME, "a"),
    "ingest": ("ingest", NAME, "rows.parquet"),
    "tiers": ("tiers", LOG, "--set", "daily.min_files=6"),
    "demo": ("demo", "--candidates", "10", "--calls", "10"),
    "restore": ("restore", "backups"),
    "doctor": ("doctor", "--repair", "--yes"),
    "events append": ("events", "append", "--event", EVENT),
    "events import": ("events", "import", "events.ndjson"),
    "events migrate": ("events", "migrate"),
}
"""Commands that write data: only the role `all` may run them."""
COMPACTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "compact": (
        ("compact", NAME),
        ("compact", NAME, "--purge", "--yes"),
        ("compact", NAME, "--squash"),
        ("compact", "--cycle"),
    ),
    "cluster": (("cluster", LOG),),
    "vacuum": (("vacuum", "--all"),),
    "compactor run": (("compactor", "run", "--once"), ("compactor",)),
    "compactor pause": (("compactor", "pause"),),
    "compactor resume": (("compactor", "resume"),),
    "compactor stop": (("compactor", "stop"),),
    "cache pin": (("cache", "pin", NAME),),
    "cache evict": (("cache", "evict", NAME),),
    "cache warm": (("cache", "warm", NAME),),
}
"""Commands that move or delete files, or direct other processes; a reader may not run them."""
READS: dict[str, tuple[tuple[str, ...], ...]] = {
    "list": (("list",),),
    "describe": (("describe", NAME),),
    "tombstones": (("tombstones", NAME),),
    "head": (("head", NAME),),
    "get": (("get", NAME, "a"),),
    "sql": (("sql", f"SELECT * FROM {NAME}"),),
    "history": (("history",), ("history", "--jobs"), ("history", "--totals"), ("history", NAME)),
    "changes": (("changes", NAME),),
    "export": (("export", NAME, "out.parquet"),),
    "status": (("status",),),
    "tiers": (("tiers", LOG), ("tiers",)),
    "doctor": (("doctor",), ("doctor", "--repair")),
    "backup": (("backup", "backups"), ("backup", "backups", "--dry-run")),
    "compact": (("compact", NAME, "--dry-run"), ("compact", NAME, "--squash", "--dry-run"), ("compact", "--plan")),
    "cluster": (("cluster", LOG, "--dry-run"),),
    "vacuum": (("vacuum", NAME, "--dry-run"),),
    "compactor status": (("compactor", "status"),),
    "cache stats": (("cache", "stats"),),
    "events list": (("events", "list"),),
    "events show": (("events", "show", "no-such-event"),),
    "events tail": (("events", "tail"),),
    "events builds": (("events", "builds"),),
    "events partitions": (("events", "partitions"),),
    "events jobs": (("events", "jobs"),),
    "events summary": (("events", "summary"),),
    "events export": (("events", "export"),),
    "events migrate": (("events", "migrate", "--dry-run"),),
    "events rebuild": (("events", "rebuild"),),
    "events report": (("events", "report"),),
}
"""Commands that only read: every role may run them, and the lake is unchanged."""
NO_LAKE = {"spark start", "spark stop", "spark status"}
REFUSED = [
    *((role, call) for call in WRITES.values() for role in ("reader", "compactor")),
    *(("reader", call) for calls in COMPACTS.values() for call in calls),
]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:  # noqa: ANN401
    if hasattr(command, "commands"):
        for name, found in command.commands.items():
            yield from commands(found, (*path, name))
    else:
        yield " ".join(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a journal, and an event log in the same folder."""
    root = tmp_path_factory.mktemp("roles")
    with pytest.MonkeyPatch.context() as patch, Lake.open(root / "lake") as lake:
        patch.setenv("SILT_EVENT_LOG", f"delta://{root}/events")
        people = lake.create(NAME, "id STRING NOT NULL, n BIGINT", key="id")
        for number in range(3):
            people.upsert([{"id": str(number), "n": number}])
        lake.create(LOG, "at TIMESTAMP NOT NULL", time="at")
        lake.run_cycle(only=["squash"], force=True)
        assert silt("events", "append", "--event", EVENT).code == 0
    return root


@pytest.fixture(autouse=True)
def _called(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SILT_LAKE": str(made / "lake"),
        "SILT_EVENT_LOG": f"delta://{made}/events",
        "SILT_SPARK_REMOTE": NO_SPARK,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def test_every_command_declares_its_effect_on_a_lake():
    assert set(commands(typer.main.get_command(app))) == {*WRITES, *COMPACTS, *READS, *NO_LAKE}


@pytest.mark.parametrize(("role", "call"), REFUSED, ids=[f"{role}: {' '.join(call[:3])}" for role, call in REFUSED])
def test_commands_of_other_roles_are_refused_and_change_nothing(
    made: Path, monkeypatch: pytest.MonkeyPatch, role: str, call: tuple[str, ...]
):
    monkeypatch.setenv("SILT_ROLE", role)
    before = contents(made)
    done = silt(*call)
    assert (done.code, contents(made)) == (2, before), done.err
    assert f"'{role}'" in done.err


@pytest.mark.parametrize("command", READS)
def test_a_reader_may_read_and_changes_no_file(made: Path, monkeypatch: pytest.MonkeyPatch, command: str):
    monkeypatch.setenv("SILT_ROLE", "reader")
    before = contents(made)
    for call in READS[command]:
        done = silt(*call)
        assert "'reader'" not in done.err, call
        assert done.code in (0, 3, 5) or command == "doctor", (call, done.code, done.err)
    assert contents(made) == before
