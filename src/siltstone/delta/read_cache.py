"""LRU cache of parts of immutable files, by path and bounded by bytes.

A *folder* is the unit of invalidation: one incarnation of a dataset. A *visit* is one reader at one state of a folder.
A visit with a newer state than all before it evicts cached parts of files that are no longer live. So rows that a purge
or a fold removed, in this process or another one, do not stay in memory.

Invariant: the cache holds no part of a file that was not live in the newest visited state. It holds nothing that was
read before the last `forget`. A visit of an older state, or one that began before a `forget`, still reads, but caches
nothing.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ENTRY_BYTES: Final = 200
"""Overhead of one cache entry, in bytes."""

_Key = tuple[Path, str, Hashable]
CacheState = tuple[int, ...]


class ReadCache:
    """The read cache of one lake. Safe to share between threads."""

    def __init__(self, limit_bytes: int) -> None:
        """Start empty. A limit of 0 bytes disables caching."""
        self.limit_bytes = limit_bytes
        self._mutex = threading.Lock()
        self._entries: OrderedDict[_Key, tuple[Any, int]] = OrderedDict()
        self._of_folder: dict[Path, set[_Key]] = {}
        self._state: dict[Path, CacheState] = {}
        self.generation = 0
        """Number of `forget` calls. A reader reads it before its snapshot."""
        self.size_bytes = 0
        """Size of the cached parts."""

    def visit(self, folder: Path, *, state: CacheState, live: Collection[str], since: int) -> "CacheReader":
        """Begin to read a folder at a state with these live files.

        Args:
            folder: the folder to which the paths are relative, the unit of invalidation.
            state: a value that grows whenever the live files change.
            live: the paths of the files that are live in this state.
            since: `generation` before the state was read.
        """
        with self._mutex:
            if since == self.generation and state > self._state.get(folder, ()):
                names = set(live)
                for key in [key for key in self._of_folder.get(folder, ()) if key[1] not in names]:
                    self._drop(key)
                self._state[folder] = state
        return CacheReader(self, folder, state, since)

    def forget(self, folder: Path) -> None:
        """Evict everything of a folder, because rows that a purge deletes from disk must not stay in memory."""
        with self._mutex:
            self.generation += 1
            for key in list(self._of_folder.get(folder, ())):
                self._drop(key)
            self._state.pop(folder, None)

    def has(self, key: _Key) -> bool:
        """True if a part is cached. This does not count as use."""
        return key in self._entries

    def find(self, key: _Key) -> Any:  # noqa: ANN401
        """Return a cached part, or None."""
        with self._mutex:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: _Key, value: object, size_bytes: int, *, visit: "CacheReader") -> None:
        """Cache a part, unless the visit is outdated or the part is too large. Evicts the least recently used parts."""
        size = size_bytes + ENTRY_BYTES
        with self._mutex:
            if visit.since != self.generation or self._state.get(key[0]) != visit.state or size > self.limit_bytes:
                return
            self._drop(key)
            self._entries[key] = (value, size)
            self._of_folder.setdefault(key[0], set()).add(key)
            self.size_bytes += size
            while self.size_bytes > self.limit_bytes:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: _Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self.size_bytes -= entry[1]
        keys = self._of_folder[key[0]]
        keys.discard(key)
        if not keys:
            del self._of_folder[key[0]]


@dataclass(frozen=True, slots=True, eq=False)
class CacheReader:
    """One reader at one state of a folder."""

    reads: ReadCache
    folder: Path
    state: CacheState
    since: int

    def has(self, path: str, part: Hashable) -> bool:
        """True if a part of a file is cached."""
        return self.reads.has((self.folder, path, part))

    def find(self, path: str, part: Hashable) -> Any:  # noqa: ANN401
        """Return a cached part of a file, or None."""
        return self.reads.find((self.folder, path, part))

    def put(self, path: str, part: Hashable, value: object, size_bytes: int) -> None:
        """Cache a part of a file."""
        self.reads.put((self.folder, path, part), value, size_bytes, visit=self)
