"""Reads and checks Delta log entries, independently of delta-rs.

delta-rs opens a zero-length entry without an error and does not detect the conflicts that matter to us. So each entry since a
plan is read here, line by line. Terms: an *entry* is one ``<version>.json``. An entry is *cleaned* if it was deleted but a
checkpoint at or after its version exists, and *missing* otherwise. An entry is *sealed* if it carries its own checksum, as
all entries of Siltstone do (`entry_writer`). It is *foreign* if another program changed the table with it.

Errors. A damaged or missing part of the log is Corruption. A part that this process may not read (permissions, open files) is
Unavailable. A part that was cleaned after it was listed is FileNotFoundError: list the log again.
"""

import json
import os
import re
import zlib
from bisect import bisect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from siltstone.clock import NS_PER_MS
from siltstone.delta.checkpoint_checksums import NAME as CHECKSUM_NAME
from siltstone.delta.checkpoint_checksums import matches
from siltstone.delta.layout import LOG, entry_name, in_log
from siltstone.delta.path_checks import checked
from siltstone.errors import Corruption, Reason
from siltstone.host.system_errors import read_failure
from siltstone.model.columns import APP_COMMITTED, COMMIT_CRC, COMMIT_ID, COMMIT_KIND, COMMIT_UNDONE, FORGOTTEN_MS
from siltstone.model.commit import CommitKind
from siltstone.model.files import DataFile

LAST_CHECKPOINT: Final = "_last_checkpoint"
LISTING_TRIES: Final = 3
"""Reads of a log directory while an entry is missing. A repeat helps when another process cleaned the log meanwhile."""
MISSING_LOOKED_UP: Final = 64
"""Largest number of missing entries to look up by name. Writers add few of them while a directory is read."""
_ENTRY: Final = re.compile(r"(\d{20})\.json\Z")
_DRAFT: Final = re.compile(r"(\d{20})\..+#\d+\Z")
_TEMPORARY: Final = re.compile(r"_commit_[^/]+\.json\.tmp(#\d+)?\Z")
"""Temporary files that delta-rs renames to an entry on file systems without links."""
_SEAL: Final = re.compile(rb',"' + re.escape(COMMIT_CRC.encode()) + rb'":"([0-9a-f]{8})"(?=\}\}\n)')
_PASSIVE: Final = frozenset({"commitInfo", "txn"})
"""Actions that change neither rows nor metadata. A vacuum by another program writes only these."""
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\b.*\.parquet\Z")

MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999. Other programs may write a time in another unit."""

Mark = tuple[int, ...]
"""Size, modification time and inode of a file, which identify its state. Empty if the file does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """The effect of one commit, as far as a later commit must know it.

    `files` are the added files. `removes` maps each removed file to the time of its removal in milliseconds. `forgotten` are
    transactions that are no longer set. `metadata` and `protocol` are the last actions of these kinds. `is_foreign` is set if
    another program changed the table.
    """

    version: int
    files: tuple[DataFile, ...]
    removes: Mapping[str, int]
    transactions: Mapping[str, int]
    forgotten: frozenset[str]
    metadata: Mapping[str, Any] | None
    protocol: Mapping[str, Any] | None
    info: Mapping[str, Any]
    is_foreign: bool = False
    mark: Mark = ()
    removed_bytes: int = 0

    @property
    def adds(self) -> frozenset[str]:
        """The paths of the added files."""
        return frozenset(file.path for file in self.files)

    @property
    def commit_id(self) -> str | None:
        """The id of the commit; None in entries of other programs."""
        return self.info.get(COMMIT_ID)

    @property
    def changes_table(self) -> bool:
        """True if the entry contains metadata or a protocol."""
        return self.metadata is not None or self.protocol is not None

    def apply_to(self, files: dict[str, DataFile]) -> None:
        """Change the live files of the parent version, by path, to those of this version."""
        for path in self.removes:
            files.pop(path, None)
        files.update((file.path, file) for file in self.files)

    @property
    def moves_rows_only(self) -> bool:
        """True if the commit moved rows between files without changing the table's content."""
        return self.info.get(COMMIT_KIND) in {kind.value for kind in CommitKind if kind.moves_rows_only}

    @property
    def undone_after(self) -> int:
        """The version that a repair restores; -1 if the entry is not a repair of foreign commits."""
        return int(self.info.get(COMMIT_UNDONE, -1))

    @property
    def at_ms(self) -> int:
        """Time of the commit in milliseconds, by the writer's clock or, if it recorded none, by the file's time."""
        timestamp = self.info.get("timestamp")
        if isinstance(timestamp, int) and 0 <= timestamp <= MAX_MS:
            return timestamp
        return self.mark[1] // NS_PER_MS if self.mark else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogListing:
    """The names in ``_delta_log``, by kind."""

    entries: tuple[int, ...]
    checkpoints: Mapping[int, tuple[str, ...]]
    drafts: tuple[str, ...] = ()
    checksums: tuple[int, ...] = ()
    """Versions of checkpoints that have a checksum."""

    @property
    def newest_checkpoint(self) -> int:
        """The version of the newest checkpoint, or -1."""
        return max(self.checkpoints, default=-1)

    def missing(self) -> list[int]:
        """Return the versions above the newest checkpoint that have no entry although a later one is listed.

        At most `MISSING_LOOKED_UP` of them, because the name of a single file must not decide how many are looked up.
        """
        missing: list[int] = []
        expected = self.newest_checkpoint + 1
        for version in self.entries[bisect(self.entries, self.newest_checkpoint) :]:
            if version != expected:
                missing += range(expected, min(version, expected + MISSING_LOOKED_UP - len(missing)))
            expected = version + 1
        return missing

    def check_complete(self, table: Path) -> None:
        """Refuse a log with a missing entry."""
        if missing := self.missing():
            raise Corruption(
                f"Log entry {entry_name(missing[0])} of {table} is missing. Restore it from a copy.",
                reason=Reason.MISSING_FILE,
            )


