"""The only commit path: every commit to every Delta table of a lake goes through `Table.commit`.

Terms. The *plan version* is the table version at which a commit's input files were chosen. A commit is *landed* when its
entry is in the log. It is *acknowledged* when that entry is synced.

Flow of one commit:

1. acquire the commit lock and refresh; a table with another id, or marked dropped, is Gone;
2. build the commit for this parent version (an append gets its sequence here);
3. check every log entry after the plan version, the transactions, the epoch, and that removed files are live;
4. verify and sync every added file;
5. write the entry as the direct child of the parent, which must still exist, with our own commit id;
6. after *any* failure look for that id in the child entry before the next attempt;
7. sync the entry and every entry below it that is not known to be synced, then acknowledge.

Invariants. The commit path does not rely on the conflict checker of delta-rs. No app transaction decreases. A crash before
step 5 leaves files that no log names. A crash after step 5 leaves the whole commit, whether or not the caller received an
acknowledgement.

Not in this module: checkpoints (see `checkpoints`) and rows. No other module writes a log entry (`entry_writer` does it
for this one, `object_store_table` in object stores). None calls a writing method of `DeltaTable`.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, TableFeatures
from deltalake.exceptions import CommitFailedError, DeltaError

from siltstone.clock import Clock, epoch_ms
from siltstone.config import Settings
from siltstone.delta.checkpoints import Retention
from siltstone.delta.commit_lock import LOCK_FILE, CommitLock
from siltstone.delta.entry_writer import entry_content, put_entry
from siltstone.delta.foreign_commits import metadata_action, plan_undo
from siltstone.delta.fsync import SyncedLog, sync_directory, sync_file
from siltstone.delta.full_replay import Replayed
from siltstone.delta.layout import LOG, entry_name, has_versions, in_log
from siltstone.delta.log_reader import LAST_CHECKPOINT, LogEntry, entries_between, file_mark, list_log, read_entry
from siltstone.delta.log_replay import ReplayedTable
from siltstone.delta.staged_files import StagedFiles
from siltstone.delta.table_reader import WRITER_FEATURES, LogChanged, TableReader, TableVersion
from siltstone.errors import CommitUnknown, Conflict, Corruption, Fenced, Reason, Unavailable
from siltstone.failpoints import reach
from siltstone.host.deferred_interrupts import Uninterrupted, raise_noted
from siltstone.model.columns import APP_EPOCH, COMMIT_KIND, COMMIT_UNDONE
from siltstone.model.commit import Commit, CommitKind, Committed
from siltstone.model.files import DataFile
from siltstone.model.schema import to_struct_json, type_name

__all__ = ["LOCK_FILE", "ParentVersion", "Table", "TableVersion"]

BACKOFF_SECONDS: Final = 0.01
BACKOFF_MAX_SECONDS: Final = 0.5
CREATED: Final = "create"
"""Commit kind of the commits that create a table."""
NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class ParentVersion:
    """The newest version, on which a commit is built, as seen under the table's mutex."""

    table: "Table"
    version: int

    def transaction(self, app: str) -> int | None:
        """Return the app transaction at this version."""
        return self.table.transaction(app)

    def files(self) -> tuple[DataFile, ...]:
        """Return the live files at this version."""
        return self.table.files()


class _Unchanged(Exception):  # noqa: N818
    """Raised when the table already has the requested columns."""


