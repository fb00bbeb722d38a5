"""The one commit path of the model: check, put, and possible faults between and after them.

Flow of a commit:
    1. check: search the log since the plan for the commit's id; refuse if an entry since the plan
       is missing, the table is dropped, the epoch is old, a removed file is no longer live, an
       entry since the plan carries an app id the commit depends on, an app transaction would
       decrease, or an added file is missing. The version just read becomes the parent.
    2. put: lands only as the direct child of the parent. It may land and still raise, or raise and
       land later on its own (`late_landings`), as long as the parent is still the head.
    3. after any failure: back to 1.

A put below the cleaned part of the log "succeeds" on any store that only refuses to overwrite, and
no reader will ever see it. The model includes that trap, because a rule (cleaning waits longer than
any commit takes) avoids it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from tests.model.state import AppTransaction, Commit, Dataset, Pc, State, Version, World
from tests.model.variants import Variant


class Outcome(StrEnum):
    """Result of one step of a commit."""

    LANDED = "landed"
    REFUSED = "refused"
    FENCED = "fenced"
    GONE = "gone"
    PENDING = "pending"


class Progress(NamedTuple):
    """One possible next state of a commit; if PENDING, the process's memory is already updated."""

    event: str
    outcome: Outcome
    state: State


def land(dataset: Dataset, commit: Commit) -> Dataset:
    """Return the dataset after the commit."""
    table = dataset.table(commit.table)
    number = table.head.number + 1
    carried = {app for app, _ in commit.sets}
    sets = commit.sets
    if commit.epoch is not None and commit.epoch > table.head.value("siltstone.epoch"):
        sets = (*sets, ("siltstone.epoch", commit.epoch))
        carried.add("siltstone.epoch")
    unchanged = [t for t in table.head.transactions if t.app not in carried]
    carried_now = [AppTransaction(app, value, number) for app, value in sets]
    files = (table.head.files - commit.removes) | commit.adds
    table = table._replace(
        head=Version(number, files, tuple(sorted([*unchanged, *carried_now]))),
        removed=table.removed | {file.name for file in commit.removes},
        landed=table.landed | {commit.id},
        dropped=table.dropped or commit.marks_dropped,
    )
    names = {file.name for file in commit.adds}
    return dataset.with_table(commit.table, table)._replace(
        staged=frozenset(item for item in dataset.staged if item[0] not in names),
        history=(*dataset.history, *commit.entries),
        load=(*dataset.load, *commit.load),
    )


def searched(world: World, dataset: Dataset, commit: Commit) -> bool:
    """True if the search before a try finds the commit in the log."""
    table = dataset.table(commit.table)
    match world.broken:
        case Variant.BLIND_RETRY | Variant.SEARCH_ONLY_AFTER_UNKNOWN:
            return False
        case Variant.LIVE_FILE_IS_PROOF:
            names = {file.name for file in commit.adds}
            return any(file.name in names for file in table.head.files)
        case _:
            return commit.id in table.landed


def check(world: World, dataset: Dataset, commit: Commit) -> Outcome:
    """Return PENDING if the commit can land on the head."""
    table = dataset.table(commit.table)
    log_is_whole = commit.planned >= table.cleaned or world.breaks(Variant.CLEANED_LOG_IS_SILENCE)
    if log_is_whole and searched(world, dataset, commit):
        return Outcome.LANDED
    if table.dropped or dataset.swept:
        return Outcome.GONE
    if overtaken(dataset, commit) and not world.breaks(Variant.COMMIT_WITHOUT_EPOCH):
        return Outcome.FENCED
    if not (log_is_whole and fits(world, dataset, commit)):
        return Outcome.REFUSED
    return Outcome.PENDING


def overtaken(dataset: Dataset, commit: Commit) -> bool:
    """True if a newer epoch has committed to the commit's table."""
    return commit.epoch is not None and commit.epoch < dataset.table(commit.table).head.value("siltstone.epoch")


def _unchecked(world: World, commit: Commit) -> bool:
    rolls = world.breaks(Variant.ROLL_UP_UNCHECKED) and commit.rolls_up
    return rolls or world.breaks(Variant.REMOVES_UNCHECKED)


