"""The search: every reachable state, breadth first, with the invariants checked in each.

Because the search is breadth first, the first violation has a shortest trace. A state is stored once
with the step that led to it. The trace is rebuilt from those steps. The search is bounded: a scenario
with more than `most` states is an error, not a partial success.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.model.actors import Actor, Step
from tests.model.commit import late_landings, settled
from tests.model.compactions import EXACT, holds_folded
from tests.model.relation import apart
from tests.model.rows import in_period, oracle, snapshot_view
from tests.model.state import Dataset, Kind, Pc, Proc, State, World
from tests.model.variants import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A small history: start state, actors and budget of faults.

    `steals` is the number of times that a lease may be acquired from a live holder.
    """

    actors: tuple[Actor, ...]
    kind: Kind = Kind.KEYED
    start: Dataset = field(default_factory=Dataset)
    unknowns: int = 0
    crashes: int = 0
    steals: int = 0
    fine: bool = False
    judges_epochs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a search; `events` counts transitions by event text without numbers and rows."""

    states: int
    transitions: int
    final_states: int
    events: Counter[str]
    violation: str = ""
    trace: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return the counterexample as text."""
        lines = [f"{i:>3}  {step}" for i, step in enumerate(self.trace, start=1)]
        return "\n".join([*lines, f"  => {self.violation}"])


class SearchTooLargeError(Exception):
    """The scenario has more states than the search may visit."""


def wrong_history(dataset: Dataset) -> str:
    """Return the error in the written and acknowledged batches; empty if there is no error."""
    numbers = [entry.seq for entry in dataset.history]
    if numbers != list(range(1, len(numbers) + 1)):
        return f"sequences are not gapless and unique: {numbers}"
    names = [entry.batch.name for entry in (*dataset.history, *dataset.load)]
    if len(set(names)) != len(names):
        return f"a batch was applied twice: {names}"
    if not dataset.acked <= set(names):
        return f"acknowledged and lost: {sorted(dataset.acked - set(names))}"
    return ""


def wrong_tables(world: World, dataset: Dataset) -> str:
    """Return the error that a read would meet now; empty if there is no error."""
    changes, base = dataset.changes.head, dataset.base.head
    if dataset.restored and apart(changes, base):
        return ""  # before the repair, reads and writes are refused
    if not dataset.readable(changes.files | base.files):
        return "a live file is not on disk"
    view = snapshot_view(world.kind, changes, base, world.broken)
    truth = oracle(world.kind, dataset, upto=len(dataset.history), loaded=True)
    if view != truth:
        return f"a read now would give {view}, the truth is {truth}"
    if misplaced := [file.name for file in base.files if not in_period(world.kind, file)]:
        return f"rows lie outside their period: {misplaced}"
    if apart(changes, base):
        return "siltstone.prune <= siltstone.fold <= siltstone.seq does not hold"
    return ""


def violation_in(world: World, state: State) -> str:
    """Return the violation in a state; empty if there is none."""
    if state.wrong:
        return state.wrong
    for dataset in state.datasets:
        wrong = wrong_history(dataset)
        if not wrong and not dataset.swept:
            wrong = wrong_tables(world, dataset)
        if wrong:
            return wrong
    for proc in state.procs:
        live = state.datasets[proc.incarnation].changes.head.files
        if proc.phase == EXACT and any(holds_folded(file, proc.mark) for file in live):
            return "a row that base held at an exact prune is in changes"
    return ""


def successors(world: World, actors: tuple[Actor, ...], state: State) -> Iterator[Step]:
    """Yield every next state, with the event text of its step."""
    for me, actor in enumerate(actors):
        proc = state.procs[me]
        if proc.pc in {Pc.DONE, Pc.DEAD}:
            continue
        for event, after in actor.steps(world, state, me):
            yield f"{actor.name}: {event}", after
        if state.crashes and proc != Proc():
            dead = Proc(pc=Pc.DEAD, incarnation=proc.incarnation, in_flight=proc.in_flight, epoch=proc.epoch)
            crashed = state.with_proc(me, dead)._replace(crashes=state.crashes - 1)
            yield f"{actor.name}: crashes", crashed
    yield from late_landings(world, state)


def worded(step: str) -> str:
    """Return the event text of a step without numbers and rows, as `Report.events` counts it."""
    return " ".join(word for word in step.split() if word[0] not in "([{'0123456789")


def explore(scenario: Scenario, broken: Variant | None = None, *, most: int = 2_000_000) -> Report:
    """Visit every reachable state; stop at the first violation.

    Raises:
        SearchTooLargeError: The scenario has more than `most` states.
    """
    actors = scenario.actors
    names = tuple(actor.name for actor in actors)
    world = World(
        kind=scenario.kind,
        broken=broken,
        fine=scenario.fine,
        names=names,
        judges_epochs=scenario.judges_epochs,
    )
    first = State(
        datasets=(scenario.start,),
        registry=0,
        procs=tuple(Proc() for _ in actors),
        unknowns=scenario.unknowns,
        crashes=scenario.crashes,
        steals=scenario.steals,
    )
    seen: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    steps: Counter[str] = Counter()
    final = 0
    violation = violation_in(world, first)
    while waiting and not violation:
        state = waiting.popleft()
        moved = False
        for step, reached in successors(world, actors, state):
            after = settled(reached)
            moved = True
            steps[step] += 1
            if after in seen:
                continue
            seen[after] = (state, step)
            if violation := violation_in(world, after):
                first = after
                break
            waiting.append(after)
        final += not moved
        if len(seen) > most:
            raise SearchTooLargeError(f"more than {most} states")
    events: Counter[str] = Counter()
    for step, count in steps.items():
        events[worded(step)] += count
    return Report(
        states=len(seen),
        transitions=steps.total(),
        final_states=final,
        events=events,
        violation=violation,
        trace=_trace(seen, first) if violation else (),
    )


def _trace(seen: dict[State, tuple[State, str] | None], last: State) -> tuple[str, ...]:
    steps: list[str] = []
    link = seen[last]
    while link is not None:
        state, step = link
        steps.append(step)
        link = seen[state]
    return tuple(reversed(steps))