def list_log(table: Path) -> LogListing:
    """List the log's entries and checkpoints. A failed listing raises and never returns an empty listing.

    Reading a directory is not atomic. An entry that is written meanwhile can be left out although a later one is
    listed. So an entry that seems to be missing is looked up by name. If it does not exist, the directory is read
    again. The entry may have been cleaned below a newer checkpoint. An entry that is still missing after that is really
    missing.
    """
    tries = LISTING_TRIES
    while True:
        listing, tries = _list_once(table), tries - 1
        missing = listing.missing()
        existing = [version for version in missing if file_mark(in_log(table, entry_name(version)))]
        if not tries or len(existing) == len(missing):
            return replace(listing, entries=tuple(sorted((*listing.entries, *existing)))) if existing else listing


def _list_once(table: Path) -> LogListing:
    entries: list[int] = []
    checkpoints: dict[int, list[str]] = {}
    drafts: list[str] = []
    checksums: list[int] = []
    for name in os.listdir(f"{table}/{LOG}"):  # noqa: PTH208
        if match := _ENTRY.match(name):
            entries.append(int(match[1]))
        elif match := _CHECKPOINT.match(name):
            checkpoints.setdefault(int(match[1]), []).append(name)
        elif _DRAFT.match(name):
            drafts.append(name)
        elif match := CHECKSUM_NAME.match(name):
            checksums.append(int(match[1]))
    return LogListing(
        entries=tuple(sorted(entries)),
        checkpoints={v: tuple(sorted(names)) for v, names in checkpoints.items()},
        drafts=tuple(sorted(drafts)),
        checksums=tuple(sorted(checksums)),
    )


def is_checkpoint(name: str) -> bool:
    """True for the name of a checkpoint, of its checksum, or of the file that points to the last one."""
    return name == LAST_CHECKPOINT or any(pattern.match(name) for pattern in (_CHECKPOINT, CHECKSUM_NAME))


def entry_version(name: str) -> int | None:
    """Return the version whose entry has this name; None if it is the name of something else."""
    match = _ENTRY.match(name)
    return int(match[1]) if match else None


def is_draft(name: str) -> bool:
    """True for the uncommitted entry of a crashed writer."""
    return bool(_DRAFT.match(name) or _TEMPORARY.match(name))


