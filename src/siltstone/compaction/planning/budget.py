"""Selects the jobs of a cycle among the candidates: a byte budget per cycle, and no lane starves another.

A *lane* is a tier or another kind of job. The lanes alternate, one job each, until no candidate fits into the budget:

1. The number of the cycle decides which lane is first. Of n lanes each is first at least in every n-th cycle.
2. The first job of a lane is its oldest candidate. The other jobs of the lane are selected by score.
3. The very first job of a cycle is selected at any cost. Every other job must fit into the rest of the budget.

So the oldest candidate of every lane runs within n cycles, independent of its size and of the other lanes. Every cycle
stays within the budget, except a cycle of one large job (and jobs that rewrite nothing).
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from siltstone.compaction.planning.model import JobSpec
from siltstone.model.units import size_text


def select_jobs(
    candidates: Iterable[JobSpec], *, lanes: Sequence[str], cycle: int, budget_bytes: int
) -> tuple[tuple[JobSpec, ...], tuple[JobSpec, ...]]:
    """Return the jobs of a cycle and the candidates that do not fit, each with its reason."""
    waiting: defaultdict[str, list[JobSpec]] = defaultdict(list)
    for candidate in candidates:
        waiting[candidate.lane].append(candidate)
    first = cycle % len(lanes)
    queues = [_queue(waiting[lane]) for lane in (*lanes[first:], *lanes[:first]) if lane in waiting]
    jobs: list[JobSpec] = []
    over: list[JobSpec] = []
    room_bytes = budget_bytes
    while queues:
        for queue in queues:
            while queue:
                spec = queue.popleft()
                if not jobs or spec.cost_bytes <= room_bytes:
                    jobs.append(spec)
                    room_bytes = max(0, room_bytes - spec.cost_bytes)
                    break
                room = f"{size_text(room_bytes)} of {size_text(budget_bytes)} left"
                text = f"over the budget of this cycle: {size_text(spec.cost_bytes)} to rewrite, {room}"
                over.append(replace(spec, reason=text))
        queues = list(filter(None, queues))
    return tuple(_batches_in_order(jobs)), tuple(over)


def _queue(candidates: list[JobSpec]) -> deque[JobSpec]:
    """Return the candidates of a lane in the order in which they are examined: the oldest, then by score."""
    oldest, *others = sorted(candidates, key=lambda spec: (spec.waiting_since_ms, spec.sort_key))
    return deque([oldest, *sorted(others, key=lambda spec: (-spec.score, spec.sort_key))])


def _batches_in_order(jobs: Sequence[JobSpec]) -> list[JobSpec]:
    """Sort the batches of each period by number, within the positions that these batches have in the plan."""
    by_period: defaultdict[object, list[int]] = defaultdict(list)
    for at, job in enumerate(jobs):
        by_period[(job.lane, *job.sort_key[:3])].append(at)
    ordered = list(jobs)
    for positions in by_period.values():
        batches = sorted((jobs[at] for at in positions), key=lambda job: job.batch)
        for at, job in zip(positions, batches, strict=True):
            ordered[at] = job
    return ordered
