"""A process that loads a file into a log: straight to base while the log is empty, as a change batch otherwise.

A log keeps every row, so a repeated load duplicates rows here; in a keyed dataset it does not. A file must not be loaded
twice, even if one process loads it straight to base and another process as changes. The file has a mark: an app
transaction of the table that it was loaded into.

    1. open changes, open base; rows in either, or a base that is closed for first loads, mean a change batch;
    2. the load's commit depends on siltstone.fold (another load, a fold) and on siltstone.loads (base was closed);
    3. a change batch first closes base (siltstone.loads), then searches both tables for the file's mark, and commits with the
       mark, unless it exists by then.

In the truth, a load follows everything that was written before it began to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.actors import Step, acknowledged, write_commit
from tests.model.commit import Outcome, Progress, commit_steps
from tests.model.rows import delta, hour_of, rewritten
from tests.model.state import Batch, Commit, Dataset, Entry, File, Pc, Proc, State, Version, World
from tests.model.variants import Variant

LOADS = "siltstone.loads"


@dataclass(frozen=True, slots=True)
class LogLoader:
    """Loads one file, whose rows are a batch; another loader with the same batch loads the same file."""

    name: str
    batch: Batch

    @property
    def mark(self) -> str:
        """App transaction that marks the file as loaded."""
        return f"file/{self.batch.name}"

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Open changes, open base and plan; then commit the load, or close base, search and write."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if proc.pc is Pc.START:
            yield "opens changes", state.with_proc(me, proc._replace(pc=Pc.OPENED, pinned=dataset.changes.head))
        elif proc.pc is Pc.OPENED and proc.phase == "look":
            yield self._look(state, me)
        elif proc.pc is Pc.OPENED and proc.pinned is not None:
            yield self._plan(world, state, me, proc.pinned)
        elif proc.phase == "close" and proc.pc is Pc.CHECK and dataset.base.head.value(LOADS):
            yield "finds base closed", state.with_proc(me, self._looking(proc))
        elif proc.pc in {Pc.CHECK, Pc.PUT}:
            commit = self._commit(dataset, proc)
            if proc.phase == "write" and self._is_applied(dataset, commit):
                yield "finds the file loaded", self._skipped(state, me)
                return
            for progress in commit_steps(world, state, me, commit):
                yield f"{proc.phase} {progress.event}", self._after(world, progress, me)

    def _plan(self, world: World, state: State, me: int, changes: Version) -> Step:
        proc = state.procs[me]
        base = state.datasets[proc.incarnation].base.head
        if base.value(self.mark) or changes.value(self.mark):
            return "finds the file loaded", self._skipped(state, me)
        watermark = base.value("siltstone.fold")
        has_rows = bool(base.files or delta(changes.files, above=watermark))
        if world.breaks(Variant.LOAD_INTO_ROWS):
            has_rows = False
        if has_rows or base.value(LOADS):
            return "finds rows and writes instead", state.with_proc(me, self._as_writer(world, proc))
        groups = {hour_of(row): [r for r in self.batch.rows if hour_of(r) == hour_of(row)] for row in self.batch.rows}
        files = [rewritten(f"{self.name}/{period}", rows, period=period) for period, rows in groups.items()]
        fold = () if world.breaks(Variant.LOAD_WITHOUT_DEPENDENCY) else ("siltstone.fold",)
        commit = Commit(
            id=f"{self.name}/load",
            table="base",
            planned=base.number,
            adds=frozenset().union(*files),
            sets=(
                ("siltstone.fold", watermark),
                ("siltstone.content", base.value("siltstone.content") + 1),
                (self.mark, 1),
            ),
            depends=(*fold, LOADS),
            load=(Entry(max(watermark, changes.value("siltstone.seq")), self.batch),),
        )
        planned = proc._replace(pc=Pc.CHECK, phase="load", pinned=None, commit=commit)
        return "opens base and plans a load", state.with_proc(me, planned)

    def _commit(self, dataset: Dataset, proc: Proc) -> Commit:
        """Return the commit of this phase.

        A load is committed as planned; other commits are rebuilt before each try.
        """
        if proc.phase == "load" and proc.commit is not None:
            return proc.commit
        if proc.phase == "close":
            planned = dataset.base.head.number if proc.commit is None else proc.commit.planned
            return Commit(id=f"{self.name}/close", table="base", planned=planned, sets=((LOADS, 1),))
        commit = write_commit(dataset, f"{self.name}/write", (self.batch,), proc.commit)
        files = frozenset(File(f"{self.name}/changes", file.seq, file.rows) for file in commit.adds)
        return commit._replace(adds=files, sets=(*commit.sets, (self.mark, 1)))

    def _is_applied(self, dataset: Dataset, commit: Commit) -> bool:
        """True if another process's commit has added the file to changes.

        An existing app transaction is never set again.
        """
        return bool(dataset.changes.head.value(self.mark)) and commit.id not in dataset.changes.landed

    def _look(self, state: State, me: int) -> Step:
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if dataset.base.head.value(self.mark) or dataset.changes.head.value(self.mark):
            return "finds the file loaded", self._skipped(state, me)
        return "looks for the file", state.with_proc(me, proc._replace(pc=Pc.CHECK, phase="write"))

    def _as_writer(self, world: World, proc: Proc) -> Proc:
        if world.breaks(Variant.LOAD_LEAVES_BASE_OPEN):
            return self._looking(proc)
        return Proc(pc=Pc.CHECK, phase="close", in_flight=proc.in_flight)

    def _looking(self, proc: Proc) -> Proc:
        return Proc(pc=Pc.OPENED, phase="look", in_flight=proc.in_flight)

    def _skipped(self, state: State, me: int) -> State:
        return state.with_proc(me, Proc(pc=Pc.DONE, in_flight=state.procs[me].in_flight))

    def _after(self, world: World, progress: Progress, me: int) -> State:
        state = progress.state
        proc = state.procs[me]
        match progress.outcome:
            case Outcome.PENDING:
                return state
            case Outcome.LANDED if proc.phase == "close":
                return state.with_proc(me, self._looking(proc))
            case Outcome.LANDED:
                return self._skipped(acknowledged(state, me, (self.batch,)), me)
            case _ if proc.phase == "load":
                return state.with_proc(me, self._as_writer(world, proc))
            case _:
                return state.with_proc(me, self._looking(proc))
