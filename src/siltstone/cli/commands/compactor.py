"""The compactor process: compactor run, status, pause, resume, stop."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from siltstone.cli import render
from siltstone.cli.compactor_output import event_line
from siltstone.cli.context import Invocation
from siltstone.cli.job_output import job_counts
from siltstone.cli.registration import GENERAL, RUN, Commands
from siltstone.cli.signals import INTERRUPTED
from siltstone.clock import SystemClock, utc_text
from siltstone.compaction.execution.events import CompactionEvent
from siltstone.compactor.events import Started
from siltstone.errors import NotFound, Unavailable
from siltstone.lake import Lake
from siltstone.spark.jvm import end_children

if TYPE_CHECKING:
    from siltstone.compactor.service import CompactorService

WAIT_SECONDS: Final = 0.5
STOP_SECONDS: Final = 120.0
"""Longest wait of `silt compactor stop` for the release of the lease, in seconds."""
SHOWN_DUE: Final = 5


def run(
    call: Invocation,
    *,
    once: Annotated[bool, typer.Option("--once", help="Run one cycle of everything now, then end.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="JOB", help="Only this tier or kind of job; may be repeated.")
    ] = None,
    catalog: Annotated[
        list[str] | None,
        typer.Option("--catalog", metavar="NAME", help="Only datasets of this catalog; may be repeated."),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option("--dataset", metavar="NAME", help="Only this dataset; may be repeated.")
    ] = None,
) -> None:
    r"""Run the compactor until it is stopped.

    It folds, squashes, rolls up, clusters and vacuums, each by its schedule.

    One compactor of a lake works at a time. A second one waits, and takes over when the first one ends or dies.
    Ctrl-C or SIGTERM cancels the running job, which then changes nothing, and releases the lease. A second Ctrl-C
    ends the process at once. With --json each line is one event.

    \b
    silt compactor run
    silt compactor --only fold --only squash
    silt compactor run --catalog crm --json
    silt compactor run --once
    """
    write_event = _event_writer(as_json=call.as_json)
    with call.open(spark=True) as lake:
        lake.require_exists()
        service = lake.compactor(
            names=_dataset_filter(lake, catalog, dataset), only=only, on_event=write_event, continuous=not once
        )
        signals = _StopSignals()
        write_event(Started(pid=os.getpid(), lake=str(lake.path), role=lake.settings.role.value))
        service.start()
        code = 0
        try:
            if once:
                code = _once(service, signals)
            else:
                while not signals.requested.is_set() and not service.wait_for_stop_request(WAIT_SECONDS):
                    pass
        finally:
            if not service.stop():
                end_children()
                code = Unavailable.exit_code
    raise typer.Exit(code)


def _once(service: "CompactorService", signals: "_StopSignals") -> int:
    number = service.trigger()
    while True:
        try:
            cycle = service.wait(number, seconds=WAIT_SECONDS)
            return int(any(result.error or result.failed or result.cancelled for result in cycle.results))
        except Unavailable:
            if signals.requested.is_set() or service.wait_for_stop_request(0):
                return INTERRUPTED


def _dataset_filter(
    lake: Lake, catalogs: list[str] | None, datasets: list[str] | None
) -> Callable[[], list[str] | None]:
    """Return a function that lists the datasets to maintain, without those that were dropped meanwhile."""
    if not catalogs and not datasets:
        return lambda: None
    names = lake.names()
    for name in datasets or ():
        if name not in names:
            raise NotFound(f"There is no dataset {name}. See silt list.")
    for name in catalogs or ():
        if not any(dataset.split(".")[0] == name for dataset in names):
            raise NotFound(f"There is no catalog {name}. See silt list.")
    named, within = frozenset(datasets or ()), frozenset(catalogs or ())
    return lambda: [dataset for dataset in lake.names() if dataset in named or dataset.split(".")[0] in within]


class _StopSignals:
    """Handles SIGINT and SIGTERM: the first requests a stop, the second ends the process at once."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._stop)
            signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: object) -> None:
        if self.requested.is_set():
            end_children()
            os._exit(INTERRUPTED)  # the second signal: do not wait
        self.requested.set()


