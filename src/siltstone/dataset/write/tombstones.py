"""Tombstones: the arguments besides the keys, the acknowledgement, and the audit record."""

from contextlib import suppress
from dataclasses import dataclass

from siltstone.clock import utc_text
from siltstone.dataset.store import Store
from siltstone.errors import Unavailable
from siltstone.failpoints import reach
from siltstone.model.reports import Ack, AuditRecord, TombstoneAck


@dataclass(frozen=True, kw_only=True)
class TombstoneRequest:
    """The arguments of `Dataset.tombstone` besides the keys or the condition."""

    actor: str | None
    reason: str | None
    producer: str | None
    sequence: int | None


def tombstone_ack(ack: Ack, matched: int | None) -> TombstoneAck:
    """Return the acknowledgement of tombstones that match this number of rows (None: not counted)."""
    return TombstoneAck(
        sequence=ack.sequence, rows=ack.rows, applied=ack.applied, rows_matched=matched if ack.applied else None
    )


def record_tombstone(store: Store, ack: TombstoneAck, request: TombstoneRequest) -> None:
    """Append the audit record. If that fails, the next fold or squash appends it from the change rows."""
    if not ack.applied or ack.sequence is None or (request.actor is None and request.reason is None):
        return
    from siltstone.dataset.audit import append

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
