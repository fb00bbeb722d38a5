"""Roll-ups: which files of closed periods a tier merges.

1. Files are grouped by period and partition values. Files of unfinished jobs are excluded.
2. The tiers are planned from the coarsest target to the finest. A tier examines every group whose granularity is its
   source or finer, and its own target period. So files that are old enough for the day move there directly, not
   through their hour. A finer tier cannot take files away from a coarser one.
3. In its own target period a tier takes only small files, below half of the target size. It takes no clustered file. A
   clustering has its own file size, and the two jobs would undo each other's work for ever. From finer periods it takes
   all files.
4. A period is due if it closed at least the tier's minimum age ago, and is quiet. It must have enough files that no
   compaction wrote there. Compacted files are counted separately. Small files that this tier wrote are merged as soon
   as there are two. So the batches of one period end in files of the target size.
5. The files are cut into batches of at most `max_files`. A remainder of one file joins the last batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final

from siltstone.clock import MS_PER_HOUR, epoch_ms
from siltstone.compaction.planning.model import (
    CLUSTERED,
    Busy,
    FileEntry,
    JobKind,
    JobSpec,
    PartitionValues,
    TableState,
    View,
    by_period,
    idle,
    unfinished_text,
)
from siltstone.errors import InvalidRequest
from siltstone.model.periods import Granularity, coarser, end, granularity_of, order
from siltstone.model.tiers import FEWEST_FILES_PER_JOB, Tier

_BY_AGE: Final = itemgetter(FileEntry._fields.index("modified_ms"), FileEntry._fields.index("path"))


@dataclass(slots=True)
class _Group:
    """The files of one period and one set of partition values."""

    period: str
    partition: PartitionValues
    granularity: Granularity
    files: list[FileEntry]
    """Files that no unfinished job uses."""
    busy: str
    """Text that names the unfinished jobs of the other files."""
    taker: str = ""
    """Name of the coarser tier that takes all of these files."""


@dataclass(frozen=True, slots=True)
class _Sources:
    """Files that a tier can take for one of its target periods."""

    moving: list[FileEntry] = field(default_factory=list)
    """Files of finer periods."""
    fresh: list[FileEntry] = field(default_factory=list)
    """Small files of the target period that no compaction wrote."""
    compacted: list[FileEntry] = field(default_factory=list)
    """Small files of the target period that a compaction wrote."""

    @classmethod
    def of(cls, tier: Tier, groups: Iterable[_Group]) -> "_Sources":
        sources, small = cls(), tier.small_bytes
        for group in groups:
            if group.granularity is not tier.target:
                sources.moving.extend(group.files)
                continue
            for file in group.files:
                if file.size_bytes < small and file.tier != CLUSTERED:
                    (sources.compacted if file.tier else sources.fresh).append(file)
        return sources

    @property
    def new(self) -> int:
        """Number of files that count for the tier's threshold."""
        return len(self.moving) + len(self.fresh)

    @property
    def files(self) -> list[FileEntry]:
        """All files: periods in their order, files of a period by age."""
        return [*self.moving, *self.fresh, *self.compacted]


def roll_ups(table: TableState, tiers: Sequence[Tier], view: View) -> Iterator[JobSpec]:
    """Yield the candidates of these tiers for one log dataset."""
    groups, unreadable = _groups(table, view.busy)
    yield from unreadable
    for tier in sorted(tiers, key=lambda tier: -tier.target.rank):
        spec = JobSpec(kind=JobKind.ROLL_UP, lane=tier.name, dataset=table.name, target_bytes=tier.target_bytes)
        if not tier.enabled:
            if groups:
                yield replace(spec, reason=f"tier {tier.name} is disabled")
            continue
        targets: dict[tuple[str, PartitionValues], list[_Group]] = {}
        for group in groups:
            if group.granularity.rank <= tier.source.rank or group.granularity is tier.target:
                targets.setdefault((coarser(group.period, tier.target), group.partition), []).append(group)
        for (period, partition), sources in targets.items():
            yield from _candidates(replace(spec, period=period, partition=partition), tier, sources, view)


