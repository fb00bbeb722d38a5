"""What was read of files that never change, kept in memory by path: bounded by bytes, least recently used goes first.

A *folder* is what is forgotten together: one incarnation of a dataset. A *visit* is one reader at one state of a folder. When
a visit brings a newer state than those before it, whatever is kept of files that are no longer live is dropped: what a purge or
a fold took away, here or in another process, does not stay in memory.

Invariant: nothing is kept of a file that was not live in the newest state that a visit has brought, and nothing that was read
before the last `forget`. A visit of an older state, or one that began before a `forget`, still reads, but keeps nothing.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ENTRY_BYTES: Final = 200
"""What keeping anything costs beside the thing itself."""

_Key = tuple[Path, str, Hashable]
State = tuple[int, ...]


class KeptReads:
    """The memory of all readers of one lake. Safe to share between threads."""

    def __init__(self, limit_bytes: int) -> None:
        """Start empty; a limit of 0 keeps nothing."""
        self.limit_bytes = limit_bytes
        self._mutex = threading.Lock()
        self._entries: OrderedDict[_Key, tuple[Any, int]] = OrderedDict()
        self._of_folder: dict[Path, set[_Key]] = {}
        self._state: dict[Path, State] = {}
        self._forgets = 0
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """How much is kept."""
        return self._size_bytes

    @property
    def forgets(self) -> int:
        """How often something was forgotten; a reader takes note of it before its snapshot."""
        return self._forgets

    def visit(self, folder: Path, *, state: State, live: Collection[str], since: int) -> "Visit":
        """Begin to read a folder at a state with these live files.

        Args:
            folder: what the paths are relative to, and what is forgotten together.
            state: grows whenever the live files change.
            live: the paths of the files that are live in this state.
            since: `forgets` before the state was taken.
        """
        with self._mutex:
            if since == self._forgets and state > self._state.get(folder, ()):
                names = set(live)
                for key in [key for key in self._of_folder.get(folder, ()) if key[1] not in names]:
                    self._drop(key)
                self._state[folder] = state
        return Visit(self, folder, state, since)

    def forget(self, folder: Path) -> None:
        """Let go of a folder: what a purge takes from disk must not stay in memory."""
        with self._mutex:
            self._forgets += 1
            for key in list(self._of_folder.get(folder, ())):
                self._drop(key)
            self._state.pop(folder, None)

    def has(self, key: _Key) -> bool:
        """True if something is kept; asking does not count as use."""
        return key in self._entries

    def find(self, key: _Key) -> Any:  # noqa: ANN401
        """Return what is kept, or None."""
        with self._mutex:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def keep(self, key: _Key, value: object, size_bytes: int, *, visit: "Visit") -> None:
        """Keep something, unless the visit is outdated or it is too large; the least recently used goes."""
        size = size_bytes + ENTRY_BYTES
        with self._mutex:
            if visit.since != self._forgets or self._state.get(key[0]) != visit.state or size > self.limit_bytes:
                return
            self._drop(key)
            self._entries[key] = (value, size)
            self._of_folder.setdefault(key[0], set()).add(key)
            self._size_bytes += size
            while self._size_bytes > self.limit_bytes:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: _Key) -> None:
        found = self._entries.pop(key, None)
        if found is None:
            return
        self._size_bytes -= found[1]
        keys = self._of_folder[key[0]]
        keys.discard(key)
        if not keys:
            del self._of_folder[key[0]]


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """One reader at one state of a folder."""

    reads: KeptReads
    folder: Path
    state: State
    since: int

    def has(self, path: str, part: Hashable) -> bool:
        """True if a part of a file is kept."""
        return self.reads.has((self.folder, path, part))

    def find(self, path: str, part: Hashable) -> Any:  # noqa: ANN401
        """Return what is kept of a part of a file, or None."""
        return self.reads.find((self.folder, path, part))

    def keep(self, path: str, part: Hashable, value: object, size_bytes: int) -> None:
        """Keep a part of a file."""
        self.reads.keep((self.folder, path, part), value, size_bytes, visit=self)
