"""The command `silt`: global options, commands, and the one place where an error becomes an exit code.

Flow of a call:

1. the global options (``--lake``, ``--json``) are accepted anywhere, before or after the command;
2. the command runs; its answer goes to standard output, everything else to standard error;
3. an error becomes one line (or, with ``--json``, one JSON object) on standard error, and its kind the exit code.

A command without Spark does not import PySpark. A command without SQL text does not import the SQL parser.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import siltstone
from siltstone.cli import render
from siltstone.cli.commands import backups, datasets, history, maintenance, read, sql, status, system, tiers, write
from siltstone.cli.context import Invocation
from siltstone.cli.registration import MAINTENANCE, SYSTEM, RunsByDefault, Sections, add_group, help_alone, register
from siltstone.cli.signals import INTERRUPTED, KIND, MESSAGE, Interrupts
from siltstone.config import TRACE_VARIABLE
from siltstone.errors import InvalidRequest, Reason, SiltstoneError, Unavailable, one_line, reason_of
from siltstone.host.system_errors import is_memory_failure, is_panic
from siltstone.spark.jvm import restore_stderr

PROGRAM = "silt"
_OWN_PROCESS = object()
EPILOG = "--lake and --json are accepted before and after the command."

app = typer.Typer(
    name=PROGRAM,
    cls=Sections,
    help="A lakehouse on Spark and Delta Lake: upserts in milliseconds, merged reads, folds, and erasure from disk.",
    epilog=EPILOG,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (datasets, write, read, sql, history, status, maintenance, tiers, backups, system):
    register(app, module.COMMANDS)
add_group(
    app, "cache", "Datasets in the memory of long-running processes. SQL is answered from there without Spark.", SYSTEM
)
about_compactor = "The process that compacts a lake on a schedule. silt compactor alone runs it."
add_group(app, "compactor", about_compactor, MAINTENANCE, group_class=RunsByDefault)
about_events = "Event logs of builds on SQLite, PostgreSQL or Delta. Append events, and query what happened."
add_group(app, "events", about_events, SYSTEM, callback=help_alone)
about_spark = "The local Spark servers that commands share. The first command that needs one starts it."
add_group(app, "spark", about_spark, SYSTEM, callback=help_alone)


def _show_version(value: bool) -> None:  # noqa: FBT001  # the signature of a typer callback
    if value:
        sys.stdout.write(f"{PROGRAM} {siltstone.__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _globals(
    context: typer.Context,
    *,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="PATH", envvar="SILT_LAKE", help="The lake's folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the answer, or the error, as JSON.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    _ = version
    context.obj = Invocation(lake_path=lake, as_json=as_json, own_process=context.obj is _OWN_PROCESS)
    if context.invoked_subcommand is None and lake not in (None, os.environ.get("SILT_LAKE")):
        raise InvalidRequest(f"Nothing but --lake {lake} was given: name a command. Try '{PROGRAM} --help'.")
    if context.invoked_subcommand is None:
        render.write_text(context.get_help())
        raise typer.Exit(InvalidRequest.exit_code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Without `arguments`, use `sys.argv` and install signal handlers."""
    own_process = arguments is None
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)
    interrupts = Interrupts()
    if own_process:
        interrupts.watch()
    try:
        code = _run(arguments, as_json=as_json, own_process=own_process, interrupts=interrupts)
    except BaseException:
        if not interrupts.happened:
            raise
        code = INTERRUPTED
    if code == INTERRUPTED:
        if own_process:
            restore_stderr()  # a thread may have begun to start a JVM after the interrupt
        render.show_error(KIND, MESSAGE, as_json=as_json)
    return code


def _run(arguments: list[str], *, as_json: bool, own_process: bool, interrupts: Interrupts) -> int:
    """Run the command. Show an error and return its exit code, unless an interrupt caused the error."""
    owner = _OWN_PROCESS if own_process else None
    try:
        command = typer.main.get_command(app)
        code = command.main(global_options_first(arguments), prog_name=PROGRAM, standalone_mode=False, obj=owner)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BaseException as error:
        if interrupts.happened:
            return INTERRUPTED
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return _failed(error, as_json=as_json)
    return code if isinstance(code, int) else 0


def _failed(error: BaseException, *, as_json: bool) -> int:
    """Show an error and return its exit code. With `TRACE_VARIABLE` an unexpected error is raised, with its stack."""
    match error:
        case SiltstoneError():
            shown = error
        case typer.TyperException():
            shown = InvalidRequest(_usage_text(error))
        case BrokenPipeError():  # the reader closed the pipe; the interpreter must not report it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        case OSError():
            shown = Unavailable(f"{error}. Check the path, its permissions and the disk.", reason=reason_of(error))
        case _ if is_memory_failure(error):
            message = "Not enough memory. Request fewer rows or columns at a time, or give the process more memory."
            shown = Unavailable(message, reason=Reason.MEMORY)
        case _ if os.environ.get(TRACE_VARIABLE):
            raise error
        case _:
            message = one_line(f"{type(error).__name__}: {error}").rstrip(".")
            advice = f"This is a bug in Siltstone. Please report it with the traceback that {TRACE_VARIABLE}=1 shows."
            shown = SiltstoneError(f"{message}. {advice}")
    render.show_error(shown.kind, str(shown), as_json=as_json, reason=shown.reason)
    return shown.exit_code


def global_options_first(arguments: Sequence[str]) -> list[str]:
    """Move the global options to the front, so that they are accepted anywhere before a bare ``--``.

    >>> global_options_first(["list", "--json", "--lake", "x"])
    ['--json', '--lake', 'x', 'list']

    Raises:
        InvalidRequest: the lake's path is missing.
    """
    front: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            rest += [argument, *remaining]
        elif argument == "--json" or argument.startswith("--lake="):
            front.append(argument)
        elif argument == "--lake":
            value = next(remaining, None)
            if value is None or value.startswith("-"):
                raise InvalidRequest(f"Option --lake needs a value: --lake PATH. Try '{PROGRAM} --help'.")
            front += [argument, value]
        else:
            rest.append(argument)
    return front + rest


def _usage_text(error: typer.TyperException) -> str:
    command = getattr(getattr(error, "ctx", None), "command_path", PROGRAM)
    message = error.format_message().rstrip(".").replace("argument(s)", "arguments")
    return f"{message}{'' if message.endswith('?') else '.'} Try '{command} --help'."
