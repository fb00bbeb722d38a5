"""Writes of event logs: silt events append, import."""

import json
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation
from siltstone.cli.event_logs import Log, open_event_log
from siltstone.clock import NS_PER_SECOND, SystemClock
from siltstone.errors import InvalidRequest, NotFound, Reason
from siltstone.eventlog.event_json import read_event
from siltstone.eventlog.import_export import import_lines


def append(
    call: Invocation,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Lines of JSON; - is standard input.")] = None,
    *,
    event: Annotated[str | None, typer.Option("--event", metavar="JSON", help="One event.")] = None,
    log: Log = None,
) -> None:
    r"""Append events, all of them or none.

    A log that does not exist is created. An event without event_id or timestamp gets a new id and the current time. An
    event that is in the log is not appended again.

    \b
    silt events append --log sqlite:///builds.db --event '{"build_request_id": "b1", "event_type": "build_request",
      "build_request_event": {"status_name": "RECEIVED", "requested_partitions": ["sales/2026-01-01"]}}'
    silt events append --log delta:///data/events events.ndjson
    """
    if (file is None) == (event is None):
        raise InvalidRequest("Give a file of events or --event; not both.")
    lines: Iterable[str | bytes] = [event] if event is not None else _lines(str(file))
    events = []
    for number, line in enumerate(lines, start=1):
        where = "The event" if event is not None else f"Line {number}"
        if line.strip():
            events.append(read_event(_with_defaults(line, where), where=where))
    with open_event_log(log, create=True, writes="append events") as opened:
        appended = opened.append(*events)
    data = [
        {"index": result.index, "event_id": e.event_id, "is_new": result.is_new}
        for result, e in zip(appended, events, strict=True)
    ]
    new = sum(result.is_new for result in appended)
    repeated = (
        f"; {render.counted(len(appended) - new, 'event')} were in the log already" if new < len(appended) else ""
    )
    call.answer(data, lambda: render.write_line(f"Appended {render.counted(new, 'event')}{repeated}."))


def _with_defaults(line: str | bytes, where: str) -> Any:  # noqa: ANN401
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}. Nothing was appended.", reason=Reason.NOT_JSON) from error
    if not isinstance(values, dict):
        return values
    clock = SystemClock()
    now = int(clock.now().timestamp() * NS_PER_SECOND)
    return {"event_id": str(uuid.UUID(clock.new_id())), "timestamp": now} | values


def _lines(file: str) -> Iterator[bytes]:
    if file == "-":
        source = getattr(sys.stdin, "buffer", None)
        yield from source if source is not None else (line.encode() for line in sys.stdin)
        return
    try:
        with Path(file).open("rb") as opened:
            yield from opened
    except FileNotFoundError as error:
        raise NotFound(f"There is no file {file}.") from error
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error}") from error


def import_events(
    call: Invocation,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The output of silt events export; - is standard input.")],
    *,
    log: Log = None,
) -> None:
    r"""Append the events that another log exported.

    Events that the log has already are left as they are.

    \b
    silt events export --log sqlite:///builds.db builds.ndjson
    silt events import --log delta:///data/events builds.ndjson
    """
    with open_event_log(log, create=True, writes="import events") as opened:
        done = import_lines(opened, _lines(file))
    text = f"Read {render.counted(done.events, 'event')}, {render.number(done.new)} of them new."
    call.answer(asdict(done), lambda: render.write_line(text))
