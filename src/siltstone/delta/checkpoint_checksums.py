"""Checksums of checkpoints. delta-rs writes checkpoints without any, and reads a flipped bit as another transaction or path.

Each checkpoint V has a file ``_siltstone.<V>.crc32`` with the CRC-32 of its bytes, twice. A checksum whose two halves differ is
itself damaged, and ignored. A checkpoint without a checksum was written by another program, or its writer crashed. It is read
without a check.

Writers hold `checkpoint_lock` and work in this order, so that a crash leaves no checksum that does not match:

1. delete the checksum of this version, if the same checkpoint was written before;
2. write the checkpoint;
3. write its checksum.

A reader concurrent to a writer may see the checksum of one checkpoint and the bytes of the other. It reads again until the
checksum no longer changes. A checkpoint or log that does not exist is FileNotFoundError.
"""

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from siltstone.clock import SystemClock
from siltstone.delta.layout import LOG
from siltstone.errors import Unavailable
from siltstone.host.file_lock import lock_within
from siltstone.host.fork_safety import close, own

NAME: Final = re.compile(r"_siltstone\.(\d{20})\.crc32\Z")
LOCK_SECONDS: Final = 60.0
"""Longest wait for another process that writes a checkpoint of the same table. A large one takes seconds."""
_POLL_SECONDS: Final = 0.01
_READ_TRIES: Final = 5
"""Attempts to read a checksum that changes meanwhile."""
_CHUNK_BYTES: Final = 1 << 20
_CONTENT: Final = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8})\n\Z")


def checksum_name(version: int) -> str:
    """Return the name of a checkpoint's checksum.

    >>> checksum_name(7)
    '_siltstone.00000000000000000007.crc32'
    """
    return f"_siltstone.{version:020d}.crc32"


@contextmanager
def checkpoint_lock(table: Path, *, seconds: float | None = None) -> Iterator[None]:
    """Hold the lock under which one process at a time writes checkpoints of a table. A crash releases it.

    Unavailable if another process holds it for longer than `seconds` (default: `LOCK_SECONDS`).
    """
    seconds = LOCK_SECONDS if seconds is None else seconds
    handle = own(os.open(table / LOG, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        if not lock_within(handle, seconds, clock=SystemClock(), poll_seconds=_POLL_SECONDS):
            raise Unavailable(f"{table}: another process has been writing a checkpoint for {seconds:g} s. Try again.")
        yield
    finally:
        close(handle)


def write_checksum(table: Path, version: int, names: Sequence[str]) -> Path:
    """Write the checksum of a checkpoint that consists of these files; return its path."""
    path = table / LOG / checksum_name(version)
    text = f"{_crc(table, names):08x}"
    path.write_text(f"{text} {text}\n")
    return path


def matches(table: Path, version: int, names: Sequence[str]) -> bool:
    """Return whether a checkpoint matches its checksum; True if it has no checksum."""
    for _ in range(_READ_TRIES):
        expected = _read(table, version)
        if expected is None or _crc(table, names) == expected:
            return True
        if _read(table, version) == expected:
            return False
    return True


def _read(table: Path, version: int) -> int | None:
    """Return the stored checksum; None if it is missing or itself damaged."""
    try:
        halves = _CONTENT.match((table / LOG / checksum_name(version)).read_bytes())
    except FileNotFoundError:
        return None
    return int(halves[1], 16) if halves and halves[1] == halves[2] else None


def _crc(table: Path, names: Sequence[str]) -> int:
    crc = 0
    for name in names:
        with open(table / LOG / name, "rb", buffering=0) as file:  # noqa: PTH123
            while chunk := file.read(_CHUNK_BYTES):
                crc = zlib.crc32(chunk, crc)
    return crc