def file_mark(path: str | Path) -> Mark:
    """Return the size, time and inode that identify a file's state; empty if the file does not exist."""
    try:
        return _mark(os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        return ()


def _mark(status: os.stat_result) -> Mark:
    return (status.st_size, status.st_mtime_ns, status.st_ino)


def read_entry(table: Path, version: int) -> LogEntry:
    """Read one entry. FileNotFoundError if it does not exist: it was cleaned, is missing, or is not written yet."""
    path = in_log(table, entry_name(version))
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        mark = _mark(os.fstat(file.fileno()))
        content = file.readall()
    return parse_entry(content, version, where=path, mark=mark)


def parse_entry(content: bytes, version: int, *, where: str, mark: Mark = ()) -> LogEntry:
    """Parse the content of an entry. Refuse one that is empty, truncated or changed."""
    is_sealed = _check_seal(content, where)
    try:
        actions: list[dict[str, Any]] = [dict(json.loads(line)) for line in content.splitlines() if line.strip()]
    except (TypeError, ValueError, RecursionError) as error:  # not UTF-8, not JSON, nested too deeply, or not an object
        raise _damaged(where, f"cannot be parsed: {error}") from error
    if not actions:
        raise _damaged(where, "is empty")
    if not is_sealed and not all(actions):
        raise _damaged(where, "has a line without an action")
    try:
        entry = _entry(version, actions, mark)
        is_whole = is_sealed or _is_consistent(entry.info, actions)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(where, f"is not a valid Delta log entry: {error!r}") from error
    if not is_whole:
        raise _damaged(where, "is damaged: it contradicts itself")
    if not is_sealed and COMMIT_KIND in entry.info and len(actions) == 1:
        raise _damaged(where, "is truncated after its first line")
    return entry


def _damaged(where: str, what: str) -> Corruption:
    return Corruption(
        f"Log entry {where} {what}. Restore it from a copy; nothing was written.", reason=Reason.DAMAGED_FILE
    )


def _check_seal(content: bytes, where: str) -> bool:
    """Compare an entry with its own checksum; False if it has none, Corruption if bytes are missing or changed."""
    seal = _SEAL.search(content, 0, content.find(b"\n") + 1)
    if seal is None:
        return False
    if zlib.crc32(content[seal.end() :], zlib.crc32(content[: seal.start()])) != int(seal[1], 16):
        raise _damaged(where, "is damaged: its bytes do not match its checksum")
    return True


def _is_consistent(info: Mapping[str, Any], actions: list[dict[str, Any]]) -> bool:
    """Compare the two copies that delta-rs writes when it creates a table: an action, and a parameter of the operation."""
    parameters = info.get("operationParameters") or {}
    return all(
        json.loads(parameters[name]) == action[kind]
        for name, kind in (("metadata", "metaData"), ("protocol", "protocol"))
        for action in actions
        if kind in action and isinstance(parameters.get(name), str)
    )


def _entry(version: int, actions: list[dict[str, Any]], mark: Mark) -> LogEntry:
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for action in actions:
        for kind, fields in action.items():
            by_kind.setdefault(kind, []).append(fields)
    info = by_kind.get("commitInfo", [{}])[0]
    removes, transactions = by_kind.get("remove", ()), by_kind.get("txn", ())
    return LogEntry(
        version=version,
        files=tuple(map(_added_file, by_kind.get("add", ()))),
        removes={checked(unquote(r["path"])): int(r.get("deletionTimestamp") or 0) for r in removes},
        transactions={
            t["appId"]: int(t["version"]) for t in transactions if t["appId"] != APP_COMMITTED and not _is_forgotten(t)
        },
        forgotten=frozenset(t["appId"] for t in transactions if _is_forgotten(t)),
        metadata=dict(by_kind["metaData"][-1]) if "metaData" in by_kind else None,
        protocol=dict(by_kind["protocol"][-1]) if "protocol" in by_kind else None,
        info=info,
        is_foreign=COMMIT_KIND not in info and not by_kind.keys() <= _PASSIVE,
        mark=mark,
        removed_bytes=sum(int(r.get("size") or 0) for r in removes),
    )


def _is_forgotten(transaction: Mapping[str, Any]) -> bool:
    return transaction.get("lastUpdated") == FORGOTTEN_MS


def _added_file(action: Mapping[str, Any]) -> DataFile:
    stats = json.loads(action.get("stats") or "{}")
    return DataFile(
        path=checked(unquote(action["path"])),
        size_bytes=int(action.get("size") or 0),
        rows=int(stats.get("numRecords") or 0),
        partition=dict(action.get("partitionValues") or {}),
        modified_ms=int(action.get("modificationTime") or 0),
    )


def entries_between(table: Path, *, after: int, until: int) -> Iterator[LogEntry]:
    """Yield the entries of versions ``after + 1 .. until``.

    Raises:
        LookupError: an entry was cleaned, so its effect is no longer known.
        Corruption: an entry is missing or damaged.
    """
    for version in range(after + 1, until + 1):
        try:
            yield read_entry(table, version)
        except FileNotFoundError as error:
            if list_log(table).newest_checkpoint >= version:
                raise LookupError(version) from error
            raise Corruption(
                f"Log entry {entry_name(version)} of {table} is missing although version {until} exists. Restore it.",
                reason=Reason.MISSING_FILE,
            ) from error


def readable_versions(listing: LogListing) -> tuple[int, ...]:
    """Return the versions that can still be opened, oldest first: those without a gap since a checkpoint or version 0."""
    readable: list[int] = []
    for version in sorted({*listing.entries, *listing.checkpoints}):
        follows = version == 0 or readable[-1:] == [version - 1]  # version 0 needs no earlier entry
        if version in listing.checkpoints or follows:
            readable.append(version)
    return tuple(readable)


def readable_entries(table: Path) -> tuple[LogEntry, ...]:
    """Return the entries of every version that can still be opened and whose entry exists, oldest first."""
    listing = list_log(table)
    entries = set(listing.entries)
    return tuple(read_entry(table, version) for version in readable_versions(listing) if version in entries)


def removals(table: Path) -> dict[str, int]:
    """Return every removed file that the log still lists, with the time of its removal in milliseconds."""
    listing = list_log(table)
    removes = _checkpoint_actions(table, listing, "remove", "path")
    removed = {
        checked(unquote(r["path"])): int(r.get("deletionTimestamp") or 0) for r in removes if r["path"] is not None
    }
    for entry in _newer_entries(table, listing):
        removed |= entry.removes
        for path in entry.adds:
            removed.pop(path, None)
    return removed


def transactions(table: Path, *prefixes: str) -> dict[str, int]:
    """Return the app transactions whose name has one of these prefixes, read together, without forgotten ones."""
    listing = list_log(table)
    recorded = _checkpoint_actions(table, listing, "txn", "appId", "version")
    numbers = {t["appId"]: int(t["version"]) for t in recorded if t["appId"] is not None and not _is_forgotten(t)}
    for entry in _newer_entries(table, listing):
        numbers |= entry.transactions
        for app in entry.forgotten:
            numbers.pop(app, None)
    return {app: number for app, number in numbers.items() if app.startswith(prefixes)}


def _newer_entries(table: Path, listing: LogListing) -> Iterator[LogEntry]:
    """Yield the entries above the newest checkpoint."""
    for version in listing.entries:
        if version > listing.newest_checkpoint:
            yield read_entry(table, version)


def _checkpoint_actions(table: Path, listing: LogListing, action: str, *fields: str) -> list[dict[str, Any]]:
    """Return the actions of one kind in the newest checkpoint. They must have these fields."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_checkpoint(table, listing, until=listing.newest_checkpoint)
    actions: list[dict[str, Any]] = []
    for name in listing.checkpoints.get(listing.newest_checkpoint, ()):
        path = table / LOG / name
        try:
            with pq.ParquetFile(path) as file:
                for field in fields:
                    file.schema_arrow.field(action).type.field(field)  # raises KeyError if it is missing
                actions += file.read(columns=[action]).column(action).drop_null().to_pylist()
        except FileNotFoundError:
            raise
        except (ArithmeticError, AttributeError, KeyError) as error:
            raise Corruption(f"Checkpoint {path} cannot be read: {error!r}. Restore it from a copy.") from error
        except (OSError, ValueError, pa.ArrowException) as error:
            raise read_failure(path, error) from error
    return actions


def checkpointed_properties(table: Path) -> dict[str, str]:
    """Return the properties of a table from its newest checkpoint; empty without one. OSError if the log cannot be listed."""
    actions = _checkpoint_actions(table, list_log(table), "metaData")
    return dict(actions[-1]["configuration"]) if actions else {}


def check_checkpoint(table: Path, listing: LogListing, *, until: int) -> None:
    """Refuse a damaged checkpoint. Checks the newest one up to a version, because that version is opened from it."""
    version = max((v for v in listing.checkpoints if v <= until), default=-1)
    names = listing.checkpoints.get(version, ())
    try:
        if matches(table, version, names):
            return
    except FileNotFoundError:
        raise
    except OSError as error:
        raise read_failure(error.filename or table / LOG, error) from error
    raise Corruption(
        f"Checkpoint {table / LOG / names[0]} is damaged: its bytes do not match its checksum. Restore it from a copy; "
        "nothing was written.",
        reason=Reason.DAMAGED_FILE,
    )


def since_own(table: Path, listing: LogListing, *, until: int) -> int:
    """Return the lowest version up to `until` above Siltstone's last commit; `until` + 1 if `until` is Siltstone's own.

    `check_chain` reads the entries from there on, whatever checkpoints exist. They contain no rows, or are refused.
    """
    first = until + 1
    for version in reversed([v for v in listing.entries if v <= until]):
        try:
            if COMMIT_KIND in read_entry(table, version).info:
                break
        except FileNotFoundError:  # cleaned by another process
            break
        first = version
    return first


def check_entries(table: Path) -> None:
    """Refuse a log unless all entries after the newest checkpoint exist, are complete and are Siltstone's.

    delta-rs reads an empty entry as an empty commit. A table opened that way would assign a sequence twice.

    Raises:
        Corruption: the log is damaged, or another program has changed the table.
        FileNotFoundError: the log was cleaned while it was checked, each time.
    """
    for _ in range(LISTING_TRIES - 1):
        listing = list_log(table)
        with suppress(FileNotFoundError, LookupError):  # cleaned below a newer checkpoint after it was listed
            return _check_listed(table, listing)
    try:
        return _check_listed(table, list_log(table))
    except LookupError as error:
        raise FileNotFoundError(f"Log entries of {table} were cleaned while they were checked.") from error
    except FileNotFoundError as error:
        if error.filename and Path(error.filename).is_symlink():
            raise Corruption(
                f"Log entry {error.filename} is a link to a file that does not exist. Mount its disk, or restore it from a copy.",
                reason=Reason.MISSING_FILE,
                paths=[error.filename],
            ) from error
        raise


def _check_listed(table: Path, listing: LogListing) -> None:
    """Refuse a missing entry, and foreign entries that no later repair of ours has undone."""
    listing.check_complete(table)
    above = [version for version in listing.entries if version > listing.newest_checkpoint]
    foreign: list[LogEntry] = []
    for version in above:
        path = in_log(table, entry_name(version))
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            content = file.readall()
        if not _check_seal(content, path):  # a sealed entry is complete and ours, so its actions are not parsed
            entry = parse_entry(content, version, where=path)
            foreign += [entry] if entry.is_foreign else []
    if not foreign:
        return
    later = entries_between(table, after=foreign[0].version, until=above[-1])
    repairs = [entry for entry in later if entry.undone_after >= 0]
    for entry in foreign:
        if not any(repair.undone_after < entry.version < repair.version for repair in repairs):
            check_own(table, entry)


def check_own(table: Path | str, entry: LogEntry) -> None:
    """Refuse an entry of another program that changed the table.

    Siltstone knows neither the keys of its rows nor its table features. A merged view over it would be a guess.
    """
    if entry.is_foreign:
        what = ", ".join(
            str(entry.info[name]) for name in ("operation", "engineInfo", "userName") if entry.info.get(name)
        )
        raise Corruption(
            f"Version {entry.version} of table {table} was committed by another program ({what or 'unknown'}). Reads and writes "
            "are refused until that commit is undone: silt doctor --repair undoes it, silt history shows it.",
            reason=Reason.FOREIGN_COMMIT,
        )


def check_chain(table: Path, *, committed: int | None, version: int) -> None:
    """Refuse a table whose newest version another program committed, even if a checkpoint has replaced the entry.

    A table without the entries that would prove the opposite is refused, too. `committed` is Siltstone's last version
    according to the table's own transaction; None before the first commit.
    """
    if committed is None or committed == version:
        return
    try:
        for entry in entries_between(table, after=committed, until=version):
            check_own(table, entry)
    except LookupError as cleaned:
        raise Corruption(
            f"Table {table} is at version {version}, but version {committed} was Siltstone's last commit. The later commits of "
            "another program were cleaned from the log. Restore the table from a copy.",
            reason=Reason.FOREIGN_COMMIT,
        ) from cleaned
