"""Undoing the commits of another program: the actions that restore a table to Siltstone's last version.

Flow of `plan_undo`:

1. find the first foreign entry after Siltstone's last commit; the version before it is the *good* version;
2. read the entries since then: which files were added, and which files of the good version were removed or replaced. A
   deletion vector replaces a file under the same path;
3. remove the added files, add the removed ones, and restore protocol and metadata.

This module writes nothing; `Table.undo_foreign` commits the plan. The removed files must still be on disk: a vacuum by the
other program may have deleted them. The entries of the other program stay in the log. The commit names the good version, and
readers of the log skip the entries between the two.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from siltstone.delta.full_replay import Replayed
from siltstone.delta.layout import entry_name, in_log
from siltstone.delta.log_reader import list_log, read_entry, readable_versions
from siltstone.delta.log_replay import live_files
from siltstone.errors import Conflict, Corruption
from siltstone.model.columns import APP_COMMITTED
from siltstone.model.files import DataFile

Action = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """The version to build on, the good version, and the actions that restore it."""

    version: int
    good: int
    actions: tuple[Action, ...]


def plan_undo(table: Path, *, now_ms: int) -> UndoPlan:
    """Plan the undo of another program's commits. Raises as `Table.undo_foreign` does."""
    try:
        newest = DeltaTable(table)
        version = newest.version()
        good = _good_version(table, newest.transaction_version(APP_COMMITTED), version)
        before = DeltaTable(table, version=good)
        files = {file.path: file for file in live_files(before)}
    except (DeltaError, FileNotFoundError) as error:
        raise Corruption(
            f"Table {table}: the commits of another program cannot be undone ({error}). Restore it from a backup."
        ) from error
    live = _live_now(table, files, good=good, version=version)
    actions = [_protocol(before), {"metaData": metadata_action(before)}]
    actions += [_remove(added, now_ms) for added in live.values() if added is not None]
    actions += [_add(table, file) for path, file in files.items() if live.get(path, {}) is not None]
    return UndoPlan(version=version, good=good, actions=tuple(actions))


def _good_version(table: Path, committed: int | None, version: int) -> int:
    """Return the version before the first foreign entry after Siltstone's last commit."""
    listing = list_log(table)
    readable = set(readable_versions(listing))
    first = (committed if committed is not None else min(listing.entries, default=0) - 1) + 1
    for number in range(first, version + 1):
        if number in listing.entries and not read_entry(table, number).is_foreign:
            continue
        if number not in listing.entries or number - 1 not in readable:
            raise Corruption(
                f"Table {table}: version {number - 1} can no longer be read. Restore the table from a backup."
            )
        return number - 1
    raise Conflict(f"Table {table} has no commits of another program; nothing was changed.")


def _live_now(table: Path, files: Iterable[str], *, good: int, version: int) -> dict[str, Action | None]:
    """Return the live paths, each with the action that added it since the good version (None: live before)."""
    live: dict[str, Action | None] = dict.fromkeys(files)
    for number in range(good + 1, version + 1):
        with open(in_log(table, entry_name(number)), "rb") as file:  # noqa: PTH123
            actions = [json.loads(line) for line in file if line.strip()]
        for action in actions:  # removes first: one commit removes and adds a file that gets a deletion vector
            if "remove" in action:
                live.pop(unquote(action["remove"]["path"]), None)
        for action in actions:
            if "add" in action:
                live[unquote(action["add"]["path"])] = action["add"]
    return live


def _remove(added: Action, now_ms: int) -> Action:
    vector = {"deletionVector": added["deletionVector"]} if added.get("deletionVector") else {}
    return {
        "remove": {
            "path": added["path"],
            "deletionTimestamp": now_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": added.get("partitionValues") or {},
            "size": added.get("size") or 0,
        }
        | vector
    }


def _add(table: Path, file: DataFile) -> Action:
    path = table / file.path
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        raise Corruption(
            f"File {path} was deleted or changed by another program. Restore it from a backup, then repair."
        )
    return {
        "add": {
            "path": quote(file.path),
            "partitionValues": dict(file.partition),
            "size": file.size_bytes,
            "modificationTime": file.modified_ms,
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.rows}),
        }
    }


def _protocol(before: DeltaTable) -> Action:
    protocol = before.protocol()
    versions = {"minReaderVersion": protocol.min_reader_version, "minWriterVersion": protocol.min_writer_version}
    reader = {"readerFeatures": list(protocol.reader_features)} if protocol.reader_features is not None else {}
    writer = {"writerFeatures": list(protocol.writer_features)} if protocol.writer_features is not None else {}
    return {"protocol": versions | reader | writer}


def metadata_action(opened: DeltaTable | Replayed) -> dict[str, Any]:
    """Return the metadata of an opened table as the action that would set it."""
    metadata = opened.metadata()
    return {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": opened.schema().to_json(),
        "partitionColumns": list(metadata.partition_columns),
        "createdTime": metadata.created_time,
        "configuration": dict(metadata.configuration),
    }
