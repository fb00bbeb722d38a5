"""A simulated lake: writers, two compactors and their faults, on the clock of a test, with real tables and real jobs.

One step is two hours. In each step, in an order that the seed decides:

1. writers append, upsert and hide, each through its own lake; some die at a durable step and repeat the write;
2. the compactors tick: the lease holder runs one cycle of the real planner. It may die at any durable step of any job.
   It may hang, be replaced, and continue with its old plan and its old epoch. It may purge;
3. a separate reader compares every dataset with the truth.

Between the steps of a job writers run, and rivals: processes that compact the same dataset by request, without the lease.
The time of day sometimes jumps by hours, forwards and back. The seed controls everything except the names of files, which
only decide between files of the same age.

A death is an uncaught exception: it frees locks as the end of a process does, and leaves all files.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from siltstone import Dataset, Lake, Settings
from siltstone.compaction.execution.cycle_runner import run_cycle
from siltstone.compaction.execution.events import CompactionEvent, JobBegan, JobEnded
from siltstone.compaction.execution.job import InlineRunner, Job
from siltstone.compaction.planning.model import Inputs, JobKind, JobSpec, Plan
from siltstone.compaction.planning.planner import plan
from siltstone.compaction.planning.table_state import table_state
from siltstone.config import Role
from siltstone.coordination.leases import COMPACTOR, Lease, Leases
from siltstone.dataset.store import Store
from siltstone.delta.layout import Layout, is_squashed
from siltstone.errors import Fenced
from siltstone.failpoints import arm
from siltstone.model.columns import PERIOD
from siltstone.model.files import DataFile
from siltstone.model.periods import Granularity, coarser, end, granularity_of
from siltstone.model.reports import JobResult
from siltstone.model.tiers import Tier, tiers_from_text
from tests.simulation.truth import SUBJECTS, Row, Truth, event
from tests.support.clocks import FakeClock
from tests.support.internals import compactor_of, liveness_lock_of, release_liveness_lock, store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLICKS: Final = "web.eu.clicks"
CALLS: Final = "app.eu.calls"
PEOPLE: Final = "crm.eu.people"
LOGS: Final = (CLICKS, CALLS)
KEYS: Final = 40
PAYLOAD_BYTES: Final = {CLICKS: 20, CALLS: 3_000, PEOPLE: 20}
COLUMNS: Final = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL, who STRING, region STRING, payload STRING"
MEGABYTE: Final = 1024 * 1024
WRITERS: Final = 3
STEP_HOURS: Final = 2
LEASE_STEPS: Final = 3
"""A holder is replaced after this number of steps without a renewal."""
SETTINGS: Final = Settings(
    durable=False,
    fold_batches=24,
    fold_share=0.0,
    fold_minutes=9 * 60.0,
    squash_files=6,
    cycle_bytes=MEGABYTE // 2,
    lease_seconds=LEASE_STEPS * STEP_HOURS * 3600.0,
    tiers=(
        "hourly.min_files=3; hourly.target_bytes=1MB; daily.min_files=4; daily.target_bytes=1MB; daily.quiet_seconds=6h;"
        "monthly.target_bytes=8MB"
    ),
)
WRITER_SETTINGS: Final = Settings(durable=False, squash_files=0)
"""Writers squash on a background thread, which no seed can control; here the compactor squashes."""
WRITE_STEPS: Final = (
    "upsert.after_stage",
    "commit.before_entry",
    "commit.after_draft",
    "commit.after_entry",
    "upsert.after_commit",
)
JOB_STEPS: Final = (
    "commit.before_entry",
    "commit.after_draft",
    "commit.after_entry",
    "fold.after_plan",
    "fold.after_write",
    "fold.before_commit",
    "fold.after_commit",
    "fold.after_prune",
    "roll_up.after_write",
    "roll_up.after_commit",
    "squash.after_write",
    "squash.after_commit",
    "vacuum.before_delete",
    "lease.after_stage",
    "lease.after_commit",
)
QUIET_DAYS: Final = 3
"""Days after the last write until every day is closed and quiet, and every tier has planned."""
MOST_STEPS_TO_REST: Final = 30
"""Cycles within which jobs over the budget, or of a hanging holder, must be done."""
HANG_CHANCE: Final = 0.1
PURGE_CHANCE: Final = 0.03
HIDE_CHANCE: Final = 0.12
RIVAL_CHANCE: Final = 0.3
JUMP_CHANCE: Final = 0.05
JUMP_HOURS: Final = 5
BETWEEN: Final = (
    "fold.after_plan",
    "fold.before_commit",
    "roll_up.after_write",
    "roll_up.after_write",
    "squash.after_write",
)
"""Fail points at which writers run: after the plan, before its commit."""


FENCED: Final = frozenset({JobKind.FOLD, JobKind.ROLL_UP})
"""Job kinds that commit to base."""
Name = tuple[str, str, str, object]


class Death(BaseException):
    """The end of a simulated process."""


def _die(name: str) -> None:
    raise Death(name)


@dataclass
class Figures:
    """Counters of a simulation, for assertions and for printing."""

    steps: int = 0
    cycles: int = 0
    jobs: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    takeovers: int = 0
    hangs: int = 0
    purges: int = 0
    jumps: int = 0
    rivals: int = 0
    largest_backlog: int = 0
    longest_wait: int = 0
    ingested_bytes: int = 0
    ingested_rows: int = 0
    rewritten_bytes: int = 0
    rewritten_rows: int = 0

    @property
    def bytes_rewritten(self) -> float:
        """Write amplification: bytes written by compactions per byte written by writers."""
        return self.rewritten_bytes / max(1, self.ingested_bytes)

    @property
    def rows_rewritten(self) -> float:
        """Write amplification in rows."""
        return self.rewritten_rows / max(1, self.ingested_rows)

    def summary(self) -> str:
        """Return the figures as text."""
        return (
            f"{self.steps} steps, {self.cycles} cycles, jobs {dict(self.jobs)}, refused {dict(self.refused)}, "
            f"deaths {self.deaths.total()}, hangs {self.hangs}, takeovers {self.takeovers}, purges {self.purges}, "
            f"jumps of the clock {self.jumps}, rivals {self.rivals}, "
            f"largest backlog {self.largest_backlog} batches, longest wait {self.longest_wait} cycles, "
            f"rewritten {self.bytes_rewritten:.2f} bytes for each byte and "
            f"{self.rows_rewritten:.2f} rows for each row written"
        )


class World:
    """The lake, the expected rows, the clock and all processes."""

    def __init__(self, path: Path, *, seed: int, spark: "SparkSession") -> None:
        self.path = path
        self.random = Random(seed)  # repeatable, not secret
        self.clock = FakeClock()
        self.spark = spark
        self.truth = {name: Truth() for name in (*LOGS, PEOPLE)}
        self.figures = Figures()
        self.tiers = tiers_from_text(SETTINGS.tiers)
        self.waiting: dict[Name, int] = {}
        """First cycle in which a candidate could have been done."""
        self._number = 0
        self._known: dict[str, set[str]] = {}
        with self.lake(WRITER_SETTINGS) as lake:
            lake.create(CLICKS, COLUMNS, time="at", subject="who", partition_by="region", sort_by=["who", "at"])
            lake.create(CALLS, COLUMNS, time="at", subject="who")
            lake.create(PEOPLE, COLUMNS, key="n", subject="who")
        self.compactors = [Compactor(self), Compactor(self)]
        self._writers = [self.lake(WRITER_SETTINGS) for _ in range(WRITERS)]
        self._reader = self.lake(WRITER_SETTINGS)

    def lake(self, settings: Settings) -> Lake:
        """Open the lake as another process does."""
        return Lake.open(self.path, settings=settings, spark=self.spark, clock=self.clock)

    def close(self) -> None:
        """Close all lakes and compactors."""
        for compactor in self.compactors:
            compactor.end()
        for lake in (*self._writers, self._reader):
            lake.close()

    # ---- a step --------------------------------------------------------------------------------------------------

    def step(self, *, writing: bool = True, trouble: bool = True, **passed: float) -> None:
        """Advance the clock, and run one step of each process."""
        self.clock.pass_time(**(passed or {"hours": STEP_HOURS}))
        if trouble and self.random.random() < JUMP_CHANCE:
            self.clock.jump(hours=self.random.choice((-JUMP_HOURS, JUMP_HOURS)))
            self.figures.jumps += 1
        self.figures.steps += 1
        turns: list[Callable[[], None]] = [partial(self._tick, found, trouble=trouble) for found in self.compactors]
        if writing:
            turns += [self.write for _ in range(self.random.randrange(6, 11))]
        self.random.shuffle(turns)
        for turn in turns:
            turn()
        self.check()

    def write(self) -> None:
        """Do one write of one writer; it may die during the write, and another writer repeats it."""
        name = self.random.choice((CLICKS, CLICKS, CALLS, CALLS, PEOPLE))
        act = self._drawn(name)
        writer = self.random.randrange(WRITERS)
        try:
            with self._dying(WRITE_STEPS, chance=0.1):
                act(self._writers[writer].dataset(name))
        except Death as death:
            self.figures.deaths[str(death)] += 1
            self._writers[writer].close()
            self._writers[writer] = self.lake(WRITER_SETTINGS)
            act(self._writers[writer].dataset(name))

    def _drawn(self, name: str) -> "Callable[[Dataset], None]":
        """Return a repeatable write: the producer's sequence applies it once, and the truth is updated last."""
        if self.random.random() < HIDE_CHANCE:
            return self._hide(name)
        rows, once = self._rows(name, self.random.randrange(1, 9)), self._once()

        def add(dataset: Dataset) -> None:
            (dataset.append if name in LOGS else dataset.upsert)(rows, **once)
            self.truth[name].add(rows)

        return add

    def _hide(self, name: str) -> "Callable[[Dataset], None]":
        who, key, once = f"S-{self.random.randrange(SUBJECTS)}", self.random.randrange(KEYS), self._once()

        def hide(dataset: Dataset) -> None:
            dataset.tombstone([who if name in LOGS else key], **once)
            if name in LOGS:
                self.truth[name].hide(who)
            else:
                self.truth[name].drop(key)

        return hide

    def _once(self) -> dict[str, Any]:
        self._number += 1
        return {"producer": f"writer-{self._number}", "sequence": 1}

    def _rows(self, name: str, count: int) -> list[Row]:
        first = self._number * 100
        numbers = range(first, first + count) if name in LOGS else self.random.sample(range(KEYS), count)
        now, size = self.clock.now() - timedelta(minutes=self.random.randrange(60 * STEP_HOURS)), PAYLOAD_BYTES[name]
        return [event(self.random, n, now=now, payload_bytes=size) for n in numbers]

    # ---- faults --------------------------------------------------------------------------------------------------

    def _tick(self, compactor: "Compactor", *, trouble: bool) -> None:
        try:
            with ExitStack() as stack:
                if trouble:
                    stack.enter_context(self._dying(JOB_STEPS, chance=0.12))
                    stack.enter_context(self._interrupted(chance=0.5))
                compactor.tick(trouble=trouble)
        except Death as death:
            self.figures.deaths[str(death)] += 1
            compactor.end()
            self.compactors[self.compactors.index(compactor)] = Compactor(self)

    def settle(self) -> None:
        """Run days without writes or faults after the last write, until no job is left."""
        for _ in range(4 * QUIET_DAYS):
            self.step(writing=False, trouble=False, hours=24 / 4)
        for _ in range(MOST_STEPS_TO_REST):
            if not self.compactors[0].jobs():
                return
            self.step(writing=False, trouble=False, hours=1)
        raise AssertionError(f"no rest after {MOST_STEPS_TO_REST} more steps; {self.figures.summary()}")

    @contextmanager
    def _dying(self, places: Sequence[str], *, chance: float) -> Iterator[None]:
        if self.random.random() >= chance:
            yield
            return
        with arm(self.random.choice(places), _die, count=self.random.randrange(1, 4)):
            yield

    @contextmanager
    def _interrupted(self, *, chance: float) -> Iterator[None]:
        if self.random.random() >= chance:
            yield
        elif self.random.random() < RIVAL_CHANCE:
            with (
                arm("roll_up.after_write", lambda _: self._rival()),
                arm("fold.before_commit", lambda _: self._rival()),
            ):
                yield
        else:
            with arm(self.random.choice(BETWEEN), lambda _: self.write(), count=self.random.randrange(1, 3)):
                yield

    def _rival(self) -> None:
        """Let a second compactor without the lease fold a log after a tombstone, or roll it up."""
        rival = Compactor(self)
        for name in LOGS:
            if self.random.random() < 0.5:
                self._hide(name)(self._writers[0].dataset(name))
                rival.intrude(name, str(JobKind.FOLD))
            else:
                rival.intrude(name, str(JobKind.ROLL_UP))
        rival.end()
        self.figures.rivals += 1

    # ---- invariants ----------------------------------------------------------------------------------------------

    def check(self, *, whole: bool = False) -> None:
        """Check that every dataset has its expected rows: each row once, with its written values."""
        for name, truth in self.truth.items():
            shown = self._reader.dataset(name).to_arrow()
            numbers = sorted(shown.column("n").to_pylist())
            assert numbers == sorted(truth.rows), f"{name} at {self.clock.now()}: other rows than were written"
            if whole:
                assert {row["n"]: row for row in shown.to_pylist()} == truth.rows
            backlog = self._store(name).snapshot()
            self.figures.largest_backlog = max(self.figures.largest_backlog, backlog.sequence - backlog.watermark)

    def on_spark(self) -> None:
        """Check the same on Spark."""
        for name, truth in self.truth.items():
            numbers = [row["n"] for row in self._reader.dataset(name).read().select("n").collect()]
            assert sorted(numbers) == sorted(truth.rows)

    def _store(self, name: str) -> Store:
        return store_of(self._reader.dataset(name))

    def files(self, name: str, into: Granularity) -> dict[tuple[str, str | None], list[int]]:
        """Return the sizes of base's files by period and region, for closed periods."""
        found: dict[tuple[str, str | None], list[int]] = {}
        for file in self._store(name).snapshot().base.files:
            period = file.partition[PERIOD] or ""
            period = coarser(period, into) if granularity_of(period).rank < into.rank else period
            if end(period) <= self.clock.now():
                found.setdefault((period, file.partition.get("region")), []).append(file.size_bytes)
        return found

    def tier(self, name: str) -> Tier:
        """Return a tier by its name."""
        return next(tier for tier in self.tiers if tier.name == name)

    # ---- counting ------------------------------------------------------------------------------------------------

    def _count_ingested(self, file: DataFile) -> None:
        self.figures.ingested_bytes += file.size_bytes
        self.figures.ingested_rows += file.rows

    def count_rewritten(self, name: str) -> None:
        """Count rewrites since the last call; only jobs remove files."""
        for kind in ("changes", "base"):
            for file in self._new(kind, name):
                if kind == "changes" and not is_squashed(file.path):
                    self._count_ingested(file)
                    continue
                self.figures.rewritten_bytes += file.size_bytes
                self.figures.rewritten_rows += file.rows

    def _new(self, kind: str, name: str) -> list[DataFile]:
        snapshot = self._store(name).snapshot()
        files = snapshot.changes.files if kind == "changes" else snapshot.base.files
        known = self._known.setdefault(f"{kind}/{name}", set())
        new = [file for file in files if file.path not in known]
        known |= {file.path for file in new}
        return new


