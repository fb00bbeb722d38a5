"""One incarnation of a dataset on disk: its two tables, its specification, and snapshots of both.

Tables that do not have one history are rejected (`table_invariants`).
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.coordination.liveness import LivenessLock
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.table_invariants import check_gapless, check_pruned, check_watermark
from siltstone.delta.checkpoints import Retention
from siltstone.delta.layout import BASE, CHANGES, Layout
from siltstone.delta.parquet import ROW_GROUP_ROWS, stat_columns, writer_options
from siltstone.delta.read_cache import ReadCache
from siltstone.delta.row_group_reader import readable
from siltstone.delta.table import Table
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import SiltstoneError, Unavailable
from siltstone.model.columns import APP_CONTENT, APP_EPOCH, APP_FOLD, APP_PRUNE, APP_SEQ
from siltstone.model.files import DataFile
from siltstone.model.names import DatasetName
from siltstone.model.schema import base_schema, change_schema, own_columns
from siltstone.model.spec import Spec
from siltstone.spark_tasks.io import Target
from siltstone.spark_tasks.parquet_checksums import check_file, open_parquet

T = TypeVar("T")

CHANGES_LOG_ENTRIES: Final = 100
"""Log entries that a busy `changes` table retains, about. Opening a table costs by the entries in its log."""

CHECKED_FILES: Final = 10_000
"""Names of verified files that a process remembers. Beyond this number those not used by the last call are dropped."""


class FrameCache:
    """Cache of one object derived from a state of a dataset's changes. Another state or `forget` evicts it."""

    def __init__(self) -> None:
        self._cached: tuple[object, object, Any, Callable[[Any], None]] | None = None
        self._mutex = threading.RLock()  # if two threads request the same state, one computes it and the other waits

    def get(
        self, state: object, session: object, make: Callable[[Any], T], *, close: Callable[[T], None] = lambda _: None
    ) -> T:
        """Return the cached object of this state and session, or make it from the session's previous object, if any.

        `close` releases what the object holds outside this process.
        """
        with self._mutex:
            cached = self._cached
            if cached is None or cached[0] != state or cached[1] is not session:
                made = make(cached[2] if cached is not None and cached[1] is session else None)
                self.forget()
                self._cached = cached = (state, session, made, close)
            return cast(T, cached[2])

    def forget(self) -> None:
        """Release the cached object, because rows that a purge deletes from disk must not stay in memory."""
        with self._mutex:
            cached, self._cached = self._cached, None
            if cached is not None:
                cached[3](cached[2])


