"""Cycles of a lake: planned, done, written down, recovered and told. What is done when is not decided here.

`LakeCycles` is the part of a lake that needs no lease: `KeptLake` (`keeping.kept`) is built on it, and `Lake` on that one.
"""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from siltstone.clock import Clock
from siltstone.compaction.operations.dataset_maintenance import Compactor
from siltstone.config import JobPlace, Settings
from siltstone.dataset.registry import Registry
from siltstone.dataset.store import Store
from siltstone.delta.layout import LOG, Layout, has_versions
from siltstone.errors import Conflict, Reason, SiltstoneError
from siltstone.host.system_errors import log_errors
from siltstone.model.names import DatasetName
from siltstone.model.roles import check_may_compact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.compaction.execution.cycle_runner import Watcher as CycleWatcher
    from siltstone.compaction.execution.job import Inline
    from siltstone.compaction.execution.report import CycleEntry, CycleReport
    from siltstone.compaction.execution.worker_pool import Pool
    from siltstone.compaction.journal.journal import Journal
    from siltstone.compaction.journal.records import JobRecord
    from siltstone.compaction.journal.recovery import Recovery, RecoveryReport
    from siltstone.compaction.journal.totals import Totals
    from siltstone.compaction.planning.model import Plan, UnfinishedJob
    from siltstone.coordination.leases import Leases
    from siltstone.coordination.state_files import Notes
    from siltstone.model.compaction_request import CompactionRequest
    from siltstone.model.lease import LeaseRow
    from siltstone.scheduler.housework import Crons


