"""Jobs on the lake's own tables: no Spark, no worker; whoever runs the cycle does them.

The journal is the one table of the system whose files have to be brought together. The registry has one live file for each
name, and the leases one for each lease, because their rows are replaced by name; what was replaced is swept, and their logs
are checkpointed and cleaned as they are written.
"""

from typing import TYPE_CHECKING

from siltstone.clock import Clock
from siltstone.compaction.execution.job import Job, StoppableRunner
from siltstone.compaction.planning.model import JobKind
from siltstone.config import Settings
from siltstone.delta.layout import Layout
from siltstone.errors import Conflict
from siltstone.eventlog.compaction import squash_files
from siltstone.eventlog.local_table import PRESENCE, open_table, sweep
from siltstone.model.files import DataFile
from siltstone.model.reports import SquashReport

if TYPE_CHECKING:
    from siltstone.compaction.execution.job import Report


class SystemTableRunner:
    """A runner that does jobs on the lake's own tables itself, and leaves all others to another one."""

    def __init__(self, others: StoppableRunner, *, layout: Layout, settings: Settings, clock: Clock) -> None:
        """Take who does all other jobs; as many at once, and for as long, as that one does."""
        self.width = others.width
        self.limit_seconds = others.limit_seconds
        self._others = others
        self._layout = layout
        self._settings = settings
        self._clock = clock

    def run(self, job: Job) -> "Report":
        """Do one job.

        Raises:
            SiltstoneError: it could not be done.
        """
        if job.spec.kind is not JobKind.EVENTS:
            return self._others.run(job)
        return self._squash_events(job)

    def stop(self, job: Job) -> None:
        """End what is done for a job; one on the lake's own tables takes a moment, and is let finish."""
        if job.spec.kind is not JobKind.EVENTS:
            self._others.stop(job)

    def _squash_events(self, job: Job) -> SquashReport:
        """Bring the planned files of the event log together; no event is changed, and none gets another index.

        The log does so itself as appends come. Where it was quicker there is nothing left to do, and that is no failure.
        """
        started = self._clock.monotonic_seconds()
        table = open_table(self._layout.events, settings=self._settings, clock=self._clock)
        pinned = table.pin()
        planned = {file.path for file in job.spec.files}
        taken = [file for file in pinned.files if file.path in planned]
        written: list[DataFile] = []
        if len(taken) < len(planned):
            taken = []
        try:
            if taken:
                written = squash_files(table, pinned.version, taken, presence=PRESENCE, clock=self._clock)
        except Conflict:
            taken = []
        sweep(table)
        return SquashReport(
            dataset=job.spec.dataset,
            files_removed=len(taken),
            files_added=len(written),
            rows_before=sum(file.rows for file in taken),
            rows_after=sum(file.rows for file in written),
            bytes_before=sum(file.size_bytes for file in taken),
            bytes_after=sum(file.size_bytes for file in written),
            seconds=self._clock.monotonic_seconds() - started,
        )
