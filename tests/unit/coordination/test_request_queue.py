"""Requests: files that one process leaves for the holder of the lease."""

import json
import os
from pathlib import Path

import pytest

from siltstone.coordination import request_queue as room
from siltstone.coordination.request_queue import KEPT_SECONDS, SILENT_SECONDS, Requests
from siltstone.delta.layout import Layout
from siltstone.errors import Corruption, InvalidRequest, Reason, Unavailable
from siltstone.model.compaction_request import Answer, Ask, Request, Wish
from tests.support.clocks import FakeClock
from tests.support.refusals import refused

WISH = Wish(ask=Ask.COMPACT, names=("a.b.c",), purge=True)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def requests(tmp_path: Path, clock: FakeClock) -> Requests:
    return Requests(Layout.at(tmp_path), clock=clock, durable=False)


def files(tmp_path: Path) -> list[str]:
    folder = tmp_path / "_system" / "compactor" / "requests"
    return sorted(path.suffix for path in folder.iterdir()) if folder.is_dir() else []


def test_a_request_is_asked_begun_told_answered_and_gone(requests: Requests, tmp_path: Path):
    following = requests.ask(WISH)
    [request] = requests.waiting()
    assert request == following.request
    assert (request.wish, request.pid) == (WISH, os.getpid())
    assert following.answer() is None
    assert requests.begin(request)
    requests.tell(request.id, {"event": "begun", "cycle": 7})
    assert following.told() == [{"event": "begun", "cycle": 7}]
    assert following.told() == []
    requests.answer(Answer(id=request.id, cycle=7, results=({"dataset": "a.b.c"},)))
    assert requests.waiting() == []
    found = following.answer()
    assert found is not None
    assert (found.cycle, found.results) == (7, ({"dataset": "a.b.c"},))
    following.close()
    assert files(tmp_path) == []


def test_requests_come_in_the_order_in_which_they_were_asked(requests: Requests, clock: FakeClock):
    asked = []
    for _ in range(5):
        asked.append(requests.ask(WISH).request.id)
        clock.pass_time(seconds=1)
    assert [request.id for request in requests.waiting()] == asked


def test_of_withdrawing_and_beginning_exactly_one_succeeds(requests: Requests):
    first, second = requests.ask(WISH), requests.ask(WISH)
    assert first.withdraw()
    assert not requests.begin(first.request)
    assert requests.begin(second.request)
    assert not second.withdraw()


def test_what_a_dead_holder_had_begun_is_begun_again_until_there_is_an_answer(requests: Requests, tmp_path: Path):
    following = requests.ask(WISH)
    assert requests.begin(following.request)
    assert [request.id for request in requests.waiting()] == [following.request.id]
    assert requests.begin(following.request), "the next holder"
    requests.answer(Answer(id=following.request.id, cycle=1))
    (tmp_path / "_system" / "compactor" / "requests" / f"{following.request.id}.taken").write_text("left by a crash")
    assert requests.waiting() == []
    assert files(tmp_path) == [".answer"]


def test_the_first_answer_stands(requests: Requests):
    following = requests.ask(WISH)
    requests.answer(Answer(id=following.request.id, cycle=1))
    requests.answer(Answer(id=following.request.id, cycle=2))
    found = following.answer()
    assert found is not None
    assert found.cycle == 1


def test_a_request_whose_requester_has_gone_is_not_followed(requests: Requests):
    following = requests.ask(WISH)
    assert requests.is_followed(following.request)
    following._presence.close()
    assert not requests.is_followed(following.request)


