"""Commits of this process to a log on Delta that the projection does not have yet.

A *commit range* has no gaps: commits of this process, and commits of others between them that only moved rows. Appends
are checked against the projection overlaid with the ranges above it, so they do not wait for it. `delta_backend` bounds
the backlog. A range that is being projected is closed: it takes no more commits. It may be overlaid on a projection
that already has it. Each of its states is in the projection, or in a later range.
"""

import threading
from collections import deque
from dataclasses import dataclass

from siltstone.eventlog.event_store import AppendPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionBacklog:
    """Commits and events that wait to be projected. Events cost memory; both cost the next query time."""

    commits: int
    events: int

    def reaches(self, other: "ProjectionBacklog") -> bool:
        """True if this has at least as many commits, or at least as many events, as the other."""
        return self.commits >= other.commits or self.events >= other.events

    def times(self, factor: int) -> "ProjectionBacklog":
        """Return this backlog multiplied by a factor."""
        return ProjectionBacklog(commits=factor * self.commits, events=factor * self.events)


@dataclass(slots=True)
class CommitRange:
    """Commits from one version of the table to another, and their plans as one."""

    start: int
    end: int
    commit_id: str
    plan: AppendPlan
    is_closed: bool = False


class PendingCommits:
    """Commit ranges, oldest first. Safe to share between threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._ranges: deque[CommitRange] = deque()

    def __bool__(self) -> bool:
        """True if a commit waits to be projected."""
        return bool(self._ranges)

    @property
    def backlog(self) -> ProjectionBacklog:
        """Commits and events that wait to be projected."""
        with self._mutex:
            return ProjectionBacklog(
                commits=sum(pending.end - pending.start + 1 for pending in self._ranges),
                events=sum(len(pending.plan.new) for pending in self._ranges),
            )

    @property
    def until(self) -> int | None:
        """The version of the last commit, or None."""
        with self._mutex:
            return self._ranges[-1].end if self._ranges else None

    def add(self, version: int, plan: AppendPlan, commit_id: str) -> None:
        """Add a commit. After a gap all older ranges are dropped: the projection reads those versions from files."""
        with self._mutex:
            if self._ranges and self._ranges[-1].end != version - 1:
                self._ranges.clear()
            if not self._ranges or self._ranges[-1].is_closed:
                self._ranges.append(CommitRange(start=version, end=version, commit_id=commit_id, plan=AppendPlan()))
            last = self._ranges[-1]
            last.end, last.commit_id = version, commit_id
            last.plan.extend(plan)

    def over(self, version: int, *, until: int) -> list[AppendPlan] | None:
        """Return the plans of all versions above `version` up to `until`; None if some of them are not here."""
        with self._mutex:
            above = [pending for pending in self._ranges if pending.start > version]
            start = above[0].start if above else until + 1
            end = above[-1].end if above else version
            return [pending.plan for pending in above] if start == version + 1 and end == until else None

    def oldest(self, *, until: int) -> CommitRange | None:
        """Close and return the oldest range; None if it starts after a version."""
        with self._mutex:
            if not self._ranges or self._ranges[0].start > until:
                return None
            self._ranges[0].is_closed = True
            return self._ranges[0]

    def drop(self, projected: CommitRange) -> None:
        """Remove the oldest range after it was projected, or could not be."""
        with self._mutex:
            if self._ranges and self._ranges[0] is projected:
                self._ranges.popleft()

    def clear(self) -> None:
        """Remove all ranges."""
        with self._mutex:
            self._ranges.clear()
