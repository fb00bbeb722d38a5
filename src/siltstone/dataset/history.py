"""What happened to a dataset, as the logs of its two tables tell it, newest first.

Each commit says what it did and which process did it: the name of the system user and the process id, nothing of the rows or
of a tombstone's actor. `base` remembers commits for `base_retention_hours`, `changes` far fewer; a purge forgets them.
"""

import datetime
from collections.abc import Iterator

from siltstone.dataset.store import Store
from siltstone.errors import InvalidRequest
from siltstone.model.columns import APP_FOLD, COMMIT_KIND, COMMIT_PID, ROWS_REMOVED, SEQ, TOMBSTONES
from siltstone.model.files import CommitKind
from siltstone.model.results import HistoryEntry
from siltstone.model.spec import Kind
from siltstone.storage.layout import CHANGES
from siltstone.storage.log import LogEntry, list_log, read_entry
from siltstone.storage.table import Table


def history(store: Store, limit: int | None = None) -> list[HistoryEntry]:
    """Return the commits that the logs still know, newest first.

    Raises:
        InvalidRequest: the limit is less than 1.
        Gone: the dataset was dropped.
    """
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise InvalidRequest(f"Dataset {store.name}: limit must be at least 1, not {limit!r}.")
    store.snapshot()
    written = "upsert" if store.spec.kind is Kind.KEYED else "append"
    timed = [pair for table in (store.changes, store.base) for pair in _timed(table, limit, written=written)]
    timed.sort(key=lambda pair: pair[0], reverse=True)
    return [entry for _, entry in timed[:limit]]


def _timed(table: Table, limit: int | None, *, written: str) -> Iterator[tuple[tuple[int, int], HistoryEntry]]:
    """Yield entries with what orders them: their time, never before that of an older version; then the version."""
    versions = list_log(table.path).entries
    latest_ms = 0
    for version in versions[-limit:] if limit is not None else versions:
        try:
            entry = read_entry(table.path, version)
        except FileNotFoundError:
            continue  # cleaned since it was listed
        latest_ms = max(latest_ms, entry.at_ms)
        yield (latest_ms, version), _told(entry, table.path.name, written=written)


def _told(entry: LogEntry, table: str, *, written: str) -> HistoryEntry:
    rows = sum(file.rows for file in entry.files)
    tombstones = _number(entry, TOMBSTONES) or 0
    sequences = [int(file.partition[SEQ] or 0) for file in entry.files if file.partition.get(SEQ)]
    return HistoryEntry(
        at=datetime.datetime.fromtimestamp(entry.at_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds"),
        table=table,
        version=entry.version,
        what=_what(entry, table, written, only_tombstones=tombstones == rows),
        first_sequence=min(sequences, default=None),
        last_sequence=max(sequences, default=None),
        folded_to=entry.transactions.get(APP_FOLD),
        rows_added=rows,
        rows_removed=_number(entry, ROWS_REMOVED) if entry.removes else 0,
        tombstones=tombstones,
        files_added=len(entry.adds),
        files_removed=len(entry.removes),
        bytes_added=sum(file.size_bytes for file in entry.files),
        bytes_removed=entry.removed_bytes,
        who=_text(entry, "userName"),
        pid=_number(entry, COMMIT_PID),
        engine=_text(entry, "engineInfo") or _text(entry, "clientVersion"),
        foreign=COMMIT_KIND not in entry.info,
    )


def _what(entry: LogEntry, table: str, written: str, *, only_tombstones: bool) -> str:
    """Say it in the words of the commands; another program's commit keeps its own."""
    kind = _text(entry, COMMIT_KIND)
    if kind is None:
        return _text(entry, "operation") or "unknown"
    if kind != CommitKind.APPEND or table != CHANGES:
        return kind
    if not _number(entry, TOMBSTONES):
        return written
    return "tombstone" if only_tombstones else f"{written} and tombstone"


def _text(entry: LogEntry, name: str) -> str | None:
    found = entry.info.get(name)
    return str(found) if found else None


def _number(entry: LogEntry, name: str) -> int | None:
    text = str(entry.info.get(name, ""))
    return int(text) if text.isascii() and text.isdigit() else None
