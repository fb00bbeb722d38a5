"""Processes that move rows and change no answer: fold and prune, squash, cluster or roll-up.

Flow of each: pin what is read, plan (the new file's rows follow from the pinned ones), check and
put. A refused plan is thrown away and made anew, at most `tries` times. No process holds a lease
here: two folders run into each other freely, and only the commit's check keeps the data right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from tests.model.actors import Step
from tests.model.commit import Outcome, Progress, pursue
from tests.model.rows import delta, fold, rewritten, squash
from tests.model.state import Commit, Dataset, File, Pc, Proc, State, Version, World
from tests.model.variants import Variant


def started_over(state: State, me: int, *, tries: int) -> State:
    """Back to the beginning with nothing remembered, or stop after the last try."""
    proc = state.procs[me]
    spent = proc.tries + 1
    pc = Pc.START if spent < tries else Pc.DONE
    fresh = Proc(pc=pc, tries=spent, incarnation=proc.incarnation, in_flight=proc.in_flight)
    return state.with_proc(me, fresh)


def staged(world: World, dataset: Dataset, commit: Commit) -> Dataset:
    """The new files lie on disk, unreferenced; only a purge (a fine world) ever looks at them."""
    if not world.fine:
        return dataset
    files = {(file.name, commit.epoch or 0) for file in commit.adds}
    return dataset._replace(staged=dataset.staged | files)


def prune_commit(world: World, dataset: Dataset, commit_id: str, watermark: int) -> Commit | None:
    """Removes exactly the files with `_seq` up to the watermark; None if that is done already."""
    head = dataset.changes.head
    if watermark <= head.value("siltstone.prune"):
        return None
    below = frozenset(file for file in head.files if file.seq <= watermark)
    if world.breaks(Variant.PRUNE_BY_LISTING):
        below = head.files
    return Commit(
        id=commit_id,
        table="changes",
        planned=head.number,
        removes=below,
        sets=(("siltstone.prune", watermark),),
    )


@dataclass(frozen=True, slots=True)
class Folder:
    """Folds, then prunes; with nothing to fold it only prunes, as recovery after a crash does.

    `files` bounds how many change files one fold takes, lowest numbers first; None takes all.
    """

    name: str
    tries: int = 2
    files: int | None = None

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Open changes, open base and write, commit; read the watermark, prune."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if proc.phase == "prune":
            yield from self._prune(world, state, me)
        elif proc.pc is Pc.START:
            opened = proc._replace(pc=Pc.OPENED, pinned=dataset.changes.head)
            yield "opens changes", state.with_proc(me, opened)
        elif proc.pc is Pc.OPENED and proc.pinned is not None:
            yield self._run(world, state, me, proc.pinned)
        elif proc.pc in {Pc.CHECK, Pc.PUT} and proc.commit is not None:
            for progress in pursue(world, state, me, proc.commit):
                yield f"fold {progress.event}", self._after_fold(progress, me)

    def _run(self, world: World, state: State, me: int, changes: Version) -> Step:
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        base = dataset.base.head
        if not dataset.readable(changes.files | base.files):
            again = started_over(state, me, tries=self.tries)
            return "meets a missing file and starts over", again
        watermark = base.value("siltstone.fold")
        taken, target = self._chosen(changes, watermark)
        if target <= watermark:
            pruning = proc._replace(pc=Pc.PRUNE, phase="prune", pinned=None)
            return "finds nothing to fold", state.with_proc(me, pruning)
        commit = self._planned(world, proc, base, taken, target)
        ready = proc._replace(pc=Pc.CHECK, pinned=None, commit=commit, mark=target)
        state = state.with_dataset(proc.incarnation, staged(world, dataset, commit))
        return f"opens base and folds up to {target}", state.with_proc(me, ready)

    def _chosen(self, changes: Version, watermark: int) -> tuple[list[File], int]:
        ahead = sorted((f for f in changes.files if f.seq > watermark), key=lambda f: f.seq)
        if self.files is None:
            return ahead, changes.value("siltstone.seq")
        ahead = ahead[: self.files]
        return ahead, ahead[-1].seq if ahead else watermark

    def _planned(self, world: World, proc: Proc, base: Version, taken: list[File], target: int) -> Commit:
        name = f"{self.name}.{proc.tries}"
        changes = delta(taken, above=base.value("siltstone.fold"))
        change = fold(world.kind, base.files, changes, name=name)
        transactional = not world.breaks(Variant.FOLD_WITHOUT_TRANSACTION)
        depends = transactional and not world.breaks(Variant.FOLD_IGNORES_FOLDS)
        return Commit(
            id=name,
            table="base",
            planned=base.number,
            removes=change.removes,
            adds=change.adds,
            sets=(("siltstone.fold", target),) if transactional else (),
            depends=("siltstone.fold",) if depends else (),
            epoch=base.value("siltstone.epoch"),
        )

    def _after_fold(self, progress: Progress, me: int) -> State:
        state = progress.state
        proc = state.procs[me]
        match progress.outcome:
            case Outcome.PENDING:
                return state
            case Outcome.LANDED:
                pruning = proc._replace(pc=Pc.PRUNE, phase="prune", commit=None)
                return state.with_proc(me, pruning)
            case Outcome.REFUSED | Outcome.FENCED | Outcome.GONE:
                return started_over(state, me, tries=self.tries)

    def _prune(self, world: World, state: State, me: int) -> Iterator[Step]:
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if proc.pc is Pc.PRUNE:
            watermark = dataset.base.head.value("siltstone.fold")
            if world.breaks(Variant.FOLD_WITHOUT_TRANSACTION):
                watermark = proc.mark
            pc = Pc.CHECK if watermark > dataset.changes.head.value("siltstone.prune") else Pc.DONE
            known = proc._replace(pc=pc, mark=watermark, commit=None)
            yield f"reads the watermark {watermark}", state.with_proc(me, known)
            return
        if proc.pc not in {Pc.CHECK, Pc.PUT}:
            return
        done = state.with_proc(me, Proc(pc=Pc.DONE, phase="prune", in_flight=proc.in_flight))
        name = f"{self.name}.{proc.tries}/prune"
        commit = proc.commit if proc.pc is Pc.PUT else None
        commit = commit or prune_commit(world, dataset, name, proc.mark)
        if commit is None:
            yield "finds it pruned", done
            return
        for progress in pursue(world, state, me, commit):
            if progress.outcome is not Outcome.PENDING:
                finished = Proc(pc=Pc.DONE, phase="prune", in_flight=proc.in_flight)
                yield f"prune {progress.event}", progress.state.with_proc(me, finished)
            else:
                yield f"prune {progress.event}", progress.state


@dataclass(frozen=True, slots=True)
class Squasher:
    """Makes one change file of any contiguous range of live ones."""

    name: str
    tries: int = 2

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Plan every possible range, then commit the one planned."""
        proc = state.procs[me]
        if proc.pc is Pc.START:
            head = state.datasets[proc.incarnation].changes.head
            for files in squashable(head.files, holes=world.breaks(Variant.SQUASH_WITH_HOLE)):
                name = f"{self.name}.{proc.tries}"
                keep = not world.breaks(Variant.SQUASH_FORGETS_SEQUENCES)
                added = squash(world.kind, files, name=name, keep_sequences=keep)
                commit = Commit(name, "changes", head.number, files, frozenset({added}))
                ready = proc._replace(pc=Pc.CHECK, commit=commit)
                numbers = sorted(file.seq for file in files)
                yield f"plans a squash of {numbers}", state.with_proc(me, ready)
        elif proc.pc in {Pc.CHECK, Pc.PUT} and proc.commit is not None:
            for progress in pursue(world, state, me, proc.commit):
                yield f"squash {progress.event}", finished(progress, me, tries=self.tries)


