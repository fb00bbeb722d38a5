"""Reading Delta log entries ourselves: the commit path's own eyes.

delta-rs opens a zero-length entry without an error and does not look for conflicts that matter to us, so each entry
since a plan is read here, line by line. Terms: an *entry* is one ``<version>.json``; an entry is *cleaned* if it is
gone but a checkpoint at or after its version exists, and *missing* otherwise. An entry is *sealed* if it carries its
own checksum, as all of Siltstone do (`entry_writer`); it is *foreign* if another program changed the table with it.
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

from siltstone.delta.checkpoint_checksums import NAME as CHECKSUM_NAME
from siltstone.delta.checkpoint_checksums import matches
from siltstone.delta.layout import LOG, entry_name, in_log
from siltstone.delta.path_checks import checked
from siltstone.errors import Corruption, Reason
from siltstone.host.system_errors import read_failure
from siltstone.model.columns import APP_COMMITTED, COMMIT_CRC, COMMIT_ID, COMMIT_KIND, COMMIT_UNDONE, FORGOTTEN_MS
from siltstone.model.files import CommitKind, DataFile

LAST_CHECKPOINT: Final = "_last_checkpoint"
NS_PER_MS: Final = 1_000_000
LISTING_TRIES: Final = 3
"""How often a directory is read again if an entry is missing. Each needs a process that cleans the log meanwhile."""
MISSING_LOOKED_UP: Final = 64
"""Missing entries that are looked up by name. Writers add few of them while a directory is read."""
_ENTRY: Final = re.compile(r"(\d{20})\.json\Z")
_DRAFT: Final = re.compile(r"(\d{20})\..+#\d+\Z")
_TEMPORARY: Final = re.compile(r"_commit_[^/]+\.json\.tmp(#\d+)?\Z")
"""What delta-rs writes before it renames it to an entry, where the disk knows no links."""
_SEAL: Final = re.compile(rb',"' + re.escape(COMMIT_CRC.encode()) + rb'":"([0-9a-f]{8})"(?=\}\}\n)')
_PASSIVE: Final = frozenset({"commitInfo", "txn"})
"""Actions that change neither rows nor the table itself; a vacuum by another program writes only these."""
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\b.*\.parquet\Z")

Mark = tuple[int, ...]
"""What tells one state of a file from another: its size, time and inode; empty if it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """What one commit did, as far as a later commit has to know.

    `files` are the added ones; `removes` says of each removed one when that was, in milliseconds; `forgotten` are transactions
    that are no longer set. `metadata` and `protocol` are its last actions of these kinds. `is_foreign` entries change the table
    and are of another program.
    """

    version: int
    files: tuple[DataFile, ...]
    adds: frozenset[str]
    removes: Mapping[str, int]
    transactions: Mapping[str, int]
    forgotten: frozenset[str]
    metadata: Mapping[str, Any] | None
    protocol: Mapping[str, Any] | None
    commit_id: str | None
    info: Mapping[str, Any]
    is_foreign: bool = False
    mark: Mark = ()
    removed_bytes: int = 0

    @property
    def changes_metadata(self) -> bool:
        """True if it says anew what the table is."""
        return self.metadata is not None

    @property
    def changes_protocol(self) -> bool:
        """True if it says anew what the table asks of readers and writers."""
        return self.protocol is not None

    @property
    def moves_rows_only(self) -> bool:
        """True if the table says the same before and after."""
        kind = self.info.get(COMMIT_KIND)
        return kind in {one.value for one in CommitKind if one.moves_rows_only}

    @property
    def undone_after(self) -> int:
        """The version that a repair leads back to; -1 if the entry is not a repair of foreign commits."""
        return int(self.info.get(COMMIT_UNDONE, -1))

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
    checksums: tuple[int, ...] = ()
    """Versions of checkpoints that have a checksum."""

    @property
    def newest_checkpoint(self) -> int:
        """The version of the newest checkpoint, -1 if there is none."""
        return max(self.checkpoints, default=-1)

    def missing(self) -> list[int]:
        """Return the versions above the newest checkpoint that have no entry although a later one is listed.

        At most `MISSING_LOOKED_UP` of them: the name of one file must not decide how much is looked up.
        """
        found: list[int] = []
        expected = self.newest_checkpoint + 1
        for version in self.entries[bisect(self.entries, self.newest_checkpoint) :]:
            if version != expected:
                found += range(expected, min(version, expected + MISSING_LOOKED_UP - len(found)))
            expected = version + 1
        return found


