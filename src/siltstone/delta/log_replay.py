"""A table's newest version, replayed from its log: the version that was opened, and the entries after it.

On each refresh, delta-rs lists the log and replays everything since the last checkpoint. A log entry states in a few lines what
has changed. So this module reads each entry once and applies it to the known state: files added and removed, transactions set.
Some entries cannot be applied this way: new metadata, a new protocol, any commit of another program. They make the state
useless; the table is then opened and checked again.

Terms. The *opened* version is the one that delta-rs or, for a small log, `full_replay` read. The *followed* version is the
newest whose entry was applied to it.
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


class LogChanged(Exception):  # noqa: N818
    """The log was cleaned or changed while it was read: delta-rs reads transactions lazily. Refresh and read again."""


class ReplayedTable:
    """One table at its followed version. Not safe to share between threads; the owner guards it with a mutex."""

    def __init__(self, path: Path, opened: DeltaTable | Replayed, *, opened_seconds: float) -> None:
        """Start at the opened version. `opened_seconds` is the monotonic time of the open."""
        self.opened = opened
        self.opened_seconds = opened_seconds
        self.protocol = opened.protocol()
        self.version = opened.version()
        self.schema: pa.Schema = from_struct_json(json.loads(opened.schema().to_json()))
        """The columns, which are the same for every version since the opened one."""
        self._path = path
        self._mark = file_mark(in_log(path, entry_name(self.version)))
        self._transactions: dict[str, int | None] = {}
        self._files: dict[str, DataFile] | None = None
        self._pending: list[LogEntry] = []
        self._listed: tuple[DataFile, ...] | None = None

    def is_in_place(self) -> bool:
        """True while the followed version's entry is the one that was read: not cleaned, and not of another table."""
        return bool(self._mark) and file_mark(in_log(self._path, entry_name(self.version))) == self._mark

    def follow(self) -> None:
        """Read every entry above the followed version.

        Entries are cleaned oldest first. So if the entry that was read last is still in place, the first missing entry
        does not exist yet.

        Raises:
            LogChanged: an entry cannot be applied, or was cleaned meanwhile. Open the table again.
            Corruption: an entry is empty or damaged.
        """
        while True:
            try:
                entry = read_entry(self._path, self.version + 1)
            except (FileNotFoundError, NotADirectoryError):
                break
            if entry.is_foreign or entry.changes_table:
                raise LogChanged(f"version {entry.version} changes the table itself")
            self._transactions.update(entry.transactions)
            self._transactions.update(dict.fromkeys(entry.forgotten))
            self._pending.append(entry)
            self._listed = None
            self.version, self._mark = entry.version, entry.mark
        if not self.is_in_place():
            raise LogChanged(f"version {self.version} is gone")

    def files(self) -> tuple[DataFile, ...]:
        """Return the live files of the followed version."""
        if self._listed is None:
            if self._files is None:
                if isinstance(self.opened, Replayed):
                    files = dict(self.opened.files)
                else:
                    with late_reads():
                        files = {file.path: file for file in live_files(self.opened)}
                check_links(self._path, files)
                self._files = files
            check_links(self._path, {path for entry in self._pending for path in entry.adds})
            for entry in self._pending:
                entry.apply_to(self._files)
            self._pending.clear()
            self._listed = tuple(self._files.values())
        return self._listed

    def transaction(self, app: str) -> int | None:
        """Return an app transaction of the followed version. LogChanged if it is in entries that were cleaned meanwhile."""
        if app not in self._transactions:
            with late_reads():
                self._transactions[app] = self.opened.transaction_version(app)
        return self._transactions[app]


@contextlib.contextmanager
def late_reads() -> Iterator[None]:
    """Read the log behind an open handle. Entries that were cleaned meanwhile raise LogChanged."""
    try:
        yield
    except DeltaError as error:
        raise LogChanged(str(error)) from error


def live_files(handle: DeltaTable) -> tuple[DataFile, ...]:
    """Return the live files of the version that delta-rs opened. Refuse a path that is not below the table."""
    try:
        actions = pa.table(handle.get_add_actions(flatten=True))
        partitions = [name for name in actions.column_names if name.startswith("partition.")]
        columns: dict[str, list[Any]] = {
            name: actions.column(name).to_pylist()
            for name in ("path", "size_bytes", "num_records", "modification_time", *partitions)
        }
    except (UnicodeDecodeError, pa.ArrowException) as error:
        raise Corruption(
            f"The log of {handle.table_uri} is damaged ({error}). Restore it from a copy.", reason=Reason.DAMAGED_FILE
        ) from error
    return tuple(
        DataFile(
            path=checked(unquote(path)),
            size_bytes=columns["size_bytes"][row],
            rows=columns["num_records"][row] or 0,
            partition={name.removeprefix("partition."): _text(columns[name][row]) for name in partitions},
            modified_ms=columns["modification_time"][row] or 0,
        )
        for row, path in enumerate(columns["path"])
    )


def _text(value: Any) -> str | None:  # noqa: ANN401
    """Return a partition value in the text form of a log entry."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
