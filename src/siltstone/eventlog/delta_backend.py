"""An event log in a Delta table: appends use the one commit path, queries read a projection.

Flow of an append:

1. concurrent appends of several threads wait in the writer queue and are committed as one group;
2. under the table's commit lock the leader brings the projection to the newest version. It checks every append of the
   group against it. A refused append does not affect the other appends;
3. the new events are written, one file per day, into files that no log names yet;
4. one commit adds the files and advances the transaction `APP_INDEX`, on which it depends. A leader that loses a race
   against another process checks the group again on the new version;
5. the appends are acknowledged, and the leader hands the plan to the projection. The projection applies many of
   them in the background, if possible while no thread appends. Queries read the projection once it has all commits.

A crash before step 4 leaves files of a dead owner, which are swept. After step 4 the events are in the table. The next
query of any process applies them to the projection.
"""

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Final, cast

from sqlalchemy import Connection

from siltstone.clock import Clock, SystemClock, epoch_ns
from siltstone.config import Settings
from siltstone.delta.background import Background
from siltstone.delta.group_commit import WriterQueue
from siltstone.delta.layout import DATA
from siltstone.errors import Conflict, Corruption, InvalidRequest, NotFound, SiltstoneError, Unavailable
from siltstone.eventlog.address import Address, BackendKind
from siltstone.eventlog.arrow_rows import DAY, FIRST_INDEX, TABLE_SCHEMA, day_of, stats_of, to_rows
from siltstone.eventlog.event_store import Appended, AppendPlan
from siltstone.eventlog.event_table import NEW_PROPERTIES, PROPERTY_VERSION, EventTable
from siltstone.eventlog.events import SCHEMA_VERSION, Event, Indexed
from siltstone.eventlog.local_table import open_local
from siltstone.eventlog.pending_commits import ProjectionBacklog
from siltstone.eventlog.projection import Projection
from siltstone.failpoints import reach
from siltstone.host.deferred_interrupts import Uninterrupted
from siltstone.host.user_cache import private_cache
from siltstone.model.commit import Commit, CommitKind, Committed
from siltstone.model.files import DataFile

APP_INDEX: Final = "siltstone.index"
"""The transaction that holds the index of the last event."""
PROJECTED_AT_COMMITS: Final = 32
"""Pending commits at which the projection catches up in the background. One commit of several appends suffices, too."""
QUIET_WAITS: Final = 50
"""Most waits for a pause in appends. After them the pending commits are applied even if appends continue."""
QUIET_SECONDS: Final = 0.1
"""A pause: no append for this long. The projection and checkpoints compete with appends for the GIL."""
BEHIND: Final = ProjectionBacklog(commits=4 * PROJECTED_AT_COMMITS, events=256 * PROJECTED_AT_COMMITS)
"""Backlog at which the projection catches up even while appends continue, mostly in SQLite, outside the GIL."""
FAR_BEHIND: Final = BEHIND.times(4)
"""Backlog at which appends wait for the projection. Bounds memory."""
QUEUED: Final = 1000
"""Most queued appends of one process. With more, callers wait."""


class _NothingNew(Exception):  # noqa: N818
    """Every event of the group was refused or is in the log already."""


