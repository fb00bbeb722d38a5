"""The command `silt`: global options, commands, and the one place where an error becomes an exit code.

Flow of a call:

1. the global options (``--lake``, ``--json``) are taken from wherever they stand, before or after the command;
2. the command runs; what it returns to the user goes to standard output, everything else to standard error;
3. an error becomes one line (or, with ``--json``, one JSON object) on standard error, and its kind the exit code.

A command that needs no Spark imports neither PySpark nor, where no text of SQL is read, its parser.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from siltstone.cli import render
from siltstone.cli.commands import datasets, environment, maintenance, past, reading, writing
from siltstone.cli.invocation import Invocation
from siltstone.errors import InvalidRequest, SiltstoneError, Unavailable

PROGRAM = "silt"
INTERRUPTED = 130
_OWN_PROCESS = object()
EPILOG = "--lake and --json may stand before or after the command."

app = typer.Typer(
    name=PROGRAM,
    help="A lakehouse on Spark and Delta Lake: upserts in milliseconds, merged reads, folds, and real forgetting.",
    epilog=EPILOG,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (datasets, writing, reading, past, maintenance, environment):
    group.register(app)


def _show_version(value: bool) -> None:  # noqa: FBT001  # the signature of a typer callback
    if value:
        from siltstone import __version__

        sys.stdout.write(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _globals(
    context: typer.Context,
    *,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="PATH", envvar="SILT_LAKE", help="The lake's folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer, and err, in JSON.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    _ = version
    context.obj = Invocation(lake_path=lake, as_json=as_json, own_process=context.obj is _OWN_PROCESS)
    if context.invoked_subcommand is None:
        sys.stdout.write(f"{context.get_help()}\n")
        raise typer.Exit(InvalidRequest.exit_code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without arguments it takes those of the process, which is then its own."""
    given = hoisted(sys.argv[1:] if arguments is None else list(arguments))
    as_json = "--json" in given[: given.index("--")] if "--" in given else "--json" in given
    owner = _OWN_PROCESS if arguments is None else None
    try:
        code = typer.main.get_command(app).main(given, prog_name=PROGRAM, standalone_mode=False, obj=owner)
        sys.stdout.flush()
    except SiltstoneError as error:
        render.show_error(error.kind, str(error), as_json=as_json)
        return error.exit_code
    except typer.TyperException as error:
        return _usage_error(error, as_json=as_json)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        return _closed_pipe()
    except OSError as error:
        render.show_error(Unavailable.kind, f"{error}. Check the path, its permissions and the disk.", as_json=as_json)
        return Unavailable.exit_code
    return code if isinstance(code, int) else 0


def hoisted(arguments: Sequence[str]) -> list[str]:
    """Move the global options to the front, so that they may stand anywhere before a bare ``--``.

    >>> hoisted(["list", "--json", "--lake", "x"])
    ['--json', '--lake', 'x', 'list']
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
            front += [argument, *([value] if (value := next(remaining, None)) is not None else [])]
        else:
            rest.append(argument)
    return front + rest


def _usage_error(error: typer.TyperException, *, as_json: bool) -> int:
    """Say what is wrong with the call itself, and where its help is."""
    place = getattr(getattr(error, "ctx", None), "command_path", PROGRAM)
    message = error.format_message().rstrip(".").replace("\n", " ")
    render.show_error(InvalidRequest.kind, f"{message}. Try '{place} --help'.", as_json=as_json)
    return InvalidRequest.exit_code


def _closed_pipe() -> int:
    """Whoever was reading has seen enough; keep the interpreter from complaining about it on the way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    sys.exit(main())
