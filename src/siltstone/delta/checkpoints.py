"""Checkpoints, log cleaning, and the repair of a broken checkpoint. All of it keeps logs short, after the acknowledgement.

Flow of `checkpoint_and_clean`, each step safe to crash after:

1. write a checkpoint (delta-rs also points ``_last_checkpoint`` at it) and its checksum;
2. fsync the checkpoint, its checksum, the pointer and the directory;
3. delete expired entries, and checkpoints older than one retained checkpoint, oldest first.

The cost of opening a table grows with the entries in ``_delta_log``, so a busy table retains few of them. An entry
expires by age or, where `max_entries` is set, by number. The entry of the retained checkpoint's own version always
stays. No writer, delta-rs included, commits on top of a version whose entry is gone. Entries above the last commit of
Siltstone stay, too. They prove that another program, for example by a vacuum, has changed nothing since.

A power cut between 1 and 2 can leave an unreadable checkpoint. No entry was cleaned because of it, so `heal_checkpoint`
deletes it, and the entries that it replaced are read again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from siltstone.clock import MS_PER_HOUR, NS_PER_MS, Clock, epoch_ns
from siltstone.delta.checkpoint_checksums import checkpoint_lock, checksum_name, matches, write_checksum
from siltstone.delta.fsync import sync_directory, sync_file
from siltstone.delta.layout import LOG, entry_name, in_log
from siltstone.delta.log_reader import (
    LAST_CHECKPOINT,
    LogListing,
    check_checkpoint,
    check_entries,
    file_mark,
    list_log,
    since_own,
)
from siltstone.errors import Corruption, Reason, SiltstoneError, Unavailable, first_line
from siltstone.failpoints import reach
from siltstone.host.system_errors import is_panic

CHECKPOINT_TRIES: Final = 5
"""Attempts to write a checkpoint. One fails if another process writes while delta-rs opens the table, or cleans the log."""
NS_PER_HOUR: Final = MS_PER_HOUR * NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retention of a table's history: log entries by age and number, removed files by age."""

    hours: float
    max_entries: int | None = None


def checkpoint_and_clean(table: Path, *, retention: Retention, durable: bool, clock: Clock) -> int:
    """Write a checkpoint at the newest version and clean what is expired; return the number of deleted log files."""
    write_checkpoint(table, durable=durable)
    return clean_log(table, retention=retention, clock=clock)


def write_checkpoint(table: Path, *, durable: bool) -> int:
    """Write and sync a checkpoint of the newest version; return that version. Unavailable if it cannot be written."""
    try:
        with checkpoint_lock(table):
            version = _create_checkpoint(table).version()
            reach("checkpoint.after_write")
            names = list_log(table).checkpoints.get(version, ())
            if names:
                names = (*names, write_checksum(table, version, names).name)
            reach("checkpoint.after_checksum")
            if durable:
                for name in (*names, LAST_CHECKPOINT):
                    sync_file(table / LOG / name)
                sync_directory(table / LOG)
            return version
    except OSError as error:
        raise Unavailable(
            f"{table}: a checkpoint cannot be written ({error}). Check the disk and try again."
        ) from error


def _create_checkpoint(table: Path) -> DeltaTable:
    """Write a checkpoint. Retry beside other processes: delta-rs may list the log with gaps, and miss files cleaned since."""
    failure: Exception | None = None
    for _ in range(CHECKPOINT_TRIES):
        try:
            handle = DeltaTable(table) if failure is None else open_listed(table)
            check_entries(table)  # delta-rs would write a damaged entry into the checkpoint and so hide it
            check_checkpoint(table, list_log(table), until=handle.version())  # for the same reason
            reach("checkpoint.before_write")
            (table / LOG / checksum_name(handle.version())).unlink(missing_ok=True)
            handle.create_checkpoint()
        except (DeltaError, FileNotFoundError) as error:
            failure = error
        except BaseException as error:
            if not is_panic(error):
                raise
            raise Unavailable(f"{table}: a checkpoint cannot be written ({error}). Try again.") from error
        else:
            return handle
    check_entries(table)  # a damaged log fails each time
    why = first_line(failure) if failure else ""
    raise Unavailable(f"{table}: a checkpoint cannot be written ({why}). Try again.") from failure


def open_listed(path: Path) -> DeltaTable:
    """Open a table at its newest version that Siltstone lists.

    Reading a directory is not atomic. Beside a busy writer, delta-rs misses entries below the newest one that it reads,
    in a long log nearly always. It reads all entries up to a version if they existed before.
    Corruption if an entry is missing.
    """
    listing = list_log(path)
    listing.check_complete(path)  # delta-rs looks for each missing entry, also for 10**18 of them
    newest = max((*listing.entries, listing.newest_checkpoint))
    return DeltaTable(path, version=newest if newest >= 0 else None)


