"""Which candidates become jobs: a budget of bytes for each cycle, and no lane that can starve another.

A *lane* is a tier or another kind of work. The lanes take turns, one job each, until nothing fits into the budget any more:

1. The number of the cycle says which lane is first: of n lanes each is first in every n-th cycle at least.
2. The first job that a lane takes is the one that has waited longest; the others are taken by their score.
3. The very first job of a cycle is taken whatever it costs. Every other one has to fit into what is left.

So the oldest candidate of every lane runs within n cycles, whatever the others bring and however large it is; and the budget
is kept by every cycle but those that consist of one large job (and work that rewrites nothing).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from siltstone.compaction.planning.model import JobSpec
from siltstone.model.units import size_text


class _Lane:
    """The candidates of one lane that were not looked at yet."""

    def __init__(self, candidates: list[JobSpec]) -> None:
        by_age = sorted(candidates, key=lambda found: (found.waiting_since_ms, found.place))
        rest = sorted(by_age[1:], key=lambda found: (-found.score, found.place))
        self._queue = deque([by_age[0], *rest])

    def next_fitting(self, room_bytes: int | None) -> tuple[JobSpec | None, list[JobSpec]]:
        """Return the next one that fits, and those before it that do not; None for room means that all fit."""
        passed: list[JobSpec] = []
        while self._queue:
            found = self._queue.popleft()
            if room_bytes is None or found.cost_bytes <= room_bytes:
                return found, passed
            passed.append(found)
        return None, passed


def chosen(
    candidates: Iterable[JobSpec], *, lanes: Sequence[str], cycle: int, budget_bytes: int
) -> tuple[tuple[JobSpec, ...], tuple[JobSpec, ...]]:
    """Return the jobs of a cycle and the candidates that do not fit, each with its reason."""
    waiting: dict[str, list[JobSpec]] = {}
    for candidate in candidates:
        waiting.setdefault(candidate.lane, []).append(candidate)
    turn = cycle % len(lanes)
    rounds = [_Lane(waiting[lane]) for lane in (*lanes[turn:], *lanes[:turn]) if lane in waiting]
    jobs: list[JobSpec] = []
    over: list[JobSpec] = []
    left = budget_bytes
    while rounds:
        going: list[_Lane] = []
        for lane in rounds:
            job, passed = lane.next_fitting(left if jobs else None)
            over += [replace(found, reason=_over(found, left, budget_bytes)) for found in passed]
            if job:
                jobs.append(job)
                left = max(0, left - job.cost_bytes)
                going.append(lane)
        rounds = going
    return tuple(_batches_in_order(jobs)), tuple(over)


def _over(found: JobSpec, left: int, budget: int) -> str:
    return (
        f"over the budget of this cycle: {size_text(found.cost_bytes)} to rewrite, "
        f"{size_text(left)} of {size_text(budget)} left"
    )


def _batches_in_order(jobs: Sequence[JobSpec]) -> list[JobSpec]:
    """Let the batches of one period stand in their order at the places that they have."""
    places: dict[object, list[int]] = {}
    for at, job in enumerate(jobs):
        places.setdefault((job.lane, *job.place[:3]), []).append(at)
    ordered = list(jobs)
    for found in places.values():
        for at, job in zip(found, sorted((jobs[at] for at in found), key=lambda job: job.batch), strict=True):
            ordered[at] = job
    return ordered
