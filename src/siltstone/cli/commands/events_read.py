"""Reads of event logs: silt events list, show, tail, builds, partitions, jobs, summary, export, report."""

import datetime
import json
import shlex
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation
from siltstone.cli.event_logs import Log, open_event_log
from siltstone.cli.result_files import atomic_replace
from siltstone.clock import NS_PER_MS, NS_PER_SECOND
from siltstone.config import Settings
from siltstone.errors import InvalidRequest
from siltstone.eventlog.events import BuildStatus, Indexed, event_json
from siltstone.eventlog.import_export import export_lines
from siltstone.eventlog.log import EventLog
from siltstone.eventlog.queries import Filter, LimitedList
from siltstone.spark.session import session

FOLLOW_SECONDS: Final = 0.5
INDEX, BUILD, PARTITION, JOB, RUN = "index", "build request", "partition", "job", "job run"

Limit = Annotated[int, typer.Option("--limit", metavar="N", help="At most N.")]
After = Annotated[
    str | None,
    typer.Option("--after", metavar="POSITION", help="Continue after a list: the value of next in its JSON."),
]
Builds = Annotated[
    list[str] | None, typer.Option("--build", metavar="ID", help="Of this build request; may be repeated.")
]
Refs = Annotated[
    list[str] | None, typer.Option("--partition", metavar="REF", help="On this partition; may be repeated.")
]
Globs = Annotated[
    list[str] | None,
    typer.Option("--glob", metavar="GLOB", help="On partitions that match (* and ?); may be repeated."),
]
Jobs = Annotated[list[str] | None, typer.Option("--job", metavar="LABEL", help="Of this job; may be repeated.")]
Runs = Annotated[list[str] | None, typer.Option("--run", metavar="ID", help="Of this job run; may be repeated.")]


def list_events(  # noqa: PLR0913  # one parameter for each filter
    call: Invocation,
    *,
    start: Annotated[int, typer.Option("--from", metavar="INDEX", help="From this index on.")] = 1,
    limit: Limit = 100,
    build: Builds = None,
    partition: Refs = None,
    glob: Globs = None,
    job: Jobs = None,
    run: Runs = None,
    log: Log = None,
) -> None:
    r"""List events in order, from an index on.

    An event must match one value of each kind of filter that is given. The JSON has the start of the next page.

    \b
    silt events list --log sqlite:///builds.db --glob 'sales/*' --limit 20
    silt events list --from 101 --json
    """
    event_filter = _filter(build, partition, glob, job, run)
    with open_event_log(log) as opened:
        page = opened.page(start, limit=limit, event_filter=event_filter)
    data = {
        "events": [_plain(indexed) for indexed in page.events],
        "next_index": page.next_index,
        "has_more": page.has_more,
    }

    def people() -> None:
        columns = [INDEX, "time", BUILD, "status", "subject", "message"]
        render.write_table(columns, [_event_row(indexed) for indexed in page.events], numbers=[INDEX])
        if page.has_more:
            render.write_note(f"There are more from index {page.next_index} on.")

    call.answer(data, people)


def _filter(
    build: Sequence[str] | None,
    partition: Sequence[str] | None,
    glob: Sequence[str] | None,
    job: Sequence[str] | None,
    run: Sequence[str] | None,
) -> Filter:
    return Filter(
        build_request_ids=tuple(build or ()),
        partition_refs=tuple(partition or ()),
        partition_globs=tuple(glob or ()),
        job_labels=tuple(job or ()),
        job_run_ids=tuple(run or ()),
    )


def _plain(indexed: Indexed) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(event_json(indexed.event))
    return {"index": indexed.index} | values


def _event_row(indexed: Indexed) -> list[Any]:
    event = indexed.event
    status = getattr(event.payload, "status", None)
    shown = event.type.value if status is None else f"{event.type.value} {status.name}"
    subject = event.job_run_id or ", ".join(event.partition_refs)
    return [indexed.index, _time(event.timestamp), event.build_request_id, shown, subject, event.message]


