"""The one commit path: every commit to every Delta table of a lake goes through `Table.commit`.

Terms. A *plan version* is the version a commit's files were chosen at. A commit is *landed* once its entry is in the
log, *acknowledged* once that entry is synced. A *turn* is a short advisory lock that orders tries between processes;
it saves work and decides nothing.

Flow of one commit:

1. refresh the handle; a table with another id, or marked dropped, is Gone;
2. build the commit for this parent (an append takes its sequence here);
3. check every log entry after the plan's version, the transactions, the epoch, and that removed files are live;
4. verify and sync every added file;
5. write the entry as the direct child of the parent (``max_commit_retries=0``), with a commit id of our own;
6. after *any* failure look for that id in the child entry before trying again;
7. sync the entry and every entry below it that was not known to be synced; only then acknowledge.

Invariants. delta-rs' own conflict checker is not relied on. No app transaction decreases. A crash before 5 leaves files
that no log names; after 5 the commit is there, whole, whether or not anybody was told.
Deliberately absent: any other place that calls a writing method of `DeltaTable`, checkpoints (see `upkeep`), rows.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from siltstone.clock import Clock, epoch_ms
from siltstone.config import Settings
from siltstone.errors import CommitUnknown, Conflict, Corruption, Fenced, Gone, NotFound, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import APP_EPOCH, APP_PRODUCER, COMMIT_ID
from siltstone.model.files import Commit, Committed, CommitKind, DataFile
from siltstone.model.spec import PROPERTY_DROPPED, check_properties
from siltstone.storage.durable import sync_directory, sync_file, sync_files
from siltstone.storage.layout import LOG, entry_name
from siltstone.storage.log import LAST_CHECKPOINT, LogEntry, check_entries, entries_between, list_log, read_entry
from siltstone.storage.parquet import read_footer
from siltstone.storage.upkeep import Retention, heal_checkpoint

TURN_SECONDS: Final = 1.0
"""How long to wait for a turn before trying without one: the turn is for speed only."""
BACKOFF_SECONDS: Final = 0.01
BACKOFF_MAX_SECONDS: Final = 0.5
OPEN_TRIES: Final = 5
"""An open can meet a log that is being cleaned; the next listing is whole again."""
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


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


@dataclass(frozen=True, slots=True)
class Parent:
    """What a commit is built on: the newest version, as seen under the table's mutex."""

    table: "Table"
    version: int

    def transaction(self, app: str) -> int | None:
        """Return the app transaction at this version."""
        return self.table.transaction(app)

    def files(self) -> tuple[DataFile, ...]:
        """Return the live files at this version."""
        return self.table.files()

    def schema(self) -> pa.Schema:
        """Return the schema at this version."""
        return self.table.schema()


