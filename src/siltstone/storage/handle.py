"""A Delta table as a reader holds it: opened on first use, brought to the newest version before each use.

Refreshing costs a few stats when nothing has happened, and the reading of the new entries when something has (see `follow`).
delta-rs opens the table only

* the first time, and after whatever the entries cannot tell: new metadata, a new protocol;
* when the entry of our version is gone or is another one: the log was cleaned past us, or another table lies here;
* when a new checkpoint is above the last entry that was found: the same, if somebody else cleans in an order of his own;
* when it was opened a minute ago: so transactions expire, and nothing rests on our own reading for long.

Invariants: a table with another id, or marked dropped, is Gone; a table of a newer format is refused; an empty log entry is
Corruption, although delta-rs would open it.
"""

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from siltstone.clock import Clock, epoch_ms
from siltstone.errors import Corruption, Gone, NotFound, Unavailable
from siltstone.model.files import DataFile
from siltstone.model.spec import PROPERTY_DROPPED, check_properties
from siltstone.storage.follow import Followed, LogMoved, late_reads
from siltstone.storage.layout import LOG, in_log
from siltstone.storage.log import LAST_CHECKPOINT, Mark, check_entries, file_mark, list_log, removals, transaction_times
from siltstone.storage.upkeep import heal_checkpoint

__all__ = ["LogMoved", "Pinned", "TableHandle"]

