"""Reading Delta log entries ourselves: the commit path's own eyes.

delta-rs opens a zero-length entry without an error and does not look for conflicts that matter to us, so each entry
since a plan is read here, line by line. Terms: an *entry* is one ``<version>.json``; an entry is *cleaned* if it is
gone but a checkpoint at or after its version exists, and *missing* otherwise.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from siltstone.errors import Corruption
from siltstone.model.columns import COMMIT_ID, COMMIT_KIND
from siltstone.model.files import CommitKind, DataFile
from siltstone.storage.layout import LOG, entry_name, in_log

LAST_CHECKPOINT: Final = "_last_checkpoint"
NS_PER_MS: Final = 1_000_000
_ENTRY: Final = re.compile(r"(\d{20})\.json\Z")
_DRAFT: Final = re.compile(r"(\d{20})\..+#\d+\Z")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\b.*\.parquet\Z")

Mark = tuple[int, ...]
"""What tells one state of a file from another: its size, time and inode; empty if it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """What one commit did, as far as a later commit has to know.

    `files` are the added ones; `removes` says of each removed one when that was, in milliseconds; `updated_ms` has the times of
    those transactions that carry one.
    """

    version: int
    files: tuple[DataFile, ...]
    adds: frozenset[str]
    removes: Mapping[str, int]
    transactions: Mapping[str, int]
    updated_ms: Mapping[str, int]
    changes_metadata: bool
    changes_protocol: bool
    commit_id: str | None
    info: Mapping[str, Any]
    mark: Mark = ()
    removed_bytes: int = 0

    @property
    def moves_rows_only(self) -> bool:
        """True if the table says the same before and after."""
        kind = self.info.get(COMMIT_KIND)
        return kind in {one.value for one in CommitKind if one.moves_rows_only}

    @property
    def at_ms(self) -> int:
        """When it was written, by its writer's clock; where the writer did not say, by the file's time."""
        told = self.info.get("timestamp")
        return told if isinstance(told, int) else self.mark[1] // NS_PER_MS if self.mark else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogListing:
    """The names in ``_delta_log``, by what they are."""

    entries: tuple[int, ...]
    checkpoints: Mapping[int, tuple[str, ...]]
    drafts: tuple[str, ...] = ()

    @property
    def newest_checkpoint(self) -> int:
        """The version of the newest checkpoint, -1 if there is none."""
        return max(self.checkpoints, default=-1)


def list_log(table: Path) -> LogListing:
    """List the log's entries and checkpoints. A listing that fails raises: it is never an empty listing."""
    entries: list[int] = []
    checkpoints: dict[int, list[str]] = {}
    drafts: list[str] = []
    for path in (table / LOG).iterdir():
        name = path.name
        if found := _ENTRY.match(name):
            entries.append(int(found[1]))
        elif found := _CHECKPOINT.match(name):
            checkpoints.setdefault(int(found[1]), []).append(name)
        elif _DRAFT.match(name):
            drafts.append(name)
    return LogListing(
        entries=tuple(sorted(entries)),
        checkpoints={v: tuple(sorted(names)) for v, names in checkpoints.items()},
        drafts=tuple(sorted(drafts)),
    )


def entry_version(name: str) -> int | None:
    """Return the version whose entry has this name; None if it is the name of something else."""
    found = _ENTRY.match(name)
    return int(found[1]) if found else None


