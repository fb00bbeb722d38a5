"""Event logs: every query and durable appends on Delta, beside SQLite with synchronous=FULL.

Both logs hold the same events: builds of nineteen events each, fifty of them interleaved. A query runs on both, one after
the other, with new random arguments each time; its ratio is that of the times at p95. Appends are of one event, durable on both.
Many appenders belong to one process, each with builds of its own; those that are threads have the bar.
"""

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import numpy as np

from bench.measure import Sample, Summary, percentile
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense, growth, seconds_text
from siltstone.eventlog.events import (
    BuildRequestEvent,
    BuildStatus,
    Event,
    JobConfig,
    JobEvent,
    JobStatus,
    PartitionEvent,
    PartitionStatus,
    Payload,
)
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.queries import Filter

SQLITE: Final = "SQLite"
DELTA: Final = "Delta"
SIZES: Final = (100_000, 1_000_000)
FIRST_NANOSECOND: Final = 1_767_225_600_000_000_000
OPEN_BUILDS: Final = 50
EVENTS_OF_BUILD: Final = 19
AT_ONCE: Final = 1000
QUERY_ROUNDS: Final = 60
WARM_UPS: Final = 3
P95: Final = 0.95
QUERY_BAR: Final = 2.0
QUERY_AIM: Final = 1.3
APPEND_BAR: Final = 8.0
APPEND_AIM: Final = 4.0
APPENDS: Final = 40
APPENDERS: Final = 64
EACH: Final = 60
UNBROKEN_EACH: Final = 400
UNBROKEN_ROUNDS: Final = 3
ROUNDS: Final = 5
SETTLE_SECONDS: Final = 1.0
"""Pause between two measured groups, in which a log finishes its background work."""
RATE_BAR: Final = 10.0
COMMITS: Final = (100, 10_000)
COMMITS_BAR: Final = 1.5

LogQuery = Callable[[EventLog, "np.random.Generator"], object]


def bench_eventlog(run: Run) -> Report:
    """Measure queries at both sizes, then appends."""
    rows: list[Row] = []
    before: dict[str, float] = {}
    for size in [size for size in SIZES if not run.quick] or [2_000]:
        with _Both(run, size) as logs:
            run.log(f"eventlog: queries of {size_text(size)} events")
            found = _measure_queries(logs, size)
            rows += _query_rows(found, size, before)
            before = {f"{what} {name}": Summary.of(taken).seconds for (what, name), taken in found.items()}
            rows += _append_rows(run, logs, size)
            rows += _many_rows(logs, size)
        rows += _open_rows(run, size)
    rows += _commit_rows(run)
    return Report(
        name="eventlog",
        title="Event logs: Delta beside SQLite",
        rows=tuple(rows),
        notes=("A query's ratio is Delta's time at p95 over SQLite's. Appends are durable: fsync on both sides.",),
    )


def events(count: int, *, name: str = "b") -> Iterator[Event]:
    """Yield interleaved builds, all legal; the same ones each time."""
    return islice(_interleaved(name), count)


def _interleaved(name: str) -> Iterator[Event]:
    number = 0
    for start in range(0, 10**9, OPEN_BUILDS):
        builds = [_build(f"{name}{start + at}", start + at) for at in range(OPEN_BUILDS)]
        for payloads in zip(*builds, strict=True):
            for build, payload in payloads:
                at = FIRST_NANOSECOND + number * 50_000_000
                ident = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {number}"))
                yield Event(event_id=ident, timestamp=at, build_request_id=build, payload=payload)
                number += 1


