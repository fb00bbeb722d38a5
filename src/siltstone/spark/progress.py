"""How far Spark has come, told to whoever watches while it works; only Connect sessions tell.

A number of tasks is what Spark knows at that moment: each stage that starts brings more.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where one operation of Spark's stands."""

    tasks: int
    tasks_done: int
    bytes_read: int


Show = Callable[["Progress | str"], None]
"""Takes progress, or a line about what goes on instead."""


class Watcher:
    """Tells one function how Spark comes along, on every session that it is attached to."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._sessions: list[SparkSession] = []

    def attach(self, session: "SparkSession") -> None:
        """Listen to a session from now on; a classic one has nothing to say."""
        if is_connect(session) and not any(known is session for known in self._sessions):
            session.registerProgressHandler(self)  # type: ignore[arg-type]  # any callable with these arguments
            self._sessions.append(session)

    def announce(self, text: str) -> None:
        """Report a step that has no progress."""
        self._show(text)

    def detach(self) -> None:
        """Listen no more."""
        for session in self._sessions:
            session.removeProgressHandler(self)  # type: ignore[arg-type]
        self._sessions.clear()

    def __call__(self, *, stages: Iterable[Any] | None, done: bool, **_more: object) -> None:
        """Take what Spark says."""
        known = [] if done else list(stages or ())
        if known:
            self._show(
                Progress(
                    tasks=sum(stage.num_tasks for stage in known),
                    tasks_done=sum(stage.num_completed_tasks for stage in known),
                    bytes_read=sum(stage.num_bytes_read for stage in known),
                )
            )


@contextmanager
def watching(show: Show) -> Iterator[Watcher]:
    """Return a watcher for the length of a block."""
    watcher = Watcher(show)
    try:
        yield watcher
    finally:
        watcher.detach()


def is_connect(session: "SparkSession") -> bool:
    """Tell a Connect session from a classic one."""
    return type(session).__module__.startswith("pyspark.sql.connect")
