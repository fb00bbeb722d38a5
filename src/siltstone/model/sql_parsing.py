"""Reading text in Spark's dialect of SQL with sqlglot, quietly: what is odd in it is the caller's to judge and to say."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the parser's warnings from standard error; each call has a filter of its own, so threads do not meet."""

    def nothing(_record: logging.LogRecord) -> bool:
        return False

    _LOGGER.addFilter(nothing)
    try:
        yield
    finally:
        _LOGGER.removeFilter(nothing)


_LOGGER: Final = logging.getLogger("sqlglot")
