"""What child processes do to an event log."""

from siltstone.eventlog.log import EventLog
from tests.support.histories import history


def append_all(uri: str, *, first: int, last: int, at_once: int) -> int:
    """Append a part of the history that everybody knows; return how many events were new."""
    events = list(history(last, seed=9))[first:]
    new = 0
    with EventLog.open(uri) as log:
        for start in range(0, len(events), at_once):
            new += sum(one.is_new for one in log.append(*events[start : start + at_once]))
    return new
