"""Processes that delete: vacuum, purge, log cleaning, drop and sweep; and the create after a drop.

Vacuum here keeps no files for readers: the retention floor of the real one only makes the "file is
gone, open a new snapshot" path rare, and rare paths need the check. Time does not exist in
the model. So a rule based on time (log cleaning and the sweep wait longer than any commit can take)
appears as a guard that reads the processes directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.actors import Step
from tests.model.commit import Outcome, commit_steps, commits_under_way, land
from tests.model.state import Commit, Dataset, Pc, Proc, State, TableName, World
from tests.model.variants import Variant

DONE = Proc(pc=Pc.DONE)


@dataclass(frozen=True, slots=True)
class Vacuum:
    """Deletes, `runs` times, every file that the log of either table lists as removed."""

    name: str
    runs: int = 1

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """One run with an effect is one step."""
        del world
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        gone = dataset.gone | dataset.changes.removed | dataset.base.removed
        if proc.turn < self.runs and gone != dataset.gone:
            state = state.with_dataset(proc.incarnation, dataset._replace(gone=gone))
            yield "deletes removed files", state.with_proc(me, proc._replace(turn=proc.turn + 1))


@dataclass(frozen=True, slots=True)
class Purger:
    """Raises the epoch on base, then deletes unreferenced files, including those of older jobs."""

    name: str

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Raise the epoch, then delete."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if proc.pc is Pc.OPENED:
            yield "deletes unreferenced files", self._deleted(world, state, me)
        elif proc.pc is Pc.START and world.breaks(Variant.PURGE_WITHOUT_EPOCH):
            yield "begins", state.with_proc(me, proc._replace(pc=Pc.OPENED, mark=1))
        elif proc.pc in {Pc.START, Pc.CHECK, Pc.PUT}:
            head = dataset.base.head
            epoch = head.value("siltstone.epoch") + 1
            commit = Commit(self.name, "base", head.number, sets=(("siltstone.epoch", epoch),))
            for progress in commit_steps(world, state, me, commit):
                after = progress.state
                if progress.outcome is Outcome.LANDED:
                    raised = after.procs[me]._replace(pc=Pc.OPENED, mark=epoch, commit=None)
                    after = after.with_proc(me, raised)
                yield f"raise of the epoch {progress.event}", after

    def _deleted(self, world: World, state: State, me: int) -> State:
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        every = world.breaks(Variant.PURGE_TAKES_ALL_STAGED)
        older = {name for name, epoch in dataset.staged if every or epoch < proc.mark}
        gone = dataset.gone | dataset.base.removed | older
        return state.with_dataset(proc.incarnation, dataset._replace(gone=gone)).with_proc(me, DONE)


def may_clean(world: World, state: State, incarnation: int, which: TableName) -> bool:
    """True if cleaning removes no log entry that the put of a checked commit must collide with."""
    if world.breaks(Variant.CLEANING_IGNORES_COMMITS):
        return True
    head = state.datasets[incarnation].table(which).head
    return all(
        commit.table != which or commit.parent == head.number for commit in commits_under_way(state, incarnation)
    )


@dataclass(frozen=True, slots=True)
class LogCleaner:
    """Checkpoints `changes` and deletes the log entries below the checkpoint, once."""

    name: str

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """One step."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        changes = dataset.changes
        if proc.pc is not Pc.START or changes.head.number == 0:
            return
        if may_clean(world, state, proc.incarnation, "changes"):
            changes = changes._replace(cleaned=changes.head.number, landed=frozenset())
            cleaned = state.with_dataset(proc.incarnation, dataset._replace(changes=changes))
            yield "cleans the log", cleaned.with_proc(me, DONE)


def marked(state: State, incarnation: int, which: TableName) -> State:
    """Return the state with `siltstone.dropped` set on one table by a separate commit."""
    dataset = state.datasets[incarnation]
    head = dataset.table(which).head
    mark = Commit(f"drop/{which}", which, head.number, marks_dropped=True)
    return state.with_dataset(incarnation, land(dataset, mark))


@dataclass(frozen=True, slots=True)
class Dropper:
    """Drops incarnation 0: registry, mark on changes, mark on base, later the sweep."""

    name: str

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """One step each; a table that another process has marked is not changed."""
        proc = state.procs[me]
        onward = state.with_proc(me, proc._replace(turn=proc.turn + 1))
        tables: tuple[TableName, ...] = ("changes", "base")
        if proc.turn == 0:
            yield "takes the name from the registry", onward._replace(registry=-1)
        elif proc.turn <= len(tables):
            which = tables[proc.turn - 1]
            dropped = state.datasets[0].table(which).dropped
            yield f"marks {which}", onward if dropped else marked(onward, 0, which)
        elif all(may_clean(world, state, 0, which) for which in tables):
            yield "sweeps the folder", swept(state).with_proc(me, DONE)


def swept(state: State) -> State:
    """Delete the folder of incarnation 0, logs included."""
    dataset = state.datasets[0]
    forever = 1_000
    return state.with_dataset(
        0,
        dataset._replace(
            swept=True,
            changes=dataset.changes._replace(cleaned=forever),
            base=dataset.base._replace(cleaned=forever),
        ),
    )


@dataclass(frozen=True, slots=True)
class Creator:
    """Re-creates the dropped dataset as incarnation 1, after the drop has marked both tables."""

    name: str

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Finish the marks, then register."""
        proc = state.procs[me]
        if proc.pc is not Pc.START or state.registry != -1:
            return
        if world.breaks(Variant.INCARNATION_NOT_IN_PATH):
            reused = state._replace(datasets=(Dataset(),), registry=0)
            yield "creates it in the same folder", reused.with_proc(me, DONE)
            return
        if not world.breaks(Variant.CREATE_BEFORE_MARKS):
            for which in ("changes", "base"):
                if not state.datasets[0].table(which).dropped:
                    yield f"finishes the mark on {which}", marked(state, 0, which)
                    return
        created = state._replace(datasets=(*state.datasets, Dataset()), registry=1)
        yield "registers a new incarnation", created.with_proc(me, DONE)