def _event_writer(*, as_json: bool) -> Callable[[CompactionEvent], None]:
    """Return a function that writes events to standard output, one whole line each, from any thread."""
    clock, mutex = SystemClock(), threading.Lock()

    def write(event: CompactionEvent) -> None:
        at = utc_text(clock.now(), timespec="seconds")
        if as_json:
            text = json.dumps(render.plain({"at": at, **event.to_dict()}), ensure_ascii=False)
        else:
            text = f"{render.moment(at)}  {render.printable(event_line(event))}"
        with mutex:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    return write


def status(call: Invocation) -> None:
    r"""Show which process compacts the lake, and what is due.

    The output also has its running cycle and its last one.

    \b
    silt compactor status
    silt compactor status --json
    """
    with call.open() as lake:
        data = lake.compactor_status()
    facts: dict[str, Any] = {"compactor": _holder_text(data)}
    if data["running_cycle"] is not None:
        tasks = f": {', '.join(data['running_tasks'])}" if data["running_tasks"] else ""
        facts["now"] = (
            f"cycle {data['running_cycle']}{tasks}, since {render.moment(data['running_since']) or 'just now'}"
        )
    facts["paused"] = f"since {render.moment(data['paused_since'])}" if data["paused"] else "no"
    if data["last_cycle"]:
        last = data["last_cycle"]
        facts["last cycle"] = (
            f"{last['cycle']} at {render.moment(last['started'])}: {job_counts(last)}, {render.seconds(last['seconds'])}"
        )
        if last["errors"]:
            facts["errors"] = "; ".join(last["errors"])
    if data["trouble"]:
        facts["trouble"] = data["trouble"]
    due = sorted((at, name) for name, at in data["due"].items() if at)
    if due:
        facts["due"] = ", ".join(f"{name} {at[11:19]}" for at, name in due[:SHOWN_DUE])
    call.answer(data, lambda: render.write_facts(facts))


def _holder_text(data: dict[str, Any]) -> str:
    holder = data["holder"] or data["last_holder"]
    if holder is None:
        return "none; none has run yet"
    details = f"role {holder['role']}, epoch {holder['epoch']}, since {render.moment(holder['since'])}"
    text = f"process {holder['pid']} on {holder['host']} ({details})"
    return f"none; the last one was {text}" if data["holder"] is None else f"{text}, {data['state'] or 'starting'}"


def pause(call: Invocation) -> None:
    r"""Stop scheduled work in this lake until it is resumed.

    A running cycle continues. The pause also holds for compactors that start later.

    \b
    silt compactor pause
    """
    with call.open() as lake:
        lake.pause_compactor()
    call.answer({"paused": True}, lambda: render.write_line("Paused. silt compactor resume ends the pause."))


def resume(call: Invocation) -> None:
    r"""Resume scheduled work; missed runs are run once.

    \b
    silt compactor resume
    """
    with call.open() as lake:
        was_paused = lake.resume_compactor()
    text = "Resumed." if was_paused else "The compactor was not paused."
    call.answer({"paused": False}, lambda: render.write_line(text))


def stop(call: Invocation) -> None:
    r"""Stop the compactor that holds the lease.

    The command waits until it has stopped. A waiting compactor takes over, and is named.

    \b
    silt compactor stop
    """
    with call.open() as lake:
        successor = lake.stop_compactor(seconds=STOP_SECONDS)
    text = f"Now {successor} compacts." if successor else "No compactor has taken over."
    call.answer({"stopped": True, "taken_over_by": successor}, lambda: render.write_line(f"Stopped. {text}"))


COMMANDS: Final[Commands] = {GENERAL: {RUN: run, "status": status, "pause": pause, "resume": resume, "stop": stop}}
