"""Relation between the two tables of a dataset: prune <= fold <= seq, in every sound state."""

from __future__ import annotations

from tests.model.state import Version


def behind(changes: Version, base: Version) -> bool:
    """True if base's watermark is above the highest sequence: the next write would be invisible."""
    return base.value("siltstone.fold") > changes.value("siltstone.seq")


def lost(changes: Version, base: Version) -> bool:
    """True if base is older than the last prune of changes: the pruned rows are in neither table."""
    return changes.value("siltstone.prune") > base.value("siltstone.fold")


def apart(changes: Version, base: Version) -> bool:
    """True if the two tables are from different histories of one dataset."""
    return behind(changes, base) or lost(changes, base)
