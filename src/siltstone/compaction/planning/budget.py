"""Selects the jobs of a cycle among the candidates: a byte budget per cycle, and no lane that can starve another.

A *lane* is a tier or another kind of job. The lanes alternate, one job each, until no candidate fits into the budget:

1. The number of the cycle decides which lane is first. Of n lanes each is first at least in every n-th cycle.
2. The first job of a lane is its oldest candidate. The other jobs of the lane are selected by score.
3. The very first job of a cycle is selected at any cost. Every other job must fit into the rest of the budget.

So the oldest candidate of every lane runs within n cycles, independent of its size and of the other lanes. Every cycle
stays within the budget, except a cycle of one large job (and jobs that rewrite nothing).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from siltstone.compaction.planning.model import JobSpec
from siltstone.model.units import size_text


class _Lane:
    """Queue of the candidates of one lane that were not examined yet."""

    def __init__(self, candidates: list[JobSpec]) -> None:
        by_age = sorted(candidates, key=lambda spec: (spec.waiting_since_ms, spec.place))
        rest = sorted(by_age[1:], key=lambda spec: (-spec.score, spec.place))
        self._queue = deque([by_age[0], *rest])

    def next_fitting(self, room_bytes: int | None) -> tuple[JobSpec | None, list[JobSpec]]:
        """Return the next candidate that fits, and the larger ones before it.

        Without a limit (None) every candidate fits.
        """
        passed: list[JobSpec] = []
        while self._queue:
            spec = self._queue.popleft()
            if room_bytes is None or spec.cost_bytes <= room_bytes:
                return spec, passed
            passed.append(spec)
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
            room = f"{size_text(left)} of {size_text(budget_bytes)} left"
            over += [
                replace(spec, reason=f"over the budget of this cycle: {size_text(spec.cost_bytes)} to rewrite, {room}")
                for spec in passed
            ]
            if job:
                jobs.append(job)
                left = max(0, left - job.cost_bytes)
                going.append(lane)
        rounds = going
    return tuple(_batches_in_order(jobs)), tuple(over)


def _batches_in_order(jobs: Sequence[JobSpec]) -> list[JobSpec]:
    """Sort the batches of each period by number, within the positions that these batches have in the plan."""
    places: dict[object, list[int]] = {}
    for at, job in enumerate(jobs):
        places.setdefault((job.lane, *job.place[:3]), []).append(at)
    ordered = list(jobs)
    for positions in places.values():
        batches = sorted((jobs[at] for at in positions), key=lambda job: job.batch)
        for at, job in zip(positions, batches, strict=True):
            ordered[at] = job
    return ordered
