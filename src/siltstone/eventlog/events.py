"""Events: a build request, a time, and one of eight payloads.

Events are values. `event_json` reads them from JSON and validates bytes from outside. `transitions` checks them against
earlier events. This module defines their fields, and their JSON: one line, always the same bytes.

Terms:

* *build request*: a request for partitions; it passes through states until it is completed, failed or cancelled;
* *partition*: the output of a build, named by a reference that the build system defines;
* *job run*: one attempt of a job to build some partitions.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Final, TypeAlias

SCHEMA_VERSION: Final = 2
"""The version of the events' columns that this code writes."""
MAX_EVENT_BYTES: Final = 1024 * 1024
"""Size limit of one event as JSON. Readers scan whole logs, so large data belongs elsewhere."""
MAX_NAME_BYTES: Final = 1024
"""Size limit of a name (build request, partition, job, job run), because names are in indexes."""
MAX_TIMESTAMP: Final = 2**63 - 1
UUID_FORMAT: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""The one spelling of event ids in a log."""


class EventType(StrEnum):
    """The payload type of an event."""

    BUILD_REQUEST = "build_request"
    PARTITION = "partition"
    JOB = "job"
    DELEGATION = "delegation"
    JOB_GRAPH = "job_graph"
    PARTITION_INVALIDATION = "partition_invalidation"
    TASK_CANCEL = "task_cancel"
    BUILD_CANCEL = "build_cancel"

    @property
    def column(self) -> str:
        """The name of the payload: a column of a Delta log, a key in JSON."""
        return f"{self._value_}_event"


class BuildStatus(IntEnum):
    """The status of a build request."""

    UNKNOWN = 0
    RECEIVED = 1
    PLANNING = 2
    EXECUTING = 3
    COMPLETED = 4
    FAILED = 5
    CANCELLED = 6
    ANALYSIS_COMPLETED = 7


class PartitionStatus(IntEnum):
    """The status of a partition in a build."""

    UNKNOWN = 0
    REQUESTED = 1
    SCHEDULED = 2
    BUILDING = 3
    AVAILABLE = 4
    FAILED = 5
    DELEGATED = 6


class JobStatus(IntEnum):
    """The status of a job run."""

    UNKNOWN = 0
    SCHEDULED = 1
    RUNNING = 2
    COMPLETED = 3
    FAILED = 4
    CANCELLED = 5


class InputKind(IntEnum):
    """How a job depends on a partition: it queries the partition, or needs it to be built."""

    QUERY = 0
    MATERIALIZE = 1


EventStatus: TypeAlias = BuildStatus | PartitionStatus | JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """A partition that a job reads."""

    partition_ref: str
    kind: InputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """The configuration of a job: its outputs, inputs, arguments and environment."""

    outputs: tuple[str, ...] = ()
    inputs: tuple[JobInput, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionManifest:
    """The partitions that a job built, their inputs, and when. Times are in nanoseconds."""

    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    start_time: int
    end_time: int
    task: str
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequestEvent:
    """A build request has a new status."""

    type: ClassVar = EventType.BUILD_REQUEST
    status: BuildStatus
    requested_partitions: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEvent:
    """A partition has a new status in a build."""

    type: ClassVar = EventType.PARTITION
    partition_ref: str
    status: PartitionStatus
    message: str = ""
    job_run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """A job run has a new status."""

    type: ClassVar = EventType.JOB
    job_run_id: str
    job_label: str
    target_partitions: tuple[str, ...] = ()
    status: JobStatus
    message: str = ""
    config: JobConfig | None = None
    manifests: tuple[PartitionManifest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationEvent:
    """Another build request already builds the partition."""

    type: ClassVar = EventType.DELEGATION
    partition_ref: str
    delegated_to_build_request_id: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGraphEvent:
    """The jobs that a build will run. The graph is JSON of the planner."""

    type: ClassVar = EventType.JOB_GRAPH
    job_graph: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInvalidationEvent:
    """A partition is no longer valid."""

    type: ClassVar = EventType.PARTITION_INVALIDATION
    partition_ref: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCancelEvent:
    """A request to stop a job run."""

    type: ClassVar = EventType.TASK_CANCEL
    job_run_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildCancelEvent:
    """A request to stop a build."""

    type: ClassVar = EventType.BUILD_CANCEL
    reason: str = ""


Payload: TypeAlias = (
    BuildRequestEvent
    | PartitionEvent
    | JobEvent
    | DelegationEvent
    | JobGraphEvent
    | PartitionInvalidationEvent
    | TaskCancelEvent
    | BuildCancelEvent
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a build. The timestamp is in nanoseconds since 1970."""

    event_id: str
    timestamp: int
    build_request_id: str
    payload: Payload
    is_checked: bool = field(default=False, compare=False, repr=False)
    """True if it was read from JSON, and therefore obeys all rules."""

    @property
    def type(self) -> EventType:
        """The type of its payload."""
        return self.payload.type

    @property
    def partition_refs(self) -> tuple[str, ...]:
        """The partitions it refers to, without duplicates."""
        match self.payload:
            case BuildRequestEvent(requested_partitions=refs) | JobEvent(target_partitions=refs):
                return tuple(dict.fromkeys(refs))
            case PartitionEvent() | DelegationEvent() | PartitionInvalidationEvent() as payload:
                return (payload.partition_ref,)
            case _:
                return ()

    @property
    def job_run_id(self) -> str | None:
        """The job run it refers to."""
        payload = self.payload
        return payload.job_run_id if isinstance(payload, (PartitionEvent, JobEvent, TaskCancelEvent)) else None

    @property
    def job_label(self) -> str | None:
        """The label of the job it refers to."""
        return self.payload.job_label if isinstance(self.payload, JobEvent) else None

    @property
    def message(self) -> str:
        """The message of its payload."""
        payload = self.payload
        return payload.message if hasattr(payload, "message") else payload.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """An event and its index in the log. `appended_at` is the time of its append in nanoseconds, if known."""

    index: int
    event: Event
    appended_at: int | None = field(default=None, compare=False)


