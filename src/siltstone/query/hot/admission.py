"""Decides whether a dataset is admitted to the hot cache, and which residents are evicted for it.

Pure functions: from figures to a decision with its reason.

* A dataset that fits beside the residents is admitted.
* A dataset that fits only after evictions is admitted if a caller requests it by name (`fill`, `pin`, `warm`).
* Otherwise it is admitted only if it is used more than the residents to evict. Then it was missed before, and after the
  last use of each of them. So datasets that are queried in turn, and do not fit together, do not evict each other for
  ever.
* The least recently used residents are evicted first, and no more than needed. Pinned residents are never evicted.
* A dataset that does not fit even then is rejected before anything is read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from siltstone.model.units import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a dataset is, or may become, resident, and a sentence with the reason."""

    resident: bool
    reason: str
    admitted: bool = False
    """True if a fill may start."""
    filling: bool = False
    """True if a fill is running or scheduled."""
    evict: tuple[str, ...] = ()
    """Residents to evict before the fill."""
    estimate_bytes: int = 0
    """Approximate memory that it would take; 0 if it is resident or cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A resident as the admission policy sees it."""

    name: str
    size_bytes: int
    pinned: bool
    used_seconds: float
    """Time of its last use, by the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A dataset that is not resident."""

    name: str
    estimate_bytes: int
    missed_seconds: float | None = None
    """Time of the miss before the current one; None if this is the first."""
    by_name: bool = False
    """True if a caller requested the fill itself, not only an answer."""


def admit(candidate: Candidate, held: Iterable[Held], *, budget_bytes: int) -> Decision:
    """Decide whether a fill may start."""
    return replace(_admit(candidate, held, budget_bytes), estimate_bytes=candidate.estimate_bytes)


def _admit(candidate: Candidate, held: Iterable[Held], budget_bytes: int) -> Decision:
    others = [one for one in held if one.name != candidate.name]
    needed = candidate.estimate_bytes
    size, budget = size_text(needed), size_text(budget_bytes)
    free = budget_bytes - sum(one.size_bytes for one in others)
    if needed <= free:
        return _yes(f"it takes about {size} and {size_text(free)} of {budget} are free")
    pinned = sum(one.size_bytes for one in others if one.pinned)
    if needed > budget_bytes:
        return _no(f"it would take about {size}, and the hot cache has {budget}")
    if needed > budget_bytes - pinned:
        return _no(f"it would take about {size}, and {size_text(pinned)} of {budget} are pinned")
    going = _going(others, needed - free)
    names = ", ".join(one.name for one in going)
    if candidate.by_name or _asked_more(candidate, going):
        return _yes(f"it takes about {size}; {names} goes for it", evict=tuple(one.name for one in going))
    return _no(f"it would take about {size} and drive out {names}, which is asked for more")


def _going(others: Iterable[Held], missing: int) -> list[Held]:
    """Return the least recently used residents that together free this many bytes."""
    going: list[Held] = []
    for one in sorted((one for one in others if not one.pinned), key=lambda one: (one.used_seconds, one.name)):
        if missing <= 0:
            break
        going.append(one)
        missing -= one.size_bytes
    return going


def _asked_more(candidate: Candidate, going: Sequence[Held]) -> bool:
    missed = candidate.missed_seconds
    return missed is not None and all(one.used_seconds < missed for one in going)


def _yes(why: str, *, evict: tuple[str, ...] = ()) -> Decision:
    return Decision(resident=False, admitted=True, reason=f"Not resident yet: {why}.", evict=evict)


def _no(why: str) -> Decision:
    return Decision(resident=False, reason=f"Not resident: {why}.")
