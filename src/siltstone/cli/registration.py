"""Registers commands with their name, help text and section in the list of commands.

A module of `commands` lists its commands in `COMMANDS`. The module of a group is imported when a command of the group
is used or listed. So it may import heavy modules at its top. Modules of single commands are imported by every call of
`silt`: they import heavy modules inside functions.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import update_wrapper
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from siltstone.cli import render
from siltstone.errors import InvalidRequest

DATASETS, WRITE, READ, MAINTENANCE, SYSTEM = "Datasets", "Write", "Read", "Maintenance", "System"
GENERAL: Final = "Commands"
"""The section of a group that has only one."""
RUN: Final = "run"
Commands = Mapping[str, Mapping[str, Callable[..., None]]]
"""Commands by section and name."""


class Sections(TyperGroup):
    """A group that lists its commands in sections by their ``rich_help_panel``, in the order of registration."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write each section. A long line is wrapped, never cut."""
        sections: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self.commands), default=0)
        for name in self.list_commands(ctx):
            command: Any = self.commands[name]
            if not command.hidden:
                section = sections.setdefault(command.rich_help_panel or GENERAL, [])
                section.append((name.ljust(width), command.get_short_help_str()))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def register(app: typer.Typer, commands: Commands) -> None:
    r"""Register commands with their docstrings as help; the first line is the line in the list of commands.

    A line ``\b`` keeps the lines below it as they are. The parameter `call` of a command gets the global options.
    """
    for section, named in commands.items():
        for name, command in named.items():
            text = inspect.cleandoc(command.__doc__ or "").replace("\\b", "\b")
            first, _, _ = text.partition("\n")
            app.command(name, help=text, short_help=first, rich_help_panel=section)(_with_context(command))


def _with_context(command: Callable[..., None]) -> Callable[..., None]:
    """Return a function for typer, which passes its context. The command gets the `Invocation` of the root instead."""

    def run(call: typer.Context, **options: Any) -> None:  # noqa: ANN401
        command(call.find_root().obj, **options)

    update_wrapper(run, command)
    run.__annotations__ = inspect.get_annotations(command) | {"call": typer.Context}
    return run


class LazyGroup(Sections):
    """A group whose commands are in the module of its name, which is imported when they are first used."""

    _commands: Any

    @property
    def commands(self) -> Any:  # noqa: ANN401  # typer's commands by name
        """The commands of the group by name."""
        if not self._commands:
            group = typer.Typer(rich_markup_mode=None)
            register(group, import_module(f"siltstone.cli.commands.{self.name}").COMMANDS)
            self._commands = typer.main.get_group(group).commands
        return self._commands

    @commands.setter
    def commands(self, commands: Any) -> None:  # noqa: ANN401
        self._commands = commands


class RunsByDefault(LazyGroup):
    """A group that runs its command `run` if none is named: `silt compactor` is `silt compactor run`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Put `run` in front of arguments that begin with no command."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [RUN, *args]
        return list(super().parse_args(ctx, args))


def add_group(
    app: typer.Typer,
    name: str,
    text: str,
    section: str,
    *,
    group_class: type[LazyGroup] = LazyGroup,
    callback: Callable[[typer.Context], None] | None = None,
) -> None:
    """Register the group of a module of `commands`.

    The first sentence of its help is its line in the list of commands.
    """
    group = typer.Typer(cls=group_class, help=text, rich_markup_mode=None)
    if callback is not None:
        group.callback(invoke_without_command=True)(callback)
    first, _, _ = text.partition(". ")
    app.add_typer(group, name=name, short_help=f"{first.rstrip('.')}.", rich_help_panel=section)


def help_alone(context: typer.Context) -> None:
    """Show the help of a group that was called without a command."""
    if context.invoked_subcommand is None:
        render.write_text(context.get_help())
        raise typer.Exit(InvalidRequest.exit_code)
