"""Names for what Spark does, by which another thread can end it.

Spark has two ways: a Connect session's own tags, and the job tags of a classic session's context. A classic session has the
former, too, but only the thread that gave such a tag can interrupt by it.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from siltstone.spark.errors import spark_errors
from siltstone.spark.progress import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_tag(session: "SparkSession", tag: str) -> None:
    """Let whatever this thread asks of Spark from now on carry a tag: letters, digits, ``-`` and ``.``."""
    if is_connect(session):
        session.addTag(tag)
    else:
        session.sparkContext.addJobTag(tag)


def stop_tasks_when_ended(session: "SparkSession") -> None:
    """Let what is ended by a tag stop inside its tasks, too; on Connect it does so anyway."""
    if not is_connect(session):
        session.sparkContext.setInterruptOnCancel(True)


def remove_tag(session: "SparkSession", tag: str) -> None:
    """Take the tag off this thread; a session that is gone has none."""
    with suppress(*spark_errors()):
        if is_connect(session):
            session.removeTag(tag)
        else:
            session.sparkContext.removeJobTag(tag)


def interrupt_tag(session: "SparkSession", tag: str) -> list[str]:
    """End what Spark does under a tag; nothing, if it does nothing. From any thread.

    Returns:
        The operations of a Connect session that were interrupted, each once in all calls.
    """
    with suppress(*spark_errors()):
        if is_connect(session):
            return session.interruptTag(tag)
        session.sparkContext.cancelJobsWithTag(tag)
    return []