OPEN_TRIES: Final = 5
"""An open can meet a log that is being cleaned; the next listing is whole again."""
MS_PER_HOUR: Final = 3_600_000
FOLLOW_SECONDS: Final = 60.0
"""How long entries are laid over what delta-rs read before it reads the table again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A table at one version: its live files, transactions and properties."""

    version: int
    files: tuple[DataFile, ...]
    transactions: Mapping[str, int]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """How many rows the live files hold."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """How many bytes the live files take."""
        return sum(file.size_bytes for file in self.files)


class TableHandle:
    """One Delta table, for reading. Safe to share between threads."""

    def __init__(self, path: Path, *, clock: Clock, label: str, must_exist: bool = False) -> None:
        """Remember where the table is; it is opened on first use. One that `must_exist` is Gone where it is not there."""
        self.path = path
        self.label = label
        self._clock = clock
        self._must_exist = must_exist
        self._mutex = threading.RLock()
        self._followed: Followed | None = None
        self._id: str | None = None
        self._hint: Mark = ()

    # ---- reading -------------------------------------------------------------------------------------------------

    def pin(self, *apps: str) -> Pinned:
        """Return the newest version with its live files and the named app transactions, read at once."""
        with self._mutex:
            for _ in range(OPEN_TRIES):
                with contextlib.suppress(LogMoved):
                    return self._pin(self._refresh(), apps)
        raise Unavailable(f"{self.label}: its log was cleaned again and again while it was read. Try again.")

    def _pin(self, version: int, apps: tuple[str, ...]) -> Pinned:
        found = {app: number for app in apps if (number := self.transaction(app)) is not None}
        return Pinned(version=version, files=self.files(), transactions=found, schema=self.schema())

    def at(self, version: int, *apps: str) -> Pinned:
        """Return an older version with the files that were live then, which may be gone, and the named app transactions.

        Raises:
            LogMoved: the log does not reach back to it any more.
        """
        with late_reads():
            past = Followed(self.path, DeltaTable(self.path, version=version), opened_seconds=0.0)
        found = {app: number for app in apps if (number := past.transaction(app)) is not None}
        return Pinned(version=version, files=past.files(), transactions=found, schema=past.schema)

    def check_there(self) -> None:
        """Look, without waiting for anybody, whether the table's log is still there.

        Raises:
            Gone: it is not.
        """
        if not (self.path / LOG).is_dir():
            raise self._gone()

    def _gone(self) -> Gone:
        return Gone(f"{self.label} is no longer there: it was dropped. Open the dataset anew.")

    def version(self) -> int:
        """Return the newest version."""
        with self._mutex:
            return self._refresh()

    def files(self) -> tuple[DataFile, ...]:
        """Return the live files of the version that was refreshed last; `pin` and `commit` refresh it first."""
        with self._mutex, self._trusted():
            return self._current().files()

    def transaction(self, app: str) -> int | None:
        """Return an app transaction of the version that was refreshed last."""
        with self._mutex, self._trusted():
            return self._current().transaction(app)

    def schema(self) -> pa.Schema:
        """Return the schema of the version that was refreshed last."""
        with self._mutex:
            return self._current().schema

    def columns(self) -> pa.Schema:
        """Return the schema of the newest version."""
        with self._mutex:
            self._refresh()
            return self._current().schema

    @property
    def id(self) -> str:
        """The id that Delta gave the table when it was made."""
        with self._mutex:
            self._current()
            assert self._id is not None  # noqa: S101  # a table that was opened has one
            return self._id

    def properties(self) -> dict[str, str]:
        """Return the table's properties at the newest version."""
        with self._mutex:
            self._refresh()
            return dict(self._current().opened.metadata().configuration)

    def delta(self) -> DeltaTable:
        """Return a fresh delta-rs handle for reading; nobody may commit through it."""
        return _open(self.path)

    def removed(self, *, within_hours: float = math.inf) -> set[str]:
        """Return the files that the log names as removed, at most so long ago; a clock that was set back makes none older.

        Raises:
            Unavailable: they cannot be listed.
        """
        cut_ms = epoch_ms(self._clock.now()) - within_hours * MS_PER_HOUR
        return {path for path, at_ms in self.removals().items() if at_ms > cut_ms}

    def removals(self) -> dict[str, int]:
        """Return every removed file that the log still knows, with the time of its removal in milliseconds.

        Raises:
            Unavailable: they cannot be listed.
        """
        for _ in range(OPEN_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return removals(self.path)
        raise Unavailable(f"{self.label}: its log was cleaned again and again while it was read. Try again.")

    def recent(self, prefix: str, *, within_hours: float) -> set[str]:
        """Return the app transactions whose name starts so and that were set at most so long ago, read from the newest log.

        Raises:
            Unavailable: they cannot be listed.
        """
        cut_ms = epoch_ms(self._clock.now()) - within_hours * MS_PER_HOUR
        for _ in range(OPEN_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return {app for app, at_ms in transaction_times(self.path, prefix).items() if at_ms > cut_ms}
        raise Unavailable(f"{self.label}: its log was cleaned again and again while it was read. Try again.")

    # ---- following -----------------------------------------------------------------------------------------------

    def _current(self) -> Followed:
        if self._followed is None:
            self._refresh()
        assert self._followed is not None  # noqa: S101  # a refresh leaves one or raises
        return self._followed

    @contextlib.contextmanager
    def _trusted(self) -> Iterator[None]:
        """Use what was followed; if it turns out to be of no more use, the next refresh opens the table anew."""
        try:
            yield
        except LogMoved:
            self._followed = None
            raise

    def _refresh(self) -> int:
        """Bring what is known to the newest version, and return that."""
        hint = file_mark(in_log(self.path, LAST_CHECKPOINT))  # first: a commit asks whether it has changed since
        if not self._follow(hint):
            self._adopt(self._reopen())
        self._hint = hint
        return self._current().version

    def _follow(self, hint: Mark) -> bool:
        """Read the entries above the version that is known; False if the table has to be opened anew."""
        found = self._followed
        if found is None or self._clock.monotonic_seconds() - found.opened_seconds > FOLLOW_SECONDS:
            return False
        if not found.is_in_place():
            return False
        try:
            found.follow()
        except LogMoved:
            return False
        return hint == self._hint or list_log(self.path).newest_checkpoint <= found.version

    def _reopen(self) -> DeltaTable:
        try:
            return _open(self.path)
        except NotFound as error:
            if self._id is None and not self._must_exist:
                raise
            raise self._gone() from error

    def _adopt(self, opened: DeltaTable) -> None:
        """Take a table that delta-rs has opened; refuse it if it is not the one we had, was dropped or is too new."""
        self._followed = None
        metadata = opened.metadata()
        if self._id is None:
            self._id = str(metadata.id)
        if str(metadata.id) != self._id or PROPERTY_DROPPED in metadata.configuration:
            raise Gone(f"{self.label} was dropped or re-created. Open the dataset anew.")
        check_properties(metadata.configuration)
        self._followed = Followed(self.path, opened, opened_seconds=self._clock.monotonic_seconds())


def _open(path: Path) -> DeltaTable:
    """Open a table, checking what delta-rs does not: empty entries; and healing what can be healed.

    Raises:
        NotFound: there is no table.
        Corruption: the log is broken.
    """
    failure: DeltaError | None = None
    for _ in range(OPEN_TRIES):
        try:
            handle = DeltaTable(path)
            check_entries(path, parse=False)
        except TableNotFoundError as error:
            raise NotFound(f"There is no Delta table at {path}.") from error
        except FileNotFoundError as error:
            raise NotFound(f"There is no Delta table at {path}.") from error
        except DeltaError as error:
            failure = error
            if not (path / LOG).is_dir():
                raise NotFound(f"There is no Delta table at {path}.") from error
            if not heal_checkpoint(path):
                check_entries(path, parse=True)
        else:
            return handle
    raise Corruption(f"The log of {path} cannot be read: {_first_line(failure)}. Restore it from a copy.") from failure


def _first_line(error: BaseException | None) -> str:
    return str(error).splitlines()[0] if error is not None and str(error) else "unknown error"
