"""Build event logs: silt events append, list, show, tail, export, import, migrate, and queries of their state."""

import datetime
import json
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation, invocation
from siltstone.cli.registration import MAINTENANCE, READ, SYSTEM, WRITE, Sections, add, add_group
from siltstone.config import Settings
from siltstone.errors import InvalidRequest, NotFound
from siltstone.model.roles import check_may_write

if TYPE_CHECKING:
    from siltstone.eventlog.events import Indexed
    from siltstone.eventlog.log import EventLog
    from siltstone.eventlog.queries import Filter, Listed

FOLLOW_SECONDS: Final = 0.5
NS_PER_SECOND: Final = 1_000_000_000
INDEX, BUILD, PARTITION, JOB, RUN = "index", "build request", "partition", "job", "job run"

Log = Annotated[
    str | None,
    typer.Option("--log", metavar="URI", envvar="SILT_EVENT_LOG", help="The log's address, as sqlite:///builds.db."),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", help="At most N.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="PLACE", help="Go on behind a list: its next, which the JSON has.")
]
Builds = Annotated[
    list[str] | None, typer.Option("--build", metavar="ID", help="Of this build request; may be repeated.")
]
Refs = Annotated[
    list[str] | None, typer.Option("--partition", metavar="REF", help="About this partition; may be repeated.")
]
Globs = Annotated[
    list[str] | None,
    typer.Option("--glob", metavar="GLOB", help="About partitions like this (* and ?); may be repeated."),
]
Jobs = Annotated[list[str] | None, typer.Option("--job", metavar="LABEL", help="Of this job; may be repeated.")]
Runs = Annotated[list[str] | None, typer.Option("--run", metavar="ID", help="Of this job run; may be repeated.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        cls=Sections,
        help="Event logs of builds on SQLite, PostgreSQL or Delta. Append events, and query what happened.",
        rich_markup_mode=None,
    )
    group.callback(invoke_without_command=True)(_help_alone)
    add(group, "append", append, WRITE)
    add(group, "import", import_events, WRITE)
    for name, command in (
        ("list", list_events),
        ("show", show),
        ("tail", tail),
        ("builds", builds),
        ("partitions", partitions),
        ("jobs", jobs),
        ("summary", summary),
        ("export", export),
        ("report", report),
    ):
        add(group, name, command, READ)
    add(group, "migrate", migrate, MAINTENANCE)
    add(group, "rebuild", rebuild, MAINTENANCE)
    add_group(app, "events", group, SYSTEM)


def _help_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        render.write_text(context.get_help())
        raise typer.Exit(InvalidRequest.exit_code)


@contextmanager
def _opened(uri: str | None, *, create: bool = False, writes: str = "") -> "Iterator[EventLog]":
    """Open a log. `writes` names the operation if it writes to the log."""
    from siltstone.eventlog.log import EventLog

    if writes:
        check_may_write(Settings.load().role, doing=writes)
    if not uri:
        raise InvalidRequest(
            "Name an event log with --log or SILT_EVENT_LOG, as sqlite:///builds.db or delta:///data/events."
        )
    if uri.strip() == "memory:":
        raise InvalidRequest("A log in memory ends with the command; name one that stays, as sqlite:///builds.db.")
    if create and _is_journal(uri):
        raise InvalidRequest(
            f"{uri} is the journal of a lake: only the lake writes there, and what others append would count as cycles. "
            "Name a log of your own."
        )
    with EventLog.open(uri, create=create) as log:
        yield log


def _is_journal(uri: str) -> bool:
    from siltstone.delta.layout import JOURNAL
    from siltstone.eventlog.address import BackendKind, parse_address

    found = parse_address(uri)
    return found.backend is BackendKind.DELTA and Path(found.path).resolve().match(JOURNAL)


# ---- writing -----------------------------------------------------------------------------------------------------


def append(
    context: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Lines of JSON; - is standard input.")] = None,
    *,
    event: Annotated[str | None, typer.Option("--event", metavar="JSON", help="One event.")] = None,
    log: Log = None,
) -> None:
    r"""Append events, all of them or none.

    A log that does not exist is created.

    An event without event_id or timestamp gets a new id and the current time. An event that is in the log is not
    appended again.

    \b
    silt events append --log sqlite:///builds.db --event '{"build_request_id": "b1", "event_type": "build_request",
      "build_request_event": {"status_name": "RECEIVED", "requested_partitions": ["sales/2026-01-01"]}}'
    silt events append --log delta:///data/events events.ndjson
    """
    from siltstone.eventlog.event_json import read_event

    call = invocation(context)
    if (file is None) == (event is None):
        raise InvalidRequest("Give a file of events or --event; not both.")
    lines: Iterable[str | bytes] = [event] if event is not None else _lines(str(file))
    named = [
        ("The event" if event is not None else f"Line {number}", line) for number, line in enumerate(lines, start=1)
    ]
    events = [read_event(_completed(line, where), where=where) for where, line in named if line.strip()]
    with _opened(log, create=True, writes="append events") as opened:
        found = opened.append(*events)
    data = [
        {"index": one.index, "event_id": e.event_id, "is_new": one.is_new} for one, e in zip(found, events, strict=True)
    ]
    new = sum(one.is_new for one in found)
    known = f"; {render.counted(len(found) - new, 'event')} were there already" if new < len(found) else ""
    call.answer(data, lambda: render.write_line(f"Appended {render.counted(new, 'event')}{known}."))


def _completed(line: str | bytes, where: str) -> Any:  # noqa: ANN401
    """Return an event with a new id and the current time where it has none."""
    import uuid

    from siltstone.clock import SystemClock

    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from error
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
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export wrote; - is standard input.")],
    *,
    log: Log = None,
) -> None:
    r"""Append the events that another log exported.

    Events that the log has already are left as they are.

    \b
    silt events export --log sqlite:///builds.db builds.ndjson
    silt events import --log delta:///data/events builds.ndjson
    """
    from siltstone.eventlog.import_export import import_lines

    call = invocation(context)
    with _opened(log, create=True, writes="import events") as opened:
        done = import_lines(opened, _lines(file))
    call.answer(
        asdict(done),
        lambda: render.write_line(
            f"Read {render.counted(done.events, 'event')}, {render.number(done.new)} of them new."
        ),
    )