def clean_log(table: Path, *, retention: Retention, clock: Clock) -> int:
    """Delete expired entries and checkpoints: everything below the newest checkpoint below which all is expired."""
    listing = list_log(table)
    newest = max(listing.entries, default=-1)
    cut_ns = epoch_ns(clock.now()) - retention.hours * NS_PER_HOUR
    for version in sorted(listing.checkpoints, reverse=True):
        too_many = retention.max_entries is not None and version <= newest - retention.max_entries
        below = [v for v in listing.entries if v < version]
        mark = file_mark(in_log(table, entry_name(below[-1]))) if below else ()
        if too_many or not mark or mark[1] < cut_ns:
            return _delete_below(table, listing, version)
    return 0


def forget_history(table: Path) -> int:
    """Delete every entry and checkpoint below the newest checkpoint, regardless of age. Only a purge calls this.

    Entries of other programs above the last commit of Siltstone stay. They contain no rows.
    """
    listing = list_log(table)
    for name in listing.drafts:
        if int(name[:20]) == listing.newest_checkpoint:  # that version exists, so no writer can still commit this draft
            (table / LOG / name).unlink(missing_ok=True)
    return _delete_below(table, listing, listing.newest_checkpoint)


def _delete_below(table: Path, listing: LogListing, floor: int) -> int:
    """Delete entries, oldest first, then checkpoints, then drafts of crashed writers.

    Readers rely on this order: if the entry of their own version still exists, no entry above it was cleaned.
    """
    until = min(floor, since_own(table, listing, until=max(listing.entries, default=floor)))
    names = [entry_name(v) for v in listing.entries if v < until]
    names += [name for v in sorted(listing.checkpoints) if v < floor for name in listing.checkpoints[v]]
    names += [checksum_name(v) for v in listing.checksums if v < floor]
    names += [name for name in listing.drafts if int(name[:20]) < floor]
    for name in names:
        (table / LOG / name).unlink(missing_ok=True)
    return len(names)


def heal_checkpoint(table: Path) -> bool:
    """Delete unreadable checkpoints if all entries that they replace still exist; return whether anything was deleted.

    Corruption if a checkpoint is unreadable and entries that it replaces were cleaned.
    """
    listing = list_log(table)
    hint = table / LOG / LAST_CHECKPOINT
    is_hinted = hint.exists()
    if not all(_is_sound(table, listing, v) for v in listing.checkpoints):
        with checkpoint_lock(table):  # another process may replace it by a sound one, and then clean the entries
            return _delete_broken(table)
    # A pointer to a missing checkpoint is deleted if the entries reach back to an existing one or to version 0.
    newest = max(listing.entries, default=-1)
    dangles = is_hinted and newest >= 0 and _first_missing(listing, listing.newest_checkpoint, newest=newest) is None
    if dangles:
        hint.unlink(missing_ok=True)
    return dangles


def _delete_broken(table: Path) -> bool:
    listing = list_log(table)
    broken = [v for v in listing.checkpoints if not _is_sound(table, listing, v)]
    if not broken:
        return False
    sound = max((v for v in listing.checkpoints if v not in broken), default=-1)
    missing = _first_missing(listing, sound, newest=max(*broken, *listing.entries, -1))
    if missing is not None:
        raise Corruption(
            f"A checkpoint of {table} is unreadable and log entry {entry_name(missing)} was cleaned. "
            "Restore the checkpoint from a copy.",
            reason=Reason.DAMAGED_FILE,
        )
    (table / LOG / LAST_CHECKPOINT).unlink(missing_ok=True)
    for version in broken:
        for name in (*listing.checkpoints[version], checksum_name(version)):
            (table / LOG / name).unlink(missing_ok=True)
    return True


def _is_sound(table: Path, listing: LogListing, version: int) -> bool:
    """True if a checkpoint has rows and matches its checksum, or was deleted meanwhile.

    A file that the operating system refuses to open raises.
    """
    names = listing.checkpoints[version]
    try:
        for name in names:
            with pq.ParquetFile(table / LOG / name) as file:
                if not file.metadata.num_rows:
                    return False
        return matches(table, version, names)
    except FileNotFoundError:
        return True
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, IsADirectoryError):
            raise
        return False


def _first_missing(listing: LogListing, checkpoint: int, *, newest: int) -> int | None:
    """Return the first version between a checkpoint and the newest version that has no entry; None if all have one."""
    existing = set(listing.entries)
    return next((version for version in range(checkpoint + 1, newest + 1) if version not in existing), None)


def try_checkpoint_and_clean(table: Path, *, retention: Retention, durable: bool, clock: Clock) -> str | None:
    """Checkpoint and clean the log; return an error as text, because a failed checkpoint must not fail a write."""
    try:
        checkpoint_and_clean(table, retention=retention, durable=durable, clock=clock)
    except (DeltaError, OSError, SiltstoneError) as error:
        return str(error)
    return None
