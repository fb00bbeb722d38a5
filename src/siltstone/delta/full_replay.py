"""A small table, replayed from its log entries from the first one on, without delta-rs.

delta-rs takes milliseconds to open a table, and again for each query of its state. A log without a checkpoint is a few
lines of JSON. So reading a lake of many small tables is twenty times faster here. Tables with a checkpoint are left to
delta-rs.

`Replayed` has the methods that `log_replay` and `table` call on a `DeltaTable` that was just opened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deltalake.table import ProtocolVersions

from siltstone.delta.layout import in_log
from siltstone.delta.log_reader import LAST_CHECKPOINT, LogEntry, file_mark, list_log, read_entry
from siltstone.model.files import DataFile

MAX_ENTRIES: Final = 64
"""Largest number of entries to replay. Checkpoints come every ten commits, so a longer log is unusual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The fields of a table's metadata action."""

    id: str
    name: str | None
    description: str | None
    partition_columns: list[str]
    created_time: int | None
    configuration: dict[str, str]


@dataclass(frozen=True, slots=True)
class Schema:
    """A table's columns in Delta's JSON form."""

    text: str

    def to_json(self) -> str:
        """Return the struct type as JSON."""
        return self.text


@dataclass(slots=True)
class Replayed:
    """A table at the version of its newest entry."""

    newest: int = -1
    files: dict[str, DataFile] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    protocol_action: Mapping[str, Any] | None = None
    metadata_action: Mapping[str, Any] | None = None

    def version(self) -> int:
        """Return the version."""
        return self.newest

    def protocol(self) -> ProtocolVersions:
        """Return the protocol."""
        action = self.protocol_action or {}
        return ProtocolVersions(
            min_reader_version=int(action["minReaderVersion"]),
            min_writer_version=int(action["minWriterVersion"]),
            reader_features=action.get("readerFeatures"),
            writer_features=action.get("writerFeatures"),
        )

    def metadata(self) -> Metadata:
        """Return the metadata."""
        action = self.metadata_action or {}
        return Metadata(
            id=str(action["id"]),
            name=action.get("name"),
            description=action.get("description"),
            partition_columns=list(action.get("partitionColumns") or ()),
            created_time=action.get("createdTime"),
            configuration=dict(action.get("configuration") or {}),
        )

    def schema(self) -> Schema:
        """Return the columns."""
        return Schema(str((self.metadata_action or {})["schemaString"]))

    def transaction_version(self, app: str) -> int | None:
        """Return an app transaction."""
        return self.transactions.get(app)

    def apply(self, entry: LogEntry) -> None:
        """Apply the next entry."""
        entry.apply_to(self.files)
        self.transactions.update(entry.transactions)
        for app in entry.forgotten:
            self.transactions.pop(app, None)
        if entry.protocol is not None:
            self.protocol_action = entry.protocol
        if entry.metadata is not None:
            self.metadata_action = entry.metadata
        self.newest = entry.version


def replay(table: Path) -> Replayed | None:
    """Replay a log without a checkpoint. None if it has one, is long, missing or partly foreign, or was cleaned meanwhile."""
    replayed = Replayed()
    try:
        listing = list_log(table)
        if listing.checkpoints or not 0 < len(listing.entries) <= MAX_ENTRIES:
            return None
        if file_mark(in_log(table, LAST_CHECKPOINT)):  # a dangling pointer: opening with delta-rs repairs it
            return None
        listing.check_complete(table)
        for version in listing.entries:
            entry = read_entry(table, version)
            if entry.is_foreign:  # opening with delta-rs finds out whether it was undone
                return None
            replayed.apply(entry)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return replayed if replayed.protocol_action and replayed.metadata_action else None
