"""A copy of a dataset's folder made while its processes run, its later restore, and the repair after it.

A file copy copies one table after the other. So the two restored tables may be from different moments:

* `changes` older than `base`: the watermark is above the highest sequence, and the next write would be invisible;
* `base` older than `changes`: the pruned rows are in neither table.

The relation prune <= fold <= seq detects both. Tables are *apart* if it does not hold: then reads and writes are refused.
Where only the sequence is behind, base holds everything, and a commit that raises the sequence repairs the dataset.
Processes are quiet while a copy is restored: each has ended, or begins its next call afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.actors import Step
from tests.model.commit import Outcome, commit_steps
from tests.model.relation import apart, behind
from tests.model.state import Commit, Dataset, Entry, Pc, Proc, State, TableName, World

QUIET = frozenset({Pc.START, Pc.DONE, Pc.DEAD})


@dataclass(frozen=True, slots=True)
class Copier:
    """Copies both tables in this order, one step each, and restores those in `restores`."""

    name: str
    order: tuple[TableName, TableName] = ("changes", "base")
    restores: tuple[TableName, ...] = ("changes", "base")
    is_backup: bool = False
    """Accepts a pair only if base is not ahead of changes. Otherwise it copies both again, as `siltstone.backup` does."""

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Copy the first table, copy the second, restore."""
        del world
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if proc.pc is Pc.DONE:
            return
        if len(proc.copies) < len(self.order):
            which = self.order[len(proc.copies)]
            copied = proc._replace(pc=Pc.OPENED, copies=(*proc.copies, dataset.table(which)))
            if self.is_backup and which == "base" and behind(copied.copies[0].head, copied.copies[1].head):
                yield "copies base, which is ahead, and begins again", state.with_proc(me, copied._replace(copies=()))
            else:
                yield f"copies {which}", state.with_proc(me, copied)
        elif all(other.pc in QUIET for number, other in enumerate(state.procs) if number != me):
            for which, table in zip(self.order, proc.copies, strict=True):
                if which in self.restores:
                    dataset = dataset.with_table(which, table)
            state = state.with_dataset(proc.incarnation, _as_restored(dataset))
            yield "puts the copy back", state.with_proc(me, Proc(pc=Pc.DONE))


def _as_restored(dataset: Dataset) -> Dataset:
    """Make the copy the truth: later writes are knowingly lost."""
    changes, base = dataset.changes.head, dataset.base.head
    last = max(changes.value("siltstone.seq"), base.value("siltstone.fold"))
    history: tuple[Entry, ...] = dataset.history[:last]
    names = {entry.batch.name for entry in history}
    return dataset._replace(history=history, acked=frozenset(dataset.acked & names), restored=True)


@dataclass(frozen=True, slots=True)
class Repairer:
    """Raises the sequence to the watermark, if only the sequence is behind."""

    name: str

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Commit once to changes."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        changes, base = dataset.changes.head, dataset.base.head
        if proc.pc is Pc.DONE or not behind(changes, base) or not apart(changes, base):
            return
        watermark = base.value("siltstone.fold")
        commit = Commit(self.name, "changes", changes.number, sets=(("siltstone.seq", watermark),))
        for progress in commit_steps(world, state, me, commit):
            ended = progress.outcome is not Outcome.PENDING
            after = progress.state.with_proc(me, Proc(pc=Pc.DONE)) if ended else progress.state
            yield f"raise of the sequence {progress.event}", after
