"""Roll-ups: which files of closed periods a tier merges.

1. Files are grouped by period and partition values. Files of unfinished jobs are excluded.
2. The tiers are planned from the coarsest target to the finest. A tier examines every group whose granularity is its
   source or finer, and its own target period. So files that are old enough for the day move there directly, not
   through their hour. A finer tier cannot take files away from a coarser one.
3. In its own target period a tier takes only small files, below half of the target size. It takes no clustered file,
   because a clustering has its own file size, and the two jobs would undo each other's work for ever. From finer
   periods it takes all files.
4. A period is due if it closed at least the tier's minimum age ago, and is quiet. It must have enough files that no
   compaction wrote there. Compacted files are counted separately. Small files that this tier wrote are merged as soon
   as there are two. So the batches of one period end in files of the target size.
5. The files are cut into batches of at most `max_files`. A remainder of one file joins the last batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final

from siltstone.clock import epoch_ms
from siltstone.compaction.planning.model import (
    CLUSTERED,
    OPEN_COST_BYTES,
    Busy,
    FileEntry,
    JobKind,
    JobSpec,
    Partition,
    TableState,
    View,
    files_needed,
    idle,
    total_bytes,
    total_rows,
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
    partition: Partition
    granularity: Granularity
    files: list[FileEntry]
    """Files that no unfinished job uses."""
    busy: str
    """Text that names the unfinished jobs of the other files."""
    taker: str = ""
    """Name of the coarser tier that takes all of these files."""


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Files that a tier can take for one of its target periods."""

    moving: list[FileEntry]
    fresh: list[FileEntry]
    """Small files of the target period that no compaction wrote."""
    compacted: list[FileEntry]
    """Small files of the target period that a compaction wrote."""

    @classmethod
    def of(cls, tier: Tier, groups: Iterable[_Group]) -> "_Sorted":
        moving: list[FileEntry] = []
        fresh: list[FileEntry] = []
        compacted: list[FileEntry] = []
        small = tier.small_bytes
        for group in groups:
            if group.granularity is not tier.target:
                moving += group.files
                continue
            for file in group.files:
                if file.size_bytes < small and file.tier != CLUSTERED:
                    (compacted if file.tier else fresh).append(file)
        return cls(moving, fresh, compacted)

    @property
    def new(self) -> int:
        """Number of files that count for the tier's threshold."""
        return len(self.moving) + len(self.fresh)

    @property
    def taken(self) -> list[FileEntry]:
        """All files: periods in their order, files of a period by age."""
        return [*self.moving, *self.fresh, *self.compacted]


@dataclass(frozen=True, slots=True)
class _Place:
    """Target of a tier: dataset, period and partition values."""

    dataset: str
    tier: Tier
    period: str
    partition: Partition

    def candidate(
        self,
        files: Sequence[FileEntry],
        *,
        reason: str = "",
        batch: int = 1,
        batches: int = 1,
        since_ms: int = 0,
        trigger: str = "",
    ) -> JobSpec:
        """Return a roll-up of these files with its numbers."""
        size = total_bytes(files)
        after = files_needed(size, self.tier.target_bytes) if files else 0
        return JobSpec(
            kind=JobKind.ROLL_UP,
            lane=self.tier.name,
            dataset=self.dataset,
            period=self.period,
            partition=self.partition,
            files=tuple(files),
            batch=batch,
            batches=batches,
            files_after=after,
            rows=total_rows(files),
            cost_bytes=size,
            saved_bytes=max(0, len(files) - after) * OPEN_COST_BYTES,
            target_bytes=self.tier.target_bytes,
            waiting_since_ms=since_ms,
            trigger=trigger,
            reason=reason,
        )


def roll_ups(table: TableState, tiers: Sequence[Tier], view: View) -> Iterator[JobSpec]:
    """Yield the candidates of these tiers for one log dataset."""
    groups, unreadable = _groups(table, view.busy)
    yield from unreadable
    for tier in sorted(tiers, key=lambda tier: -tier.target.rank):
        if not tier.enabled:
            if groups:
                yield _Place(table.name, tier, "", ()).candidate([], reason=f"tier {tier.name} is disabled")
            continue
        targets: dict[tuple[str, Partition], list[_Group]] = {}
        for group in groups:
            if group.granularity.rank <= tier.source.rank or group.granularity is tier.target:
                targets.setdefault((coarser(group.period, tier.target), group.partition), []).append(group)
        for (period, partition), sources in targets.items():
            yield from _candidates(_Place(table.name, tier, period, partition), sources, view)