class Compactor:
    """A process that compacts while it holds the lease."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lake = world.lake(SETTINGS)
        self._leases = Leases(Layout.at(world.path), SETTINGS, world.clock)
        self._lease: Lease | None = None
        self._hangs_for = 0
        self._left: tuple[Plan, int] | None = None
        self._epoch_before = 0

    def end(self) -> None:
        """End as a process ends: its lock is free, its lease row is unchanged."""
        if self._lease is not None:
            release_liveness_lock(liveness_lock_of(self._lease))
        self._lease = None
        self._lake.close()

    def tick(self, *, trouble: bool) -> None:
        """Run a cycle if this process holds or can acquire the lease; after a hang, continue the old plan."""
        if self._hangs_for:
            self._hangs_for -= 1
            return
        if self._left is not None:
            planned, epoch = self._left
            self._left = None
            self._run(planned, epoch)
        lease = self._held()
        if lease is None:
            return
        self._world.figures.cycles += 1
        highest = max(self._store(name).snapshot().epoch for name in (*LOGS, PEOPLE))
        if highest > lease.epoch:  # a purge raised it; the earlier plan stays fenced
            lease.advance(above=highest)
        self._record_starvation(planned := self._plan())
        if trouble and planned.jobs and self._world.random.random() < HANG_CHANCE:
            self._hangs_for = LEASE_STEPS + 2
            self._left = (planned, lease.epoch)
            self._world.figures.hangs += 1
            return
        self._run(planned, lease.epoch)
        if trouble and self._world.random.random() < PURGE_CHANCE:
            self._purge()

    def _purge(self) -> None:
        """Purge a log, which raises its epoch."""
        name = self._world.random.choice(LOGS)
        self._world.count_rewritten(name)
        self._lake.dataset(name).compact(purge=True)
        self._world.count_rewritten(name)
        self._world.figures.purges += 1

    def _held(self) -> Lease | None:
        if self._lease is not None:
            try:
                self._lease.check()
                self._lease.renew_if_due()
            except Fenced:
                self._lease.release()
                self._lease = None
        if self._lease is None:
            self._lease = self._leases.acquire(COMPACTOR, role=Role.COMPACTOR)
            self._world.figures.takeovers += self._lease is not None and self._lease.previous_holder is not None
        return self._lease

    def _plan(self, *, force: bool = False) -> Plan:
        tables = [table_state(self._store(name), tiers=self._world.tiers) for name in (*LOGS, PEOPLE)]
        inputs = Inputs(tables=tables, cycle=self._world.figures.cycles, force=force)
        return plan(inputs, SETTINGS, self._world.clock.now())

    def force(self) -> int:
        """Run a cycle without thresholds, if this process holds the lease; return its number of jobs."""
        lease = self._held()
        if lease is None:
            return 0
        planned = self._plan(force=True)
        self._run(planned, lease.epoch)
        return len([job for job in planned.jobs if job.kind is not JobKind.VACUUM])

    def jobs(self) -> int:
        """Return the number of jobs of a cycle now."""
        return len([job for job in self._plan().jobs if job.kind is not JobKind.VACUUM])

    def intrude(self, name: str, work: str) -> None:
        """Run all jobs of a kind in one dataset, without the lease and below all thresholds."""
        tables = [table_state(self._store(name), tiers=self._world.tiers)]
        inputs = Inputs(tables=tables, only=frozenset({work}), force=True)
        planned = plan(inputs, SETTINGS, self._world.clock.now())
        runner = InlineRunner(compactor_of(self._lake), self._store)
        run_cycle(planned, runner, subscribers=[self.on_event])

    def _record_starvation(self, planned: Plan) -> None:
        """Record how long each candidate has waited: those of this cycle, and those over its budget."""
        waiting, figures = self._world.waiting, self._world.figures
        due = {
            _name(job) for job in (*planned.jobs, *planned.left_out) if job.planned or "over the budget" in job.reason
        }
        for name in waiting.keys() - due:
            del waiting[name]
        for name in due:
            waiting.setdefault(name, figures.cycles)
            figures.longest_wait = max(figures.longest_wait, figures.cycles - waiting[name])

    def _run(self, planned: Plan, epoch: int) -> None:
        runner = InlineRunner(compactor_of(self._lake), self._store)
        run_cycle(planned, runner, epoch=epoch, subscribers=[self.on_event])

    def _store(self, name: str) -> Store:
        return store_of(self._lake.dataset(name))

    # ---- events of a cycle -----------------------------------------------------------------------------------------

    def on_event(self, event: CompactionEvent) -> None:
        """Handle the events of a cycle."""
        match event:
            case JobBegan(job=job):
                self.job_began(job)
            case JobEnded(job=job, result=result):
                self.job_ended(job, result)
            case _:
                pass

    def job_began(self, job: Job) -> None:
        """Record the epoch that has committed to the dataset."""
        self._world.count_rewritten(job.spec.dataset)
        self._epoch_before = self._store(job.spec.dataset).snapshot().epoch

    def job_ended(self, job: Job, result: JobResult) -> None:
        """Count a job; a plan older than another holder's commit must not have landed."""
        self._world.count_rewritten(job.spec.dataset)
        if result.error is None:
            self._world.figures.jobs[result.lane] += 1
            self._world.waiting.pop(_name(job.spec), None)
            overtaken = job.epoch is not None and job.epoch < self._epoch_before
            landed = job.spec.kind in FENCED and (result.report or {}).get("files_added")
            assert not (overtaken and landed), f"{result} landed with an older epoch"
        else:
            self._world.figures.refused[result.lane] += 1


def _name(found: JobSpec) -> Name:
    return found.lane, found.dataset, found.period, found.partition
