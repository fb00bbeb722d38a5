"""Events from outside: JSON becomes an `Event`, or an error that says which field is wrong. Nothing is guessed.

An event as JSON is one object: ``event_id``, ``timestamp``, ``build_request_id``, ``event_type`` and the payload under its own
name, with a status as code or name or both, and ``config`` and ``manifests`` as JSON text or as what that text says.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar, cast

from siltstone.errors import InvalidRequest
from siltstone.eventlog.events import (
    PAYLOADS,
    BuildCancelEvent,
    BuildRequestEvent,
    BuildStatus,
    DelegationEvent,
    Event,
    EventType,
    InputKind,
    JobConfig,
    JobEvent,
    JobGraphEvent,
    JobInput,
    JobStatus,
    PartitionEvent,
    PartitionInvalidationEvent,
    PartitionManifest,
    PartitionStatus,
    Payload,
    TaskCancelEvent,
    event_json,
)

MAX_EVENT_BYTES: Final = 1024 * 1024
"""An event's JSON is at most this long: a log is read as a whole again and again, and is no place for files."""
MAX_NAME_BYTES: Final = 1024
"""A name that is looked up (a build request, a partition, a job or a run of one) is at most this long: it is part of indexes."""
MAX_TIMESTAMP: Final = 2**63 - 1
PLAIN_TEXT: Final = 16 * 1024
PLAIN_NAMES: Final = 64
"""So long, and so many, are the texts and names of an event that needs no closer look: far below the limit of all together."""
MAX_DEPTH: Final = 100
"""How deep JSON may be nested: whoever reads it must not come near the limits of his language."""

E = TypeVar("E", bound=IntEnum)
T = TypeVar("T")


def parse_event(text: str | bytes, *, where: str = "The event") -> Event:
    """Read one event from JSON.

    Raises:
        InvalidRequest: it is not an event; the message begins with `where` and says which field is wrong.
    """
    return read_event(_parsed(text, where), where=where)


def read_event(values: object, *, where: str = "The event") -> Event:
    """Read one event from what JSON gives.

    Raises:
        InvalidRequest: it is not an event.
    """
    fields = _Fields(values, where)
    kind = fields.one_of("event_type", EventType)
    event = Event(
        event_id=fields.uuid("event_id"),
        timestamp=fields.number("timestamp", low=0, high=MAX_TIMESTAMP),
        build_request_id=fields.name("build_request_id"),
        payload=_payload(kind, fields.inner(kind.column)),
        is_checked=True,
    )
    fields.end()
    _check_size(event, where)
    return event


def is_plain(event: Event) -> bool:
    """True if an event keeps all rules at first sight, as nearly all do: short names and texts in ASCII, no nested JSON.

    Such an event is stored as it stands; to write it as JSON and read it again would take ten times as long.
    """
    payload = event.payload
    rules = _PLAIN.get(type(payload))
    return (
        rules is not None
        and _UUID.fullmatch(event.event_id if type(event.event_id) is str else "") is not None
        and type(event.timestamp) is int
        and 0 <= event.timestamp <= MAX_TIMESTAMP
        and _is_plain_name(event.build_request_id)
        and all(is_fine(getattr(payload, name)) for name, is_fine in rules)
    )


def check_event(event: Event, *, where: str = "The event") -> Event:
    """Refuse an event that was made by hand and breaks the rules that JSON is read by; return it as it is stored.

    Raises:
        InvalidRequest: it breaks a rule; the message says which field is wrong.
    """
    if event.is_checked or is_plain(event):
        return event
    try:
        text = event_json(event)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} cannot be written as JSON: {error}") from error
    return parse_event(text, where=where)


def _is_plain_text(value: object) -> bool:
    return type(value) is str and len(value) <= PLAIN_TEXT and value.isascii() and "\x00" not in value


def _is_plain_name(value: object) -> bool:
    return _is_plain_text(value) and 0 < len(cast("str", value)) <= MAX_NAME_BYTES


def _are_plain_names(value: object) -> bool:
    return type(value) is tuple and len(value) <= PLAIN_NAMES and all(map(_is_plain_name, value))


