"""Events of a compactor. Together with those of its cycles (`compaction.execution.events`) they are one stream.

Subscribers are called from several threads.
"""

from dataclasses import dataclass
from typing import Any

from siltstone.compaction.execution.events import CompactionEvent
from siltstone.compactor.tasks import SchedulerCycle


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(CompactionEvent):
    """The process has started."""

    name = "started"
    pid: int
    lake: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAcquired(CompactionEvent):
    """This compactor holds the lease."""

    name = "lease_acquired"
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingBy(CompactionEvent):
    """This compactor waits for the lease."""

    name = "standing_by"
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(CompactionEvent):
    """The schedule of the lake was paused."""

    name = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(CompactionEvent):
    """The schedule of the lake was resumed."""

    name = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(CompactionEvent):
    """A cycle has recovered what crashed processes left."""

    name = "recovered"
    cycle: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFailed(CompactionEvent):
    """A dataset or a record that cannot be read was not recovered."""

    name = "recovery_failed"
    cycle: int
    dataset: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSkipped(CompactionEvent):
    """A cycle left out a dataset that cannot be read."""

    name = "dataset_skipped"
    cycle: int
    dataset: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFailed(CompactionEvent):
    """The journal could not be written in a cycle."""

    name = "journal_failed"
    cycle: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleEnded(CompactionEvent):
    """A cycle of the scheduler has ended."""

    name = "cycle_ended"
    cycle: SchedulerCycle

    def to_dict(self) -> dict[str, Any]:
        """Return the counts of the cycle."""
        return {"event": self.name, **self.cycle.summary()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundError(CompactionEvent):
    """An error outside any task."""

    name = "background_error"
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(CompactionEvent):
    """The compactor received a request to stop."""

    name = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupting(CompactionEvent):
    """A job did not end in time, and its Spark work is interrupted."""

    name = "interrupting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(CompactionEvent):
    """The compactor has stopped; `clean` is false if a job still runs."""

    name = "stopped"
    clean: bool
