"""An event log on Delta in a local folder. It uses the commit path of lakes."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.coordination.liveness import LivenessLock, is_live
from siltstone.delta.background import Background, BackgroundCheckpoints
from siltstone.delta.checkpoints import Retention
from siltstone.delta.layout import DATA, has_versions
from siltstone.delta.log_reader import read_entry
from siltstone.delta.parquet import small_file
from siltstone.delta.table import Table
from siltstone.errors import Conflict, NotFound, SiltstoneError, Unavailable
from siltstone.eventlog.address import Address
from siltstone.eventlog.arrow_rows import DAY, FIRST_INDEX, TABLE_SCHEMA
from siltstone.eventlog.compaction import LIVENESS_FOLDER, squash
from siltstone.eventlog.event_table import NEW_PROPERTIES
from siltstone.model.commit import Commit, Committed
from siltstone.model.files import Added, DataFile, Live
from siltstone.spark_tasks.parquet_checksums import open_parquet

RETAINED_ENTRIES: Final = 100
RETAINED_HOURS: Final = 24.0
"""Retention of the table's log entries, by number and by age in hours."""
SWEPT_AFTER_HOURS: Final = 1.0
"""Hours for which replaced files stay on disk, because readers may still use them."""
SWEEP_EVERY_SECONDS: Final = 600.0
RECENT_FILES: Final = 256
"""Most files of this process whose rows stay in memory, so that a merge need not read them."""
RECENT_BYTES: Final = 32 * 1024
"""Size limit of the rows of one file that stays in memory."""


class LocalEventTable:
    """The Delta table of a log in a folder."""

    def __init__(self, table: Table, *, settings: Settings, clock: Clock) -> None:
        self.id, self.label = table.id, table.label
        self._table = table
        self._clock = clock
        self._many = settings.event_log_files
        self._swept_at: float | None = None
        self._recent: dict[str, pa.Table] = {}
        self._background = Background()
        self._checkpoints = BackgroundCheckpoints(self._background, settings=settings, clock=clock)

    def version(self) -> int:
        """Return the newest version."""
        return self._table.version()

    def properties(self) -> Mapping[str, str]:
        """Return the table's properties."""
        return self._table.properties()

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Change some of the table's properties."""
        self._table.set_properties(properties)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add missing columns to the table."""
        self._table.evolve(lambda _: columns)

    def commit(self, build: Callable[[int], Commit]) -> Committed:
        """Apply one commit through the one commit path."""
        return self._table.commit(lambda parent: build(parent.version))

    def added(self, version: int) -> Added:
        """Return the files that a version has added with new events. Files that only hold moved rows are left out."""
        entry = read_entry(self._table.path, version)
        return Added(files=() if entry.moves_rows_only else entry.files, commit_id=entry.commit_id)

    def transaction(self, app: str) -> int | None:
        """Return an app transaction of the last version that was read."""
        return self._table.transaction(app)

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        return (self._table.path / path).exists()

    def live(self) -> Live:
        """Return the newest version's files."""
        pinned = self._table.pin()
        return Live(version=pinned.version, files=pinned.files)

    def staging(self, owner: str) -> AbstractContextManager[object]:
        """Hold the owner's liveness lock inside the block."""
        try:
            return LivenessLock(self._table.path / LIVENESS_FOLDER, owner)
        except OSError as error:
            raise Unavailable(
                f"{self.label}: {self._table.path} cannot be written ({error}). The append added no event. "
                "Check the disk and its permissions."
            ) from error

    def stage(self, path: str, rows: pa.Table) -> int:
        """Write a file that no log names yet; return its size in bytes."""
        full = self._table.path / path
        content = small_file(rows)
        size = len(content)
        try:
            with _create_file(full) as file:
                file.write(content)
            self._table.accept_in_memory(DataFile(path=path, size_bytes=size, rows=rows.num_rows))
        except OSError as error:
            full.unlink(missing_ok=True)
            raise Unavailable(
                f"{self.label}: {full.parent} cannot be written ({error}). The append added no event. "
                "Check the disk and its permissions."
            ) from error
        if size <= RECENT_BYTES:
            self._recent[path] = rows
            while len(self._recent) > RECENT_FILES:
                del self._recent[next(iter(self._recent))]
        return size

    def read(self, path: str) -> pa.Table:
        """Read a file."""
        with open_parquet(self._table.path / path, pre_buffer=False) as opened:
            return opened.read(use_threads=False)

    def discard(self, paths: Iterable[str]) -> None:
        """Delete files that no log names."""
        for path in paths:
            (self._table.path / path).unlink(missing_ok=True)
            self._recent.pop(path, None)

    def notice(self, version: int) -> None:
        """Report a commit. After some commits, a background thread writes a checkpoint, merges small files and sweeps."""
        self._checkpoints.notice(self._table, version, then=self._merge_and_sweep)

    def _merge_and_sweep(self, table: Table) -> None:
        with suppress(SiltstoneError):  # the next notice tries again soon
            while self._many and squash(table, clock=self._clock, many=self._many, recent=self._recent):
                pass
            now = self._clock.monotonic_seconds()
            if self._swept_at is None or now > self._swept_at + SWEEP_EVERY_SECONDS:
                self._swept_at = now
                sweep(table)

    def close(self) -> None:
        """Wait for the background thread."""
        self._background.close()


def _create_file(path: Path) -> BinaryIO:
    """Create a new file, and its folder if needed."""
    try:
        return path.open("xb")
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True)
        return path.open("xb")


def sweep(table: Table) -> int:
    """Delete files that no log names and whose writers are dead; return how many."""
    folder = table.path / DATA
    if folder.is_symlink() or table.path.is_symlink():
        return 0  # files behind a symbolic link are never deleted
    owned: dict[str, list[Path]] = {}
    for path in folder.glob("*.parquet"):
        owned.setdefault(path.name.split(".")[0], []).append(path)
    dead = [
        path for owner, paths in owned.items() if not is_live(table.path / LIVENESS_FOLDER, owner) for path in paths
    ]
    in_use = {file.path for file in table.pin().files}  # after `dead`: commits until now are named here
    in_use |= table.removed(within_hours=SWEPT_AFTER_HOURS)  # readers may still use them
    unreferenced = [path for path in dead if f"{DATA}/{path.name}" not in in_use]
    for path in unreferenced:
        path.unlink(missing_ok=True)
    return len(unreferenced)


def open_local(address: Address, *, create: bool, settings: Settings, clock: Clock) -> LocalEventTable:
    """Open the table in a folder; create it if it does not exist."""
    path = Path(address.path)
    if not has_versions(path):
        if not create:
            raise NotFound(f"There is no event log at {address.shown}.")
        try:
            Table.create(
                path, TABLE_SCHEMA, partition_by=[DAY, FIRST_INDEX], properties=NEW_PROPERTIES, durable=settings.durable
            )
        except Conflict:
            pass  # another process was faster
        except OSError as error:
            raise Unavailable(
                f"No event log can be created at {path} ({error}). Check the disk and its permissions."
            ) from error
    table = open_table(path, settings=settings, clock=clock, label=f"Event log {address.shown}")
    return LocalEventTable(table, settings=settings, clock=clock)


def open_table(path: Path, *, settings: Settings, clock: Clock, label: str | None = None) -> Table:
    """Return the table of a log, for appends and for merges of its files. It is opened on first use."""
    return Table(
        path,
        settings=settings,
        clock=clock,
        retention=Retention(hours=RETAINED_HOURS, max_entries=RETAINED_ENTRIES),
        label=label or f"Event log {path}",
        must_exist=True,
    )
