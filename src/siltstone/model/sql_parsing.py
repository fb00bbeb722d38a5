"""Silences sqlglot while a caller parses SQL. Callers check the text and report errors."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the parser's warnings from standard error. Each call has its own filter, so threads do not interfere."""

    def nothing(_record: logging.LogRecord) -> bool:
        return False

    _LOGGER.addFilter(nothing)
    try:
        yield
    finally:
        _LOGGER.removeFilter(nothing)


_LOGGER: Final = logging.getLogger("sqlglot")
