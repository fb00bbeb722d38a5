from dataclasses import dataclass, field
from typing import Any

import pytest

from siltstone.cli.render import progress_line
from siltstone.spark.progress import Progress, Watcher


@dataclass
class Stage:
    """A stage as Spark's Connect client reports it."""

    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int


@dataclass
class FakeConnectSession:
    """Stores handlers as a Connect session does."""

    handlers: list[Any] = field(default_factory=list)

    def registerProgressHandler(self, handler: Any) -> None:  # noqa: ANN401, N802
        self.handlers.append(handler)

    def removeProgressHandler(self, handler: Any) -> None:  # noqa: ANN401, N802
        self.handlers.remove(handler)


FakeConnectSession.__module__ = "pyspark.sql.connect.session"


class ClassicSession:
    """A session without handlers."""


def test_progress_adds_up_the_stages_and_ends_with_the_block():
    session: Any = FakeConnectSession()
    heard: list[Progress | str] = []
    with Watcher(heard.append) as watcher:
        watcher.attach(session)
        watcher.attach(session)
        (handler,) = session.handlers
        handler(stages=[Stage(4, 4, 10), Stage(8, 1, 5)], inflight_tasks=2, operation_id="x", done=False)
        handler(stages=[Stage(4, 4, 10)], inflight_tasks=0, operation_id="x", done=True)
        handler(stages=None, inflight_tasks=0, operation_id=None, done=False)
    assert heard == [Progress(tasks=12, tasks_done=5, bytes_read=15)]
    assert session.handlers == []


def test_a_classic_session_is_left_alone():
    session: Any = ClassicSession()
    with Watcher(lambda _: None) as watcher:
        watcher.attach(session)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(tasks=1, tasks_done=0, bytes_read=0), "0 of 1 task"),
        (Progress(tasks=2000, tasks_done=1999, bytes_read=2_621_440), "1,999 of 2,000 tasks, 2.5 MB read"),
    ],
)
def test_progress_reads_like_a_sentence(progress: Progress, text: str):
    assert progress_line(progress) == text
