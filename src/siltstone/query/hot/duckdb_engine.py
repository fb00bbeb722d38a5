"""DuckDB as the hot cache uses it: one process-wide in-memory database without access to files or network.

Each dataset is stored in an in-memory database of its own, attached under a generated name. A reader keeps a detached
database until its transaction ends. Then all its memory is freed at once. DuckDB's allocator returns freed memory to
the system on a thread of its own. `release_memory` makes the allocators of Arrow and of the C library do the same.
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
"""Upper bound of the default memory budget. The other bound is a quarter of the machine's memory."""
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
"""Settings that forbid files, network, extensions, access to Python variables and spilling to disk."""
_RELEASING: Final = {"allocator_background_threads": "true"}
"""DuckDB's allocator keeps freed memory.

With background threads it returns it to the system within one or two seconds.
"""


def budget_bytes(setting_mb: int) -> int:
    """Return the memory budget of residents. Default: the smaller of 16 GB and a quarter of the machine's memory."""
    return (setting_mb or min(LARGEST_BUDGET_MB, machine_memory_mb() // SHARE_OF_MEMORY)) * BYTES_PER_MB


class DuckDbEngine:
    """The database. Thread-safe: each thread uses cursors of its own."""

    def __init__(self, *, memory_bytes: int) -> None:
        """Open the database and lock its settings."""
        import duckdb

        config: dict[str, str | bool | int | float | list[str]] = {
            **_LOCKED,
            **_RELEASING,
            "memory_limit": f"{memory_bytes // BYTES_PER_MB}MiB",
        }
        self._root: DuckDBPyConnection = duckdb.connect(":memory:", config=config)
        self._root.execute("SET GLOBAL TimeZone = 'UTC'")
        self._root.execute("SET lock_configuration = true")
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()
        self._finalizer = weakref.finalize(self, _close, self._root)

    def cursor(self) -> "DuckDBPyConnection":
        """Return a new connection to the same database."""
        with self._mutex:
            return self._root.cursor()

    def attach(self) -> str:
        """Create a database for one dataset, and return its name."""
        with self._mutex:
            name = f"hot_{next(self._numbers)}"
            self._root.execute(f"ATTACH ':memory:' AS {name} (COMPRESS)")
            return name

    def detach(self, name: str) -> None:
        """Detach a database. Running readers can finish."""
        with self._mutex:
            self._root.execute(f"DETACH {name}")

    def table_bytes(self) -> int:
        """Return the memory of all resident rows, in their current compression."""
        with self._mutex:
            row = self._root.execute(
                "SELECT sum(memory_usage_bytes) FROM duckdb_memory() WHERE tag IN ('IN_MEMORY_TABLE', 'BASE_TABLE')"
            ).fetchone()
        return int(row[0]) if row and row[0] is not None else 0

    def close(self) -> None:
        """Close the database and free its memory. Running readers can finish."""
        with self._mutex:
            self._finalizer()
        release_memory()


def _close(root: "DuckDBPyConnection") -> None:
    """Close a connection, also while it is in use."""
    import duckdb

    with contextlib.suppress(duckdb.Error):
        root.close()


def release_memory() -> None:
    """Make allocators return freed memory to the system. Without `malloc_trim` in the C library, only Arrow's does."""
    pa.default_memory_pool().release_unused()
    trim = getattr(_C_LIBRARY, "malloc_trim", None)
    if trim is not None:
        trim(0)


_C_LIBRARY: Final = ctypes.CDLL(None)