def _build(build: str, number: int) -> Iterator[tuple[str, Payload]]:
    refs = tuple(f"sales/region={number % 97}/day={number % 365}/{part}" for part in range(3))
    label = f"//jobs:{number % 40}"
    config = JobConfig(outputs=refs, args=("--day", str(number % 365)), env={"ZONE": "UTC"})

    def job(status: JobStatus, config: JobConfig | None = None) -> Payload:
        return JobEvent(
            job_run_id=f"{build}-run", job_label=label, target_partitions=refs, status=status, message="", config=config
        )

    payloads: list[Payload] = [
        BuildRequestEvent(status=BuildStatus.RECEIVED, requested_partitions=refs),
        BuildRequestEvent(status=BuildStatus.PLANNING),
        *[PartitionEvent(partition_ref=ref, status=PartitionStatus.REQUESTED) for ref in refs],
        BuildRequestEvent(status=BuildStatus.EXECUTING),
        *[PartitionEvent(partition_ref=ref, status=PartitionStatus.SCHEDULED) for ref in refs],
        job(JobStatus.SCHEDULED, config),
        job(JobStatus.RUNNING),
        *[
            PartitionEvent(partition_ref=ref, status=PartitionStatus.BUILDING, job_run_id=f"{build}-run")
            for ref in refs
        ],
        job(JobStatus.COMPLETED),
        *[
            PartitionEvent(partition_ref=ref, status=PartitionStatus.AVAILABLE, job_run_id=f"{build}-run")
            for ref in refs
        ],
        BuildRequestEvent(status=BuildStatus.COMPLETED, message="done"),
    ]
    return ((build, payload) for payload in payloads)


class _Both:
    """Both logs with a number of events, made once for each folder."""

    def __init__(self, run: Run, size: int) -> None:
        self._run = run
        self._size = size
        self._logs: dict[str, EventLog] = {}

    def __enter__(self) -> dict[str, EventLog]:
        for name in (SQLITE, DELTA):
            self._run.log(f"eventlog: {size_text(self._size)} events into {name}")
            self._logs[name] = EventLog.open(_address(self._run, f"events-{self._size}", name))
            _fill(self._logs[name], self._size)
        return self._logs

    def __exit__(self, *_: object) -> None:
        for log in self._logs.values():
            log.close()


def _address(run: Run, what: str, name: str) -> str:
    folder = run.stage.folder / what
    folder.mkdir(exist_ok=True)
    return f"sqlite:///{folder}/log.db" if name == SQLITE else f"delta://{folder}/log"


def _fill(log: EventLog, count: int) -> None:
    there = log.next_index() - 1
    rest = islice(events(count), there, None)
    while batch := list(islice(rest, AT_ONCE)):
        log.append(*batch)


def _queries(size: int) -> dict[str, LogQuery]:
    builds = size // (EVENTS_OF_BUILD * OPEN_BUILDS) * OPEN_BUILDS  # those that are complete

    def build(random: "np.random.Generator") -> str:
        return f"b{random.integers(0, builds)}"

    def ref(random: "np.random.Generator") -> str:
        number = int(random.integers(0, builds))
        return f"sales/region={number % 97}/day={number % 365}/{number % 3}"

    def between(log: EventLog, random: "np.random.Generator") -> object:
        start = FIRST_NANOSECOND + int(random.integers(0, size)) * 50_000_000
        return log.events_between(start, start + 5_000_000_000, limit=100)

    return {
        "events of a build": lambda log, random: log.events_of_build(build(random), limit=100),
        "events of a partition": lambda log, random: log.events_of_partition(ref(random), limit=100),
        "events of a job run": lambda log, random: log.events_of_run(f"{build(random)}-run", limit=100),
        "events in a time range": between,
        "a page of 100": lambda log, random: log.page(int(random.integers(1, size))),
        "a page of a partition": lambda log, random: log.page(1, event_filter=Filter(partition_refs=(ref(random),))),
        "a page by glob": lambda log, random: log.page(
            1, event_filter=Filter(partition_globs=(f"{ref(random).rsplit('/', 1)[0]}/*",))
        ),
        "a page of a job": lambda log, random: log.page(
            int(random.integers(1, size)), event_filter=Filter(job_labels=(f"//jobs:{random.integers(0, 40)}",))
        ),
        "builds": lambda log, _: log.builds(limit=100),
        "recent partitions": lambda log, _: log.partitions(limit=100),
        "status of a partition": lambda log, random: log.partition(ref(random)),
        "active builds of a partition": lambda log, random: log.active_builds(ref(random)),
        "summary": lambda log, _: log.summary(),
    }


