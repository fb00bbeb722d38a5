"""Every ordered pair of two commits that were planned on the same version: the first lands, the second may or may not.

The handwritten table below is the promise. A refused commit raises Conflict and changes nothing.
The table has four files with one row each: ids 1 to 4, sequences 1 to 4. A fold and a prune rewrite or remove files 1
and 2, a cluster and a squash files 2 and 3. So all four share file 2.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.compaction.operations.garbage_collection import vacuum
from siltstone.coordination.liveness import LivenessLock
from siltstone.dataset.snapshot import sequence_of
from siltstone.dataset.store import Store
from siltstone.dataset.write.row_conversion import change_rows
from siltstone.delta.checkpoints import forget_history, write_checkpoint
from siltstone.delta.parquet import write_file
from siltstone.delta.table import Table
from siltstone.errors import Conflict
from siltstone.lake import Lake
from siltstone.model.columns import APP_FOLD, APP_PRUNE, SEQ, Op
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from tests.support.internals import store_of
from tests.support.tables import FAST, append_commit, ids, open_table, state

LANDS, REFUSED = "lands", "refused"
KINDS = ("append", "fold", "cluster", "prune", "squash", "first load", "evolve", "vacuum")

SECOND: dict[tuple[str, str], str] = {
    ("append", "append"): LANDS,
    ("append", "fold"): LANDS,
    ("append", "cluster"): LANDS,
    ("append", "prune"): LANDS,
    ("append", "squash"): LANDS,
    ("append", "first load"): LANDS,
    ("append", "evolve"): LANDS,
    ("append", "vacuum"): LANDS,
    ("fold", "append"): LANDS,
    ("fold", "fold"): REFUSED,  # the watermark moved
    ("fold", "cluster"): REFUSED,  # file 2
    ("fold", "prune"): REFUSED,  # files 1 and 2
    ("fold", "squash"): REFUSED,  # file 2
    ("fold", "first load"): REFUSED,  # the watermark moved
    ("fold", "evolve"): LANDS,
    ("fold", "vacuum"): LANDS,
    ("cluster", "append"): LANDS,
    ("cluster", "fold"): REFUSED,  # file 2
    ("cluster", "cluster"): REFUSED,
    ("cluster", "prune"): REFUSED,  # file 2
    ("cluster", "squash"): REFUSED,
    ("cluster", "first load"): LANDS,
    ("cluster", "evolve"): LANDS,
    ("cluster", "vacuum"): LANDS,
    ("prune", "append"): LANDS,
    ("prune", "fold"): REFUSED,  # files 1 and 2
    ("prune", "cluster"): REFUSED,  # file 2
    ("prune", "prune"): REFUSED,
    ("prune", "squash"): REFUSED,  # file 2
    ("prune", "first load"): LANDS,
    ("prune", "evolve"): LANDS,
    ("prune", "vacuum"): LANDS,
    ("squash", "append"): LANDS,
    ("squash", "fold"): REFUSED,  # file 2
    ("squash", "cluster"): REFUSED,
    ("squash", "prune"): REFUSED,  # file 2
    ("squash", "squash"): REFUSED,
    ("squash", "first load"): LANDS,
    ("squash", "evolve"): LANDS,
    ("squash", "vacuum"): LANDS,
    ("first load", "append"): LANDS,
    ("first load", "fold"): REFUSED,  # the watermark was set
    ("first load", "cluster"): LANDS,
    ("first load", "prune"): LANDS,
    ("first load", "squash"): LANDS,
    ("first load", "first load"): REFUSED,
    ("first load", "evolve"): LANDS,
    ("first load", "vacuum"): LANDS,
    ("evolve", "append"): LANDS,
    ("evolve", "fold"): REFUSED,  # metadata
    ("evolve", "cluster"): REFUSED,
    ("evolve", "prune"): REFUSED,
    ("evolve", "squash"): REFUSED,
    ("evolve", "first load"): REFUSED,
    ("evolve", "evolve"): LANDS,
    ("evolve", "vacuum"): LANDS,
    ("vacuum", "append"): LANDS,
    ("vacuum", "fold"): LANDS,
    ("vacuum", "cluster"): LANDS,
    ("vacuum", "prune"): LANDS,
    ("vacuum", "squash"): LANDS,
    ("vacuum", "first load"): LANDS,
    ("vacuum", "evolve"): LANDS,
    ("vacuum", "vacuum"): LANDS,
}

CLEANED: dict[str, str] = {
    "append": LANDS,
    "fold": REFUSED,
    "cluster": REFUSED,
    "prune": REFUSED,
    "squash": REFUSED,
    "first load": REFUSED,
    "evolve": LANDS,
    "vacuum": LANDS,
}
"""Outcome of a commit whose plan is older than the log: the entries since then are unknown."""

DISJOINT: dict[tuple[str, str], str] = {
    ("fold", "cluster of 3 and 4"): LANDS,
    ("cluster of 3 and 4", "fold"): LANDS,
    ("prune", "cluster of 3 and 4"): LANDS,
    ("cluster of 3 and 4", "prune"): LANDS,
    ("fold of nothing", "prune"): LANDS,
    ("fold of nothing", "cluster"): LANDS,
    ("fold of nothing", "fold"): REFUSED,
    ("fold of nothing", "first load"): REFUSED,
    ("first load", "fold of nothing"): REFUSED,
    ("prune", "fold of nothing"): LANDS,
    ("evolve", "fold of nothing"): REFUSED,
    ("append", "fold of nothing"): LANDS,
}

EFFECT: dict[str, tuple[set[int], set[int]]] = {
    "prune": ({1, 2}, set()),
    "append": (set(), {10}),
    "first load": (set(), {20}),
}
"""Ids that a kind removes and adds; other kinds only move rows, or change none."""

Step = Callable[[Table], object]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one dataset of four change files; each case uses a copy."""
    root = tmp_path_factory.mktemp("interleavings") / "lake"
    with Lake.open(root, settings=FAST) as lake:
        people = lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
        for number in range(1, 5):
            people.upsert([{"id": number}])
    return root


