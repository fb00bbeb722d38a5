"""Context of a command besides its own arguments: the lake, and the form of the answer (people or JSON)."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, TypeVar

import typer

import siltstone
from siltstone.cli import render
from siltstone.errors import InvalidRequest, SiltstoneError

if TYPE_CHECKING:
    from siltstone.dataset.dataset import Dataset
    from siltstone.lake import Lake

T = TypeVar("T")
Failures = dict[str, SiltstoneError]
"""Errors by name of the dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The global options of one call."""

    lake_path: str | None
    as_json: bool
    own_process: bool = False

    def open(self, *, spark: bool = False) -> "Lake":
        """Open the lake. `spark` is true if the command may need Spark.

        Raises:
            InvalidRequest: no lake was named, or the path cannot be a lake.
        """
        if not self.lake_path:
            raise InvalidRequest("No lake was named. Pass --lake PATH or set SILT_LAKE.")
        if self.own_process and not spark:
            _spare_pandas()
        return siltstone.Lake.open(self.lake_path, long_running=False)

    @contextmanager
    def working(self, text: str) -> "Iterator[Lake]":
        """Open the lake for a long operation on Spark, and show its progress at a terminal."""
        with self.open(spark=True) as lake, self.showing(text, lake):
            yield lake

    @contextmanager
    def showing(self, text: str, lake: "Lake", *, spark: bool = True) -> Iterator[None]:
        """Show at a terminal that a long operation is running, with its progress if it runs on Spark."""
        with render.working(text, as_json=self.as_json) as show, lake.progress(show if spark else None):
            yield

    def answer(self, data: Any, people: Callable[[], None]) -> None:  # noqa: ANN401
        """Write the answer as JSON, or call `people` to show it as text."""
        if self.as_json:
            render.write_json(data)
        else:
            people()


def _spare_pandas() -> None:
    """Keep Arrow from loading pandas, which takes longer than most commands.

    Arrow imports pandas on first use, only to test whether a value is a frame. It finds once that pandas is missing,
    and remembers that for the life of this process. Later imports of pandas by other code work as usual.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(absent)


class _Absent(MetaPathFinder):
    """Import finder that reports pandas as not installed."""

    def find_spec(self, fullname: str, *_where: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation before a destructive operation. Without a terminal ``--yes`` is required.

    Raises:
        InvalidRequest: there is no terminal, and no ``--yes``.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{question} There is no terminal to ask on: pass --yes to go on. Nothing was changed.")
    if not typer.confirm(question, err=True):
        sys.stderr.write("Nothing was changed.\n")
        raise typer.Exit(1)


def select_datasets(lake: "Lake", name: str | None, *, every: bool) -> "tuple[list[Dataset], Failures]":
    """Return the named dataset, or all datasets that can be opened and the errors of the others.

    Raises:
        InvalidRequest: a name and ``--all`` together, or neither.
        NotFound: there is no such dataset, or no lake.
    """
    if (name is None) != every:
        raise InvalidRequest("Name a dataset, or pass --all, but not both. Nothing was changed.")
    lake.require_exists()
    if name is not None:
        return [lake.dataset(name)], {}
    datasets, broken = lake.handles()
    return datasets, dict(broken)


def each(datasets: "list[Dataset]", action: "Callable[[Dataset], T]") -> tuple[list[T], Failures]:
    """Apply an action to several datasets. A failure does not stop the next ones."""
    done: list[T] = []
    failures: Failures = {}
    for dataset in datasets:
        try:
            done.append(action(dataset))
        except SiltstoneError as error:
            failures[str(dataset.name)] = error
    return done, failures


def raise_failures(call: Invocation, failures: Iterable[SiltstoneError]) -> None:
    """Show every failure. The first one decides the exit code."""
    errors = list(failures)
    for failure in errors[1:]:
        render.show_error(failure.kind, str(failure), as_json=call.as_json, reason=failure.reason)
    if errors:
        raise errors[0]
