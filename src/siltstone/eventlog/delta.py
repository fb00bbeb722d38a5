"""A log that lives in a Delta table: appends go through the one commit path, questions to a projection.

Flow of an append:

1. what several threads append at once waits in the writer queue and is committed as one group;
2. in its turn on the table the leader brings the projection to the newest version, and checks every append of the group against
   it; one that is refused does not keep the others from theirs;
3. the new events are written, one file for each day, into files that no log names yet;
4. one commit adds the files and moves the transaction `APP_INDEX`, on which it depends: whoever loses a race against another
   process checks everything anew on the new version;
5. the projection takes the events in; whoever asks, asks there.

A crash before 4 leaves files of a dead owner, which are swept; after it the events are there, and the next process to ask folds
them.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from siltstone.clock import Clock, SystemClock
from siltstone.config import Settings
from siltstone.errors import Conflict, InvalidRequest, NotFound, Unavailable
from siltstone.eventlog.address import Address
from siltstone.eventlog.events import SCHEMA_VERSION, Event
from siltstone.eventlog.ledger import Appended, Checked, Ledger
from siltstone.eventlog.projection import Projection
from siltstone.eventlog.rows import DAY, FIRST_INDEX, TABLE_SCHEMA, day_of, stats_of, to_rows
from siltstone.failpoints import reach
from siltstone.model.files import Commit, CommitKind, DataFile
from siltstone.model.spec import FORMAT_VERSION, PROPERTY_FORMAT
from siltstone.storage.jars import cache_folder
from siltstone.storage.layout import DATA, has_versions
from siltstone.storage.log import list_log
from siltstone.storage.parquet import write_file
from siltstone.storage.presence import Presence, is_live
from siltstone.storage.queue import WriterQueue
from siltstone.storage.table import Parent, Table
from siltstone.storage.upkeep import Retention, try_tidy_log

APP_INDEX: Final = "siltstone.index"
"""The transaction that holds the index of the last event."""
PROPERTY_VERSION: Final = "siltstone.eventlog.version"
KEPT_ENTRIES: Final = 100
KEPT_HOURS: Final = 24.0
PRESENCE: Final = "_presence"
QUEUED: Final = 1000
"""Appends of one process that may wait before a caller has to."""


class _NothingNew(Exception):  # noqa: N818
    """Every event of the group was refused or is in the log already."""


class DeltaKeeper:
    """A log in a Delta table of this machine."""

    def __init__(self, table: Table, *, settings: Settings, clock: Clock) -> None:
        """Use `open_delta`."""
        self._table = table
        self._settings = settings
        self._clock = clock
        table.version()
        self._projection = Projection(table, cache_folder() / "eventlog" / f"{table.id}.db")
        self._queue: WriterQueue[Sequence[Event], list[Appended] | Conflict] = WriterQueue(
            self._commit, bound=QUEUED, wait_seconds=settings.commit_timeout_seconds
        )
        self._pool: ThreadPoolExecutor | None = None
        self._tidying: Future[None] | None = None
        self._tidied = max(0, list_log(table.path).newest_checkpoint)

    def append(self, events: Sequence[Event]) -> list[Appended]:
        """Append events together with those of other threads."""
        answer = self._queue.submit(events)
        if isinstance(answer, Conflict):
            raise answer
        return answer

    def reading(self) -> AbstractContextManager[Connection]:
        """Ask the projection, once it has caught up."""
        return self._projection.reading()

    def rebuild(self) -> None:
        """Make the projection anew."""
        self._projection.rebuild()

    def close(self) -> None:
        """Wait for what is under way."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._projection.close()

    # ---- committing ----------------------------------------------------------------------------------------------

    def _commit(self, batches: Sequence[Sequence[Event]]) -> list[list[Appended] | Conflict]:
        owner = self._clock.new_id()
        staged: list[DataFile] = []
        found = Checked.nothing()

        def build(parent: Parent) -> Commit:
            self._discard(staged)
            nonlocal found
            found = self._checked(batches, parent)
            if not found.new:
                raise _NothingNew
            staged[:] = self._stage(found.new, owner)
            reach("eventlog.after_stage")
            return Commit(
                kind=CommitKind.APPEND,
                plan_version=parent.version,
                adds=tuple(staged),
                transactions={APP_INDEX: found.new[-1][0]},
                depends=frozenset({APP_INDEX}),
            )

        with Presence(self._table.path / PRESENCE, owner):
            try:
                committed = self._table.commit(build)
            except _NothingNew:
                return found.answers
            except (Conflict, InvalidRequest, Unavailable):
                self._discard(staged)
                raise
        reach("eventlog.after_append")
        self._projection.fold_own(committed.version, found)
        self._notice(committed.version)
        return found.answers

    def _checked(self, batches: Sequence[Sequence[Event]], parent: Parent) -> Checked:
        with self._projection.reading(parent.version) as connection:
            return Ledger(connection).check(batches)

    def _stage(self, new: list[tuple[int, Event]], owner: str) -> list[DataFile]:
        """Write the new events, one file a day."""
        first = new[0][0]
        days: dict[str, list[tuple[int, Event]]] = {}
        for index, event in new:
            days.setdefault(day_of(event), []).append((index - first, event))
        files: list[DataFile] = []
        for number, (day, events) in enumerate(days.items()):
            relative = f"{DATA}/{owner}.{number}.parquet"
            path = self._table.path / relative
            try:
                path.parent.mkdir(exist_ok=True)
                write_file(to_rows(events), path, key=["build_request_id", "event_id"])
                size = path.stat().st_size
            except OSError as error:
                path.unlink(missing_ok=True)
                raise Unavailable(f"{self._table.label}: {path.parent} cannot be written ({error}).") from error
            files.append(
                DataFile(
                    path=relative,
                    size_bytes=size,
                    rows=len(events),
                    partition={DAY: day, FIRST_INDEX: str(first)},
                    stats=stats_of(len(events)),
                )
            )
        return files

    def _discard(self, staged: list[DataFile]) -> None:
        for file in staged:
            (self._table.path / file.path).unlink(missing_ok=True)
        staged.clear()

    # ---- upkeep --------------------------------------------------------------------------------------------------

    def _notice(self, version: int) -> None:
        """Every so many commits, tidy the table's log and sweep what crashed writers left, in the background."""
        if version - self._tidied < self._settings.checkpoint_interval_commits:
            return
        if self._tidying is not None and not self._tidying.done():
            return
        self._tidied = version
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="siltstone-eventlog")
        self._tidying = self._pool.submit(self._tidy)

    def _tidy(self) -> None:
        tidy = partial(try_tidy_log, retention=self._table.retention, durable=self._settings.durable, clock=self._clock)
        tidy(self._table.path)
        sweep(self._table)


