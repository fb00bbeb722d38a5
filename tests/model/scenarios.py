"""The searched histories: each is small and tests one promise.

Values are small numbers so that a trace can be read: the batch `w2` upserts key `a` with the value 2.
"""

from __future__ import annotations

from dataclasses import replace

from tests.model.actors import FirstLoader, Follower, Reader, Writer
from tests.model.checker import Scenario
from tests.model.compactions import Clusterer, ExactPruner, Folder, RollUp, Squasher
from tests.model.copies import Copier, Repairer
from tests.model.deletions import Creator, Dropper, LogCleaner, Purger, Vacuum
from tests.model.leases import Compactor, Sweeper
from tests.model.loads import LogLoader
from tests.model.rows import hour_of
from tests.model.state import AppTransaction, Batch, Dataset, Entry, File, Kind, Row, Table, Version


def batch(name: str, *rows: Row) -> Batch:
    """Return a batch whose rows get their positions in order."""
    return Batch(name, tuple(row._replace(pos=pos) for pos, row in enumerate(rows)))


def upsert(key: str, value: int) -> Row:
    """An upsert of a whole row."""
    return Row(key, "U", value)


def append(subject: str, value: int, *, hour: int = 0, clock: int = 0) -> Row:
    """An appended row of a log dataset."""
    return Row(subject, "A", value, hour=hour, clock=clock)


def tombstone(key: str, *, hour: int = 0, clock: int = 0) -> Row:
    """A tombstone by key or by subject."""
    return Row(key, "D", hour=hour, clock=clock)


W1 = batch("w1", upsert("a", 1), upsert("b", 1))
W2 = batch("w2", upsert("a", 9), upsert("a", 2))
W3 = batch("w3", tombstone("b"))
W4 = batch("w4", upsert("b", 4))
W5 = batch("w5", upsert("c", 5))
L1 = batch("l1", append("a", 1), append("b", 1))
L2 = batch("l2", tombstone("a"))
L3 = batch("l3", append("a", 3))
L4 = batch("l4", append("b", 4))
E1 = batch("e1", append("a", 1, hour=0), append("b", 2, hour=1))
E2 = batch("e2", append("a", 3, hour=1))
E3 = batch("e3", tombstone("a", hour=1, clock=5))
E4 = batch("e4", append("b", 5, hour=0))
AHEAD = batch("ahead", append("a", 6, hour=2, clock=9))
LATE = batch("late", append("a", 7, hour=0, clock=1))


def folded(rows: Batch) -> Dataset:
    """Return a dataset whose first batch was folded, into one base file per row, and pruned."""
    files = frozenset(
        File(f"old.{r.key}", 0, (r._replace(pos=0),), hour_of(r) if r.op == "A" else "") for r in rows.rows
    )
    pruned = (AppTransaction("siltstone.prune", 1, 2), AppTransaction("siltstone.seq", 1, 1))
    return Dataset(
        changes=Table(head=Version(2, frozenset(), pruned)),
        base=Table(head=Version(1, files, (AppTransaction("siltstone.fold", 1, 1),))),
        history=(Entry(1, rows),),
        acked=frozenset({rows.name}),
    )


def one_by_one(name: str, *batches: Batch) -> Writer:
    """Return a writer that commits each batch separately."""
    return Writer(name, tuple((each,) for each in batches))