_UUID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PLAIN: Final[Mapping[type[Payload], Sequence[tuple[str, Callable[[object], bool]]]]] = {
    BuildRequestEvent: (
        ("status", lambda value: type(value) is BuildStatus and value != 0),
        ("requested_partitions", _are_plain_names),
        ("message", _is_plain_text),
    ),
    PartitionEvent: (
        ("partition_ref", _is_plain_name),
        ("status", lambda value: type(value) is PartitionStatus and value != 0),
        ("message", _is_plain_text),
        ("job_run_id", lambda value: value is None or _is_plain_name(value)),
    ),
    JobEvent: (
        ("job_run_id", _is_plain_name),
        ("job_label", _is_plain_name),
        ("target_partitions", _are_plain_names),
        ("status", lambda value: type(value) is JobStatus and value != 0),
        ("message", _is_plain_text),
        ("config", lambda value: value is None),
        ("manifests", lambda value: value == ()),
    ),
    DelegationEvent: (
        ("partition_ref", _is_plain_name),
        ("delegated_to_build_request_id", _is_plain_name),
        ("message", _is_plain_text),
    ),
    PartitionInvalidationEvent: (("partition_ref", _is_plain_name), ("reason", _is_plain_text)),
    TaskCancelEvent: (("job_run_id", _is_plain_name), ("reason", _is_plain_text)),
    BuildCancelEvent: (("reason", _is_plain_text),),
}
"""How the fields of a plain event look, by its payload."""


