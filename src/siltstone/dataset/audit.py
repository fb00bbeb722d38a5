"""Audit records of tombstones: who hid rows, when, why and how many. A record never holds a key or a subject value.

A tombstone with an actor or a reason has one record, a line of JSON in ``_system/audit/<incarnation>.ndjson``. The file
is outside the dataset's folder. A fold, a prune, the cleaning of a log, a purge and a drop do not touch it.

1. `tombstone` commits its change rows, which carry actor and reason, and then appends its record.
2. A fold or a squash appends the missing records, from the change rows of its snapshot, before its own commit.

Only the commit of 2 removes change rows. So actor and reason are in live change rows, in a record, or in both.
A crash between the steps of 1 leaves the record to 2. A crash inside an append leaves a line without an end. Readers
skip it, the next append cuts it off, and the change rows still exist.
"""

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.clock import utc_text
from siltstone.dataset.snapshot import Snapshot, sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.fsync import sync_directory
from siltstone.delta.parquet import key_ranges
from siltstone.delta.row_group_reader import readable
from siltstone.errors import Corruption, Reason, Unavailable
from siltstone.failpoints import reach
from siltstone.host.file_lock import lock
from siltstone.host.system_errors import read_failure
from siltstone.model.columns import ACTOR, OP, REASON, ROW_SEQ, SEQ, WRITTEN_AT, Op
from siltstone.model.files import DataFile, may_contain
from siltstone.model.reports import AuditRecord

CHECKSUM: Final = "crc32"
_FIELDS: Final = (ROW_SEQ, OP, WRITTEN_AT, ACTOR, REASON)


def records(store: Store) -> list[AuditRecord]:
    """Return the audit records of a dataset, by sequence; raise Corruption that names a damaged line of the file."""
    by_sequence: dict[int, AuditRecord] = {}
    for number, record in enumerate(_lines(store), start=1):
        if record is None:
            raise Corruption(
                f"Dataset {store.name}: line {number} of {_path(store)} is damaged. Restore the file from a copy.",
                reason=Reason.DAMAGED_FILE,
                paths=[_path(store)],
            )
        earlier = by_sequence.get(record.sequence)
        if earlier is None or earlier.rows is None:
            by_sequence[record.sequence] = record
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def _lines(store: Store) -> list[AuditRecord | None]:
    """Return the record of each whole line, None for a damaged line. Bytes after the last line end are a cut append."""
    try:
        content = _path(store).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise read_failure(_path(store), error) from error
    return [_parsed(line) for line in content.split(b"\n")[:-1]]


def append(store: Store, new: Sequence[AuditRecord]) -> None:
    """Append records and sync them. A crash leaves whole lines, and at most one that is cut.

    Unavailable: the file cannot be written. Lines written completely are valid; `append_missing` appends the others.
    """
    path = _path(store)
    fields = [record.to_dict() for record in new]
    content = "".join(_json(line | {CHECKSUM: _checksum(line)}) + "\n" for line in fields).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            lock(handle)  # one writer at a time; the lock ends with the process
            os.ftruncate(handle, _whole_bytes(handle))
            os.lseek(handle, 0, os.SEEK_END)
            while content:
                content = content[os.write(handle, content) :]
            if store.settings.durable:
                os.fsync(handle)
                sync_directory(path.parent)
                sync_directory(path.parent.parent)
        finally:
            os.close(handle)
    except OSError as error:
        raise Unavailable(
            f"Dataset {store.name}: the audit record {path} cannot be written ({error}); the dataset's rows were not changed. "
            "Check the disk and its permissions."
        ) from error


def append_missing(store: Store, snapshot: Snapshot) -> None:
    """Append the records of a snapshot's unfolded tombstones that the file lacks.

    A compaction calls this before the commit that removes their change rows.
    """
    in_rows = _records_of_change_rows(store, snapshot)
    if in_rows:
        recorded = {record.sequence for record in _lines(store) if record is not None}  # a damaged line stops no fold
        missing = [record for sequence, record in sorted(in_rows.items()) if sequence not in recorded]
        if missing:
            append(store, missing)
    reach("audit.after_missing")


def _records_of_change_rows(store: Store, snapshot: Snapshot) -> dict[int, AuditRecord]:
    """Return a record for each unfolded sequence with tombstones that name an actor or a reason."""
    by_sequence: dict[int, AuditRecord] = {}
    for file in snapshot.unfolded:
        for part in _tombstone_counts(store, file):
            for row in part.filter(pc.greater(part.column(SEQ), snapshot.watermark)).to_pylist():
                sequence = row[SEQ]
                record = AuditRecord(
                    sequence=sequence,
                    at=utc_text(row[f"{WRITTEN_AT}_min"], timespec="milliseconds"),
                    actor=row[ACTOR],
                    reason=row[REASON],
                    keys=row[f"{OP}_count"],
                )
                other = by_sequence.get(sequence)
                by_sequence[sequence] = record if other is None else replace(other, keys=other.keys + record.keys)
    return by_sequence


def _tombstone_counts(store: Store, file: DataFile) -> Iterator[pa.Table]:
    """Yield the tombstones of a change file, counted by sequence, actor and reason, a row group at a time."""
    path = store.changes.path / file.path
    with readable(path), store.opened(path) as parquet:
        for number, ops in enumerate(key_ranges(parquet.metadata, OP)):
            if not may_contain(ops, [Op.TOMBSTONE.value]):
                continue
            rows = parquet.read_row_group(number, columns=list(_FIELDS))
            is_named = pc.or_(rows.column(ACTOR).is_valid(), rows.column(REASON).is_valid())
            rows = rows.filter(pc.and_(pc.equal(rows.column(OP), Op.TOMBSTONE.value), is_named))
            sequences = pc.coalesce(rows.column(ROW_SEQ), pa.scalar(sequence_of(file), pa.int64()))
            counted = rows.append_column(SEQ, sequences).group_by([SEQ, ACTOR, REASON])
            yield counted.aggregate([(OP, "count"), (WRITTEN_AT, "min")])


def _path(store: Store) -> Path:
    return store.layout.audit / f"{store.incarnation}.ndjson"


def _whole_bytes(handle: int) -> int:
    """Return the length of the file up to its last line end."""
    size = os.fstat(handle).st_size
    while size:
        step = min(size, 4096)
        at = os.pread(handle, step, size - step).rfind(b"\n")
        if at >= 0:
            return size - step + at + 1
        size -= step
    return 0


def _parsed(line: bytes) -> AuditRecord | None:
    """Return the record of a line, None if the line is damaged."""
    try:
        fields: dict[str, Any] = json.loads(line)
        checksum = fields.pop(CHECKSUM)
        return AuditRecord(**fields) if checksum == _checksum(fields) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _checksum(fields: dict[str, Any]) -> int:
    return zlib.crc32(_json(fields).encode())


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)
