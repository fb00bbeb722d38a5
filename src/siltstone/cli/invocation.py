"""What a command is called with besides its own arguments: which lake, and for whom the answer is."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from siltstone.cli import render
from siltstone.errors import InvalidRequest, SiltstoneError

if TYPE_CHECKING:
    from siltstone.dataset.dataset import Dataset
    from siltstone.lake import Lake

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The global options of one call."""

    lake_path: str | None
    as_json: bool

    def open(self) -> "Lake":
        """Open the lake.

        Raises:
            InvalidRequest: no lake was named, or the path cannot be one.
        """
        from siltstone.lake import Lake

        if not self.lake_path:
            raise InvalidRequest("No lake was named. Pass --lake PATH or set SILT_LAKE.")
        return Lake.open(self.lake_path)

    def answer(self, data: Any, people: Callable[[], None]) -> None:  # noqa: ANN401
        """Write the answer: as JSON, or as `people` shows it."""
        if self.as_json:
            render.write_json(data)
        else:
            people()


def invocation(context: typer.Context) -> Invocation:
    """Return the global options of this call."""
    found = context.find_root().obj
    assert isinstance(found, Invocation)  # noqa: S101  # the root callback has set it
    return found


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed; where nobody can answer, ``--yes`` is the answer.

    Raises:
        InvalidRequest: there is no terminal to ask on, and no ``--yes``.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{question} There is no terminal to ask on: pass --yes to go on. Nothing was changed.")
    if not typer.confirm(question, err=True):
        sys.stderr.write("Nothing was changed.\n")
        raise typer.Exit(1)


def chosen(lake: "Lake", name: str | None, *, every: bool) -> "list[Dataset]":
    """Return the one dataset that was named, or all.

    Raises:
        InvalidRequest: a name and ``--all`` together, or neither.
    """
    if (name is None) != every:
        raise InvalidRequest("Name a dataset, or pass --all; not both.")
    return [lake.dataset(info.name) for info in lake.datasets()] if name is None else [lake.dataset(name)]


def each(datasets: "list[Dataset]", action: "Callable[[Dataset], T]") -> tuple[list[T], list[SiltstoneError]]:
    """Do the same to several datasets; one that fails does not keep the others from their turn."""
    done: list[T] = []
    failures: list[SiltstoneError] = []
    for dataset in datasets:
        try:
            done.append(action(dataset))
        except SiltstoneError as error:
            failures.append(error)
    return done, failures


def settle(call: Invocation, failures: list[SiltstoneError]) -> None:
    """Show every failure; the first one decides about the exit code."""
    for failure in failures[1:]:
        render.show_error(failure.kind, str(failure), as_json=call.as_json)
    if failures:
        raise failures[0]
