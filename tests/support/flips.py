"""Damage to files: bits that are flipped one at a time and put back."""

from collections.abc import Callable, Iterator
from pathlib import Path

from siltstone import Dataset
from siltstone.errors import Corruption
from tests.support.internals import store_of


def live_files(dataset: Dataset) -> list[Path]:
    """Return the files of base, then the unfolded change files."""
    store = store_of(dataset)
    snapshot = store.snapshot()
    base = [store.base.path / file.path for file in snapshot.base.files]
    return base + [store.changes.path / file.path for file in snapshot.unfolded]


def footer_at(content: bytes | bytearray) -> int:
    """Return where the footer of a Parquet file starts."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def is_named_or_harmless(read: Callable[[], object], truth: object, damaged: Path) -> bool:
    """Read while a file is damaged; return whether Corruption named the file. Wrong rows fail the test."""
    failure = ""
    try:
        assert read() == truth
    except Corruption as error:
        failure = str(error)
    assert not failure or damaged.name in failure, failure
    return bool(failure)


def flipped(path: Path, *, step: int, start: int = 0) -> Iterator[int]:
    """Flip one bit at regular distances, and restore the file; yield the positions.

    The flipped bit is a different one of the eight each time.
    """
    content = path.read_bytes()
    try:
        for turn, at in enumerate(range(start, len(content), step)):
            damaged = bytearray(content)
            damaged[at] ^= 1 << turn % 8
            path.write_bytes(damaged)
            yield at
    finally:
        path.write_bytes(content)
