"""Time travel: the state of a dataset after an earlier sequence, or at an earlier time.

The state after sequence s is base at a version v with watermark w(v) ≤ s, and the changes in (w(v)..s]. The two logs
decide whether it can be read:

1. the newest retained v with w(v) <= s is used. If w(v) = s, base alone is the state. That holds for every fold while
   base retains its log and its removed files (`base_retention_hours`);
2. otherwise the changes are needed: the oldest retained version c of `changes` that has s is opened. At c no prune may
   have passed w(v). A file must end exactly at s, because a squashed file represents its last sequence alone. `changes`
   is retained for a shorter time (`changes_retention_hours`);
3. every file of both must still be on disk.

So the pair (c, v) is a snapshot that a reader could have taken, cut at s. If any part is missing, the point is *not
found*, and the error lists the points that can be read. Nothing is guessed.

As of a time t: the newest sequence whose commit, like every commit before it, has a time ≤ t. The log of `changes`
gives it. For earlier times base's log does. A fold records when the first and the last of its changes were committed.
Between the last change of one fold and the first of the next, the state is that of the fold. Rows without a sequence,
from a first load, count by the time of their commit. Commits of another program, and the commits that undid them, do
not count. Clocks decide nothing else: folds do not change rows, so their own time is not used.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from siltstone.clock import epoch_ms, utc_text
from siltstone.dataset.snapshot import Snapshot, sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.log_reader import readable_entries
from siltstone.delta.table import Table, TableVersion
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import InvalidRequest, NotFound, Unavailable
from siltstone.model.as_of import Point, as_point
from siltstone.model.columns import APP_CONTENT, APP_EPOCH, APP_FOLD, APP_PRUNE, APP_SEQ, CHANGED_FROM, CHANGED_TO
from siltstone.model.files import DataFile

LOG_READ_TRIES: Final = 5
"""Tries to read a log that is cleaned meanwhile. The next listing is complete again."""
NAMED_POINTS: Final = 1000
NAMED_FOLDS: Final = 100
"""Newest sequences and folds that are checked for a message about the readable points."""
NAMED_RANGES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One retained version of a table: the latest time of it and all before it, and its app transactions.

    With `content_changed` it changed rows without a sequence. A fold has `changed_ms`, the commit times of the first
    and the last of its changes.
    """

    version: int
    at_ms: int
    transactions: Mapping[str, int]
    content_changed: bool
    changed_ms: tuple[int, int] | None = None


class _OutOfReach(Exception):  # noqa: N818
    """A part of the state is no longer retained."""


def snapshot_at(store: Store, at: object) -> Snapshot:
    """Return the snapshot of an earlier point: a sequence, or a time (see the module's header); None: the current one.

    NotFound lists what can be read, if the point never existed or is no longer retained.
    """
    if at is None:
        return store.snapshot()
    point = as_point(at)

    def read() -> Snapshot:
        past = Past(store)
        return past.at_sequence(point) if isinstance(point, int) else past.at_time(point)

    return with_log(store, read)


def with_log(store: Store, read: Callable[[], Snapshot]) -> Snapshot:
    """Call `read` again while a log is cleaned during the read."""
    for _ in range(LOG_READ_TRIES):
        with suppress(FileNotFoundError, LogChanged):
            return read()
    raise Unavailable(f"Dataset {store.name}: its log was cleaned during each attempt to read it. Try again.")


def all_there(table: Table, files: Iterable[DataFile]) -> bool:
    """True if every one of a table's files is on disk."""
    return all((table.path / file.path).exists() for file in files)


