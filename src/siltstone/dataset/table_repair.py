"""Damage between the two tables of one dataset, and its repair.

| damage | repair |
|---|---|
| `changes` is older than `base` | one commit raises the sequence of `changes` to the watermark: base has the rest |
| another program committed to a table | one commit undoes what it did (`delta.foreign_commits`) |
| `base` is older than what was pruned, or a sequence is missing | none: rows are lost, a backup has them |

The diagnosis changes nothing. A repair is one commit: a crash leaves the damage or the repaired dataset.
"""

from contextlib import suppress
from dataclasses import dataclass

from siltstone.dataset.store import Store
from siltstone.delta.foreign_commits import plan_undo
from siltstone.delta.table import ParentVersion, Table
from siltstone.errors import Conflict, Corruption
from siltstone.model.columns import APP_FOLD, APP_PRUNE, APP_SEQ
from siltstone.model.commit import Commit, CommitKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDamage:
    """Why a dataset is rejected, and what a repair would do."""

    finding: str
    remedy: str
    repairable: bool


def damage_of(store: Store) -> StoreDamage | None:
    """Return why readers and writers reject the dataset; None if it is sound."""
    try:
        store.snapshot()
    except Corruption as error:
        finding = str(error)
    else:
        return None
    if _is_behind(store):
        return StoreDamage(
            finding=finding, remedy="Raise the sequence of changes to base's watermark.", repairable=True
        )
    for table in (store.base, store.changes):
        with suppress(Conflict):
            return foreign_damage(table, finding)
    return StoreDamage(finding=finding, remedy="Restore the dataset's folder from a backup.", repairable=False)


def repair(store: Store) -> None:
    """Repair the damage that `damage_of` reports. Conflict: it cannot be repaired, or is gone; nothing was changed."""
    if _is_behind(store):
        raise_sequence(store)
        return
    undone = 0
    for table in (store.base, store.changes):
        with suppress(Conflict):
            table.undo_foreign()
            undone += 1
    if not undone:
        raise Conflict(f"Dataset {store.name}: there is no damage that can be repaired; nothing was changed.")


def foreign_damage(table: Table, finding: str) -> StoreDamage:
    """Return the damage by another program's commits, and whether it can be undone; Conflict if there are none."""
    try:
        plan = plan_undo(table.path, now_ms=0)
    except Corruption as error:
        return StoreDamage(finding=finding, remedy=str(error), repairable=False)
    remedy = f"Undo versions {plan.good + 1} to {plan.version} of {table.path.name}: what that program wrote is lost."
    return StoreDamage(finding=finding, remedy=remedy, repairable=True)


def _is_behind(store: Store) -> bool:
    """True if the only damage is a watermark above the sequence."""
    try:
        pruned, sequence = store.changes.newest(APP_PRUNE) or 0, store.changes.newest(APP_SEQ) or 0
        watermark = store.base.newest(APP_FOLD) or 0
    except Corruption:
        return False
    return max(pruned, sequence) < watermark


def raise_sequence(store: Store) -> int:
    """Raise the sequence of `changes` to base's watermark, so that the next write is visible; return the watermark.

    Conflict: the dataset is not damaged in this way. Nothing was changed.
    """
    watermark = store.base.newest(APP_FOLD) or 0

    def build(parent: ParentVersion) -> Commit:
        sequence, pruned = parent.transaction(APP_SEQ) or 0, parent.transaction(APP_PRUNE) or 0
        if max(pruned, sequence) >= watermark:
            raise Conflict(
                f"Dataset {store.name}: its sequence {sequence} is not below the watermark {watermark}; nothing was changed."
            )
        return Commit(
            kind=CommitKind.REPAIR,
            plan_version=parent.version,
            transactions={APP_SEQ: watermark},
            depends=frozenset({APP_SEQ, APP_PRUNE}),
        )

    store.changes.commit(build)
    return watermark