class DeltaBackend:
    """A log in a Delta table."""

    def __init__(self, table: EventTable, *, version: int, settings: Settings, clock: Clock) -> None:
        self.version = version
        self._table = table
        self._clock = clock
        location = hashlib.sha256(table.label.encode()).hexdigest()[:12]  # copies of a log share an id
        self._projection = Projection(table, private_cache("eventlog") / f"{table.id}-{location}.db")
        self._queue: WriterQueue[Sequence[Event], list[Appended] | Conflict] = WriterQueue(
            self._commit,
            label=table.label,
            bound=QUEUED,
            wait_seconds=settings.commit_timeout_seconds,
            after=self._note_commit,
        )
        self._committed: tuple[Committed, AppendPlan] | None = None
        self._background = Background()
        self._owner = clock.new_id()
        self._staging = ExitStack()
        self._is_staging = False
        self._is_closing = threading.Event()
        self._groups = 0

    def append(self, events: Sequence[Event]) -> list[Appended]:
        """Append events together with those of other threads."""
        answer = self._queue.submit(events)
        if isinstance(answer, Conflict):
            raise answer
        return answer

    def append_soon(self, events: Sequence[Event]) -> "Future[list[Appended]]":
        """Append events in one group with other pending appends, without waiting."""
        return cast("Future[list[Appended]]", self._queue.submit_soon(events))

    def reading(self) -> AbstractContextManager[Connection]:
        """Open the projection for queries, after it has caught up."""
        return self._projection.reading()

    def rebuild(self) -> None:
        """Rebuild the projection."""
        self._projection.rebuild()

    def heal(self) -> bool:
        """Delete the projection. The next query rebuilds it."""
        self._projection.heal()
        return True

    def refresh_version(self) -> int:
        """Read the table's version again, because another process may have migrated it."""
        self.version = int(self._table.properties()[PROPERTY_VERSION])
        return self.version

    def migrate(self) -> None:
        """Add missing columns, then set the version. A crash in between leaves columns that are not used yet."""
        self._table.add_columns(TABLE_SCHEMA)
        reach("eventlog.during_migration")
        self._table.set_properties({PROPERTY_VERSION: str(SCHEMA_VERSION)})
        self.version = SCHEMA_VERSION

    def close(self) -> None:
        """Wait for pending appends and background work."""
        with Uninterrupted():  # the background thread would wait for ever for the lock of an interrupted event
            self._is_closing.set()
        self._queue.close()
        self._background.close()
        self._table.close()
        self._staging.close()
        self._projection.close()

    def _commit(self, batches: Sequence[Sequence[Event]]) -> list[list[Appended] | Conflict]:
        self._groups += 1
        staged: list[DataFile] = []
        plan = AppendPlan()

        def build(version: int) -> Commit:
            self._discard(staged)
            nonlocal plan
            last = self._table.transaction(APP_INDEX)  # before the check, which may look at a newer version
            plan = self._projection.check(batches, version=version, at=epoch_ns(self._clock.now()))
            if not plan.new:
                raise _NothingNew
            first = plan.new[0].index
            if last is not None and first != last + 1:  # indexes have no gaps, even if the projection accepts one
                raise Corruption(
                    f"{self._table.label}: the next event would be {first}, and the last one is {last}. "
                    "Run silt events rebuild."
                )
            self._stage(plan.new, staged)
            reach("eventlog.after_stage")
            return Commit(
                kind=CommitKind.APPEND,
                plan_version=version,
                adds=tuple(staged),
                transactions={APP_INDEX: plan.new[-1].index},
                depends=frozenset({APP_INDEX}),
            )

        if not self._is_staging:  # until the log is closed, the sweep leaves staged files of this process alone
            self._staging.enter_context(self._table.staging(self._owner))
            self._is_staging = True
        try:
            committed = self._table.commit(build)
        except _NothingNew:
            return plan.answers
        except (Conflict, Corruption, InvalidRequest, Unavailable):
            self._discard(staged)
            raise
        reach("eventlog.after_append")
        self._committed = committed, plan
        return plan.answers

    def _note_commit(self) -> None:
        """Hand the last commit to the projection. Appends do not wait until it is applied."""
        last, self._committed = self._committed, None
        if last is None:
            return
        committed, plan = last
        with suppress(Exception):  # the next query finds the error, or reads the commit from the files
            backlog = self._projection.add_commit(committed.version, plan, commit_id=committed.commit_id)
            if backlog.reaches(FAR_BEHIND):
                self._projection.flush()
            if backlog.commits >= PROJECTED_AT_COMMITS or len(plan.answers) > 1 or backlog.reaches(BEHIND):
                self._background.start("project", Path(), self._keep_up)
            else:
                self._table.notice(committed.version)

    def _keep_up(self) -> str | None:
        """Apply pending commits and notify the table, which may write a checkpoint, until nothing is pending.

        It waits for a pause between appends, unless the backlog is large or the log is being closed.
        """
        try:
            while True:
                for _ in range(QUIET_WAITS):
                    groups = self._groups
                    if self._projection.backlog.reaches(BEHIND) or self._is_closing.wait(QUIET_SECONDS):
                        break
                    if groups == self._groups:
                        break
                self._projection.flush()
                self._table.notice(self._table.version())
                if not self._projection.backlog.commits:
                    return None
        except SiltstoneError as error:
            return str(error)

    def _stage(self, new: list[Indexed], staged: list[DataFile]) -> None:
        """Write the new events, one file per day. Files written before an error are in `staged`, to be discarded."""
        first = new[0].index
        days: dict[str, list[Indexed]] = {}
        for indexed in new:
            days.setdefault(day_of(indexed.event), []).append(indexed)
        for number, (day, events) in enumerate(days.items()):
            path = f"{DATA}/{self._owner}.{self._groups}.{number}.parquet"
            size = self._table.stage(path, to_rows(events, first_index=first))
            staged.append(
                DataFile(
                    path=path,
                    size_bytes=size,
                    rows=len(events),
                    partition={DAY: day, FIRST_INDEX: str(first)},
                    stats=stats_of(len(events)),
                )
            )

    def _discard(self, staged: list[DataFile]) -> None:
        self._table.discard([file.path for file in staged])
        staged.clear()


def open_delta(
    address: Address, *, create: bool, settings: Settings | None = None, clock: Clock | None = None
) -> DeltaBackend:
    """Open a log in a Delta table; create the table if it does not exist. Refuse a table that is not an event log."""
    settings = settings or Settings()
    clock = clock or SystemClock()
    table = open_event_table(address, create=create, settings=settings, clock=clock)
    version = table.properties().get(PROPERTY_VERSION)
    if version is None:
        raise InvalidRequest(f"The Delta table at {address.shown} is not an event log.")
    if int(version) > SCHEMA_VERSION:
        raise InvalidRequest(
            f"Event log {address.shown} has version {version} of its columns; this Siltstone knows {SCHEMA_VERSION}. "
            "Use a newer Siltstone."
        )
    return DeltaBackend(table, version=int(version), settings=settings, clock=clock)


def open_event_table(address: Address, *, create: bool, settings: Settings, clock: Clock) -> EventTable:
    """Open the table of a log; create it if it does not exist."""
    if address.backend is BackendKind.DELTA:
        return open_local(address, create=create, settings=settings, clock=clock)
    from siltstone.delta.object_store_table import Objects, ObjectTable  # imports obstore

    kind = "s3" if address.backend is BackendKind.DELTA_S3 else "azure"
    objects = Objects(kind, address.bucket, address.path, address.options)
    label = f"Event log {address.shown}"
    try:
        return ObjectTable(objects, settings=settings, clock=clock, label=label)
    except NotFound as error:
        if not create:
            raise NotFound(f"There is no event log at {address.shown}.") from error
    with suppress(Conflict):  # another process was faster
        ObjectTable.create(objects, TABLE_SCHEMA, partition_by=[DAY, FIRST_INDEX], properties=NEW_PROPERTIES)
    return ObjectTable(objects, settings=settings, clock=clock, label=label)
