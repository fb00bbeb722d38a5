"""Events from outside: valid and invalid events, the addresses of logs, and that one event is always the same JSON."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import pytest

from siltstone.errors import InvalidRequest, Reason
from siltstone.eventlog.address import BackendKind, parse_address
from siltstone.eventlog.event_json import is_plain, parse_event, read_event
from siltstone.eventlog.events import (
    MAX_EVENT_BYTES,
    MAX_NAME_BYTES,
    BuildRequestEvent,
    BuildStatus,
    Event,
    EventType,
    InputKind,
    JobEvent,
    JobGraphEvent,
    JobStatus,
    Payload,
    event_json,
)
from tests.support.histories import history
from tests.support.refusals import refused

ID = "00000000-0000-0000-0000-00000000002a"


def event_values(kind: str = "build_request", **payload: Any) -> dict[str, Any]:  # noqa: ANN401
    values = {"status_code": 1, "status_name": "RECEIVED"} if kind == "build_request" and not payload else payload
    return {"event_id": ID, "timestamp": 7, "build_request_id": "b", "event_type": kind, f"{kind}_event": values}


def job_values(**payload: Any) -> dict[str, Any]:  # noqa: ANN401
    return event_values("job", job_run_id="r", job_label="l", status_code=1, **payload)


def test_every_generated_event_is_read_back_unchanged() -> None:
    events = list(history(500, seed=11))
    assert {event.type for event in events} == set(EventType) == {payload.type for payload in get_args(Payload)}
    for event in events:
        text = event_json(event)
        assert parse_event(text) == event
        assert parse_event(text.encode()) == event
        assert event_json(parse_event(text)) == text
        assert json.loads(text)["event_type"] + "_event" in json.loads(text)


def test_an_event_as_json_has_its_columns_in_order() -> None:
    assert event_json(read_event(event_values(status_name="RECEIVED", requested_partitions=["p"]))) == (
        f'{{"event_id":"{ID}","timestamp":7,"build_request_id":"b","event_type":"build_request",'
        '"build_request_event":{"status_code":1,"status_name":"RECEIVED","requested_partitions":["p"],"message":""}}'
    )


def test_config_and_manifests_are_read_from_json_text_and_from_values() -> None:
    config = {
        "outputs": ["o"],
        "inputs": [{"partition_ref": "i", "kind": "MATERIALIZE"}],
        "args": ["x"],
        "env": {"b": "1"},
    }
    manifests = [{"outputs": ["o"], "start_time": 1, "end_time": 2, "task": "t"}]
    plain = {"job_run_id": "r", "job_label": "l", "status_code": 3, "config": config, "manifests": manifests}
    as_text = plain | {"config": json.dumps(config), "manifests": json.dumps(manifests)}
    first, second = read_event(event_values("job", **plain)), read_event(event_values("job", **as_text))
    assert first == second
    payload = first.payload
    assert isinstance(payload, JobEvent)
    assert payload.status is JobStatus.COMPLETED
    assert payload.config is not None
    assert payload.config.inputs[0].kind is InputKind.MATERIALIZE
    assert payload.manifests[0].metadata == {}


def test_an_event_id_has_one_spelling() -> None:
    assert read_event(event_values() | {"event_id": ID.upper().replace("-", "")}).event_id == ID


@pytest.mark.parametrize(
    ("values", "reason", "facts"),
    [
        ([], Reason.WRONG_TYPE, ["The event"]),
        ({}, Reason.MISSING_FIELD, ["event_type"]),
        (event_values() | {"event_type": "party"}, Reason.INVALID_VALUE, ["event_type", "'party'"]),
        (event_values() | {"event_id": "7"}, Reason.INVALID_VALUE, ["event_id", "'7'"]),
        (event_values() | {"event_id": 7}, Reason.WRONG_TYPE, ["event_id"]),
        (event_values() | {"timestamp": "now"}, Reason.WRONG_TYPE, ["timestamp"]),
        (event_values() | {"timestamp": True}, Reason.WRONG_TYPE, ["timestamp"]),
        (event_values() | {"timestamp": 1.5}, Reason.WRONG_TYPE, ["timestamp"]),
        (event_values() | {"timestamp": -1}, Reason.INVALID_VALUE, ["timestamp", "-1", 2**63 - 1]),
        (event_values() | {"timestamp": 2**63}, Reason.INVALID_VALUE, ["timestamp", 2**63, 2**63 - 1]),
        (event_values() | {"build_request_id": ""}, Reason.INVALID_VALUE, ["build_request_id", "1,024"]),
        (event_values() | {"build_request_id": "b" * (MAX_NAME_BYTES + 1)}, Reason.INVALID_VALUE, ["build_request_id", "1,024"]),
        (event_values() | {"build_request_event": None}, Reason.MISSING_FIELD, ["build_request_event"]),
        (event_values() | {"build_request_event": "x"}, Reason.WRONG_TYPE, ["build_request_event"]),
        (event_values() | {"colour": "red"}, Reason.UNKNOWN_FIELD, ["colour"]),
        (event_values() | {"\ud800": 1}, Reason.UNKNOWN_FIELD, ["\\ud800"]),
        (event_values() | {"job_event": {}}, Reason.UNKNOWN_FIELD, ["job_event"]),
        (event_values(status_code=1, colour="red"), Reason.UNKNOWN_FIELD, ["build_request_event", "colour"]),
        (event_values(message="x"), Reason.MISSING_FIELD, ["build_request_event", "status_code", "status_name"]),
        (event_values(status_code=0), Reason.INVALID_VALUE, ["build_request_event", "UNKNOWN"]),
        (event_values(status_code=99), Reason.INVALID_VALUE, ["status_code", "99"]),
        (event_values(status_name="DONE"), Reason.INVALID_VALUE, ["status_name", "'DONE'"]),
        (event_values(status_code=1, status_name="FAILED"), Reason.INVALID_VALUE, ["status_code", "status_name"]),
        (event_values(status_code=1, message=5), Reason.WRONG_TYPE, ["message"]),
        (event_values(status_code=1, message="a\x00b"), Reason.INVALID_VALUE, ["message", "NUL"]),
        (event_values(status_code=1, message="\ud800"), Reason.INVALID_VALUE, ["message", "UTF-8"]),
        (event_values(status_code=1, requested_partitions="p"), Reason.WRONG_TYPE, ["requested_partitions"]),
        (event_values(status_code=1, requested_partitions=["p", 5]), Reason.WRONG_TYPE, ["requested_partitions[1]"]),
        (event_values(status_code=1, requested_partitions=[""]), Reason.INVALID_VALUE, ["requested_partitions[0]", "1,024"]),
        (event_values("partition", status_code=1), Reason.MISSING_FIELD, ["partition_event.partition_ref"]),
        (job_values(config="{"), Reason.NOT_JSON, ["job_event.config"]),
        (job_values(config="[]"), Reason.WRONG_TYPE, ["job_event.config"]),
        (job_values(config={"x": 1}), Reason.UNKNOWN_FIELD, ["job_event.config", "x"]),
        (job_values(config={"env": {"a": 1}}), Reason.WRONG_TYPE, ["config.env.a"]),
        (job_values(config={"env": []}), Reason.WRONG_TYPE, ["config.env"]),
        (job_values(config={"inputs": [{"partition_ref": "p", "kind": 7}]}),
         Reason.INVALID_VALUE, ["config.inputs[0].kind", "7"]),
        (job_values(manifests={}), Reason.WRONG_TYPE, ["job_event.manifests"]),
        (job_values(manifests=[{}]), Reason.MISSING_FIELD, ["manifests[0].start_time"]),
        (job_values(manifests='[{"start_time": NaN}]'), Reason.NOT_JSON, ["job_event.manifests", "NaN"]),
        (event_values("job_graph", job_graph="{nodes}"), Reason.NOT_JSON, ["job_graph_event.job_graph"]),
    ],
)  # fmt: skip
def test_an_invalid_event_is_refused_by_its_field(values: object, reason: Reason, facts: list[object]) -> None:
    with refused(InvalidRequest, reason, *facts):
        read_event(values)


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        (event_values() | {"event_type": "party"}, EventType),
        (event_values(status_code=99), BuildStatus.__members__),
        (job_values(config={"inputs": [{"partition_ref": "p", "kind": 7}]}), InputKind.__members__),
    ],
)
def test_the_refusal_of_a_code_names_every_allowed_one(values: object, allowed: Iterable[str]) -> None:
    with refused(InvalidRequest, Reason.INVALID_VALUE, *allowed):
        read_event(values)


@pytest.mark.parametrize(
    ("text", "reason", "facts"),
    [
        ("", Reason.NOT_JSON, []),
        ("{", Reason.NOT_JSON, []),
        (b"\xff{}", Reason.NOT_JSON, []),
        ("[" * 100_000, Reason.NOT_JSON, []),
        ('{"timestamp": Infinity}', Reason.NOT_JSON, ["Infinity"]),
        ("x" * (MAX_EVENT_BYTES + 1), Reason.TOO_LARGE, ["1,048,577", "1,048,576"]),
        ('{"a":' * 101 + "0" + "}" * 101, Reason.TOO_LARGE, ["100"]),
    ],
)
def test_text_that_is_not_json_or_too_large_is_refused(text: str | bytes, reason: Reason, facts: list[str]) -> None:
    with refused(InvalidRequest, reason, *facts) as refusal:
        parse_event(text, where="Line 3")
    assert str(refusal.value).startswith("Line 3 ")


def test_events_name_their_partitions_and_job_runs() -> None:
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
def test_addresses_name_a_backend_and_a_location(uri: str, backend: BackendKind, path: str) -> None:
    address = parse_address(uri)
    assert (address.backend, address.path, address.shown) == (backend, path, uri)


@pytest.mark.parametrize(
    "uri",
    [
        *("", "log.db", "mysql://x/y", "memory:x", "sqlite://x", "sqlite:///", "sqlite:///a?mode=ro"),
        *("delta://a/b", "delta:///", "delta+s3://bucket", "delta+s3:///a", "delta+azure://c"),
        *("postgresql://host", "postgresql://[x/y"),
    ],
)
def test_addresses_without_a_backend_or_location_are_refused(uri: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_address(uri)


def test_a_password_is_never_shown() -> None:
    assert parse_address("postgresql://ada:s3c@ret@db/x").shown == "postgresql://ada:***@db/x"
    with pytest.raises(InvalidRequest) as refusal:
        parse_address("postgresql://ada:s3cret@db")
    assert "s3cret" not in str(refusal.value)


def test_plain_events_are_stored_unchanged() -> None:
    plain = [event for event in history(2000, seed=3) if is_plain(event)]
    assert len(plain) > 500
    assert all(parse_event(event_json(event)) == event for event in plain)


def test_stored_json_is_less_than_five_times_as_long_as_the_json_that_was_read() -> None:
    job = {"job_run_id": "r", "job_label": "l", "status_code": 3}
    for payload in (
        job | {"manifests": [{"start_time": 1, "end_time": 2}] * 500},
        job | {"config": {"env": {str(n): '"' for n in range(500)}}},
        job | {"message": "\U0001f600" * 2000},
    ):
        text = json.dumps(event_values("job", **payload), ensure_ascii=False, separators=(",", ":"))
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
def test_an_event_that_may_break_a_rule_is_not_plain(change: dict[str, Any]) -> None:
    fine = Event(event_id=ID, timestamp=7, build_request_id="b", payload=BuildRequestEvent(status=BuildStatus.RECEIVED))
    assert is_plain(fine)
    assert not is_plain(replace(fine, **change))
