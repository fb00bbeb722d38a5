"""Selects the small files that one rewrite merges: one rule for change files and event logs, planner and job. Pure.

Files belong to size classes. The limit of a class is 32 times that of the class below. The lowest class with enough
files is merged first. So small files are not copied together with large ones each time.

Change files are merged in the order of their sequences. A run leaves out no file in between, so it takes smaller ones
along. Events carry their own index, so files of an event log are merged in any order. A run has files of exactly one
class.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeVar

GROWTH: Final = 32
"""Ratio of the limits of two neighbouring size classes."""
FEWEST_FILES: Final = 2
"""Fewest files of a rewrite. A single file is never rewritten."""
SMALLEST_BYTES: Final = 64 * 1024
"""Limit of the lowest size class of change files."""
MAX_SQUASH_ROWS: Final = 200_000
"""Most rows of change files that one squash holds in memory."""
EVENT_CLASSES: Final = (GROWTH - 1, GROWTH**2 - 1, GROWTH**3 - 1)
"""Limits of the size classes of an event log, in events. 32 files of one become one of the next; larger files stay."""
MAX_EVENTS: Final = 2_000_000
"""Most events that one rewrite holds in memory."""


class SizedFile(Protocol):
    """A file with its size."""

    @property
    def path(self) -> str:
        """Its path below the table."""

    @property
    def size_bytes(self) -> int:
        """Its size."""

    @property
    def rows(self) -> int:
        """Its rows."""


F = TypeVar("F", bound=SizedFile)


@dataclass(frozen=True, slots=True)
class SmallRun(Generic[F]):
    """The files to merge, if they are `enough`; otherwise the longest run found."""

    files: tuple[F, ...]
    enough: bool


def small_change_files(
    files: Iterable[F],
    order: Callable[[F], int],
    *,
    many: int,
    max_bytes: int,
    busy: Collection[str] = frozenset(),
) -> SmallRun[F]:
    """Return the change files to squash: neighbours by `order`, those of one batch together.

    A file that is larger than `max_bytes`, or whose path is in `busy`, ends a run.

    >>> from siltstone.model.files import DataFile
    >>> files = [DataFile(path=str(n), size_bytes=9, rows=1, partition={"_seq": str(n)}) for n in range(1, 5)]
    >>> number = lambda file: int(file.partition["_seq"])
    >>> run = small_change_files(files, number, many=3, max_bytes=1000)
    >>> [file.path for file in run.files], run.enough
    (['1', '2', '3', '4'], True)
    >>> small_change_files(files, number, many=5, max_bytes=1000).enough
    False
    """
    ordered = sorted(files, key=lambda file: (order(file), file.path))
    batches = [tuple(batch) for _, batch in groupby(ordered, key=order)]
    best: tuple[F, ...] = ()
    for limit in _byte_classes(max_bytes):
        small = [all(file.size_bytes <= limit and file.path not in busy for file in batch) for batch in batches]
        run = _longest(batches, small, size=attrgetter("size_bytes"), max_size=max_bytes, max_rows=MAX_SQUASH_ROWS)
        if len(run) >= max(many, FEWEST_FILES):
            return SmallRun(run, enough=True)
        best = max(run, best, key=len)
    return SmallRun(best, enough=False)


def small_event_files(files: Iterable[F], day: Callable[[F], str | None], *, many: int) -> SmallRun[F]:
    """Return the files of an event log to merge; they become one file for each day."""
    ordered = sorted(files, key=attrgetter("path"))
    best: tuple[F, ...] = ()
    low = -1
    for limit in EVENT_CLASSES:
        in_class = [(file,) for file in ordered if low < file.rows <= limit]
        low = limit
        run = _longest(
            in_class, [True] * len(in_class), size=attrgetter("rows"), max_size=MAX_EVENTS, max_rows=MAX_EVENTS
        )
        if len(run) >= max(many, FEWEST_FILES) and len(run) > len({day(file) for file in run}):
            return SmallRun(run, enough=True)
        best = max(run, best, key=len)
    return SmallRun(best, enough=False)


def _byte_classes(largest: int) -> Iterable[int]:
    """Yield the limits of the classes of change files, in bytes, the lowest first.

    >>> list(_byte_classes(16 * 1024 * 1024)), list(_byte_classes(5))
    ([65536, 2097152, 16777216], [5])
    """
    limit = SMALLEST_BYTES
    while limit < largest:
        yield limit
        limit *= GROWTH
    yield largest


def _longest(
    batches: Sequence[tuple[F, ...]],
    small: Sequence[bool],
    *,
    size: Callable[[F], int],
    max_size: int,
    max_rows: int,
) -> tuple[F, ...]:
    """Return the longest run of consecutive small batches within both bounds; the first of equally long runs."""
    runs: list[list[F]] = [[]]
    run_size = run_rows = 0
    for batch, is_small in zip(batches, small, strict=True):
        batch_size, batch_rows = sum(map(size, batch)), sum(file.rows for file in batch)
        fits = is_small and batch_size <= max_size and batch_rows <= max_rows
        if not fits or run_size + batch_size > max_size or run_rows + batch_rows > max_rows:
            runs.append([])
            run_size = run_rows = 0
        if fits:
            runs[-1] += batch
            run_size, run_rows = run_size + batch_size, run_rows + batch_rows
    longest = max(runs, key=len)
    return tuple(longest)
