"""A Delta table in an object store: small commits by conditional puts.

The store creates an object only if its name does not exist yet. So of all writers of one version's entry exactly one succeeds.
No lock is needed, and an acknowledged put is durable. delta-rs creates and opens the table and writes its checkpoints. Entries
are written here, in the same form as on a disk (`entry_writer`).

Flow of a commit:

1. list the entries above the newest known version;
2. build the commit for that version;
3. put its entry, if none exists; if another writer's entry exists, start over;
4. after any failure look for our commit id in that entry.

A put whose reply was lost may land later. That is CommitUnknown. A caller that repeats the same events then learns from the
result that they are already stored. Staged files of crashed writers are swept by age.
Not in this module: compactions. Every added file stays live.
"""

import contextlib
import datetime
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import obstore
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, S3Store

from siltstone.clock import Clock, epoch_ms
from siltstone.config import Settings
from siltstone.delta.background import Background
from siltstone.delta.entry_writer import entry_content
from siltstone.delta.layout import DATA, LOG, entry_name
from siltstone.delta.log_reader import LogEntry, check_own, entry_version, parse_entry
from siltstone.delta.log_replay import LogChanged, live_files
from siltstone.delta.parquet import READ_ERRORS, small_file
from siltstone.delta.table import NO_HOOKS, declare_invariants
from siltstone.errors import CommitUnknown, Conflict, Corruption, NotFound, SiltstoneError, Unavailable
from siltstone.failpoints import reach
from siltstone.host import fork_safety
from siltstone.host.system_errors import read_failure
from siltstone.model.columns import COMMIT_KIND
from siltstone.model.commit import Commit, CommitKind, Committed
from siltstone.model.files import Added, Live
from siltstone.spark_tasks.parquet_checksums import parse_file

CHECKPOINT_COMMITS: Final = 100
"""Commits between checkpoints. Checkpoints are rare, because each lists and writes all live files over a network."""
SWEPT_AFTER: Final = datetime.timedelta(days=1)
STALE_AFTER: Final = datetime.timedelta(hours=1)
"""Duration of a commit after which its entry may have landed below entries that were cleaned meanwhile."""
BACKOFF_SECONDS: Final = 0.02
BACKOFF_MAX_SECONDS: Final = 1.0
RETRIES: Final = 3
ALTER_TRIES: Final = 20
TIMEOUT_SECONDS: Final = 30
CONNECT_SECONDS: Final = 5
_ONCE: Final = CommitProperties(max_commit_retries=0, custom_metadata={COMMIT_KIND: CommitKind.METADATA.value})


class Objects:
    """The objects below one prefix of a bucket or container."""

    def __init__(self, kind: str, bucket: str, prefix: str, options: Mapping[str, str]) -> None:
        """Connect to the store with these options; missing options come from the environment."""
        settings = dict(options)
        allow_http = settings.pop("allow_http", "false").lower() == "true"
        store: Any = S3Store if kind == "s3" else AzureStore
        self.uri = f"{'s3' if kind == 's3' else 'az'}://{bucket}/{prefix}"
        limits = {"timeout": f"{TIMEOUT_SECONDS}s", "connect_timeout": f"{CONNECT_SECONDS}s"}
        self.options = {**options, "aws_conditional_put": "etag", "max_retries": str(RETRIES), **limits}
        """Storage options for delta-rs."""
        self._store = store(
            bucket,
            prefix=prefix,
            config=settings,
            client_options={"allow_http": allow_http, **limits},
            retry_config={"max_retries": RETRIES, "retry_timeout": datetime.timedelta(seconds=TIMEOUT_SECONDS)},
        )

    def put(self, path: str, content: bytes, *, create_only: bool = False) -> None:
        """Write an object; with `create_only`, only if the name does not exist yet.

        Raises:
            FileExistsError: the object already exists.
            OSError: the store refused or cannot be reached.
        """
        with _as_os_errors():
            obstore.put(self._store, path, content, mode="create" if create_only else "overwrite")

    def get(self, path: str) -> bytes:
        """Read an object.

        Raises:
            FileNotFoundError: the object does not exist.
            OSError: the store refused or cannot be reached.
        """
        with _as_os_errors():
            return bytes(obstore.get(self._store, path).bytes())

    def names(self, folder: str, *, after: str = "") -> Iterator[tuple[str, datetime.datetime]]:
        """Yield the names in a folder that follow `after`, in order, with the times of their last change."""
        offset = f"{folder}/{after}" if after else None
        with _as_os_errors():
            for batch in obstore.list(self._store, prefix=f"{folder}/", offset=offset):
                for item in batch:
                    yield str(item["path"]).rsplit("/", 1)[-1], item["last_modified"]

    def delete(self, path: str) -> None:
        """Delete an object. A missing object is not an error."""
        with _as_os_errors(), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, path)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except (AlreadyExistsError, PreconditionError) as error:
        raise FileExistsError(_cause_line(error)) from error
    except FileNotFoundError:
        raise
    except BaseError as error:
        raise OSError(_cause_line(error)) from error


