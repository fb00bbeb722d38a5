"""Processes that move rows and change no answer: fold and prune, squash, exact prune, cluster, roll-up.

Flow of each: pin the inputs, plan (the new file's rows follow from the pinned ones), check and
put. A refused plan is discarded and planned again, at most `tries` times. No lease is needed: two
folders may conflict at any time, and only the commit's check protects the data. As jobs of a
compactor (`leases`) they commit with its epoch, and stop permanently when they are fenced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from tests.model.actors import Step, refused
from tests.model.commit import Outcome, Progress, commit_steps, land
from tests.model.rows import DAY, delta, fold, rewritten, squash
from tests.model.state import Commit, Dataset, File, Pc, Proc, State, Version, World
from tests.model.variants import Variant

FENCED = "fenced"
EXACT = "exact"
"""The phase of an exact prune that found nothing left to do."""
FEWEST_FILES = 2


def started_over(state: State, me: int, *, tries: int) -> State:
    """Return to the start with empty memory, or stop after the last try."""
    proc = state.procs[me]
    spent = proc.tries + 1
    pc = Pc.START if spent < tries else Pc.DONE
    return state.with_proc(me, fresh(proc, pc=pc, tries=spent))


def fresh(proc: Proc, *, pc: Pc, tries: int = 0, phase: str = "") -> Proc:
    """Return a process with empty memory, except its identity and its commit in flight."""
    return Proc(
        pc=pc,
        phase=phase,
        turn=proc.turn,
        tries=tries,
        incarnation=proc.incarnation,
        in_flight=proc.in_flight,
        epoch=proc.epoch,
    )


def after_refusal(progress: Progress, me: int, *, tries: int) -> State:
    """Plan again; a lease holder that was fenced stops."""
    proc = progress.state.procs[me]
    if progress.outcome is Outcome.FENCED and proc.epoch:
        return progress.state.with_proc(me, fresh(proc, pc=Pc.DONE, phase=FENCED))
    return started_over(progress.state, me, tries=tries)


def epoch_of(world: World, proc: Proc, base: Version) -> int:
    """Return the epoch of a commit: the lease's epoch, or without a lease the table's."""
    own = 0 if world.breaks(Variant.EPOCH_OF_THE_TABLE) else proc.epoch
    return own or base.value("siltstone.epoch")


def staged(world: World, dataset: Dataset, commit: Commit) -> Dataset:
    """Store the new files on disk, unreferenced.

    Only processes that delete (in a fine world) or list files read them.
    """
    if world.lists:
        dataset = dataset._replace(disk=dataset.disk | commit.adds)
    if not world.fine:
        return dataset
    files = {(file.name, commit.epoch or 0) for file in commit.adds}
    return dataset._replace(staged=dataset.staged | files)


def prune_commit(world: World, dataset: Dataset, commit_id: str, watermark: int) -> Commit | None:
    """Remove exactly the files with `_seq` up to the watermark; None if they are removed already."""
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

    `files` limits the number of change files per fold, lowest sequences first. None: no limit.
    """

    name: str
    tries: int = 2
    files: int | None = None

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Open changes, open base and write, commit. Then read the watermark and prune."""
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
            for progress in commit_steps(world, state, me, proc.commit):
                yield f"fold {progress.event}", self._after_fold(progress, me)

    def _run(self, world: World, state: State, me: int, changes: Version) -> Step:
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        base = dataset.base.head
        if refused(world, dataset, changes, base):
            return "finds the tables apart and folds nothing", state.with_proc(me, fresh(proc, pc=Pc.DONE))
        if not dataset.readable(changes.files | base.files):
            again = started_over(state, me, tries=self.tries)
            return "meets a missing file and starts over", again
        watermark = base.value("siltstone.fold")
        if world.breaks(Variant.FOLD_BY_LISTING):
            listed = (file for file in dataset.disk if file.seq and file.name not in dataset.gone)
            changes = changes._replace(files=frozenset(listed))
        taken, target = self._chosen(changes, watermark)
        if target <= watermark:
            pruning = proc._replace(pc=Pc.PRUNE, phase="prune", pinned=None)
            return "finds nothing to fold", state.with_proc(me, pruning)
        commit = self._planned(world, proc, base, taken, target)
        ready = proc._replace(pc=Pc.CHECK, pinned=None, commit=commit, mark=target)
        dataset = staged(world, dataset, commit)
        early = prune_commit(world, dataset, f"{commit.id}/early", target)
        if early is not None and world.breaks(Variant.PRUNE_BEFORE_COMMIT):
            dataset = land(dataset, early)
        state = state.with_dataset(proc.incarnation, dataset)
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
        change = fold(world.kind, base.files, changes, name=name, broken=world.broken)
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
            epoch=epoch_of(world, proc, base),
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
                return after_refusal(progress, me, tries=self.tries)

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
        done = state.with_proc(me, fresh(proc, pc=Pc.DONE, phase="prune"))
        name = f"{self.name}.{proc.tries}/prune"
        commit = proc.commit if proc.pc is Pc.PUT else None
        commit = commit or prune_commit(world, dataset, name, proc.mark)
        if commit is None:
            yield "finds it pruned", done
            return
        for progress in commit_steps(world, state, me, commit):
            if progress.outcome is not Outcome.PENDING:
                ended = fresh(progress.state.procs[me], pc=Pc.DONE, phase="prune")
                yield f"prune {progress.event}", progress.state.with_proc(me, ended)
            else:
                yield f"prune {progress.event}", progress.state


@dataclass(frozen=True, slots=True)
class Squasher:
    """Merges any contiguous range of live change files into one."""

    name: str
    tries: int = 2

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Plan every possible range, then commit the planned one."""
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
            for progress in commit_steps(world, state, me, proc.commit):
                yield f"squash {progress.event}", finished(progress, me, tries=self.tries)