TWO_FOLDERS = Scenario(
    actors=(one_by_one("writer", W1, W2, W3), Folder("f1"), Folder("f2"), Reader("reader")),
    crashes=1,
)
RACING_WRITERS = Scenario(
    actors=(
        one_by_one("writer1", W1),
        Writer("writer2", ((W2, W3),)),
        Folder("folder", tries=1),
        Reader("reader"),
    ),
    unknowns=2,
    fine=True,
)
SQUASH = Scenario(
    actors=(
        one_by_one("writer", W1, W2, W3),
        Squasher("squasher"),
        Folder("folder"),
        Reader("reader", reads=2),
        Vacuum("vacuum"),
    ),
)
BOUNDED_FOLD = Scenario(
    actors=(
        one_by_one("writer", W1, W2, W5),
        Squasher("squasher", tries=1),
        Folder("f1", files=1, tries=1),
        Folder("f2", files=2, tries=1),
    ),
)
CLUSTER = Scenario(
    actors=(
        one_by_one("writer", W2, W3),
        Folder("folder"),
        Clusterer("clusterer"),
        Reader("reader"),
        Vacuum("vacuum", runs=2),
    ),
    start=folded(W1),
    unknowns=1,
)
FIRST_LOAD = Scenario(
    actors=(
        FirstLoader("loader1", W1),
        FirstLoader("loader2", W4),
        one_by_one("writer", W2),
        Folder("folder", tries=1),
        Reader("reader"),
    ),
    unknowns=1,
)
LOG_FIRST_LOAD = Scenario(
    kind=Kind.LOG,
    actors=(
        LogLoader("loader1", E1),
        LogLoader("loader2", E4),
        one_by_one("writer", L2),
        Folder("folder", tries=1),
        Reader("reader"),
    ),
    crashes=1,
)
LOG_SAME_FILE = Scenario(
    kind=Kind.LOG,
    actors=(
        LogLoader("loader1", E1),
        LogLoader("loader2", E1),
        one_by_one("writer", L3),
        Folder("folder", tries=1),
    ),
    unknowns=1,
    crashes=1,
)
FOLLOWED_LOAD = Scenario(
    actors=(
        FirstLoader("loader", W1),
        one_by_one("writer", W2),
        Folder("folder"),
        Follower("follower", polls=3),
    ),
    crashes=1,
)
FOLLOWER = Scenario(
    actors=(
        one_by_one("writer", W1, W2, W3),
        Folder("folder"),
        Squasher("squasher"),
        Follower("follower", polls=3),
        Vacuum("vacuum"),
    ),
)
EXACT_PRUNE = Scenario(
    actors=(
        one_by_one("writer", W1, W2, W3),
        Squasher("squasher"),
        Folder("folder", tries=1),
        ExactPruner("purger"),
        Follower("follower", polls=2),
    ),
)
LOG_EXACT_PRUNE = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("writer", L1, L2, L3),
        Squasher("squasher"),
        Folder("folder", tries=1),
        ExactPruner("purger"),
        Reader("reader"),
    ),
)
LOG_SQUASH = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("writer", L1, L2, L3),
        Folder("folder"),
        Squasher("squasher"),
        Reader("reader"),
        Vacuum("vacuum"),
    ),
)
LOG_ROLL_UP = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("writer", L2, L3),
        Folder("f1", tries=1),
        Folder("f2", tries=1),
        RollUp("roll-up"),
        Reader("reader"),
    ),
    start=folded(L1),
)
LOG_ERASURE = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("appender", AHEAD, LATE),
        one_by_one("eraser", E3),
        Folder("folder"),
        RollUp("daily", tries=1),
        Reader("reader", reads=2),
    ),
    start=folded(E1),
)
LOG_TIERS = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("writer", E2, E3),
        Folder("folder", tries=1),
        RollUp("hourly", into="h1", tries=1),
        RollUp("daily", tries=1),
        Reader("reader"),
        Vacuum("vacuum"),
    ),
    start=folded(E1),
    crashes=1,
)
LOG_LISTED = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("writer", E2, E4),
        Squasher("squasher", tries=1),
        Folder("f1", tries=1),
        Folder("f2", tries=1),
        RollUp("daily", tries=1),
    ),
    start=folded(E1),
)
LOG_TAKEOVER = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("writer", E3),
        Compactor("c1", (Folder("c1.fold", tries=1), RollUp("c1.daily", tries=1))),
        Compactor("c2", (Folder("c2.fold", tries=1), RollUp("c2.daily", tries=1))),
        Reader("reader"),
    ),
    start=folded(E1),
    fine=True,
    crashes=1,
    steals=1,
)
LOG_SWEEP = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("writer", E3),
        Folder("folder", tries=1),
        RollUp("daily"),
        Sweeper("sweeper"),
        Reader("reader"),
    ),
    start=folded(E1),
    fine=True,
    crashes=1,
)
LOG_FOLLOWER = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("writer", L1, L2, L3),
        Folder("f1"),
        Squasher("squasher", tries=1),
        Follower("follower", polls=3),
    ),
)
CLEANED_LOG = Scenario(
    actors=(
        one_by_one("writer1", W1, W2),
        one_by_one("writer2", W3),
        LogCleaner("cleaner"),
        Squasher("squasher", tries=1),
    ),
    fine=True,
    unknowns=1,
    crashes=1,
)
PURGE = Scenario(
    actors=(
        one_by_one("writer", W2),
        Folder("folder"),
        Clusterer("clusterer"),
        Purger("purger"),
        Reader("reader"),
    ),
    start=folded(W1),
    fine=True,
    crashes=1,
)
STALE_HANDLE = Scenario(
    actors=(
        one_by_one("writer", W1, W2),
        Folder("folder", tries=1),
        Dropper("dropper"),
        Creator("creator"),
    ),
    fine=True,
    crashes=1,
)
RECREATED = Scenario(
    actors=(
        one_by_one("writer", W1),
        Folder("folder", tries=1),
        Dropper("dropper"),
        Creator("creator"),
        Reader("reader", reads=2),
    ),
    fine=True,
)

