"""Events as JSON: one pydantic model per event type, a union that is discriminated by ``event_type``.

The models hold every rule for one event. `Model.to_value` returns the value of `events` that a model describes. A
null counts as a missing field. This module is imported when the first event is read, because pydantic takes time to
import.
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    StringConstraints,
    TypeAdapter,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

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
    TaskCancelEvent,
)

MAX_DEPTH: Final = 100
"""Nesting limit of JSON. Readers in other languages have recursion limits."""

E = TypeVar("E", bound=IntEnum)


def load_json(text: str | bytes) -> Any:  # noqa: ANN401
    """Parse JSON. PydanticCustomError if it is not JSON, or exceeds a limit of size or depth."""
    if len(text) > MAX_EVENT_BYTES:
        sizes = {"size": f"{len(text):,}", "limit": f"{MAX_EVENT_BYTES:,}"}
        raise PydanticCustomError("json_size", "takes {size} bytes; {limit} are allowed", sizes)
    try:
        value = json.loads(text if isinstance(text, str) else text.decode(), parse_constant=_refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise PydanticCustomError("json_invalid", "is not JSON: {error}", {"error": str(error)}) from error
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return value
    raise PydanticCustomError("json_depth", "is nested deeper than {limit} levels", {"limit": MAX_DEPTH})


def _children(value: Any) -> Iterable[Any]:  # noqa: ANN401
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")


def _check_text(value: str) -> str:
    if "\x00" in value:
        raise PydanticCustomError("nul_character", "holds a NUL character, which not every backend can store")
    return value


def _check_name(value: str) -> str:
    if not value or (len(value) * 4 > MAX_NAME_BYTES and len(value.encode()) > MAX_NAME_BYTES):
        raise PydanticCustomError("name_size", "must be 1 to {limit} bytes long", {"limit": f"{MAX_NAME_BYTES:,}"})
    return value


def _normal_uuid(value: str) -> str:
    if UUID_FORMAT.fullmatch(value):
        return value
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise PydanticCustomError("uuid", "is {given}, which is not a UUID", {"given": repr(value)}) from None


def _load_text(value: object) -> object:
    return load_json(value) if isinstance(value, str) else value


def _check_json(value: str) -> str:
    load_json(value)
    return value


def _code_reader(kinds: type[E]) -> PlainValidator:
    """Return the validator of a field that holds a code of an enum, or its name."""
    members: dict[object, E] = {kind.name: kind for kind in kinds} | {kind.value: kind for kind in kinds}
    allowed = ", ".join(f"{kind.name} {kind.value}" for kind in kinds)

    def read(value: object) -> E:
        if not isinstance(value, (int, str)) or isinstance(value, bool) or value not in members:
            shown = repr(value) if isinstance(value, (int, str, float)) else type(value).__name__
            raise PydanticCustomError("code", "is {given}; there are {allowed}", {"given": shown, "allowed": allowed})
        return members[value]

    return PlainValidator(read, json_schema_input_type=int | str)


Text: TypeAlias = Annotated[str, StringConstraints(strict=True, min_length=0), AfterValidator(_check_text)]
Name: TypeAlias = Annotated[Text, AfterValidator(_check_name)]
Names: TypeAlias = Annotated[tuple[Name, ...], FailFast()]
Texts: TypeAlias = Annotated[tuple[Text, ...], FailFast()]
TextMap: TypeAlias = Annotated[dict[Text, Text], FailFast()]
Nanoseconds: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=MAX_TIMESTAMP)]
BuildCode: TypeAlias = Annotated[BuildStatus | None, _code_reader(BuildStatus)]
PartitionCode: TypeAlias = Annotated[PartitionStatus | None, _code_reader(PartitionStatus)]
JobCode: TypeAlias = Annotated[JobStatus | None, _code_reader(JobStatus)]


class Model(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value_type: ClassVar[Any]
    """The class of `events` that this model describes."""

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        fields = {name: value for name, value in values.items() if value is not None}
        if not fields.keys() <= cls.__pydantic_fields__.keys():
            names = sorted(str(name) for name in fields if name not in cls.__pydantic_fields__)
            unknown = ", ".join(names).encode(errors="backslashreplace").decode()  # JSON may hold half a character
            raise PydanticCustomError("unknown_fields", "has unknown fields: {unknown}", {"unknown": unknown})
        return fields

    def to_value(self) -> Any:  # noqa: ANN401
        """Return the value of `events` that this model describes."""
        return self.value_type(**self.__dict__)


class StatusModel(Model):
    """An object with a status: its code, its name, or both."""

    @property
    def status(self) -> Any:  # noqa: ANN401
        """The status as the member of its enum."""
        code = self.__dict__["status_code"]
        return self.__dict__["status_name"] if code is None else code

    @model_validator(mode="after")
    def _check_status(self) -> Self:
        if self.status is None:
            raise PydanticCustomError("status_missing", "has neither status_code nor status_name")
        if self.__dict__["status_name"] not in (None, self.status):
            raise PydanticCustomError(
                "status_conflict", "has a status_code and a status_name that say different things"
            )
        if self.status == 0:
            raise PydanticCustomError(
                "status_unknown", "has the status UNKNOWN, which says nothing and cannot be appended"
            )
        return self

    def to_value(self) -> Any:  # noqa: ANN401
        """Return the value with one status."""
        fields = {name: value for name, value in self.__dict__.items() if not name.startswith("status_")}
        return self.value_type(status=self.status, **fields)


class JobInputModel(Model):
    """A partition that a job reads."""

    value_type = JobInput
    partition_ref: Name
    kind: Annotated[InputKind, _code_reader(InputKind)]


class JobConfigModel(Model):
    """The configuration of a job: its outputs, inputs, arguments and environment."""

    outputs: Names = ()
    inputs: Annotated[tuple[JobInputModel, ...], FailFast()] = ()
    args: Texts = ()
    env: TextMap = Field(default_factory=dict)

    def to_value(self) -> JobConfig:
        """Return the value with the values of its inputs."""
        inputs = tuple(model.to_value() for model in self.inputs)
        return JobConfig(outputs=self.outputs, inputs=inputs, args=self.args, env=self.env)


class ManifestModel(Model):
    """The partitions that a job built."""

    value_type = PartitionManifest
    outputs: Names = ()
    inputs: Names = ()
    start_time: Nanoseconds
    end_time: Nanoseconds
    task: Text = ""
    metadata: TextMap = Field(default_factory=dict)


class BuildRequestModel(StatusModel):
    """A build request has a new status."""

    value_type = BuildRequestEvent
    status_code: BuildCode = None
    status_name: BuildCode = None
    requested_partitions: Names = ()
    message: Text = ""


class PartitionModel(StatusModel):
    """A partition has a new status in a build."""

    value_type = PartitionEvent
    partition_ref: Name
    status_code: PartitionCode = None
    status_name: PartitionCode = None
    message: Text = ""
    job_run_id: Name | None = None


class JobModel(StatusModel):
    """A job run has a new status. ``config`` and ``manifests`` are JSON text, or the values of that text."""

    value_type = JobEvent
    job_run_id: Name
    job_label: Name
    target_partitions: Names = ()
    status_code: JobCode = None
    status_name: JobCode = None
    message: Text = ""
    config: Annotated[JobConfigModel, BeforeValidator(_load_text)] | None = None
    manifests: Annotated[tuple[ManifestModel, ...], FailFast(), BeforeValidator(_load_text)] = ()

    def to_value(self) -> JobEvent:
        """Return the value with the values of its config and manifests."""
        config = None if self.config is None else self.config.to_value()
        manifests = tuple(manifest.to_value() for manifest in self.manifests)
        event: JobEvent = super().to_value()
        return replace(event, config=config, manifests=manifests)


class DelegationModel(Model):
    """Another build request already builds the partition."""

    value_type = DelegationEvent
    partition_ref: Name
    delegated_to_build_request_id: Name
    message: Text = ""


class JobGraphModel(Model):
    """The jobs that a build will run. The graph is JSON text of the planner."""

    value_type = JobGraphEvent
    job_graph: Annotated[Text, AfterValidator(_check_json)]
    message: Text = ""


class PartitionInvalidationModel(Model):
    """A partition is no longer valid."""

    value_type = PartitionInvalidationEvent
    partition_ref: Name
    reason: Text = ""


class TaskCancelModel(Model):
    """A request to stop a job run."""

    value_type = TaskCancelEvent
    job_run_id: Name
    reason: Text = ""


class BuildCancelModel(Model):
    """A request to stop a build."""

    value_type = BuildCancelEvent
    reason: Text = ""


class EventModel(Model):
    """The fields of every event. The payload is under the name of its type."""

    event_type: EventType
    event_id: Annotated[Name, AfterValidator(_normal_uuid)]
    timestamp: Nanoseconds
    build_request_id: Name

    def to_value(self) -> Event:
        """Return the event."""
        payload: Model = self.__dict__[self.event_type.column]
        return Event(
            event_id=self.event_id,
            timestamp=self.timestamp,
            build_request_id=self.build_request_id,
            payload=payload.to_value(),
            is_checked=True,
        )


def _event_model(payload: type[Model]) -> type[EventModel]:
    kind: EventType = payload.value_type.type
    fields: dict[str, Any] = {"event_type": (Literal[kind], ...), kind.column: (payload, ...)}
    return create_model(payload.__name__.replace("Model", "EventModel"), __base__=EventModel, **fields)


EVENT_MODELS: Final = {
    payload.value_type.type: _event_model(payload)
    for payload in (
        BuildRequestModel,
        PartitionModel,
        JobModel,
        DelegationModel,
        JobGraphModel,
        PartitionInvalidationModel,
        TaskCancelModel,
        BuildCancelModel,
    )
}
"""The model of each event type. They differ in the name and the type of the payload."""
_UNION: Any = reduce(or_, EVENT_MODELS.values())
EVENT_ADAPTER: Final[TypeAdapter[EventModel]] = TypeAdapter(Annotated[_UNION, Field(discriminator="event_type")])
"""Validates the values of one event's JSON. Built once, because that takes milliseconds."""
