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

from collections.abc import Iterable
from dataclasses import dataclass

from siltstone.model.units import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision:
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


def admit(candidate: Candidate, held: Iterable[Held], *, budget_bytes: int) -> AdmissionDecision:
    """Decide whether a fill may start."""
    others = [other for other in held if other.name != candidate.name]
    needed = candidate.estimate_bytes
    size, budget = size_text(needed), size_text(budget_bytes)
    free = budget_bytes - sum(other.size_bytes for other in others)
    if needed <= free:
        return _yes(candidate, f"it takes about {size} and {size_text(free)} of {budget} are free")
    pinned = sum(other.size_bytes for other in others if other.pinned)
    if needed > budget_bytes:
        return _no(candidate, f"it would take about {size}, and the hot cache has {budget}")
    if needed > budget_bytes - pinned:
        return _no(candidate, f"it would take about {size}, and {size_text(pinned)} of {budget} are pinned")
    victims = _victims(others, needed - free)
    names = tuple(victim.name for victim in victims)
    missed = candidate.missed_seconds
    is_used_more = missed is not None and all(victim.used_seconds < missed for victim in victims)
    if candidate.by_name or is_used_more:
        return _yes(candidate, f"it takes about {size}; {', '.join(names)} is evicted for it", evict=names)
    return _no(candidate, f"it would take about {size} and evict {', '.join(names)}, which is used more")


def _victims(others: Iterable[Held], missing_bytes: int) -> list[Held]:
    """Return the least recently used residents that together free this many bytes."""
    victims: list[Held] = []
    evictable = (other for other in others if not other.pinned)
    for other in sorted(evictable, key=lambda other: (other.used_seconds, other.name)):
        if missing_bytes <= 0:
            break
        victims.append(other)
        missing_bytes -= other.size_bytes
    return victims


def _yes(candidate: Candidate, why: str, *, evict: tuple[str, ...] = ()) -> AdmissionDecision:
    return AdmissionDecision(
        resident=False,
        admitted=True,
        reason=f"Not resident yet: {why}.",
        evict=evict,
        estimate_bytes=candidate.estimate_bytes,
    )


def _no(candidate: Candidate, why: str) -> AdmissionDecision:
    return AdmissionDecision(resident=False, reason=f"Not resident: {why}.", estimate_bytes=candidate.estimate_bytes)
