"""Events of a compactor. Together with those of its cycles (`compaction.execution.events`) they are one stream.

Subscribers are called from several threads.
"""

from dataclasses import dataclass
from typing import Any

from siltstone.compaction.execution.events import CompactionEvent
from siltstone.compactor.tasks import Cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorEvent(CompactionEvent):
    """An event of the compactor itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(CompactorEvent):
    """The process has started."""

    name = "started"
    pid: int
    lake: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAcquired(CompactorEvent):
    """This compactor holds the lease."""

    name = "holding"
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingBy(CompactorEvent):
    """This compactor waits for the lease."""

    name = "standing_by"
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(CompactorEvent):
    """The schedule of the lake was paused."""

    name = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(CompactorEvent):
    """The schedule of the lake was resumed."""

    name = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(CompactorEvent):
    """A cycle has recovered what crashed processes left."""

    name = "recovered"
    cycle: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFailed(CompactorEvent):
    """A dataset or a record that cannot be read was not recovered."""

    name = "recovery_failed"
    cycle: int
    dataset: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSkipped(CompactorEvent):
    """A cycle left out a dataset that cannot be read."""

    name = "left_out"
    cycle: int
    dataset: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFailed(CompactorEvent):
    """The journal could not be written in a cycle."""

    name = "journal_trouble"
    cycle: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleCompleted(CompactorEvent):
    """A cycle of the scheduler has ended."""

    name = "cycle_ended"
    cycle: Cycle

    def to_dict(self) -> dict[str, Any]:
        """Return the counts of the cycle."""
        return {"event": self.name, **self.cycle.summary()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble(CompactorEvent):
    """An error outside any task."""

    name = "trouble"
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(CompactorEvent):
    """The compactor received a request to stop."""

    name = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupting(CompactorEvent):
    """A job did not end in time, and its Spark work is interrupted."""

    name = "interrupting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(CompactorEvent):
    """The compactor has stopped; `clean` is false if a job still runs."""

    name = "stopped"
    clean: bool
