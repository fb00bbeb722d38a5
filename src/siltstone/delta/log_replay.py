"""A table's newest version as its log tells it: what was read when the table was opened, and the entries since.

delta-rs replays everything since the last checkpoint, and lists the log, each time it is brought up to date. An entry says in a
few lines what has changed, so it is read once, here, and laid over what is known: files added and removed, transactions set.
What an entry cannot say in these terms (new metadata, a new protocol, anything of another program) makes the whole useless:
the table is opened anew, and checked.

Terms. The *opened* version is the one that delta-rs or, for a small log, `full_replay` read. The *followed* one is the
newest whose entry was laid over it.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from siltstone.delta.full_replay import Replayed
from siltstone.delta.layout import entry_name, in_log
from siltstone.delta.log_reader import LogEntry, file_mark, read_entry
from siltstone.delta.path_checks import check_links, checked
from siltstone.errors import Corruption, Reason
from siltstone.model.files import DataFile
from siltstone.model.schema import from_struct_json


class LogMoved(Exception):  # noqa: N818
    """The log was cleaned or changed under a reader: delta-rs reads transactions late. Refresh and look again."""


class Followed:
    """One table at its followed version. Not safe to share between threads; whoever holds it has a mutex."""

    def __init__(self, path: Path, opened: DeltaTable | Replayed, *, opened_seconds: float) -> None:
        """Start at the version that delta-rs opened, at that time of a clock that never runs backwards."""
        self.opened = opened
        self.opened_seconds = opened_seconds
        self.protocol = opened.protocol()
        self.version = opened.version()
        self._path = path
        self._mark = file_mark(in_log(path, entry_name(self.version)))
        self._schema = from_struct_json(json.loads(opened.schema().to_json()))
        self._transactions: dict[str, int | None] = {}
        self._files: dict[str, DataFile] | None = None
        self._pending: list[LogEntry] = []
        self._listed: tuple[DataFile, ...] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema: every version since the opened one has the same."""
        return self._schema

    def is_in_place(self) -> bool:
        """True while the entry of the followed version is the one that was read: not cleaned, and of no other table."""
        return bool(self._mark) and file_mark(in_log(self._path, entry_name(self.version))) == self._mark

    def follow(self) -> None:
        """Read every entry above the followed version.

        Entries are cleaned oldest first, so if the last one that was read is still in place, the first one that was not
        found does not exist yet.

        Raises:
            LogMoved: an entry needs more than reading, or was cleaned on the way. Open the table anew.
            Corruption: an entry is empty or damaged.
        """
        while True:
            try:
                entry = read_entry(self._path, self.version + 1)
            except (FileNotFoundError, NotADirectoryError):
                break
            if entry.is_foreign or entry.changes_metadata or entry.changes_protocol:
                raise LogMoved(f"version {entry.version} changes the table itself")
            self._lay(entry)
        if not self.is_in_place():
            raise LogMoved(f"version {self.version} is gone")

    def _lay(self, entry: LogEntry) -> None:
        self._transactions.update(entry.transactions)
        self._transactions.update(dict.fromkeys(entry.forgotten))
        self._pending.append(entry)
        self._listed = None
        self.version, self._mark = entry.version, entry.mark

    def files(self) -> tuple[DataFile, ...]:
        """Return the live files of the followed version."""
        if self._listed is None:
            if self._files is None:
                with late_reads():
                    found = self.opened
                    listed = found.live_files() if isinstance(found, Replayed) else live_files(found)
                opened = {file.path: file for file in listed}
                check_links(self._path, opened)
                self._files = opened
            check_links(self._path, {path for entry in self._pending for path in entry.adds})
            for entry in self._pending:
                for path in entry.removes:
                    self._files.pop(path, None)
                self._files.update((file.path, file) for file in entry.files)
            self._pending.clear()
            self._listed = tuple(self._files.values())
        return self._listed

    def transaction(self, app: str) -> int | None:
        """Return an app transaction of the followed version.

        Raises:
            LogMoved: it has to be looked up in entries that were cleaned since. Open the table anew.
        """
        if app not in self._transactions:
            with late_reads():
                self._transactions[app] = self.opened.transaction_version(app)
        return self._transactions[app]


@contextlib.contextmanager
def late_reads() -> Iterator[None]:
    """Read the log behind an open handle; entries that are gone by now make it useless."""
    try:
        yield
    except DeltaError as error:
        raise LogMoved(str(error)) from error


def live_files(handle: DeltaTable) -> tuple[DataFile, ...]:
    """Return the live files of the version that delta-rs opened.

    Raises:
        Corruption: one of them is not below the table, or the checkpoint holds bytes that are not text.
    """
    try:
        return _listed(handle)
    except (UnicodeDecodeError, pa.ArrowException) as error:
        raise Corruption(
            f"The log of {handle.table_uri} is damaged ({error}). Restore it from a copy.", reason=Reason.DAMAGED_FILE
        ) from error


def _listed(handle: DeltaTable) -> tuple[DataFile, ...]:
    actions = pa.table(handle.get_add_actions(flatten=True))
    partitions = [name for name in actions.column_names if name.startswith("partition.")]
    columns: dict[str, list[Any]] = {
        name: actions.column(name).to_pylist()
        for name in ("path", "size_bytes", "num_records", "modification_time", *partitions)
    }
    for path in columns["path"]:
        checked(unquote(path))
    return tuple(
        DataFile(
            path=path,
            size_bytes=columns["size_bytes"][row],
            rows=columns["num_records"][row] or 0,
            partition={name[10:]: _text(columns[name][row]) for name in partitions},
            modified_ms=columns["modification_time"][row] or 0,
        )
        for row, path in enumerate(columns["path"])
    )


def _text(value: Any) -> str | None:  # noqa: ANN401
    """Return a partition value as an entry says it."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