def test_a_requester_on_another_machine_is_followed_as_long_as_it_touches_its_file(
    requests: Requests, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(room, "machine", lambda: "another")
    following = requests.ask(WISH)
    monkeypatch.undo()
    assert requests.is_followed(following.request)
    for _ in range(3):
        clock.pass_time(seconds=SILENT_SECONDS - 1)
        os.utime(requests._path(following.request.id, ".asked"), (clock.monotonic_seconds(),) * 2)
        assert requests.is_followed(following.request)
    clock.jump(days=400)
    assert requests.is_followed(following.request), "no time of day decides it"
    clock.pass_time(seconds=SILENT_SECONDS)
    assert not requests.is_followed(following.request)


@pytest.mark.parametrize(
    "text", ["", "nope", "[]", "7", '{"id": "x"}', '{"wish": {"ask": "explode"}}', "\x00" * 10, "x" * 2_000_000]
)
def test_what_is_no_request_is_put_aside_and_the_others_are_done(requests: Requests, tmp_path: Path, text: str):
    following = requests.ask(WISH)
    folder = tmp_path / "_system" / "compactor" / "requests"
    (folder / "0123.asked").write_text(text)
    (folder / "4567.asked").write_text(following.request.to_json())
    assert [request.id for request in requests.waiting()] == [following.request.id]
    assert files(tmp_path) == [".asked", ".bad", ".bad"]


def handwritten(**wish: object) -> str:
    meant = {"ask": "compact", "names": None, "only": None, "force": False, "purge": False, **wish}
    return json.dumps({"id": "0123", "wish": meant, "machine": "m", "host": "h", "pid": 1, "asked_at": "now"})


@pytest.mark.parametrize(
    "text",
    [
        handwritten().replace('"pid": 1', '"pid": 1e999'),
        handwritten(retention_hours=10**400),
        handwritten(names="crm"),
        handwritten(purge="no"),
        handwritten(force=1),
        "[" * 200_000,
    ],
    ids=[
        "pid without end",
        "huge retention",
        "names are a text",
        "purge is a text",
        "force is a number",
        "nested deeply",
    ],
)
def test_a_request_that_was_written_wrongly_by_hand_keeps_no_other_from_being_done(
    requests: Requests, tmp_path: Path, text: str
):
    assert Request.from_json(handwritten()).wish.names is None, "this much is right"
    following = requests.ask(WISH)
    (tmp_path / "_system" / "compactor" / "requests" / "0123.asked").write_text(text)
    assert [request.id for request in requests.waiting()] == [following.request.id]
    assert files(tmp_path) == [".asked", ".bad"]


def test_a_folder_among_the_requests_is_put_aside_and_harms_no_sweep(
    requests: Requests, tmp_path: Path, clock: FakeClock
):
    following = requests.ask(WISH)
    folder = tmp_path / "_system" / "compactor" / "requests" / "0123.asked"
    folder.mkdir()
    assert [request.id for request in requests.waiting()] == [following.request.id]
    assert files(tmp_path) == [".asked", ".bad"]
    os.utime(folder.with_suffix(".bad"), (clock.now().timestamp() - KEPT_SECONDS - 1,) * 2)
    requests.sweep()


def test_what_nobody_will_read_is_swept_when_it_is_old(requests: Requests, tmp_path: Path, clock: FakeClock):
    following = requests.ask(WISH)
    folder = tmp_path / "_system" / "compactor" / "requests"
    for name in ("dead.draft", "dead.told", "older.answer", "bad.bad"):
        (folder / name).write_text("{}")
        os.utime(folder / name, (clock.now().timestamp(),) * 2)
    os.utime(folder / f"{following.request.id}.asked", (clock.now().timestamp(),) * 2)
    requests.sweep()
    assert len(files(tmp_path)) == 5
    clock.pass_time(seconds=KEPT_SECONDS + 1)
    requests.sweep()
    assert files(tmp_path) == [".asked"], "somebody follows this one"


def test_a_line_that_is_cut_is_read_when_it_is_whole(requests: Requests):
    following = requests.ask(WISH)
    path = requests._path(following.request.id, ".told")
    path.write_text('{"event": "a"}\n{"eve')
    assert following.told() == [{"event": "a"}]
    path.write_text('{"event": "a"}\n{"event": "b"}\nnope\n')
    assert following.told() == [{"event": "b"}]


def test_a_damaged_answer_is_an_error_and_not_waited_for(requests: Requests):
    following = requests.ask(WISH)
    requests._path(following.request.id, ".answer").write_text("{}")
    with refused(Corruption, Reason.DAMAGED_FILE, following.request.id):
        following.answer()


def test_a_disk_that_refuses_is_said_and_nothing_was_asked(requests: Requests, tmp_path: Path):
    (tmp_path / "_system").mkdir()
    (tmp_path / "_system" / "compactor").write_text("a file")
    with refused(Unavailable, None, tmp_path / "_system" / "compactor"):
        requests.ask(WISH)
    assert not list((tmp_path / "_system").glob("work/*"))


def test_a_request_survives_its_text():
    request = Request(id="1", wish=WISH, machine="m", host="h", pid=3, asked_at="now")
    assert Request.from_json(request.to_json()) == request
    with pytest.raises(InvalidRequest, match="no request"):
        Request.from_json(request.to_json().replace('"m"', "7"))
