"""Runs the jobs of a plan. A failed job does not stop the others. Subscribers receive an event at each step.

A runner with several slots gets each job in a separate thread. Jobs of one dataset run side by side only if they do
not exclude each other. The thread that runs the cycle passes on all events.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from siltstone.clock import Clock, SystemClock
from siltstone.compaction.execution.events import (
    CompactionEvent,
    CycleBegan,
    JobBegan,
    JobEnded,
    JobsEnded,
    Subscriber,
)
from siltstone.compaction.execution.job import Job, Runner, StoppableRunner, exclude_each_other
from siltstone.compaction.execution.retry import run_with_retries
from siltstone.compaction.planning.model import Plan
from siltstone.model.reports import JobResult

POLL_SECONDS: Final = 0.2


def run_cycle(
    plan: Plan,
    runner: Runner,
    *,
    epoch: int | None = None,
    subscribers: Sequence[Subscriber] = (),
    stopping: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
) -> list[JobResult]:
    """Run the jobs of a plan in its order, and return their results in that order.

    Once `stopping` returns true, no further job begins. Running jobs are cancelled if the runner supports it.
    """
    jobs = tuple(Job.of(spec, cycle=plan.cycle, epoch=epoch) for spec in plan.jobs)
    cycle = _Cycle(runner, subscribers, stopping, SystemClock() if clock is None else clock)
    cycle.publish(CycleBegan(plan=plan, jobs=jobs))
    width = runner.width if isinstance(runner, StoppableRunner) else 1
    done = cycle.one_by_one(jobs) if width == 1 else cycle.side_by_side(jobs, width)
    results = [done[job.id] for job in jobs if job.id in done]
    cycle.publish(JobsEnded(plan=plan, results=tuple(results)))
    return results


class _Cycle:
    """The jobs of a plan while they run."""

    def __init__(
        self, runner: Runner, subscribers: Sequence[Subscriber], stopping: Callable[[], bool], clock: Clock
    ) -> None:
        self._runner = runner
        self._subscribers = subscribers
        self._stopping = stopping
        self._clock = clock

    def publish(self, event: CompactionEvent) -> None:
        """Pass an event to every subscriber."""
        for subscriber in self._subscribers:
            subscriber(event)

    def one_by_one(self, jobs: Sequence[Job]) -> dict[str, JobResult]:
        """Run the jobs in this thread, where an interrupt reaches them."""
        done: dict[str, JobResult] = {}
        for job in jobs:
            if self._stopping():
                break
            self.publish(JobBegan(job=job))
            done[job.id] = run_with_retries(job, self._runner, clock=self._clock, stopping=self._stopping)
            self.publish(JobEnded(job=job, result=done[job.id]))
        return done

    def side_by_side(self, jobs: Sequence[Job], width: int) -> dict[str, JobResult]:
        """Run `width` jobs at once. An interrupt of this thread cancels them."""
        waiting, running = list(jobs), dict[Future[JobResult], Job]()
        done: dict[str, JobResult] = {}
        is_interrupted = False

        def stopping() -> bool:
            return is_interrupted or self._stopping()

        with ThreadPoolExecutor(width, thread_name_prefix="siltstone-job") as pool:
            try:
                while running or (waiting and not self._stopping()):
                    while len(running) < width and not self._stopping():
                        busy = [job.spec for job in running.values()]
                        free = (job for job in waiting if not any(exclude_each_other(job.spec, spec) for spec in busy))
                        job = next(free, None)
                        if job is None:
                            break
                        waiting.remove(job)
                        self.publish(JobBegan(job=job))
                        future = pool.submit(run_with_retries, job, self._runner, clock=self._clock, stopping=stopping)
                        running[future] = job
                    for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                        job = running.pop(future)
                        done[job.id] = future.result()
                        self.publish(JobEnded(job=job, result=done[job.id]))
            finally:
                is_interrupted = True  # the guards of the running jobs end them; Ctrl-C may come again in `Event.set`
        return done
