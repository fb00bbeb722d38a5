"""What the model's world is made of: immutable, hashable values and nothing that acts.

Terms:
    Row, File   one change or base row; one Parquet file. A change file has its `_seq`, a base file
                has 0.
    Version     one version of a Delta table: its live files and app transactions. A snapshot pins
                it.
    Table       a Delta table: its head, and of the log's past only what the protocol asks of it:
                names of removed files, ids of landed commits, how far the log was cleaned, the
                dropped mark.
    Dataset     one incarnation: both tables, what was staged and what is gone from disk, and
                fields that no process may read: `history`, `load` and `acked`, from which the
                oracle knows the truth, and `led`, the highest epoch of a lease whose job landed in
                base. `disk` keeps what ever lay there, and only for variants that read by listing.
                `restored` is set once a copy was put back.
    Proc        the private memory of one process: a program counter and what it has read so far.
    State       everything: datasets, registry, processes and the budget of faults that may still
                happen.

These are named tuples and not frozen dataclasses because the search hashes every state several
times over and a tuple is hashed in C.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from tests.model.variants import Variant

TableName = Literal["changes", "base"]


class Kind(StrEnum):
    """The two kinds of dataset."""

    KEYED = "keyed"
    LOG = "log"


class Row(NamedTuple):
    """One row; `key` is the subject in a log dataset. `row_seq` is None but in squashed files.

    `hour` is the event's own time, `clock` what the writer's clock said. No sound rule asks either what is seen.
    """

    key: str
    op: str
    value: int = 0
    pos: int = 0
    row_seq: int | None = None
    hour: int = 0
    clock: int = 0


class Batch(NamedTuple):
    """What one write call brings."""

    name: str
    rows: tuple[Row, ...]


class Entry(NamedTuple):
    """A batch and the sequence under which it landed."""

    seq: int
    batch: Batch


class File(NamedTuple):
    """A Parquet file with its partition value `_seq` (0 in base); in base of a log, with its period."""

    name: str
    seq: int
    rows: tuple[Row, ...]
    period: str = ""


class AppTransaction(NamedTuple):
    """An app transaction: its value, and the version whose log entry carried it last."""

    app: str
    value: int
    version: int


class Version(NamedTuple):
    """One version of a Delta table."""

    number: int = 0
    files: frozenset[File] = frozenset()
    transactions: tuple[AppTransaction, ...] = ()

    def value(self, app: str) -> int:
        """The transaction's value, 0 if it was never set."""
        for transaction in self.transactions:
            if transaction.app == app:
                return transaction.value
        return 0

    def carried_after(self, app: str, version: int) -> bool:
        """Whether a log entry after `version` carries the app id, with whatever value."""
        return any(t.app == app and t.version > version for t in self.transactions)


class Table(NamedTuple):
    """A Delta table."""

    head: Version = Version()
    removed: frozenset[str] = frozenset()
    landed: frozenset[str] = frozenset()
    cleaned: int = 0
    dropped: bool = False


class Dataset(NamedTuple):
    """One incarnation of the dataset."""

    changes: Table = Table()
    base: Table = Table()
    staged: frozenset[tuple[str, int]] = frozenset()
    gone: frozenset[str] = frozenset()
    history: tuple[Entry, ...] = ()
    load: tuple[Entry, ...] = ()
    acked: frozenset[str] = frozenset()
    swept: bool = False
    disk: frozenset[File] = frozenset()
    led: int = 0
    restored: bool = False

    def table(self, which: TableName) -> Table:
        """The table by its name."""
        return self.changes if which == "changes" else self.base

    def with_table(self, which: TableName, table: Table) -> Dataset:
        """This dataset with one table replaced."""
        return self._replace(changes=table) if which == "changes" else self._replace(base=table)

    def readable(self, files: frozenset[File]) -> bool:
        """Whether all these files are still on disk."""
        return not self.swept and all(file.name not in self.gone for file in files)


class Commit(NamedTuple):
    """A commit as data, with the versions it was planned on and checked on (`parent`)."""

    id: str
    table: TableName
    planned: int
    removes: frozenset[File] = frozenset()
    adds: frozenset[File] = frozenset()
    sets: tuple[tuple[str, int], ...] = ()
    depends: tuple[str, ...] = ()
    epoch: int | None = None
    entries: tuple[Entry, ...] = ()
    load: tuple[Entry, ...] = ()
    marks_dropped: bool = False
    parent: int = -1
    rolls_up: bool = False


class Pc(StrEnum):
    """Where a process stands."""

    START = "start"
    OPENED = "opened"
    CHECK = "check"
    PUT = "put"
    PRUNE = "prune"
    DONE = "done"
    DEAD = "dead"


class Proc(NamedTuple):
    """The private memory of one process; `loaded` shows the oracle whether the load was seen.

    `epoch` is that of the lease it holds, or believes to hold; 0 without one.
    """

    pc: Pc = Pc.START
    phase: str = ""
    turn: int = 0
    tries: int = 0
    incarnation: int = 0
    pinned: Version | None = None
    commit: Commit | None = None
    in_flight: Commit | None = None
    mark: int = 0
    acked: frozenset[str] = frozenset()
    rows: tuple[tuple[str, int], ...] = ()
    seq: int = -1
    content: int = -1
    loaded: int = 0
    epoch: int = 0
    copies: tuple[Table, ...] = ()


class Lease(NamedTuple):
    """The one row of the lease table: its last holder and epoch; -1 means no holder."""

    holder: int = -1
    epoch: int = 0


class State(NamedTuple):
    """The whole world. `wrong` is set by the step that saw something no sound protocol shows.

    `steals` is how often a lease may still be taken from a holder that lives: it was frozen, or a clock was wrong.
    """

    datasets: tuple[Dataset, ...]
    registry: int
    procs: tuple[Proc, ...]
    unknowns: int = 0
    crashes: int = 0
    wrong: str = ""
    lease: Lease = Lease()
    steals: int = 0

    def with_proc(self, me: int, proc: Proc) -> State:
        """This state with one process replaced."""
        procs = (*self.procs[:me], proc, *self.procs[me + 1 :])
        return State(
            self.datasets, self.registry, procs, self.unknowns, self.crashes, self.wrong, self.lease, self.steals
        )

    def with_dataset(self, incarnation: int, dataset: Dataset) -> State:
        """This state with one incarnation replaced."""
        before, after = self.datasets[:incarnation], self.datasets[incarnation + 1 :]
        return self._replace(datasets=(*before, dataset, *after))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What does not change during a search.

    `fine` takes the check and the put of a commit as two steps. Without it they are one, which
    loses nothing where the check asks only about the log: a put lands only on the version that
    was checked. `judges_epochs` takes a job that landed after one of a newer lease for wrong in
    itself, whatever comes of it.
    """

    kind: Kind = Kind.KEYED
    broken: Variant | None = None
    fine: bool = False
    names: tuple[str, ...] = field(default=())
    judges_epochs: bool = True

    @property
    def lists(self) -> bool:
        """Whether a broken rule looks at the disk, so that it must be part of the state."""
        return self.broken in {Variant.ROLL_UP_BY_LISTING, Variant.FOLD_BY_LISTING}

    def breaks(self, variant: Variant) -> bool:
        """Whether this rule is switched off."""
        return self.broken is variant