def squashable(files: frozenset[File], *, holes: bool) -> Iterator[frozenset[File]]:
    """Yield every run of two or more adjacent live files; with `holes`, every other combination."""
    ordered = sorted(files, key=lambda file: file.seq)
    for size in range(2, len(ordered) + 1):
        for picked in combinations(range(len(ordered)), size):
            if (picked[-1] - picked[0] + 1 == size) is not holes:
                yield frozenset(ordered[i] for i in picked)


@dataclass(frozen=True, slots=True)
class ExactPruner:
    """Prunes as a purge does, until every row that base holds is removed from changes.

    Files up to the watermark are removed. A squashed file may have rows on both sides of the watermark. Such a file is
    rewritten without the rows below.
    """

    name: str
    tries: int = 2

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Read the watermark, open changes and rewrite, commit; repeat until no folded row is left."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if proc.pc is Pc.START:
            watermark = dataset.base.head.value("siltstone.fold")
            known = proc._replace(pc=Pc.OPENED, mark=watermark)
            yield f"reads the watermark {watermark}", state.with_proc(me, known)
        elif proc.pc is Pc.OPENED:
            commit = self._planned(world, proc, dataset.changes.head, proc.mark)
            if not commit.removes:
                done = fresh(proc, pc=Pc.DONE, phase=EXACT)._replace(mark=proc.mark)
                yield "finds no folded row in changes", state.with_proc(me, done)
            else:
                yield (
                    f"prunes exactly up to {proc.mark}",
                    state.with_proc(me, proc._replace(pc=Pc.CHECK, commit=commit)),
                )
        elif proc.pc in {Pc.CHECK, Pc.PUT} and proc.commit is not None:
            for progress in commit_steps(world, state, me, proc.commit):
                pending = progress.outcome is Outcome.PENDING
                after = progress.state if pending else started_over(progress.state, me, tries=self.tries)
                yield f"exact prune {progress.event}", after

    def _planned(self, world: World, proc: Proc, changes: Version, watermark: int) -> Commit:
        folded = frozenset(file for file in changes.files if holds_folded(file, watermark))
        kept = {file: delta([file], above=watermark) for file in folded if file.seq > watermark}
        adds = frozenset(
            File(f"{self.name}.{proc.tries}/{file.seq}", file.seq, tuple(i.row for i in rows))
            for file, rows in kept.items()
        )
        marks = not world.breaks(Variant.EXACT_PRUNE_WITHOUT_MARK)
        return Commit(
            id=f"{self.name}.{proc.tries}",
            table="changes",
            planned=changes.number,
            removes=folded,
            adds=adds,
            sets=(("siltstone.prune", watermark),) if marks else (),
            depends=("siltstone.prune",) if marks else (),
        )