def migrate(
    context: typer.Context,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    log: Log = None,
) -> None:
    r"""Upgrade a log of an older Siltstone to this version.

    This only adds columns; no event is changed.

    Until then it can be read, but not appended to. Older versions of Siltstone cannot use it afterwards.

    \b
    silt events migrate --dry-run --log sqlite:///builds.db
    silt events migrate --log sqlite:///builds.db
    """
    from siltstone.eventlog.events import SCHEMA_VERSION

    call = invocation(context)
    with _opened(log, writes="" if dry_run else "migrate an event log") as opened:
        before = opened.version if dry_run else opened.migrate()
        uri = opened.uri
    shown = {
        "from": before,
        "to": SCHEMA_VERSION,
        "migrated": before < SCHEMA_VERSION and not dry_run,
        "dry_run": dry_run,
    }
    if before == SCHEMA_VERSION:
        text = f"{uri} has version {before} already; there is nothing to do."
    else:
        text = f"{'Would bring' if dry_run else 'Brought'} {uri} from version {before} to {SCHEMA_VERSION}."
    call.answer(shown, lambda: render.write_line(text))


def rebuild(context: typer.Context, *, log: Log = None) -> None:
    r"""Rebuild the query tables of a Delta log.

    These tables are its projection: they answer its queries.

    \b
    silt events rebuild --log delta:///data/events
    """
    call = invocation(context)
    with _opened(log) as opened:
        with render.working("Folding the log", as_json=call.as_json):
            opened.rebuild()
        events = opened.summary().events
    call.answer({"events": events}, lambda: render.write_line(f"Folded {render.counted(events, 'event')}."))


# ---- events ------------------------------------------------------------------------------------------------------