def list_log(table: Path) -> LogListing:
    """List the log's entries and checkpoints. A listing that fails raises: it is never an empty listing.

    A directory is not read in one moment. An entry that is written meanwhile can be left out although a later one is
    listed. So an entry that seems to be missing is looked up by its name, and the directory is read again if it is not
    there: it may have been cleaned below a newer checkpoint. What is missing then is missing.
    """
    tries = LISTING_TRIES
    while True:
        listing, tries = _listed(table), tries - 1
        missing = listing.missing()
        found = [version for version in missing if file_mark(in_log(table, entry_name(version)))]
        if not tries or len(found) == len(missing):
            return replace(listing, entries=tuple(sorted((*listing.entries, *found)))) if found else listing


def _listed(table: Path) -> LogListing:
    """Read the directory once."""
    entries: list[int] = []
    checkpoints: dict[int, list[str]] = {}
    drafts: list[str] = []
    checksums: list[int] = []
    for name in os.listdir(f"{table}/{LOG}"):  # noqa: PTH208
        if found := _ENTRY.match(name):
            entries.append(int(found[1]))
        elif found := _CHECKPOINT.match(name):
            checkpoints.setdefault(int(found[1]), []).append(name)
        elif _DRAFT.match(name):
            drafts.append(name)
        elif found := CHECKSUM_NAME.match(name):
            checksums.append(int(found[1]))
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
    found = _ENTRY.match(name)
    return int(found[1]) if found else None


