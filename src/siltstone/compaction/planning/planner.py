"""The planner: turns file lists, backlogs and settings into the jobs of a cycle, each decision with its numbers. Pure.

`plan` examines every table by itself (`triggers`, `roll_up_policy`), then selects within the budget (`budget`). The
same inputs, settings and time give the same plan, independent of the order in which files are listed. Planning reads
no table, no file and no clock.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from siltstone.clock import epoch_ms
from siltstone.compaction.planning.budget import select_jobs
from siltstone.compaction.planning.model import Inputs, JobKind, JobSpec, Plan, Shape, TableState, View
from siltstone.compaction.planning.roll_up_policy import roll_ups
from siltstone.compaction.planning.triggers import clusterings, event_logs, folds, squashes, vacuums
from siltstone.config import Settings
from siltstone.errors import InvalidRequest

_OTHERS: Final = tuple(str(kind) for kind in JobKind if kind not in (JobKind.ROLL_UP, JobKind.PURGE))
_TAKES: Final = {JobKind.PURGE: (JobKind.FOLD, JobKind.SQUASH, JobKind.CLUSTER, JobKind.VACUUM)}
"""Kinds of jobs that a running purge excludes: it leaves them nothing to do, or fences them out."""


def plan(inputs: Inputs, settings: Settings, now: datetime) -> Plan:
    """Return what a cycle would do now, and what it would leave out and why; InvalidRequest for bad inputs."""
    tier_ranks: dict[str, int] = {}  # a tier may have different targets in different datasets: the finest target counts
    for tier in (tier for table in inputs.tables for tier in table.tiers):
        tier_ranks[tier.name] = min(tier.target.rank, tier_ranks.get(tier.name, tier.target.rank))
    tiers = sorted(tier_ranks, key=lambda name: (tier_ranks[name], name))
    lanes = (*_OTHERS, *tiers)  # always in this order: folds first, then the tiers from the finest to the coarsest
    _check(inputs, settings, now, lanes)
    requested = frozenset(lanes if inputs.only is None else inputs.only)
    if JobKind.ROLL_UP in requested:
        requested |= frozenset(tiers)
    ready: list[JobSpec] = []
    left_out: list[JobSpec] = []
    for table in inputs.tables:
        running = [job for job in inputs.unfinished if job.dataset == table.name]
        view = View(
            now=now,
            now_ms=epoch_ms(now),
            force=inputs.force,
            busy={path: job.job for job in running for path in job.files},
            under_way={kind: job.job for job in running for kind in _TAKES.get(job.kind, (job.kind,))},
        )
        for candidate in _candidates(table, settings, view, requested):
            (ready if candidate.planned else left_out).append(candidate)
    jobs, over = select_jobs(ready, lanes=lanes, cycle=inputs.cycle, budget_bytes=settings.cycle_bytes)
    ranks = {lane: at for at, lane in enumerate((*lanes, str(JobKind.ROLL_UP)))}
    rest = sorted((*over, *left_out), key=lambda spec: (ranks[spec.lane], spec.sort_key))
    return Plan(cycle=inputs.cycle, budget_bytes=settings.cycle_bytes, jobs=jobs, left_out=tuple(rest))


def _candidates(table: TableState, settings: Settings, view: View, requested: frozenset[str]) -> Iterator[JobSpec]:
    """Yield every candidate of a table. No file is in two candidates that are ready."""
    fold = list(folds(table, settings, view)) if JobKind.FOLD in requested else []
    fold_due = any(candidate.planned for candidate in fold)
    yield from fold
    if JobKind.SQUASH in requested:
        yield from squashes(table, settings, view, fold_due=fold_due)
    if JobKind.EVENTS in requested:
        yield from event_logs(table, settings, view)
    tiers = [tier for tier in table.tiers if tier.name in requested] if table.shape is Shape.LOG else []
    rolled = list(roll_ups(table, tiers, view)) if tiers else []
    yield from rolled
    if JobKind.CLUSTER in requested and table.cluster_by:
        taken = frozenset(file.path for spec in rolled if spec.planned for file in spec.files)
        yield from clusterings(table, settings, view, taken=taken, fold_due=fold_due)
    if JobKind.VACUUM in requested:
        yield from vacuums(table, settings, view)


def _check(inputs: Inputs, settings: Settings, now: datetime, lanes: Sequence[str]) -> None:
    if now.tzinfo is None:
        raise InvalidRequest(f"The time {now.isoformat()} has no time zone; give it one.")
    names = [table.name for table in inputs.tables]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"{twice} is given twice to the planner; give each table once.")
    unknown = sorted((inputs.only or frozenset()) - {*lanes, JobKind.ROLL_UP})
    if unknown:
        raise InvalidRequest(
            f"There is no tier or kind of job {unknown[0]!r}. Known: {', '.join((*lanes, JobKind.ROLL_UP))}."
        )
    if settings.vacuum_retention_hours < settings.vacuum_floor_hours:
        raise InvalidRequest(
            f"vacuum_retention_hours ({settings.vacuum_retention_hours:g}) is below vacuum_floor_hours "
            f"({settings.vacuum_floor_hours:g}); raise the first or lower the second."
        )
