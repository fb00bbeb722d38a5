"""Events for tests: single events, and whole valid histories of interleaved builds."""

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from siltstone.eventlog.events import (
    BuildCancelEvent,
    BuildRequestEvent,
    BuildStatus,
    DelegationEvent,
    Event,
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
)
from siltstone.eventlog.transitions import BUILD, ENDED_BUILDS, ENDED_JOBS, JOB, PARTITION

FIRST_NANOSECOND = 1_767_225_600_000_000_000
"""2026-01-01T00:00:00Z."""
ODD_REFS = ("sales/2026-01-01", "sales/ÄÖ", "a%b_c", "a\\b", "[x]*", "sales/2026-01-02", "日本/1", "z" * 300, "A", "a")


def event(payload: Payload, build: str = "b1", *, at: int = 0) -> Event:
    """Return an event with a unique id."""
    made = uuid.UUID(int=random.SystemRandom().getrandbits(128))
    return Event(event_id=str(made), timestamp=FIRST_NANOSECOND + at, build_request_id=build, payload=payload)


def received(build: str = "b1", *refs: str, at: int = 0) -> Event:
    """Return the arrival of a build request."""
    return event(BuildRequestEvent(status=BuildStatus.RECEIVED, requested_partitions=refs), build, at=at)


def config(number: int) -> JobConfig:
    """Return the configuration of a job, with texts that JSON has to escape."""
    inputs = (
        JobInput(partition_ref="raw/1", kind=InputKind.QUERY),
        JobInput(partition_ref="é", kind=InputKind.MATERIALIZE),
    )
    return JobConfig(
        outputs=(f"out/{number}",), inputs=inputs, args=('--say "hi"', "\n\t\\"), env={"Z": "1", "A": "ü", "": ""}
    )


def manifest(number: int) -> PartitionManifest:
    """Return the output of a job."""
    return PartitionManifest(
        outputs=(f"out/{number}",),
        inputs=("raw/1",),
        start_time=number,
        end_time=number + 5,
        task="t",
        metadata={"k": "v"},
    )


@dataclass(kw_only=True)
class _World:
    """State of a history so far."""

    rng: random.Random
    builds: dict[str, BuildStatus] = field(default_factory=dict)
    partitions: dict[tuple[str, str], PartitionStatus] = field(default_factory=dict)
    runs: dict[str, tuple[str, str, JobStatus]] = field(default_factory=dict)


def history(count: int, *, seed: int) -> Iterator[Event]:
    """Yield a valid history of several concurrent builds; clocks run backwards now and then."""
    world = _World(rng=random.Random(seed))
    rng = world.rng
    for number in range(count):
        build, payload = _step(world, number)
        at = number * 1_000_000_000 + rng.choice((0, 0, 0, -5_000_000_000))
        made = uuid.UUID(int=rng.getrandbits(128))
        yield Event(event_id=str(made), timestamp=FIRST_NANOSECOND + at, build_request_id=build, payload=payload)


def _step(world: _World, number: int) -> tuple[str, Payload]:
    rng = world.rng
    while True:
        open_builds = [name for name, status in world.builds.items() if status not in ENDED_BUILDS][-6:]
        if not open_builds or rng.random() < 0.08:
            name = f"build {len(world.builds)}"
            world.builds[name] = BuildStatus.RECEIVED
            refs = tuple(rng.sample(ODD_REFS, 2))
            return name, BuildRequestEvent(status=BuildStatus.RECEIVED, requested_partitions=refs, message="für mich")
        build = rng.choice(open_builds)
        kind = rng.choice(("build", "partition", "partition", "partition", "job", "job", "job", "other"))
        payload = {"build": _build, "partition": _partition, "job": _job, "other": _other}[kind](world, build, number)
        if payload is not None:
            return build, payload


def _build(world: _World, build: str, _number: int) -> Payload | None:
    allowed = sorted(BUILD.get(world.builds[build], ()))
    if not allowed or world.rng.random() < 0.5:
        return None
    world.builds[build] = world.rng.choice(allowed)
    return BuildRequestEvent(status=world.builds[build], message="weiter")


def _partition(world: _World, build: str, number: int) -> Payload | None:
    ref = world.rng.choice(ODD_REFS)
    allowed = sorted(PARTITION.get(world.partitions.get((build, ref)), ()))
    if not allowed:
        return None
    status = world.partitions[build, ref] = world.rng.choice(allowed)
    run = f"run {number % 50}" if status is PartitionStatus.BUILDING else None
    return PartitionEvent(partition_ref=ref, status=status, message=f"m{number}", job_run_id=run)


def _job(world: _World, build: str, number: int) -> Payload | None:
    own = [name for name, (owner, _, status) in world.runs.items() if owner == build and status not in ENDED_JOBS]
    if not own or world.rng.random() < 0.4:
        run, label = f"run {len(world.runs)}", f"//job:{number % 7}"
        world.runs[run] = (build, label, JobStatus.SCHEDULED)
        return JobEvent(
            job_run_id=run,
            job_label=label,
            status=JobStatus.SCHEDULED,
            target_partitions=("A", "a", "A"),
            config=config(number),
        )
    run = world.rng.choice(own)
    _, label, status = world.runs[run]
    status = world.rng.choice(sorted(JOB[status]))
    world.runs[run] = (build, label, status)
    made = (manifest(number),) if status is JobStatus.COMPLETED else ()
    return JobEvent(job_run_id=run, job_label=label, status=status, message="läuft", manifests=made)


def _other(world: _World, build: str, number: int) -> Payload | None:
    rng = world.rng
    running = [name for name, (owner, _, status) in world.runs.items() if owner == build and status not in ENDED_JOBS]
    others = [name for name in world.builds if name != build]
    match number % 5:
        case 0:
            return JobGraphEvent(job_graph='{"nodes": [1, 2.5, "ü"]}', message="plan")
        case 1:
            return PartitionInvalidationEvent(partition_ref=rng.choice(ODD_REFS), reason="falsch")
        case 2 if running:
            return TaskCancelEvent(job_run_id=rng.choice(running), reason="zu lang")
        case 3 if others:
            other = rng.choice(others)
            return DelegationEvent(partition_ref=rng.choice(ODD_REFS), delegated_to_build_request_id=other)
        case 4:
            return BuildCancelEvent(reason="genug")
        case _:
            return None
