"""Reads events from JSON: a valid line becomes an `Event`, any other an error that names the wrong field.

An event as JSON is one object: ``event_id``, ``timestamp``, ``build_request_id``, ``event_type`` and the payload
under its own name. A status is given by code, by name, or both. ``config`` and ``manifests`` are JSON text, or the
values of that text. The rules are in `event_models`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Final, cast

from siltstone.errors import InvalidRequest, Reason
from siltstone.eventlog.events import (
    MAX_EVENT_BYTES,
    MAX_NAME_BYTES,
    MAX_TIMESTAMP,
    UUID_FORMAT,
    BuildCancelEvent,
    BuildRequestEvent,
    BuildStatus,
    DelegationEvent,
    Event,
    EventType,
    JobEvent,
    JobStatus,
    PartitionEvent,
    PartitionInvalidationEvent,
    PartitionStatus,
    Payload,
    TaskCancelEvent,
    event_json,
)

PLAIN_TEXT: Final = 16 * 1024
"""Longest text of a plain event, in characters."""
PLAIN_NAMES: Final = 64
"""Most names in one field of a plain event. With `PLAIN_TEXT` it keeps plain events far below `MAX_EVENT_BYTES`."""

SHORT_JSON: Final = MAX_EVENT_BYTES // 16
"""Shorter JSON needs no check of its stored size. UTF-8, quoting and default fields make it at most 5 times as long."""


def parse_event(text: str | bytes, *, where: str = "The event") -> Event:
    """Read one event from JSON.

    Raises:
        InvalidRequest: it is not a valid event; the message begins with `where` and names the wrong field.
    """
    from pydantic_core import PydanticCustomError

    from siltstone.eventlog.event_models import load_json

    try:
        values = load_json(text)
    except PydanticCustomError as error:
        raise InvalidRequest(
            f"{where} {error.message()}.", reason=_REASONS.get(error.type, Reason.INVALID_VALUE)
        ) from error
    return _validated(values, where) if len(text) < SHORT_JSON else read_event(values, where=where)


def read_event(values: object, *, where: str = "The event") -> Event:
    """Read one event from the values of its JSON. Raises as `parse_event` does."""
    event = _validated(values, where)
    size = len(event_json(event).encode())
    if size > MAX_EVENT_BYTES:
        raise InvalidRequest(
            f"{where} takes {size:,} bytes; {MAX_EVENT_BYTES:,} are allowed. Store large content elsewhere.",
            reason=Reason.TOO_LARGE,
        )
    return event


def is_plain(event: Event) -> bool:
    """True if an event obeys all rules by a quick check: short names and texts in ASCII, no nested JSON.

    Nearly all events are plain. They are stored without the slower check by way of JSON.
    """
    payload = event.payload
    rules = _PLAIN.get(type(payload))
    return (
        rules is not None
        and UUID_FORMAT.fullmatch(event.event_id if type(event.event_id) is str else "") is not None
        and type(event.timestamp) is int
        and 0 <= event.timestamp <= MAX_TIMESTAMP
        and _is_plain_name(event.build_request_id)
        and all(is_fine(getattr(payload, name)) for name, is_fine in rules)
    )


def check_event(event: Event, *, where: str = "The event") -> Event:
    """Check an event that was built in Python by the rules for JSON, and return it as it is stored."""
    if event.is_checked or is_plain(event):
        return event
    try:
        text = event_json(event)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} cannot be written as JSON: {error}", reason=Reason.NOT_JSON) from error
    return parse_event(text, where=where)


def _is_plain_text(value: object) -> bool:
    return type(value) is str and len(value) <= PLAIN_TEXT and value.isascii() and "\x00" not in value


def _is_plain_name(value: object) -> bool:
    return _is_plain_text(value) and 0 < len(cast("str", value)) <= MAX_NAME_BYTES


def _are_plain_names(value: object) -> bool:
    return type(value) is tuple and len(value) <= PLAIN_NAMES and all(map(_is_plain_name, value))


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
"""Checks of the fields of a plain event, by its payload type."""


def _validated(values: object, where: str) -> Event:
    """Return a valid event. The first error of an invalid one becomes a message that names the field."""
    from pydantic_core import ValidationError

    from siltstone.eventlog.event_models import EVENT_ADAPTER

    try:
        return EVENT_ADAPTER.validate_python(values).to_value()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    value = first["input"]
    template = _MESSAGES.get(first["type"])
    text = first["msg"]
    if template is not None:
        kind = _KINDS.get(type(value), type(value).__name__)
        text = template.format(value=value, kind=kind, **first.get("ctx", {}))
    path = [part for part in first["loc"][1:] if part != "[key]"]  # the first part is the event type
    field = where + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    raise InvalidRequest(f"{field} {text}.", reason=_REASONS.get(first["type"], Reason.INVALID_VALUE))


_KINDS: Final[Mapping[type, str]] = {
    NoneType: "null",
    bool: "true or false",
    str: "text",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
_MESSAGES: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "string_type": "must be text, not {kind}",
    "string_unicode": "is not text in UTF-8",
    "int_type": "must be a whole number, not {kind}",
    "greater_than_equal": f"is {{value}}; it must lie between 0 and {MAX_TIMESTAMP}",
    "less_than_equal": f"is {{value}}; it must lie between 0 and {MAX_TIMESTAMP}",
    "tuple_type": "must be a list, not {kind}",
    "dict_type": "must be an object, not {kind}",
    "model_type": "must be an object, not {kind}",
    "model_attributes_type": "must be an object, not {kind}",
    "union_tag_not_found": "has no event_type",
    "union_tag_invalid": f"has the event_type {{tag!r}}; there are {', '.join(EventType)}",
}
"""Messages in the terms of JSON, by pydantic's type of error. Pydantic's own messages speak of Python."""
_REASONS: Final[Mapping[str, Reason]] = {
    "missing": Reason.MISSING_FIELD,
    "union_tag_not_found": Reason.MISSING_FIELD,
    "status_missing": Reason.MISSING_FIELD,
    "unknown_fields": Reason.UNKNOWN_FIELD,
    "string_type": Reason.WRONG_TYPE,
    "int_type": Reason.WRONG_TYPE,
    "tuple_type": Reason.WRONG_TYPE,
    "dict_type": Reason.WRONG_TYPE,
    "model_type": Reason.WRONG_TYPE,
    "model_attributes_type": Reason.WRONG_TYPE,
    "json_invalid": Reason.NOT_JSON,
    "json_size": Reason.TOO_LARGE,
    "json_depth": Reason.TOO_LARGE,
}
"""Reasons by pydantic's type of error, or ours. Every other error is an invalid value."""
