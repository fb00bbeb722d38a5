"""The works of a lake: one for every tier and for every other kind of work, each with its cron. Pure.

All but the recovery have the same function, so that what is due at one moment is planned together: one budget, one turn of
lanes, and no squash where a fold is due.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from siltstone.config import Settings
from siltstone.errors import InvalidRequest
from siltstone.model.cron import check_cron
from siltstone.model.tiers import Tier, tiers_from_text
from siltstone.scheduler.cycles import Run, Work

RECOVERY: Final = "recovery"
KINDS: Final = ("fold", "squash", "events", "cluster", "vacuum")
"""Kinds of work that are no tier; each has a setting ``<kind>_cron``."""


def crons(settings: Settings, *, of_datasets: Iterable[Tier] = ()) -> dict[str, str | None]:
    """Return when each work of a lake is due; None if only when it is asked for.

    A tier that only some datasets have is looked at by the cron it has there; one that is off for the lake and on for a dataset,
    too. Otherwise the lake's cron counts.

    >>> crons(Settings())["hourly"], crons(Settings())["weekly"]
    ('5 * * * *', None)

    Raises:
        InvalidRequest: a setting is no cron expression, or the tiers contradict each other.
    """
    tiers = tiers_from_text(settings.tiers)
    found = {name: _cron(settings, name) for name in (RECOVERY, *KINDS)}
    for tier in (*tiers, *of_datasets):
        if found.get(tier.name) is None:
            found[tier.name] = tier.cron if tier.enabled else None
    return found


def works(
    found: Mapping[str, str | None],
    *,
    recover: Callable[[Run], Any],
    lanes: Callable[[Run], Any],
    only: Iterable[str] | None = None,
) -> list[Work]:
    """Return the works of a lake, the recovery first.

    Args:
        found: what `crons` returns.
        recover: what the recovery does.
        lanes: what every other work does; `Run.works` says which are due.
        only: names of works, if not all; the recovery always is one.

    Raises:
        InvalidRequest: an unknown work.
    """
    wanted = set(found if only is None else only)
    if unknown := sorted(wanted - found.keys()):
        raise InvalidRequest(f"There is no tier or work {unknown[0]!r}. Known: {', '.join(found)}.")
    return [
        Work(name=name, cron=cron, run=recover if name == RECOVERY else lanes)
        for name, cron in found.items()
        if name in wanted or name == RECOVERY
    ]


def _cron(settings: Settings, name: str) -> str | None:
    text: str = getattr(settings, f"{name}_cron").strip()
    if not text:
        return None
    try:
        check_cron(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"Setting '{name}_cron': {error}") from error
    return text
