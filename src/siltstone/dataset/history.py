"""The history of a dataset from the logs of its two tables, newest first.

Each commit records its operation and its process (name of the system user, process id). It records no data of rows.
`base` retains commits for `base_retention_hours`, `changes` far fewer; a purge removes them. Audit records of
tombstones outlive all of that. Each is shown with its commit, and alone once the log no longer has the commit.
"""

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from dataclasses import replace

from siltstone.clock import utc_text
from siltstone.dataset.audit import records
from siltstone.dataset.store import Store
from siltstone.delta.layout import AUDIT, CHANGES
from siltstone.delta.log_reader import LogEntry, list_log, read_entry
from siltstone.delta.table import Table
from siltstone.errors import Corruption
from siltstone.model.columns import APP_FOLD, COMMIT_KIND, COMMIT_PID, ROWS_REMOVED, SEQ, TOMBSTONES
from siltstone.model.commit import CommitKind
from siltstone.model.reports import AuditRecord, HistoryEntry
from siltstone.model.spec import Kind


def history(store: Store, limit: int | None = None) -> list[HistoryEntry]:
    """Return the commits that the logs retain, newest first."""
    with contextlib.suppress(Corruption):  # history shows which commit of another program is the reason
        store.snapshot()
    written = "upsert" if store.spec.kind is Kind.KEYED else "append"
    timed = [pair for table in (store.changes, store.base) for pair in _timed_entries(table, limit, written=written)]
    timed = _with_audit(timed, records(store))
    timed.sort(key=lambda pair: pair[0], reverse=True)
    return [entry for _, entry in timed[:limit]]


Timed = tuple[tuple[int, int], HistoryEntry]
"""An entry with its order: its time, then its version."""


def _with_audit(timed: Sequence[Timed], audit: Sequence[AuditRecord]) -> list[Timed]:
    """Attach each audit record to the commit of its sequence. A record without a retained commit becomes an entry."""
    shown: set[int] = set()
    entries: list[Timed] = []
    for order, entry in timed:
        first, last = entry.first_sequence, entry.last_sequence
        audited: tuple[AuditRecord, ...] = ()
        if entry.table == CHANGES and entry.tombstones and first and last:
            audited = tuple(record for record in audit if first <= record.sequence <= last)
            shown |= {record.sequence for record in audited}
        entries.append((order, replace(entry, audit=audited)))
    return entries + [_entry_of_record(record) for record in audit if record.sequence not in shown]


def _entry_of_record(record: AuditRecord) -> Timed:
    at_ms = int(datetime.datetime.fromisoformat(record.at).timestamp() * 1000)
    return (at_ms, record.sequence), HistoryEntry(
        at=record.at,
        table=AUDIT,
        version=None,
        operation="tombstone",
        first_sequence=record.sequence,
        last_sequence=record.sequence,
        tombstones=record.keys,
        audit=(record,),
    )


def _timed_entries(table: Table, limit: int | None, *, written: str) -> Iterator[Timed]:
    """Yield entries with their order: the time, never before that of an older version; then the version."""
    versions = list_log(table.path).entries
    latest_ms = 0
    for version in versions[-limit:] if limit is not None else versions:
        try:
            entry = read_entry(table.path, version)
        except FileNotFoundError:
            continue  # cleaned since it was listed
        latest_ms = max(latest_ms, entry.at_ms)
        yield (latest_ms, version), _entry_of_commit(entry, table.path.name, written=written)


def _entry_of_commit(entry: LogEntry, table: str, *, written: str) -> HistoryEntry:
    rows = sum(file.rows for file in entry.files)
    tombstones = _number(entry, TOMBSTONES) or 0
    sequences = [int(file.partition[SEQ] or 0) for file in entry.files if file.partition.get(SEQ)]
    return HistoryEntry(
        at=utc_text(datetime.datetime.fromtimestamp(entry.at_ms / 1000, datetime.UTC), timespec="milliseconds"),
        table=table,
        version=entry.version,
        operation=_operation(entry, table, written, only_tombstones=tombstones == rows),
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
        user=_text(entry, "userName"),
        pid=_number(entry, COMMIT_PID),
        engine=_text(entry, "engineInfo") or _text(entry, "clientVersion"),
        foreign=COMMIT_KIND not in entry.info,
    )


def _operation(entry: LogEntry, table: str, written: str, *, only_tombstones: bool) -> str:
    """Return the operation in the words of the commands. A commit of another program keeps its own name."""
    kind = _text(entry, COMMIT_KIND)
    if kind is None:
        return _text(entry, "operation") or "unknown"
    if kind != CommitKind.APPEND or table != CHANGES:
        return kind
    if not _number(entry, TOMBSTONES):
        return written
    return "tombstone" if only_tombstones else f"{written} and tombstone"


def _text(entry: LogEntry, name: str) -> str | None:
    value = entry.info.get(name)
    return str(value) if value else None


def _number(entry: LogEntry, name: str) -> int | None:
    text = str(entry.info.get(name, ""))
    return int(text) if text.isascii() and text.isdigit() else None
