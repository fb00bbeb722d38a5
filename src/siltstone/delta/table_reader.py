"""A Delta table for reading: opened on first use, refreshed to the newest version before each use.

A refresh costs a few stats when nothing has changed. Otherwise it reads the new entries (see `log_replay`). The table
is opened (by delta-rs, or by `full_replay` while it has no checkpoint) only

* on first use, and after a change that entries cannot express: new metadata, a new protocol;
* when the entry of our version is gone or differs: the log was cleaned further, or another table is here;
* when a checkpoint is newer than the last entry we read: another program cleaned the log in a different order;
* when the last open was a minute ago: this bounds how long we rely on our own replay.

Invariants: a table with another id, or marked dropped, is Gone; a table of a newer format is refused. A damaged log
entry, a commit of another program, and table features that Siltstone does not write are Corruption. delta-rs would open
them. A log that cannot be read now, or that is cleaned during every attempt to read it, is Unavailable.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from siltstone.clock import MS_PER_HOUR, Clock, epoch_ms
from siltstone.delta.checkpoints import heal_checkpoint, open_listed
from siltstone.delta.full_replay import Replayed, replay
from siltstone.delta.layout import LOG, has_versions, in_log
from siltstone.delta.log_reader import (
    LAST_CHECKPOINT,
    Mark,
    check_chain,
    check_checkpoint,
    check_entries,
    file_mark,
    list_log,
    removals,
    transactions,
)
from siltstone.delta.log_replay import LogChanged, ReplayedTable, late_reads
from siltstone.errors import Corruption, Gone, NotFound, Reason, Unavailable, first_line
from siltstone.host import fork_safety
from siltstone.host.system_errors import log_errors
from siltstone.model.columns import APP_COMMITTED
from siltstone.model.files import DataFile
from siltstone.model.spec import PROPERTY_DROPPED, check_properties

__all__ = ["LogChanged", "TableReader", "TableVersion"]

OPEN_TRIES: Final = 5
"""Attempts to open a table. An open fails while the log is being cleaned; the next listing is complete again."""
FREE_READER_VERSION: Final = 1
FREE_WRITER_VERSION: Final = 2
"""Highest protocol versions that require nothing that Siltstone does not support."""
READER_FEATURES: Final = frozenset({"timestampNtz"})
WRITER_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""Features that a protocol with a feature list may require."""
FOLLOW_SECONDS: Final = 60.0
"""Seconds for which entries are applied to an opened table before delta-rs opens it again."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A table at one version: its live files, transactions and properties."""

    version: int
    files: tuple[DataFile, ...]
    transactions: Mapping[str, int]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """Number of rows in the live files."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Size of the live files in bytes."""
        return sum(file.size_bytes for file in self.files)


