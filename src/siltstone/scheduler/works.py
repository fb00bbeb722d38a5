"""The works of a lake: one for every tier and for every other kind of work, each with its cron. Pure.

All but the recovery have the same function, so that what is due at one moment is planned together: one budget, one turn of
lanes, and no squash where a fold is due.

A tier may have another cron in some datasets than in the lake. Each such cron is a work of its own, ``hourly@9 * * * *``, for the
datasets that have it; the lake's work, ``hourly``, is for the others. Whoever asks for a tier by its name means both.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from siltstone.config import Settings
from siltstone.cron import check_cron
from siltstone.errors import InvalidRequest
from siltstone.model.tiers import Tier, tiers_from_text
from siltstone.scheduler.cycles import Run, Work

RECOVERY: Final = "recovery"
AT: Final = "@"
"""Between the name of a tier and a cron that only some datasets have."""
KINDS: Final = ("fold", "squash", "events", "cluster", "vacuum")
"""Kinds of work that are no tier; each has a setting ``<kind>_cron``."""


def crons(settings: Settings, *, of_datasets: Iterable[Tier] = ()) -> dict[str, str | None]:
    """Return when each work of a lake is due; None if only when it is asked for.

    Where datasets have another cron for a tier than the lake, or have the tier alone, each of these crons has a work of its own.

    >>> crons(Settings())["hourly"], crons(Settings())["weekly"]
    ('5 * * * *', None)

    Raises:
        InvalidRequest: a setting is no cron expression, or the tiers contradict each other.
    """
    tiers = tiers_from_text(settings.tiers)
    found = {name: _cron(settings, name) for name in (RECOVERY, *KINDS)}
    found |= {tier.name: tier.cron if tier.enabled else None for tier in tiers}
    for tier in of_datasets:
        if found.setdefault(tier.name, None) != tier.cron and tier.enabled:
            found[f"{tier.name}{AT}{tier.cron}"] = tier.cron
    return found


def tier_of(work: str) -> str:
    """Return the tier or kind of work that a work is about.

    >>> tier_of("hourly@9 * * * *"), tier_of("fold")
    ('hourly', 'fold')
    """
    return work.partition(AT)[0]


def due_crons(due: Iterable[str], found: Mapping[str, str | None]) -> dict[str, frozenset[str | None]]:
    """Return the lanes of works that are due, each with the crons by which it is: a dataset with another one is not meant.

    >>> sorted(due_crons(["hourly@9 * * * *"], {"hourly": "5 * * * *", "hourly@9 * * * *": "9 * * * *"})["hourly"])
    ['9 * * * *']
    """
    lanes: dict[str, frozenset[str | None]] = {}
    for work in due:
        lanes[tier_of(work)] = lanes.get(tier_of(work), frozenset()) | {found.get(work)}
    return lanes


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
        only: names of tiers and kinds of work, if not all; the recovery always is one.

    Raises:
        InvalidRequest: an unknown work.
    """
    wanted = set(map(tier_of, found)) if only is None else set(only)
    if unknown := sorted(wanted - found.keys()):
        raise InvalidRequest(
            f"There is no tier or work {unknown[0]!r}. Known: {', '.join(dict.fromkeys(map(tier_of, found)))}."
        )
    return [
        Work(name=name, cron=cron, run=recover if name == RECOVERY else lanes)
        for name, cron in found.items()
        if name == RECOVERY or tier_of(name) in wanted
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
