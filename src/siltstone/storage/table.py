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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from siltstone.clock import Clock, epoch_ms
from siltstone.config import Settings
from siltstone.errors import CommitUnknown, Conflict, Corruption, Fenced, Unavailable
from siltstone.failpoints import reach
from siltstone.model.columns import APP_EPOCH, APP_PRODUCER, COMMIT_ID
from siltstone.model.files import Commit, CommitKind, Committed, DataFile
from siltstone.storage.durable import sync_directory, sync_file, sync_files
from siltstone.storage.handle import LogMoved, Pinned, TableHandle, file_mark
from siltstone.storage.layout import LOG, entry_name, has_versions
from siltstone.storage.log import LAST_CHECKPOINT, LogEntry, entries_between, list_log, read_entry
from siltstone.storage.parquet import read_footer
from siltstone.storage.upkeep import Retention

__all__ = ["Parent", "Pinned", "Table"]

TURN: Final = "_turn"
TURN_SECONDS: Final = 1.0
"""How long to wait for a turn before trying without one: the turn is for speed only."""
BACKOFF_SECONDS: Final = 0.01
BACKOFF_MAX_SECONDS: Final = 0.5
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


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


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One try: the commit as built for this parent, and how its entry is written."""

    commit: Commit
    write: Callable[[CommitProperties], None]


class Table(TableHandle):
    """One Delta table: what `TableHandle` reads, and the commit path. Safe to share between threads."""

    def __init__(
        self,
        path: Path,
        *,
        settings: Settings,
        clock: Clock,
        retention: Retention,
        label: str,
        must_exist: bool = False,
    ) -> None:
        """Remember where the table is; it is opened on first use."""
        super().__init__(path, label=label, must_exist=must_exist)
        self.retention = retention
        self._settings = settings
        self._clock = clock
        self._verified: set[str] = set()
        self._synced_folders: set[Path] = set()
        self._synced = -2

    @staticmethod
    def create(
        path: Path, schema: pa.Schema, *, partition_by: list[str], properties: Mapping[str, str], durable: bool
    ) -> None:
        """Make a table at version 0; of many that try at once exactly one succeeds.

        Raises:
            Conflict: a table is already there.
        """
        path.mkdir(parents=True, exist_ok=True)
        if has_versions(path):
            raise Conflict(f"A Delta table already exists at {path}.")
        try:
            made = DeltaTable.create(
                path,
                schema,
                partition_by=partition_by,
                configuration=dict(properties),
                raise_if_key_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=_NO_HOOKS,
            )
            _declare_invariants(made)
        except DeltaError as error:
            if (path / LOG / entry_name(0)).exists():
                raise Conflict(f"Another process created the Delta table at {path} first.") from error
            raise Unavailable(f"The Delta table at {path} could not be created: {error}") from error
        if durable:
            for entry in (path / LOG).glob("*.json"):
                sync_file(entry)
            for folder in (path / LOG, path, *list(path.parents)[:4]):
                sync_directory(folder)

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

        def prepare(handle: DeltaTable) -> _Attempt:
            commit = self._check(build(Parent(self, handle.version())), handle)
            self.verify(commit.adds)
            return _Attempt(commit, lambda properties: self._write_entry(handle, commit, properties))

        committed = self._land(prepare)
        self._verified.difference_update(file.path for file in committed.commit.adds)
        return committed

    def set_properties(self, properties: Mapping[str, str]) -> int:
        """Change the table's properties as a commit of its own; return the version."""

        def prepare(handle: DeltaTable) -> _Attempt:
            return _Attempt(
                Commit(kind=CommitKind.METADATA, plan_version=handle.version()),
                lambda commit: handle.alter.set_table_properties(
                    dict(properties),
                    raise_if_not_exists=False,
                    commit_properties=commit,
                    post_commithook_properties=_NO_HOOKS,
                ),
            )

        return self._land(prepare).version

    def _land(self, prepare: Callable[[DeltaTable], "_Attempt"]) -> Committed:
        """Try until the commit lands, is refused, or time runs out."""
        commit_id = self._clock.new_id()
        deadline = self._clock.monotonic_seconds() + self._settings.commit_timeout_seconds
        tried: list[Committed] = []
        with self._mutex:
            while True:
                with self._turn():
                    handle = self._refresh()
                    landed = self._landed_late(tried, commit_id)
                    if landed is None and (attempt := self._prepared(prepare, handle)) is not None:
                        tried.append(
                            Committed(version=handle.version() + 1, commit_id=commit_id, commit=attempt.commit)
                        )
                        landed = tried[-1] if self._try(attempt, tried[-1]) else None
                if landed is not None:
                    self._acknowledge(landed)
                    return landed
                if self._clock.monotonic_seconds() > deadline:
                    raise Unavailable(
                        f"{self.label}: other writers won {len(tried)} times in a row; nothing was written. Try again later."
                    )
                self._back_off(len(tried))

    def _prepared(self, prepare: Callable[[DeltaTable], "_Attempt"], handle: DeltaTable) -> "_Attempt | None":
        """Build and check the next try; None if the log was cleaned under the handle, so that it has to be refreshed."""
        try:
            return prepare(handle)
        except LogMoved:
            return None

    def _acknowledge(self, landed: Committed) -> None:
        """Sync what landed; a disk that refuses leaves a commit that is there now and may not be after a power cut."""
        try:
            self._sync_entries(landed.version)
        except OSError as error:
            raise CommitUnknown(
                f"{self.label}: version {landed.version} was written but could not be synced ({error}). Check the disk, and "
                "read the dataset before you repeat the write."
            ) from error

    def _landed_late(self, tried: list[Committed], commit_id: str) -> Committed | None:
        """A try that failed may have landed after it was looked for; look again before every further one."""
        for earlier in tried:
            with contextlib.suppress(FileNotFoundError):
                if read_entry(self.path, earlier.version).commit_id == commit_id:
                    return earlier
        return None

    def _properties(self, commit_id: str, commit: Commit) -> CommitProperties:
        now = epoch_ms(self._clock.now())
        return CommitProperties(
            max_commit_retries=0,
            custom_metadata={COMMIT_ID: commit_id, **commit.info},
            app_transactions=[
                Transaction(app, version, now if app.startswith(APP_PRODUCER) else None)
                for app, version in sorted(commit.transactions.items())
            ],
        )

    def _try(self, attempt: "_Attempt", tried: Committed) -> bool:
        """Write the child entry once; True if it landed, False if another commit took its place."""
        reach("commit.before_entry")
        try:
            attempt.write(self._properties(tried.commit_id, attempt.commit))
            reach("commit.after_entry")
        except (DeltaError, OSError) as error:
            if not self._landed_after_failure(error, tried.version, tried.commit_id):
                return False
        self._check_not_beneath(tried)
        return True

    def _check_not_beneath(self, tried: Committed) -> None:
        """Refuse to believe in an entry below a checkpoint that was not there when the commit was checked.

        A process that slept between its check and its write, while others committed and cleaned, puts its entry where one
        was cleaned away: the write succeeds and nobody will ever read it. If the newest version shows the commit's effect it
        was only overtaken; otherwise nobody can tell.
        """
        pointer = self.path / LOG / LAST_CHECKPOINT
        if file_mark(pointer) == self._hint or list_log(self.path).newest_checkpoint < tried.version:
            return
        commit = tried.commit
        try:
            newest = self.pin(*commit.transactions)
        except Unavailable as error:
            raise CommitUnknown(f"{self.label}: whether version {tried.version} is there cannot be seen.") from error
        live = {file.path for file in newest.files}
        shown = (
            all(file.path in live for file in commit.adds)
            and not any(file.path in live for file in commit.removes)
            and all(newest.transactions.get(app, 0) >= version for app, version in commit.transactions.items())
        )
        if not shown:
            raise CommitUnknown(
                f"{self.label}: version {tried.version} was overtaken by version {newest.version} and its log was cleaned. "
                "Read the dataset to see whether the write is there before you repeat it."
            )

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
        if not has_versions(self.path):
            raise self._gone() from error
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
        actions += [RemoveAction(f.path, data_change, now, f.size_bytes, dict(f.partition)) for f in commit.removes]
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
            if removed or commit.depends or commit.kind.is_compaction:
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
        return replace(commit, transactions={**commit.transactions, APP_EPOCH: commit.epoch})

    def verify(self, files: tuple[DataFile, ...], *, expected: pa.Schema | None = None) -> None:
        """Read every file's footer back and sync it; a file is verified once, before any log names it.

        With `expected` (the columns of a file) a writer can do it before its turn, beside other writers.
        """
        fresh = [file for file in files if file.path not in self._verified]
        if not fresh:
            return
        expected = expected or self._file_schema()
        if not (self.path / LOG).is_dir():
            raise self._gone()
        for file in fresh:
            footer = read_footer(self.path / file.path, expected=expected)
            if (footer.size_bytes, footer.rows) != (file.size_bytes, file.rows):
                raise Corruption(
                    f"File {self.path / file.path} has {footer.rows} rows in {footer.size_bytes} bytes, not "
                    f"{file.rows} in {file.size_bytes}; nothing was committed."
                )
        if self._settings.durable:
            try:
                sync_files(self.path, [file.path for file in fresh], known=self._synced_folders)
            except OSError as error:
                raise Unavailable(f"{self.label}: files cannot be synced ({error}); nothing was changed.") from error
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
            turn = os.open(self.path / TURN, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if not self.path.is_dir():
                raise self._gone() from error
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


def _declare_invariants(table: DeltaTable) -> None:
    """Name the feature behind NOT NULL where features are listed one by one; Spark refuses such a table without it."""
    if table.protocol().writer_features is None or all(field.nullable for field in table.schema().fields):
        return
    table.alter.add_feature(
        [TableFeatures.Invariants],
        allow_protocol_versions_increase=True,
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=_NO_HOOKS,
    )


def _sync_if_there(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        sync_file(path)