class TableReader:
    """One Delta table, for reading. Safe to share between threads."""

    def __init__(self, path: Path, *, clock: Clock, label: str, must_exist: bool = False) -> None:
        """Open the table on first use, not here. With `must_exist` a missing table is Gone instead of NotFound."""
        self.path = path
        self._log = path / LOG
        self.label = label
        self._clock = clock
        self._must_exist = must_exist
        self._lock = threading.RLock()
        self._followed: ReplayedTable | None = None
        self._id: str | None = None
        self._hint: Mark = ()

    @property
    def _mutex(self) -> "threading.RLock":
        """The lock of this object. A forked child is refused, because the thread that holds the lock may not exist there."""
        fork_safety.check()
        return self._lock

    def pin(self, *apps: str) -> TableVersion:
        """Return the newest version with its live files and the named app transactions, all read at the same version."""

        def read() -> TableVersion:
            self._refresh()
            with self._trusted():
                return _table_version(self._current(), apps)

        with self._mutex:
            return self._retried(read)

    def at(self, version: int, *apps: str) -> TableVersion:
        """Return an older version: the files that were live then (they may be deleted) and the named app transactions.

        Raises:
            LogChanged: the log no longer reaches back to that version.
        """
        with late_reads(), log_errors(self._log):
            opened = DeltaTable(self.path, version=version)
            try:
                check_checkpoint(self.path, list_log(self.path), until=version)
            except FileNotFoundError as error:
                raise LogChanged(str(error)) from error
            past = ReplayedTable(self.path, opened, opened_seconds=0.0)
        return _table_version(past, apps)

    def check_there(self) -> None:
        """Raise Gone if the table's log no longer exists. Does not wait for a lock."""
        if not (self.path / LOG).is_dir():
            raise self._gone()

    def _gone(self) -> Gone:
        return Gone(f"{self.label} no longer exists: it was dropped. If it was created again, open it again.")

    def version(self) -> int:
        """Return the newest version."""
        with self._mutex:
            return self._refresh()

    def files(self) -> tuple[DataFile, ...]:
        """Return the live files of the last refreshed version. `pin` and `commit` refresh first."""
        with self._mutex, self._trusted():
            return self._current().files()

    def transaction(self, app: str) -> int | None:
        """Return an app transaction of the last refreshed version."""
        with self._mutex, self._trusted():
            return self._current().transaction(app)

    def newest(self, app: str) -> int | None:
        """Return an app transaction of the newest version, without listing its files."""

        def read() -> int | None:
            self._refresh()
            return self.transaction(app)

        with self._mutex:
            return self._retried(read)

    def _retried(self, read: Callable[[], T]) -> T:
        """Read the log, and read it again if it was cleaned meanwhile."""
        for _ in range(OPEN_TRIES):
            with contextlib.suppress(LogChanged, FileNotFoundError), log_errors(self._log):
                return read()
        if self._must_exist or self._id is not None:
            self.check_there()
        with contextlib.suppress(FileNotFoundError):
            transactions(self.path)
        raise Unavailable(f"{self.label}: the log was cleaned repeatedly while it was read. Try again.")

    def schema(self) -> pa.Schema:
        """Return the schema of the last refreshed version."""
        with self._mutex:
            return self._current().schema

    def columns(self) -> pa.Schema:
        """Return the schema of the newest version."""
        with self._mutex:
            self._refresh()
            return self._current().schema

    @property
    def id(self) -> str:
        """The id that Delta gave the table at creation."""
        with self._mutex:
            self._current()
            assert self._id is not None  # noqa: S101  # an opened table has an id
            return self._id

    def properties(self) -> dict[str, str]:
        """Return the table's properties at the newest version."""
        with self._mutex:
            self._refresh()
            return dict(self._current().opened.metadata().configuration)

    def removed(self, *, within_hours: float = math.inf) -> set[str]:
        """Return the files that the log lists as removed within the last `within_hours`. A clock set back makes none older."""
        cut_ms = epoch_ms(self._clock.now()) - within_hours * MS_PER_HOUR
        return {path for path, at_ms in self.removals().items() if at_ms > cut_ms}

    def removals(self) -> dict[str, int]:
        """Return every removed file that the log still lists, with the time of its removal in milliseconds."""
        return self._retried(lambda: removals(self.path))

    def marks(self, *prefixes: str) -> dict[str, int]:
        """Return the app transactions whose name has one of these prefixes, read from the newest log."""
        return self._retried(lambda: transactions(self.path, *prefixes))

    def _current(self) -> ReplayedTable:
        if self._followed is None:
            self._refresh()
        assert self._followed is not None  # noqa: S101  # a refresh leaves one or raises
        return self._followed

    @contextlib.contextmanager
    def _trusted(self) -> Iterator[None]:
        """Use the followed state. On LogChanged discard it, so that the next refresh opens the table again."""
        try:
            with log_errors(self._log):
                yield
        except LogChanged:
            self._followed = None
            raise

    def _refresh(self) -> int:
        """Read up to the newest version and return that version."""
        with log_errors(self._log):
            # first, because a commit checks whether it has changed since
            hint = file_mark(in_log(self.path, LAST_CHECKPOINT))
            if not self._follow(hint):
                self._open_again()
        self._hint = hint
        return self._current().version

    def _follow(self, hint: Mark) -> bool:
        """Read the entries above the followed version; False if the table must be opened again."""
        followed = self._followed
        if followed is None or self._clock.monotonic_seconds() - followed.opened_seconds > FOLLOW_SECONDS:
            return False
        if not followed.is_in_place():
            return False
        try:
            followed.follow()
        except LogChanged:
            return False
        return hint == self._hint or list_log(self.path).newest_checkpoint <= followed.version

    def _open_again(self) -> None:
        def adopt() -> None:
            try:
                opened = _opened(self.path)
            except NotFound as error:
                if self._id is None and not self._must_exist:
                    raise
                raise self._gone() from error
            self._adopt(opened)

        self._retried(adopt)

    def _adopt(self, opened: DeltaTable | Replayed) -> None:
        """Adopt a table that was just opened. Refuse it if it has another id, was dropped, is too new or damaged."""
        self._followed = None
        try:
            metadata = opened.metadata()
            if self._id is None:
                self._id = str(metadata.id)
            if str(metadata.id) != self._id or PROPERTY_DROPPED in metadata.configuration:
                raise Gone(f"{self.label} was dropped or re-created. Open the dataset again.")
            check_properties(metadata.configuration)
            followed = ReplayedTable(self.path, opened, opened_seconds=self._clock.monotonic_seconds())
            self._check_features(followed)
            check_chain(self.path, committed=followed.transaction(APP_COMMITTED), version=followed.version)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise Corruption(
                f"{self.label}: the metadata of {self.path} cannot be parsed ({error!r}). Restore it from a copy.",
                reason=Reason.DAMAGED_FILE,
            ) from error
        self._followed = followed

    def _check_features(self, followed: ReplayedTable) -> None:
        """Refuse table features that Siltstone does not write, because hidden rows would be shown or values be lost.

        Deletion vectors, column mapping, change data feed and the like all raise the protocol.
        """
        protocol = followed.protocol
        reader_features, writer_features = protocol.reader_features, protocol.writer_features
        can_read = protocol.min_reader_version <= FREE_READER_VERSION or (
            reader_features is not None and READER_FEATURES.issuperset(reader_features)
        )
        can_write = protocol.min_writer_version <= FREE_WRITER_VERSION or (
            writer_features is not None and WRITER_FEATURES.issuperset(writer_features)
        )
        if can_read and can_write:
            return
        features = sorted({*(reader_features or ()), *(writer_features or ())})
        raise Corruption(
            f"{self.label}: another program has raised {self.path} to reader version {protocol.min_reader_version} and writer "
            f"version {protocol.min_writer_version} ({', '.join(features) or 'no features'}), which Siltstone does not "
            "support. Reads and writes are refused until that is undone: silt doctor --repair undoes it, silt history shows it.",
            reason=Reason.FOREIGN_COMMIT,
        )