def list_events(  # noqa: PLR0913  # one parameter for each filter
    context: typer.Context,
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
    call = invocation(context)
    wanted = _filter(build, partition, glob, job, run)
    with _opened(log) as opened:
        page = opened.page(start, limit=limit, wanted=wanted)
    data = {"events": [_plain(one) for one in page.events], "next_index": page.next_index, "has_more": page.has_more}
    call.answer(data, lambda: _show_events(page.events, more=page.next_index if page.has_more else None))


def _filter(
    build: Sequence[str] | None,
    partition: Sequence[str] | None,
    glob: Sequence[str] | None,
    job: Sequence[str] | None,
    run: Sequence[str] | None,
) -> "Filter":
    from siltstone.eventlog.queries import Filter

    return Filter(
        build_request_ids=tuple(build or ()),
        partition_refs=tuple(partition or ()),
        partition_globs=tuple(glob or ()),
        job_labels=tuple(job or ()),
        job_run_ids=tuple(run or ()),
    )


def _plain(one: "Indexed") -> dict[str, Any]:
    from siltstone.eventlog.events import event_json

    values: dict[str, Any] = json.loads(event_json(one.event))
    return {"index": one.index} | values


def _show_events(events: "Iterable[Indexed]", *, more: int | None = None) -> None:
    columns = [INDEX, "time", BUILD, "what", "about", "message"]
    render.write_table(columns, [_event_row(one) for one in events], numbers=[INDEX])
    if more is not None:
        render.write_note(f"There are more from index {more} on.")


def _event_row(one: "Indexed") -> list[Any]:
    event = one.event
    status = getattr(event.payload, "status", None)
    what = event.type.value if status is None else f"{event.type.value} {status.name}"
    about = event.job_run_id or ", ".join(event.partition_refs)
    return [one.index, _time(event.timestamp), event.build_request_id, what, about, event.message]


def _time(nanoseconds: int) -> str:
    at = datetime.datetime.fromtimestamp(nanoseconds // NS_PER_SECOND, datetime.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{nanoseconds % NS_PER_SECOND // 1_000_000:03d}Z"


def show(
    context: typer.Context,
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event's id.")],
    *,
    log: Log = None,
) -> None:
    r"""Show one event with all its fields.

    \b
    silt events show 00000000-0000-0000-0000-00000000002a --log sqlite:///builds.db
    """
    call = invocation(context)
    with _opened(log) as opened:
        found = opened.event(event_id)
    data = _plain(found) | {"appended_at": found.appended_at}
    payload = data.pop(found.event.type.column)
    call.answer(_plain(found) | {"appended_at": found.appended_at}, lambda: render.write_facts(data | payload))


def tail(  # noqa: PLR0913  # one parameter for each filter
    context: typer.Context,
    *,
    last: Annotated[int, typer.Option("-n", metavar="N", help="The last N events.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with those that come, until Ctrl-C.")] = False,
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
    call = invocation(context)
    wanted = _filter(build, partition, glob, job, run)
    if last < 0:
        raise InvalidRequest(f"-n must be 0 or more, not {last}.")
    ends_it = (KeyboardInterrupt,) if follow else ()
    with suppress(*ends_it), _opened(log) as opened:
        following = _show_tail(call, opened, last, wanted)
        if follow:
            _follow(call, opened, following, wanted)


def _follow(call: Invocation, log: "EventLog", following: int, wanted: "Filter") -> None:
    """Show new events until the command is interrupted."""
    while True:
        render.flush()
        time.sleep(FOLLOW_SECONDS)
        page = log.page(following, limit=1000, wanted=wanted)
        _write_tail(call, page.events)
        following = page.next_index


def _show_tail(call: Invocation, log: "EventLog", last: int, wanted: "Filter") -> int:
    """Show the last events that match, and return the index after them."""
    end = log.page(log.next_index(), limit=1, wanted=wanted).next_index
    found: list[Indexed] = []
    window, high = max(last, 1), end
    while len(found) < last and high > 1:
        low = max(1, high - window)
        found = [one for one in log.events(low, wanted=wanted) if low <= one.index < high] + found
        high, window = low, window * 4
    _write_tail(call, found[len(found) - last :] if last else [])
    return end


def _write_tail(call: Invocation, events: "Iterable[Indexed]") -> None:
    for one in events:
        if call.as_json:
            render.write_text(json.dumps(_plain(one), ensure_ascii=False))
        else:
            render.write_line("  ".join(render.cell(value) for value in _event_row(one)))


# ---- states ------------------------------------------------------------------------------------------------------


def builds(
    context: typer.Context,
    build: Annotated[str | None, typer.Argument(metavar="ID", help="One build request.")] = None,
    *,
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="NAME", help="As FAILED; may be repeated.")
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
    from siltstone.eventlog.events import BuildStatus
    from siltstone.eventlog.queries import Listed

    call = invocation(context)
    wanted = [name.upper() for name in status or ()]
    unknown = [name for name in wanted if name not in BuildStatus.__members__]
    if unknown:
        raise InvalidRequest(f"There is no status {unknown[0]!r}; there are {', '.join(BuildStatus.__members__)}.")
    with _opened(log) as opened:
        found = (
            Listed([opened.build(build)])
            if build is not None
            else opened.builds(limit=limit, statuses=[BuildStatus[name] for name in wanted], after=after)
        )
    columns = [BUILD, "status", "asked for", "created", "updated", "message"]
    rows = [
        [
            b.build_request_id,
            b.status.name,
            ", ".join(b.requested_partitions),
            _time(b.created_at),
            _time(b.updated_at),
            b.message,
        ]
        for b in found
    ]
    call.answer(_answers("builds", found, one=build is not None), lambda: _show_list(columns, rows, found))


def partitions(
    context: typer.Context,
    ref: Annotated[str | None, typer.Argument(metavar="REF", help="One partition.")] = None,
    *,
    glob: Annotated[str | None, typer.Option("--glob", metavar="GLOB", help="Those like this (* and ?).")] = None,
    limit: Limit = 100,
    after: After = None,
    log: Log = None,
) -> None:
    r"""List partitions with their latest status, or show one.

    Those that changed last come first. A single one is shown with the job that makes it.

    \b
    silt events partitions --log sqlite:///builds.db --glob 'sales/2026-*'
    """
    from siltstone.eventlog.queries import Listed

    call = invocation(context)
    with _opened(log) as opened:
        found = (
            Listed([opened.partition(ref)])
            if ref is not None
            else opened.partitions(limit=limit, glob=glob, after=after)
        )
        active = opened.active_builds(ref) if ref is not None else []
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
        for p in found
    ]
    data = _answers("partitions", found, one=ref is not None)
    makers = [b.build_request_id for b in active]
    if ref is not None:
        data["active_builds"] = makers

    def people() -> None:
        _show_list(columns, rows, found)
        if makers:
            render.write_line(f"Being made by {', '.join(makers)}.")

    call.answer(data, people)


def _show_list(columns: list[str], rows: list[list[Any]], found: "Listed[Any]") -> None:
    render.write_table(columns, rows)
    if found.has_more:
        where = shlex.quote(found.following or "")
        render.write_note(f"There are more. Go on with --after {where}, or raise --limit.")


def jobs(
    context: typer.Context,
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
    call = invocation(context)
    with _opened(log) as opened:
        found = opened.runs(limit=limit, build_request_id=build, after=after)
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
        for r in found
    ]
    call.answer(_answers("jobs", found), lambda: _show_list(columns, rows, found))


def summary(context: typer.Context, *, log: Log = None) -> None:
    r"""Count events by type; builds, partitions and jobs by status.

    \b
    silt events summary --log sqlite:///builds.db
    """
    call = invocation(context)
    with _opened(log) as opened:
        found = opened.summary()
    rows = [
        [what, name, number]
        for what, counted in (
            ("events", found.events_by_type),
            ("builds", found.builds),
            ("partitions", found.partitions),
            ("job runs", found.jobs),
        )
        for name, number in counted.items()
    ]
    call.answer(asdict(found), lambda: render.write_table(["what", "which", "number"], rows, numbers=["number"]))


def export(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; - is standard output.")] = "-",
    *,
    build: Builds = None,
    partition: Refs = None,
    glob: Globs = None,
    job: Jobs = None,
    run: Runs = None,
    log: Log = None,
) -> None:
    r"""Write events in order as lines of JSON, for import.

    Every backend writes the same bytes.

    \b
    silt events export --log sqlite:///builds.db > builds.ndjson
    """
    from siltstone.eventlog.import_export import export_lines

    call = invocation(context)
    wanted = _filter(build, partition, glob, job, run)
    with _opened(log) as opened:
        if file == "-":
            for line in export_lines(opened, wanted=wanted):
                render.write_text(line)
            return
        count = 0
        try:
            with Path(file).open("x", encoding="utf-8", newline="\n") as target:
                for line in export_lines(opened, wanted=wanted):
                    target.write(f"{line}\n")
                    count += 1
        except FileExistsError as error:
            raise InvalidRequest(f"{file} is there already. Choose another name, or remove it.") from error
        except OSError as error:
            raise InvalidRequest(f"{file} cannot be written: {error}") from error
    call.answer({"events": count}, lambda: render.write_line(f"Wrote {render.counted(count, 'event')} to {file}."))


def report(context: typer.Context, *, limit: Limit = 20, log: Log = None) -> None:
    r"""Report durations and failure rates of a Delta log, on Spark.

    Also the slowest partitions.

    \b
    silt events report --log delta:///data/events
    """
    from siltstone.spark.session import session

    call = invocation(context)
    with _opened(log) as opened, render.working("Computing on Spark", as_json=call.as_json):
        found = opened.report(session(Settings.load()), limit=limit)
    call.answer(asdict(found), lambda: _show_report(asdict(found)))


def _show_report(found: dict[str, list[dict[str, Any]]]) -> None:
    for name, rows in found.items():
        render.write_line(f"{name.capitalize()}")
        columns = list(rows[0]) if rows else ["nothing"]
        numbers = [column for column in columns if rows and isinstance(rows[0][column], int | float)]
        render.write_table(columns, [[_short(value) for value in row.values()] for row in rows], numbers=numbers)


def _short(value: Any) -> Any:  # noqa: ANN401
    return f"{value:.3f}" if isinstance(value, float) else value


def _answers(what: str, found: "Listed[Any]", *, one: bool = False) -> dict[str, Any]:
    """Return values in their JSON form, statuses by name: a single value, or a list and whether there are more."""
    rows = [{name: _named(value) for name, value in asdict(value).items()} for value in found]
    return rows[0] if one else {what: rows, "has_more": found.has_more, "next": found.following}


def _named(value: Any) -> Any:  # noqa: ANN401
    return value.name if isinstance(value, IntEnum) else value