def _check_size(event: Event, where: str) -> None:
    try:
        size = len(event_json(event).encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{where} cannot be written as JSON in UTF-8: {error}") from error
    if size > MAX_EVENT_BYTES:
        raise InvalidRequest(
            f"{where} takes {size:,} bytes; {MAX_EVENT_BYTES:,} are allowed. Keep large things elsewhere."
        )


def _parsed(text: str | bytes, where: str) -> Any:  # noqa: ANN401
    if len(text) > MAX_EVENT_BYTES:
        raise InvalidRequest(f"{where} takes {len(text):,} bytes; {MAX_EVENT_BYTES:,} are allowed.")
    try:
        found = json.loads(text if isinstance(text, str) else text.decode(), parse_constant=_refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from error
    level = [found]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _inner(one)]
        if not level:
            return found
    raise InvalidRequest(f"{where} is nested deeper than {MAX_DEPTH} levels.")


def _inner(value: Any) -> Iterable[Any]:  # noqa: ANN401
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")


def _payload(kind: EventType, fields: "_Fields") -> Payload:
    payload = _READERS[kind](fields)
    fields.end()
    return payload


def _build_request(fields: "_Fields") -> Payload:
    return BuildRequestEvent(
        status=fields.status(BuildStatus),
        requested_partitions=fields.names("requested_partitions"),
        message=fields.text("message"),
    )


def _partition(fields: "_Fields") -> Payload:
    return PartitionEvent(
        partition_ref=fields.name("partition_ref"),
        status=fields.status(PartitionStatus),
        message=fields.text("message"),
        job_run_id=fields.maybe("job_run_id", fields.name),
    )


def _job(fields: "_Fields") -> Payload:
    return JobEvent(
        job_run_id=fields.name("job_run_id"),
        job_label=fields.name("job_label"),
        target_partitions=fields.names("target_partitions"),
        status=fields.status(JobStatus),
        message=fields.text("message"),
        config=fields.maybe("config", lambda name: _config(fields.json(name, dict))),
        manifests=tuple(map(_manifest, fields.maybe("manifests", lambda name: fields.json(name, list).items()) or ())),
    )


def _config(fields: "_Fields") -> JobConfig:
    config = JobConfig(
        outputs=fields.names("outputs"),
        inputs=tuple(map(_input, fields.many("inputs"))),
        args=fields.texts("args"),
        env=fields.mapping("env"),
    )
    fields.end()
    return config


def _input(fields: "_Fields") -> JobInput:
    found = JobInput(partition_ref=fields.name("partition_ref"), kind=fields.code("kind", InputKind))
    fields.end()
    return found


def _manifest(fields: "_Fields") -> PartitionManifest:
    manifest = PartitionManifest(
        outputs=fields.names("outputs"),
        inputs=fields.names("inputs"),
        start_time=fields.number("start_time", low=0, high=MAX_TIMESTAMP),
        end_time=fields.number("end_time", low=0, high=MAX_TIMESTAMP),
        task=fields.text("task"),
        metadata=fields.mapping("metadata"),
    )
    fields.end()
    return manifest


def _delegation(fields: "_Fields") -> Payload:
    return DelegationEvent(
        partition_ref=fields.name("partition_ref"),
        delegated_to_build_request_id=fields.name("delegated_to_build_request_id"),
        message=fields.text("message"),
    )


def _job_graph(fields: "_Fields") -> Payload:
    graph = fields.text("job_graph")
    _parsed(graph, f"{fields.where}.job_graph")
    return JobGraphEvent(job_graph=graph, message=fields.text("message"))


_READERS: Final[Mapping[EventType, Callable[["_Fields"], Payload]]] = {
    EventType.BUILD_REQUEST: _build_request,
    EventType.PARTITION: _partition,
    EventType.JOB: _job,
    EventType.DELEGATION: _delegation,
    EventType.JOB_GRAPH: _job_graph,
    EventType.PARTITION_INVALIDATION: lambda fields: PartitionInvalidationEvent(
        partition_ref=fields.name("partition_ref"), reason=fields.text("reason")
    ),
    EventType.TASK_CANCEL: lambda fields: TaskCancelEvent(
        job_run_id=fields.name("job_run_id"), reason=fields.text("reason")
    ),
    EventType.BUILD_CANCEL: lambda fields: BuildCancelEvent(reason=fields.text("reason")),
}
if set(_READERS) != set(PAYLOADS):
    raise AssertionError("every payload has a reader")


class _Fields:
    """The fields of one JSON object; each is asked for once, and what nobody asked for is an error."""

    def __init__(self, values: object, where: str) -> None:
        if not isinstance(values, dict):
            raise InvalidRequest(f"{where} must be an object, not {_kind(values)}.")
        self.where = where
        self._left: dict[str, Any] = dict(values)

    def end(self) -> None:
        """Refuse fields that nobody knows; nulls are nothing."""
        unknown = sorted(name for name, value in self._left.items() if value is not None)
        if unknown:
            raise InvalidRequest(f"{self.where} has unknown fields: {', '.join(unknown)}.")

    def maybe(self, name: str, read: Callable[[str], T]) -> T | None:
        """Read a field that may be missing or null."""
        return None if self._left.get(name) is None else read(name)

    def text(self, name: str) -> str:
        """Read text; none is the empty one."""
        found = self._left.pop(name, None)
        if found is None:
            return ""
        return self._text(found, name)

    def _text(self, value: object, name: str) -> str:
        if not isinstance(value, str):
            raise self._wrong(name, "must be text", value)
        if "\x00" in value:
            raise InvalidRequest(f"{self.where}.{name} holds a NUL character, which not every backend can store.")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{self.where}.{name} is not text in UTF-8: {error}") from error
        return value

    def name(self, name: str) -> str:
        """Read a name, which must be there."""
        found = self.text(name)
        if not found:
            raise InvalidRequest(f"{self.where}.{name} is missing.")
        if len(found.encode()) > MAX_NAME_BYTES:
            raise InvalidRequest(f"{self.where}.{name} takes more than {MAX_NAME_BYTES:,} bytes.")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Read a list of texts."""
        return tuple(self._text(value, f"{name}[{at}]") for at, value in enumerate(self._list(name)))

    def names(self, name: str) -> tuple[str, ...]:
        """Read a list of names."""
        found = self.texts(name)
        for at, value in enumerate(found):
            if not value or len(value.encode()) > MAX_NAME_BYTES:
                raise InvalidRequest(f"{self.where}.{name}[{at}] must be 1 to {MAX_NAME_BYTES:,} bytes long.")
        return found

    def _list(self, name: str) -> Sequence[object]:
        found = self._left.pop(name, None)
        if found is None:
            return ()
        if not isinstance(found, list | tuple):
            raise self._wrong(name, "must be a list", found)
        return found

    def many(self, name: str) -> list["_Fields"]:
        """Read a list of objects."""
        return [_Fields(value, f"{self.where}.{name}[{at}]") for at, value in enumerate(self._list(name))]

    def inner(self, name: str) -> "_Fields":
        """Read an object, which must be there."""
        if self._left.get(name) is None:
            raise InvalidRequest(f"{self.where}.{name} is missing.")
        return _Fields(self._left.pop(name), f"{self.where}.{name}")

    def mapping(self, name: str) -> dict[str, str]:
        """Read an object of texts."""
        found = self._left.pop(name, None)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self._wrong(name, "must be an object", found)
        return {self._text(key, name): self._text(value, f"{name}.{key}") for key, value in found.items()}

    def number(self, name: str, *, low: int, high: int) -> int:
        """Read a whole number, which must be there."""
        found = self._left.pop(name, None)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self._wrong(name, "must be a whole number", found)
        if not low <= found <= high:
            raise InvalidRequest(f"{self.where}.{name} is {found}; it must lie between {low} and {high}.")
        return found

    def uuid(self, name: str) -> str:
        """Read a UUID in its usual form."""
        found = self.name(name)
        try:
            return str(uuid.UUID(found))
        except ValueError:
            raise InvalidRequest(f"{self.where}.{name} is {found!r}, which is not a UUID.") from None

    def one_of(self, name: str, kinds: type[EventType]) -> EventType:
        """Read one of the words there are."""
        found = self.name(name)
        if found not in list(kinds):
            raise InvalidRequest(f"{self.where}.{name} is {found!r}; there are {', '.join(kinds)}.")
        return kinds(found)

    def code(self, name: str, kinds: type[E]) -> E:
        """Read a code or the name of one."""
        found = self._left.pop(name, None)
        if isinstance(found, str) and found in kinds.__members__:
            return kinds[found]
        if isinstance(found, int) and not isinstance(found, bool) and found in list(kinds):
            return kinds(found)
        known = ", ".join(f"{kind.name} {kind.value}" for kind in kinds)
        raise InvalidRequest(f"{self.where}.{name} is {found!r}; there are {known}.")

    def status(self, kinds: type[E]) -> E:
        """Read a status, which must not be UNKNOWN; if code and name are both there they must agree."""
        given = [name for name in ("status_code", "status_name") if self._left.get(name) is not None]
        if not given:
            raise InvalidRequest(f"{self.where}.status_code is missing.")
        found = {self.code(name, kinds) for name in given}
        if len(found) > 1:
            raise InvalidRequest(f"{self.where}: status_code and status_name say different things.")
        status = found.pop()
        if status.value == 0:
            raise InvalidRequest(f"{self.where}.status_code is UNKNOWN, which says nothing and cannot be appended.")
        return status

    def json(self, name: str, kind: type[dict[str, Any]] | type[list[Any]]) -> "_Fields":
        """Read JSON that comes as text or as what the text says; the items of a list are asked for by `items`."""
        found = self._left.pop(name)
        where = f"{self.where}.{name}"
        if isinstance(found, str):
            found = _parsed(found, where)
        if not isinstance(found, kind):
            raise self._wrong(name, "must be an object" if kind is dict else "must be a list", found)
        return _Fields(found, where) if kind is dict else _Fields({"": found}, where)

    def items(self) -> list["_Fields"]:
        """Return the items of a list that `json` has read."""
        return [_Fields(value, f"{self.where}[{at}]") for at, value in enumerate(self._left.pop(""))]

    def _wrong(self, name: str, must: str, value: object) -> InvalidRequest:
        return InvalidRequest(f"{self.where}.{name} {must}, not {_kind(value)}.")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return type(value).__name__
