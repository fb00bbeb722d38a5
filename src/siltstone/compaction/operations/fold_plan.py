"""What a compaction will do, as data: which files it takes, and how many rows must come out. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from siltstone.model.files import DataFile, KeyRange

SMALL_FILE_SHARE: Final = 8
"""A base file below this fraction of the target size is small."""
SQUASH_GROWTH: Final = 32
"""Files of a size are squashed with smaller ones only; the next larger size is this many times as large."""
SMALLEST_SIZE_BYTES: Final = 64 * 1024
MANY_SMALL_FILES: Final = 8
"""A fold that adds rows takes small files along once there are this many, so that their number stays bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """How many rows of one base file have a key that is replaced or dropped."""

    replaced: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """A fold as data: exact files in, exact row counts out."""

    base_version: int
    watermark: int
    target: int
    epoch: int
    touched: tuple[DataFile, ...]
    batches: int
    change_rows: int
    upserts: int
    tombstones: int
    replaced: int
    dropped: int
    base_rows: int
    base_bytes: int
    changed_ms: tuple[int, int] | None = None
    change_files: int = 0
    change_bytes: int = 0
    job: str = ""
    """The name of the job of a cycle that this is, if it is one."""

    @property
    def new_rows(self) -> int:
        """Upserts of keys that base does not have."""
        return self.upserts - self.replaced

    @property
    def expected_rows(self) -> int:
        """How many rows the written files must hold."""
        return sum(file.rows for file in self.touched) - self.dropped + self.new_rows

    @property
    def final_rows(self) -> int:
        """How many rows base holds after the fold."""
        return self.base_rows - self.dropped + self.new_rows


def touched_files(
    files: Iterable[DataFile], matched: Mapping[str, Matched], *, new_rows: int, target_bytes: int
) -> tuple[DataFile, ...]:
    """Return the files to rewrite: those with matched rows, and small ones if rows are added and they have become many.

    >>> a, b = (DataFile(path=p, size_bytes=9, rows=1) for p in "ab")
    >>> [f.path for f in touched_files([a, b], {"b": Matched(replaced=1)}, new_rows=0, target_bytes=100)]
    ['b']
    """
    everything = sorted(files, key=lambda file: file.path)
    small = [file for file in everything if file.size_bytes * SMALL_FILE_SHARE < target_bytes]
    take_small = new_rows > 0 and len(small) >= MANY_SMALL_FILES
    return tuple(file for file in everything if file.path in matched or (take_small and file in small))


def grouped(
    files: Iterable[DataFile], ranges: Mapping[str, KeyRange], *, target_bytes: int
) -> list[tuple[DataFile, ...]]:
    """Return which files are rewritten together: small neighbours in the order of their keys; every other file alone.

    >>> sizes = {"a": 90, "b": 5, "c": 6, "d": 80}
    >>> files = [DataFile(path=path, size_bytes=size, rows=1) for path, size in sizes.items()]
    >>> ranges = {path: KeyRange(path, path) for path in sizes}
    >>> [[file.path for file in group] for group in grouped(files, ranges, target_bytes=100)]
    [['a'], ['b', 'c'], ['d']]
    """
    known = sorted((file for file in files if ranges[file.path].known), key=lambda file: ranges[file.path].low)
    unknown = [file for file in files if not ranges[file.path].known]
    groups: list[tuple[DataFile, ...]] = []
    room = 0
    for file in [*known, *unknown]:
        small = file.size_bytes * SMALL_FILE_SHARE < target_bytes
        if small and file.size_bytes <= room:
            groups[-1] = (*groups[-1], file)
            room -= file.size_bytes
        else:
            groups.append((file,))
            room = target_bytes // 2 - file.size_bytes if small else 0
    return groups


def squash_run(
    files: Iterable[DataFile],
    sequence: Callable[[DataFile], int],
    *,
    many: int,
    max_bytes: int,
    max_rows: int,
) -> tuple[DataFile, ...]:
    """Return the change files to squash: neighbours by sequence, none left out between them, of about one size.

    Small sizes come first, so that a row is copied once for each size and not each time. Files of one batch stay together.

    >>> files = [DataFile(path=str(n), size_bytes=9, rows=1, partition={"_seq": str(n)}) for n in range(1, 5)]
    >>> number = lambda file: int(file.partition["_seq"])
    >>> [f.path for f in squash_run(files, number, many=3, max_bytes=1000, max_rows=1000)]
    ['1', '2', '3', '4']
    >>> squash_run(files, number, many=5, max_bytes=1000, max_rows=1000)
    ()
    """
    ordered = sorted(files, key=lambda file: (sequence(file), file.path))
    batches = [tuple(group) for _, group in groupby(ordered, key=sequence)]
    size = SMALLEST_SIZE_BYTES
    while True:
        runs = _runs(batches, size_bytes=min(size, max_bytes), max_bytes=max_bytes, max_rows=max_rows)
        longest = max(runs, key=len, default=())
        if len(longest) >= many:
            return longest
        if size >= max_bytes:
            return ()
        size *= SQUASH_GROWTH


def _runs(
    batches: Sequence[tuple[DataFile, ...]], *, size_bytes: int, max_bytes: int, max_rows: int
) -> list[tuple[DataFile, ...]]:
    """Return the runs of neighbouring batches whose files are at most that large, each no larger than one squash may be."""
    runs: list[tuple[DataFile, ...]] = [()]
    for batch in batches:
        if any(file.size_bytes > size_bytes for file in batch):
            runs.append(())
            continue
        both = (*runs[-1], *batch)
        fits = sum(f.size_bytes for f in both) <= max_bytes and sum(f.rows for f in both) <= max_rows
        if fits:
            runs[-1] = both
        else:
            runs.append(batch if sum(f.rows for f in batch) <= max_rows else ())
    return runs