def _groups(table: TableState, busy: Busy) -> tuple[list[_Group], list[JobSpec]]:
    """Return the files by period and partition, in order. Also return a left-out candidate for each invalid period."""
    by_place: dict[tuple[str, Partition], list[FileEntry]] = {}
    for file in table.files:
        key = (file.period, file.partition)
        if key in by_place:
            by_place[key].append(file)
        else:
            by_place[key] = [file]
    groups: list[_Group] = []
    unreadable: list[JobSpec] = []
    for (period, partition), files in by_place.items():
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


def _candidates(at: _Place, groups: list[_Group], view: View) -> Iterator[JobSpec]:
    tier = at.tier
    free = [group for group in groups if not group.taker]
    files = _Sorted.of(tier, free)
    busy = next(filter(None, (group.busy for group in groups)), "")
    if not files.new and len(files.compacted) < FEWEST_FILES_PER_JOB:
        takers = sorted({group.taker for group in groups if group.taker})
        if takers or busy:
            yield at.candidate([], reason=busy or f"its files go to tier {takers[0]}")
        return
    closed = max(end(at.period), *(end(group.period) for group in free))
    reason = _reason_left_out(tier, files, closed, view)
    if reason:
        yield at.candidate(files.taken, reason=f"{reason}; {busy} are not counted" if busy else reason)
        return
    for group in free:
        group.taker = tier.name
    due_ms = epoch_ms(closed) + (0 if view.force else tier.min_age_seconds * 1000)
    oldest_ms = min(file.modified_ms for file in (*files.moving, *files.fresh) or files.compacted)
    yield from _in_batches(at, files, since_ms=max(due_ms, oldest_ms))


def _reason_left_out(tier: Tier, files: _Sorted, closed: datetime, view: View) -> str:
    """Return the reason why a period is left out now; empty if it is taken."""
    if closed > view.now:
        return f"closes at {_moment(closed)}"
    if len(files.taken) < FEWEST_FILES_PER_JOB:
        return f"{files.new} of {FEWEST_FILES_PER_JOB if view.force else tier.min_files} files"
    if view.force:
        return ""
    due = _later(closed, tier.min_age_seconds)
    if due > view.now:
        return f"closed at {_moment(closed)}, taken from {_moment(due)} on"
    if files.new < tier.min_files and len(files.compacted) < FEWEST_FILES_PER_JOB:
        apart = f", {len(files.compacted)} compacted one apart" if files.compacted else ""
        return f"{files.new} of {tier.min_files} files{apart}"
    if not tier.quiet_seconds or _later(closed, tier.quiet_until_seconds) <= view.now:
        return ""
    newest_ms = max((file.modified_ms for file in (*files.moving, *files.fresh) if not file.tier), default=0)
    left = newest_ms + tier.quiet_seconds * 1000 - view.now_ms
    return f"the newest file is too young, taken in {left / 3_600_000:,.1f} hours if no other comes" if left > 0 else ""


def _later(moment: datetime, seconds: int) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:  # after the year 9999
        return datetime.max.replace(tzinfo=moment.tzinfo)


def _in_batches(at: _Place, files: _Sorted, *, since_ms: int) -> Iterator[JobSpec]:
    trigger = f"{files.new} files"
    if files.new < at.tier.min_files and len(files.compacted) >= FEWEST_FILES_PER_JOB:
        trigger = f"{len(files.compacted)} small files of earlier batches"
    parts = batches(files.taken, at.tier.max_files)
    for number, part in enumerate(parts, start=1):
        spec = at.candidate(part, batch=number, batches=len(parts), since_ms=since_ms, trigger=trigger)
        fewer = spec.files_after < len(part)
        yield spec if fewer else replace(spec, reason=f"{len(part)} files would not become fewer")


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


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")
