"""Imports and exports events as lines of JSON. A log moves from one backend to another byte for byte."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from siltstone.errors import Conflict, InvalidRequest
from siltstone.eventlog.event_json import parse_event
from siltstone.eventlog.events import Event, event_json
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.queries import Filter

AT_ONCE: Final = 1000
"""Events in one append of an import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of an import: the number of events read, and how many of them were new to the log."""

    events: int
    new: int


def export_lines(log: EventLog, *, event_filter: Filter | None = None) -> Iterator[str]:
    """Yield every event as a line, in order."""
    for indexed in log.events(event_filter=event_filter, at_once=AT_ONCE):
        yield event_json(indexed.event)


def parse_lines(lines: Iterable[str | bytes]) -> Iterator[Event]:
    """Read events from lines, and skip empty lines. The error of a line that is not a valid event has its number."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield parse_event(line, where=f"Line {number}")


def import_lines(log: EventLog, lines: Iterable[str | bytes]) -> Imported:
    """Append the events of these lines in groups. Events that the log has are skipped, so an import can be repeated.

    Raises:
        InvalidRequest: a line is not a valid event. The groups before it were appended.
        Conflict: an event is not a legal next state in the log.
    """
    events = parse_lines(lines)
    read = new = 0
    while True:
        try:
            group = list(islice(events, AT_ONCE))
            new += sum(appended.is_new for appended in log.append(*group))
        except (InvalidRequest, Conflict) as error:
            done = f"The first {read:,} events are in the log." if read else "Nothing was imported."
            raise type(error)(f"{error} {done}", reason=error.reason) from error
        read += len(group)
        if len(group) < AT_ONCE:
            return Imported(events=read, new=new)
