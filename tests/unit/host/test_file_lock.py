import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.clock import SystemClock
from siltstone.host.file_lock import is_locked, is_shared, lock, lock_within, open_locked, try_lock, unlock
from siltstone.host.fork_safety import close


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def handles(path: Path) -> Iterator[tuple[int, int]]:
    pair = (os.open(path, os.O_CREAT | os.O_RDWR), os.open(path, os.O_RDWR))
    yield pair
    for handle in pair:
        os.close(handle)


def test_an_exclusive_lock_excludes_every_other_handle(path: Path, handles: tuple[int, int]):
    first, second = handles
    lock(first)
    assert not try_lock(second)
    assert not try_lock(second, shared=True)
    assert is_locked(path)
    assert is_locked(path, shared=True)
    assert not is_shared(path)
    unlock(first)
    assert not is_locked(path)
    assert not is_shared(path)
    assert try_lock(second)


def test_shared_locks_exclude_only_exclusive_ones(path: Path, handles: tuple[int, int]):
    first, second = handles
    lock(first, shared=True)
    assert try_lock(second, shared=True)
    assert is_locked(path)
    assert is_shared(path)
    assert not is_locked(path, shared=True)


def test_a_bounded_wait_ends_without_the_lock(handles: tuple[int, int]):
    first, second = handles
    lock(first)
    assert not lock_within(second, 0.02, clock=SystemClock(), poll_seconds=0.005)
    unlock(first)
    assert lock_within(second, 0.0, clock=SystemClock(), poll_seconds=0.005)


def test_opening_a_held_lock_without_waiting_is_refused(path: Path):
    handle = open_locked(path)
    with pytest.raises(BlockingIOError):
        open_locked(path, wait=False)
    close(handle)
    close(open_locked(path, wait=False))


def test_a_missing_file_is_free_and_a_link_counts_as_locked(path: Path, tmp_path: Path):
    assert not is_locked(path)
    path.symlink_to(tmp_path / "elsewhere")
    assert is_locked(path)