def squashable(files: frozenset[File], *, holes: bool) -> Iterator[frozenset[File]]:
    """Every run of two or more neighbouring live files; with `holes`, every other choice."""
    ordered = sorted(files, key=lambda file: file.seq)
    for size in range(2, len(ordered) + 1):
        for picked in combinations(range(len(ordered)), size):
            if (picked[-1] - picked[0] + 1 == size) is not holes:
                yield frozenset(ordered[i] for i in picked)


@dataclass(frozen=True, slots=True)
class Clusterer:
    """Rewrites all base files into one and leaves siltstone.fold alone; so does a roll-up."""

    name: str
    tries: int = 2

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Plan on the head of base, then commit."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        head = dataset.base.head
        if proc.pc is Pc.START and head.files:
            if not dataset.readable(head.files):
                return
            name = f"{self.name}.{proc.tries}"
            adds = rewritten(name, [row for file in head.files for row in file.rows])
            epoch = head.value("siltstone.epoch")
            commit = Commit(name, "base", head.number, head.files, adds, epoch=epoch)
            ready = proc._replace(pc=Pc.CHECK, commit=commit)
            state = state.with_dataset(proc.incarnation, staged(world, dataset, commit))
            yield "plans a cluster", state.with_proc(me, ready)
        elif proc.pc in {Pc.CHECK, Pc.PUT} and proc.commit is not None:
            for progress in pursue(world, state, me, proc.commit):
                yield f"cluster {progress.event}", finished(progress, me, tries=self.tries)


def finished(progress: Progress, me: int, *, tries: int) -> State:
    """The state after a compaction's commit step: done, still under way, or to be planned anew."""
    match progress.outcome:
        case Outcome.PENDING:
            return progress.state
        case Outcome.LANDED:
            proc = progress.state.procs[me]
            done = Proc(pc=Pc.DONE, incarnation=proc.incarnation, in_flight=proc.in_flight)
            return progress.state.with_proc(me, done)
        case Outcome.REFUSED | Outcome.FENCED | Outcome.GONE:
            return started_over(progress.state, me, tries=tries)
