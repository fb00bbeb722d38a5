"""A log that lives in a Delta table: appends go through the one commit path, questions to a projection.

Flow of an append:

1. what several threads append at once waits in the writer queue and is committed as one group;
2. in its turn on the table the leader brings the projection to the newest version, and checks every append of the group against
   it; one that is refused does not keep the others from theirs;
3. the new events are written, one file for each day, into files that no log names yet;
4. one commit adds the files and moves the transaction `APP_INDEX`, on which it depends: whoever loses a race against another
   process checks everything anew on the new version;
5. the appends are acknowledged, and the leader hands the events to the projection, which folds many of them in the background,
   if it can once nobody appends; whoever asks, asks there, once it has all.

A crash before 4 leaves files of a dead owner, which are swept; after it the events are there, and the next process to ask folds
them.
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
from siltstone.errors import Conflict, Corruption, InvalidRequest, SiltstoneError, Unavailable
from siltstone.eventlog.address import Address, Backend
from siltstone.eventlog.arrow_rows import DAY, FIRST_INDEX, TABLE_SCHEMA, day_of, stats_of, to_rows
from siltstone.eventlog.event_store import Appended, Checked
from siltstone.eventlog.event_table import PROPERTY_VERSION, Place
from siltstone.eventlog.events import SCHEMA_VERSION, Event, Indexed
from siltstone.eventlog.local_table import open_local
from siltstone.eventlog.pending_commits import Backlog
from siltstone.eventlog.projection import Projection
from siltstone.failpoints import reach
from siltstone.model.files import Commit, CommitKind, Committed, DataFile
from siltstone.spark.jars import private_cache

APP_INDEX: Final = "siltstone.index"
"""The transaction that holds the index of the last event."""
FOLDED_AT_COMMITS: Final = 32
"""So many commits of this process, or one of several appends, are folded in the background, once nobody appends."""
QUIET_WAITS: Final = 50
"""So often quiet is waited for; a log whose readers keep the backlog small is tidied, too."""
QUIET_SECONDS: Final = 0.1
"""Nobody appends if nobody did for so long. Folding and tidying beside appends fight with them for the interpreter."""
BEHIND: Final = Backlog(commits=4 * FOLDED_AT_COMMITS, events=256 * FOLDED_AT_COMMITS)
"""Where nobody ever stops appending, so much is folded, and the table tidied, beside appends all the same: the database's own
work, which is most of it, needs no interpreter."""
FAR_BEHIND: Final = BEHIND.times(4)
"""Where folding does not keep up, appends wait for it: a bound for memory."""
QUEUED: Final = 1000
"""Appends of one process that may wait before a caller has to."""


class _NothingNew(Exception):  # noqa: N818
    """Every event of the group was refused or is in the log already."""


class DeltaKeeper:
    """A log in a Delta table."""

    def __init__(self, place: Place, *, version: int, settings: Settings, clock: Clock) -> None:
        """Use `open_delta`."""
        self.version = version
        self._place = place
        self._clock = clock
        self._projection = Projection(place, private_cache("eventlog") / f"{place.id}-{_short(place.label)}.db")
        self._queue: WriterQueue[Sequence[Event], list[Appended] | Conflict] = WriterQueue(
            self._commit, bound=QUEUED, wait_seconds=settings.commit_timeout_seconds, after=self._fold
        )
        self._landed: tuple[Committed, Checked] | None = None
        self._background = Background()
        self._owner = clock.new_id()
        self._staging = ExitStack()
        self._is_kept = False
        self._is_closing = threading.Event()
        self._groups = 0

    def append(self, events: Sequence[Event]) -> list[Appended]:
        """Append events together with those of other threads."""
        answer = self._queue.submit(events)
        if isinstance(answer, Conflict):
            raise answer
        return answer

    def append_soon(self, events: Sequence[Event]) -> "Future[list[Appended]]":
        """Append events together with whatever else is under way."""
        return cast("Future[list[Appended]]", self._queue.submit_soon(events))

    def reading(self) -> AbstractContextManager[Connection]:
        """Ask the projection, once it has caught up."""
        return self._projection.reading()

    def rebuild(self) -> None:
        """Make the projection anew."""
        self._projection.rebuild()

    def heal(self) -> bool:
        """Throw the projection away; it is made anew by whoever asks."""
        self._projection.heal()
        return True

    def look_again(self) -> int:
        """Look whether somebody has migrated the table."""
        self.version = int(self._place.properties()[PROPERTY_VERSION])
        return self.version

    def migrate(self) -> None:
        """Add the columns that the table lacks, and then say so; a crash in between leaves columns that nobody uses yet."""
        self._place.add_columns(TABLE_SCHEMA)
        reach("eventlog.during_migration")
        self._place.set_properties({PROPERTY_VERSION: str(SCHEMA_VERSION)})
        self.version = SCHEMA_VERSION

    def close(self) -> None:
        """Wait for what is under way."""
        self._is_closing.set()
        self._queue.close()
        self._background.close()
        self._place.close()
        self._staging.close()
        self._projection.close()

    # ---- committing ----------------------------------------------------------------------------------------------

    def _commit(self, batches: Sequence[Sequence[Event]]) -> list[list[Appended] | Conflict]:
        self._groups += 1
        staged: list[DataFile] = []
        found = Checked.nothing()

        def build(version: int) -> Commit:
            self._discard(staged)
            nonlocal found
            last = self._place.transaction(APP_INDEX)  # before the check, which may look at a newer version
            found = self._checked(batches, version)
            if not found.new:
                raise _NothingNew
            self._check_index(found.new[0].index, last)
            staged[:] = self._stage(found.new)
            reach("eventlog.after_stage")
            return Commit(
                kind=CommitKind.APPEND,
                plan_version=version,
                adds=tuple(staged),
                transactions={APP_INDEX: found.new[-1].index},
                depends=frozenset({APP_INDEX}),
            )

        self._keep_staged()
        try:
            committed = self._place.commit(build)
        except _NothingNew:
            return found.answers
        except (Conflict, Corruption, InvalidRequest, Unavailable):
            self._discard(staged)
            raise
        reach("eventlog.after_append")
        self._landed = committed, found
        return found.answers

    def _keep_staged(self) -> None:
        """Keep what this process stages from being swept, from its first append until it closes the log."""
        if not self._is_kept:
            self._staging.enter_context(self._place.staging(self._owner))
            self._is_kept = True

    def _fold(self) -> None:
        """Take note of what has just landed; when many append at once they do not wait for the projection."""
        landed, self._landed = self._landed, None
        if landed is None:
            return
        committed, checked = landed
        with suppress(Exception):  # whoever asks finds out, or folds it himself
            backlog = self._projection.landed(committed.version, checked, commit_id=committed.commit_id)
            if backlog.reaches(FAR_BEHIND):
                self._projection.flush()
            if backlog.commits >= FOLDED_AT_COMMITS or len(checked.answers) > 1 or backlog.reaches(BEHIND):
                self._background.start("fold", Path(), self._keep_up)
            else:
                self._place.notice(committed.version)

    def _keep_up(self) -> str | None:
        """Fold, and tidy the table, once nobody appends or too much waits, until nothing waits."""
        try:
            while True:
                self._wait_for_quiet()
                self._projection.flush()
                self._place.notice(self._place.version())
                if not self._projection.backlog.commits:
                    return None
        except SiltstoneError as error:
            return str(error)

    def _wait_for_quiet(self) -> None:
        """Wait until nobody appends, the log is closed, or too much waits to be folded."""
        for _ in range(QUIET_WAITS):
            seen = self._groups
            if self._projection.backlog.reaches(BEHIND) or self._is_closing.wait(QUIET_SECONDS) or seen == self._groups:
                return

    def _checked(self, batches: Sequence[Sequence[Event]], version: int) -> Checked:
        return self._projection.check(batches, version=version, at=epoch_ns(self._clock.now()))

    def _check_index(self, first: int, last: int | None) -> None:
        """Refuse to leave a gap, whatever the projection says."""
        if last is not None and first != last + 1:
            raise Corruption(
                f"{self._place.label}: the next event would be {first}, and the last one is {last}. "
                "Run silt events rebuild."
            )

    def _stage(self, new: list[Indexed]) -> list[DataFile]:
        """Write the new events, one file a day."""
        first = new[0].index
        days: dict[str, list[Indexed]] = {}
        for one in new:
            days.setdefault(day_of(one.event), []).append(one)
        files: list[DataFile] = []
        for number, (day, events) in enumerate(days.items()):
            path = f"{DATA}/{self._owner}.{self._groups}.{number}.parquet"
            size = self._place.stage(path, to_rows(events, first_index=first))
            files.append(
                DataFile(
                    path=path,
                    size_bytes=size,
                    rows=len(events),
                    partition={DAY: day, FIRST_INDEX: str(first)},
                    stats=stats_of(len(events)),
                )
            )
        return files

    def _discard(self, staged: list[DataFile]) -> None:
        self._place.discard([file.path for file in staged])
        staged.clear()


def _short(text: str) -> str:
    """Return a short name for a place: copies of a log have the same id, and not the same events."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def open_delta(
    address: Address, *, create: bool, settings: Settings | None = None, clock: Clock | None = None
) -> DeltaKeeper:
    """Open a log in a Delta table, and make the table if there is none.

    Raises:
        NotFound: there is no log, and none is to be made.
        InvalidRequest: a newer Siltstone has written it, or what is there is no event log.
    """
    settings = settings or Settings()
    clock = clock or SystemClock()
    place = open_place(address, create=create, settings=settings, clock=clock)
    version = place.properties().get(PROPERTY_VERSION)
    if version is None:
        raise InvalidRequest(f"The Delta table at {address.shown} is no event log.")
    if int(version) > SCHEMA_VERSION:
        raise InvalidRequest(
            f"Event log {address.shown} has version {version} of its columns; this Siltstone knows {SCHEMA_VERSION}. "
            "Use a newer Siltstone."
        )
    return DeltaKeeper(place, version=int(version), settings=settings, clock=clock)


def open_place(address: Address, *, create: bool, settings: Settings, clock: Clock) -> Place:
    """Open the table of a log, and make it if there is none."""
    if address.backend is Backend.DELTA:
        return open_local(address, create=create, settings=settings, clock=clock)
    from siltstone.eventlog.object_place import open_object

    return open_object(address, create=create, settings=settings, clock=clock)
