"""Tags on Spark's work, by which another thread can cancel it.

Spark has two kinds: the tags of a Connect session, and the job tags of a classic session's context. A classic session
has the first kind, too. But only the thread that set such a tag can interrupt by it.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from siltstone.spark.errors import spark_errors
from siltstone.spark.progress import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_tag(session: "SparkSession", tag: str) -> None:
    """Tag all further Spark work of this thread. A tag has letters, digits, ``-`` and ``.``."""
    if is_connect(session):
        session.addTag(tag)
    else:
        session.sparkContext.addJobTag(tag)


def stop_tasks_when_ended(session: "SparkSession") -> None:
    """Make cancellation by tag also interrupt running tasks. Connect does so by default."""
    if not is_connect(session):
        session.sparkContext.setInterruptOnCancel(True)


def remove_tag(session: "SparkSession", tag: str) -> None:
    """Remove the tag from this thread. Errors of a lost session are ignored."""
    with suppress(*spark_errors()):
        if is_connect(session):
            session.removeTag(tag)
        else:
            session.sparkContext.removeJobTag(tag)


def interrupt_tag(session: "SparkSession", tag: str) -> list[str]:
    """Cancel the Spark work under a tag, if there is any. Callable from any thread.

    Returns:
        The operations of a Connect session that were interrupted. Each operation is returned by one call only.
    """
    with suppress(*spark_errors()):
        if is_connect(session):
            return session.interruptTag(tag)
        session.sparkContext.cancelJobsWithTag(tag)
    return []
