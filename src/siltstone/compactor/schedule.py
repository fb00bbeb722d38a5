"""The schedule: the tasks of a lake with their crons, and the tasks that are due. Pure.

A task is settled up to its *anchor*: all earlier due times have run or were given up. The task is due at its cron's
first time after the anchor, plus a random jitter for that time. A run moves the anchor to its own start, so one run
settles all missed times.

There is one task for each tier and for each other kind of job. All have the same function, so tasks that are due
together are planned together. They share one budget and one order of lanes, and nothing is squashed where a fold is
due.

A dataset may have another cron for a tier than the lake. Each such cron is a separate task, ``hourly@9 * * * *``, for
the datasets that have it. The lake's task, ``hourly``, is for all other datasets. A trigger by the name of a tier runs
both.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from siltstone.compactor.tasks import RECOVERY, ScheduledTask, TaskContext
from siltstone.config import Settings
from siltstone.cron import check_cron, next_after
from siltstone.errors import InvalidRequest
from siltstone.model.tiers import Tier, tiers_from_text

if TYPE_CHECKING:
    from siltstone.compaction.execution.report import CycleReport

AT: Final = "@"
"""Separates the name of a tier from a cron that only some datasets have."""
KINDS: Final = ("fold", "squash", "events", "cluster", "vacuum")
"""Kinds of jobs that are not tiers. Each has a setting ``<kind>_cron``."""
SET_BACK_SECONDS: Final = 60.0
"""Seconds by which a clock may be set back without a reset of the schedule, which would repeat a run."""


def schedule(settings: Settings, *, of_datasets: Iterable[Tier] = ()) -> dict[str, str | None]:
    """Return the cron of each task of a lake; None means that the task runs only when it is triggered.

    Datasets may have another cron for a tier than the lake, or a tier that the lake lacks. Each of these crons is a
    task.

    >>> schedule(Settings())["hourly"], schedule(Settings())["weekly"]
    ('5 * * * *', None)

    Raises:
        InvalidRequest: a setting is not a valid cron expression, or the tiers contradict each other.
    """
    tiers = tiers_from_text(settings.tiers)
    crons = {name: _cron(settings, name) for name in (RECOVERY, *KINDS)}
    crons |= {tier.name: tier.cron if tier.enabled else None for tier in tiers}
    for tier in of_datasets:
        if crons.setdefault(tier.name, None) != tier.cron and tier.enabled:
            crons[f"{tier.name}{AT}{tier.cron}"] = tier.cron
    return crons


def lane_of(task: str) -> str:
    """Return the lane of a task: a tier or a kind of job.

    >>> lane_of("hourly@9 * * * *"), lane_of("fold")
    ('hourly', 'fold')
    """
    return task.partition(AT)[0]


def due_crons(due: Iterable[str], crons: Mapping[str, str | None]) -> dict[str, frozenset[str | None]]:
    """Return the lanes of due tasks, each with the crons by which it is due. Recovery has no lane.

    >>> sorted(due_crons(["hourly@9 * * * *"], {"hourly": "5 * * * *", "hourly@9 * * * *": "9 * * * *"})["hourly"])
    ['9 * * * *']
    """
    lanes: dict[str, frozenset[str | None]] = {}
    for task in due:
        if task != RECOVERY:
            lanes[lane_of(task)] = lanes.get(lane_of(task), frozenset()) | {crons.get(task)}
    return lanes


def scheduled_tasks(
    crons: Mapping[str, str | None],
    *,
    run: "Callable[[TaskContext], CycleReport | None]",
    only: Iterable[str] | None = None,
) -> list[ScheduledTask]:
    """Return the tasks of a lake, recovery first.

    `crons` is the result of `schedule`, and `run` the function of every task. `only` selects tiers and kinds of jobs;
    default: all. Recovery is always included.
    """
    requested = set(map(lane_of, crons)) if only is None else set(only)
    if unknown := sorted(requested - crons.keys()):
        raise InvalidRequest(
            f"There is no tier or kind of job {unknown[0]!r}. Known: {', '.join(dict.fromkeys(map(lane_of, crons)))}."
        )
    return [
        ScheduledTask(name=name, cron=cron, run=run)
        for name, cron in crons.items()
        if name == RECOVERY or lane_of(name) in requested
    ]


def _cron(settings: Settings, name: str) -> str | None:
    text: str = getattr(settings, f"{name}_cron").strip()
    if not text:
        return None
    try:
        check_cron(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"Setting '{name}_cron': {error}") from error
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Next due time of one task. `due_at` is None without a cron."""

    anchor: datetime.datetime
    due_at: datetime.datetime | None


def timing_after(cron: str | None, anchor: datetime.datetime, *, jitter_seconds: float) -> Timing:
    """Return the next due time of a task that is settled up to the anchor."""
    if cron is None:
        return Timing(anchor=anchor, due_at=None)
    return Timing(anchor=anchor, due_at=next_after(cron, anchor) + datetime.timedelta(seconds=jitter_seconds))


def due(timings: Iterable[tuple[str, Timing]], now: datetime.datetime) -> tuple[str, ...]:
    """Return the names of due tasks, in the given order."""
    return tuple(name for name, timing in timings if timing.due_at is not None and timing.due_at <= now)


def is_set_back(timing: Timing, now: datetime.datetime) -> bool:
    """True if the clock was set back behind the anchor. The task would otherwise wait until it catches up."""
    return timing.anchor - now > datetime.timedelta(seconds=SET_BACK_SECONDS)
