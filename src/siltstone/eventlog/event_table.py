"""The port to the Delta table of a log, in a local folder or in an object store.

An `EventTable` has the operations of a Delta table that a log needs. It commits on a version. It returns the files that
a commit has added and the live files. It writes, reads and deletes files of events.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

import pyarrow as pa

from siltstone.eventlog.events import SCHEMA_VERSION
from siltstone.model.commit import Commit, Committed
from siltstone.model.files import Added, Live
from siltstone.model.spec import FIRST_FORMAT, PROPERTY_FORMAT

PROPERTY_VERSION: Final = "siltstone.eventlog.version"
NEW_PROPERTIES: Final = {PROPERTY_FORMAT: str(FIRST_FORMAT), PROPERTY_VERSION: str(SCHEMA_VERSION)}
"""Table properties of a new log."""


class EventTable(Protocol):
    """A Delta table that holds a log. Safe to share between threads."""

    @property
    def id(self) -> str:
        """The table's id."""

    @property
    def label(self) -> str:
        """The table's name in messages."""

    def version(self) -> int:
        """Return the newest version."""

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Change some of the table's properties."""

    def add_columns(self, columns: pa.Schema) -> None:
        """Add missing columns, and missing fields of columns, to the table."""

    def commit(self, build: Callable[[int], Commit]) -> Committed:
        """Apply one commit exactly once, durably. `build` is called for each version that is tried."""

    def added(self, version: int) -> Added:
        """Return the files with new events that a version has added, and the id of its commit.

        Raises:
            FileNotFoundError: the log cleanup has removed its entry.
        """

    def transaction(self, app: str) -> int | None:
        """Return an app transaction of the last version that was read; None if it is not known."""

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""

    def live(self) -> Live:
        """Return the newest version's files."""

    def staging(self, owner: str) -> AbstractContextManager[object]:
        """Protect the owner's staged files from the sweep inside the block."""

    def stage(self, path: str, rows: pa.Table) -> int:
        """Write a file that no log names yet; return its size in bytes.

        Raises:
            Unavailable: it cannot be written.
        """

    def read(self, path: str) -> pa.Table:
        """Read a file.

        Raises:
            OSError: it cannot be read.
        """

    def discard(self, paths: Iterable[str]) -> None:
        """Delete files that no log names."""

    def notice(self, version: int) -> None:
        """Report a commit. After some commits, a background thread writes a checkpoint, and sweeps files of crashed writers."""

    def close(self) -> None:
        """Wait for background work."""