def _time(nanoseconds: int) -> str:
    at = datetime.datetime.fromtimestamp(nanoseconds // NS_PER_SECOND, datetime.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{nanoseconds % NS_PER_SECOND // NS_PER_MS:03d}Z"


def show(
    call: Invocation,
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event's id.")],
    *,
    log: Log = None,
) -> None:
    r"""Show one event with all its fields.

    \b
    silt events show 00000000-0000-0000-0000-00000000002a --log sqlite:///builds.db
    """
    with open_event_log(log) as opened:
        indexed = opened.event(event_id)
    data = _plain(indexed) | {"appended_at": indexed.appended_at}
    column = indexed.event.type.column
    facts = {name: value for name, value in data.items() if name != column} | data[column]
    call.answer(data, lambda: render.write_facts(facts))


def tail(  # noqa: PLR0913  # one parameter for each filter
    call: Invocation,
    *,
    last: Annotated[int, typer.Option("-n", metavar="N", help="The last N events.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Show new events, too, until Ctrl-C.")] = False,
    build: Builds = None,
    partition: Refs = None,
    glob: Globs = None,
    job: Jobs = None,
    run: Runs = None,
    log: Log = None,
) -> None:
    r"""Show the last events; with -f also new ones.

    With --json each event is one line.

    \b
    silt events tail -f --log delta:///data/events --build b1
    """
    event_filter = _filter(build, partition, glob, job, run)
    if last < 0:
        raise InvalidRequest(f"-n must be 0 or more, not {last}.")
    ends_it = (KeyboardInterrupt,) if follow else ()
    with suppress(*ends_it), open_event_log(log) as opened:
        next_index = _show_tail(call, opened, last, event_filter)
        while follow:  # until the command is interrupted
            render.flush()
            time.sleep(FOLLOW_SECONDS)
            page = opened.page(next_index, limit=1000, event_filter=event_filter)
            _write_tail(call, page.events)
            next_index = page.next_index


def _show_tail(call: Invocation, log: EventLog, last: int, event_filter: Filter) -> int:
    """Show the last events that match, and return the index after them."""
    end = log.page(log.next_index(), limit=1, event_filter=event_filter).next_index
    events: list[Indexed] = []
    window, high = max(last, 1), end
    while len(events) < last and high > 1:
        low = max(1, high - window)
        events = [
            indexed for indexed in log.events(low, event_filter=event_filter) if low <= indexed.index < high
        ] + events
        high, window = low, window * 4
    _write_tail(call, events[len(events) - last :] if last else [])
    return end


def _write_tail(call: Invocation, events: Iterable[Indexed]) -> None:
    for indexed in events:
        if call.as_json:
            render.write_text(json.dumps(_plain(indexed), ensure_ascii=False))
        else:
            render.write_line("  ".join(render.cell(value) for value in _event_row(indexed)))


def builds(
    call: Invocation,
    build: Annotated[str | None, typer.Argument(metavar="ID", help="One build request.")] = None,
    *,
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="NAME", help="Such as FAILED; may be repeated.")
    ] = None,
    limit: Limit = 100,
    after: After = None,
    log: Log = None,
) -> None:
    r"""List build requests with their status, or show one.

    Those that changed last come first.

    \b
    silt events builds --log sqlite:///builds.db --status FAILED --status CANCELLED
    """
    try:
        statuses = [BuildStatus[name.upper()] for name in status or ()]
    except KeyError as error:
        raise InvalidRequest(f"There is no status {error}; there are {', '.join(BuildStatus.__members__)}.") from error
    with open_event_log(log) as opened:
        if build is not None:
            listed = LimitedList([opened.build(build)])
        else:
            listed = opened.builds(limit=limit, statuses=statuses, after=after)
    columns = [BUILD, "status", "requested", "created", "updated", "message"]
    rows = [
        [
            b.build_request_id,
            b.status.name,
            ", ".join(b.requested_partitions),
            _time(b.created_at),
            _time(b.updated_at),
            b.message,
        ]
        for b in listed
    ]
    call.answer(_answers("builds", listed, single=build is not None), lambda: _show_list(columns, rows, listed))


def partitions(
    call: Invocation,
    ref: Annotated[str | None, typer.Argument(metavar="REF", help="One partition.")] = None,
    *,
    glob: Annotated[str | None, typer.Option("--glob", metavar="GLOB", help="Partitions that match (* and ?).")] = None,
    limit: Limit = 100,
    after: After = None,
    log: Log = None,
) -> None:
    r"""List partitions with their latest status, or show one.

    Those that changed last come first. A single one is shown with the builds that make it now.

    \b
    silt events partitions --log sqlite:///builds.db --glob 'sales/2026-*'
    """
    with open_event_log(log) as opened:
        if ref is not None:
            listed, active = LimitedList([opened.partition(ref)]), opened.active_builds(ref)
        else:
            listed, active = opened.partitions(limit=limit, glob=glob, after=after), []
    columns = [PARTITION, "status", "good", "updated", BUILD, RUN, "message"]
    rows = [
        [
            p.partition_ref,
            p.status.name,
            "no" if p.is_invalidated else "yes",
            _time(p.updated_at),
            p.build_request_id,
            p.job_run_id,
            p.message,
        ]
        for p in listed
    ]
    data = _answers("partitions", listed, single=ref is not None)
    makers = [b.build_request_id for b in active]
    if ref is not None:
        data["active_builds"] = makers

    def people() -> None:
        _show_list(columns, rows, listed)
        if makers:
            render.write_line(f"Being made by {', '.join(makers)}.")

    call.answer(data, people)


