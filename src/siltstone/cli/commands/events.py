"""Build event logs: the commands of `silt events`. Reads and writes are in modules of their own."""

from typing import Annotated

import typer

from siltstone.cli import render
from siltstone.cli.commands import events_read, events_write
from siltstone.cli.context import invocation
from siltstone.cli.event_logs import Log, opened_log
from siltstone.cli.registration import MAINTENANCE, READ, WRITE, add
from siltstone.eventlog.events import SCHEMA_VERSION


def register(group: typer.Typer) -> None:
    """Add the commands of the group."""
    add(group, "append", events_write.append, WRITE)
    add(group, "import", events_write.import_events, WRITE)
    add(group, "list", events_read.list_events, READ)
    add(group, "show", events_read.show, READ)
    add(group, "tail", events_read.tail, READ)
    add(group, "builds", events_read.builds, READ)
    add(group, "partitions", events_read.partitions, READ)
    add(group, "jobs", events_read.jobs, READ)
    add(group, "summary", events_read.summary, READ)
    add(group, "export", events_read.export, READ)
    add(group, "report", events_read.report, READ)
    add(group, "migrate", migrate, MAINTENANCE)
    add(group, "rebuild", rebuild, MAINTENANCE)


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
    call = invocation(context)
    with opened_log(log, writes="" if dry_run else "migrate an event log") as opened:
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
    with opened_log(log) as opened:
        with render.working("Folding the log", as_json=call.as_json):
            opened.rebuild()
        events = opened.summary().events
    call.answer({"events": events}, lambda: render.write_line(f"Folded {render.counted(events, 'event')}."))
