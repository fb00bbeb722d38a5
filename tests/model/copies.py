"""A copy of a dataset's folder that was made beside its processes, put back later, and the repair after it.

A copy of files takes one table after the other. So the two tables that come back may be of different moments:

* `changes` older than `base`: the watermark is above the highest sequence, and the next write would be invisible;
* `base` older than `changes`: what was pruned is in neither table.

The relation prune <= fold <= seq tells both. Tables are *apart* if it does not hold: then nothing is read or acknowledged.
Where only the sequence is behind, base holds everything, and a commit that raises the sequence repairs the dataset.
Processes are quiet while a copy is put back: each has ended, or begins its next call afterwards.
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
    """Copies both tables in this order, one step each, and puts back those of `restores`."""

    name: str
    order: tuple[TableName, TableName] = ("changes", "base")
    restores: tuple[TableName, ...] = ("changes", "base")
    is_backup: bool = False
    """Takes a pair only if base is not ahead of changes, and otherwise both again, as `siltstone.backup` does."""

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Copy one, copy the other, put back."""
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
    """What the copy holds is the truth from now on; what was written after it was made is lost with open eyes."""
    changes, base = dataset.changes.head, dataset.base.head
    last = max(changes.value("siltstone.seq"), base.value("siltstone.fold"))
    history: tuple[Entry, ...] = dataset.history[:last]
    names = {entry.batch.name for entry in history}
    return dataset._replace(history=history, acked=frozenset(dataset.acked & names), restored=True)


@dataclass(frozen=True, slots=True)
class Repairer:
    """Raises the sequence to the watermark, where that alone sets the tables apart."""

    name: str

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """One commit on changes."""
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
