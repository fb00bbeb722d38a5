"""`silt events` on SQLite and on Delta."""

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from siltstone.eventlog.events import event_json
from tests.e2e.silt import COMMAND, process, silt
from tests.support.histories import history

EVENTS = list(history(120, seed=21))
LINES = [event_json(event) for event in EVENTS]
BUILDING = next(e.build_request_id for e in EVENTS if any(ref.startswith("sales/") for ref in e.partition_refs))
RUNNING = next(event.build_request_id for event in EVENTS if event.job_label)


@pytest.fixture(autouse=True)
def _own_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=["sqlite:///", "delta://"])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log with a history, whose address is in the environment."""
    uri = f"{request.param}{tmp_path}/log"
    monkeypatch.setenv("SILT_EVENT_LOG", uri)
    (tmp_path / "in.ndjson").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    done = silt("events", "import", tmp_path / "in.ndjson")
    assert re.findall(r"\d+", done.out) == ["120", "120"]
    return uri


@pytest.mark.usefixtures("log")
def test_imported_events_are_exported_byte_for_byte(tmp_path: Path) -> None:
    assert silt("events", "export").out == "\n".join(LINES) + "\n"
    assert silt("events", "export", tmp_path / "out.ndjson").code == 0
    assert (tmp_path / "out.ndjson").read_bytes() == (tmp_path / "in.ndjson").read_bytes()
    assert silt("events", "export", tmp_path / "out.ndjson").code == 2
    assert re.findall(r"\d+", silt("events", "import", tmp_path / "out.ndjson").out) == ["120", "0"]


def test_an_export_that_fails_leaves_no_file_that_looks_like_a_shorter_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILT_EVENT_LOG", f"sqlite:///{tmp_path}/log")
    lines = "".join(f"{line}\n" for line in LINES)
    assert silt("events", "append", "-", stdin=lines).code == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "log")) as database, database:
        database.execute("UPDATE event_checks SET crc = crc + 1 WHERE idx = 100")
    folder = tmp_path / "exports"
    folder.mkdir()
    assert silt("events", "export", folder / "out.ndjson").code == 9
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("log")
def test_an_export_writes_no_file_that_exists_and_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "mine.ndjson").write_text("mine")
    (tmp_path / "link.ndjson").symlink_to(tmp_path / "nowhere")
    for name in ("mine.ndjson", "link.ndjson"):
        assert silt("events", "export", tmp_path / name).code == 2
    assert (tmp_path / "mine.ndjson").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("log")
def test_lists_are_paged_and_filtered() -> None:
    page = silt("events", "list", "--from", 11, "--limit", 10, "--json").data
    assert [event["index"] for event in page["events"]] == list(range(11, 21))
    assert (page["next_index"], page["has_more"]) == (21, True)
    shown = silt("events", "list", "--limit", 5)
    assert "build_request RECEIVED" in shown.out
    assert re.findall(r"\d+", shown.err) == ["6"]
    some = silt("events", "list", "--glob", "sales/*", "--build", BUILDING, "--json").data["events"]
    assert some
    assert {event["build_request_id"] for event in some} == {BUILDING}


@pytest.mark.usefixtures("log")
def test_builds_partitions_and_jobs_are_listed() -> None:
    builds = silt("events", "builds", "--json").data["builds"]
    assert builds[0]["last_index"] > builds[-1]["last_index"]
    assert silt("events", "builds", "build 0", "--json").data["build_request_id"] == "build 0"
    assert silt("events", "builds", "nothing").code == 3
    assert "UNKNOWN, RECEIVED" in silt("events", "builds", "--status", "DONE").err
    small, large = (silt("events", "builds", "--status", name, "--json").data for name in ("completed", "COMPLETED"))
    assert small == large
    ref = silt("events", "partitions", "--json").data["partitions"][0]["partition_ref"]
    assert silt("events", "partitions", ref, "--json").data["partition_ref"] == ref
    jobs = silt("events", "jobs", "--build", RUNNING, "--json").data["jobs"]
    assert {run["build_request_id"] for run in jobs} == {RUNNING}
    assert silt("events", "summary", "--json").data["events"] == 120
    first = json.loads(LINES[0])
    whole = silt("events", "show", first["event_id"], "--json").data
    assert whole.pop("appended_at") > 0
    assert whole == {"index": 1} | first
    shown = " ".join(silt("events", "show", first["event_id"]).out.split())
    assert f"build_request_id {first['build_request_id']}" in shown


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("what", ["builds", "partitions", "jobs"])
def test_a_list_that_its_limit_has_cut_announces_it_and_can_be_continued(what: str) -> None:
    whole = silt("events", what, "--json").data
    assert (whole["has_more"], whole["next"]) == (False, None)
    pages: list[object] = []
    after: tuple[str, ...] = ()
    for _ in whole[what]:
        page = silt("events", what, "--limit", 2, *after, "--json").data
        pages += page[what]
        if not page["has_more"]:
            break
        after = ("--after", page["next"])
    assert (len(whole[what]) > 4, pages) == (True, whole[what])
    shown = silt("events", what, "--limit", 2)
    assert "--after" in shown.err
    assert silt("events", what).err == ""
    assert silt("events", what, "--after", "nowhere").code == 2


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("last", [0, 1, 7, 500])
def test_tail_shows_the_last_ones(last: int) -> None:
    lines = silt("events", "tail", "-n", last, "--json").out.splitlines()
    assert [json.loads(line)["index"] for line in lines] == list(range(121 - min(last, 120), 121))


@pytest.mark.usefixtures("log")
def test_ctrl_c_is_how_following_ends() -> None:
    call = ["env", "--default-signal=INT", *COMMAND, "events", "tail", "-n", "1", "-f"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")


def test_an_event_without_id_and_time_gets_both(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/log.db"
    given = (
        '{"build_request_id": "b", "event_type": "build_request", "build_request_event": {"status_name": "RECEIVED"}}'
    )
    (answer,) = silt("events", "append", "--event", given, "--log", uri, "--json").data
    assert (answer["index"], answer["is_new"]) == (1, True)
    again = silt("events", "append", "--event", given, "--log", uri, "--json")
    assert (again.code, again.error["kind"]) == (4, "conflict")
    assert silt("events", "summary", "--log", uri, "--json").data["events"] == 1


def test_bad_input_is_one_line_and_changes_nothing(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/log.db"
    assert [name for name in ("--log", "SILT_EVENT_LOG") if name not in silt("events", "list").err] == []
    assert silt("events", "list", "--log", uri).code == 3
    assert silt("events", "list", "--log", "mysql://x/y").code == 2
    assert silt("events", "append", "--log", uri).code == 2
    assert silt("events", "append", tmp_path / "none", "--log", uri).code == 3
    refused = silt("events", "append", "-", "--log", uri, stdin=f"{LINES[0]}\n{{\n")
    assert (refused.code, refused.out) == (2, "")
    assert "line 2" in refused.err.lower()
    assert not (tmp_path / "log.db").exists()
    assert silt("events", "rebuild", "--log", f"delta://{tmp_path}/none").code == 3
    silt("events", "append", "-", "--log", uri, stdin=LINES[0])
    assert silt("events", "rebuild", "--log", uri).code == 2
    unreachable = silt("events", "list", "--log", "postgresql://ada:s3cret@127.0.0.1:1/x", "--json")
    assert unreachable.error["kind"] == "unavailable"
    assert "s3cret" not in unreachable.err


def test_a_projection_is_rebuilt_on_request_and_if_it_is_broken(tmp_path: Path) -> None:
    uri = f"delta://{tmp_path}/log"
    silt("events", "import", "-", "--log", uri, stdin="\n".join(LINES))
    assert silt("events", "rebuild", "--log", uri).out == "Rebuilt from 120 events.\n"
    [projection] = (tmp_path / "cache" / "siltstone" / "eventlog").glob("*.db")
    for suffix in ("", "-wal", "-shm"):
        projection.with_name(projection.name + suffix).unlink(missing_ok=True)
    projection.write_bytes(b"no database at all" * 1000)
    assert silt("events", "export", "--log", uri).out == "\n".join(LINES) + "\n"


def test_events_need_no_spark(tmp_path: Path) -> None:
    done = process("events", "append", "-", "--log", f"delta://{tmp_path}/log", stdin=LINES[0], PATH="", JAVA_HOME="")
    assert (done.code, done.out) == (0, "Appended 1 event.\n")


def test_the_journal_of_a_lake_is_read_and_never_appended_to(tmp_path: Path) -> None:
    received = {"build_request_event": {"status_name": "RECEIVED"}}
    event = json.dumps({"build_request_id": "cycle-000000009999-ab", "event_type": "build_request", **received})
    (tmp_path / "in.ndjson").write_text(event + "\n", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    for place in ("lake", "link", "lake/x/.."):
        uri = f"delta://{tmp_path}/{place}/_system/events"
        for call in (("append", "--event", event), ("import", tmp_path / "in.ndjson")):
            refused = silt("events", *call, "--log", uri)
            assert refused.code == 2, refused.err
    assert not (tmp_path / "lake").exists()
