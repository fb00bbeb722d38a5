"""What is due. Pure: from cron text, the moment up to which a work is settled, and the time of day.

A work is settled up to its *anchor*: whatever was due before has run, or was given up. It is due next at the first time of its
cron after the anchor, plus a jitter that was drawn for that time. A run moves the anchor to the moment it began at, so however
many times were missed meanwhile, one run settles them all.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from siltstone.cron import next_after

SET_BACK_SECONDS: Final = 60.0
"""A clock that was set back by less is waited for: what ran just now does not run again for a correction of seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When one work is due next; never, without a cron."""

    anchor: datetime.datetime
    due_at: datetime.datetime | None


def timing(cron: str | None, anchor: datetime.datetime, *, jitter_seconds: float) -> Timing:
    """Return when a work that is settled up to the anchor is due next."""
    if cron is None:
        return Timing(anchor=anchor, due_at=None)
    return Timing(anchor=anchor, due_at=next_after(cron, anchor) + datetime.timedelta(seconds=jitter_seconds))


def due(timings: Iterable[tuple[str, Timing]], now: datetime.datetime) -> tuple[str, ...]:
    """Return the names of what is due, each once, in the given order."""
    return tuple(name for name, found in timings if found.due_at is not None and found.due_at <= now)


def is_set_back(found: Timing, now: datetime.datetime) -> bool:
    """Tell whether the clock was set back behind the anchor, so that the work would wait until it has caught up."""
    return found.anchor - now > datetime.timedelta(seconds=SET_BACK_SECONDS)