def _measure_queries(logs: dict[str, EventLog], size: int) -> dict[tuple[str, str], list[Sample]]:
    found: dict[tuple[str, str], list[Sample]] = {}
    for what, query in _queries(size).items():
        for number in range(WARM_UPS + QUERY_ROUNDS):
            for name, log in logs.items():
                random = np.random.default_rng(number)
                started = time.perf_counter()
                query(log, random)
                seconds = time.perf_counter() - started
                if number >= WARM_UPS:
                    found.setdefault((what, name), []).append(Sample(seconds=seconds, python=None, jvm=None))
    return found


def _query_rows(found: dict[tuple[str, str], list[Sample]], size: int, before: dict[str, float]) -> Iterator[Row]:
    for (what, name), taken in found.items():
        checks: tuple[Check, ...] = ()
        if name == DELTA:
            ours, theirs = (percentile([s.seconds for s in found[what, kind]], P95) for kind in (DELTA, SQLITE))
            of = f"p95 of {SQLITE} ({seconds_text(ours)} to {seconds_text(theirs)})"
            checks = (Check(ratio=ours / theirs, of=of, sense=Sense.AT_MOST, must=QUERY_BAR, aim=QUERY_AIM),)
        summary = Summary.of(taken)
        yield Row(
            what=f"{size_text(size)}: {what}, {name}",
            time=summary,
            checks=checks,
            growth=growth(summary.seconds, before.get(f"{what} {name}")),
            uses_jvm=False,
        )


def _received(name: str, number: int) -> Event:
    ident = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {number} {time.perf_counter_ns()}"))
    payload = BuildRequestEvent(status=BuildStatus.RECEIVED)
    return Event(event_id=ident, timestamp=time.time_ns(), build_request_id=ident, payload=payload)


def _append_rows(run: Run, logs: dict[str, EventLog], size: int) -> Iterator[Row]:
    taken: dict[str, list[Sample]] = {name: [] for name in logs}
    for number in range(APPENDS):
        for name, log in logs.items():
            event = _received(name, number)
            taken[name].append(run.meter.time(lambda log=log, event=event: log.append(event)))  # type: ignore[misc]
    yield from _compared(f"{size_text(size)}: append one event", taken)


def _compared(what: str, taken: dict[str, list[Sample]]) -> Iterator[Row]:
    found = {name: Summary.of(samples) for name, samples in taken.items()}
    ratio = found[DELTA].seconds / found[SQLITE].seconds
    bar = Check(ratio=ratio, of=f"of {SQLITE}", sense=Sense.AT_MOST, must=APPEND_BAR, aim=APPEND_AIM)
    for name, summary in found.items():
        yield Row(what=f"{what}, {name}", time=summary, checks=(bar,) if name == DELTA else (), uses_jvm=False)


def _many_rows(logs: dict[str, EventLog], size: int) -> Iterator[Row]:
    """Let many append at once, one event a call: as threads, and as appends that one thread has under way."""
    for how, appended in (("threads", _by_threads), ("under way from one thread", _by_futures)):
        taken: dict[str, list[Sample]] = {name: [] for name in logs}
        for number in range(1 + ROUNDS):  # the first one warms up
            for name, log in logs.items():
                before = log.next_index()
                events = [[_received(f"{how}{name}{number}{n}", at) for at in range(EACH)] for n in range(APPENDERS)]
                time.sleep(SETTLE_SECONDS)
                started = time.perf_counter()
                appended(log, events)
                sample = Sample(seconds=time.perf_counter() - started, python=None, jvm=None)
                taken[name] += [sample] if number else []
                if log.next_index() - before != APPENDERS * EACH:
                    raise AssertionError(f"{name} lost events.")
        rates = {name: APPENDERS * EACH / Summary.of(samples).seconds for name, samples in taken.items()}
        bar = Check(
            ratio=rates[DELTA] / rates[SQLITE],
            of=f"{SQLITE}'s rate",
            sense=Sense.AT_LEAST,
            must=RATE_BAR if appended is _by_threads else None,
        )
        for name, samples in taken.items():
            yield Row(
                what=f"{size_text(size)}: {APPENDERS} appenders, {how}, {EACH} events each, {name}: {rates[name]:,.0f} a second",
                time=Summary.of(samples),
                checks=(bar,) if name == DELTA else (),
                uses_jvm=False,
            )
        if appended is _by_threads:
            yield _unbroken_row(logs[DELTA], size, rates[SQLITE])


