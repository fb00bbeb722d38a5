"""Progress of Spark's work, reported while it runs. Only Connect sessions report progress.

A number of tasks is what Spark knows at that moment. Each stage that starts adds more.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of one Spark operation."""

    tasks: int
    tasks_done: int
    bytes_read: int


ShowProgress = Callable[["Progress | str"], None]
"""Callback for progress, or for a line about a step without progress."""


class Watcher(AbstractContextManager["Watcher"]):
    """Reports Spark's progress to one function, for every attached session, until the end of its block."""

    def __init__(self, show: ShowProgress) -> None:
        self.show: Final = show
        self._sessions: list[SparkSession] = []

    def attach(self, session: "SparkSession") -> None:
        """Report the progress of a session from now on. A classic session reports none."""
        if is_connect(session) and not any(attached is session for attached in self._sessions):
            session.registerProgressHandler(self)  # type: ignore[arg-type]  # any callable with these arguments
            self._sessions.append(session)

    def __exit__(self, *_failure: object) -> None:
        for session in self._sessions:
            session.removeProgressHandler(self)  # type: ignore[arg-type]
        self._sessions.clear()

    def __call__(self, *, stages: Iterable[Any] | None, done: bool, **_more: object) -> None:
        """Receive progress from Spark."""
        running = [] if done else list(stages or ())
        if running:
            self.show(
                Progress(
                    tasks=sum(stage.num_tasks for stage in running),
                    tasks_done=sum(stage.num_completed_tasks for stage in running),
                    bytes_read=sum(stage.num_bytes_read for stage in running),
                )
            )


def is_connect(session: "SparkSession") -> bool:
    """True for a Connect session, False for a classic one."""
    return type(session).__module__.startswith("pyspark.sql.connect")