COPIED = Scenario(
    actors=(
        one_by_one("writer", W1, W2),
        Folder("folder", tries=1),
        Folder("late", tries=1),
        Copier("copier"),
        Repairer("repairer"),
        Reader("reader"),
    ),
)
"""A copy of changes, then of base, is restored."""
BACKED_UP = Scenario(
    actors=(
        one_by_one("writer", W1, W2),
        Folder("folder", tries=1),
        Folder("late", tries=1),
        Copier("backup", is_backup=True),
        Reader("reader"),
    ),
)
"""A backup, which copies only matching pairs, is restored."""
OLDER_BASE = Scenario(
    actors=(
        one_by_one("writer", W1, W2, W3),
        Folder("folder", tries=1),
        Copier("copier", order=("base", "changes"), restores=("base",)),
        Reader("reader"),
    ),
)
"""An older base is restored below changes that were pruned since."""

DEEP_KEYED = Scenario(
    actors=(
        one_by_one("writer1", W1, W2),
        one_by_one("writer2", W3),
        Folder("f1"),
        Folder("f2"),
        Squasher("squasher"),
        Reader("reader"),
    ),
    crashes=1,
)
DEEP_LOG = Scenario(
    kind=Kind.LOG,
    actors=(
        one_by_one("writer", L2, L3, L4),
        Folder("f1"),
        Folder("f2"),
        Squasher("squasher", tries=1),
        RollUp("roll-up", tries=1),
        Reader("reader"),
    ),
    start=folded(L1),
)
DEEP_LISTED = replace(LOG_LISTED, actors=(*LOG_LISTED.actors, Reader("reader")), crashes=1)
DEEP_TIERS = replace(
    LOG_TIERS,
    actors=(
        one_by_one("writer", E2, E3, LATE),
        Folder("folder"),
        RollUp("hourly", into="h1", tries=1),
        RollUp("daily", tries=1),
        Reader("reader"),
        Vacuum("vacuum"),
    ),
    unknowns=1,
)
DEEP_TAKEOVER = replace(
    LOG_TAKEOVER,
    actors=(
        one_by_one("writer", E3, LATE),
        Compactor("c1", (Folder("c1.fold"), RollUp("c1.daily"))),
        Compactor("c2", (Folder("c2.fold"), RollUp("c2.daily"))),
        Sweeper("sweeper"),
        Reader("reader"),
    ),
)
DEEP_UNKNOWNS = replace(CLUSTER, unknowns=2, crashes=1)
DEEP_BOUNDED = replace(
    BOUNDED_FOLD,
    actors=(
        one_by_one("writer", W1, W2, W5, W3),
        Squasher("squasher"),
        Folder("f1", files=1),
        Folder("f2", files=2),
        Reader("reader"),
    ),
)