class Table:
    """One Delta table: a handle that is refreshed before use, and the commit path. Safe to share between threads."""

    def __init__(self, path: Path, *, settings: Settings, clock: Clock, retention: Retention, label: str) -> None:
        """Remember where the table is; it is opened on first use."""
        self.path = path
        self.retention = retention
        self.label = label
        self._settings = settings
        self._clock = clock
        self._mutex = threading.RLock()
        self._handle: DeltaTable | None = None
        self._id: str | None = None
        self._hint: tuple[int, ...] = ()
        self._files: tuple[int, tuple[DataFile, ...]] | None = None
        self._transactions: tuple[int, dict[str, int | None]] = (-1, {})
        self._schema: tuple[int, pa.Schema] | None = None
        self._verified: set[str] = set()
        self._synced_folders: set[Path] = set()
        self._synced = -2

    @staticmethod
    def create(path: Path, schema: pa.Schema, *, partition_by: list[str], properties: Mapping[str, str], durable: bool) -> None:
        """Make a table at version 0; of many that try at once exactly one succeeds.

        Raises:
            Conflict: a table is already there.
        """
        path.mkdir(parents=True, exist_ok=True)
        if (path / LOG).exists():
            raise Conflict(f"A Delta table already exists at {path}.")
        try:
            DeltaTable.create(
                path,
                schema,
                partition_by=partition_by,
                configuration=dict(properties),
                raise_if_key_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=_NO_HOOKS,
            )
        except DeltaError as error:
            if (path / LOG / entry_name(0)).exists():
                raise Conflict(f"Another process created the Delta table at {path} first.") from error
            raise Unavailable(f"The Delta table at {path} could not be created: {error}") from error
        if durable:
            sync_file(path / LOG / entry_name(0))
            for folder in (path / LOG, path, *list(path.parents)[:4]):
                sync_directory(folder)

    # ---- reading -------------------------------------------------------------------------------------------------

    def pin(self, *apps: str) -> Pinned:
        """Return the newest version with its live files and the named app transactions, read at once."""
        with self._mutex:
            handle = self._refresh()
            found = {app: version for app in apps if (version := self.transaction(app)) is not None}
            return Pinned(version=handle.version(), files=self.files(), transactions=found, schema=self.schema())

    def version(self) -> int:
        """Return the newest version."""
        with self._mutex:
            return self._refresh().version()

    def files(self) -> tuple[DataFile, ...]:
        """Return the live files of the handle's version; `pin` and `commit` refresh it first."""
        with self._mutex:
            handle = self._opened()
            if self._files is None or self._files[0] != handle.version():
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
                known[app] = handle.transaction_version(app)
            return known[app]

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
        """Bring the handle to the newest version; two stats when nothing happened."""
        hint = _file_mark(self.path / LOG / LAST_CHECKPOINT)
        if self._handle is None or hint != self._hint:
            # A fresh open starts at the checkpoint; an old handle would replay its whole history at every update.
            self._adopt(self._reopen(), hint)
        elif (self.path / LOG / entry_name(self._handle.version() + 1)).exists():
            self._advance(self._handle)
        elif not (self.path / LOG).is_dir():
            raise Gone(f"{self.label} is no longer there: it was dropped. Open the dataset anew.")
        return self._opened()

    def _reopen(self) -> DeltaTable:
        try:
            return _open(self.path)
        except NotFound as error:
            if self._id is None:
                raise
            raise Gone(f"{self.label} is no longer there: it was dropped. Open the dataset anew.") from error

    def _adopt(self, handle: DeltaTable, hint: tuple[int, ...]) -> None:
        self._check_identity(handle)
        self._handle, self._hint = handle, hint

    def _advance(self, handle: DeltaTable) -> None:
        before = handle.version()
        try:
            handle.update_incremental()
        except DeltaError:
            self._adopt(self._reopen(), self._hint)
            return
        for version in range(before + 1, handle.version() + 1):
            if _file_mark(self.path / LOG / entry_name(version))[:1] == (0,):
                self._handle = None
                raise Corruption(f"Log entry {entry_name(version)} of {self.path} is empty. Restore it from a copy.")
        self._check_identity(handle)

    def _check_identity(self, handle: DeltaTable) -> None:
        """Refuse a table that is not the one this handle was opened for, or that was dropped or is of a newer format."""
        metadata = handle.metadata()
        if self._id is None:
            self._id = str(metadata.id)
        if str(metadata.id) != self._id or PROPERTY_DROPPED in metadata.configuration:
            self._handle = None
            raise Gone(f"{self.label} was dropped or re-created. Open the dataset anew.")
        check_properties(metadata.configuration)

    # ---- committing ----------------------------------------------------------------------------------------------

    def commit(self, build: Callable[[Parent], Commit]) -> Committed:
        """Land one commit exactly once and return when it is durable.

        `build` is called for each parent the commit is tried on; a compaction returns the same commit each time.

        Raises:
            Conflict: something this commit depends on has changed; plan anew.
            Fenced: a job with a higher epoch has taken over.
            CommitUnknown: whether it landed can no longer be known.
            Unavailable: other writers kept winning for longer than the time limit, or the disk refused.
        """
        built: list[Commit] = []

        def prepare(handle: DeltaTable) -> Callable[[CommitProperties], None]:
            commit = build(Parent(self, handle.version()))
            commit = self._check(commit, handle)
            self.verify(commit.adds)
            built.append(commit)
            return lambda properties: self._write_entry(handle, commit, properties)

        def describe() -> tuple[Mapping[str, int], Mapping[str, str]]:
            return built[-1].transactions, built[-1].info

        version, commit_id = self._land(prepare, describe)
        self._verified.difference_update(file.path for file in built[-1].adds)
        return Committed(version=version, commit_id=commit_id, commit=built[-1])

    def set_properties(self, properties: Mapping[str, str]) -> int:
        """Change the table's properties as a commit of its own; return the version."""

        def prepare(handle: DeltaTable) -> Callable[[CommitProperties], None]:
            return lambda commit: handle.alter.set_table_properties(
                dict(properties),
                raise_if_not_exists=False,
                commit_properties=commit,
                post_commithook_properties=_NO_HOOKS,
            )

        return self._land(prepare, lambda: ({}, {}))[0]

    def _land(
        self,
        prepare: Callable[[DeltaTable], Callable[[CommitProperties], None]],
        describe: Callable[[], tuple[Mapping[str, int], Mapping[str, str]]],
    ) -> tuple[int, str]:
        """Try until the commit lands, is refused, or time runs out."""
        commit_id = self._clock.new_id()
        deadline = self._clock.monotonic_seconds() + self._settings.commit_timeout_seconds
        tries = 0
        with self._mutex:
            while True:
                with self._turn():
                    handle = self._refresh()
                    child = handle.version() + 1
                    write = prepare(handle)
                    transactions, info = describe()
                    if self._try(write, self._properties(commit_id, transactions, info), child, commit_id):
                        break
                tries += 1
                if self._clock.monotonic_seconds() > deadline:
                    raise Unavailable(
                        f"{self.label}: other writers won {tries} times in a row; nothing was written. Try again later."
                    )
                self._back_off(tries)
            self._sync_entries(child)
            return child, commit_id

    def _properties(self, commit_id: str, transactions: Mapping[str, int], info: Mapping[str, str]) -> CommitProperties:
        now = epoch_ms(self._clock.now())
        return CommitProperties(
            max_commit_retries=0,
            custom_metadata={COMMIT_ID: commit_id, **info},
            app_transactions=[
                Transaction(app, version, now if app.startswith(APP_PRODUCER) else None)
                for app, version in sorted(transactions.items())
            ],
        )

    def _try(self, write: Callable[[CommitProperties], None], properties: CommitProperties, child: int, commit_id: str) -> bool:
        """Write the child entry once; True if it landed, False if another commit took its place."""
        reach("commit.before_entry")
        try:
            write(properties)
        except (DeltaError, OSError) as error:
            return self._landed_after_failure(error, child, commit_id)
        finally:
            reach("commit.after_entry")
        return True

    def _landed_after_failure(self, error: Exception, child: int, commit_id: str) -> bool:
        """Decide by the child entry: a commit can succeed and still raise, so the error alone says nothing."""
        try:
            return read_entry(self.path, child).commit_id == commit_id
        except FileNotFoundError:
            pass
        except (Corruption, OSError) as unreadable:
            raise CommitUnknown(
                f"{self.label}: the commit of version {child} failed ({error}) and its entry cannot be read "
                f"({unreadable}). Look at the log before writing again."
            ) from error
        if not (self.path / LOG).is_dir():
            raise Gone(f"{self.label} is no longer there: it was dropped. Open the dataset anew.") from error
        if list_log(self.path).newest_checkpoint >= child:
            raise CommitUnknown(
                f"{self.label}: the commit of version {child} failed ({error}) and that entry was already cleaned. "
                "Read the dataset to see whether the write is there before you repeat it."
            ) from error
        if isinstance(error, CommitFailedError):
            return False
        raise Unavailable(f"{self.label}: the commit could not be written ({error}); nothing was changed.") from error

    def _write_entry(self, handle: DeltaTable, commit: Commit, properties: CommitProperties) -> None:
        now = epoch_ms(self._clock.now())
        data_change = not commit.kind.moves_rows_only
        actions: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.size_bytes, dict(f.partition), now, data_change, f.stats) for f in commit.adds
        ]
        actions += [
            RemoveAction(f.path, data_change, now, f.size_bytes, dict(f.partition)) for f in commit.removes
        ]
        handle.create_write_transaction(
            actions,
            "append",
            handle.schema(),
            handle.metadata().partition_columns,
            commit_properties=properties,
            post_commithook_properties=_NO_HOOKS,
        )

    # ---- checks --------------------------------------------------------------------------------------------------

    def _check(self, commit: Commit, handle: DeltaTable) -> Commit:
        """Refuse a commit that what has happened since its plan makes wrong."""
        removed = frozenset(file.path for file in commit.removes)
        try:
            for entry in entries_between(self.path, after=commit.plan_version, until=handle.version()):
                self._check_entry(commit, removed, entry)
        except LookupError as cleaned:
            if removed or commit.depends:
                raise Conflict(f"{self.label}: the plan is older than the log's retention. Plan anew.") from cleaned
        self._check_live(commit, removed)
        for app, version in commit.transactions.items():
            if version < (self.transaction(app) or 0):
                raise Conflict(f"{self.label}: transaction {app} would fall to {version}. Plan anew.")
        return self._fence(commit)

    def _check_entry(self, commit: Commit, removed: frozenset[str], entry: LogEntry) -> None:
        if taken := removed & entry.removes:
            raise Conflict(f"{self.label}: version {entry.version} already removed {min(taken)}. Plan anew.")
        if moved := commit.depends & entry.transactions.keys():
            raise Conflict(f"{self.label}: version {entry.version} moved {min(moved)}. Plan anew.")
        if commit.kind.is_compaction and (entry.changes_metadata or entry.changes_protocol):
            raise Conflict(f"{self.label}: version {entry.version} changed the table's metadata. Plan anew.")

    def _check_live(self, commit: Commit, removed: frozenset[str]) -> None:
        """A removed file must be live, an added one must be new; delta-rs checks neither."""
        if not removed and commit.kind is CommitKind.APPEND:
            return
        live = {file.path for file in self.files()}
        if stale := removed - live:
            raise Conflict(f"{self.label}: {min(stale)} is not live any more. Plan anew.")
        if twice := live & {file.path for file in commit.adds}:
            raise Conflict(f"{self.label}: {min(twice)} is already part of the table.")

    def _fence(self, commit: Commit) -> Commit:
        if commit.epoch is None:
            return commit
        current = self.transaction(APP_EPOCH) or 0
        if commit.epoch < current:
            raise Fenced(f"{self.label}: epoch {commit.epoch} was overtaken by {current}. Stop this job.")
        if commit.epoch == current:
            return commit
        return _with_transaction(commit, APP_EPOCH, commit.epoch)

    def verify(self, files: tuple[DataFile, ...], *, expected: pa.Schema | None = None) -> None:
        """Read every file's footer back and sync it; a file is verified once, before any log names it.

        With `expected` (the columns of a file) a writer can do it before its turn, beside other writers.
        """
        fresh = [file for file in files if file.path not in self._verified]
        if not fresh:
            return
        expected = expected or self._file_schema()
        for file in fresh:
            footer = read_footer(self.path / file.path, expected=expected)
            if (footer.size_bytes, footer.rows) != (file.size_bytes, file.rows):
                raise Corruption(
                    f"File {self.path / file.path} has {footer.rows} rows in {footer.size_bytes} bytes, not "
                    f"{file.rows} in {file.size_bytes}; nothing was committed."
                )
        if self._settings.durable:
            sync_files(self.path, [file.path for file in fresh], known=self._synced_folders)
        self._verified.update(file.path for file in fresh)

    def _file_schema(self) -> pa.Schema:
        partitions = set(self._opened().metadata().partition_columns)
        return pa.schema([f for f in self.schema() if f.name not in partitions])

    # ---- durability, turns ---------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make the newest version durable: whoever relies on an entry has it synced first."""
        with self._mutex:
            self._sync_entries(self._refresh().version())

    def _sync_entries(self, until: int) -> None:
        if not self._settings.durable or until <= self._synced:
            return
        listing = list_log(self.path) if self._synced < -1 else None
        if listing is not None:
            for name in listing.checkpoints.get(listing.newest_checkpoint, ()):
                _sync_if_there(self.path / LOG / name)
            self._synced = listing.newest_checkpoint
        for version in range(self._synced + 1, until + 1):
            _sync_if_there(self.path / LOG / entry_name(version))
        sync_directory(self.path / LOG)
        self._synced = until

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for a turn among the processes of this machine, for a bounded time."""
        try:
            turn = os.open(self.path / "_turn", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if not self.path.is_dir():
                raise Gone(f"{self.label} is no longer there: it was dropped. Open the dataset anew.") from error
            raise Unavailable(f"{self.label}: {self.path} cannot be written ({error}); nothing was changed.") from error
        try:
            deadline = self._clock.monotonic_seconds() + TURN_SECONDS
            while self._clock.monotonic_seconds() < deadline:
                try:
                    fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._clock.sleep(0.0005 + 0.001 * self._clock.jitter())
            yield
        finally:
            os.close(turn)

    def _back_off(self, tries: int) -> None:
        limit = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(tries, 10))
        self._clock.sleep(limit * (0.5 + self._clock.jitter() / 2))


def _with_transaction(commit: Commit, app: str, version: int) -> Commit:
    return Commit(
        kind=commit.kind,
        plan_version=commit.plan_version,
        adds=commit.adds,
        removes=commit.removes,
        transactions={**commit.transactions, app: version},
        depends=commit.depends,
        epoch=commit.epoch,
        info=commit.info,
    )


def _file_mark(path: Path) -> tuple[int, ...]:
    """Return what tells one state of a file from another; empty if it is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return (found.st_size, found.st_mtime_ns, found.st_ino)


def _sync_if_there(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        sync_file(path)


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