def _table_version(table: ReplayedTable, apps: tuple[str, ...]) -> TableVersion:
    numbers = {app: number for app in apps if (number := table.transaction(app)) is not None}
    return TableVersion(version=table.version, files=table.files(), transactions=numbers, schema=table.schema)


def _opened(path: Path) -> DeltaTable | Replayed:
    return replay(path) or _open(path)


def _open(path: Path) -> DeltaTable:
    """Open a table. Check for empty entries, which delta-rs does not, and delete a broken checkpoint that is not needed."""
    failure: DeltaError | FileNotFoundError | None = None
    newest: set[int] = set()
    for _ in range(OPEN_TRIES):
        try:
            handle = DeltaTable(path) if failure is None else open_listed(path)
            check_entries(path)
        except (DeltaError, FileNotFoundError) as error:  # delta-rs also reports a version as missing that was cleaned
            if not has_versions(path):
                raise NotFound(f"There is no Delta table at {path}.") from error
            failure = error
            newest.add(max(list_log(path).entries, default=-1))
            if not heal_checkpoint(path):
                check_entries(path)
        else:
            if _has_sound_checkpoint(path, handle):
                return handle
    if failure is None or len(newest) > 1:
        raise Unavailable(f"The log of {path} was written or cleaned repeatedly while it was opened. Try again.")
    raise Corruption(
        f"The log of {path} cannot be read: {first_line(failure)}. Restore it from a copy.", reason=Reason.DAMAGED_FILE
    ) from failure


def _has_sound_checkpoint(path: Path, handle: DeltaTable) -> bool:
    """True if the checkpoint behind a handle is unchanged since it was written. If False, open the table again."""
    try:
        check_checkpoint(path, list_log(path), until=handle.version())
    except FileNotFoundError:  # cleaned since the table was opened
        return False
    except Corruption:
        if not heal_checkpoint(path):  # otherwise another process has replaced it
            check_entries(path)
        return False
    return True