def sweep(table: Table) -> int:
    """Delete files that no log names and whose writers are dead; return how many."""
    folder = table.path / DATA
    found = [path for path in folder.glob("*.parquet") if not is_live(table.path / PRESENCE, path.name.split(".")[0])]
    live = {file.path for file in table.pin().files}  # after `found`: what was committed is named here
    dead = [path for path in found if f"{DATA}/{path.name}" not in live]
    for path in dead:
        path.unlink(missing_ok=True)
    return len(dead)


def open_delta(address: Address, *, create: bool, settings: Settings | None = None) -> DeltaKeeper:
    """Open a log in a Delta table, and make the table if there is none.

    Raises:
        NotFound: there is no log, and none is to be made.
        InvalidRequest: a newer Siltstone has written it, or what is there is no event log.
    """
    settings = settings or Settings()
    clock = SystemClock()
    path = Path(address.path)
    if not has_versions(path):
        if not create:
            raise NotFound(f"There is no event log at {address.shown}.")
        _create(path, settings)
    table = Table(
        path,
        settings=settings,
        clock=clock,
        retention=Retention(hours=KEPT_HOURS, max_entries=KEPT_ENTRIES),
        label=f"Event log {address.shown}",
        must_exist=True,
    )
    version = table.properties().get(PROPERTY_VERSION)
    if version is None:
        raise InvalidRequest(f"The Delta table at {path} is no event log.")
    if int(version) > SCHEMA_VERSION:
        raise InvalidRequest(
            f"Event log {address.shown} has version {version} of its columns; this Siltstone knows {SCHEMA_VERSION}. "
            "Use a newer Siltstone."
        )
    return DeltaKeeper(table, settings=settings, clock=clock)


def _create(path: Path, settings: Settings) -> None:
    properties = {PROPERTY_FORMAT: str(FORMAT_VERSION), PROPERTY_VERSION: str(SCHEMA_VERSION)}
    try:
        Table.create(
            path, TABLE_SCHEMA, partition_by=[DAY, FIRST_INDEX], properties=properties, durable=settings.durable
        )
    except Conflict:
        return  # another process was quicker
    except OSError as error:
        raise Unavailable(f"No event log can be made at {path}: {error}") from error
