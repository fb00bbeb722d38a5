"""Processes that write and read rows: writers, the first loader, readers and followers.

An actor is the fixed part of a process; its memory is its `Proc` in the state. `steps`
yields every possible next step. One step is one durable or visible action. An action in private
memory is part of the step before it. A read checks itself against the oracle and reports
through `State.wrong`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tests.model.commit import Outcome, Progress, commit_steps
from tests.model.relation import apart, behind, lost
from tests.model.rows import View, apply, delta, oracle, rewritten, snapshot_view
from tests.model.state import Batch, Commit, Dataset, Entry, File, Pc, Proc, State, Version, World
from tests.model.variants import Variant

Step = tuple[str, State]


class Actor(Protocol):
    """A kind of process."""

    @property
    def name(self) -> str:
        """Name of the process in a trace."""

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Yield every possible next step."""


def write_commit(dataset: Dataset, commit_id: str, batches: tuple[Batch, ...], before: Commit | None) -> Commit:
    """Return a commit of batches under the next sequences, rebuilt before each try.

    A retry searches the log from the version of the first try (`before`).
    """
    head = dataset.changes.head
    first = head.value("siltstone.seq") + 1
    entries = tuple(Entry(first + i, batch) for i, batch in enumerate(batches))
    return Commit(
        id=commit_id,
        table="changes",
        planned=head.number if before is None else before.planned,
        adds=frozenset(File(e.batch.name, e.seq, e.batch.rows) for e in entries),
        sets=(("siltstone.seq", entries[-1].seq),),
        entries=entries,
    )


def acknowledged(state: State, me: int, batches: tuple[Batch, ...]) -> State:
    """Record an acknowledgement; wrong if a newer incarnation existed at the start of the call."""
    proc = state.procs[me]
    dataset = state.datasets[proc.incarnation]
    acked = dataset.acked | {batch.name for batch in batches}
    state = state.with_dataset(proc.incarnation, dataset._replace(acked=acked))
    if proc.mark > proc.incarnation:
        return state._replace(wrong="a write was acknowledged into a dropped incarnation")
    return state


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes groups of batches, one commit per group; each is acknowledged before the next begins.

    Its handle is for incarnation 0 from the start. It never reads the registry again.
    """

    name: str
    groups: tuple[tuple[Batch, ...], ...]

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Check and put of the current group."""
        proc = state.procs[me]
        if proc.pc is Pc.START:
            proc = proc._replace(pc=Pc.CHECK, mark=state.registry)
            state = state.with_proc(me, proc)
        if proc.pc not in {Pc.CHECK, Pc.PUT}:
            return
        group = self.groups[proc.turn]
        dataset = state.datasets[proc.incarnation]
        ignores = world.breaks(Variant.WRITER_IGNORES_WATERMARK)
        if apart(dataset.changes.head, dataset.base.head) and not ignores and proc.pc is Pc.CHECK:
            yield "finds the tables apart and writes nothing", state.with_proc(me, proc._replace(pc=Pc.DONE))
            return
        commit = write_commit(dataset, f"{self.name}/{proc.turn}", group, proc.commit)
        for progress in commit_steps(world, state, me, commit):
            yield f"write {progress.event}", self._after(progress, me, group)

    def _after(self, progress: Progress, me: int, group: tuple[Batch, ...]) -> State:
        if progress.outcome is Outcome.PENDING:
            return progress.state
        state = progress.state
        if progress.outcome is Outcome.LANDED:
            state = acknowledged(state, me, group)
        proc = state.procs[me]
        last = progress.outcome is Outcome.GONE or proc.turn + 1 == len(self.groups)
        done = Proc(
            pc=Pc.DONE if last else Pc.START,
            turn=proc.turn + 1,
            incarnation=proc.incarnation,
            in_flight=proc.in_flight,
        )
        return state.with_proc(me, done)


