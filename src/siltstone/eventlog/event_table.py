"""The port to the Delta table of a log: in a folder of this machine, or in an object store.

An `EventTable` is a Delta table as the log needs it: commits by the version they build on, the files that a commit has added,
the live files, and files of events to write, read and delete.
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
"""The properties of a log that is made today."""


class EventTable(Protocol):
    """A Delta table that holds a log. Safe to share between threads."""

    @property
    def id(self) -> str:
        """The table's id."""
        ...

    @property
    def label(self) -> str:
        """How it is called in messages."""
        ...

    def version(self) -> int:
        """Return the newest version."""
        ...

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""
        ...

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Change some of the table's properties."""
        ...

    def add_columns(self, wanted: pa.Schema) -> None:
        """Give the table the columns, and fields of columns, that it lacks."""
        ...

    def commit(self, build: Callable[[int], Commit]) -> Committed:
        """Land one commit exactly once, durably; `build` is called for each version it is tried on."""
        ...

    def added(self, version: int) -> Added:
        """Return the files with new events that a version has added, and the id of its commit.

        Raises:
            FileNotFoundError: its entry was cleaned.
        """
        ...

    def transaction(self, app: str) -> int | None:
        """Return an app transaction of the version that was looked at last; None also where that is not known."""
        ...

    def exists(self, path: str) -> bool:
        """Tell whether a file is there."""
        ...

    def live(self) -> Live:
        """Return the newest version's files."""
        ...

    def staging(self, owner: str) -> AbstractContextManager[object]:
        """Keep the owner's staged files from being swept while it works."""
        ...

    def stage(self, path: str, rows: pa.Table) -> int:
        """Write a file that no log names yet, and return its size.

        Raises:
            Unavailable: it cannot be written.
        """
        ...

    def read(self, path: str) -> pa.Table:
        """Read a file.

        Raises:
            OSError: it cannot be read.
        """
        ...

    def discard(self, paths: Iterable[str]) -> None:
        """Delete files that no log names."""
        ...

    def notice(self, version: int) -> None:
        """Take note of a commit; every so many, tidy the table's log and sweep what crashed writers left, in the background."""
        ...

    def close(self) -> None:
        """Wait for what is under way."""
        ...