@dataclass
class Site:
    """One copy of the lake, and the process that plans on it."""

    store: Store
    owners: list[LivenessLock]

    @property
    def path(self) -> Path:
        return self.store.changes.path

    def file(self, *sequences: int) -> tuple[DataFile, ...]:
        return tuple(file for file in self.store.changes.pin().files if sequence_of(file) in sequences)

    def stage(self, *numbers: int, sequence: int) -> DataFile:
        """Write rows as a live owner does, so that a vacuum must keep them."""
        owner = self.store.liveness_lock()
        self.owners.append(owner)
        relative = f"data/{owner.owner}.parquet"
        rows = change_rows(
            pa.table({"id": list(numbers)}, schema=self.store.schema),
            op=Op.UPSERT,
            schema=self.store.change_schema,
            batch_id=owner.owner,
            written_at=self.store.clock.now(),
        )
        write_file(rows, self.path / relative, key=())
        size = (self.path / relative).stat().st_size
        return DataFile(path=relative, size_bytes=size, rows=len(numbers), partition={SEQ: str(sequence)})


@pytest.fixture
def site(template: Path, tmp_path: Path) -> Iterator[Site]:
    shutil.copytree(template, tmp_path / "lake")
    found = Site(store=store_of(Lake.open(tmp_path / "lake", settings=FAST).dataset("a.b.c")), owners=[])
    yield found
    for owner in found.owners:
        owner.close()


def commit_of(commit: Commit) -> Step:
    return lambda table: table.commit(lambda _: commit)


def plan(kind: str, site: Site) -> Step:
    """Plan on the newest version and return a function that commits the plan through a given handle."""
    table = open_table(site.path)
    version = table.version()
    match kind:
        case "append":
            file = site.stage(10, sequence=0)
            return lambda table: table.commit(lambda parent: append_commit(parent, file))
        case "fold" | "fold of nothing":
            touched = site.file(1, 2) if kind == "fold" else ()
            added = (site.stage(1, 2, sequence=2),) if touched else ()
            return commit_of(
                Commit(
                    kind=CommitKind.FOLD,
                    plan_version=version,
                    adds=added,
                    removes=touched,
                    transactions={APP_FOLD: 4},
                    depends=frozenset({APP_FOLD}),
                )
            )
        case "cluster" | "squash" | "cluster of 3 and 4":
            chosen = (3, 4) if kind == "cluster of 3 and 4" else (2, 3)
            return commit_of(
                Commit(
                    kind=CommitKind.SQUASH if kind == "squash" else CommitKind.CLUSTER,
                    plan_version=version,
                    adds=(site.stage(*chosen, sequence=chosen[-1]),),
                    removes=site.file(*chosen),
                )
            )
        case "prune":
            return commit_of(
                Commit(
                    kind=CommitKind.PRUNE,
                    plan_version=version,
                    removes=site.file(1, 2),
                    transactions={APP_PRUNE: 2},
                    depends=frozenset({APP_PRUNE}),
                )
            )
        case "first load":
            return commit_of(
                Commit(
                    kind=CommitKind.FIRST_LOAD,
                    plan_version=version,
                    adds=(site.stage(20, sequence=0),),
                    transactions={APP_FOLD: 0},
                    depends=frozenset({APP_FOLD}),
                )
            )
        case "evolve":
            return lambda table: table.set_properties({"siltstone.test": "x"})
        case "vacuum":
            return lambda _: vacuum(site.store, retention_hours=1, dry_run=False)
        case _:
            raise ValueError(kind)


