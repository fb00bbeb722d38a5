"""Appends of child processes to an event log."""

from pathlib import Path

from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.delta.checkpoints import Retention
from siltstone.delta.table import Table
from siltstone.errors import Conflict
from siltstone.eventlog.compaction import squash
from siltstone.eventlog.events import BuildRequestEvent, BuildStatus
from siltstone.eventlog.local_table import RETAINED_HOURS
from siltstone.eventlog.log import EventLog
from tests.support.histories import event, history, received


def append_all(uri: str, *, first: int, last: int, at_once: int) -> int:
    """Append a part of the common history; return how many events were new."""
    events = list(history(last, seed=9))[first:]
    new = 0
    with EventLog.open(uri) as log:
        for start in range(0, len(events), at_once):
            new += sum(result.is_new for result in log.append(*events[start : start + at_once]))
    return new


def count_events(uri: str) -> int:
    """Return the number of events in a log."""
    with EventLog.open(uri, create=False) as log:
        return log.summary().events


def append_builds(uri: str, *, name: str, count: int) -> list[int]:
    """Append events of builds that no other process uses, one by one; return their indexes."""
    with EventLog.open(uri) as log:
        return [log.append(received(f"{name}-{number}"))[0].index for number in range(count)]


def contest(uri: str, *, name: str) -> bool:
    """Try to change the state of a build while other processes try, too; return whether this process succeeded."""
    with EventLog.open(uri) as log:
        try:
            log.append(event(BuildRequestEvent(status=BuildStatus.PLANNING, message=name)))
        except Conflict:
            return False
        return True


def migrate(uri: str) -> int:
    """Migrate a log."""
    with EventLog.open(uri) as log:
        return log.migrate()


def squash_files(uri: str) -> int:
    """Compact the small files of a log on Delta, as its maintenance does."""
    table = Table(
        Path(uri.removeprefix("delta://")),
        settings=Settings(),
        clock=SystemClock(),
        retention=Retention(hours=RETAINED_HOURS),
        label="log",
    )
    return squash(table, clock=SystemClock(), many=Settings().event_log_files)