def holds_folded(file: File, watermark: int) -> bool:
    """True if a change file has a row that base holds."""
    return len(delta([file], above=watermark)) < len(file.rows)


@dataclass(frozen=True, slots=True)
class Clusterer:
    """Rewrites all base files into one; siltstone.fold is unchanged."""

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
            epoch = epoch_of(world, proc, head)
            commit = Commit(name, "base", head.number, head.files, adds, epoch=epoch)
            ready = proc._replace(pc=Pc.CHECK, commit=commit)
            state = state.with_dataset(proc.incarnation, staged(world, dataset, commit))
            yield "plans a cluster", state.with_proc(me, ready)
        elif proc.pc in {Pc.CHECK, Pc.PUT} and proc.commit is not None:
            for progress in commit_steps(world, state, me, proc.commit):
                yield f"cluster {progress.event}", finished(progress, me, tries=self.tries)


@dataclass(frozen=True, slots=True)
class RollUp:
    """Merges any two or more live files of one period, or of finer periods in it, into one file.

    The planner's policy is not part of the model, so every choice is tried.
    """

    name: str
    into: str = DAY
    tries: int = 2

    def steps(self, world: World, state: State, me: int) -> Iterator[Step]:
        """Plan every possible choice on the head of base, then commit the planned one."""
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        if proc.pc is Pc.START:
            live = sorted(self._of_periods(dataset.base.head.files))
            for size in range(2, len(live) + 1):
                for chosen in combinations(live, size):
                    yield self._planned(world, state, me, frozenset(chosen))
            if len(live) < FEWEST_FILES and proc.epoch:  # a compactor continues with its next job
                yield "finds nothing to roll up", state.with_proc(me, fresh(proc, pc=Pc.DONE))
        elif proc.pc in {Pc.CHECK, Pc.PUT} and proc.commit is not None:
            commit = proc.commit
            if world.breaks(Variant.ROLL_UP_REMOVES_PERIOD):
                commit = commit._replace(removes=self._of_periods(dataset.base.head.files))
            for progress in commit_steps(world, state, me, commit):
                yield f"roll-up {progress.event}", finished(progress, me, tries=self.tries)

    def _of_periods(self, files: frozenset[File]) -> frozenset[File]:
        return files if self.into == DAY else frozenset(file for file in files if file.period == self.into)

    def _planned(self, world: World, state: State, me: int, chosen: frozenset[File]) -> Step:
        proc = state.procs[me]
        dataset = state.datasets[proc.incarnation]
        head = dataset.base.head
        if not dataset.readable(chosen):
            return "meets a missing file and starts over", started_over(state, me, tries=self.tries)
        name = f"{self.name}.{proc.tries}"
        read = chosen
        if world.breaks(Variant.ROLL_UP_BY_LISTING):
            on_disk = (file for file in dataset.disk if not file.seq and file.name not in dataset.gone)
            read = chosen | self._of_periods(frozenset(on_disk))
        moves = world.breaks(Variant.ROLL_UP_MOVES_WATERMARK)
        commit = Commit(
            id=name,
            table="base",
            planned=head.number,
            removes=chosen,
            adds=rewritten(name, [row for file in read for row in file.rows], period=self.into),
            sets=(("siltstone.fold", dataset.changes.head.value("siltstone.seq")),) if moves else (),
            epoch=epoch_of(world, proc, head),
            rolls_up=True,
        )
        ready = proc._replace(pc=Pc.CHECK, commit=commit)
        state = state.with_dataset(proc.incarnation, staged(world, dataset, commit))
        return f"plans a roll-up of {sorted(file.name for file in chosen)}", state.with_proc(me, ready)


def finished(progress: Progress, me: int, *, tries: int) -> State:
    """Return the state after a compaction's commit step: done, pending, or back to planning."""
    match progress.outcome:
        case Outcome.PENDING:
            return progress.state
        case Outcome.LANDED:
            proc = progress.state.procs[me]
            return progress.state.with_proc(me, fresh(proc, pc=Pc.DONE))
        case Outcome.REFUSED | Outcome.FENCED | Outcome.GONE:
            return after_refusal(progress, me, tries=tries)
