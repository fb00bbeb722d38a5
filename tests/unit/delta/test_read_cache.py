"""The read cache of lookups: bounded, of live files alone, and cleared on request."""

from pathlib import Path

from siltstone.delta.read_cache import ENTRY_BYTES, CacheReader, ReadCache

FOLDER = Path("/lake/a")
OTHER = Path("/lake/b")
ROOM = 10 * (100 + ENTRY_BYTES)


def visit(reads: ReadCache, *live: str, state: int = 1, folder: Path = FOLDER) -> CacheReader:
    return reads.visit(folder, state=(state,), live=live, since=reads.generation)


def test_the_least_recently_used_part_is_evicted_first():
    reads = ReadCache(ROOM)
    one = visit(reads, *map(str, range(12)))
    for number in range(10):
        one.put(str(number), "x", number, 100)
    assert one.find("0", "x") == 0
    one.put("10", "x", 10, 100)
    assert one.find("0", "x") == 0
    assert one.find("1", "x") is None
    assert reads.size_bytes == ROOM


def test_a_part_that_is_too_large_is_not_cached_and_evicts_nothing():
    reads = ReadCache(ROOM)
    one = visit(reads, "a", "b")
    one.put("a", "x", 1, 100)
    one.put("b", "x", 2, ROOM)
    assert (one.find("a", "x"), one.find("b", "x")) == (1, None)


def test_without_room_nothing_is_cached():
    reads = ReadCache(0)
    one = visit(reads, "a")
    one.put("a", "x", 1, 0)
    assert (one.find("a", "x"), reads.size_bytes) == (None, 0)


def test_a_second_put_replaces_the_first():
    reads = ReadCache(ROOM)
    one = visit(reads, "a")
    one.put("a", "x", 1, 100)
    one.put("a", "x", 2, 50)
    assert (one.find("a", "x"), reads.size_bytes) == (2, 50 + ENTRY_BYTES)


def test_a_newer_state_drops_removed_files_and_leaves_other_folders():
    reads = ReadCache(ROOM)
    visit(reads, "a", folder=OTHER).put("a", "x", 0, 1)
    old = visit(reads, "a", "b")
    old.put("a", "x", 1, 1)
    old.put("b", "x", 2, 1)
    new = visit(reads, "b", state=2)
    assert (new.find("a", "x"), new.find("b", "x")) == (None, 2)
    assert visit(reads, "a", folder=OTHER).find("a", "x") == 0


def test_a_reader_of_an_older_state_keeps_nothing_more():
    reads = ReadCache(ROOM)
    old = visit(reads, "a", "b")
    visit(reads, "b", state=2)
    old.put("a", "x", 1, 1)
    late = visit(reads, "a", "b")
    late.put("a", "x", 1, 1)
    assert late.find("a", "x") is None


def test_forgetting_a_folder_drops_its_parts_and_those_of_running_reads():
    reads = ReadCache(ROOM)
    elsewhere = visit(reads, "a", folder=OTHER)
    elsewhere.put("a", "x", 0, 1)
    running = visit(reads, "a")
    running.put("a", "x", 1, 1)
    before = reads.generation
    reads.forget(FOLDER)
    running.put("a", "x", 1, 1)
    late = reads.visit(FOLDER, state=(9,), live=["a"], since=before)
    late.put("a", "x", 1, 1)
    assert late.find("a", "x") is None
    assert elsewhere.find("a", "x") == 0
    assert reads.size_bytes == 1 + ENTRY_BYTES
    fresh = visit(reads, "a")
    fresh.put("a", "x", 1, 1)
    assert fresh.find("a", "x") == 1
