"""The one commit path: every commit to every Delta table of a lake goes through `Table.commit`.

Terms. A *plan version* is the version a commit's files were chosen at. A commit is *landed* once its entry is in the
log, *acknowledged* once that entry is synced.

Flow of one commit:

1. take a turn and refresh; a table with another id, or marked dropped, is Gone;
2. build the commit for this parent (an append takes its sequence here);
3. check every log entry after the plan's version, the transactions, the epoch, and that removed files are live;
4. verify and sync every added file;
5. write the entry as the direct child of the parent, which must still be there, with a commit id of our own;
6. after *any* failure look for that id in the child entry before trying again;
7. sync the entry and every entry below it that was not known to be synced; only then acknowledge.

Invariants. delta-rs' own conflict checker is not relied on. No app transaction decreases. A crash before 5 leaves files that
no log names; after 5 the commit is there, whole, whether or not anybody was told. Deliberately absent: any other place that
writes an entry (`entry_writer`; in object stores `object_store_table` does) or calls a writing method of `DeltaTable`,
checkpoints (see `checkpoints`), rows.
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
from siltstone.delta.commit_lock import TURN, Turn
from siltstone.delta.entry_writer import entry_content, put_entry
from siltstone.delta.foreign_commits import metadata_action, plan_undo
from siltstone.delta.fsync import SyncedLog, sync_directory, sync_file
from siltstone.delta.full_replay import Replayed
from siltstone.delta.layout import LOG, entry_name, has_versions, in_log
from siltstone.delta.log_reader import LAST_CHECKPOINT, LogEntry, entries_between, file_mark, list_log, read_entry
from siltstone.delta.log_replay import Followed
from siltstone.delta.staged_files import VerifiedFiles
from siltstone.delta.table_reader import WRITER_FEATURES, LogMoved, Pinned, TableHandle
from siltstone.errors import CommitUnknown, Conflict, Corruption, Fenced, Reason, Unavailable
from siltstone.failpoints import reach
from siltstone.host.deferred_interrupts import Uninterrupted, raise_noted
from siltstone.model.columns import APP_EPOCH, COMMIT_KIND, COMMIT_UNDONE
from siltstone.model.files import Commit, CommitKind, Committed, DataFile
from siltstone.model.schema import to_struct_json, type_name

__all__ = ["TURN", "Parent", "Pinned", "Table"]

BACKOFF_SECONDS: Final = 0.01
BACKOFF_MAX_SECONDS: Final = 0.5
CREATED: Final = "create"
"""The kind of the commits that make a table."""
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


class _Unchanged(Exception):  # noqa: N818
    """The table has these columns already."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One try: the commit as built for this parent, and how its entry is written with a given commit id."""

    commit: Commit
    write: Callable[[str], None]


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
        stored_partitions: Collection[str] = (),
    ) -> None:
        """Remember where the table is; it is opened on first use. Files hold `stored_partitions`, too, as any other column."""
        super().__init__(path, clock=clock, label=label, must_exist=must_exist)
        self.retention = retention
        self._stored_partitions = frozenset(stored_partitions)
        self._settings = settings
        self._verified = VerifiedFiles(path, durable=settings.durable)
        self._synced_log = SyncedLog(path)

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
                commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={COMMIT_KIND: CREATED}),
                post_commithook_properties=_NO_HOOKS,
            )
            declare_invariants(made)
        except DeltaError as error:
            if (path / LOG / entry_name(0)).exists():
                raise Conflict(f"Another process created the Delta table at {path} first.") from error
            raise Unavailable(f"The Delta table at {path} could not be created: {error}") from error
        if durable:
            for entry in (path / LOG).glob("*.json"):
                sync_file(entry)
            for folder in (path / LOG, path, *list(path.parents)[:4]):
                sync_directory(folder)

    def is_untouched(self) -> bool:
        """True if nothing was committed since `create`, which takes two versions where features are listed one by one."""
        until = self.pin().version
        try:
            made = [
                entry.info.get(COMMIT_KIND) == CREATED for entry in entries_between(self.path, after=-1, until=until)
            ]
        except LookupError:  # so many that a checkpoint stands for them
            return False
        return all(made)

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

        def prepare(parent: int) -> _Attempt:
            commit = self._check(build(Parent(self, parent)), parent)
            self.verify(commit.adds, exact=commit.kind.rewrites_rows)
            return _Attempt(commit, lambda commit_id: self._write_entry(parent + 1, commit, commit_id))

        committed = self._land(prepare)
        self._verified.forget(committed.commit.adds)
        return committed

    def evolve(self, build: Callable[[pa.Schema], pa.Schema]) -> int | None:
        """Change the table's columns as a commit of its own; return the version, None if they were so already.

        `build` gets the columns of each parent the commit is tried on and returns what they shall be; partition columns are kept.

        Raises:
            Conflict: what `build` raises.
        """

        def prepare(parent: int) -> _Attempt:
            found = self._current()
            wanted = build(found.schema)
            if wanted.equals(found.schema, check_metadata=True):
                raise _Unchanged
            commit = Commit(kind=CommitKind.METADATA, plan_version=parent, table_actions=_evolved(found, wanted))
            return _Attempt(commit, lambda commit_id: self._write_entry(parent + 1, commit, commit_id))

        try:
            return self._land(prepare).version
        except _Unchanged:
            return None

    def _adopt(self, opened: DeltaTable | Replayed) -> None:
        before = self._followed.schema if self._followed is not None else None
        super()._adopt(opened)
        if before is None or not before.equals(self._current().schema, check_metadata=True):
            self._verified.doubt()

    def set_properties(self, properties: Mapping[str, str]) -> int:
        """Change the table's properties as a commit of its own; return the version."""

        def prepare(parent: int) -> _Attempt:
            action = metadata_action(self._current().opened)
            changed = action | {"configuration": {**action["configuration"], **properties}}
            commit = Commit(kind=CommitKind.METADATA, plan_version=parent, table_actions=({"metaData": changed},))
            return _Attempt(commit, lambda commit_id: self._write_entry(parent + 1, commit, commit_id))

        return self._land(prepare).version

    def undo_foreign(self) -> int:
        """Undo, by one commit, what another program has committed since Siltstone did; return its version.

        A crash leaves the damage, or the table as Siltstone left it.

        Raises:
            Conflict: there is nothing to undo, or another process was first. Nothing was changed.
            Corruption: it cannot be undone.
            Unavailable: the disk refused.
        """
        with self._mutex, self._turn():
            now_ms = epoch_ms(self._clock.now())
            plan = plan_undo(self.path, now_ms=now_ms)
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
                raise Conflict(f"{self.label}: another process was first; nothing was changed.") from error
            except OSError as error:
                raise Unavailable(f"{self.label}: the repair could not be written ({error}).") from error
            reach("commit.after_entry")
            self._followed = None
            self._acknowledge(landed)
            return landed.version

    def _land(self, prepare: Callable[[int], _Attempt]) -> Committed:
        """Try until the commit lands, is refused, or time runs out."""
        commit_id = self._clock.new_id()
        deadline = self._clock.monotonic_seconds() + self._settings.commit_timeout_seconds
        tried: list[Committed] = []
        with self._mutex:
            while True:
                with Uninterrupted(), self._turn():
                    parent = self._refresh()
                    landed = self._landed_late(tried, commit_id)
                    if landed is None and (attempt := self._prepared(prepare, parent)) is not None:
                        tried.append(Committed(version=parent + 1, commit_id=commit_id, commit=attempt.commit))
                        landed = tried[-1] if self._try(attempt, tried[-1]) else None
                if landed is not None:
                    self._acknowledge(landed)
                    return landed
                raise_noted()
                if self._clock.monotonic_seconds() > deadline:
                    raise Unavailable(
                        f"{self.label}: other writers won {len(tried)} times in a row; nothing was written. Try again later."
                    )
                self._back_off(len(tried))

    def _prepared(self, prepare: Callable[[int], _Attempt], parent: int) -> _Attempt | None:
        """Build and check the next try; None if the log was cleaned under it, so that it has to be refreshed."""
        try:
            attempt = prepare(parent)
        except LogMoved:
            return None
        return attempt if self._current().is_in_place() else None

    def _acknowledge(self, landed: Committed) -> None:
        """Sync what landed; a disk that refuses leaves a commit that is there now and may not be after a power cut."""
        try:
            self._sync_log(landed.version)
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

    def _try(self, attempt: _Attempt, tried: Committed) -> bool:
        """Write the child entry once; True if it landed, False if another commit took its place."""
        reach("commit.before_entry")
        try:
            attempt.write(tried.commit_id)
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
        if file_mark(in_log(self.path, LAST_CHECKPOINT)) == self._hint:
            return
        if list_log(self.path).newest_checkpoint < tried.version:
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
        if isinstance(error, CommitFailedError | FileExistsError):
            return False
        raise Unavailable(f"{self.label}: the commit could not be written ({error}); nothing was changed.") from error

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

    # ---- checks --------------------------------------------------------------------------------------------------

    def _check(self, commit: Commit, parent: int) -> Commit:
        """Refuse a commit that what has happened since its plan makes wrong."""
        removed = frozenset(file.path for file in commit.removes)
        try:
            for entry in entries_between(self.path, after=commit.plan_version, until=parent):
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
        if taken := removed & entry.removes.keys():
            raise Conflict(f"{self.label}: version {entry.version} already removed {min(taken)}. Plan anew.")
        if moved := commit.depends & entry.transactions.keys():
            raise Conflict(f"{self.label}: version {entry.version} moved {min(moved)}. Plan anew.")
        if commit.kind.is_compaction and (entry.changes_metadata or entry.changes_protocol):
            raise Conflict(
                f"{self.label}: version {entry.version} changed the table's metadata. Plan anew.",
                reason=Reason.SCHEMA_CHANGED,
            )

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

    def verify(self, files: tuple[DataFile, ...], *, expected: pa.Schema | None = None, exact: bool = True) -> None:
        """Read every file's footer back and sync it; a file is verified once, before any log names it.

        With `expected` (the columns of a file) a writer can do it before its turn, beside other writers. If the table's columns
        change after that, it is verified anew; what was written before the change need not be `exact` then.
        """
        if not self._verified.missing(files):
            return
        expected = expected or self._file_schema()
        if not (self.path / LOG).is_dir():
            raise self._gone()
        try:
            self._verified.verify(files, expected=expected, exact=exact)
        except Corruption as error:
            if not has_versions(self.path):  # a drop took the files between the look above and this
                raise self._gone() from error
            raise
        except OSError as error:
            raise Unavailable(f"{self.label}: files cannot be synced ({error}); nothing was changed.") from error

    def take_whole(self, file: DataFile) -> None:
        """Take a file whose bytes this process has made and written in one go: its size tells whether it is all there.

        It is synced with the entry that names it.

        Raises:
            Corruption: it has another size.
            OSError: it cannot be looked at.
        """
        self._verified.take_whole(file)

    def _file_schema(self) -> pa.Schema:
        partitions = set(self._current().opened.metadata().partition_columns) - self._stored_partitions
        return pa.schema([f for f in self.schema() if f.name not in partitions])

    # ---- durability, turns ---------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make the newest version durable: whoever relies on an entry has it synced first."""
        with self._mutex:
            self._sync_log(self._refresh())

    def _sync_log(self, until: int) -> None:
        if self._settings.durable:
            self._synced_log.sync(until)

    def _turn(self) -> Turn:
        try:
            return Turn(self.path, clock=self._clock)
        except OSError as error:
            if not self.path.is_dir():
                raise self._gone() from error
            raise Unavailable(f"{self.label}: {self.path} cannot be written ({error}); nothing was changed.") from error

    def _back_off(self, tries: int) -> None:
        limit = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(tries, 10))
        self._clock.sleep(limit * (0.5 + self._clock.jitter() / 2))


def declare_invariants(table: DeltaTable) -> None:
    """Name the feature behind NOT NULL where features are listed one by one; Spark refuses such a table without it."""
    if table.protocol().writer_features is None or all(field.nullable for field in table.schema().fields):
        return
    table.alter.add_feature(
        [TableFeatures.Invariants],
        allow_protocol_versions_increase=True,
        commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={COMMIT_KIND: CREATED}),
        post_commithook_properties=_NO_HOOKS,
    )


def _evolved(found: Followed, wanted: pa.Schema) -> tuple[Mapping[str, Any], ...]:
    """Return the actions that give a table other columns, and the features they need."""
    action = metadata_action(found.opened) | {"schemaString": json.dumps(to_struct_json(wanted), separators=(",", ":"))}
    listed = found.protocol.writer_features
    if listed is None and any(type_name(f.type).find("timestamp_ntz") >= 0 for f in wanted):
        features = {"readerFeatures": ["timestampNtz"], "writerFeatures": sorted(WRITER_FEATURES)}
        return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}, {"metaData": action}
    return ({"metaData": action},)
