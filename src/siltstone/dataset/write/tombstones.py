"""Tombstones: written for keys or for rows that match a condition, acknowledged, and recorded for audits."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from siltstone.clock import utc_text
from siltstone.dataset.audit import append
from siltstone.dataset.read.log_view import count_named
from siltstone.dataset.read.point_lookup import MAX_LOOKUP_KEYS, current_rows
from siltstone.dataset.read.retry import SNAPSHOT_TRIES, with_snapshot
from siltstone.dataset.store import Store
from siltstone.dataset.write.change_writer import ChangedMeanwhile, ChangeWriter
from siltstone.dataset.write.log_rows import tombstone_table
from siltstone.dataset.write.row_conversion import check_batch, key_table
from siltstone.errors import Conflict, Corruption, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import Op
from siltstone.model.reports import Ack, AuditRecord, TombstoneAck
from siltstone.model.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneRequest:
    """The arguments of `Dataset.tombstone` besides the keys or the condition."""

    actor: str | None
    reason: str | None
    producer: str | None
    sequence: int | None


def write_tombstones(
    writer: ChangeWriter,
    current: Callable[[], Store],
    values: Any,  # noqa: ANN401
    request: TombstoneRequest,
) -> TombstoneAck:
    """Hide the rows of these keys, or of a log the rows of these subjects."""
    store, spec, name = writer.store, writer.store.spec, str(writer.store.name)
    if spec.is_log:
        table = tombstone_table(values, store.schema, spec.subject, dataset=name)
    else:
        table = key_table(values, store.schema, spec.key, dataset=name)
    check_batch(table, spec.key, dataset=name)
    matched = None
    with suppress(Corruption, Unavailable):  # rows can be hidden without the count
        matched = _count_hidden(spec, current, table)
    ack = writer.write_rows(table, Op.TOMBSTONE, **asdict(request))
    return _tombstone_ack(ack, matched)


def write_matching(store: Store, attempt: Callable[[], Ack]) -> TombstoneAck:
    """Hide the rows that match a condition. Repeat the attempt if one of them was changed: it may no longer match."""
    for _ in range(SNAPSHOT_TRIES):
        with suppress(ChangedMeanwhile):
            ack = attempt()
            return _tombstone_ack(ack, ack.rows)
    raise Conflict(
        f"Dataset {store.name}: matching rows keep changing during the search. Nothing was hidden. Try again."
    )


def _count_hidden(spec: Spec, current: Callable[[], Store], table: pa.Table) -> int | None:
    """Count the current rows of these keys or subjects; None where that would read much."""
    if spec.is_log:
        return with_snapshot(current, lambda snapshot: count_named(current(), snapshot, table))
    if table.num_rows > MAX_LOOKUP_KEYS:
        return None
    store = current()
    keys = key_table(table, store.schema, spec.key, dataset=str(store.name))
    return int(current_rows(store, current, keys, columns=spec.key)[1].num_rows)


def _tombstone_ack(ack: Ack, matched: int | None) -> TombstoneAck:
    """Return the acknowledgement of tombstones that match this number of rows (None: not counted)."""
    return TombstoneAck(
        sequence=ack.sequence, rows=ack.rows, applied=ack.applied, rows_matched=matched if ack.applied else None
    )


def record_tombstone(store: Store, ack: TombstoneAck, request: TombstoneRequest) -> None:
    """Append the audit record. If that fails, the next fold or squash appends it from the change rows."""
    if not ack.applied or ack.sequence is None or (request.actor is None and request.reason is None):
        return
    record = AuditRecord(
        sequence=ack.sequence,
        at=utc_text(store.clock.now(), timespec="milliseconds"),
        actor=request.actor,
        reason=request.reason,
        keys=ack.rows,
        rows=ack.rows_matched,
    )
    with suppress(Unavailable):
        append(store, [record])
    reach("tombstone.after_audit")
