"""State transitions: the table of legal transitions, and the check of an event against earlier events.

A build request, a partition within a build and a job run each have a state, which their events change. All other
events refer to something that must exist: a build to cancel, a run to stop, another build to wait for. Final states
never change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from siltstone.errors import Conflict
from siltstone.eventlog.events import (
    BuildCancelEvent,
    BuildRequestEvent,
    BuildStatus,
    DelegationEvent,
    Event,
    JobEvent,
    JobStatus,
    PartitionEvent,
    PartitionStatus,
    TaskCancelEvent,
)

_B, _P, _J = BuildStatus, PartitionStatus, JobStatus

BUILD: Final[Mapping[BuildStatus | None, frozenset[BuildStatus]]] = {
    None: frozenset({_B.RECEIVED}),
    _B.RECEIVED: frozenset({_B.PLANNING, _B.FAILED, _B.CANCELLED}),
    _B.PLANNING: frozenset({_B.EXECUTING, _B.ANALYSIS_COMPLETED, _B.COMPLETED, _B.FAILED, _B.CANCELLED}),
    _B.ANALYSIS_COMPLETED: frozenset({_B.EXECUTING, _B.COMPLETED, _B.FAILED, _B.CANCELLED}),
    _B.EXECUTING: frozenset({_B.COMPLETED, _B.FAILED, _B.CANCELLED}),
}
PARTITION: Final[Mapping[PartitionStatus | None, frozenset[PartitionStatus]]] = {
    None: frozenset({_P.REQUESTED}),
    _P.REQUESTED: frozenset({_P.SCHEDULED, _P.AVAILABLE, _P.FAILED, _P.DELEGATED}),
    _P.SCHEDULED: frozenset({_P.BUILDING, _P.AVAILABLE, _P.FAILED, _P.DELEGATED}),
    _P.BUILDING: frozenset({_P.AVAILABLE, _P.FAILED}),
    _P.DELEGATED: frozenset({_P.AVAILABLE, _P.FAILED}),
    _P.FAILED: frozenset({_P.SCHEDULED}),
}
JOB: Final[Mapping[JobStatus | None, frozenset[JobStatus]]] = {
    None: frozenset({_J.SCHEDULED}),
    _J.SCHEDULED: frozenset({_J.RUNNING, _J.FAILED, _J.CANCELLED}),
    _J.RUNNING: frozenset({_J.COMPLETED, _J.FAILED, _J.CANCELLED}),
}
ENDED_BUILDS: Final = frozenset({_B.COMPLETED, _B.FAILED, _B.CANCELLED})
ENDED_JOBS: Final = frozenset({_J.COMPLETED, _J.FAILED, _J.CANCELLED})
ACTIVE_PARTITIONS: Final = frozenset({_P.REQUESTED, _P.SCHEDULED, _P.BUILDING})
"""States in which a build builds the partition, or will."""

S = TypeVar("S", BuildStatus, PartitionStatus, JobStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunState:
    """The state of a job run."""

    build_request_id: str
    job_label: str
    status: JobStatus


class CurrentStates(Protocol):
    """The states before an event."""

    def build(self, build_request_id: str) -> BuildStatus | None:
        """Return the state of a build request; None if it is not known."""

    def partition(self, build_request_id: str, partition_ref: str) -> PartitionStatus | None:
        """Return the state of a partition within a build."""

    def run(self, job_run_id: str) -> JobRunState | None:
        """Return a job run."""


def check(event: Event, states: CurrentStates) -> None:
    """Raise Conflict if an event is not a legal next state, or refers to something that does not exist."""
    build = states.build(event.build_request_id)
    payload = event.payload
    if isinstance(payload, BuildRequestEvent):
        _move(f"Build request {event.build_request_id}", BUILD, build, payload.status)
        return
    if build is None:
        raise Conflict(f"Build request {event.build_request_id} is not known: its first event must be RECEIVED.")
    match payload:
        case PartitionEvent():
            state = states.partition(event.build_request_id, payload.partition_ref)
            what = f"Partition {payload.partition_ref} in build request {event.build_request_id}"
            _move(what, PARTITION, state, payload.status)
        case JobEvent():
            _check_job(event, payload, states.run(payload.job_run_id))
        case DelegationEvent(delegated_to_build_request_id=target):
            if target == event.build_request_id:
                raise Conflict(f"Build request {target} cannot delegate a partition to itself.")
            if states.build(target) is None:
                raise Conflict(f"Build request {target} is not known, so nothing can be delegated to it.")
        case TaskCancelEvent():
            _check_running(event, payload.job_run_id, states.run(payload.job_run_id))
        case BuildCancelEvent() if build in ENDED_BUILDS:
            raise Conflict(f"Build request {event.build_request_id} has ended ({build.name}) and cannot be cancelled.")
        case _:
            pass


def _check_running(event: Event, job_run_id: str, run: JobRunState | None) -> None:
    if run is None or run.build_request_id != event.build_request_id:
        raise Conflict(f"Job run {job_run_id} is not known in build request {event.build_request_id}.")
    if run.status in ENDED_JOBS:
        raise Conflict(f"Job run {job_run_id} has ended ({run.status.name}) and cannot be cancelled.")


def _check_job(event: Event, payload: JobEvent, run: JobRunState | None) -> None:
    if run is not None and (run.build_request_id, run.job_label) != (event.build_request_id, payload.job_label):
        raise Conflict(
            f"Job run {payload.job_run_id} belongs to job {run.job_label} of build request {run.build_request_id}."
        )
    _move(f"Job run {payload.job_run_id}", JOB, run.status if run is not None else None, payload.status)


def _move(what: str, table: Mapping[S | None, frozenset[S]], state: S | None, to: S) -> None:
    allowed = table.get(state, frozenset())
    if to in allowed:
        return
    now = "is new" if state is None else f"is {state.name}"
    can = f"can only become {', '.join(sorted(status.name for status in allowed))}" if allowed else "stays so"
    raise Conflict(f"{what} {now} and {can}, not {to.name}.")