def _cause_line(error: Exception) -> str:
    """Return the first line with text: the cause, without the request."""
    lines = [line.strip(" ↳│") for line in str(error).splitlines() if line.strip(" ↳│")]
    return lines[0][:300] if lines else type(error).__name__


class ObjectTable:
    """One Delta table in an object store. Safe to share between threads."""

    def __init__(self, objects: Objects, *, settings: Settings, clock: Clock, label: str) -> None:
        """Open an existing table.

        Raises:
            NotFound: the table does not exist.
            Unavailable: the store cannot be reached.
        """
        self.label = label
        self._objects = objects
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._background = Background()
        opened = self._open()
        self.id = str(opened.metadata().id)
        self._version = opened.version()
        self._checkpointed = self._version

    @property
    def _mutex(self) -> "threading.RLock":
        """The lock of this object; a forked child is refused."""
        fork_safety.check()
        return self._lock

    @staticmethod
    def create(objects: Objects, schema: pa.Schema, *, partition_by: list[str], properties: Mapping[str, str]) -> None:
        """Create a table at version 0. Of several concurrent creators exactly one succeeds.

        Raises:
            Conflict: a table already exists.
            Unavailable: the store refused.
        """
        try:
            created = DeltaTable.create(
                objects.uri,
                schema,
                partition_by=partition_by,
                configuration={**properties, "delta.logRetentionDuration": "interval 1 days"},
                storage_options=objects.options,
                raise_if_key_not_exists=False,
                commit_properties=_ONCE,
                post_commithook_properties=NO_HOOKS,
            )
            declare_invariants(created)
        except DeltaError as error:
            with contextlib.suppress(OSError):
                objects.get(f"{LOG}/{entry_name(0)}")
                raise Conflict(f"A Delta table already exists at {objects.uri}.") from error
            raise Unavailable(
                f"The Delta table at {objects.uri} could not be created ({_cause_line(error)}). "
                "Check the store and try again."
            ) from error
        except OSError as error:
            raise Unavailable(
                f"The Delta table at {objects.uri} could not be created ({_cause_line(error)}). "
                "Check the store and try again."
            ) from error

    def _open(self) -> DeltaTable:
        try:
            return DeltaTable(self._objects.uri, storage_options=self._objects.options)
        except TableNotFoundError as error:
            raise NotFound(f"There is no Delta table at {self._objects.uri}.") from error
        except (DeltaError, OSError) as error:
            raise Unavailable(
                f"{self.label} cannot be reached ({_cause_line(error)}). Check the store and try again."
            ) from error

    def version(self) -> int:
        """Return the newest version."""
        with self._mutex:
            try:
                for name, _ in self._objects.names(LOG, after=entry_name(self._version)):
                    self._version = max(self._version, entry_version(name) or 0)
            except OSError as error:
                raise Unavailable(
                    f"{self.label} cannot be reached ({error}). Check the store and try again."
                ) from error
            return self._version

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""
        return dict(self._open().metadata().configuration)

    def transaction(self, app: str) -> int | None:
        """Return None, because the transactions are not known without opening the table."""
        del app
        return None

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        try:
            self._get(path)
        except FileNotFoundError:
            return False
        return True

    def _get(self, path: str) -> bytes:
        try:
            return self._objects.get(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unavailable(f"{self.label} cannot be reached ({error}). Check the store and try again.") from error

    def added(self, version: int) -> Added:
        """Return the files that a version added."""
        entry = self._entry(version, self._get)
        return Added(files=entry.files, commit_id=entry.commit_id)

    def _entry(self, version: int, get: Callable[[str], bytes]) -> LogEntry:
        path = f"{LOG}/{entry_name(version)}"
        entry = parse_entry(get(path), version, where=f"{self._objects.uri}/{path}")
        check_own(self._objects.uri, entry)
        return entry

    def live(self) -> Live:
        """Return the newest version's files."""
        opened = self._open()
        return Live(version=opened.version(), files=live_files(opened))

    def read(self, path: str) -> pa.Table:
        """Read a file.

        Raises:
            FileNotFoundError: the file does not exist.
            Unavailable: the store cannot be reached.
        """
        content = self._get(path)
        try:
            return parse_file(content)
        except READ_ERRORS as error:
            raise read_failure(path, error) from error

    def commit(self, build: Callable[[int], Commit]) -> Committed:
        """Land one commit exactly once. `build` is called for each version on which the commit is attempted.

        Raises:
            CommitUnknown: it is not known whether the commit landed.
            Unavailable: other writers won for longer than the time limit, or the store refused.
        """
        commit_id = self._clock.new_id()
        deadline = self._clock.monotonic_seconds() + self._settings.commit_timeout_seconds
        tries = 0
        with self._mutex:
            while True:
                started, version = self._clock.now(), self.version()
                attempt: Committed | None = None
                with contextlib.suppress(LogChanged):  # a newer version appeared meanwhile
                    attempt = Committed(version=version + 1, commit_id=commit_id, commit=build(version))
                if attempt is not None and self._put_entry(attempt):
                    self._version = attempt.version
                    if self._clock.now() - started > STALE_AFTER:
                        raise self._unknown(attempt.version, "it was so slow that its entry may be superseded")
                    return attempt
                tries += 1
                if self._clock.monotonic_seconds() > deadline:
                    raise Unavailable(
                        f"{self.label}: other writers won {tries} times in a row; nothing was written. Try again later."
                    )
                limit = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(tries, 10))
                self._clock.sleep(limit * (0.5 + self._clock.jitter() / 2))

    def _put_entry(self, attempt: Committed) -> bool:
        """Put the entry once; True if it landed, False if another commit has this version."""
        content = entry_content(
            attempt.commit, version=attempt.version, commit_id=attempt.commit_id, now_ms=epoch_ms(self._clock.now())
        )
        reach("commit.before_entry")
        try:
            self._objects.put(f"{LOG}/{entry_name(attempt.version)}", content, create_only=True)
        except OSError as error:
            try:  # the entry may be ours: a repeated put can fail because of its own first put
                return self._entry(attempt.version, self._objects.get).commit_id == attempt.commit_id
            except (Corruption, OSError):  # also if the store reports an existing entry: it may be ours, put twice
                raise self._unknown(attempt.version, str(error)) from error
        reach("commit.after_entry")
        return True

    def _unknown(self, version: int, why: str) -> CommitUnknown:
        return CommitUnknown(
            f"{self.label}: it is not known whether version {version} landed ({why}). Write the same events again: events "
            "that are already stored are not written twice."
        )

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Change some of the table's properties."""
        self._alter(
            lambda table: table.alter.set_table_properties(
                dict(properties),
                raise_if_not_exists=False,
                commit_properties=_ONCE,
                post_commithook_properties=NO_HOOKS,
            )
        )

    def add_columns(self, columns: pa.Schema) -> None:
        """Add the missing ones of these columns to the table."""

        def add(table: DeltaTable) -> None:
            names = {field.name for field in table.schema().fields}
            fields: list[Field] = [field for field in Schema.from_arrow(columns).fields if field.name not in names]
            if fields:
                table.alter.add_columns(fields, commit_properties=_ONCE, post_commithook_properties=NO_HOOKS)

        self._alter(add)

    def _alter(self, change: Callable[[DeltaTable], None]) -> None:
        """Change the table's metadata; retry when another writer commits first."""
        failure: DeltaError | None = None
        for _ in range(ALTER_TRIES):
            try:
                return change(self._open())
            except DeltaError as error:
                failure = error
        raise Unavailable(
            f"{self.label}: its columns or properties cannot be changed ({failure}). Check the store and try again."
        ) from failure

    def staging(self, owner: str) -> AbstractContextManager[object]:
        """Do nothing, because files of crashed writers are swept by age."""
        del owner
        return nullcontext()

    def stage(self, path: str, rows: pa.Table) -> int:
        """Write a file that no log names yet, and return its size."""
        content = small_file(rows)
        try:
            self._objects.put(path, content)
        except OSError as error:
            raise Unavailable(
                f"{self.label}: {path} cannot be written ({error}). The append added no event. Check the store and try again."
            ) from error
        return len(content)

    def discard(self, paths: Iterable[str]) -> None:
        """Delete files that no log names. Files that cannot be deleted are swept later."""
        for path in paths:
            with contextlib.suppress(OSError):
                self._objects.delete(path)

    def notice(self, version: int) -> None:
        """Write a checkpoint, clean the log and sweep files, every `CHECKPOINT_COMMITS` commits."""
        if version - self._checkpointed >= CHECKPOINT_COMMITS and self._background.start(
            "checkpoint", Path(LOG), self._checkpoint_and_sweep
        ):
            self._checkpointed = version

    def _checkpoint_and_sweep(self) -> str | None:
        try:
            opened = self._open()
            opened.create_checkpoint()
            opened.cleanup_metadata()
            self.sweep()
        except (DeltaError, OSError, SiltstoneError) as error:
            return str(error)
        return None

    def sweep(self) -> int:
        """Delete files that no log names and that are a day old; return the number of deleted files."""
        before = self._clock.now() - SWEPT_AFTER
        old = [f"{DATA}/{name}" for name, changed in self._objects.names(DATA) if changed < before]
        live = {file.path for file in self.live().files}  # after `old`: names everything committed until then
        dead = [path for path in old if path not in live]
        for path in dead:
            self._objects.delete(path)
        return len(dead)

    def close(self) -> None:
        """Wait for running background work."""
        self._background.close()
