"""Build event logs: the commands of `silt events`. Reads and writes are in modules of their own."""

from typing import Annotated, Final

import typer

from siltstone.cli import render
from siltstone.cli.commands import events_read, events_write
from siltstone.cli.context import Invocation
from siltstone.cli.event_logs import Log, open_event_log
from siltstone.cli.registration import MAINTENANCE, READ, WRITE, Commands
from siltstone.eventlog.events import SCHEMA_VERSION


def migrate(
    call: Invocation,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    log: Log = None,
) -> None:
    r"""Upgrade a log of an older Siltstone to this version.

    This only adds columns; no event is changed. Until then the log can be read, but not appended to. Older versions of
    Siltstone cannot use it afterwards.

    \b
    silt events migrate --dry-run --log sqlite:///builds.db
    silt events migrate --log sqlite:///builds.db
    """
    with open_event_log(log, writes="" if dry_run else "migrate an event log") as opened:
        before = opened.version if dry_run else opened.migrate()
        uri = opened.uri
    shown = {
        "from": before,
        "to": SCHEMA_VERSION,
        "migrated": before < SCHEMA_VERSION and not dry_run,
        "dry_run": dry_run,
    }
    text = f"{'Would upgrade' if dry_run else 'Upgraded'} {uri} from version {before} to {SCHEMA_VERSION}."
    if before == SCHEMA_VERSION:
        text = f"{uri} has version {before} already; there is nothing to do."
    call.answer(shown, lambda: render.write_line(text))


def rebuild(call: Invocation, *, log: Log = None) -> None:
    r"""Rebuild the query tables of a Delta log.

    These tables, its projection, answer the queries of builds, partitions and jobs.

    \b
    silt events rebuild --log delta:///data/events
    """
    with open_event_log(log) as opened:
        with render.working("Rebuilding the query tables", as_json=call.as_json):
            opened.rebuild()
        events = opened.summary().events
    call.answer({"events": events}, lambda: render.write_line(f"Rebuilt from {render.counted(events, 'event')}."))


COMMANDS: Final[Commands] = {
    WRITE: {"append": events_write.append, "import": events_write.import_events},
    READ: {
        "list": events_read.list_events,
        "show": events_read.show,
        "tail": events_read.tail,
        "builds": events_read.builds,
        "partitions": events_read.partitions,
        "jobs": events_read.jobs,
        "summary": events_read.summary,
        "export": events_read.export,
        "report": events_read.report,
    },
    MAINTENANCE: {"migrate": migrate, "rebuild": rebuild},
}
