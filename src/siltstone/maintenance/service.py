"""Plans, runs, journals and recovers the compaction cycles of one lake. The schedule and the lease are in `compactor`.

A cycle recovers what crashed processes left, plans, runs the jobs, writes the journal, and reports. Cycles need no
lease. The commit check of each table protects the data. An epoch fences out jobs that were planned under an older
lease.
"""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from siltstone.compaction.execution.cycle_runner import run_cycle
from siltstone.compaction.execution.events import CycleReported, Subscriber
from siltstone.compaction.execution.job import InlineRunner
from siltstone.compaction.execution.report import CycleEntry, CycleReport
from siltstone.compaction.execution.system_table_runner import SystemTableRunner
from siltstone.compaction.execution.worker_pool import SECONDS_PER_MINUTE, WorkerPool
from siltstone.compaction.journal.journal import Journal
from siltstone.compaction.journal.owner_liveness import OwnerState
from siltstone.compaction.journal.records import JobRecord
from siltstone.compaction.journal.recovery import Recovery, RecoveryReport
from siltstone.compaction.journal.totals import Totals, cache_path, totals_of
from siltstone.compaction.lake_components import LakeComponents
from siltstone.compaction.planning.manual import request_plan
from siltstone.compaction.planning.model import Inputs, JobKind, Plan, UnfinishedJob
from siltstone.compaction.planning.planner import plan
from siltstone.compaction.planning.table_state import event_log_state, table_states
from siltstone.config import JobPlace
from siltstone.coordination.leases import COMPACTOR
from siltstone.dataset.tiers import dataset_tiers, due_tiers
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import Conflict, Reason, SiltstoneError
from siltstone.model.compaction_request import CompactionRequest, RequestKind, Selection
from siltstone.model.names import DatasetName
from siltstone.model.roles import check_may_compact
from siltstone.model.tiers import Tier, tiers_from_text