def is_draft(name: str) -> bool:
    """Return whether a file of a log is what a crashed writer left of an entry: it was never committed."""
    return bool(_DRAFT.match(name) or _TEMPORARY.match(name))


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
        Corruption: it is empty, cut, changed, or cannot be parsed.
    """
    path = in_log(table, entry_name(version))
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        mark = _mark(os.fstat(file.fileno()))
        content = file.readall()
    return parse_entry(content, version, where=path, mark=mark)


def parse_entry(content: bytes, version: int, *, where: str, mark: Mark = ()) -> LogEntry:
    """Read the content of an entry.

    Raises:
        Corruption: it is empty, cut, changed, or cannot be parsed.
    """
    is_sealed = _check_seal(content, where)
    try:
        actions: list[dict[str, Any]] = [dict(json.loads(line)) for line in content.splitlines() if line.strip()]
    except (TypeError, ValueError, RecursionError) as error:  # not UTF-8, not JSON, nested too deeply, or not an object
        raise Corruption(
            f"Log entry {where} cannot be parsed: {error}. Restore it from a copy.", reason=Reason.DAMAGED_FILE
        ) from error
    if not actions:
        raise Corruption(
            f"Log entry {where} is empty. Restore it from a copy; nothing was written.", reason=Reason.DAMAGED_FILE
        )
    if not is_sealed and any(not action for action in actions):
        raise Corruption(
            f"Log entry {where} has a line without an action. Restore it from a copy; nothing was written.",
            reason=Reason.DAMAGED_FILE,
        )
    try:
        found = _entry(version, actions, mark)
        is_whole = is_sealed or _says_twice_the_same(found.info, actions)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Corruption(
            f"Log entry {where} is not what a Delta log holds: {error!r}. Restore it from a copy.",
            reason=Reason.DAMAGED_FILE,
        ) from error
    if not is_whole:
        raise Corruption(
            f"Log entry {where} is damaged: it contradicts itself. Restore it from a copy; nothing was written.",
            reason=Reason.DAMAGED_FILE,
        )
    if not is_sealed and COMMIT_KIND in found.info and len(actions) == 1:
        raise Corruption(
            f"Log entry {where} is cut after its first line. Restore it from a copy; nothing was written.",
            reason=Reason.DAMAGED_FILE,
        )
    return found


def _check_seal(content: bytes, where: str) -> bool:
    """Compare an entry with the checksum that it carries; return False if it carries none.

    Raises:
        Corruption: bytes are missing or changed.
    """
    found = _SEAL.search(content, 0, content.find(b"\n") + 1)
    if found is None:
        return False
    crc = zlib.crc32(content[found.end() :], zlib.crc32(content[: found.start()]))
    if crc != int(found[1], 16):
        raise Corruption(
            f"Log entry {where} is damaged: its bytes do not match its checksum. Restore it from a copy; nothing was written.",
            reason=Reason.DAMAGED_FILE,
        )
    return True


def _says_twice_the_same(info: Mapping[str, Any], actions: list[dict[str, Any]]) -> bool:
    """Compare what delta-rs says twice of a table that it makes: as an action, and as a parameter of the operation."""
    stated = info.get("operationParameters") or {}
    named = {"metadata": "metaData", "protocol": "protocol"}
    return all(
        json.loads(stated[parameter]) == action[name]
        for parameter, name in named.items()
        for action in actions
        if name in action and isinstance(stated.get(parameter), str)
    )


def _entry(version: int, actions: list[dict[str, Any]], mark: Mark) -> LogEntry:
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for action in actions:
        for kind, said in action.items():
            by_kind.setdefault(kind, []).append(said)
    info = by_kind.get("commitInfo", [{}])[0]
    files = tuple(map(_added, by_kind.get("add", ())))
    removes, transactions = by_kind.get("remove", ()), by_kind.get("txn", ())
    return LogEntry(
        version=version,
        files=files,
        adds=frozenset(file.path for file in files),
        removes={checked(unquote(r["path"])): int(r.get("deletionTimestamp") or 0) for r in removes},
        transactions={
            t["appId"]: int(t["version"]) for t in transactions if t["appId"] != APP_COMMITTED and not _is_forgotten(t)
        },
        forgotten=frozenset(t["appId"] for t in transactions if _is_forgotten(t)),
        metadata=dict(by_kind["metaData"][-1]) if "metaData" in by_kind else None,
        protocol=dict(by_kind["protocol"][-1]) if "protocol" in by_kind else None,
        commit_id=info.get(COMMIT_ID),
        info=info,
        is_foreign=COMMIT_KIND not in info and not by_kind.keys() <= _PASSIVE,
        mark=mark,
        removed_bytes=sum(int(r.get("size") or 0) for r in removes),
    )


def _is_forgotten(transaction: Mapping[str, Any]) -> bool:
    return transaction.get("lastUpdated") == FORGOTTEN_MS


def _added(action: Mapping[str, Any]) -> DataFile:
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
                f"Log entry {entry_name(version)} of {table} is missing although version {until} exists. Restore it.",
                reason=Reason.MISSING_FILE,
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
    removes = _checkpointed(table, listing, "remove", "path")
    found = {
        checked(unquote(r["path"])): int(r.get("deletionTimestamp") or 0) for r in removes if r["path"] is not None
    }
    for entry in _newer_entries(table, listing):
        found |= entry.removes
        for path in entry.adds:
            found.pop(path, None)
    return found


def transactions(table: Path, *prefixes: str) -> dict[str, int]:
    """Return the app transactions whose name has one of these prefixes, all at once, without those that are forgotten.

    Raises:
        FileNotFoundError: the log was cleaned on the way; look again.
        Corruption: a part of the log is broken.
    """
    listing = list_log(table)
    known = _checkpointed(table, listing, "txn", "appId", "version")
    found = {t["appId"]: int(t["version"]) for t in known if t["appId"] is not None and not _is_forgotten(t)}
    for entry in _newer_entries(table, listing):
        found |= entry.transactions
        for app in entry.forgotten:
            found.pop(app, None)
    return {app: number for app, number in found.items() if app.startswith(prefixes)}


def _newer_entries(table: Path, listing: LogListing) -> Iterator[LogEntry]:
    """Yield the entries above the newest checkpoint."""
    for version in listing.entries:
        if version > listing.newest_checkpoint:
            yield read_entry(table, version)


def _checkpointed(table: Path, listing: LogListing, action: str, *fields: str) -> list[dict[str, Any]]:
    """Return the actions of one kind in the newest checkpoint, which have these fields.

    Raises:
        FileNotFoundError: the checkpoint was cleaned.
        Corruption: it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_checkpoint(table, listing, until=listing.newest_checkpoint)
    found: list[dict[str, Any]] = []
    for name in listing.checkpoints.get(listing.newest_checkpoint, ()):
        path = table / LOG / name
        try:
            with pq.ParquetFile(path) as file:
                for field in fields:
                    file.schema_arrow.field(action).type.field(field)  # a KeyError if there is none
                found += file.read(columns=[action]).column(action).drop_null().to_pylist()
        except FileNotFoundError:
            raise
        except (ArithmeticError, AttributeError, KeyError) as error:
            raise Corruption(f"Checkpoint {path} cannot be read: {error!r}. Restore it from a copy.") from error
        except (OSError, ValueError, pa.ArrowException) as error:
            raise read_failure(path, error) from error
    return found


def checkpointed_properties(table: Path) -> dict[str, str]:
    """Return the properties of a table as its newest checkpoint says them; none without a checkpoint.

    Raises:
        OSError: the log cannot be listed.
        Corruption: the checkpoint is damaged.
        Unavailable: the operating system does not let this process read it.
    """
    found = _checkpointed(table, list_log(table), "metaData")
    return dict(found[-1]["configuration"]) if found else {}


