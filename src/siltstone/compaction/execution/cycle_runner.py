"""One cycle of compaction: the jobs of a plan; one that fails does not stop the others. Watchers are told of each step.

A runner that does several jobs at once gets each in a thread of its own; of one dataset only those that do not get in each
other's way. Watchers are always called by the thread that runs the cycle, one after the other.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, Protocol

from siltstone.clock import Clock, SystemClock
from siltstone.compaction.execution.job import Job, Runner, StoppableRunner, exclude_each_other
from siltstone.compaction.execution.retry import run_with_retries
from siltstone.compaction.planning.model import Plan
from siltstone.model.reports import JobResult

POLL_SECONDS: Final = 0.2


class Watcher(Protocol):
    """Is told what a cycle does, as it happens: the journal, a progress bar, a callback."""

    def cycle_began(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """The jobs of a plan are about to be done."""

    def job_began(self, job: Job) -> None:
        """A job is about to be done."""

    def job_ended(self, job: Job, result: JobResult) -> None:
        """A job was done, or failed."""

    def cycle_ended(self, plan: Plan, results: Sequence[JobResult]) -> None:
        """All jobs have ended, or were left when the cycle was told to stop."""


def run_cycle(
    plan: Plan,
    runner: Runner,
    *,
    epoch: int | None = None,
    watchers: Sequence[Watcher] = (),
    stopping: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
) -> list[JobResult]:
    """Do the jobs of a plan in its order, and say what came of each, in that order.

    Once `stopping` says so, no further one is begun, and those under way are ended, if the runner can do that: they are
    ``cancelled``.
    """
    jobs = [Job.of(planned, cycle=plan.cycle, epoch=epoch) for planned in plan.jobs]
    for watcher in watchers:
        watcher.cycle_began(plan, jobs)
    cycle = _Cycle(runner, watchers, stopping, SystemClock() if clock is None else clock)
    width = runner.width if isinstance(runner, StoppableRunner) else 1
    done = cycle.one_by_one(jobs) if width == 1 else cycle.side_by_side(jobs, width)
    results = [done[job.id] for job in jobs if job.id in done]
    for watcher in watchers:
        watcher.cycle_ended(plan, results)
    return results


class _Cycle:
    """The jobs of a plan under way."""

    def __init__(self, runner: Runner, watchers: Sequence[Watcher], stopping: Callable[[], bool], clock: Clock) -> None:
        self._runner = runner
        self._watchers = watchers
        self._stopping = stopping
        self._clock = clock
        self._left = False
        """True once whoever runs the cycle was interrupted."""

    def one_by_one(self, jobs: Sequence[Job]) -> dict[str, JobResult]:
        """Do them in this thread, where an interrupt reaches them."""
        done: dict[str, JobResult] = {}
        for job in jobs:
            if self._stopping():
                break
            self._begin(job)
            done[job.id] = run_with_retries(job, self._runner, clock=self._clock, stopping=self._stopping)
            self._end(job, done[job.id])
        return done

    def side_by_side(self, jobs: Sequence[Job], width: int) -> dict[str, JobResult]:
        """Do so many at once; whatever ends this thread's wait ends them, too."""
        waiting, running = list(jobs), dict[Future[JobResult], Job]()
        done: dict[str, JobResult] = {}
        with ThreadPoolExecutor(width, thread_name_prefix="siltstone-job") as pool:
            try:
                while running or (waiting and not self._stopping()):
                    while len(running) < width and not self._stopping():
                        job = next((one for one in waiting if _free(one, running.values())), None)
                        if job is None:
                            break
                        waiting.remove(job)
                        self._begin(job)
                        running[pool.submit(self._carry_out, job)] = job
                    for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                        job = running.pop(future)
                        done[job.id] = future.result()
                        self._end(job, done[job.id])
            finally:
                self._left = True  # the guards of those that still run end them
        return done

    def _carry_out(self, job: Job) -> JobResult:
        return run_with_retries(job, self._runner, clock=self._clock, stopping=lambda: self._left or self._stopping())

    def _begin(self, job: Job) -> None:
        for watcher in self._watchers:
            watcher.job_began(job)

    def _end(self, job: Job, result: JobResult) -> None:
        for watcher in self._watchers:
            watcher.job_ended(job, result)


def _free(job: Job, running: Iterable[Job]) -> bool:
    return not any(exclude_each_other(job.spec, other.spec) for other in running)
