"""Registers commands with their name, help text and section in the list of commands."""

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = "Commands"
DATASETS, WRITE, READ, MAINTENANCE, SYSTEM = "Datasets", "Write", "Read", "Maintenance", "System"


class Sections(TyperGroup):
    """A group that lists its commands in sections by their ``rich_help_panel``, in the order of registration."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write each section. A line that does not fit is wrapped, never cut."""
        sections: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self.commands), default=0)
        for name in self.list_commands(ctx):
            command: Any = self.commands[name]
            if not command.hidden:
                section = sections.setdefault(command.rich_help_panel or COMMANDS, [])
                section.append((name.ljust(width), command.get_short_help_str()))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def add(app: typer.Typer, name: str, command: Callable[..., None], section: str = COMMANDS) -> None:
    r"""Register a command with its docstring as help; its first line is the line in the list of commands.

    A line ``\b`` keeps the lines below it as they are.
    """
    text = inspect.cleandoc(command.__doc__ or "").replace("\\b", "\b")
    first, _, _ = text.partition("\n")
    app.command(name, help=text, short_help=first, rich_help_panel=section)(command)


def add_group(app: typer.Typer, name: str, group: typer.Typer, section: str = COMMANDS) -> None:
    """Register a group of commands; the first sentence of its help is its line in the list of commands."""
    first, _, _ = str(group.info.help).partition(". ")
    app.add_typer(group, name=name, short_help=f"{first.rstrip('.')}.", rich_help_panel=section)