@dataclass(frozen=True, slots=True)
class FirstLoader:
    """Loads straight into an empty base; if another process wrote first, its rows become a change batch."""

    name: str
    batch: Batch

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Open changes, open base and plan, then commit the load or the write."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if proc.pc is Pc.START:
            opened = proc._replace(pc=Pc.OPENED, pinned=dataset.changes.head)
            yield "opens changes", state.with_proc(me, opened)
        elif proc.pc is Pc.OPENED and proc.pinned is not None:
            yield self._plan(world, state, me, proc.pinned)
        elif proc.pc in {Pc.CHECK, Pc.PUT}:
            writing = proc.phase == "write"
            commit = proc.commit
            if writing or commit is None:
                commit = write_commit(dataset, f"{self.name}/write", (self.batch,), commit)
            beneath = delta(dataset.changes.head.files, above=dataset.base.head.value("siltstone.fold"))
            where = " beneath newer writes" if beneath and not writing else ""
            for progress in commit_steps(world, state, me, commit):
                word = "write" if writing else "load"
                yield f"{word} {progress.event}{where}", self._after(progress, me)

    def _plan(self, world: World, state: State, me: int, changes: Version) -> Step:
        proc = state.procs[me]
        base = state.datasets[proc.incarnation].base.head
        watermark = base.value("siltstone.fold")
        if base.files or delta(changes.files, above=watermark):
            return "finds rows and writes instead", state.with_proc(me, self._as_writer(proc))
        content = base.value("siltstone.content")
        if not world.breaks(Variant.LOAD_KEEPS_CONTENT_VERSION):
            content += 1
        depends = () if world.breaks(Variant.LOAD_WITHOUT_DEPENDENCY) else ("siltstone.fold",)
        commit = Commit(
            id=f"{self.name}/load",
            table="base",
            planned=base.number,
            adds=rewritten(self.batch.name, self.batch.rows),
            sets=(("siltstone.fold", watermark), ("siltstone.content", content)),
            depends=depends,
            load=(Entry(watermark, self.batch),),
        )
        planned = proc._replace(pc=Pc.CHECK, phase="load", pinned=None, commit=commit)
        return "opens base and plans a load", state.with_proc(me, planned)

    def _as_writer(self, proc: Proc) -> Proc:
        return Proc(pc=Pc.CHECK, phase="write", in_flight=proc.in_flight)

    def _after(self, progress: Progress, me: int) -> State:
        state = progress.state
        proc = state.procs[me]
        match progress.outcome:
            case Outcome.PENDING:
                return state
            case Outcome.LANDED:
                state = acknowledged(state, me, (self.batch,))
                return state.with_proc(me, Proc(pc=Pc.DONE, in_flight=proc.in_flight))
            case Outcome.REFUSED | Outcome.FENCED | Outcome.GONE:
                return state.with_proc(me, self._as_writer(proc))


def judge(world: World, state: State, proc: Proc, view: View, at: tuple[int, int]) -> str:
    """Return the error in rows read at this sequence, with or without the first load; empty if correct."""
    seq, loaded = at
    dataset = state.datasets[proc.incarnation]
    promised = {entry.batch.name for entry in dataset.history[:seq]}
    if loaded:
        promised |= {entry.batch.name for entry in dataset.load}
    missing = proc.acked - promised
    if missing:
        return f"{sorted(missing)} was acknowledged before the read began and is not in it"
    if seq < proc.seq or loaded < proc.loaded:
        return f"the read went back from {proc.seq, proc.loaded} to {at}"
    expected = oracle(world.kind, dataset, upto=seq, loaded=loaded > 0)
    return "" if view == expected else f"at sequence {seq} read {view}, the truth is {expected}"


def sequence_of(changes: Version, base: Version) -> int:
    """Return the sequence of a snapshot: base may be ahead of the changes opened before it."""
    return max(changes.value("siltstone.seq"), base.value("siltstone.fold"))


