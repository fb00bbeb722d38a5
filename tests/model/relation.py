"""How the two tables of a dataset stand to each other: prune <= fold <= seq, in every sound state."""

from __future__ import annotations

from tests.model.state import Version


def behind(changes: Version, base: Version) -> bool:
    """Whether base's watermark is above the highest sequence: the next write would be invisible."""
    return base.value("siltstone.fold") > changes.value("siltstone.seq")


def lost(changes: Version, base: Version) -> bool:
    """Whether base is older than what was pruned from changes: those rows are in neither."""
    return changes.value("siltstone.prune") > base.value("siltstone.fold")


def apart(changes: Version, base: Version) -> bool:
    """Whether the two are not of one dataset's history."""
    return behind(changes, base) or lost(changes, base)