def _groups(table: TableState, busy: Busy) -> tuple[list[_Group], list[JobSpec]]:
    """Return the files by period and partition, in order. Also return a left-out candidate for each invalid period."""
    groups: list[_Group] = []
    unreadable: list[JobSpec] = []
    for (period, partition), files in by_period(table.files):
        try:
            granularity = granularity_of(period)
        except InvalidRequest as error:
            unreadable.append(
                JobSpec(
                    kind=JobKind.ROLL_UP,
                    lane=str(JobKind.ROLL_UP),
                    dataset=table.name,
                    period=period,
                    partition=partition,
                    files=tuple(sorted(files, key=_BY_AGE)),
                    reason=str(error),
                )
            )
            continue
        free = sorted(idle(files, busy), key=_BY_AGE)
        groups.append(_Group(period, partition, granularity, free, unfinished_text(busy, files)))
    return sorted(groups, key=lambda group: order(group.period)), unreadable


def _candidates(target: JobSpec, tier: Tier, groups: list[_Group], view: View) -> Iterator[JobSpec]:
    """Yield the roll-ups into one target period. `target` is the job without its files."""
    free = [group for group in groups if not group.taker]
    sources = _Sources.of(tier, free)
    busy = next(filter(None, (group.busy for group in groups)), "")
    if not sources.new and len(sources.compacted) < FEWEST_FILES_PER_JOB:
        takers = sorted({group.taker for group in groups if group.taker})
        if takers or busy:
            yield replace(target, reason=busy or f"its files go to tier {takers[0]}")
        return
    closed = max(end(target.period), *(end(group.period) for group in free))
    reason = _reason_left_out(tier, sources, closed, view)
    if reason:
        reason = f"{reason}; {busy} are not counted" if busy else reason
        yield replace(target.over(sources.files), reason=reason)
        return
    for group in free:
        group.taker = tier.name
    due_ms = epoch_ms(closed) + (0 if view.force else tier.min_age_seconds * 1000)
    oldest_ms = min(file.modified_ms for file in (*sources.moving, *sources.fresh) or sources.compacted)
    trigger = f"{sources.new} files"
    if sources.new < tier.min_files and len(sources.compacted) >= FEWEST_FILES_PER_JOB:
        trigger = f"{len(sources.compacted)} small files of earlier batches"
    due = replace(target, waiting_since_ms=max(due_ms, oldest_ms), trigger=trigger)
    parts = batches(sources.files, tier.max_files)
    for number, part in enumerate(parts, start=1):
        spec = replace(due.over(part), batch=number, batches=len(parts))
        fewer = spec.files_after < len(part)
        yield spec if fewer else replace(spec, reason=f"{len(part)} files would not become fewer")


def _reason_left_out(tier: Tier, sources: _Sources, closed: datetime, view: View) -> str:
    """Return the reason why a period is left out now; empty if it is taken."""
    if closed > view.now:
        return f"closes at {closed:%Y-%m-%d %H:%M UTC}"
    if len(sources.files) < FEWEST_FILES_PER_JOB:
        return f"{sources.new} of {FEWEST_FILES_PER_JOB if view.force else tier.min_files} files"
    if view.force:
        return ""
    due = _later(closed, tier.min_age_seconds)
    if due > view.now:
        return f"closed at {closed:%Y-%m-%d %H:%M UTC}, eligible from {due:%Y-%m-%d %H:%M UTC} on"
    if sources.new < tier.min_files and len(sources.compacted) < FEWEST_FILES_PER_JOB:
        not_counted = f", not counting {len(sources.compacted)} compacted" if sources.compacted else ""
        return f"{sources.new} of {tier.min_files} files{not_counted}"
    if not tier.quiet_seconds or _later(closed, tier.quiet_until_seconds) <= view.now:
        return ""
    newest_ms = max((file.modified_ms for file in (*sources.moving, *sources.fresh) if not file.tier), default=0)
    wait_ms = newest_ms + tier.quiet_seconds * 1000 - view.now_ms
    hours = f"{wait_ms / MS_PER_HOUR:,.1f} hours"
    return f"the newest file is too young, eligible in {hours} if no other file arrives" if wait_ms > 0 else ""


def _later(moment: datetime, seconds: int) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:  # after the year 9999
        return datetime.max.replace(tzinfo=moment.tzinfo)


def batches(files: Sequence[FileEntry], max_files: int) -> list[Sequence[FileEntry]]:
    """Cut files into batches. A remainder of one file joins the last batch.

    >>> [len(batch) for batch in batches([FileEntry(path=str(n), size_bytes=1) for n in range(61)], 30)]
    [30, 31]
    """
    parts = [files[at : at + max_files] for at in range(0, len(files), max_files)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        last = parts.pop()
        parts[-1] = [*parts[-1], *last]
    return parts