def expected_ids(landed: list[str]) -> list[int]:
    rows = [1, 2, 3, 4]
    for kind in landed:
        removed, added = EFFECT.get(kind, (set(), set()))
        rows = [number for number in rows if number not in removed] + sorted(added)
    return sorted(rows)


def run_second(site: Site, step: Step, table: Table, outcome: str) -> None:
    before = state(site.path)
    if outcome == LANDS:
        step(table)
        return
    with pytest.raises(Conflict):
        step(table)
    assert state(site.path) == before


@pytest.mark.parametrize("handle", ["stale", "fresh"])
@pytest.mark.parametrize(("first", "second"), [(a, b) for a in KINDS for b in KINDS])
def test_a_commit_lands_after_another_only_if_it_still_holds(site: Site, first: str, second: str, handle: str):
    stale = open_table(site.path)
    stale.pin()
    one, two = plan(first, site), plan(second, site)
    one(open_table(site.path))
    run_second(site, two, stale if handle == "stale" else open_table(site.path), SECOND[first, second])
    landed = [first, second] if SECOND[first, second] == LANDS else [first]
    assert ids(site.path) == expected_ids(landed)


@pytest.mark.parametrize("handle", ["stale", "fresh"])
@pytest.mark.parametrize(("first", "second"), [(a, b) for a in ("append", "fold") for b in KINDS])
def test_a_plan_older_than_the_log_is_refused_unless_it_is_blind(site: Site, first: str, second: str, handle: str):
    stale = open_table(site.path)
    stale.pin()
    one, two = plan(first, site), plan(second, site)
    one(open_table(site.path))
    site.store.changes.set_properties({"siltstone.later": "x"})
    site.store.changes.set_properties({"siltstone.later": "y"})
    write_checkpoint(site.path, durable=False)
    forget_history(site.path)
    run_second(site, two, stale if handle == "stale" else open_table(site.path), CLEANED[second])
    landed = [first, second] if CLEANED[second] == LANDS else [first]
    assert ids(site.path) == expected_ids(landed)


@pytest.mark.parametrize("second", KINDS)
def test_a_checkpoint_at_the_plan_itself_hides_nothing(site: Site, second: str):
    step = plan(second, site)
    write_checkpoint(site.path, durable=False)
    forget_history(site.path)
    step(open_table(site.path))
    assert ids(site.path) == expected_ids([second])


@pytest.mark.parametrize(("first", "second"), DISJOINT)
def test_commits_on_different_files_conflict_only_in_their_transactions(site: Site, first: str, second: str):
    one, two = plan(first, site), plan(second, site)
    one(open_table(site.path))
    run_second(site, two, open_table(site.path), DISJOINT[first, second])


def test_the_table_of_outcomes_is_complete():
    assert set(SECOND) == {(a, b) for a in KINDS for b in KINDS}
    assert set(CLEANED) == set(KINDS)


def test_a_vacuum_leaves_staged_files_of_live_writers_and_takes_those_of_dead_ones(site: Site):
    mine = site.stage(5, sequence=0)
    dead = site.stage(6, sequence=0)
    site.owners.pop().close()
    vacuum(site.store, retention_hours=1, dry_run=False)
    assert (site.path / mine.path).exists()
    assert not (site.path / dead.path).exists()


def test_a_vacuum_keeps_files_that_were_removed_a_moment_ago(site: Site):
    files = site.file(1, 2)
    plan("prune", site)(open_table(site.path))
    report = vacuum(site.store, retention_hours=1, dry_run=False)
    assert report.files == ()
    assert all((site.path / file.path).exists() for file in files)
