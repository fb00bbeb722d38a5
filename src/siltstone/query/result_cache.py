"""Answers that are kept: by what was asked of which state of the data, and by the id of the query, for its pages.

A key holds the state of every dataset (incarnation, sequence, content version, columns), so an answer of another state is never
found: nothing has to be thrown away when data changes. What is not asked for again goes by age when the bytes run out.

What a purge takes from disk must not stay here: everything is forgotten then, and a query that began before keeps nothing. The
purge of another process is seen by the epoch of a dataset. That rises with the first fold or roll-up under a new lease, too, so
a compactor that was started anew costs the kept answers once.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from typing import Final

from siltstone.errors import InvalidRequest, NotFound
from siltstone.query.result import QueryResult

KEPT_PAGES: Final = 50
"""So many of the last results can be read page by page."""
KEPT_PAGES_BYTES: Final = 512 * 1024 * 1024
"""They take no more than this together, unless the last one alone does."""
MAX_PAGE_ROWS: Final = 10_000
LARGEST_SHARE: Final = 4
"""One answer takes at most this part of the room, or it is not kept for a repeat: it would drive all others out."""


class ResultCache:
    """Answers in memory, least recently used first to go. Safe to share between threads."""

    def __init__(self, budget_bytes: int) -> None:
        """Keep no more than so many bytes for repeats; 0 keeps none."""
        self._budget = budget_bytes
        self._bytes = 0
        self._answers: OrderedDict[Hashable, QueryResult] = OrderedDict()
        self._pages: OrderedDict[str, tuple[QueryResult, tuple[str, ...]]] = OrderedDict()
        self._page_bytes = 0
        self._forgets = 0
        self._seen: dict[str, Hashable] = {}
        self._mutex = threading.Lock()

    @property
    def forgets(self) -> int:
        """How often everything was forgotten; a query takes note of it before it looks at any data."""
        return self._forgets

    def find(self, key: Hashable) -> QueryResult | None:
        """Return the answer to the same question on the same data."""
        with self._mutex:
            found = self._answers.get(key)
            if found is not None:
                self._answers.move_to_end(key)
            return found

    def keep(self, key: Hashable, result: QueryResult, *, since: int) -> None:
        """Keep an answer for a repeat, if it is not too large and nothing was forgotten since its query began."""
        size = result.table.nbytes
        if size * LARGEST_SHARE > self._budget:
            return
        with self._mutex:
            if since != self._forgets:
                return
            old = self._answers.pop(key, None)
            self._bytes += size - (old.table.nbytes if old is not None else 0)
            self._answers[key] = result
            while self._bytes > self._budget:
                _, gone = self._answers.popitem(last=False)
                self._bytes -= gone.table.nbytes

    def keep_pages(self, result: QueryResult, names: tuple[str, ...], *, since: int) -> None:
        """Keep an answer over these datasets by the id of its query, unless something was forgotten; the oldest one goes."""
        with self._mutex:
            if since != self._forgets:
                return
            old = self._pages.pop(result.query_id, None)
            self._pages[result.query_id] = (result, names)
            self._page_bytes += result.table.nbytes - (old[0].table.nbytes if old is not None else 0)
            while len(self._pages) > KEPT_PAGES or (self._page_bytes > KEPT_PAGES_BYTES and len(self._pages) > 1):
                _, (gone, _) = self._pages.popitem(last=False)
                self._page_bytes -= gone.table.nbytes

    def page(self, query_id: str, number: int, *, size: int) -> QueryResult:
        """Return one page of an answer, counted from 1; one after the last page has no rows.

        Raises:
            InvalidRequest: there is no such page or size.
            NotFound: the answer is not kept, or not any more.
        """
        if not (_is_count(number) and _is_count(size) and size <= MAX_PAGE_ROWS):
            raise InvalidRequest(
                f"Pages count from 1 and have 1 to {MAX_PAGE_ROWS:,} rows, not page {number!r} of {size!r}."
            )
        with self._mutex:
            found = self._pages.get(query_id)
        if found is None:
            raise NotFound(f"No result {query_id!r} is kept; the last {KEPT_PAGES} are. Ask the query again.")
        result, _ = found
        start = (number - 1) * size
        more = result.truncated or result.row_count > start + size
        return replace(result, table=result.table.slice(start, size), truncated=more, limit_given=True)

    def datasets(self, query_id: str) -> tuple[str, ...]:
        """Return what an answer that is kept by page was about."""
        with self._mutex:
            return self._pages[query_id][1] if query_id in self._pages else ()

    def notice(self, name: str, purges: Hashable) -> bool:
        """Let go of everything if a dataset may have been purged or dropped since the last look, by whomever; return whether."""
        changed = self._seen.get(name, purges) != purges
        if changed:
            self.forget()
        self._seen[name] = purges
        return changed

    def forget(self) -> None:
        """Let go of everything."""
        with self._mutex:
            self._forgets += 1
            self._answers.clear()
            self._pages.clear()
            self._bytes = self._page_bytes = 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1