def refused(world: World, dataset: Dataset, changes: Version, base: Version) -> bool:
    """True if the tables of a snapshot are apart.

    Base may be ahead of the changes opened before it: changes are opened again.
    """
    newest = changes if world.breaks(Variant.READER_LOOKS_ONCE) else dataset.changes.head
    is_lost = lost(changes, base) and not world.breaks(Variant.READER_IGNORES_PRUNE)
    return is_lost or (behind(changes, base) and behind(newest, base))


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the merged view `reads` times, each at least as new as the previous read and every acknowledgement."""

    name: str
    reads: int = 1

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Open changes, then open base and scan; a missing file causes a new snapshot."""
        proc = state.procs[me]
        if proc.pc is Pc.START and state.registry >= 0:
            dataset = state.datasets[state.registry]
            base_first = world.breaks(Variant.BASE_FIRST)
            first = dataset.base if base_first else dataset.changes
            if proc.incarnation != state.registry:
                proc = Proc(turn=proc.turn, incarnation=state.registry)
            opened = proc._replace(pc=Pc.OPENED, pinned=first.head, acked=dataset.acked)
            yield f"opens {'base' if base_first else 'changes'}", state.with_proc(me, opened)
        elif proc.pc is Pc.OPENED and proc.pinned is not None:
            yield self._scan(world, state, me, proc.pinned)

    def _scan(self, world: World, state: State, me: int, pinned: Version) -> Step:
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        changes, base = pinned, dataset.base.head
        if world.breaks(Variant.BASE_FIRST):
            changes, base = dataset.changes.head, pinned
        if refused(world, dataset, changes, base):
            sound = not apart(dataset.changes.head, dataset.base.head)
            stopped = state.with_proc(me, proc._replace(pc=Pc.DONE, pinned=None))
            wrong = "a sound dataset was refused" if sound else ""
            return "finds the tables apart and reads nothing", stopped._replace(wrong=wrong)
        if not dataset.readable(changes.files | base.files):
            again = proc._replace(pc=Pc.START, pinned=None)
            return "meets a missing file and starts over", state.with_proc(me, again)
        view = snapshot_view(world.kind, changes, base, world.broken)
        at = (sequence_of(changes, base), len(dataset.load))
        wrong = judge(world, state, proc, view, at)
        last = proc.turn + 1 == self.reads
        done = Proc(
            pc=Pc.DONE if last else Pc.START,
            turn=proc.turn + 1,
            incarnation=proc.incarnation,
            seq=at[0],
            loaded=at[1],
        )
        return f"reads {view} at {at[0]}", state.with_proc(me, done)._replace(wrong=wrong)


@dataclass(frozen=True, slots=True)
class Follower:
    """Stores its own rows and sequence; a poll applies new changes, or refills after a prune."""

    name: str
    polls: int = 2

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Open changes, then read base and apply or refill."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if proc.pc is Pc.START:
            opened = proc._replace(pc=Pc.OPENED, pinned=dataset.changes.head, acked=dataset.acked)
            yield "opens changes", state.with_proc(me, opened)
        elif proc.pc is Pc.OPENED and proc.pinned is not None:
            yield self._forward(world, state, me, proc.pinned)

    def _forward(self, world: World, state: State, me: int, changes: Version) -> Step:
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        base = dataset.base.head
        pruned = changes.value("siltstone.prune") > proc.seq
        if world.breaks(Variant.FOLLOWER_NEVER_REFILLS):
            pruned = False
        fill = proc.seq < 0 or pruned or base.value("siltstone.content") > proc.content
        needed = changes.files | base.files if fill else changes.files
        if not dataset.readable(needed):
            again = proc._replace(pc=Pc.START, pinned=None)
            return "meets a missing file and starts over", state.with_proc(me, again)
        if fill:
            rows, seq = snapshot_view(world.kind, changes, base, world.broken), sequence_of(changes, base)
            if world.breaks(Variant.FILL_NUMBERED_BY_CHANGES):
                seq = changes.value("siltstone.seq")
            event = "fills" if proc.seq < 0 else "refills"
        else:
            rows = apply(world.kind, proc.rows, delta(changes.files, above=proc.seq))
            seq, event = max(changes.value("siltstone.seq"), proc.seq), "applies"
        loaded = len(dataset.load) if fill else proc.loaded
        wrong = judge(world, state, proc, rows, (seq, loaded))
        last = proc.turn + 1 == self.polls
        done = Proc(
            pc=Pc.DONE if last else Pc.START,
            turn=proc.turn + 1,
            rows=rows,
            seq=seq,
            content=base.value("siltstone.content"),
            loaded=loaded,
        )
        return f"{event} to {seq}", state.with_proc(me, done)._replace(wrong=wrong)
