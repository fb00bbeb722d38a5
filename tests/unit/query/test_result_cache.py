"""The result cache: its memory limit counts every result."""

import pyarrow as pa

from siltstone.query.result import QueryResult
from siltstone.query.result_cache import ENTRY_BYTES, ResultCache

EMPTY = QueryResult(table=pa.table({"n": pa.array([], pa.int64())}), engine="hot", truncated=False, seconds=0.0)


def test_results_without_rows_are_evicted_too():
    cache = ResultCache(8 * ENTRY_BYTES)
    for number in range(100):
        cache.put(number, EMPTY, since=cache.generation)
    assert [number for number in range(100) if cache.get(number) is not None] == list(range(92, 100))


def test_a_cache_that_is_turned_off_keeps_no_result_without_rows():
    cache = ResultCache(0)
    cache.put("query", EMPTY, since=cache.generation)
    assert cache.get("query") is None


def test_a_result_that_is_cached_again_counts_once():
    cache = ResultCache(8 * ENTRY_BYTES)
    cache.put("first", EMPTY, since=cache.generation)
    for _ in range(100):
        cache.put("again", EMPTY, since=cache.generation)
    assert cache.get("first") is not None
