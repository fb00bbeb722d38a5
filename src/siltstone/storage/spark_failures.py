"""What Spark raises, seen from outside: which exceptions are Spark's, and what a person can use of their text."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from siltstone.errors import Unavailable

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

_AWAY: Final = (
    "INVALID_HANDLE.SESSION_",
    "NO_ACTIVE_SESSION",
    "stopped SparkContext",
    "SparkContext was shut down",
    "Error while sending or receiving",
    "Answer from Java side is empty",
)
_AWAY_CODES: Final = ("UNAVAILABLE", "UNAUTHENTICATED")
"""gRPC's words for: nobody answers; somebody else answers."""


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


def is_away(error: Exception) -> bool:
    """True if Spark itself is gone, or has forgotten the session: whatever was asked is not to blame."""
    code = getattr(error, "getGrpcStatusCode", None)
    if code is not None and code().name in _AWAY_CODES:
        return True
    text = str(error)
    return type(error).__name__ == "Py4JNetworkError" or any(mark in text for mark in _AWAY)


def away(error: Exception) -> Unavailable:
    """Return what to raise when Spark is gone."""
    return Unavailable(
        f"Spark went away while it was needed ({error_line(error)}). Try again; the log of a shared Spark server is shown by "
        "silt spark status."
    )


@contextmanager
def noticing_absence() -> Iterator[None]:
    """Turn Spark's errors into Unavailable where they mean that Spark is gone; others pass."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith(("pyspark", "py4j")) and is_away(error):
            raise away(error) from error
        raise


def error_line(error: Exception) -> str:
    """Return the line of a Spark error that says what is wrong; its tasks and stack are of no use to a person."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "[" in line and "]" in line and "Lost task" not in line]
    return (telling or lines or [type(error).__name__])[0][:MAX_LINE_CHARS]
