"""Jobs on the lake's own tables. The process that runs the cycle does them itself, without Spark and without a worker.

The journal is the only system table whose files must be merged. The registry has one live file per name, and the leases
one per lease. Their rows are replaced by name. Replaced files are swept. The logs of both tables are checkpointed and
cleaned when they are written.
"""

from siltstone.clock import Clock
from siltstone.compaction.execution.job import Job, JobReport, StoppableRunner
from siltstone.compaction.planning.model import JobKind
from siltstone.config import Settings
from siltstone.delta.layout import Layout
from siltstone.errors import Conflict
from siltstone.eventlog.compaction import squash_files
from siltstone.eventlog.local_table import open_table, sweep
from siltstone.model.files import DataFile
from siltstone.model.reports import SquashReport


class SystemTableRunner:
    """Runs jobs on the lake's own tables itself, and passes all other jobs to another runner."""

    def __init__(self, others: StoppableRunner, *, layout: Layout, settings: Settings, clock: Clock) -> None:
        """Pass all other jobs to `others`. Its width and time limit apply here, too."""
        self.width = others.width
        self.limit_seconds = others.limit_seconds
        self._others = others
        self._layout = layout
        self._settings = settings
        self._clock = clock

    def run(self, job: Job) -> JobReport:
        """Run one job. For the event log: merge the planned files. Every event keeps its index.

        The log also merges its files itself during appends. If it was faster, the job has nothing to do and succeeds.
        """
        if job.spec.kind is not JobKind.EVENTS:
            return self._others.run(job)
        started = self._clock.monotonic_seconds()
        table = open_table(self._layout.events, settings=self._settings, clock=self._clock)
        pinned = table.pin()
        planned = {file.path for file in job.spec.files}
        live = [file for file in pinned.files if file.path in planned]
        taken = live if len(live) == len(planned) else []
        written: list[DataFile] = []
        try:
            if taken:
                written = squash_files(table, pinned.version, taken, clock=self._clock)
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

    def stop(self, job: Job) -> None:
        """Cancel a job. A job on the lake's own tables is left to finish, because it takes only a moment."""
        if job.spec.kind is not JobKind.EVENTS:
            self._others.stop(job)