as_json: Final[Callable[[Any], str]] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Return a value as JSON. The encoder is built once, because building it takes longer than using it."""


def event_json(event: Event) -> str:
    """Return an event as one line of JSON: the same event is always the same text."""
    return as_json(
        {
            "event_id": event.event_id,
            "timestamp": event.timestamp,
            "build_request_id": event.build_request_id,
            "event_type": event.type.value,
            event.type.column: payload_values(event.payload),
        }
    )


def payload_values(payload: Payload) -> dict[str, Any]:
    """Return a payload's fields as columns: statuses as code and name, config and manifests as JSON text."""
    match payload:
        case BuildRequestEvent():
            return {
                "status_code": payload.status._value_,  # quicker than `value` and `name`
                "status_name": payload.status._name_,
                "requested_partitions": _listed(payload.requested_partitions),
                "message": payload.message,
            }
        case PartitionEvent():
            return {
                "partition_ref": payload.partition_ref,
                "status_code": payload.status._value_,
                "status_name": payload.status._name_,
                "message": payload.message,
                "job_run_id": payload.job_run_id,
            }
        case JobEvent():
            return {
                "job_run_id": payload.job_run_id,
                "job_label": payload.job_label,
                "target_partitions": _listed(payload.target_partitions),
                "status_code": payload.status._value_,
                "status_name": payload.status._name_,
                "message": payload.message,
                "config": None if payload.config is None else as_json(_plain(payload.config)),
                "manifests": as_json(_plain(payload.manifests)),
            }
        case _:
            return {attribute.name: getattr(payload, attribute.name) for attribute in fields(payload)}


def _listed(value: object) -> object:
    """Return a tuple as a list. Other values are returned unchanged, and the validation refuses them."""
    return list(value) if isinstance(value, tuple) else value


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value of config or manifests in its JSON form."""
    match value:
        case tuple():
            return [_plain(item) for item in value]
        case JobInput() | JobConfig() | PartitionManifest():
            return {attribute.name: _plain(getattr(value, attribute.name)) for attribute in fields(value)}
        case dict():
            return dict(sorted(value.items()))
        case _:
            return value