class Past:
    """The earlier states of one dataset that its logs retain. `changes` is read before `base`, as by every reader."""

    def __init__(self, store: Store) -> None:
        """Read both logs; FileNotFoundError or LogChanged: one was cleaned during the read, so read it again."""
        self._store = store
        self._now = store.snapshot()
        self._changes = _moments(store.changes, APP_SEQ, APP_PRUNE)
        self._base = _moments(store.base, APP_FOLD, APP_EPOCH)
        self._opened: dict[tuple[str, int], TableVersion] = {}

    def at_sequence(self, sequence: int) -> Snapshot:
        """Return the state after a sequence."""
        if sequence > self._now.sequence:
            raise NotFound(
                f"Dataset {self._store.name}: sequence {sequence} does not exist yet; the newest is {self._now.sequence}."
            )
        try:
            return self._state(sequence, self._base)
        except _OutOfReach as error:
            raise self.not_retained(sequence) from error

    def at_time(self, moment: datetime.datetime) -> Snapshot:
        """Return the newest state of which all commits have at most this time."""
        if moment > self._store.clock.now():
            raise InvalidRequest(f"Dataset {self._store.name}: {_point_text(moment)} is in the future.")
        limit_ms = epoch_ms(moment)
        changes = [version for version in self._changes if version.at_ms <= limit_ms]
        base = self._base_until(limit_ms)
        try:
            sequence = _number(changes[-1], APP_SEQ) if changes else self._folded_at(limit_ms)
            return self._state(sequence, base)
        except _OutOfReach as error:
            raise self.not_retained(moment) from error

    def _base_until(self, limit_ms: int) -> Sequence[Moment]:
        """Return base's versions before the first that changed rows without a sequence after the limit.

        The changes of the oldest retained version are not known, so it counts as such a version.
        """
        for number, version in enumerate(self._base):
            if version.at_ms > limit_ms and (version.content_changed or not number):
                return self._base[:number]
        return self._base

    def _folded_at(self, limit_ms: int) -> int:
        """Return the sequence at a time that only base's log covers.

        It is out of reach if a change may have been committed between the fold before it and that time.
        """
        folds = [version for version, _ in self._steps()]
        untils = [version.changed_ms[0] if version.changed_ms else None for version in folds[1:]]
        candidates = [
            (_number(fold, APP_FOLD), until)
            for (fold, since), until in zip(self._steps(), [*untils, self._next_change_ms(folds[-1])], strict=True)
            if since is not None and since <= limit_ms
        ]
        if not candidates or candidates[-1][1] is None or candidates[-1][1] <= limit_ms:
            raise _OutOfReach
        return candidates[-1][0]

    def _steps(self) -> Iterator[tuple[Moment, int | None]]:
        """Yield the first version of each watermark, with the latest time of its changes; None if that is not known."""
        latest_ms, before = 0, -1
        for version in self._base:
            if (watermark := _number(version, APP_FOLD)) == before:
                continue
            before = watermark
            latest_ms = max(latest_ms, *(version.changed_ms or (0,)))
            yield version, latest_ms if version.changed_ms or not version.version else None

    def _next_change_ms(self, fold: Moment) -> int | None:
        """Return the time of the first change after the newest fold; `changes` begins after the requested time."""
        watermark, oldest = _number(fold, APP_FOLD), self._changes[0]
        if _number(oldest, APP_SEQ) <= watermark:
            return oldest.at_ms
        files = self._open(self._store.changes, oldest.version).files
        return min((file.modified_ms for file in files if sequence_of(file) == watermark + 1), default=None)

    def _state(self, sequence: int, versions: Sequence[Moment]) -> Snapshot:
        """Build the state after a sequence, from one of these versions of base."""
        fitting = [version for version in versions if _number(version, APP_FOLD) <= sequence]
        if not fitting:
            raise _OutOfReach
        base = self._open(self._store.base, fitting[-1].version, APP_FOLD, APP_EPOCH)
        watermark = base.transactions.get(APP_FOLD, 0)
        changes = self._changes_until(sequence, above=watermark)
        if not all_there(self._store.base, base.files) or not all_there(self._store.changes, changes.files):
            raise _OutOfReach
        return Snapshot(changes=changes, base=base, watermark=watermark, past=True)

    def _changes_until(self, sequence: int, *, above: int) -> TableVersion:
        """Return `changes` with exactly the files of (above..sequence]."""
        if sequence == above:
            return replace(self._now.changes, files=(), transactions={APP_SEQ: sequence})
        oldest = next((moment for moment in self._changes if _number(moment, APP_SEQ) >= sequence), None)
        if oldest is None or _number(oldest, APP_PRUNE) > above:
            raise _OutOfReach
        pinned = self._open(self._store.changes, oldest.version)
        files = tuple(file for file in pinned.files if above < sequence_of(file) <= sequence)
        if sequence not in {sequence_of(file) for file in files}:
            raise _OutOfReach  # it is inside a squashed file
        return replace(pinned, files=files, transactions={APP_SEQ: sequence})

    def _open(self, table: Table, version: int, *apps: str) -> TableVersion:
        key = (table.path.name, version)
        if key not in self._opened:
            self._opened[key] = table.at(version, *apps)
        return self._opened[key]

    def not_retained(self, point: Point) -> NotFound:
        """Return the error that lists what can be read instead."""
        name, times = self._store.name, ""
        if not isinstance(point, int):
            oldest, limit_ms = (self._changes[0], self._base[0]), epoch_ms(point)
            if any(version.version == 0 and version.at_ms > limit_ms for version in oldest):
                return NotFound(f"Dataset {name} did not exist yet at {_point_text(point)}.")
            first_ms = max(version.at_ms for version in oldest)
            first_time = datetime.datetime.fromtimestamp(first_ms / 1000, datetime.UTC)
            times = f", times from {_point_text(first_time)} on"
        first = max(0, self._now.sequence - NAMED_POINTS)
        folds = sorted({_number(version, APP_FOLD) for version in self._base})[-NAMED_FOLDS:]
        newest = sorted({*folds, *range(first, self._now.sequence + 1)})
        readable = [sequence for sequence in newest if self._is_readable(sequence)]
        return NotFound(
            f"Dataset {name}: the state at {_point_text(point)} is no longer retained. What can be read: sequence "
            f"{_ranges(readable)}{times}. `silt history {name}` shows when these were written."
        )

    def _is_readable(self, sequence: int) -> bool:
        try:
            self._state(sequence, self._base)
        except _OutOfReach:
            return False
        return True