def _unbroken_row(log: EventLog, size: int, sqlite_rate: float) -> Row:
    """Append from many threads until the projection must catch up during the appends; short bursts do not reach that point."""
    samples: list[Sample] = []
    for number in range(UNBROKEN_ROUNDS):
        events = [[_received(f"long{number}{n}", at) for at in range(UNBROKEN_EACH)] for n in range(APPENDERS)]
        started = time.perf_counter()
        _by_threads(log, events)
        samples.append(Sample(seconds=time.perf_counter() - started, python=None, jvm=None))
    rate = APPENDERS * UNBROKEN_EACH / Summary.of(samples).seconds
    what = f"{APPENDERS} appenders, threads, {UNBROKEN_EACH} events each, projection meanwhile"
    return Row(
        what=f"{size_text(size)}: {what}, {DELTA}: {rate:,.0f} a second",
        time=Summary.of(samples),
        checks=(Check(ratio=rate / sqlite_rate, of=f"{SQLITE}'s rate of the shorter ones", sense=Sense.AT_LEAST),),
        uses_jvm=False,
    )


def _by_threads(log: EventLog, events: list[list[Event]]) -> None:
    def append(mine: list[Event]) -> None:
        for event in mine:
            log.append(event)

    threads = [threading.Thread(target=append, args=(mine,)) for mine in events]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _by_futures(log: EventLog, events: list[list[Event]]) -> None:
    ended = threading.Semaphore(0)

    def go_on(mine: Iterator[Event]) -> None:
        event = next(mine, None)
        if event is None:
            ended.release()
        else:
            log.append_soon(event).add_done_callback(lambda _: go_on(mine))

    for one in events:
        go_on(iter(one))
    for _ in events:
        ended.acquire()


def _commit_rows(run: Run) -> Iterator[Row]:
    """Compare the time of an append after few and after many commits."""
    folder = run.stage.folder / "events-commits"
    shutil.rmtree(folder, ignore_errors=True)
    low, high = COMMITS if not run.quick else (20, 100)
    with EventLog.open(_address(run, "events-commits", DELTA)) as log:
        times: list[float] = []
        for number in range(high + APPENDS):
            event = _received("c", number)
            started = time.perf_counter()
            log.append(event)
            times.append(time.perf_counter() - started)
    shutil.rmtree(folder, ignore_errors=True)
    early = [Sample(seconds=seconds, python=None, jvm=None) for seconds in times[low : low + APPENDS]]
    late = [Sample(seconds=seconds, python=None, jvm=None) for seconds in times[high : high + APPENDS]]
    ratio = Summary.of(late).seconds / Summary.of(early).seconds
    yield Row(what=f"an append after {low:,} commits", time=Summary.of(early), uses_jvm=False)
    yield Row(
        what=f"an append after {high:,} commits",
        time=Summary.of(late),
        checks=(Check(ratio=ratio, of=f"of that after {low:,}", sense=Sense.AT_MOST, must=COMMITS_BAR),),
        uses_jvm=False,
    )


def _open_rows(run: Run, size: int) -> Iterator[Row]:
    """Open a log and query it once: as it is, and without its projection."""
    address = _address(run, f"events-{size}", DELTA)

    def opened() -> Any:  # noqa: ANN401
        with EventLog.open(address) as log:
            return log.summary()

    yield Row(
        what=f"{size_text(size)}: open and query",
        time=Summary.of([run.meter.time(opened) for _ in range(3)]),
        uses_jvm=False,
    )

    def rebuilt() -> None:
        with EventLog.open(address) as log:
            log.rebuild()

    yield Row(
        what=f"{size_text(size)}: make the projection", time=Summary.of([run.meter.time(rebuilt)]), uses_jvm=False
    )
