"""The Spark servers that commands share, one for queries and one for jobs: spark start, spark stop, spark status."""

from typing import Annotated, Any, Final

import typer

from siltstone.cli import render
from siltstone.cli.context import Invocation
from siltstone.cli.registration import GENERAL, Commands
from siltstone.config import Settings
from siltstone.delta.layout import expanded
from siltstone.errors import Conflict, InvalidRequest
from siltstone.spark.session import shares
from siltstone.spark.shared_server import RunningServer, ServerRole, SharedSpark, all_server_folders

Jobs = Annotated[
    bool,
    typer.Option("--jobs", help="The server for jobs (loads, folds, exports, frames), instead of the one for queries."),
]


def start(
    call: Invocation,
    *,
    jobs: Jobs = False,
    ui: Annotated[bool, typer.Option("--ui", help="Start it with Spark's UI, and show the address.")] = False,
) -> None:
    r"""Start the shared Spark server for queries or jobs.

    Later commands then do not wait for its start. It ends when it was unused for the setting spark_idle_minutes.

    \b
    silt spark start
    silt spark start --jobs --ui
    """
    if not shares(_settings(call)):
        raise InvalidRequest("These settings share no Spark server; see spark_shared, spark_remote and spark_master.")
    shared = _shared(call, jobs=jobs)
    with render.working("Starting Spark", as_json=call.as_json), shared.join(ui=ui) as member:
        running = member.running
    if ui and running.ui is None:
        raise Conflict("The shared Spark server runs without a UI. Stop it with silt spark stop, then start it again.")
    _show(call, shared, running)


def stop(
    call: Invocation,
    *,
    force: Annotated[bool, typer.Option("--force", help="Stop servers that another process uses, too.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Also servers that were started with other settings.")] = False,
) -> None:
    r"""Stop the shared Spark servers and wait until they are gone.

    This stops the server for queries and the one for jobs. The command is refused while another process uses one. With
    --force, the work that runs there fails and changes nothing.

    \b
    silt spark stop
    silt spark stop --all
    """
    settings = _settings(call)
    folders = all_server_folders() if every else []
    chosen = [SharedSpark(settings, folder=folder) for folder in folders] or [
        SharedSpark(settings, role=role) for role in ServerRole
    ]
    used_first = sorted(chosen, key=lambda server: not server.in_use())  # a refusal must precede every stop
    stopped = sum(server.stop(force=force) for server in used_first)
    text = f"Stopped {render.counted(stopped, 'Spark server')}." if stopped else "No shared Spark server was running."
    call.answer({"stopped": stopped}, lambda: render.write_line(text))


def status(
    call: Invocation,
    *,
    jobs: Jobs = False,
    ui: Annotated[bool, typer.Option("--ui", help="Show only the address of Spark's UI.")] = False,
) -> None:
    r"""Show whether a shared Spark server runs.

    The output has its start, whether it is in use, and the last lines of its log.

    \b
    silt spark status
    silt spark status --jobs
    silt spark status --ui
    silt spark status --json
    """
    shared = _shared(call, jobs=jobs)
    running = shared.running()
    if ui and (running is None or running.ui is None):
        raise InvalidRequest("No server with a Spark UI runs. Start one: silt spark stop; silt spark start --ui.")
    if ui and running is not None and not call.as_json:
        render.write_line(running.ui or "")
        return
    _show(call, shared, running)


def _settings(call: Invocation) -> Settings:
    """Return the settings of the lake if one is named, otherwise those of the environment."""
    return Settings.load(lake=expanded(call.lake_path, what="Lake") if call.lake_path else None)


def _shared(call: Invocation, *, jobs: bool) -> SharedSpark:
    return SharedSpark(_settings(call), role=ServerRole.JOBS if jobs else ServerRole.QUERIES)


def _show(call: Invocation, shared: SharedSpark, running: RunningServer | None) -> None:
    facts: dict[str, Any] = {"running": running is not None, "role": shared.role}
    if running is not None:
        facts |= {
            "address": running.address,
            "pid": shared.daemon_pid(),
            "started_at": running.started_at,
            "uptime_seconds": shared.uptime_seconds(),
            "idle_minutes": running.idle_minutes,
            "in_use": shared.in_use(),
            "ui": running.ui,
        }
    facts |= {"log": str(shared.log), "last_lines": shared.log_tail()}

    def people() -> None:
        if running is None:
            render.write_line(
                f"No shared Spark server for {shared.role} runs; the first command that needs it starts it."
            )
        else:
            up = facts["uptime_seconds"] or 0
            shown = {
                "for": shared.role,
                "address": running.address,
                "daemon": f"process {facts['pid']}, for {up // 60} min {up % 60} s",
                "in use": "yes" if facts["in_use"] else f"no; ends when unused for {running.idle_minutes:g} minutes",
                "log": facts["log"],
            }
            render.write_facts(shown | ({"Spark UI": running.ui} if running.ui else {}))
        if facts["last_lines"]:
            render.write_line(f"Last lines of {shared.log}:")
            for line in facts["last_lines"]:
                render.write_line(f"  {line}")

    call.answer(facts, people)


COMMANDS: Final[Commands] = {GENERAL: {"start": start, "stop": stop, "status": status}}