def check_checkpoint(table: Path, listing: LogListing, *, until: int) -> None:
    """Refuse a damaged checkpoint: of those up to a version the newest, from which that version is opened.

    Raises:
        FileNotFoundError: the checkpoint was cleaned.
        Corruption: its bytes do not match its checksum.
        Unavailable: the operating system does not let this process read it.
    """
    version = max((found for found in listing.checkpoints if found <= until), default=-1)
    names = listing.checkpoints.get(version, ())
    try:
        sound = matches(table, version, names)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise read_failure(error.filename or table / LOG, error) from error
    if not sound:
        raise Corruption(
            f"Checkpoint {table / LOG / names[0]} is damaged: its bytes do not match its checksum. Restore it from a copy; "
            "nothing was written.",
            reason=Reason.DAMAGED_FILE,
        )


def since_own(table: Path, listing: LogListing, *, until: int) -> int:
    """Return the lowest version up to `until` above the last commit of Siltstone; `until` + 1 if that is its own.

    `check_chain` reads the entries from there on, whatever checkpoints exist. They hold no rows, or are refused.

    Raises:
        Corruption: an entry is broken.
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
    """Refuse a log whose entries after the newest checkpoint are not all there, whole and ours.

    delta-rs takes an empty entry for an empty commit. A table opened that way would hand out a sequence twice.

    Raises:
        Corruption: an entry is empty, damaged, missing, or of another program.
    """
    for _ in range(LISTING_TRIES):
        listing = list_log(table)
        with suppress(FileNotFoundError):  # cleaned below a newer checkpoint since it was listed
            return _check_listed(table, listing)
    return None


def _check_listed(table: Path, listing: LogListing) -> None:
    if missing := listing.missing():
        raise Corruption(
            f"Log entry {entry_name(missing[0])} of {table} is missing. Restore it from a copy.",
            reason=Reason.MISSING_FILE,
        )
    above = [version for version in listing.entries if version > listing.newest_checkpoint]
    foreign = [entry for version in above for entry in _foreign_entry(table, version)]
    if foreign:
        _check_undone(table, foreign, until=above[-1])


def _foreign_entry(table: Path, version: int) -> list[LogEntry]:
    """Check one entry, and return it if it is foreign. A sealed one is whole and ours: its actions need not be parsed."""
    path = in_log(table, entry_name(version))
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        content = file.readall()
    if _check_seal(content, path):
        return []
    entry = parse_entry(content, version, where=path)
    return [entry] if entry.is_foreign else []


def _check_undone(table: Path, foreign: list[LogEntry], *, until: int) -> None:
    """Refuse foreign entries that no later repair of ours has undone."""
    repairs = [
        entry for entry in entries_between(table, after=foreign[0].version, until=until) if entry.undone_after >= 0
    ]
    for entry in foreign:
        if not any(repair.undone_after < entry.version < repair.version for repair in repairs):
            check_own(table, entry)


def check_own(table: Path | str, entry: LogEntry) -> None:
    """Refuse an entry of another program that changed the table.

    Siltstone knows neither the keys of its rows nor its table features, so a merged view over it would be a guess.

    Raises:
        Corruption: it is one.
    """
    if entry.is_foreign:
        what = ", ".join(
            str(entry.info[name]) for name in ("operation", "engineInfo", "userName") if entry.info.get(name)
        )
        raise Corruption(
            f"Version {entry.version} of table {table} was committed by another program ({what or 'unknown'}). The table is "
            "neither read nor written until that commit is undone: silt doctor --repair does it, silt history shows it.",
            reason=Reason.FOREIGN_COMMIT,
        )


def check_chain(table: Path, *, committed: int | None, version: int) -> None:
    """Refuse a table whose newest version was not committed by Siltstone, though a checkpoint has swallowed the entry.

    `committed` is the version that Siltstone committed last, as the table's own transaction says; None before the first.

    Raises:
        Corruption: another program committed since, or the entries that would tell were cleaned.
    """
    if committed is None or committed == version:
        return
    try:
        for entry in entries_between(table, after=committed, until=version):
            check_own(table, entry)
    except LookupError as cleaned:
        raise Corruption(
            f"Table {table} is at version {version}, and Siltstone committed version {committed} last. What another program "
            "did since was cleaned from the log. Restore the table from a copy.",
            reason=Reason.FOREIGN_COMMIT,
        ) from cleaned
