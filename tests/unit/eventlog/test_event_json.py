"""Events from outside: what is read, what is refused and in which words, and that JSON is always the same bytes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from siltstone.errors import InvalidRequest
from siltstone.eventlog.address import BackendKind, parse_address
from siltstone.eventlog.event_json import is_plain, parse_event, read_event
from siltstone.eventlog.events import (
    MAX_EVENT_BYTES,
    MAX_NAME_BYTES,
    PAYLOADS,
    BuildRequestEvent,
    BuildStatus,
    Event,
    EventType,
    InputKind,
    JobEvent,
    JobGraphEvent,
    JobStatus,
    event_json,
)
from tests.support.histories import history

ID = "00000000-0000-0000-0000-00000000002a"


def given(kind: str = "build_request", **payload: Any) -> dict[str, Any]:  # noqa: ANN401
    values = {"status_code": 1, "status_name": "RECEIVED"} if kind == "build_request" and not payload else payload
    return {"event_id": ID, "timestamp": 7, "build_request_id": "b", "event_type": kind, f"{kind}_event": values}


def test_every_generated_event_is_read_back_as_it_was() -> None:
    events = list(history(500, seed=11))
    assert {event.type for event in events} == set(EventType) == set(PAYLOADS)
    for event in events:
        text = event_json(event)
        assert parse_event(text) == event
        assert parse_event(text.encode()) == event
        assert event_json(parse_event(text)) == text
        assert json.loads(text)["event_type"] + "_event" in json.loads(text)


def test_an_event_as_json_has_its_columns_in_order() -> None:
    assert event_json(read_event(given(status_name="RECEIVED", requested_partitions=["p"]))) == (
        f'{{"event_id":"{ID}","timestamp":7,"build_request_id":"b","event_type":"build_request",'
        '"build_request_event":{"status_code":1,"status_name":"RECEIVED","requested_partitions":["p"],"message":""}}'
    )


def test_config_and_manifests_are_read_from_text_and_from_what_it_says() -> None:
    config = {
        "outputs": ["o"],
        "inputs": [{"partition_ref": "i", "kind": "MATERIALIZE"}],
        "args": ["x"],
        "env": {"b": "1"},
    }
    manifests = [{"outputs": ["o"], "start_time": 1, "end_time": 2, "task": "t"}]
    plain = {"job_run_id": "r", "job_label": "l", "status_code": 3, "config": config, "manifests": manifests}
    as_text = plain | {"config": json.dumps(config), "manifests": json.dumps(manifests)}
    first, second = read_event(given("job", **plain)), read_event(given("job", **as_text))
    assert first == second
    payload = first.payload
    assert isinstance(payload, JobEvent)
    assert payload.status is JobStatus.COMPLETED
    assert payload.config is not None
    assert payload.config.inputs[0].kind is InputKind.MATERIALIZE
    assert payload.manifests[0].metadata == {}


def test_ids_are_written_in_one_way() -> None:
    assert read_event(given() | {"event_id": ID.upper().replace("-", "")}).event_id == ID


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "The event must be an object, not a list"),
        ({}, "The event has no event_type"),
        (given() | {"event_type": "party"}, "event_type 'party'; there are build_request, partition"),
        (given() | {"event_id": "7"}, "event_id is '7', which is not a UUID"),
        (given() | {"event_id": 7}, "event_id must be text, not a number"),
        (given() | {"timestamp": "now"}, "timestamp must be a whole number, not text"),
        (given() | {"timestamp": True}, "timestamp must be a whole number, not true or false"),
        (given() | {"timestamp": 1.5}, "timestamp must be a whole number"),
        (given() | {"timestamp": -1}, "timestamp is -1; it must lie between"),
        (given() | {"timestamp": 2**63}, "it must lie between"),
        (given() | {"build_request_id": ""}, "build_request_id must be 1 to 1,024 bytes long"),
        (given() | {"build_request_id": "b" * (MAX_NAME_BYTES + 1)}, "build_request_id must be 1 to 1,024 bytes long"),
        (given() | {"build_request_event": None}, "build_request_event is missing"),
        (given() | {"build_request_event": "x"}, "build_request_event must be an object, not text"),
        (given() | {"colour": "red"}, "has unknown fields: colour"),
        (given() | {"job_event": {}}, "has unknown fields: job_event"),
        (given(status_code=1, colour="red"), "build_request_event has unknown fields: colour"),
        (given(message="x"), "build_request_event has neither status_code nor status_name"),
        (given(status_code=0), "UNKNOWN, which says nothing"),
        (given(status_code=99), "status_code is 99; there are UNKNOWN 0, RECEIVED 1"),
        (given(status_name="DONE"), "status_name is 'DONE'; there are"),
        (given(status_code=1, status_name="FAILED"), "say different things"),
        (given(status_code=1, message=5), "message must be text, not a number"),
        (given(status_code=1, message="a\x00b"), "message holds a NUL character"),
        (given(status_code=1, message="\ud800"), "message is not text in UTF-8"),
        (given(status_code=1, requested_partitions="p"), "requested_partitions must be a list, not text"),
        (given(status_code=1, requested_partitions=["p", 5]), r"requested_partitions\[1\] must be text"),
        (given(status_code=1, requested_partitions=[""]), r"requested_partitions\[0\] must be 1 to 1,024 bytes"),
        (given("partition", status_code=1), "partition_ref is missing"),
        (given("job", job_run_id="r", job_label="l", status_code=1, config="{"), "job_event.config is not JSON"),
        (given("job", job_run_id="r", job_label="l", status_code=1, config="[]"), "config must be an object, not a list"),
        (given("job", job_run_id="r", job_label="l", status_code=1, config={"x": 1}), "config has unknown fields: x"),
        (given("job", job_run_id="r", job_label="l", status_code=1, config={"env": {"a": 1}}), "env.a must be text"),
        (given("job", job_run_id="r", job_label="l", status_code=1, config={"env": []}), "env must be an object"),
        (given("job", job_run_id="r", job_label="l", status_code=1, config={"inputs": [{"partition_ref": "p", "kind": 7}]}),
         r"config.inputs\[0\].kind is 7; there are QUERY 0, MATERIALIZE 1"),
        (given("job", job_run_id="r", job_label="l", status_code=1, manifests={}), "manifests must be a list, not an object"),
        (given("job", job_run_id="r", job_label="l", status_code=1, manifests=[{}]), r"manifests\[0\].start_time is missing"),
        (given("job", job_run_id="r", job_label="l", status_code=1, manifests='[{"start_time": NaN}]'), "not a number in JSON"),
        (given("job_graph", job_graph="{nodes}"), "job_graph_event.job_graph is not JSON"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_by_field(values: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_event(values)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"timestamp": Infinity}', "Infinity is not a number in JSON"),
        ("x" * (MAX_EVENT_BYTES + 1), "1,048,576 are allowed"),
    ],
)
def test_what_is_no_json_is_refused(text: str | bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^Line 3.*{words}"):
        parse_event(text, where="Line 3")


def test_events_say_what_they_are_about() -> None:
    events = list(history(500, seed=12))
    assert {event.job_label is not None for event in events if event.type is EventType.JOB} == {True}
    assert all(event.job_run_id for event in events if event.type in (EventType.JOB, EventType.TASK_CANCEL))
    assert all(len(set(event.partition_refs)) == len(event.partition_refs) for event in events)
    assert {event.message for event in events if event.type is EventType.BUILD_CANCEL} == {"genug"}
    assert BuildStatus.RECEIVED.name in event_json(events[0])


@pytest.mark.parametrize(
    ("uri", "backend", "path"),
    [
        ("memory:", BackendKind.MEMORY, ""),
        ("sqlite:///a/b.db", BackendKind.SQLITE, "a/b.db"),
        ("sqlite:////a/b%20c.db", BackendKind.SQLITE, "/a/b c.db"),
        ("delta:///a/b", BackendKind.DELTA, "/a/b"),
        ("delta+s3://bucket/a/b", BackendKind.DELTA_S3, "a/b"),
        ("delta+azure://container/a", BackendKind.DELTA_AZURE, "a"),
    ],
)
def test_addresses_name_a_backend_and_a_place(uri: str, backend: BackendKind, path: str) -> None:
    found = parse_address(uri)
    assert (found.backend, found.path, found.shown) == (backend, path, uri)


@pytest.mark.parametrize(
    "uri",
    [
        *("", "log.db", "mysql://x/y", "memory:x", "sqlite://x", "sqlite:///", "sqlite:///a?mode=ro"),
        *("delta://a/b", "delta:///", "delta+s3://bucket", "delta+s3:///a", "delta+azure://c"),
        *("postgresql://host", "postgresql://[x/y"),
    ],
)
def test_addresses_that_name_none_are_refused(uri: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_address(uri)


def test_a_password_is_shown_nowhere() -> None:
    assert parse_address("postgresql://ada:s3c@ret@db/x").shown == "postgresql://ada:***@db/x"
    with pytest.raises(InvalidRequest) as told:
        parse_address("postgresql://ada:s3cret@db")
    assert "s3cret" not in str(told.value)


def test_plain_events_are_those_that_are_stored_as_they_stand() -> None:
    plain = [event for event in history(2000, seed=3) if is_plain(event)]
    assert len(plain) > 500
    assert all(parse_event(event_json(event)) == event for event in plain)


def test_stored_json_is_a_few_times_as_long_as_the_json_that_was_read() -> None:
    job = {"job_run_id": "r", "job_label": "l", "status_code": 3}
    for payload in (
        job | {"manifests": [{"start_time": 1, "end_time": 2}] * 500},
        job | {"config": {"env": {str(n): '"' for n in range(500)}}},
        job | {"message": "\U0001f600" * 2000},
    ):
        text = json.dumps(given("job", **payload), ensure_ascii=False, separators=(",", ":"))
        assert len(event_json(parse_event(text)).encode()) < 5 * len(text)


@pytest.mark.parametrize(
    "change",
    [
        {"event_id": ID.upper().replace("2A", "2a").replace("-", "")},
        {"event_id": "00000000-0000-0000-0000-00000000002A"},
        {"event_id": 7},
        {"timestamp": -1},
        {"timestamp": 2**63},
        {"timestamp": True},
        {"timestamp": 1.0},
        {"build_request_id": ""},
        {"build_request_id": "b" * (MAX_NAME_BYTES + 1)},
        {"build_request_id": "b\x00"},
        {"build_request_id": "\ud800"},
        {"build_request_id": None},
        {"payload": BuildRequestEvent(status=BuildStatus.UNKNOWN)},
        {"payload": BuildRequestEvent(status=1)},  # type: ignore[arg-type]
        {"payload": BuildRequestEvent(status=JobStatus.SCHEDULED)},  # type: ignore[arg-type]
        {"payload": BuildRequestEvent(status=BuildStatus.RECEIVED, requested_partitions=["p"])},  # type: ignore[arg-type]
        {"payload": BuildRequestEvent(status=BuildStatus.RECEIVED, requested_partitions=("",))},
        {"payload": BuildRequestEvent(status=BuildStatus.RECEIVED, requested_partitions=("p",) * 65)},
        {"payload": BuildRequestEvent(status=BuildStatus.RECEIVED, message="x" * 20_000)},
        {"payload": BuildRequestEvent(status=BuildStatus.RECEIVED, message="\x00")},
        {"payload": BuildRequestEvent(status=BuildStatus.RECEIVED, message="é")},
        {"payload": JobGraphEvent(job_graph="{}")},
        {"payload": "no payload"},
    ],
)
def test_whatever_may_break_a_rule_is_looked_at_closely(change: dict[str, Any]) -> None:
    fine = Event(event_id=ID, timestamp=7, build_request_id="b", payload=BuildRequestEvent(status=BuildStatus.RECEIVED))
    assert is_plain(fine)
    assert not is_plain(replace(fine, **change))
