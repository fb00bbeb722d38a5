"""What Spark raises, seen from outside: which exceptions are Spark's, and what a person can use of their text."""

from typing import Final

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


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the classes a failed Spark call raises, on classic and on Connect sessions."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    except ImportError:
        return (PySparkException,)
    return (PySparkException, Py4JError)


def is_missing_file(error: Exception) -> bool:
    """True if a file or version that a frame was pinned to is gone: a new snapshot is called for."""
    text = str(error)
    return any(mark in text for mark in _MISSING)


def error_line(error: Exception) -> str:
    """Return the line of a Spark error that says what is wrong; its tasks and stack are of no use to a person."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "[" in line and "]" in line and "Lost task" not in line]
    return (telling or lines or [type(error).__name__])[0][:MAX_LINE_CHARS]
