"""DuckDB as the hot cache holds it: one process-wide database in memory that can reach nothing outside.

Each dataset lies in an in-memory database of its own, attached under a generated name: readers keep a detached one for as long as
their transaction lasts, and when it goes, it goes whole. DuckDB's allocator returns freed memory to the system by itself, from a
thread of its own; `give_back` asks the others, Arrow's and that of the C library, to do the same.
"""

import contextlib
import ctypes
import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.host.memory import machine_memory_mb
from siltstone.model.units import BYTES_PER_MB

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LARGEST_BUDGET_MB: Final = 16 * 1024
"""What is resident unless told: no more than this, and no more than a quarter of the machine."""
SHARE_OF_MEMORY: Final = 4
TABLE: Final = "rows"
_LOCKED: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
"""No file, no network, no extension, no variable of the process, no spilling to disk."""
_RETURNING: Final = {"allocator_background_threads": "true"}
"""DuckDB's allocator keeps what was freed; with threads of its own it returns it to the system within a second or two."""


def budget_bytes(setting_mb: int) -> int:
    """Return how much may be resident: what is set, or the smaller of 16 GB and a quarter of the machine's memory."""
    return (setting_mb or min(LARGEST_BUDGET_MB, machine_memory_mb() // SHARE_OF_MEMORY)) * BYTES_PER_MB


class Engine:
    """The database. Safe to share between threads: each works on cursors of its own."""

    def __init__(self, *, memory_bytes: int) -> None:
        """Open it with its last settings: nobody can change one later."""
        import duckdb

        config: dict[str, str | bool | int | float | list[str]] = {
            **_LOCKED,
            **_RETURNING,
            "memory_limit": f"{memory_bytes // BYTES_PER_MB}MiB",
        }
        self._root: DuckDBPyConnection = duckdb.connect(":memory:", config=config)
        self._root.execute("SET GLOBAL TimeZone = 'UTC'")
        self._root.execute("SET lock_configuration = true")
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()
        self._ending = weakref.finalize(self, _end, self._root)

    def cursor(self) -> "DuckDBPyConnection":
        """Return a connection of its own to the same database."""
        with self._mutex:
            return self._root.cursor()

    def attach(self) -> str:
        """Make a database for one dataset, and return its name."""
        with self._mutex:
            name = f"hot_{next(self._numbers)}"
            self._root.execute(f"ATTACH ':memory:' AS {name} (COMPRESS)")
            return name

    def detach(self, name: str) -> None:
        """Let a database go; who reads in it finishes reading."""
        with self._mutex:
            self._root.execute(f"DETACH {name}")

    def table_bytes(self) -> int:
        """Return what all resident rows take, compressed as they are."""
        with self._mutex:
            found = self._root.execute(
                "SELECT sum(memory_usage_bytes) FROM duckdb_memory() WHERE tag IN ('IN_MEMORY_TABLE', 'BASE_TABLE')"
            ).fetchone()
        return int(found[0]) if found and found[0] is not None else 0

    def close(self) -> None:
        """Let go of everything; who still reads finishes reading."""
        with self._mutex:
            self._ending()
        give_back()


def _end(root: "DuckDBPyConnection") -> None:
    """Close a connection; one that works on something goes with it."""
    import duckdb

    with contextlib.suppress(duckdb.Error):
        root.close()


def give_back() -> None:
    """Ask whoever keeps freed memory to return it to the system; where the C library cannot, nothing happens."""
    pa.default_memory_pool().release_unused()
    trim = getattr(_C_LIBRARY, "malloc_trim", None)
    if trim is not None:
        trim(0)


_C_LIBRARY: Final = ctypes.CDLL(None)
