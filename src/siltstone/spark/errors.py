"""Classification of Spark's exceptions, and the useful part of their text."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from siltstone.errors import Corruption, Reason, SiltstoneError, Unavailable

MAX_LINE_CHARS: Final = 500
_MISSING: Final = (
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_FILE_NOT_FOUND",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_STATE_RECOVER_ERROR",
    "VersionNotFoundException",
    "FileNotFoundException",
    "FileNotFoundError",
    "PATH_NOT_FOUND",
)
_DAMAGED: Final = ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "CRC checksum verification failed")
_NOT_DAMAGED: Final = (
    "Permission denied",
    "Too many open files",
    "OutOfMemoryError",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH",
)
_DATA_FILE: Final = re.compile(r"[^\s:'\",;()]*/[^\s:'\",;()]+\.parquet(?!\.?\w)")
"""A path; neither the package org.apache.parquet nor the method that py4j calls o186.parquet."""
_CAUSED_BY: Final = "Caused by: "
_PYTHON_ERROR: Final = re.compile(r"(\w+\.)*\w*(Error|Exception): ")
_CLASS: Final = re.compile(r"^(: |\()?(\w+\.)+\w+(: |\) |$)")
_CODE: Final = re.compile(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\]\s*")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*$")

_AWAY: Final = (
    "INVALID_HANDLE.SESSION_",
    "NO_ACTIVE_SESSION",
    "stopped SparkContext",
    "SparkContext was shut down",
    "Error while sending or receiving",
    "Answer from Java side is empty",
    "Channel closed",
    "closed channel",
)
_CANCELLED: Final = ("cancelled", "Cancelled")
_FORGOTTEN: Final = ("INVALID_HANDLE.", "INVALID_CURSOR.")
"""Errors of a Connect server for operations and sessions that it no longer knows, whether or not they still run."""
_MEMORY: Final = re.compile(
    r"""(?:[^'"`\[]*(?::\ |\)\ |\(|\#\ |due\ to\ )|Exception\ in\ thread\ "[^"]*"\ )?
    (?:[\w.$]*OutOfMemoryError\b | Java\ heap\ space | GC\ overhead\ limit\ exceeded | \[UNABLE_TO_ACQUIRE_MEMORY
    | (?:\[_LEGACY_ERROR_TEMP_\d+\]\ )?Not\ enough\ memory\ to\ build\ and\ broadcast
    | Total\ size\ of\ serialized\ results\ of\ \d+\ tasks)""",
    re.VERBOSE,
)
"""A line that itself reports exhausted memory. No quote and no error condition precedes it, because such text may be a user's."""
_DETAILS: Final = re.compile(r'details = "([^"]+?)\.?"')
"""The details that gRPC adds to its code."""
_AWAY_CODES: Final = ("UNAVAILABLE", "UNAUTHENTICATED")
"""gRPC codes for "no server answers" and "another server answers"."""


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes of a failed Spark call, on classic and on Connect sessions.

    A classic session raises ConnectionError if its JVM does not listen. That is an OSError, but not a disk error. gRPC raises
    ValueError if the channel of a Connect session was closed; see `is_away`.
    """
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    except ImportError:
        return (PySparkException, ConnectionError)
    return (PySparkException, Py4JError, ConnectionError)


def is_missing_file(error: Exception) -> bool:
    """True if a file or version of a pinned frame is gone, so that a new snapshot is needed."""
    return any(mark in str(error) for mark in _MISSING)


def damage(error: Exception) -> Corruption | None:
    """Return the error to raise if a task read a damaged file of ours; None for any other error."""
    text = str(error)
    if not any(mark in text for mark in _DAMAGED) or any(mark in text for mark in _NOT_DAMAGED):
        return None
    line = error_line(error)
    files = dict.fromkeys(_DATA_FILE.findall(text))
    named = "" if any(file in line for file in files) else " ".join(["", *files])  # the line of a lost task is left out
    return Corruption(
        f"A data file is damaged{named}: {line} Restore it from a copy.", reason=Reason.DAMAGED_FILE, paths=files
    )


def names_data_file(error: Exception) -> bool:
    """True if a Spark error names a data file."""
    return _DATA_FILE.search(str(error)) is not None


def is_away(error: Exception) -> bool:
    """True if Spark itself is gone or no longer knows the session, so that the request is not to blame."""
    if isinstance(error, SiltstoneError):
        return error.reason is Reason.SPARK_LOST
    if isinstance(error, ConnectionError):
        return True
    code = getattr(error, "getGrpcStatusCode", None)
    if code is not None and code().name in _AWAY_CODES:
        return True
    text = str(error)
    return type(error).__name__ == "Py4JNetworkError" or any(mark in text for mark in _AWAY)


def is_cancelled(error: Exception) -> bool:
    """True if Spark reports that a job or query was cancelled."""
    return any(mark in str(error) for mark in _CANCELLED) and not isinstance(error, SiltstoneError)


def leaves_end_unknown(error: Exception) -> bool:
    """True if Spark did not report how an operation ended, only that it cannot be reached: it may still run."""
    is_forgotten = not isinstance(error, SiltstoneError) and any(mark in str(error) for mark in _FORGOTTEN)
    return is_forgotten or is_away(error)


def away(error: Exception) -> Unavailable:
    """Return the error to raise when Spark is gone."""
    details = _DETAILS.search(str(error))
    cause = details[1] if details else error_line(error).rstrip(".")
    return Unavailable(
        f"Spark was lost while it was needed: {cause}. Try again; silt spark status shows the log of a shared Spark server.",
        reason=Reason.SPARK_LOST,
    )


def says_out_of_memory(text: str) -> bool:
    """True if a text of Spark or its JVM means that memory was exhausted.

    The text may quote data. So a line must report it where no data can be, and lines after another error condition are
    ignored.
    """
    for line in text.splitlines():
        if _MEMORY.match(line.lstrip()):
            return True
        if _CODE.search(line):
            return False
    return False


def out_of_memory() -> Unavailable:
    """Return the error to raise when a query needs more memory than Spark has."""
    return Unavailable(
        "The query needs more memory than Spark has. Request less at a time: filter first, name fewer columns, LIMIT. "
        "Or raise the setting spark_memory_mb.",
        reason=Reason.MEMORY,
    )


@contextmanager
def noticing_absence() -> Iterator[None]:
    """Turn Spark errors into Unavailable if they mean that Spark is gone. Other errors pass."""
    try:
        yield
    except Exception as error:
        ours = isinstance(error, ConnectionError) or type(error).__module__.startswith(("pyspark", "py4j"))
        if ours and is_away(error):
            raise away(error) from error
        raise


def error_line(error: Exception) -> str:
    """Return the message of a Spark error as sentences in one line, without the tasks and the stack.

    For an error of a Python worker it is the last line of its traceback. Otherwise it lists the causes from the outermost,
    which names the file, to the innermost, which names the value.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _PYTHON_ERROR.match(line)]
    if raised and any(line.startswith("Traceback") for line in lines):
        return _bounded([raised[-1]])
    coded = [line for line in lines if _CODE.search(line) and "Lost task" not in line]
    causes = [line for line in lines if line.startswith(_CAUSED_BY) and "Lost task" not in line]
    chosen = [*coded[:1], *[line for line in causes if line not in coded[:1]]] or lines or [type(error).__name__]
    return _bounded(chosen if coded or causes else chosen[:1])


def _bounded(lines: list[str]) -> str:
    """Join the lines, each once and as a sentence, up to `MAX_LINE_CHARS` characters."""
    sentences: dict[str, None] = {}
    for line in lines:  # without what only a program can use: class names, error codes, SQL states
        text = _CODE.sub("", _CLASS.sub("", line.removeprefix(_CAUSED_BY)), count=1)
        if text := _STATE.sub("", text).strip(" :"):
            sentences[text if text.endswith((".", "?", "!")) else f"{text}."] = None
    whole = " ".join(sentences)
    return whole if len(whole) <= MAX_LINE_CHARS else f"{whole[:MAX_LINE_CHARS]}..."
