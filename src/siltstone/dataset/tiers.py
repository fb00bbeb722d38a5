"""The tiers of one dataset: the lake's tiers, with the changes for this dataset.

The changes are a property of `base`, by names of tiers and fields. So later changes of the lake's settings for other
fields apply here, too. The planner merges them over the lake's tiers. A contradiction is rejected when the change is
made. If the lake's settings have changed since, it is rejected when the tiers are read. One commit changes them. A
compaction of the dataset that was planned before is then refused, and replanned.
"""

import json
from collections.abc import Mapping
from typing import Final

from siltstone.dataset.store import Store
from siltstone.errors import InvalidRequest
from siltstone.model.tiers import Changes, Tier, changed, changes_from_text, tiers_from_text

PROPERTY_TIERS: Final = "siltstone.tiers"


def dataset_tiers(store: Store) -> tuple[Tier, ...]:
    """Return the tiers of a log; InvalidRequest if those of the lake and of the dataset contradict each other."""
    changes = own_changes(store)
    lake_tiers = tiers_from_text(store.settings.tiers)
    if not changes:
        return lake_tiers
    try:
        return changed(lake_tiers, changes)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"Dataset {store.name}: {error} Correct it with silt tiers {store.name} --set or --reset."
        ) from error


def due_tiers(store: Store, crons: Mapping[str, frozenset[str | None]] | None) -> tuple[Tier, ...]:
    """Return the due tiers of a log: all without `crons`, otherwise those whose cron is in `crons` for their name."""
    tiers = dataset_tiers(store)
    return tiers if crons is None else tuple(tier for tier in tiers if tier.cron in crons.get(tier.name, ()))


def own_changes(store: Store) -> Changes:
    """Return the tier changes of this dataset."""
    return changes_from_text(store.base.properties().get(PROPERTY_TIERS, ""))


def change_tiers(store: Store, changes: Changes | str, *, reset: bool = False) -> tuple[Tier, ...]:
    """Change fields of tiers for this dataset, on top of earlier changes unless `reset`; return all tiers.

    InvalidRequest: the dataset is keyed, or the tiers would contradict themselves. Nothing was changed.
    """
    if not store.spec.is_log:
        raise InvalidRequest(f"Dataset {store.name} is keyed; tiers roll up the periods of logs.")
    requested = changes_from_text(changes) if isinstance(changes, str) else changes
    if not isinstance(requested, Mapping):
        raise InvalidRequest(f"Changes of tiers are a mapping by tier, or text, not {requested!r}.")
    before = own_changes(store)
    merged = {} if reset else {name: dict(fields) for name, fields in before.items()}
    for name, fields in requested.items():
        if not isinstance(fields, Mapping):
            raise InvalidRequest(f"Tier {name!r} takes a mapping of its fields, not {fields!r}.")
        merged[name] = merged.get(name, {}) | dict(fields)
    tiers = changed(tiers_from_text(store.settings.tiers), merged)
    if merged != before:
        text = json.dumps(merged, sort_keys=True, default=str) if merged else ""
        store.note_commit(store.base, store.base.set_properties({PROPERTY_TIERS: text}))
    return tiers