def _show_list(columns: list[str], rows: list[list[Any]], listed: LimitedList[Any]) -> None:
    render.write_table(columns, rows)
    if listed.has_more:
        where = shlex.quote(listed.following or "")
        render.write_note(f"There are more. Continue with --after {where}, or raise --limit.")


def jobs(
    call: Invocation,
    *,
    build: Annotated[str | None, typer.Option("--build", metavar="ID", help="Of this build request.")] = None,
    limit: Limit = 100,
    after: After = None,
    log: Log = None,
) -> None:
    r"""List job runs with their status, latest change first.

    \b
    silt events jobs --log sqlite:///builds.db --build b1
    """
    with open_event_log(log) as opened:
        listed = opened.runs(limit=limit, build_request_id=build, after=after)
    columns = [RUN, JOB, "status", BUILD, "created", "updated", "message"]
    rows = [
        [
            r.job_run_id,
            r.job_label,
            r.status.name,
            r.build_request_id,
            _time(r.created_at),
            _time(r.updated_at),
            r.message,
        ]
        for r in listed
    ]
    call.answer(_answers("jobs", listed), lambda: _show_list(columns, rows, listed))


def summary(call: Invocation, *, log: Log = None) -> None:
    r"""Count events by type; builds, partitions and jobs by status.

    \b
    silt events summary --log sqlite:///builds.db
    """
    with open_event_log(log) as opened:
        counts = opened.summary()
    rows = [
        [kind, name, number]
        for kind, counted in (
            ("events", counts.events_by_type),
            ("builds", counts.builds),
            ("partitions", counts.partitions),
            ("job runs", counts.jobs),
        )
        for name, number in counted.items()
    ]
    call.answer(asdict(counts), lambda: render.write_table(["type", "status", "number"], rows, numbers=["number"]))


def export(
    call: Invocation,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file; - is standard output.")] = "-",
    *,
    build: Builds = None,
    partition: Refs = None,
    glob: Globs = None,
    job: Jobs = None,
    run: Runs = None,
    log: Log = None,
) -> None:
    r"""Write events in order as lines of JSON, for import.

    Every backend writes the same bytes. FILE appears whole or not at all.

    \b
    silt events export --log sqlite:///builds.db > builds.ndjson
    """
    event_filter = _filter(build, partition, glob, job, run)
    with open_event_log(log) as opened:
        if file == "-":
            for line in export_lines(opened, event_filter=event_filter):
                render.write_text(line)
            return
        path, count = Path(file), 0
        try:
            with atomic_replace(path, new=True) as whole, whole.open("w", encoding="utf-8", newline="\n") as target:
                for line in export_lines(opened, event_filter=event_filter):
                    target.write(f"{line}\n")
                    count += 1
        except FileExistsError as error:
            raise InvalidRequest(f"{file} exists already. Choose another name, or remove it.") from error
        except OSError as error:
            raise InvalidRequest(f"{file} cannot be written: {error.strerror or error}.") from error
    call.answer({"events": count}, lambda: render.write_line(f"Wrote {render.counted(count, 'event')} to {file}."))


def report(call: Invocation, *, limit: Limit = 20, log: Log = None) -> None:
    r"""Report durations and failure rates of a Delta log, on Spark.

    The output also has the slowest partitions.

    \b
    silt events report --log delta:///data/events
    """
    with open_event_log(log) as opened, render.working("Computing on Spark", as_json=call.as_json):
        data = asdict(opened.report(session(Settings.load()), limit=limit))

    def people() -> None:
        for name, rows in data.items():
            render.write_line(name.capitalize())
            columns = list(rows[0]) if rows else ["nothing"]
            numbers = [column for column in columns if rows and isinstance(rows[0][column], int | float)]
            cells = [[f"{value:.3f}" if isinstance(value, float) else value for value in row.values()] for row in rows]
            render.write_table(columns, cells, numbers=numbers)

    call.answer(data, people)


def _answers(what: str, listed: LimitedList[Any], *, single: bool = False) -> dict[str, Any]:
    """Return values in their JSON form, statuses by name: a single value, or a list and whether there are more."""
    rows = [
        {name: field.name if isinstance(field, IntEnum) else field for name, field in asdict(value).items()}
        for value in listed
    ]
    return rows[0] if single else {what: rows, "has_more": listed.has_more, "next": listed.following}
