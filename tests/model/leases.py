"""The lease of the compactor: acquire it, work under its epoch, lose it; and the sweep of files of dead owners.

Flow of an acquisition: judge the row (its holder, and whether that process is alive), then replace exactly the judged row
with the next epoch. A live holder may be judged dead, `State.steals` times: it hangs, or a clock was wrong. That holder
is not notified and continues. Only the old epoch of its commits stops it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.actors import Actor, Step
from tests.model.compactions import FENCED, fresh
from tests.model.state import Lease, Pc, Proc, State, World
from tests.model.variants import Variant

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Compactor:
    """Acquires the lease, runs its jobs in order under its epoch, and releases the lease."""

    name: str
    works: tuple[Actor, ...]
    tries: int = 2

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Judge, acquire, work, release."""
        proc = state.procs[me]
        if not proc.epoch:
            yield from self._taking(world, state, me)
        elif proc.turn < len(self.works):
            for event, after in self.works[proc.turn].steps(world, state, me):
                yield event, self._onward(after, me)
        else:
            ours = state.lease == Lease(me, proc.epoch)
            released = state._replace(lease=Lease(NOBODY, proc.epoch)) if ours else state
            yield "releases the lease", released.with_proc(me, fresh(proc, pc=Pc.DONE))

    def _taking(self, world: World, state: State, me: int) -> Iterator[Step]:
        proc, lease = state.procs[me], state.lease
        if proc.pc is Pc.START:
            judged = proc._replace(pc=Pc.OPENED, seq=lease.holder, mark=lease.epoch)
            if lease.holder == NOBODY or state.procs[lease.holder].pc is Pc.DEAD:
                yield "finds the lease free", state.with_proc(me, judged)
            elif state.steals:
                frozen = state.with_proc(me, judged)._replace(steals=state.steals - 1)
                yield "takes a live holder for dead", frozen
            return
        if lease == Lease(proc.seq, proc.mark) or world.breaks(Variant.LEASE_TAKEN_UNCHECKED):
            yield "takes the lease", self._taken(state, me, epoch=proc.mark + 1)
        elif proc.tries + 1 < self.tries:
            yield "is late for the lease", state.with_proc(me, Proc(tries=proc.tries + 1))
        else:
            yield "is late for the lease and stops", state.with_proc(me, Proc(pc=Pc.DONE))

    def _taken(self, state: State, me: int, *, epoch: int) -> State:
        twice = any(proc.epoch == epoch for proc in state.procs)
        state = state._replace(lease=Lease(me, epoch), wrong="one epoch has two holders" if twice else "")
        return state.with_proc(me, Proc(epoch=epoch))

    def _onward(self, state: State, me: int) -> State:
        """Start the next job after a finished one; stop after a fenced one."""
        proc = state.procs[me]
        if proc.pc is not Pc.DONE or proc.phase == FENCED:
            return state
        return state.with_proc(me, fresh(proc._replace(turn=proc.turn + 1), pc=Pc.START))


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Deletes files of base that no log names and whose owner is dead.

    It lists the files first, then checks the owners, then the log.
    """

    name: str

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """List files, rule out those of live owners, rule out those in the log and delete."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        log_first = world.breaks(Variant.SWEEP_READS_LOG_FIRST)
        if proc.pc is Pc.START:
            listed = frozenset(name for name, _ in dataset.staged)
            if listed:
                opened = proc._replace(pc=Pc.OPENED, acked=listed)
                yield "lists the disk", state.with_proc(me, opened)
        elif proc.pc is Pc.OPENED:
            spared = _named(state, proc) if log_first else _owned(world, state)
            left = proc._replace(pc=Pc.CHECK, acked=proc.acked - spared)
            yield f"reads {'the log' if log_first else 'who is alive'}", state.with_proc(me, left)
        elif proc.pc is Pc.CHECK:
            spared = _owned(world, state) if log_first else _named(state, proc)
            doomed = proc.acked - spared
            staged = frozenset(item for item in dataset.staged if item[0] not in doomed)
            swept = dataset._replace(gone=dataset.gone | doomed, staged=staged)
            done = state.with_dataset(proc.incarnation, swept).with_proc(me, Proc(pc=Pc.DONE))
            yield "sweeps" if doomed else "finds nothing to sweep", done


def _owned(world: World, state: State) -> frozenset[str]:
    """Return the files of unfinished jobs; a job ends with its commit, its refusal or its process."""
    if world.breaks(Variant.SWEEP_SPARES_NOBODY):
        return frozenset()
    return frozenset(file.name for proc in state.procs if proc.commit is not None for file in proc.commit.adds)


def _named(state: State, proc: Proc) -> frozenset[str]:
    base = state.datasets[proc.incarnation].base
    return base.removed | {file.name for file in base.head.files}