class MaintenanceService:
    """Runs the compaction cycles of one lake. Use one object per process, because it remembers its last sweep."""

    def __init__(self, components: LakeComponents) -> None:
        self.components = components
        self.settings = components.context.settings
        self.clock = components.context.clock
        self._layout = components.context.layout
        self._registry = components.registry
        self._subscribers: list[Subscriber] = []
        self._pool: WorkerPool | None = None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Pass every event of later cycles to a subscriber, after the journal. Its errors reach the caller."""
        self._subscribers.append(subscriber)

    def names(self) -> list[str]:
        """Return the names of all datasets."""
        return self._registry.names()

    def plan(self, selection: Selection, *, cycle: int | None = None) -> Plan:
        """Return the jobs that a cycle would run now, and the left-out candidates with reasons; see `Lake.plan`."""
        coming = max(self.journal.next_cycle(), self.components.state_files.cycles().get("last", 0) + 1)
        number = coming if cycle is None else cycle
        return self._plan(selection, cycle=number, unfinished=self.recovery.unsettled().running)

    def _plan(self, selection: Selection, *, cycle: int, unfinished: Sequence[UnfinishedJob]) -> Plan:
        tiers = tiers_from_text(self.settings.tiers)  # refuse contradictory tiers, even in a lake without a log
        names, only = selection.names, selection.only
        rows = (
            self._registry.all() if names is None else [self._registry.find(DatasetName.parse(name)) for name in names]
        )
        totals = self.totals()
        tables, unreadable = table_states(
            [self._registry.store(row) for row in rows],
            tiers=lambda store: due_tiers(store, selection.crons) if store.spec.is_log else (),
            vacuumed_at=lambda name: totals.last_done(name, JobKind.VACUUM),
            skip_damaged=names is None,
        )
        examined = {table.name for table in tables} | unreadable.keys()
        for row in rows:  # a dropped dataset is not a failure, a missing folder is
            if str(row.name) not in examined and (error := self._registry.broken(row)):
                unreadable[str(row.name)] = str(error)
        if names is None and (events := event_log_state(self._layout, settings=self.settings, clock=self.clock)):
            tables.append(events)
        present = {tier.name for table in tables for tier in table.tiers}
        absent = ({tier.name for tier in tiers} | selection.known_tiers) - present - frozenset(JobKind)
        requested = None if only is None else frozenset(only) - absent  # a tier that no dataset has here has no jobs
        inputs = Inputs(tables=tables, cycle=cycle, unfinished=unfinished, only=requested, force=selection.force)
        return replace(plan(inputs, self.settings, self.clock.now()), unreadable=unreadable)

    def dataset_tiers(self) -> list[Tier]:
        """Return the tiers of all logs. A log that cannot be read is left out, and its cycle reports it."""
        tiers: list[Tier] = []
        for row in self._registry.all():
            with suppress(SiltstoneError):
                store = self._registry.store(row)
                tiers += dataset_tiers(store) if store.spec.is_log else ()
        return tiers

    def highest_epoch(self, names: Sequence[str]) -> int:
        """Return the highest epoch that has committed to any of these datasets. Unreadable datasets are left out."""
        highest = 0
        for name in names:
            with suppress(SiltstoneError, LogChanged):
                highest = max(highest, self.components.store(name).snapshot().epoch)
        return highest

    def run_cycle(
        self,
        selection: Selection,
        *,
        cycle: int | None = None,
        epoch: int | None = None,
        continuous: bool = False,
        subscribers: Sequence[Subscriber] = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> CycleReport:
        """Recover, plan and run one cycle; see `Lake.run_cycle`.

        `cycle` is a reserved number; default: reserve the next one. `epoch` is that of the lease. Without a lease each
        job has the epoch of its dataset. The jobs of a `continuous` process run in workers by default. The
        `subscribers` of this cycle follow those of `subscribe`. Once `stopping` returns true, no further job begins.
        """
        check_may_compact(self.settings.role, doing="run a cycle")
        recovery = self.recover(epoch=epoch)
        number = self.components.state_files.next_cycle(at_least=self.journal.next_cycle()) if cycle is None else cycle
        plan = self._plan(selection, cycle=number, unfinished=recovery.running)
        return self.run_plan(
            plan, epoch=epoch, continuous=continuous, subscribers=subscribers, stopping=stopping, recovery=recovery
        )

    def run_request(
        self,
        request: CompactionRequest,
        *,
        subscribers: Sequence[Subscriber] = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> CycleReport:
        """Run a request in this process, as a separate cycle, without the lease.

        A single operation writes the journal and does not read it. A damaged journal prevents no purge, and `trouble`
        reports it.

        Raises:
            InvalidRequest: see `request_plan`; or the role may not compact. Nothing was changed.
            NotFound: a dataset does not exist. Nothing was changed.
            Conflict: a cycle was requested while a live process runs one. Nothing was changed.
        """
        check_may_compact(self.settings.role, doing=request.operation)
        for name in request.names or ():
            self.components.store(name)
        if request.kind is RequestKind.CYCLE:
            self._check_no_cycle_runs()
            selection = Selection(names=request.names, only=request.only, force=request.force)
            return self.run_cycle(selection, subscribers=subscribers, stopping=stopping)
        trigger = f"requested by process {os.getpid()} on {socket.gethostname()}"
        plan = self.request_plan(request, trigger=trigger)  # a refused request must not use up a number
        return self.run_plan(replace(plan, cycle=self.next_cycle()), subscribers=subscribers, stopping=stopping)

    def request_plan(self, request: CompactionRequest, *, cycle: int = 0, trigger: str = "") -> Plan:
        """Return the jobs of a request for a single operation; see `compaction.planning.manual`."""
        names = self.names() if request.names is None else request.names
        return request_plan(
            request, names, store=self.components.store, settings=self.settings, cycle=cycle, trigger=trigger
        )

    def run_plan(
        self,
        plan: Plan,
        *,
        epoch: int | None = None,
        continuous: bool = False,
        subscribers: Sequence[Subscriber] = (),
        stopping: Callable[[], bool] = lambda: False,
        recovery: RecoveryReport | None = None,
    ) -> CycleReport:
        """Run the jobs of a plan and write the journal. `recovery` is the report of the recovery before it."""
        if self._pool is not None:
            self._pool.close_idle()
        runner = self.runner(continuous=continuous)
        listeners = [*self._subscribers, *subscribers]
        results = run_cycle(
            plan,
            SystemTableRunner(runner, layout=self._layout, settings=self.settings, clock=self.clock),
            epoch=epoch,
            subscribers=[self.journal.on_event, *listeners],
            stopping=stopping,
            clock=self.clock,
        )
        report = CycleReport(
            cycle=plan.cycle,
            results=tuple(results),
            recovery=recovery or RecoveryReport(),
            unreadable=dict(plan.unreadable),
            trouble=self.journal.trouble,
        )
        for listener in listeners:
            listener(CycleReported(report=report))
        return report

    def _check_no_cycle_runs(self) -> None:
        """Refuse a second cycle. Two that begin together are safe: the commit check refuses the later jobs."""
        for cycle in self.journal.open_cycles():
            if self.recovery.owners.state(cycle, None) is OwnerState.ALIVE and (owner := cycle.owner) is not None:
                raise Conflict(
                    f"Cycle {cycle.jobs[0].cycle} of lake {self._layout.root} is running in process {owner.pid} on "
                    f"{owner.host}. Nothing was changed. Wait until it has ended, or compact single datasets by name.",
                    reason=Reason.CYCLE_RUNNING,
                )

    def next_cycle(self) -> int:
        """Reserve the number of the next cycle, even if the journal cannot be read."""
        try:
            number = self.journal.next_cycle()
        except SiltstoneError:
            number = 1
        return self.components.state_files.next_cycle(at_least=number)

    def runner(self, *, continuous: bool = False) -> InlineRunner | WorkerPool:
        """Return the runner that the setting `jobs` selects. Workers stay warm for later jobs."""
        operations, store = self.components.operations, self.components.store
        if self.job_place(continuous=continuous) is JobPlace.INLINE:
            return InlineRunner(operations, store, limit_seconds=self.settings.job_minutes * SECONDS_PER_MINUTE)
        if self._pool is None:
            self._pool = WorkerPool(
                self._layout.root, settings=self.settings, clock=self.clock, operations=operations, store=store
            )
        return self._pool

    def job_place(self, *, continuous: bool) -> JobPlace:
        """Return where jobs run. ``auto``: in workers if continuous and without a given session or `spark_remote`."""
        if self.settings.jobs is not JobPlace.AUTO:
            return self.settings.jobs
        has_session = self.components.context.session_given or bool(self.settings.spark_remote)
        return JobPlace.WORKER if continuous and not has_session else JobPlace.INLINE

    def recover(self, *, epoch: int | None = None) -> RecoveryReport:
        """Settle what crashed processes left; see `Lake.recover`. `epoch` is the epoch of this process's lease."""
        check_may_compact(self.settings.role, doing="recover a lake")
        return self.recovery.run(epoch=epoch)

    def unfinished_jobs(self) -> RecoveryReport:
        """Return the jobs that have not ended, and records that cannot be read. Nothing is changed."""
        return self.recovery.unsettled()

    def history(self, limit: int = 20) -> list[CycleEntry]:
        """Return the last cycles that had jobs, newest first."""
        return [CycleEntry.of(build) for build in self.journal.cycles(limit)]

    def jobs(self, limit: int = 20, *, dataset: str | None = None) -> list[JobRecord]:
        """Return the last jobs, of one dataset or of all, newest first."""
        return self.journal.jobs(limit, dataset=dataset)

    def totals(self) -> Totals:
        """Return the totals of all cycles: by tier and kind of job, and by dataset."""
        log = self.journal.log()
        return totals_of(log, cache_path(log)) if log is not None else Totals()

    @cached_property
    def journal(self) -> Journal:
        """The journal of the lake."""
        return Journal(self._layout, settings=self.settings, clock=self.clock, store=self.components.store)

    @cached_property
    def recovery(self) -> Recovery:
        """The recovery of the lake."""
        return Recovery(
            self.journal,
            registry=self._registry,
            layout=self._layout,
            operations=self.components.operations,
            clock=self.clock,
            holder=lambda: self.components.leases.holder(COMPACTOR),
        )

    def close(self) -> None:
        """End the workers and close the journal."""
        if self._pool is not None:
            self._pool.close()
        if "journal" in self.__dict__:
            self.journal.close()