def fits(world: World, dataset: Dataset, commit: Commit) -> bool:
    """True if the head still has the planned inputs, and the disk has the added files."""
    head = dataset.table(commit.table).head
    if not (commit.removes <= head.files or _unchecked(world, commit)):
        return False
    return not any(
        [
            any(head.carried_after(app, commit.planned) for app in commit.depends),
            any(value < head.value(app) for app, value in commit.sets),
            not dataset.readable(commit.adds),
        ]
    )


def _put(world: World, state: State, me: int, commit: Commit) -> Iterator[Progress]:
    proc = state.procs[me]
    dataset = state.datasets[proc.incarnation]
    table = dataset.table(commit.table)
    back = proc._replace(pc=Pc.CHECK, commit=commit)
    if commit.parent < table.cleaned:
        yield Progress("lands below the cleaned log", Outcome.LANDED, state)
        return
    if commit.parent != table.head.number and not world.breaks(Variant.COMMIT_REBASES):
        yield Progress("loses the race", Outcome.PENDING, state.with_proc(me, back))
        return
    after = land(dataset, commit)
    if world.lists:
        after = after._replace(disk=after.disk | commit.adds)
    if commit.epoch is not None:
        after = after._replace(led=max(after.led, proc.epoch))
    landed = state.with_dataset(proc.incarnation, after)
    if world.judges_epochs and commit.epoch is not None and proc.epoch < dataset.led:
        landed = landed._replace(wrong="a job of an older epoch landed after one of a newer epoch")
    yield Progress("lands", Outcome.LANDED, landed)
    if state.unknowns > 0:
        if world.breaks(Variant.SEARCH_ONLY_AFTER_UNKNOWN):
            yield Progress("lands, raises, is found", Outcome.LANDED, landed)
        else:
            raised = landed.with_proc(me, back)._replace(unknowns=state.unknowns - 1)
            yield Progress("lands and raises", Outcome.PENDING, raised)
        late = state.with_proc(me, back._replace(in_flight=commit))
        late = late._replace(unknowns=state.unknowns - 1)
        yield Progress("raises without having landed", Outcome.PENDING, late)


def commit_steps(world: World, state: State, me: int, commit: Commit) -> Iterator[Progress]:
    """Yield the next step of a commit: the put if it is checked, otherwise the check."""
    proc = state.procs[me]
    if proc.pc is Pc.PUT and proc.commit is not None:
        yield from _put(world, state, me, proc.commit)
        return
    dataset = state.datasets[proc.incarnation]
    verdict = check(world, dataset, commit)
    if verdict is not Outcome.PENDING:
        event = "is found in the log" if verdict is Outcome.LANDED else f"is {verdict}"
        yield Progress(event, verdict, state)
        return
    checked = commit._replace(parent=dataset.table(commit.table).head.number)
    if world.fine:
        parked = proc._replace(pc=Pc.PUT, commit=checked)
        yield Progress("is checked", Outcome.PENDING, state.with_proc(me, parked))
        return
    yield from _put(world, state, me, checked)


def late_landings(world: World, state: State) -> Iterator[tuple[str, State]]:
    """Yield puts that land after their caller saw an error; the caller may be dead."""
    for me, proc in enumerate(state.procs):
        commit = proc.in_flight
        if commit is None:
            continue
        dataset = state.datasets[proc.incarnation]
        if commit.parent == dataset.table(commit.table).head.number:
            landed = state.with_dataset(proc.incarnation, land(dataset, commit))
            yield f"{world.names[me]}: the put that raised lands late", landed


def settled(state: State) -> State:
    """Forget puts that can no longer land because their parent is not the head."""
    for me, proc in enumerate(state.procs):
        if proc.in_flight is not None:
            table = state.datasets[proc.incarnation].table(proc.in_flight.table)
            if proc.in_flight.parent != table.head.number:
                state = state.with_proc(me, proc._replace(in_flight=None))
    return state


def commits_under_way(state: State, incarnation: int) -> Iterator[Commit]:
    """Yield commits that are checked but not put."""
    for proc in state.procs:
        if proc.pc is Pc.PUT and proc.incarnation == incarnation and proc.commit is not None:
            yield proc.commit
