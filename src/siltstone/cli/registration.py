"""How a command gets its name and its help text."""

import inspect
from collections.abc import Callable

import typer


def add(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    r"""Register a command with its docstring as help; a line ``\b`` keeps the lines below it as they are."""
    app.command(name, help=inspect.cleandoc(command.__doc__ or "").replace("\\b", "\b"))(command)
