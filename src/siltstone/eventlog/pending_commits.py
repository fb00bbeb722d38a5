"""What this process has appended to a log on Delta and the projection does not have yet.

A *run* is a row of commits without a gap, oldest first: what this process has committed, and commits of others between that
only moved rows. Appends are checked against the projection with the runs above it laid over, so who appends need not wait
until they are folded; `delta_backend` says how many may wait. A run that is being folded takes nothing in; it may be laid
over a projection that has it already: each state it says is what the projection says, or a later run says it again.
"""

import threading
from collections import deque
from dataclasses import dataclass

from siltstone.eventlog.event_store import Checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """How much waits to be folded: it costs memory by its events, and whoever asks by both."""

    commits: int
    events: int

    def reaches(self, other: "Backlog") -> bool:
        """Tell whether this is as much as the other, by one measure or the other."""
        return self.commits >= other.commits or self.events >= other.events

    def times(self, factor: int) -> "Backlog":
        """Return so many times as much."""
        return Backlog(commits=factor * self.commits, events=factor * self.events)


@dataclass(slots=True)
class Run:
    """Commits from one version of the table to another."""

    start: int
    end: int
    commit_id: str
    checked: Checked
    is_closed: bool = False


class Remembered:
    """Runs of commits. Safe to share between threads."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._mutex = threading.Lock()
        self._runs: deque[Run] = deque()

    def __bool__(self) -> bool:
        """True if something waits to be folded."""
        return bool(self._runs)

    @property
    def backlog(self) -> Backlog:
        """How much waits to be folded."""
        with self._mutex:
            return Backlog(
                commits=sum(run.end - run.start + 1 for run in self._runs),
                events=sum(len(run.checked.new) for run in self._runs),
            )

    @property
    def until(self) -> int | None:
        """The version of the last commit; None if nothing is remembered."""
        with self._mutex:
            return self._runs[-1].end if self._runs else None

    def add(self, version: int, checked: Checked, commit_id: str) -> None:
        """Remember a commit; where versions of others lie before it, what was remembered is folded from the files instead."""
        with self._mutex:
            if self._runs and self._runs[-1].end != version - 1:
                self._runs.clear()
            if not self._runs or self._runs[-1].is_closed:
                self._runs.append(Run(start=version, end=version, commit_id=commit_id, checked=Checked.nothing()))
            run = self._runs[-1]
            run.end, run.commit_id = version, commit_id
            run.checked.add(checked)

    def over(self, version: int, *, until: int) -> list[Checked] | None:
        """Return what lies above a projection of some version, up to a version of the table; None if that is not all."""
        with self._mutex:
            above = [run for run in self._runs if run.start > version]
            start = above[0].start if above else until + 1
            end = above[-1].end if above else version
            return [run.checked for run in above] if start == version + 1 and end == until else None

    def oldest(self, *, until: int) -> Run | None:
        """Return the oldest run, which takes nothing more in; None if it begins after a version."""
        with self._mutex:
            if not self._runs or self._runs[0].start > until:
                return None
            self._runs[0].is_closed = True
            return self._runs[0]

    def drop(self, run: Run) -> None:
        """Forget a run: it was folded, or cannot be."""
        with self._mutex:
            if self._runs and self._runs[0] is run:
                self._runs.popleft()

    def clear(self) -> None:
        """Forget everything."""
        with self._mutex:
            self._runs.clear()
