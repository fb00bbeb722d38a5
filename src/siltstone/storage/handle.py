"""A Delta table as a reader holds it: opened on first use, brought to the newest version before each use.

A handle is at one version. Refreshing costs three stats when nothing has happened: the next log entry, the handle's own (is it
still the same table?), and the pointer to the newest checkpoint (entries below a checkpoint may have been cleaned, so the next
entry alone does not tell). After a new
checkpoint the table is opened afresh, because delta-rs replays a long-lived handle's whole history at every update.

Invariants: a table with another id, or marked dropped, is Gone; a table of a newer format is refused; an empty log entry is
Corruption, although delta-rs would open it.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from siltstone.errors import Corruption, Gone, NotFound, Unavailable
from siltstone.model.files import DataFile
from siltstone.model.spec import PROPERTY_DROPPED, check_properties
from siltstone.storage.layout import LOG, entry_name
from siltstone.storage.log import LAST_CHECKPOINT, check_entries
from siltstone.storage.upkeep import heal_checkpoint

OPEN_TRIES: Final = 5
"""An open can meet a log that is being cleaned; the next listing is whole again."""


class LogMoved(Exception):  # noqa: N818
    """The log was cleaned under a handle: delta-rs reads transactions late. Refresh and look again."""


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

    def __init__(self, path: Path, *, label: str, must_exist: bool = False) -> None:
        """Remember where the table is; it is opened on first use. One that `must_exist` is Gone where it is not there."""
        self.path = path
        self.label = label
        self._must_exist = must_exist
        self._mutex = threading.RLock()
        self._handle: DeltaTable | None = None
        self._id: str | None = None
        self._hint: tuple[int, ...] = ()
        self._entry: tuple[int, ...] = ()
        self._files: tuple[int, tuple[DataFile, ...]] | None = None
        self._transactions: tuple[int, dict[str, int | None]] = (-1, {})
        self._schema: tuple[int, pa.Schema] | None = None

    # ---- reading -------------------------------------------------------------------------------------------------

    def pin(self, *apps: str) -> Pinned:
        """Return the newest version with its live files and the named app transactions, read at once."""
        with self._mutex:
            for _ in range(OPEN_TRIES):
                with contextlib.suppress(LogMoved):
                    return self._pin(self._refresh(), apps)
        raise Unavailable(f"{self.label}: its log was cleaned again and again while it was read. Try again.")

    def _pin(self, handle: DeltaTable, apps: tuple[str, ...]) -> Pinned:
        found = {app: version for app in apps if (version := self.transaction(app)) is not None}
        return Pinned(version=handle.version(), files=self.files(), transactions=found, schema=self.schema())

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
            return self._refresh().version()

    def files(self) -> tuple[DataFile, ...]:
        """Return the live files of the handle's version; `pin` and `commit` refresh it first."""
        with self._mutex:
            handle = self._opened()
            if self._files is None or self._files[0] != handle.version():
                with self._late_reads():
                    self._files = (handle.version(), _live_files(handle))
            return self._files[1]

    def transaction(self, app: str) -> int | None:
        """Return an app transaction of the handle's version."""
        with self._mutex:
            handle = self._opened()
            version, known = self._transactions
            if version != handle.version():
                known = {}
                self._transactions = (handle.version(), known)
            if app not in known:
                with self._late_reads():
                    known[app] = handle.transaction_version(app)
            return known[app]

    @contextlib.contextmanager
    def _late_reads(self) -> Iterator[None]:
        """Read the log behind an open handle; entries that are gone by now make it useless."""
        try:
            yield
        except DeltaError as error:
            self._handle = None
            raise LogMoved(str(error)) from error

    def schema(self) -> pa.Schema:
        """Return the schema of the handle's version."""
        with self._mutex:
            handle = self._opened()
            if self._schema is None or self._schema[0] != handle.version():
                self._schema = (handle.version(), pa.schema(handle.schema().to_arrow()))
            return self._schema[1]

    def properties(self) -> dict[str, str]:
        """Return the table's properties at the newest version."""
        with self._mutex:
            return dict(self._refresh().metadata().configuration)

    def delta(self) -> DeltaTable:
        """Return a fresh delta-rs handle for reading; nobody may commit through it."""
        return _open(self.path)

    # ---- the handle ----------------------------------------------------------------------------------------------

    def _opened(self) -> DeltaTable:
        return self._handle if self._handle is not None else self._refresh()

    def _refresh(self) -> DeltaTable:
        """Bring the handle to the newest version; three stats when nothing happened."""
        hint = file_mark(self.path / LOG / LAST_CHECKPOINT)
        if self._handle is None or hint != self._hint or self._own_entry(self._handle) != self._entry:
            # A fresh open starts at the checkpoint; an old handle would replay its whole history at every update.
            self._adopt(self._reopen(), hint)
        elif (self.path / LOG / entry_name(self._handle.version() + 1)).exists():
            self._advance(self._handle)
        return self._opened()

    def _own_entry(self, handle: DeltaTable) -> tuple[int, ...]:
        """Tell the entry of the handle's version from that of another table that lies here now."""
        return file_mark(self.path / LOG / entry_name(handle.version()))

    def _reopen(self) -> DeltaTable:
        try:
            return _open(self.path)
        except NotFound as error:
            if self._id is None and not self._must_exist:
                raise
            raise self._gone() from error

    def _adopt(self, handle: DeltaTable, hint: tuple[int, ...]) -> None:
        self._check_identity(handle)
        self._handle, self._hint = handle, hint
        self._entry = self._own_entry(handle)

    def _advance(self, handle: DeltaTable) -> None:
        before = handle.version()
        try:
            handle.update_incremental()
        except DeltaError:
            self._adopt(self._reopen(), self._hint)
            return
        for version in range(before + 1, handle.version() + 1):
            if file_mark(self.path / LOG / entry_name(version))[:1] == (0,):
                self._handle = None
                raise Corruption(f"Log entry {entry_name(version)} of {self.path} is empty. Restore it from a copy.")
        self._adopt(handle, self._hint)

    def _check_identity(self, handle: DeltaTable) -> None:
        """Refuse a table that is not the one this handle was opened for, or that was dropped or is of a newer format."""
        metadata = handle.metadata()
        if self._id is None:
            self._id = str(metadata.id)
        if str(metadata.id) != self._id or PROPERTY_DROPPED in metadata.configuration:
            self._handle = None
            raise Gone(f"{self.label} was dropped or re-created. Open the dataset anew.")
        check_properties(metadata.configuration)


def file_mark(path: Path) -> tuple[int, ...]:
    """Return what tells one state of a file from another; empty if it is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return (found.st_size, found.st_mtime_ns, found.st_ino)


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


def _live_files(handle: DeltaTable) -> tuple[DataFile, ...]:
    actions = pa.table(handle.get_add_actions(flatten=True))
    partitions = [name for name in actions.column_names if name.startswith("partition.")]
    columns: dict[str, list[Any]] = {
        name: actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records", *partitions)
    }
    return tuple(
        DataFile(
            path=path,
            size_bytes=columns["size_bytes"][row],
            rows=columns["num_records"][row] or 0,
            partition={name[10:]: _text(columns[name][row]) for name in partitions},
        )
        for row, path in enumerate(columns["path"])
    )


def _text(value: Any) -> str | None:  # noqa: ANN401
    return None if value is None else str(value)
