"""Event logs of builds for the commands of `silt events`: the option that names one, and how it is opened."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from siltstone.config import Settings
from siltstone.delta.layout import JOURNAL
from siltstone.errors import InvalidRequest
from siltstone.eventlog.address import BackendKind, parse_address
from siltstone.eventlog.log import EventLog
from siltstone.model.roles import check_may_write

Log = Annotated[
    str | None,
    typer.Option("--log", metavar="URI", envvar="SILT_EVENT_LOG", help="The log's address, as sqlite:///builds.db."),
]


@contextmanager
def open_event_log(uri: str | None, *, create: bool = False, writes: str = "") -> Iterator[EventLog]:
    """Open a log. `writes` names the operation if it writes to the log."""
    if writes:
        check_may_write(Settings.load().role, doing=writes)
    if not uri:
        raise InvalidRequest(
            "Name an event log with --log or SILT_EVENT_LOG, as sqlite:///builds.db or delta:///data/events."
        )
    if uri.strip() == "memory:":
        raise InvalidRequest("A log in memory ends with the command; name one that stays, as sqlite:///builds.db.")
    if create:
        address = parse_address(uri)
        if address.backend is BackendKind.DELTA and Path(address.path).resolve().match(JOURNAL):
            raise InvalidRequest(
                f"{uri} is the journal of a lake: only the lake writes there, and events of other programs would count as "
                "cycles. Name a log of your own."
            )
    with EventLog.open(uri, create=create) as log:
        yield log