def file_mark(path: str | Path) -> Mark:
    """Return what tells one state of a file from another; empty if it is not there."""
    try:
        return _mark(os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        return ()


def _mark(found: os.stat_result) -> Mark:
    return (found.st_size, found.st_mtime_ns, found.st_ino)


def read_entry(table: Path, version: int) -> LogEntry:
    """Read one entry.

    Raises:
        FileNotFoundError: it is not there (cleaned, missing, or not yet written).
        Corruption: it is empty or cannot be parsed.
    """
    path = in_log(table, entry_name(version))
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        mark = _mark(os.fstat(file.fileno()))
        content = file.readall()
    return parse_entry(content, version, where=path, mark=mark)


def parse_entry(content: bytes, version: int, *, where: str, mark: Mark = ()) -> LogEntry:
    """Read the content of an entry.

    Raises:
        Corruption: it is empty or cannot be parsed.
    """
    try:
        actions: list[dict[str, Any]] = [dict(json.loads(line)) for line in content.splitlines() if line.strip()]
    except (TypeError, ValueError) as error:  # not UTF-8, not JSON, or not an object
        raise Corruption(f"Log entry {where} cannot be parsed: {error}. Restore it from a copy.") from error
    if not actions:
        raise Corruption(f"Log entry {where} is empty. Restore it from a copy; nothing was written.")
    try:
        return _entry(version, actions, mark)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corruption(
            f"Log entry {where} is not what a Delta log holds: {error!r}. Restore it from a copy."
        ) from error


def _entry(version: int, actions: list[dict[str, Any]], mark: Mark) -> LogEntry:
    info: Mapping[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    files = tuple(_added(a["add"]) for a in actions if "add" in a)
    return LogEntry(
        version=version,
        files=files,
        adds=frozenset(file.path for file in files),
        removes={
            unquote(a["remove"]["path"]): int(a["remove"].get("deletionTimestamp") or 0)
            for a in actions
            if "remove" in a
        },
        transactions={a["txn"]["appId"]: int(a["txn"]["version"]) for a in actions if "txn" in a},
        updated_ms={a["txn"]["appId"]: int(a["txn"].get("lastUpdated") or 0) for a in actions if "txn" in a},
        changes_metadata=any("metaData" in a for a in actions),
        changes_protocol=any("protocol" in a for a in actions),
        commit_id=info.get(COMMIT_ID),
        info=info,
        mark=mark,
        removed_bytes=sum(int(a["remove"].get("size") or 0) for a in actions if "remove" in a),
    )


def _added(action: Mapping[str, Any]) -> DataFile:
    stats = json.loads(action.get("stats") or "{}")
    return DataFile(
        path=unquote(action["path"]),
        size_bytes=int(action.get("size") or 0),
        rows=int(stats.get("numRecords") or 0),
        partition=dict(action.get("partitionValues") or {}),
        modified_ms=int(action.get("modificationTime") or 0),
    )


def entries_between(table: Path, *, after: int, until: int) -> Iterator[LogEntry]:
    """Yield the entries of versions ``after + 1 .. until``.

    Raises:
        LookupError: one of them was cleaned, so what it did can no longer be known.
        Corruption: one of them is missing or broken.
    """
    for version in range(after + 1, until + 1):
        try:
            yield read_entry(table, version)
        except FileNotFoundError as error:
            if list_log(table).newest_checkpoint >= version:
                raise LookupError(version) from error
            raise Corruption(
                f"Log entry {entry_name(version)} of {table} is missing although version {until} exists. Restore it."
            ) from error


def readable_versions(listing: LogListing) -> tuple[int, ...]:
    """Return the versions that can still be opened, oldest first: from a checkpoint, or the first entry, on without a gap."""
    entries = set(listing.entries)
    known = sorted({*entries, *listing.checkpoints})
    found: list[int] = []
    whole = known[:1] == [0]  # before version 0 there is nothing, and that is known
    for version in range(known[0], known[-1] + 1) if known else ():
        whole = version in listing.checkpoints or (whole and version in entries)
        if whole:
            found.append(version)
    return tuple(found)


def readable_entries(table: Path) -> tuple[LogEntry, ...]:
    """Return the entries of every version that can still be opened and whose entry is there, oldest first.

    Raises:
        FileNotFoundError: the log was cleaned on the way; look again.
        Corruption: an entry is broken.
    """
    listing = list_log(table)
    entries = set(listing.entries)
    return tuple(read_entry(table, version) for version in readable_versions(listing) if version in entries)


def removals(table: Path) -> dict[str, int]:
    """Return every removed file that the log still knows, with the time of its removal in milliseconds.

    Raises:
        FileNotFoundError: the log was cleaned on the way; look again.
        Corruption: a part of the log is broken.
    """
    listing = list_log(table)
    removes = _checkpointed(table, listing, "remove")
    found = {unquote(r["path"]): int(r.get("deletionTimestamp") or 0) for r in removes if r["path"] is not None}
    for entry in _newer_entries(table, listing):
        found |= entry.removes
        for path in entry.adds:
            found.pop(path, None)
    return found


def transaction_times(table: Path, prefix: str) -> dict[str, int]:
    """Return the app transactions whose name starts so, all at once, each with its time in milliseconds.

    Raises:
        FileNotFoundError: the log was cleaned on the way; look again.
        Corruption: a part of the log is broken.
    """
    listing = list_log(table)
    known = _checkpointed(table, listing, "txn")
    found = {t["appId"]: int(t.get("lastUpdated") or 0) for t in known if t["appId"] is not None}
    for entry in _newer_entries(table, listing):
        found |= entry.updated_ms
    return {app: at_ms for app, at_ms in found.items() if app.startswith(prefix)}


def _newer_entries(table: Path, listing: LogListing) -> Iterator[LogEntry]:
    """Yield the entries above the newest checkpoint."""
    for version in listing.entries:
        if version > listing.newest_checkpoint:
            yield read_entry(table, version)


def _checkpointed(table: Path, listing: LogListing, action: str) -> list[dict[str, Any]]:
    """Return the actions of one kind in the newest checkpoint."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    for name in listing.checkpoints.get(listing.newest_checkpoint, ()):
        path = table / LOG / name
        try:
            with pq.ParquetFile(path) as file:
                if action in file.schema_arrow.names:
                    found += file.read(columns=[action]).column(action).drop_null().to_pylist()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Corruption(f"Checkpoint {path} cannot be read: {error}. Restore it from a copy.") from error
    return found


def check_entries(table: Path, *, parse: bool) -> None:
    """Refuse a log whose entries after the newest checkpoint are not all there; with `parse`, read each one.

    delta-rs takes an empty entry for an empty commit; a table opened that way would hand out a sequence twice.

    Raises:
        Corruption: an entry is empty, unreadable or missing.
    """
    listing = list_log(table)
    expected = listing.newest_checkpoint + 1
    for version in [v for v in listing.entries if v > listing.newest_checkpoint]:
        path = table / LOG / entry_name(version)
        if version != expected:
            raise Corruption(f"Log entry {entry_name(expected)} of {table} is missing. Restore it from a copy.")
        try:
            if path.stat().st_size == 0:
                raise Corruption(f"Log entry {path} is empty. Restore it from a copy; nothing was written.")
            if parse:
                read_entry(table, version)
        except FileNotFoundError:
            return
        expected += 1