class LakeCycles:
    """A lake as its cycles see it. `Lake` builds what is named here."""

    settings: Settings
    _layout: Layout
    _clock: Clock
    _registry: Registry
    _compactor: Compactor
    _given: "SparkSession | None"
    """The session that the lake was opened with, if it was."""
    _on_cycle: "list[Callable[[CycleReport], object]]"
    _pool: "Pool | None"
    _goes_on: bool
    """True once this object is a compactor that goes on for long: its jobs are better kept apart from it."""
    _tiers: frozenset[str]
    """The names of the tiers that its compactor knows, besides those of the lake."""

    def require(self) -> None:
        """Do nothing where there is a lake; a path that was mistyped looks like an empty one otherwise.

        Raises:
            NotFound: there is none yet.
        """
        self._registry.require_lake()

    def names(self) -> list[str]:
        """Return the names of all datasets."""
        return [str(found.name) for found in self._registry.all()]

    def plan(
        self,
        names: Sequence[str] | None = None,
        *,
        only: Sequence[str] | None = None,
        force: bool = False,
        cycle: int | None = None,
    ) -> "Plan":
        """Return what a cycle of compaction would do now, and what it would leave out and why; nothing is changed. No Spark.

        Args:
            names: the datasets to look at; all unless told.
            only: kinds of work (``fold``, ``squash``, ``vacuum``, ...) and names of tiers; all unless told.
            force: take what is below its thresholds and too young, too.
            cycle: the number of the cycle, which says whose turn is first; the next one unless told.

        Raises:
            InvalidRequest: an unknown tier or kind of work, or settings that contradict each other.
            NotFound: there is no such dataset.
            Corruption, Unavailable: the journal cannot be read, or a dataset that was named.
        """
        coming = max(self._journal.next_cycle(), self._notes.cycles().get("last", 0) + 1)
        number = coming if cycle is None else cycle
        return self._planned(names, only=only, force=force, cycle=number, unfinished=self._recovery.look().unfinished)

    def _planned(
        self,
        names: Sequence[str] | None,
        *,
        only: Sequence[str] | None,
        force: bool,
        cycle: int,
        unfinished: "Sequence[UnfinishedJob]",
        crons: "Crons | None" = None,
    ) -> "Plan":
        from siltstone.compaction.planning.model import Inputs, JobKind
        from siltstone.compaction.planning.planner import plan
        from siltstone.compaction.planning.table_state import event_log_state, table_states
        from siltstone.dataset.tiers import due_tiers
        from siltstone.model.tiers import tiers_from_text

        tiers = tiers_from_text(
            self.settings.tiers
        )  # what contradicts itself is refused, also where there is no log yet
        found = (
            self._registry.all() if names is None else [self._registry.find(DatasetName.parse(name)) for name in names]
        )
        stores = [self._registry.store(one) for one in found]
        totals = self.totals()
        tables, unreadable = table_states(
            stores,
            tiers=lambda store: due_tiers(store, crons) if store.spec.is_log else (),
            vacuumed_at=lambda name: totals.last_done(name, JobKind.VACUUM),
            skip_damaged=names is None,
        )
        looked = {table.name for table in tables} | unreadable.keys()
        for one in found:  # a dataset that was dropped meanwhile is no failure, one whose folder is missing is
            if str(one.name) not in looked and (error := self._registry.broken(one)):
                unreadable[str(one.name)] = str(error)
        if names is None and (events := event_log_state(self._layout, settings=self.settings, clock=self._clock)):
            tables.append(events)
        there = {tier.name for table in tables for tier in table.tiers}
        absent = ({tier.name for tier in tiers} | self._tiers) - there - frozenset(JobKind)
        wanted = None if only is None else frozenset(only) - absent  # a tier that no dataset here has: nothing to do
        inputs = Inputs(tables=tables, cycle=cycle, unfinished=unfinished, only=wanted, force=force)
        return replace(plan(inputs, self.settings, self._clock.now()), unreadable=unreadable)

    def run_cycle(
        self,
        names: Sequence[str] | None = None,
        *,
        only: Sequence[str] | None = None,
        crons: "Crons | None" = None,
        force: bool = False,
        cycle: int | None = None,
        epoch: int | None = None,
        watchers: "Sequence[CycleWatcher]" = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> "CycleReport":
        """Recover what crashed processes left, then do what `plan` says; a job that fails does not stop the others.

        Spark starts where the setting `jobs` says. Everything is written down in the journal (`history`).

        Args:
            names: see `plan`.
            only: see `plan`.
            crons: of tiers, by which crons they are due: a dataset where a tier has another one is left out. All unless told.
            force: see `plan`.
            cycle: its number, which is then no longer free; the next one unless told, also if there is nothing to do.
            epoch: that of the lease under which the cycle runs; without one each job has its dataset's own.
            watchers: are told of each step.
            stopping: once it says so, no further job is begun.

        Raises:
            InvalidRequest: see `plan`; or the role may not compact.
            Corruption, Unavailable: the journal or the registry cannot be read, so what is unfinished is not known.
        """
        check_may_compact(self.settings.role, doing="run a cycle")
        recovery = self.recover(epoch=epoch)
        number = self._notes.next_cycle(at_least=self._journal.next_cycle()) if cycle is None else cycle
        plan = self._planned(names, only=only, force=force, cycle=number, unfinished=recovery.unfinished, crons=crons)
        return self._carried_out(plan, epoch=epoch, watchers=watchers, stopping=stopping, recovery=recovery)

    def run_request(
        self,
        request: "CompactionRequest",
        *,
        watchers: "Sequence[CycleWatcher]" = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> "CycleReport":
        """Run a request in this process, as a cycle of its own, without the lease: the commit check protects the data.

        A single operation writes the journal and does not read it. A damaged journal prevents no purge; `trouble` reports it.

        Raises:
            InvalidRequest: see `request_plan`; or the role may not compact. Nothing was changed.
            NotFound: a dataset does not exist. Nothing was changed.
            Conflict: a cycle was requested while another process runs one. Nothing was changed.
        """
        from siltstone.compaction.journal.recovery import RecoveryReport
        from siltstone.model.compaction_request import RequestKind

        check_may_compact(self.settings.role, doing=request.operation)
        for name in request.names or ():
            self._store(name)
        if request.kind is RequestKind.CYCLE:
            self._check_no_cycle_runs()
            return self.run_cycle(
                request.names, only=request.only, force=request.force, watchers=watchers, stopping=stopping
            )
        self._request_plan(request)  # refused requests use up no number of a cycle
        trigger = f"requested by process {os.getpid()} on {socket.gethostname()}"
        plan = self._request_plan(request, cycle=self._next_cycle(), trigger=trigger)
        return self._carried_out(plan, epoch=None, watchers=watchers, stopping=stopping, recovery=RecoveryReport())

    def _request_plan(self, request: "CompactionRequest", *, cycle: int = 0, trigger: str = "") -> "Plan":
        from siltstone.compaction.planning.manual import request_plan

        names = self.names() if request.names is None else request.names
        return request_plan(request, names, store=self._store, settings=self.settings, cycle=cycle, trigger=trigger)

    def _check_no_cycle_runs(self) -> None:
        """Refuse a second cycle. Two cycles that begin at the same moment are safe: the commit check refuses the later jobs.

        Raises:
            Conflict: a live process runs a cycle.
            Corruption, Unavailable: the journal cannot be read.
        """
        from siltstone.compaction.journal.owner_liveness import Life, Owners

        owners = Owners(self._layout.work, clock=self._clock, holder=self._lease_holder)
        for cycle in self._journal.open_cycles():
            if owners.life(cycle, None) is Life.LIVES and (owner := cycle.owner) is not None:
                raise Conflict(
                    f"Cycle {cycle.jobs[0].cycle} of lake {self._layout.root} is running in process {owner.pid} on "
                    f"{owner.host}. Nothing was changed. Wait until it has ended, or compact single datasets by name.",
                    reason=Reason.CYCLE_RUNNING,
                )

    def _next_cycle(self) -> int:
        """Reserve the number of the next cycle, also where the journal cannot be read."""
        try:
            known = self._journal.next_cycle()
        except SiltstoneError:
            known = 1
        return self._notes.next_cycle(at_least=known)

    def _carried_out(
        self,
        plan: "Plan",
        *,
        epoch: int | None,
        watchers: "Sequence[CycleWatcher]",
        stopping: Callable[[], bool],
        recovery: "RecoveryReport",
    ) -> "CycleReport":
        from siltstone.compaction.execution.cycle_runner import run_cycle
        from siltstone.compaction.execution.report import CycleReport
        from siltstone.compaction.execution.system_table_runner import SystemJobs

        if self._pool is not None:
            self._pool.let_idle_go()
        runner = SystemJobs(self.runner(), layout=self._layout, settings=self.settings, clock=self._clock)
        results = run_cycle(
            plan,
            runner,
            epoch=epoch,
            watchers=[self._journal, *watchers],
            stopping=stopping,
            clock=self._clock,
        )
        report = CycleReport(
            cycle=plan.cycle,
            results=tuple(results),
            recovery=recovery,
            unreadable=dict(plan.unreadable),
            trouble=self._journal.trouble,
        )
        for callback in self._on_cycle:
            callback(report)
        return report

    def on_cycle(self, callback: "Callable[[CycleReport], object]") -> None:
        """Have something called after each cycle of this lake object, with what came of it; what it raises reaches the caller."""
        self._on_cycle.append(callback)

    def recover(self, *, epoch: int | None = None) -> "RecoveryReport":
        """Put in order what crashed processes left: unfinished jobs, datasets, folders. Done before each cycle. No Spark.

        Args:
            epoch: that of our lease, if we hold one: a cycle of a lower one is over.

        Raises:
            InvalidRequest: the role may not compact.
            Corruption, Unavailable: the journal or the registry cannot be read.
        """
        check_may_compact(self.settings.role, doing="recover a lake")
        return self._recovery.run(epoch=epoch)

    def unfinished(self) -> "RecoveryReport":
        """Return which jobs are under way, or were when their process died, and what cannot be read; nothing is changed.

        Raises:
            Corruption, Unavailable: the journal cannot be read.
        """
        return self._recovery.look()

    def history(self, limit: int = 20) -> "list[CycleEntry]":
        """Return the last cycles that did something, the newest first.

        Raises:
            InvalidRequest: the limit is less than 1.
            Corruption, Unavailable: the journal cannot be read.
        """
        from siltstone.compaction.execution.report import CycleEntry

        return [CycleEntry.of(build) for build in self._journal.cycles(limit)]

    def jobs(self, limit: int = 20, *, dataset: str | None = None) -> "list[JobRecord]":
        """Return the last jobs, of one dataset or of all, the newest first; `lake.history()` has the cycles.

        Raises:
            InvalidRequest: the limit is less than 1.
            Corruption, Unavailable: the journal cannot be read.
        """
        return self._journal.jobs(limit, dataset=dataset)

    def has_journal(self) -> bool:
        """True once anything was written down of compactions; if not, there is nothing to ask `totals` and `unfinished` for.

        Raises:
            Unavailable: it cannot be read.
        """
        with log_errors(self._layout.events / LOG):
            return has_versions(self._layout.events)

    def totals(self) -> "Totals":
        """Return what all cycles have come to: by tier and kind of work, and by dataset.

        Raises:
            Corruption, Unavailable: the journal cannot be read.
        """
        from siltstone.compaction.journal.totals import Totals, kept_at, totals_of

        log = self._journal.log()
        return totals_of(log, kept_at(log)) if log is not None else Totals()

    @cached_property
    def _notes(self) -> "Notes":
        from siltstone.coordination.state_files import Notes

        return Notes(self._layout, durable=self.settings.durable)

    @cached_property
    def _journal(self) -> "Journal":
        from siltstone.compaction.journal.journal import Journal

        return Journal(self._layout, settings=self.settings, clock=self._clock, store=self._store)

    @cached_property
    def _recovery(self) -> "Recovery":
        from siltstone.compaction.journal.recovery import Recovery

        return Recovery(
            self._journal,
            registry=self._registry,
            layout=self._layout,
            compactor=self._compactor,
            clock=self._clock,
            holder=self._lease_holder,
        )

    def _lease_holder(self) -> "LeaseRow | None":
        from siltstone.coordination.leases import COMPACTOR

        return self._watched_leases.holder(COMPACTOR)

    @cached_property
    def _watched_leases(self) -> "Leases":
        from siltstone.coordination.leases import Leases

        return Leases(self._layout, self.settings, self._clock)

    def runner(self) -> "Inline | Pool":
        """Return who does the jobs of cycles, as the setting `jobs` says. Workers are kept warm for a while."""
        from siltstone.compaction.execution.job import Inline
        from siltstone.compaction.execution.worker_pool import SECONDS_PER_MINUTE, Pool

        if self._job_place() is JobPlace.INLINE:
            return Inline(self._compactor, self._store, limit_seconds=self.settings.job_minutes * SECONDS_PER_MINUTE)
        if self._pool is None:
            self._pool = Pool(
                self._layout.root,
                settings=self.settings,
                clock=self._clock,
                compactor=self._compactor,
                store=self._store,
            )
        return self._pool

    def _job_place(self) -> JobPlace:
        """Choose: a compactor that goes on has workers, unless somebody said on whose Spark the work is to be done."""
        if self.settings.jobs is not JobPlace.AUTO:
            return self.settings.jobs
        told = self._given is not None or bool(self.settings.spark_remote)
        return JobPlace.WORKER if self._goes_on and not told else JobPlace.INLINE

    def _store(self, name: str) -> Store:
        return self._registry.store(self._registry.find(DatasetName.parse(name)))
