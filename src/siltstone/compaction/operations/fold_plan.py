"""The plan of a fold as data: the files to rewrite, and the exact row counts to expect. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from siltstone.errors import Corruption
from siltstone.model.files import DataFile, KeyRange

SMALL_FILE_SHARE: Final = 8
"""A base file below this fraction of the target size is small."""
MANY_SMALL_FILES: Final = 8
"""Number of small files at which a fold that adds rows also rewrites them, so that their number stays bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Number of rows of one base file whose key is replaced or dropped."""

    replaced: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """A fold as data: exact files in, exact row counts out."""

    base_version: int
    watermark: int
    target: int
    epoch: int
    base_rows: int
    base_bytes: int
    touched: tuple[DataFile, ...] = ()
    batches: int = 0
    change_rows: int = 0
    upserts: int = 0
    tombstones: int = 0
    replaced: int = 0
    dropped: int = 0
    changed_ms: tuple[int, int] | None = None
    change_files: int = 0
    change_bytes: int = 0
    job: str = ""
    """Id of the job, if a cycle runs this fold."""

    @property
    def new_rows(self) -> int:
        """Upserts of keys that base does not have."""
        return self.upserts - self.replaced

    @property
    def expected_rows(self) -> int:
        """Number of rows that the written files must hold."""
        return sum(file.rows for file in self.touched) - self.dropped + self.new_rows

    @property
    def final_rows(self) -> int:
        """Number of rows in base after the fold."""
        return self.base_rows - self.dropped + self.new_rows


def by_file_name(files: Sequence[DataFile], *, dataset: str) -> dict[str, DataFile]:
    """Return files by the last parts of their paths, which must differ: Spark reports no more of a row's file."""
    names = {file.path.rsplit("/", 1)[-1]: file for file in files}
    if len(names) != len(files):
        raise Corruption(
            f"Dataset {dataset}: two base files have the same name; nothing was changed. Restore it from a backup."
        )
    return names


def touched_files(
    files: Iterable[DataFile], matched: Mapping[str, Matched], *, new_rows: int, target_bytes: int
) -> tuple[DataFile, ...]:
    """Return the files to rewrite: those with matched rows, and small files if rows are added and there are many.

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
    """Return the groups of files to rewrite together: small neighbours in key order; every other file alone.

    >>> sizes = {"a": 90, "b": 5, "c": 6, "d": 80}
    >>> files = [DataFile(path=path, size_bytes=size, rows=1) for path, size in sizes.items()]
    >>> ranges = {path: KeyRange(path, path) for path in sizes}
    >>> [[file.path for file in group] for group in grouped(files, ranges, target_bytes=100)]
    [['a'], ['b', 'c'], ['d']]
    """
    with_range = sorted((file for file in files if ranges[file.path].known), key=lambda file: ranges[file.path].low)
    unknown = [file for file in files if not ranges[file.path].known]
    groups: list[tuple[DataFile, ...]] = []
    room = 0
    for file in [*with_range, *unknown]:
        small = file.size_bytes * SMALL_FILE_SHARE < target_bytes
        if small and file.size_bytes <= room:
            groups[-1] = (*groups[-1], file)
            room -= file.size_bytes
        else:
            groups.append((file,))
            room = target_bytes // 2 - file.size_bytes if small else 0
    return groups