def _moments(table: Table, *apps: str) -> Sequence[Moment]:
    entries = readable_entries(table.path)
    if not entries:
        raise LogChanged(f"{table.path} has no entries that can be read")
    transactions, at_ms = dict(table.at(entries[0].version, *apps).transactions), 0
    moments = []
    for entry in entries:
        if entry.is_foreign:  # undone since, or the dataset would be rejected: it was never a state of this dataset
            continue
        transactions |= {app: number for app, number in entry.transactions.items() if app in apps}
        at_ms = max(at_ms, entry.at_ms)
        changed = [str(entry.info.get(name, "")) for name in (CHANGED_FROM, CHANGED_TO)]
        moment = Moment(
            version=entry.version,
            at_ms=at_ms,
            transactions=dict(transactions),
            content_changed=APP_CONTENT in entry.transactions,
            changed_ms=(int(changed[0]), int(changed[1])) if all(text.isdigit() for text in changed) else None,
        )
        moments.append(moment)
    return moments


def _number(moment: Moment, app: str) -> int:
    return moment.transactions.get(app, 0)


def _point_text(point: Point) -> str:
    return f"sequence {point}" if isinstance(point, int) else utc_text(point, timespec="auto")


def _ranges(numbers: Sequence[int]) -> str:
    """Return whole numbers in order as readable ranges.

    >>> _ranges([0, 3, 4, 5, 9])
    '0, 3 to 5, 9'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in ranges]
    named = texts if len(texts) <= NAMED_RANGES else [texts[0], "...", *texts[-NAMED_RANGES:]]
    return ", ".join(named) or "none"