class PurgeListeners:
    """Listeners of one lake object that are notified of purges and drops: caches of rows must not keep deleted rows."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Path], object]] = []

    def add(self, listener: Callable[[Path], object]) -> None:
        """Call `listener` with the folder of each dataset that is purged or dropped from now on."""
        self._listeners.append(listener)

    def notify(self, folder: Path) -> None:
        """Call all listeners: rows of this folder must leave memory."""
        for listener in tuple(self._listeners):
            listener(folder)


@dataclass(frozen=True, kw_only=True)
class Store:
    """The storage of one incarnation, and the components that its users share."""

    name: DatasetName
    incarnation: str
    spec: Spec
    schema: pa.Schema
    layout: Layout
    settings: Settings
    clock: Clock
    after_commit: Callable[[Table, int], None]
    after_write: "Callable[[Store, int], None]"
    frames: FrameCache = field(default_factory=FrameCache, compare=False, repr=False)
    reads: ReadCache = field(compare=False, repr=False)
    """Cache of lookups, shared by all datasets of a lake."""
    purge_listeners: PurgeListeners = field(default_factory=PurgeListeners, compare=False, repr=False)
    """Notified when rows are purged or the dataset is dropped."""
    gapless: list[tuple[tuple[DataFile, ...], int]] = field(default_factory=list, init=False, compare=False, repr=False)
    """The change files and the watermark of the last check for missing sequences; empty before the first check."""
    checked: set[Path] = field(default_factory=set, compare=False, repr=False)
    """Files whose footers and indexes this process has verified."""
    base: Table = field(init=False, compare=False, repr=False)
    """The folded rows."""
    changes: Table = field(init=False, compare=False, repr=False)
    """All changes that were written and not yet folded."""

    def __post_init__(self) -> None:
        """Create the table objects. They are opened on first use; all threads share them and what they have read."""
        base = Retention(hours=self.settings.base_retention_hours)
        changes = Retention(hours=self.settings.changes_retention_hours, max_entries=CHANGES_LOG_ENTRIES)
        object.__setattr__(self, "base", self._table(BASE, base, stored=self.spec.partition_by))
        object.__setattr__(self, "changes", self._table(CHANGES, changes))

    @cached_property
    def path(self) -> Path:
        """The folder of this incarnation."""
        return self.layout.dataset(self.name, self.incarnation)

    def _table(self, folder: str, retention: Retention, *, stored: Sequence[str] = ()) -> Table:
        return Table(
            self.path / folder,
            settings=self.settings,
            clock=self.clock,
            retention=retention,
            label=f"Dataset {self.name}",
            must_exist=True,
            stored_partitions=stored,
        )

    @cached_property
    def change_schema(self) -> pa.Schema:
        """The physical columns of a change file."""
        return change_schema(self.schema, self.spec.key)

    @cached_property
    def base_schema(self) -> pa.Schema:
        """The physical columns of a base file: the user's, and for a log some of ours."""
        return base_schema(self.schema, is_log=self.spec.is_log)

    @cached_property
    def stats(self) -> list[str]:
        """The columns with ranges in base's log, without partition columns, whose values the log has already."""
        sort = self.spec.sort_by or self.spec.key
        columns = stat_columns(self.base_schema, sort=sort, subject=self.spec.subject)
        return [name for name in columns if name not in self.spec.partition_by]

    def task_target(self, schema: pa.Schema, folder: Path) -> Target:
        """Return the target for Spark's tasks that write files of this dataset into a folder."""
        return Target(
            schema=schema,
            folder=str(folder),
            options=writer_options(schema, self.spec.found_by),
            row_group_rows=ROW_GROUP_ROWS,
            durable=self.settings.durable,
            verify=self.settings.verify_checksums,
        )

    def current(self) -> "Store":
        """Return the store with the current columns of base, which another process may have altered."""
        columns = own_columns(self.base.columns())
        return self if columns.equals(self.schema, check_metadata=True) else replace(self, schema=columns)

    def snapshot(self) -> Snapshot:
        """Take a snapshot. The correctness of every reader depends on the order of the first two lines.

        Corruption: the two tables do not have one history, or a sequence is missing.
        """
        changes = self.changes.pin(APP_SEQ, APP_PRUNE)
        base = self.base.pin(APP_FOLD, APP_EPOCH, APP_CONTENT)
        snapshot = Snapshot(changes=changes, base=base, watermark=base.transactions.get(APP_FOLD, 0))
        self._check_relation(snapshot)
        return snapshot

    def _check_relation(self, snapshot: Snapshot) -> None:
        """Reject tables of different moments (`table_invariants`). Files that were checked once are not checked again."""
        transactions, watermark = snapshot.changes.transactions, snapshot.watermark
        sequence = transactions.get(APP_SEQ, 0)
        if watermark > sequence:  # base may have been folded since `changes` was opened
            check_watermark(self.name, sequence=self.changes.newest(APP_SEQ) or 0, watermark=watermark)
        check_pruned(self.name, pruned=transactions.get(APP_PRUNE, 0), watermark=watermark)
        files = snapshot.changes.files
        if not self.gapless or self.gapless[0][0] is not files or self.gapless[0][1] != watermark:
            check_gapless(self.name, files, watermark=watermark, sequence=sequence)
            self.gapless[:] = [(files, watermark)]

    def opened(self, path: Path) -> AbstractContextManager[pq.ParquetFile]:
        """Open a file of one of the two tables. Its checksums are verified by default (setting `verify_checksums`)."""
        return open_parquet(path, verify=self.settings.verify_checksums)

    def footer(self, path: Path) -> pq.FileMetaData:
        """Read the footer of a file of one of the two tables; Corruption if it is damaged."""
        with readable(path), self.opened(path) as file:
            return file.metadata

    def check_files(self, paths: Sequence[Path]) -> None:
        """Verify the footers and indexes of files for a reader that cannot; each file once per process."""
        if not self.settings.verify_checksums:
            return
        for path in paths:
            if path not in self.checked:
                with contextlib.suppress(FileNotFoundError), readable(path):  # the reader reports a missing file
                    check_file(path)
                    self.checked.add(path)
        if len(self.checked) > CHECKED_FILES:
            self.checked.intersection_update(paths)

    def forget(self) -> None:
        """Evict every cached row, because rows that a purge or a drop deletes from disk must not stay in memory."""
        self.frames.forget()
        self.reads.forget(self.path)
        self.purge_listeners.notify(self.path)

    def note_commit(self, table: Table, version: int) -> None:
        """Notify background maintenance of a commit. A failure in maintenance must not undo the commit."""
        with contextlib.suppress(SiltstoneError, LogChanged, OSError):  # a drop may have removed the folder
            self.after_commit(table, version)
            if table is self.changes:
                self.after_write(self, version)

    def liveness_lock(self, owner: str | None = None) -> LivenessLock:
        """Acquire the liveness lock of an owner of staged files (default: a new one)."""
        try:
            return LivenessLock(self.layout.liveness, owner or self.clock.new_id())
        except OSError as error:
            raise Unavailable(
                f"Dataset {self.name}: {self.layout.liveness} cannot be written ({error}); nothing was changed. "
                "Check the disk and its permissions."
            ) from error
