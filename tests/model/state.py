"""Data types of the model: immutable, hashable values without behaviour.

Terms:
    Row, File   one change or base row; one Parquet file. A change file has its `_seq`, a base file
                has 0.
    Version     one version of a Delta table: its live files and app transactions. A snapshot pins
                it.
    Table       a Delta table: its head, and of the log's past only what the protocol reads:
                names of removed files, ids of landed commits, how far the log was cleaned, the
                dropped mark.
    Dataset     one incarnation: both tables, the staged files and the deleted files, and fields that no
                process may read: `history`, `load` and `acked`, from which the oracle computes the
                truth, and `led`, the highest epoch of a lease whose job landed in base. `disk`
                holds every file ever written, and only for variants that read by listing.
                `restored` is set after a copy was restored.
    Proc        the private memory of one process: a program counter and the values read so far.
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
    """One row; `key` is the subject in a log dataset. `row_seq` is set only in squashed files.

    `hour` is the event's own time, `clock` the time of the writer's clock. In a sound protocol neither affects
    visibility.
    """

    key: str
    op: str
    value: int = 0
    pos: int = 0
    row_seq: int | None = None
    hour: int = 0
    clock: int = 0


class Batch(NamedTuple):
    """Rows of one write call."""

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
    """An app transaction: its value, and the last version whose log entry carried it."""

    app: str
    value: int
    version: int


class Version(NamedTuple):
    """One version of a Delta table."""

    number: int = 0
    files: frozenset[File] = frozenset()
    transactions: tuple[AppTransaction, ...] = ()

    def value(self, app: str) -> int:
        """Return the transaction's value, 0 if it was never set."""
        for transaction in self.transactions:
            if transaction.app == app:
                return transaction.value
        return 0

    def carried_after(self, app: str, version: int) -> bool:
        """True if a log entry after `version` carries the app id, with any value."""
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
        """Return the table by its name."""
        return self.changes if which == "changes" else self.base

    def with_table(self, which: TableName, table: Table) -> Dataset:
        """Return this dataset with one table replaced."""
        return self._replace(changes=table) if which == "changes" else self._replace(base=table)

    def readable(self, files: frozenset[File]) -> bool:
        """True if all these files are still on disk."""
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
    """Program counter of a process."""

    START = "start"
    OPENED = "opened"
    CHECK = "check"
    PUT = "put"
    PRUNE = "prune"
    DONE = "done"
    DEAD = "dead"


class Proc(NamedTuple):
    """The private memory of one process; `loaded` tells the oracle whether the process saw the load.

    `epoch` is that of the lease that the process holds, or believes to hold; 0 without a lease.
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
    """The row of the lease table: its last holder and epoch; -1 means no holder."""

    holder: int = -1
    epoch: int = 0


class State(NamedTuple):
    """The whole world. `wrong` is set by a step that saw a result impossible in a sound protocol.

    `steals` is the remaining number of leases that may be acquired from a live holder, which was frozen or had a wrong
    clock.
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
        """Return this state with one process replaced."""
        procs = (*self.procs[:me], proc, *self.procs[me + 1 :])
        return State(
            self.datasets, self.registry, procs, self.unknowns, self.crashes, self.wrong, self.lease, self.steals
        )

    def with_dataset(self, incarnation: int, dataset: Dataset) -> State:
        """Return this state with one incarnation replaced."""
        before, after = self.datasets[:incarnation], self.datasets[incarnation + 1 :]
        return self._replace(datasets=(*before, dataset, *after))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Constants of a search.

    With `fine`, the check and the put of a commit are two steps. Otherwise they are one step. This loses nothing if the
    check reads only the log: a put lands only on the checked version. `judges_epochs`: a job that lands after a job of
    a newer lease is a violation, whatever its effect.
    """

    kind: Kind = Kind.KEYED
    broken: Variant | None = None
    fine: bool = False
    names: tuple[str, ...] = field(default=())
    judges_epochs: bool = True

    @property
    def lists(self) -> bool:
        """True if a broken rule lists the disk, so that the disk must be part of the state."""
        return self.broken in {Variant.ROLL_UP_BY_LISTING, Variant.FOLD_BY_LISTING}

    def breaks(self, variant: Variant) -> bool:
        """True if this rule is switched off."""
        return self.broken is variant