class Table(TableReader):
    """One Delta table: the reads of `TableReader` and the commit path. Safe to share between threads."""

    def __init__(
        self,
        path: Path,
        *,
        settings: Settings,
        clock: Clock,
        retention: Retention,
        label: str,
        must_exist: bool = False,
        stored_partitions: Collection[str] = (),
    ) -> None:
        """Open the table on first use, not here. Its files also store the partition columns in `stored_partitions`."""
        super().__init__(path, clock=clock, label=label, must_exist=must_exist)
        self.retention = retention
        self._stored_partitions = frozenset(stored_partitions)
        self._settings = settings
        self._verified = StagedFiles(path, durable=settings.durable)
        self._synced_log = SyncedLog(path)

    @staticmethod
    def create(
        path: Path, schema: pa.Schema, *, partition_by: list[str], properties: Mapping[str, str], durable: bool
    ) -> None:
        """Create a table at version 0. Of several concurrent creators exactly one succeeds.

        Raises:
            Conflict: a table already exists.
        """
        path.mkdir(parents=True, exist_ok=True)
        if has_versions(path):
            raise Conflict(f"A Delta table already exists at {path}.")
        try:
            created = DeltaTable.create(
                path,
                schema,
                partition_by=partition_by,
                configuration=dict(properties),
                raise_if_key_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={COMMIT_KIND: CREATED}),
                post_commithook_properties=NO_HOOKS,
            )
            declare_invariants(created)
        except DeltaError as error:
            if (path / LOG / entry_name(0)).exists():
                raise Conflict(f"Another process created the Delta table at {path} first.") from error
            raise Unavailable(
                f"The Delta table at {path} could not be created ({error}). Check the disk and try again."
            ) from error
        if durable:
            for entry in (path / LOG).glob("*.json"):
                sync_file(entry)
            for folder in (path / LOG, path, *list(path.parents)[:4]):
                sync_directory(folder)

    def is_untouched(self) -> bool:
        """True if nothing was committed since `create`. Where features are listed one by one, `create` takes two versions."""
        entries = entries_between(self.path, after=-1, until=self.pin().version)
        try:
            return all(entry.info.get(COMMIT_KIND) == CREATED for entry in list(entries))
        except LookupError:  # the first entries were cleaned, so a checkpoint replaced them
            return False

    def commit(self, build: Callable[[ParentVersion], Commit]) -> Committed:
        """Land one commit exactly once and return when it is durable.

        `build` is called for each parent version on which the commit is attempted. A compaction returns the same commit
        each time.

        Raises:
            Conflict: something this commit depends on has changed. Plan again.
            Fenced: a job with a higher epoch has taken over.
            CommitUnknown: it is no longer possible to find out whether the commit landed.
            Unavailable: other writers won for longer than the time limit, or the disk failed.
        """

        def prepare(parent: int) -> Commit:
            commit = self._check(build(ParentVersion(self, parent)), parent)
            self.verify(commit.adds, exact=commit.kind.rewrites_rows)
            return commit

        committed = self._commit_loop(prepare)
        self._verified.forget(committed.commit.adds)
        return committed

    def evolve(self, build: Callable[[pa.Schema], pa.Schema]) -> int | None:
        """Change the table's columns in a separate commit. Return the version, or None if the columns are already equal.

        `build` receives the columns of each parent on which the commit is attempted, and returns the new columns. Partition
        columns do not change.

        Raises:
            Conflict: raised by `build`.
        """

        def prepare(parent: int) -> Commit:
            current = self._current()
            schema = build(current.schema)
            if schema.equals(current.schema, check_metadata=True):
                raise _Unchanged
            return Commit(kind=CommitKind.METADATA, plan_version=parent, table_actions=_schema_actions(current, schema))

        try:
            return self._commit_loop(prepare).version
        except _Unchanged:
            return None

    def _adopt(self, opened: DeltaTable | Replayed) -> None:
        before = self._followed.schema if self._followed is not None else None
        super()._adopt(opened)
        if before is None or not before.equals(self._current().schema, check_metadata=True):
            self._verified.invalidate()

    def set_properties(self, properties: Mapping[str, str]) -> int:
        """Change the table's properties in a separate commit; return the version."""

        def prepare(parent: int) -> Commit:
            action = metadata_action(self._current().opened)
            changed = action | {"configuration": {**action["configuration"], **properties}}
            return Commit(kind=CommitKind.METADATA, plan_version=parent, table_actions=({"metaData": changed},))

        return self._commit_loop(prepare).version

    def undo_foreign(self) -> int:
        """Undo, in one commit, everything that another program committed after Siltstone's last commit; return the version.

        A crash leaves either the foreign commits, or the table as Siltstone last committed it.

        Raises:
            Conflict: there is nothing to undo, or another process committed first. Nothing was changed.
            Corruption: the foreign commits cannot be undone, because a log entry or a removed file is gone.
            Unavailable: the disk failed.
        """
        with self._mutex, Uninterrupted(), self._commit_lock():
            plan = plan_undo(self.path, now_ms=epoch_ms(self._clock.now()))
            commit = Commit(
                kind=CommitKind.REPAIR,
                plan_version=plan.version,
                table_actions=plan.actions,
                info={COMMIT_UNDONE: str(plan.good)},
            )
            landed = Committed(version=plan.version + 1, commit_id=self._clock.new_id(), commit=commit)
            reach("commit.before_entry")
            try:
                self._write_entry(landed.version, commit, landed.commit_id)
            except FileExistsError as error:
                raise Conflict(f"{self.label}: another process committed first; nothing was changed.") from error
            except OSError as error:
                raise Unavailable(
                    f"{self.label}: the repair could not be written ({error}). Check the disk and try again."
                ) from error
            reach("commit.after_entry")
            self._followed = None
            self._acknowledge(landed)
            return landed.version

    def _commit_loop(self, prepare: Callable[[int], Commit]) -> Committed:
        """Attempt the commit that `prepare` builds for a parent, until it lands, is refused, or the time limit is over."""
        commit_id = self._clock.new_id()
        deadline = self._clock.monotonic_seconds() + self._settings.commit_timeout_seconds
        attempts: list[Committed] = []
        with self._mutex:
            while True:
                with Uninterrupted(), self._commit_lock():
                    parent = self._refresh()
                    landed = self._found_late(attempts)
                    if landed is None and (commit := self._prepare(prepare, parent)) is not None:
                        attempts.append(Committed(version=parent + 1, commit_id=commit_id, commit=commit))
                        landed = attempts[-1] if self._attempt(attempts[-1]) else None
                if landed is not None:
                    self._acknowledge(landed)
                    return landed
                raise_noted()
                if self._clock.monotonic_seconds() > deadline:
                    raise Unavailable(
                        f"{self.label}: other writers won {len(attempts)} times in a row; nothing was written. Try again later."
                    )
                self._back_off(len(attempts))

    def _prepare(self, prepare: Callable[[int], Commit], parent: int) -> Commit | None:
        """Build and check the next attempt; None if the log was cleaned meanwhile and must be refreshed."""
        try:
            commit = prepare(parent)
        except LogChanged:
            return None
        return commit if self._current().is_in_place() else None

    def _acknowledge(self, landed: Committed) -> None:
        """Sync the landed commit. After a disk error the commit exists, but a power cut may remove it."""
        try:
            self._sync_log(landed.version)
        except OSError as error:
            raise CommitUnknown(
                f"{self.label}: version {landed.version} was written but could not be synced ({error}). Check the disk, and "
                "read the dataset before you repeat the write."
            ) from error

    def _found_late(self, attempts: list[Committed]) -> Committed | None:
        """Return an earlier attempt that landed after the check for it. Called before each further attempt."""
        for earlier in attempts:
            with contextlib.suppress(FileNotFoundError):
                if read_entry(self.path, earlier.version).commit_id == earlier.commit_id:
                    return earlier
        return None

    def _attempt(self, attempt: Committed) -> bool:
        """Write the child entry once; True if it landed, False if another commit has this version."""
        reach("commit.before_entry")
        try:
            self._write_entry(attempt.version, attempt.commit, attempt.commit_id)
            reach("commit.after_entry")
        except (DeltaError, OSError) as error:
            if not self._landed_after_failure(error, attempt.version, attempt.commit_id):
                return False
        self._check_not_superseded(attempt)
        return True

    def _check_not_superseded(self, attempt: Committed) -> None:
        """Refuse to trust an entry below a checkpoint that did not exist when the commit was checked.

        A process may sleep between its check and its write while other processes commit and clean the log. It then writes its
        entry where an older one was cleaned: the write succeeds, but no reader will ever read the entry. If the newest version
        shows the commit's effect, the commit was only superseded. Otherwise the outcome is unknown.
        """
        hint = file_mark(in_log(self.path, LAST_CHECKPOINT))
        if hint == self._hint or list_log(self.path).newest_checkpoint < attempt.version:
            return
        commit = attempt.commit
        try:
            newest = self.pin(*commit.transactions)
        except Unavailable as error:
            raise CommitUnknown(
                f"{self.label}: it cannot be determined whether version {attempt.version} landed ({error}). "
                "Read the dataset before you repeat the write."
            ) from error
        live = {file.path for file in newest.files}
        is_visible = (
            all(file.path in live for file in commit.adds)
            and not any(file.path in live for file in commit.removes)
            and all(newest.transactions.get(app, 0) >= version for app, version in commit.transactions.items())
        )
        if not is_visible:
            raise CommitUnknown(
                f"{self.label}: version {attempt.version} was overtaken by version {newest.version} and its log was cleaned. "
                "Read the dataset to check whether the write has landed before you repeat it."
            )

    def _landed_after_failure(self, error: Exception, child: int, commit_id: str) -> bool:
        """Return whether the child entry is ours. The error proves nothing: a commit can succeed and still raise."""
        try:
            return read_entry(self.path, child).commit_id == commit_id
        except FileNotFoundError:
            pass
        except (Corruption, OSError) as unreadable:
            raise CommitUnknown(
                f"{self.label}: the commit of version {child} failed ({error}) and its entry cannot be read "
                f"({unreadable}). Check the log before you write again."
            ) from error
        if not has_versions(self.path):
            raise self._gone() from error
        if list_log(self.path).newest_checkpoint >= child:
            raise CommitUnknown(
                f"{self.label}: the commit of version {child} failed ({error}) and that entry was already cleaned. "
                "Read the dataset to check whether the write has landed before you repeat it."
            ) from error
        if isinstance(error, CommitFailedError | FileExistsError):
            return False
        raise Unavailable(
            f"{self.label}: the commit could not be written ({error}); nothing was changed. Check the disk and try again."
        ) from error

    def _write_entry(self, version: int, commit: Commit, commit_id: str) -> None:
        content = entry_content(commit, version=version, commit_id=commit_id, now_ms=epoch_ms(self._clock.now()))
        beside = self._verified.unsynced(commit.adds)
        put_entry(
            self.path,
            version,
            content,
            draft_id=self._clock.new_id(),
            durable=self._settings.durable,
            beside=[f"{self.path}/{name}" for name in beside],
        )
        if self._settings.durable:
            self._verified.note_synced(beside)
            self._synced_log.note_written(version)

    def _check(self, commit: Commit, parent: int) -> Commit:
        """Refuse a commit that conflicts with an entry written after its plan version."""
        removed = frozenset(file.path for file in commit.removes)
        try:
            for entry in entries_between(self.path, after=commit.plan_version, until=parent):
                self._check_entry(commit, removed, entry)
        except LookupError as cleaned:
            if removed or commit.depends or commit.kind.is_compaction:
                raise Conflict(f"{self.label}: the plan is older than the log's retention. Plan again.") from cleaned
        self._check_live(commit, removed)
        for app, version in commit.transactions.items():
            if version < (self.transaction(app) or 0):
                raise Conflict(f"{self.label}: transaction {app} would fall to {version}. Plan again.")
        return self._fence(commit)

    def _check_entry(self, commit: Commit, removed: frozenset[str], entry: LogEntry) -> None:
        if conflicting := removed & entry.removes.keys():
            raise Conflict(f"{self.label}: version {entry.version} already removed {min(conflicting)}. Plan again.")
        if advanced := commit.depends & entry.transactions.keys():
            raise Conflict(f"{self.label}: version {entry.version} advanced {min(advanced)}. Plan again.")
        if commit.kind.is_compaction and entry.changes_table:
            raise Conflict(
                f"{self.label}: version {entry.version} changed the table's metadata. Plan again.",
                reason=Reason.SCHEMA_CHANGED,
            )

    def _check_live(self, commit: Commit, removed: frozenset[str]) -> None:
        """Check that each removed file is live and each added file is new. delta-rs checks neither."""
        if not removed and commit.kind is CommitKind.APPEND:
            return
        live = {file.path for file in self.files()}
        if stale := removed - live:
            raise Conflict(f"{self.label}: {min(stale)} is no longer live. Plan again.")
        if twice := live & {file.path for file in commit.adds}:
            raise Conflict(
                f"{self.label}: {min(twice)} is already part of the table. This commit was not applied. Plan again."
            )

    def _fence(self, commit: Commit) -> Commit:
        if commit.epoch is None:
            return commit
        current = self.transaction(APP_EPOCH) or 0
        if commit.epoch < current:
            raise Fenced(f"{self.label}: epoch {commit.epoch} was overtaken by {current}. Stop this job.")
        if commit.epoch == current:
            return commit
        return replace(commit, transactions={**commit.transactions, APP_EPOCH: commit.epoch})

    def verify(self, files: tuple[DataFile, ...], *, expected: pa.Schema | None = None, exact: bool = True) -> None:
        """Read back the footer of every file and sync the file. A file is verified once, before any log entry names it.

        With `expected` (the columns of a file) a writer can verify before it has the commit lock, beside other writers.
        If the table's columns change after that, the file is verified again. Files written before such a change need
        not match the columns exactly (`exact=False`).
        """
        if not self._verified.missing(files):
            return
        if not expected:
            partitions = set(self._current().opened.metadata().partition_columns) - self._stored_partitions
            expected = pa.schema([f for f in self.schema() if f.name not in partitions])
        self.check_there()
        try:
            self._verified.verify(files, expected=expected, exact=exact)
        except Corruption as error:
            if not has_versions(self.path):  # a drop deleted the files after the check above
                raise self._gone() from error
            raise
        except OSError as error:
            raise Unavailable(
                f"{self.label}: the new files cannot be synced ({error}); nothing was changed. Check the disk."
            ) from error

    def accept_in_memory(self, file: DataFile) -> None:
        """Accept a file that this process built in memory and wrote in one call. Its size proves that it is complete.

        It is synced together with the entry that names it.

        Raises:
            Corruption: the file has another size.
            OSError: the file's size cannot be read.
        """
        self._verified.accept_in_memory(file)

    def sync(self) -> None:
        """Make the newest version durable. A caller that relies on an entry syncs it first."""
        with self._mutex:
            self._sync_log(self._refresh())

    def _sync_log(self, until: int) -> None:
        if self._settings.durable:
            self._synced_log.sync(until)

    def _commit_lock(self) -> CommitLock:
        try:
            return CommitLock(self.path, clock=self._clock)
        except OSError as error:
            if not self.path.is_dir():
                raise self._gone() from error
            raise Unavailable(
                f"{self.label}: {self.path} cannot be written ({error}); nothing was changed. "
                "Check the disk and its permissions."
            ) from error

    def make_folder(self, relative: str | Path, *, exist_ok: bool = True) -> Path:
        """Create a folder for staged files below the table, and those above it. Return its path.

        The table's own folder is never created. A dropped dataset would come back without its log and its marker. No
        sweep could prove that the rows in it are ours.

        Raises:
            Gone: the table was dropped.
            OSError: the folder cannot be created.
        """
        folder = self.path / relative
        try:
            for parent in reversed(folder.relative_to(self.path).parents[:-1]):
                (self.path / parent).mkdir(exist_ok=True)
            folder.mkdir(exist_ok=exist_ok)
        except FileNotFoundError as error:
            if self.path.is_dir():
                raise
            raise self._gone() from error
        return folder

    def _back_off(self, tries: int) -> None:
        limit = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(tries, 10))
        self._clock.sleep(limit * (0.5 + self._clock.jitter() / 2))


def declare_invariants(table: DeltaTable) -> None:
    """Declare the feature behind NOT NULL where features are listed one by one. Spark refuses such a table without it."""
    if table.protocol().writer_features is None or all(field.nullable for field in table.schema().fields):
        return
    table.alter.add_feature(
        [TableFeatures.Invariants],
        allow_protocol_versions_increase=True,
        commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={COMMIT_KIND: CREATED}),
        post_commithook_properties=NO_HOOKS,
    )


def _schema_actions(table: ReplayedTable, schema: pa.Schema) -> tuple[Mapping[str, Any], ...]:
    """Return the actions that set a table's columns and the protocol features these columns need."""
    action = metadata_action(table.opened) | {"schemaString": json.dumps(to_struct_json(schema), separators=(",", ":"))}
    if table.protocol.writer_features is None and any("timestamp_ntz" in type_name(f.type) for f in schema):
        features = {"readerFeatures": ["timestampNtz"], "writerFeatures": sorted(WRITER_FEATURES)}
        return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}, {"metaData": action}
    return ({"metaData": action},)
