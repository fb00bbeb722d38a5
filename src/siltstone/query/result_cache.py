"""Cache of results: by query and state of the data, and by query id for pages.

A key contains the state of every dataset (incarnation, sequence, content version, columns). So a result of another
state is never found, and nothing has to be invalidated when data changes. The least recently used results are evicted
when the memory limit is reached.

Purged data must not stay here. A purge clears the whole cache, and queries that started before it add nothing. The
purge of another process is detected by the epoch of a dataset. The first fold or roll-up under a new lease raises the
epoch, too. So a restarted compactor clears the cache once.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from typing import Final

from siltstone.errors import InvalidRequest, NotFound
from siltstone.query.result import QueryResult

PAGED_RESULTS: Final = 50
"""Number of recent results that can be read page by page."""
PAGED_RESULTS_BYTES: Final = 512 * 1024 * 1024
"""Memory limit of all paged results; the newest is kept even if it alone is larger."""
MAX_PAGE_ROWS: Final = 10_000
ENTRY_BYTES: Final = 4_096
"""Approximate memory of a cached result beside its rows. Without it, results without rows would never be evicted."""
LARGEST_SHARE: Final = 4
"""Divisor: a result above this share of the memory limit is not cached, because it would evict all others."""


class ResultCache:
    """Results in memory, evicted in LRU order. Thread-safe."""

    def __init__(self, budget_bytes: int) -> None:
        """Set the memory limit for repeated queries; 0 disables the cache."""
        self._budget = budget_bytes
        self._bytes = 0
        self._results: OrderedDict[Hashable, QueryResult] = OrderedDict()
        self._pages: OrderedDict[str, tuple[QueryResult, tuple[str, ...]]] = OrderedDict()
        self._page_bytes = 0
        self._generation = 0
        self._purges: dict[str, Hashable] = {}
        """Last observed incarnation and epoch of each dataset."""
        self._mutex = threading.Lock()

    @property
    def generation(self) -> int:
        """Number of times that the cache was cleared. A query records it before it reads data."""
        return self._generation

    def get(self, key: Hashable | None) -> QueryResult | None:
        """Return the cached result of the same query on the same data. A result without a key is not cached."""
        with self._mutex:
            result = self._results.get(key)
            if result is not None:
                self._results.move_to_end(key)
            return result

    def put(self, key: Hashable | None, result: QueryResult, *, since: int) -> None:
        """Cache a result that has a key and is not too large, unless the cache was cleared since its query began."""
        size = result.table.nbytes + ENTRY_BYTES
        if key is None or size * LARGEST_SHARE > self._budget:
            return
        with self._mutex:
            if since != self._generation:
                return
            old = self._results.pop(key, None)
            self._bytes += size - (old.table.nbytes + ENTRY_BYTES if old is not None else 0)
            self._results[key] = result
            while self._bytes > self._budget:
                _, evicted = self._results.popitem(last=False)
                self._bytes -= evicted.table.nbytes + ENTRY_BYTES

    def put_pages(self, result: QueryResult, names: tuple[str, ...], *, since: int) -> None:
        """Store a result by its query id for pages, unless the cache was cleared since its query began.

        The oldest is evicted.
        """
        with self._mutex:
            if since != self._generation:
                return
            old = self._pages.pop(result.query_id, None)
            self._pages[result.query_id] = (result, names)
            self._page_bytes += result.table.nbytes - (old[0].table.nbytes if old is not None else 0)
            while len(self._pages) > PAGED_RESULTS or (self._page_bytes > PAGED_RESULTS_BYTES and len(self._pages) > 1):
                _, (evicted, _) = self._pages.popitem(last=False)
                self._page_bytes -= evicted.table.nbytes

    def page(self, query_id: str, number: int, *, size: int) -> QueryResult:
        """Return one page of a result, counted from 1; a page after the last one has no rows."""
        if not (_is_count(number) and _is_count(size) and size <= MAX_PAGE_ROWS):
            raise InvalidRequest(
                f"Pages count from 1 and have 1 to {MAX_PAGE_ROWS:,} rows, not page {number!r} of {size!r}."
            )
        with self._mutex:
            entry = self._pages.get(query_id)
        if entry is None:
            raise NotFound(f"No result {query_id!r} is cached; the last {PAGED_RESULTS} are. Run the query again.")
        result, _ = entry
        start = (number - 1) * size
        more = result.truncated or result.row_count > start + size
        return replace(result, table=result.table.slice(start, size), truncated=more, limit_given=True)

    def datasets(self, query_id: str) -> tuple[str, ...]:
        """Return the datasets of a paged result."""
        with self._mutex:
            return self._pages[query_id][1] if query_id in self._pages else ()

    def check_purges(self, name: str, purges: Hashable) -> bool:
        """Clear the cache if any process may have purged or dropped a dataset since the last call.

        Return whether the cache was cleared.
        """
        is_changed = self._purges.get(name, purges) != purges
        if is_changed:
            self.clear()
        self._purges[name] = purges
        return is_changed

    def clear(self) -> None:
        """Clear the cache."""
        with self._mutex:
            self._generation += 1
            self._results.clear()
            self._pages.clear()
            self._bytes = self._page_bytes = 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1
